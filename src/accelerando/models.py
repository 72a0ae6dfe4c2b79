"""The networks of the course, each made from a dataclass of sizes.

Sizes are data: they can be printed, stored beside a result, swept in a loop, and sent to another process. Four
families: a multi-layer perceptron, small convolutional nets, a gated net that is nearly all elementwise work, and a
small decoder-only transformer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import nn

from accelerando import counts

IMAGE_PIXELS = 28


def _whole(owner: str, name: str, value: object, low: int, high: int) -> None:
    """Refuse what is not a whole number from ``low`` to ``high``."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"{owner}.{name} is {value!r}: it must be a whole number from {low:,} to {high:,}")


def _whole_list(owner: str, name: str, value: object, high: int) -> tuple[int, ...]:
    if not isinstance(value, (tuple, list)) or not value:
        raise ValueError(f"{owner}.{name} is {value!r}: it must be a list of at least one whole number, like [16, 32]")
    for entry in value:
        _whole(owner, f"{name} entry", entry, 1, high)
    return tuple(value)


def _fact(owner: str, name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{owner}.{name} is {value!r}: it must be true or false")


def _fraction(owner: str, name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
        raise ValueError(f"{owner}.{name} is {value!r}: it must be a number from 0 up to, not including, 1")


@dataclass(frozen=True)
class MlpSizes:
    """A multi-layer perceptron on flattened images: Linear-ReLU per hidden layer, then Linear.

    Args:
        hidden: Width of each hidden layer.
        classes: Number of outputs.
        dropout: Chance of dropping a hidden unit in training, 0 to below 1.
    """

    hidden: tuple[int, ...] = (256, 128)
    classes: int = 10
    dropout: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", _whole_list("MlpSizes", "hidden", self.hidden, 16_384))
        _whole("MlpSizes", "classes", self.classes, 2, 1000)
        _fraction("MlpSizes", "dropout", self.dropout)


@dataclass(frozen=True)
class CnnSizes:
    """A convolutional net: conv (- BatchNorm) - ReLU - 2x2 max-pool per entry of ``channels``, then a linear head.

    Args:
        channels: Output channels of each convolution; up to 4, as each one halves 28 pixels.
        kernel: Width of the square kernel, odd, so that padding keeps the image's size.
        batch_norm: Put BatchNorm between convolution and ReLU.
        bias: Give the convolutions a bias. Before BatchNorm it is useless work: the mean is subtracted right after.
        hidden: Width of a hidden linear layer before the output; 0 for none.
        classes: Number of outputs.
    """

    channels: tuple[int, ...] = (16, 32, 64)
    kernel: int = 3
    batch_norm: bool = True
    bias: bool = False
    hidden: int = 0
    classes: int = 10

    def __post_init__(self) -> None:
        object.__setattr__(self, "channels", _whole_list("CnnSizes", "channels", self.channels, 4096))
        if len(self.channels) > 4:
            raise ValueError(f"CnnSizes.channels has {len(self.channels)} entries: at most 4, each halves 28 pixels")
        _whole("CnnSizes", "kernel", self.kernel, 1, 11)
        if self.kernel % 2 == 0:
            raise ValueError(f"CnnSizes.kernel is {self.kernel}: it must be odd, for example 3 or 5")
        _fact("CnnSizes", "batch_norm", self.batch_norm)
        _fact("CnnSizes", "bias", self.bias)
        _whole("CnnSizes", "hidden", self.hidden, 0, 16_384)
        _whole("CnnSizes", "classes", self.classes, 2, 1000)


@dataclass(frozen=True)
class GatedSizes:
    """A net of gates written as formulas: a small linear layer in and out, and blocks of elementwise work between.

    Args:
        inputs: Numbers per example, after flattening.
        width: Numbers per example inside.
        blocks: Gated blocks.
        classes: Number of outputs.
    """

    inputs: int = IMAGE_PIXELS**2
    width: int = 64
    blocks: int = 3
    classes: int = 10

    def __post_init__(self) -> None:
        for name, low, high in (("inputs", 1, 65_536), ("width", 1, 16_384), ("blocks", 1, 96), ("classes", 2, 1000)):
            _whole("GatedSizes", name, getattr(self, name), low, high)


@dataclass(frozen=True)
class TransformerSizes:
    """A decoder-only transformer over characters: pre-norm blocks of causal attention and a GELU MLP.

    Args:
        vocabulary: Number of different characters.
        context: Longest sequence, in characters.
        width: Numbers per character; a multiple of ``heads``.
        heads: Attention heads.
        layers: Blocks.
    """

    vocabulary: int = 97
    context: int = 64
    width: int = 64
    heads: int = 4
    layers: int = 2

    def __post_init__(self) -> None:
        for name, high in (("vocabulary", 65_536), ("context", 8192), ("width", 8192), ("heads", 128), ("layers", 96)):
            _whole("TransformerSizes", name, getattr(self, name), 1, high)
        if self.width % self.heads:
            raise ValueError(f"TransformerSizes.width is {self.width}: it must be a multiple of heads ({self.heads})")


Sizes = MlpSizes | CnnSizes | GatedSizes | TransformerSizes

SLIM_CNN = CnnSizes()
"""29 thousand parameters, 3.9 million operations forward: small, modern, and the default of ``training.fit``."""

TEXTBOOK_CNN = CnnSizes(channels=(32, 64), kernel=5, batch_norm=False, bias=True, hidden=512)
"""Two wide convolutions and a big linear layer, 1.7 million parameters, as introductions to deep learning draw it."""

KINDS: dict[str, type[Any]] = {"mlp": MlpSizes, "cnn": CnnSizes, "gated": GatedSizes, "transformer": TransformerSizes}


def sizes_to_dict(sizes: Sizes) -> dict[str, Any]:
    """Turn sizes into plain JSON values, with the family's name under "kind"."""
    kind = next(name for name, family in KINDS.items() if isinstance(sizes, family))
    plain = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(sizes).items()}
    return {"kind": kind, **plain}


def sizes_from_dict(values: Mapping[str, Any]) -> Sizes:
    """Make sizes from plain values, the inverse of ``sizes_to_dict``.

    Raises:
        ValueError: If the kind or a key is unknown, or a value is not allowed; the message says what is.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"model sizes are {type(values).__name__}: give a mapping like {{'kind': 'cnn'}}")
    kind = values.get("kind")
    if kind not in KINDS:
        raise ValueError(f"model kind is {kind!r}: it must be one of {', '.join(KINDS)}")
    family = KINDS[kind]
    allowed = [field.name for field in fields(family)]
    unknown = sorted(str(key) for key in values if key != "kind" and key not in allowed)
    if unknown:
        raise ValueError(f"{kind} has no size {', '.join(unknown)}: it has {', '.join(allowed)}")
    sizes: Sizes = family(**{key: value for key, value in values.items() if key != "kind"})
    return sizes


def build(sizes: Sizes | Mapping[str, Any]) -> nn.Module:
    """Make the network that ``sizes`` describe, with torch's usual random initial weights.

    Image networks take float32 (N, 1, 28, 28) and return logits (N, classes). The transformer takes int64
    (N, T) with T up to ``context`` and returns logits (N, T, vocabulary).

    Raises:
        ValueError: If ``sizes`` is no known family.
    """
    if isinstance(sizes, Mapping):
        sizes = sizes_from_dict(sizes)
    if isinstance(sizes, MlpSizes):
        return _mlp(sizes)
    if isinstance(sizes, CnnSizes):
        return _cnn(sizes)
    if isinstance(sizes, GatedSizes):
        blocks = (GatedBlock(sizes.width) for _ in range(sizes.blocks))
        ends = nn.Linear(sizes.inputs, sizes.width), nn.Linear(sizes.width, sizes.classes)
        return nn.Sequential(nn.Flatten(), ends[0], *blocks, ends[1])
    if isinstance(sizes, TransformerSizes):
        return Transformer(sizes)
    families = ", ".join(family.__name__ for family in KINDS.values())
    raise ValueError(f"cannot build a model from {type(sizes).__name__}: give one of {families}")


def _mlp(sizes: MlpSizes) -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten()]
    width = IMAGE_PIXELS**2
    for hidden in sizes.hidden:
        layers += [nn.Linear(width, hidden), nn.ReLU(inplace=True)]
        if sizes.dropout:
            layers.append(nn.Dropout(sizes.dropout))
        width = hidden
    return nn.Sequential(*layers, nn.Linear(width, sizes.classes))


def _cnn(sizes: CnnSizes) -> nn.Module:
    layers: list[nn.Module] = []
    inputs, pixels = 1, IMAGE_PIXELS
    for outputs in sizes.channels:
        layers.append(nn.Conv2d(inputs, outputs, sizes.kernel, padding=sizes.kernel // 2, bias=sizes.bias))
        if sizes.batch_norm:
            layers.append(nn.BatchNorm2d(outputs))
        layers += [nn.ReLU(inplace=True), nn.MaxPool2d(2)]
        inputs, pixels = outputs, pixels // 2
    layers.append(nn.Flatten())
    width = inputs * pixels**2
    if sizes.hidden:
        layers += [nn.Linear(width, sizes.hidden), nn.ReLU(inplace=True)]
        width = sizes.hidden
    return nn.Sequential(*layers, nn.Linear(width, sizes.classes))


class GatedBlock(nn.Module):
    """Normalise, then keep some of the input and add some of a candidate, each by a gate; one formula after the other.

    No linear layer: every operator reads some numbers, does little with each and writes as many.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(3, width))
        self.shift = nn.Parameter(torch.zeros(3, width))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map (N, width) to (N, width)."""
        level = hidden * torch.rsqrt(hidden.square().mean(1, keepdim=True) + 1e-6)
        keep = torch.sigmoid(level * self.scale[0] + self.shift[0])
        write = torch.sigmoid(level * self.scale[1] + self.shift[1])
        candidate = torch.tanh(level * self.scale[2] + self.shift[2])
        out: torch.Tensor = keep * hidden + write * candidate
        return out


class Block(nn.Module):
    """One pre-norm transformer block: attention to the past, then an MLP, each added to its input."""

    def __init__(self, sizes: TransformerSizes) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.norm_attention = nn.LayerNorm(sizes.width)
        self.query_key_value = nn.Linear(sizes.width, 3 * sizes.width, bias=False)
        self.project = nn.Linear(sizes.width, sizes.width, bias=False)
        self.norm_mlp = nn.LayerNorm(sizes.width)
        self.mlp = nn.Sequential(
            nn.Linear(sizes.width, 4 * sizes.width), nn.GELU(), nn.Linear(4 * sizes.width, sizes.width)
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map (N, T, width) to (N, T, width)."""
        batch, length, width = hidden.shape
        joined = self.query_key_value(self.norm_attention(hidden)).view(batch, length, 3, self.heads, -1)
        query, key, value = joined.permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.project(mixed.transpose(1, 2).reshape(batch, length, width))
        out: torch.Tensor = hidden + self.mlp(self.norm_mlp(hidden))
        return out


class Transformer(nn.Module):
    """A small decoder-only transformer: reads characters, predicts each next one."""

    def __init__(self, sizes: TransformerSizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.characters = nn.Embedding(sizes.vocabulary, sizes.width)
        self.positions = nn.Embedding(sizes.context, sizes.width)
        self.blocks = nn.Sequential(*(Block(sizes) for _ in range(sizes.layers)))
        self.norm = nn.LayerNorm(sizes.width)
        self.head = nn.Linear(sizes.width, sizes.vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map int64 (N, T) to logits (N, T, vocabulary)."""
        length = tokens.shape[1]
        if length > self.sizes.context:
            raise ValueError(f"sequence of {length} characters: this model reads at most {self.sizes.context}")
        hidden = self.characters(tokens) + self.positions.weight[:length]
        out: torch.Tensor = self.head(self.norm(self.blocks(hidden)))
        return out


def example_input(sizes: Sizes, batch: int = 2) -> torch.Tensor:
    """Make an input of the right shape and type: random images, or random characters of full length."""
    if isinstance(sizes, TransformerSizes):
        return torch.randint(sizes.vocabulary, (batch, sizes.context), generator=torch.Generator().manual_seed(0))
    if isinstance(sizes, GatedSizes):
        return torch.randn(batch, sizes.inputs, generator=torch.Generator().manual_seed(0))
    return torch.randn(batch, 1, IMAGE_PIXELS, IMAGE_PIXELS, generator=torch.Generator().manual_seed(0))


def flops_per_image(sizes: Sizes | Mapping[str, Any], *, is_training: bool = True) -> int:
    """Count the floating-point operations of matrix products and convolutions for one image (or one sequence).

    A multiply and an add count as two. Elementwise work (ReLU, BatchNorm, pooling) is not counted: it moves bytes
    rather than computes, and the roofline of lesson 3 deals with it.

    Args:
        sizes: The network.
        is_training: Forward and backward; False for forward only.
    """
    if isinstance(sizes, Mapping):
        sizes = sizes_from_dict(sizes)
    batch = 2
    return counts.flops(build(sizes), example_input(sizes, batch), is_training=is_training) // batch
