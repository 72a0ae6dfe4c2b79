"""Text that every machine has: the source of the Python standard library, as numbers for the small transformer."""

from __future__ import annotations

import platform
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import torch

from accelerando import seeds

MODULES = (
    "argparse",
    "ast",
    "calendar",
    "configparser",
    "datetime",
    "difflib",
    "doctest",
    "fractions",
    "inspect",
    "ipaddress",
    "mailbox",
    "optparse",
    "pathlib",
    "pickle",
    "statistics",
    "subprocess",
    "tarfile",
    "textwrap",
    "threading",
    "typing",
    "uuid",
    "zipfile",
)
VOCABULARY = "\n" + "".join(chr(code) for code in range(32, 127)) + "\ufffd"
"""Line feed, the 95 printable ASCII characters, and one for everything else: 97 characters."""


@dataclass(frozen=True, eq=False)
class TextSet:
    """Characters as numbers.

    Args:
        train: int64, (N,), indices into ``vocabulary``.
        test: int64, (M,), the end of the text, never trained on.
        vocabulary: The characters, in the order of their numbers.
        source: One sentence: where the text came from and how long it is.
    """

    train: torch.Tensor
    test: torch.Tensor
    vocabulary: str
    source: str

    def __repr__(self) -> str:
        return f"<{self.source}>"

    def batch(
        self, sequences: int, context: int, generator: torch.Generator, *, is_test: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw sequences and what follows each character: inputs and targets, int64 (sequences, context) each."""
        text = self.test if is_test else self.train
        if len(text) <= context:
            raise ValueError(f"context is {context}: the text has {len(text):,} characters, it must be longer")
        start = torch.randint(len(text) - context, (sequences, 1), generator=generator)
        places = start + torch.arange(context)
        return text[places], text[places + 1]

    def decode(self, tokens: torch.Tensor) -> str:
        """Turn numbers (T,) back into text."""
        return "".join(self.vocabulary[token] for token in tokens.tolist())


def source_text(characters: int = 500_000, *, test_fraction: float = 0.1, seed: int = 0) -> TextSet:
    """Read the standard library's own source as a character set for the small transformer.

    The text depends on the Python version (``source`` says which), so results compare on one machine only.

    Args:
        characters: Length wanted; a shorter library gives less, and ``source`` says how much.
        test_fraction: Share kept for testing, from the end; above 0, below 1.
        seed: Order of the modules.
    """
    if characters < 1000:
        raise ValueError(f"characters is {characters}: ask for at least 1,000")
    if not 0 < test_fraction < 1:
        raise ValueError(f"test_fraction is {test_fraction}: it must be above 0 and below 1")
    folder = Path(sysconfig.get_path("stdlib"))
    order = torch.randperm(len(MODULES), generator=seeds.generator(seed)).tolist()
    paths = [folder / f"{MODULES[place]}.py" for place in order]
    text = "\n".join(path.read_text(encoding="utf-8") for path in paths if path.is_file())[:characters]
    if len(text) < 1000:
        raise ValueError(f"{folder} holds no Python source to read: this Python was installed without its .py files")
    known = {character: number for number, character in enumerate(VOCABULARY)}
    tokens = torch.tensor([known.get(character, len(VOCABULARY) - 1) for character in text], dtype=torch.int64)
    cut = int(len(tokens) * (1 - test_fraction))
    source = f"standard library of Python {platform.python_version()}: {len(tokens):,} characters, {cut:,} to train on"
    return TextSet(tokens[:cut], tokens[cut:], VOCABULARY, source)
