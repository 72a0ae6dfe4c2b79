"""The networks of this lesson: a wide one to prune, one with additions, and one that cannot be traced."""

from __future__ import annotations

import torch
from torch import nn

from accelerando import models, seeds

WIDE_CNN = models.CnnSizes(channels=(32, 64, 128))
"""Twice as wide as the course's slim CNN: there is something to take away."""
SMOKE_CNN = models.CnnSizes(channels=(8, 16, 16))


class ResidualBlock(nn.Module):
    """Two convolutions around which the input goes by and is added: channel by channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(channels)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Map (N, C, H, W) to (N, C, H, W)."""
        hidden = torch.relu(self.first_norm(self.first(images)))
        return torch.relu(images + self.second_norm(self.second(hidden)))


class ResidualCnn(nn.Module):
    """A stem, two residual blocks and a linear head, on images of 28 pixels."""

    def __init__(self, channels: int = 32, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, channels, 3, padding=1, stride=2, bias=False)
        self.stem_norm = nn.BatchNorm2d(channels)
        self.blocks = nn.Sequential(ResidualBlock(channels), ResidualBlock(channels))
        self.head = nn.Linear(channels, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Map (N, 1, H, W) to logits (N, classes)."""
        hidden = self.blocks(torch.relu(self.stem_norm(self.stem(images))))
        logits: torch.Tensor = self.head(hidden.mean((2, 3)))
        return logits


class Gate(nn.Module):
    """Runs its convolution only for images that are bright enough: a decision by values, in ``forward``."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map (N, C, H, W) to (N, C, H, W)."""
        if hidden.mean() > 0:
            hidden = self.conv(hidden)
        return hidden


def residual_cnn(channels: int = 32, seed: int = 0) -> ResidualCnn:
    """A residual net with fixed random weights."""
    with seeds.preserved():
        seeds.seed(seed)
        return ResidualCnn(channels)


def gated_cnn(seed: int = 0) -> nn.Sequential:
    """A net with a `Gate` in the middle."""
    with seeds.preserved():
        seeds.seed(seed)
        return nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), Gate(8), nn.Flatten(), nn.Linear(8 * 26 * 26, 10))
