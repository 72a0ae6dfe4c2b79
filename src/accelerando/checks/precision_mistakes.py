"""The plausible mistakes of lab 6, question by question: each must lose its own question and no other."""

from accelerando.submission import WrongAnswer

ROUNDING = (
    WrongAnswer(
        "the bits beyond the fraction are cut off",
        """
def round_to_format(x, exponent_bits, fraction_bits):
    import math
    if x == 0 or math.isinf(x):
        return x
    bias = 2 ** (exponent_bits - 1) - 1
    exponent = max(math.frexp(x)[1] - 1, 1 - bias)
    spacing = math.ldexp(1.0, exponent - fraction_bits)
    rounded = math.trunc(x / spacing) * spacing
    largest = (2 - 2.0**-fraction_bits) * 2.0**bias
    return math.copysign(math.inf, x) if abs(rounded) > largest else rounded
""",
    ),
    WrongAnswer(
        "halfway is always rounded away from zero",
        """
def round_to_format(x, exponent_bits, fraction_bits):
    import math
    if x == 0 or math.isinf(x):
        return x
    bias = 2 ** (exponent_bits - 1) - 1
    exponent = max(math.frexp(x)[1] - 1, 1 - bias)
    spacing = math.ldexp(1.0, exponent - fraction_bits)
    rounded = math.copysign(math.floor(abs(x) / spacing + 0.5) * spacing, x)
    largest = (2 - 2.0**-fraction_bits) * 2.0**bias
    return math.copysign(math.inf, x) if abs(rounded) > largest else rounded
""",
    ),
    WrongAnswer(
        "there are no subnormals: what is below the smallest normal number becomes zero",
        """
def round_to_format(x, exponent_bits, fraction_bits):
    import math
    bias = 2 ** (exponent_bits - 1) - 1
    if x == 0 or math.isinf(x):
        return x
    if abs(x) < 2.0 ** (1 - bias):
        return 0.0
    spacing = math.ldexp(1.0, math.frexp(x)[1] - 1 - fraction_bits)
    rounded = round(x / spacing) * spacing
    largest = (2 - 2.0**-fraction_bits) * 2.0**bias
    return math.copysign(math.inf, x) if abs(rounded) > largest else rounded
""",
    ),
    WrongAnswer(
        "an overflow becomes the largest number",
        """
def round_to_format(x, exponent_bits, fraction_bits):
    import math
    bias = 2 ** (exponent_bits - 1) - 1
    if x == 0 or math.isinf(x):
        return x
    exponent = max(math.frexp(x)[1] - 1, 1 - bias)
    spacing = math.ldexp(1.0, exponent - fraction_bits)
    largest = (2 - 2.0**-fraction_bits) * 2.0**bias
    return max(-largest, min(largest, round(x / spacing) * spacing))
""",
    ),
    WrongAnswer(
        "the range is forgotten: only the fraction is rounded",
        """
def round_to_format(x, exponent_bits, fraction_bits):
    import math
    if x == 0 or math.isinf(x):
        return x
    spacing = math.ldexp(1.0, math.frexp(x)[1] - 1 - fraction_bits)
    return round(x / spacing) * spacing
""",
    ),
    WrongAnswer(
        "whatever is larger than the largest number is infinite, also what is nearer to that number",
        """
def round_to_format(x, exponent_bits, fraction_bits):
    import math
    bias = 2 ** (exponent_bits - 1) - 1
    largest = (2 - 2.0**-fraction_bits) * 2.0**bias
    if abs(x) > largest:
        return math.copysign(math.inf, x)
    if x == 0:
        return x
    exponent = max(math.frexp(x)[1] - 1, 1 - bias)
    spacing = math.ldexp(1.0, exponent - fraction_bits)
    return round(x / spacing) * spacing
""",
    ),
)

RELU = (
    WrongAnswer(
        "torch's own, which keeps its output",
        """
def relu_saving_mask(x):
    return torch.relu(x)
""",
    ),
    WrongAnswer(
        "the input is saved, and the mask made from it in the backward",
        """
class Relu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * (x > 0)

def relu_saving_mask(x):
    return Relu.apply(x)
""",
    ),
    WrongAnswer(
        "a mask of the input's type: four bytes again",
        """
class Relu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        mask = (x > 0).to(x.dtype)
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx, gradient):
        (mask,) = ctx.saved_tensors
        return gradient * mask

def relu_saving_mask(x):
    return Relu.apply(x)
""",
    ),
    WrongAnswer(
        "the input is put aside on the context, where no hook sees it",
        """
class Relu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.x = x
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * (ctx.x > 0)

def relu_saving_mask(x):
    return Relu.apply(x)
""",
    ),
    WrongAnswer(
        "a zero lets the gradient through",
        """
class Relu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        mask = x >= 0
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx, gradient):
        (mask,) = ctx.saved_tensors
        return gradient * mask

def relu_saving_mask(x):
    return Relu.apply(x)
""",
    ),
    WrongAnswer(
        "the input is overwritten to save memory",
        """
class Relu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x > 0)
        return x.detach().mul_(x > 0).clone()

    @staticmethod
    def backward(ctx, gradient):
        (mask,) = ctx.saved_tensors
        return gradient * 1.0

def relu_saving_mask(x):
    return Relu.apply(x)
""",
    ),
)

_STEP = """
def careful_step(model, optimizer, scaler, batches, clip_norm):
    total = sum(len(labels) for _, labels in batches)
    optimizer.zero_grad()
    for inputs, labels in batches:
        with torch.autocast("cpu", torch.float16):
            logits = model(inputs)
        loss = nn.functional.cross_entropy(logits.float(), labels)
        scaler.scale(loss * len(labels) / total).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
    scaler.step(optimizer)
    scaler.update()
"""


def _changed(mistake: str, before: str, after: str) -> WrongAnswer:
    assert before in _STEP
    return WrongAnswer(mistake, _STEP.replace(before, after))


STEPS = (
    _changed("gradients are clipped before they are unscaled", "    scaler.unscale_(optimizer)\n", ""),
    _changed("losses of several batches are added and not averaged", " * len(labels) / total", ""),
    _changed("every batch counts the same, whatever its size", " * len(labels) / total", " / len(batches)"),
    _changed(
        "gradients are cleared before every batch",
        "    for inputs, labels in batches:\n",
        "    for inputs, labels in batches:\n        optimizer.zero_grad()\n",
    ),
    _changed("gradients are never cleared", "    optimizer.zero_grad()\n", ""),
    _changed(
        "gradients are unscaled and clipped after every batch",
        "    scaler.unscale_(optimizer)\n    nn.utils",
        "        scaler.unscale_(optimizer)\n        nn.utils",
    ),
    _changed("the optimizer is called past the scaler", "scaler.step(optimizer)", "optimizer.step()"),
    _changed("the scale is never updated", "    scaler.update()\n", ""),
    _changed("autocast is left out", 'torch.autocast("cpu", torch.float16)', "torch.enable_grad()"),
)

CHOICES = (
    WrongAnswer(
        "the middle of an interval is taken for the measurement",
        """
def choose_precision(measured, margin):
    best, choice = 1.0, "fp32"
    for name, found in measured.items():
        speed, loss = sum(found["speedup"]) / 2, sum(found["accuracy"]) / 2
        if loss > -margin and speed > best:
            best, choice = speed, name
    return choice
""",
    ),
    WrongAnswer(
        "the accuracy is not looked at",
        """
def choose_precision(measured, margin):
    proven = {name: found["speedup"][0] for name, found in measured.items() if found["speedup"][0] > 1}
    return max(proven, key=proven.get, default="fp32")
""",
    ),
    WrongAnswer(
        "bf16, because everybody takes it",
        """
def choose_precision(measured, margin):
    return "bf16" if measured else "fp32"
""",
    ),
    WrongAnswer(
        "among the proven the one that might be fastest",
        """
def choose_precision(measured, margin):
    proven = {
        name: sum(found["speedup"])
        for name, found in measured.items()
        if found["speedup"][0] > 1 and found["accuracy"][0] > -margin
    }
    return max(proven, key=proven.get, default="fp32")
""",
    ),
)

RECIPES = (
    WrongAnswer(
        "the other half precision, which this kind of processor has no units for",
        """
def faster_recipe(start):
    return {**start, "precision": "fp16"}
""",
    ),
    WrongAnswer(
        "a fused optimizer: faster, in a part of the step that hardly counts",
        """
def faster_recipe(start):
    return {**start, "optimizer_kind": "fused"}
""",
    ),
    WrongAnswer(
        "fewer epochs: faster because less was done",
        """
def faster_recipe(start):
    return {**start, "precision": "bf16", "epochs": 1}
""",
    ),
    WrongAnswer(
        "a learning rate that is far too high",
        """
def faster_recipe(start):
    return {**start, "precision": "bf16", "learning_rate": 20.0}
""",
    ),
)

QUIZ = (
    WrongAnswer(
        "the same letter everywhere",
        """
quiz = dict.fromkeys(["speed", "bf16", "loss_scale", "order", "autocast", "memory", "weights", "restart"], "a")
""",
    ),
    WrongAnswer(
        "one question left out",
        """
quiz = {"speed": "b"}
""",
    ),
)
