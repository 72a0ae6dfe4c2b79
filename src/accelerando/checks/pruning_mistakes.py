"""The plausible mistakes of lab 5, question by question: each must lose its own question and no other."""

from accelerando.submission import WrongAnswer

TAYLOR = (
    WrongAnswer(
        "the gradients are averaged over the batches before they are squared: opposite ones cancel",
        """
def taylor_scores(weight, gradients):
    return (weight * gradients.mean(0)).square().flatten(1).sum(1)
""",
    ),
    WrongAnswer(
        "the effects of a filter's weights are added with their signs, then squared",
        """
def taylor_scores(weight, gradients):
    return (weight * gradients).flatten(2).sum(2).square().mean(0)
""",
    ),
    WrongAnswer(
        "gradients alone: a weight that is nearly zero counts like any other",
        """
def taylor_scores(weight, gradients):
    return gradients.square().flatten(2).sum(2).mean(0)
""",
    ),
    WrongAnswer(
        "scores by input channel instead of output channel",
        """
def taylor_scores(weight, gradients):
    return (weight * gradients).square().mean(0).transpose(0, 1).flatten(1).sum(1)
""",
    ),
)

CHANNELS = (
    WrongAnswer(
        "layers that are added choose each for itself",
        """
def choose_channels(scores, groups, sparsity, multiple):
    import math
    kept = {}
    for name, values in scores.items():
        count = min(len(values), math.ceil((1 - sparsity) * len(values) / multiple) * multiple)
        kept[name] = sorted(sorted(range(len(values)), key=lambda c: values[c], reverse=True)[:count])
    return kept
""",
    ),
    WrongAnswer(
        "rounded down, so that a narrow layer may lose everything",
        """
def choose_channels(scores, groups, sparsity, multiple):
    group_of = {name: group for group in groups for name in group}
    kept = {}
    for name, values in scores.items():
        members = group_of.get(name, [name])
        means = [sum(scores[m][c] for m in members) / len(members) for c in range(len(values))]
        count = int((1 - sparsity) * len(values)) // multiple * multiple
        kept[name] = sorted(sorted(range(len(values)), key=lambda c: means[c], reverse=True)[:count])
    return kept
""",
    ),
    WrongAnswer(
        "the channels with the lowest scores are kept: a list of what goes is taken for a list of what stays",
        """
def choose_channels(scores, groups, sparsity, multiple):
    import math
    group_of = {name: group for group in groups for name in group}
    kept = {}
    for name, values in scores.items():
        members = group_of.get(name, [name])
        means = [sum(scores[m][c] for m in members) / len(members) for c in range(len(values))]
        count = min(len(values), math.ceil((1 - sparsity) * len(values) / multiple) * multiple)
        kept[name] = sorted(sorted(range(len(values)), key=lambda c: means[c])[:count])
    return kept
""",
    ),
    WrongAnswer(
        "the first layer of a group decides for the others",
        """
def choose_channels(scores, groups, sparsity, multiple):
    import math
    first_of = {name: group[0] for group in groups for name in group}
    kept = {}
    for name, values in scores.items():
        mine = scores[first_of.get(name, name)]
        count = min(len(values), math.ceil((1 - sparsity) * len(values) / multiple) * multiple)
        kept[name] = sorted(sorted(range(len(values)), key=lambda c: mine[c], reverse=True)[:count])
    return kept
""",
    ),
)

_REMOVAL = """
def remove_channels(model, keep):
    layers, left, width = [], None, None
    for name, layer in model.named_children():
        if isinstance(layer, nn.Conv2d):
            out = torch.tensor(keep.get(name, range(layer.out_channels)))
            weight = layer.weight[out]
            if left is not None:
                weight = {inputs}
            new = nn.Conv2d(
                weight.shape[1], len(out), layer.kernel_size, layer.stride, layer.padding, bias=layer.bias is not None
            )
            new.weight = nn.Parameter(weight.detach().clone())
            if layer.bias is not None:
                new.bias = nn.Parameter(layer.bias[out].detach().clone())
            left, width = out, layer.out_channels
        elif isinstance(layer, nn.BatchNorm2d):
            new = nn.BatchNorm2d(len(left), eps=layer.eps, momentum=layer.momentum)
            for part in {parts}:
                getattr(new, part).data = getattr(layer, part).data[left].clone()
        elif isinstance(layer, nn.Linear) and left is not None:
            {columns}
            new = nn.Linear(len(columns), layer.out_features, bias=layer.bias is not None)
            new.weight = nn.Parameter(layer.weight[:, columns].detach().clone())
            new.bias = nn.Parameter(layer.bias.detach().clone())
            left = None
        else:
            new = layer
        layers.append(new)
    return nn.Sequential(*layers)
"""
_PARTS = '("weight", "bias", "running_mean", "running_var")'
_COLUMNS = """pixels = layer.in_features // width
            columns = (left[:, None] * pixels + torch.arange(pixels)).flatten()"""

REMOVAL = (
    WrongAnswer(
        "the weights are set to zero, and nothing is removed",
        """
def remove_channels(model, keep):
    with torch.no_grad():
        for name, channels in keep.items():
            layer, norm = model[int(name)], model[int(name) + 1]
            gone = torch.ones(layer.out_channels, dtype=torch.bool)
            gone[channels] = False
            layer.weight[gone] = 0
            if layer.bias is not None:
                layer.bias[gone] = 0
            if isinstance(norm, nn.BatchNorm2d):
                norm.weight[gone] = 0
                norm.bias[gone] = 0
    return model
""",
    ),
    WrongAnswer(
        "BatchNorm gets its weights, but not its running statistics",
        _REMOVAL.format(inputs="weight[:, left]", parts='("weight", "bias")', columns=_COLUMNS),
    ),
    WrongAnswer(
        "the next convolution takes its first inputs instead of those that stay",
        _REMOVAL.format(inputs="weight[:, : len(left)]", parts=_PARTS, columns=_COLUMNS),
    ),
    WrongAnswer(
        "behind Flatten a channel is taken for one input of the linear layer",
        _REMOVAL.format(inputs="weight[:, left]", parts=_PARTS, columns="columns = left"),
    ),
    WrongAnswer(
        "behind Flatten the channels are taken to lie next to each other, pixel by pixel",
        _REMOVAL.format(
            inputs="weight[:, left]",
            parts=_PARTS,
            columns="columns = (torch.arange(layer.in_features // width)[:, None] * width + left).flatten()",
        ),
    ),
)

_COUNTS = """
def multiply_adds(model, images):
    counts, handles = {{}}, []

    def count(name):
        def hook(layer, inputs, output):
            places = {places}
            counts[name] = {used} * places
        return hook

    for name, layer in model.named_modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            handles.append(layer.register_forward_hook(count(name)))
    was_training = model.training
    {mode}
    with torch.no_grad():
        model(images)
    model.train(was_training)
    {end}
    return counts
"""
_PLACES, _END = "output[0, 0].numel()", "[handle.remove() for handle in handles]"

COUNTS = (
    WrongAnswer(
        "zeros are counted as work saved",
        _COUNTS.format(places=_PLACES, used="int((layer.weight != 0).sum())", mode="model.eval()", end=_END),
    ),
    WrongAnswer(
        "parameters are counted instead of work: a weight is used once for every place of the output",
        _COUNTS.format(places="1", used="layer.weight.numel()", mode="model.eval()", end=_END),
    ),
    WrongAnswer(
        "the hooks stay on the model",
        _COUNTS.format(places=_PLACES, used="layer.weight.numel()", mode="model.eval()", end="pass"),
    ),
    WrongAnswer(
        "the model runs in training mode, and BatchNorm learns from the count",
        _COUNTS.format(places=_PLACES, used="layer.weight.numel()", mode="pass", end=_END),
    ),
    WrongAnswer(
        "one mode is put back for the whole model: a BatchNorm that was frozen in it is frozen no longer",
        _COUNTS.format(places=_PLACES, used="layer.weight.numel()", mode="model.eval()", end=_END),
    ),
)

PLANS = (
    WrongAnswer(
        "masks taken for speed-up: a larger share is masked, and nothing is removed",
        """
def pruning_plan(start):
    return {**start, "config_list": [{"op_types": ["Conv2d"], "sparse_ratio": 0.75}]}
""",
    ),
    WrongAnswer(
        "nearly everything is removed: very fast, and it has forgotten what it knew",
        """
def pruning_plan(start):
    return {**start, "config_list": [{"op_types": ["Conv2d"], "sparse_ratio": 0.97}], "remove": True}
""",
    ),
    WrongAnswer(
        "the channels are removed, but so few that a step hardly gets shorter",
        """
def pruning_plan(start):
    return {**start, "config_list": [{"op_types": ["Conv2d"], "sparse_ratio": 0.1}], "remove": True}
""",
    ),
    WrongAnswer(
        "the last layer is pruned with the others, and its classes with it",
        """
def pruning_plan(start):
    return {**start, "config_list": [{"op_types": ["Conv2d", "Linear"], "sparse_ratio": 0.5}], "remove": True}
""",
    ),
)

QUIZ = (
    WrongAnswer(
        "the same letter everywhere",
        """
quiz = dict.fromkeys(["zeros", "structure", "groups", "gap", "criterion", "warm", "steps", "optimizer"], "a")
""",
    ),
    WrongAnswer(
        "one question left out",
        """
quiz = {"zeros": "b"}
""",
    ),
)
