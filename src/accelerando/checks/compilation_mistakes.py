"""The plausible mistakes of lab 2, question by question: each must lose its own question and no other."""

from accelerando.submission import WrongAnswer

BREAK_EVEN = (
    WrongAnswer(
        "compile time divided by a compiled step, not by what a step saves",
        """
def break_even_step(compile_s, eager_step_s, compiled_step_s, compiles_at, steps):
    step = math.ceil(compile_s / compiled_step_s)
    return step if step <= steps else None
""",
    ),
    WrongAnswer(
        "the first time it is ahead, whatever is compiled later",
        """
def break_even_step(compile_s, eager_step_s, compiled_step_s, compiles_at, steps):
    saved = eager_step_s - compiled_step_s
    if saved <= 0:
        return None
    step = max(1, math.ceil(compile_s / saved))
    return step if step <= steps else None
""",
    ),
    WrongAnswer(
        "all compilations are paid at the start",
        """
def break_even_step(compile_s, eager_step_s, compiled_step_s, compiles_at, steps):
    saved = eager_step_s - compiled_step_s
    if saved <= 0:
        return None
    step = max(1, math.ceil(len(compiles_at) * compile_s / saved))
    return step if step <= steps else None
""",
    ),
    WrongAnswer(
        "ahead means strictly less",
        """
def break_even_step(compile_s, eager_step_s, compiled_step_s, compiles_at, steps):
    answer = None
    for step in range(steps, 0, -1):
        compiled = compile_s * sum(at <= step for at in compiles_at) + step * compiled_step_s
        if compiled >= step * eager_step_s:
            break
        answer = step
    return answer
""",
    ),
)

_UPDATE = """
def mended_update(hidden, update):
    longest = update.norm(dim=1).max()
    short = {short}
    positive = (hidden > 0).float()
    level = {level}
    {then}
    return hidden + short * level, {second}
"""
_RIGHT = {
    "short": "update / longest.clamp(min=1)",
    "level": "(hidden * positive).sum() / positive.sum().clamp(min=1)",
    "then": "pass",
    "second": "level.detach()",
}


def _update(**changes: str) -> str:
    return _UPDATE.format(**{**_RIGHT, **changes})


UPDATES = (
    WrongAnswer(
        "the number still leaves the graph", _update(then="log.append(level.item())", second="torch.tensor(log[-1])")
    ),
    WrongAnswer("the decision is still an `if`", _update(short="update / longest if longest > 1 else update")),
    WrongAnswer("every update is divided, short ones too", _update(short="update / longest")),
    WrongAnswer(
        "the branch that is not chosen divides by zero",
        _update(short="torch.where(longest > 1, update / longest, update)"),
    ),
    WrongAnswer("the mean of nothing is not a number", _update(level="(hidden * positive).sum() / positive.sum()")),
    WrongAnswer("the mean over all numbers", _update(level="(hidden * positive).mean()")),
    WrongAnswer("the level keeps its gradient", _update(second="level")),
    WrongAnswer(
        "the level is detached before it is used",
        _update(level="((hidden * positive).sum() / positive.sum().clamp(min=1)).detach()"),
    ),
    WrongAnswer(
        "the compiler is told to leave it alone",
        """
@torch.compiler.disable
def mended_update(hidden, update):
    longest = update.norm(dim=1).max()
    positive = (hidden > 0).float()
    level = (hidden * positive).sum() / positive.sum().clamp(min=1)
    return hidden + update / longest.clamp(min=1) * level, level.detach()
""",
    ),
)

BATCHES = (
    WrongAnswer(
        "the last batch is smaller",
        """
def steady_batches(inputs, labels, batch_size):
    return [(x, y, torch.ones(len(y))) for x, y in zip(inputs.split(batch_size), labels.split(batch_size)) if len(y)]
""",
    ),
    WrongAnswer(
        "the last batch is dropped",
        """
def steady_batches(inputs, labels, batch_size):
    whole = len(inputs) // batch_size
    parts = [slice(k * batch_size, (k + 1) * batch_size) for k in range(whole)]
    return [(inputs[part], labels[part], torch.ones(batch_size)) for part in parts]
""",
    ),
    WrongAnswer(
        "filled-in rows count like the others",
        """
def steady_batches(inputs, labels, batch_size):
    batches = []
    for x, y in zip(inputs.split(batch_size), labels.split(batch_size)):
        if not len(y):
            continue
        missing = batch_size - len(y)
        x = torch.cat([x, inputs[:1].expand(missing, -1)])
        y = torch.cat([y, labels[:1].expand(missing)])
        batches.append((x, y, torch.ones(batch_size)))
    return batches
""",
    ),
    WrongAnswer(
        "filled up with what is no number",
        """
def steady_batches(inputs, labels, batch_size):
    batches = []
    for x, y in zip(inputs.split(batch_size), labels.split(batch_size)):
        if not len(y):
            continue
        missing = batch_size - len(y)
        weights = torch.cat([torch.ones(len(y)), torch.zeros(missing)])
        x = torch.cat([x, torch.full((missing, x.shape[1]), float("nan"))])
        batches.append((x, torch.cat([y, torch.zeros(missing, dtype=torch.int64)]), weights))
    return batches
""",
    ),
    WrongAnswer(
        "labels filled up with -1, which is no class",
        """
def steady_batches(inputs, labels, batch_size):
    batches = []
    for x, y in zip(inputs.split(batch_size), labels.split(batch_size)):
        if not len(y):
            continue
        missing = batch_size - len(y)
        weights = torch.cat([torch.ones(len(y)), torch.zeros(missing)])
        x = torch.cat([x, torch.zeros(missing, x.shape[1])])
        batches.append((x, torch.cat([y, torch.full((missing,), -1)]), weights))
    return batches
""",
    ),
    WrongAnswer(
        "the last batch overlaps the one before",
        """
def steady_batches(inputs, labels, batch_size):
    batches = []
    for start in range(0, len(inputs), batch_size):
        start = max(0, min(start, len(inputs) - batch_size))
        part = slice(start, start + batch_size)
        batches.append((inputs[part], labels[part], torch.ones(len(labels[part]))))
    return batches
""",
    ),
)

_STEP = """
def make_step(model, optimizer):
    {first}

    def step(inputs, labels):
        {clear}
        loss = nn.functional.cross_entropy({call}(inputs), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step
"""


def _step(first: str, call: str, clear: str = "optimizer.zero_grad()") -> str:
    return _STEP.format(first=first, call=call, clear=clear)


STEPS = (
    WrongAnswer("the compiled model is made and never used", _step("torch.compile(model)", "model")),
    WrongAnswer(
        "a backend that generates no code",
        _step('fast = torch.compile(model, backend="aot_eager")', "fast"),
    ),
    WrongAnswer("the gradients of all steps add up", _step("fast = torch.compile(model)", "fast", "pass")),
    WrongAnswer(
        "a new network is compiled, and another one trained",
        _step("import copy; fast = torch.compile(copy.deepcopy(model))", "fast"),
    ),
    WrongAnswer(
        "the step's number is a Python number that the compiled part reads",
        """
def make_step(model, optimizer):
    count = 0

    @torch.compile(dynamic=False)
    def loss_of(inputs, labels, number):
        return nn.functional.cross_entropy(model(inputs), labels) + 0.0 * number

    def step(inputs, labels):
        nonlocal count
        count += 1
        optimizer.zero_grad()
        loss = loss_of(inputs, labels, count)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step
""",
    ),
)

QUIZ = (
    WrongAnswer(
        "the same letter everywhere",
        """
quiz = dict.fromkeys(["fusion", "guards", "breaks", "fullgraph", "batch", "payback", "convolution", "cache"], "a")
""",
    ),
    WrongAnswer(
        "one question left out",
        """
quiz = {"fusion": "b"}
""",
    ),
)
