"""The learner's own copies of notebooks and labs in ``work/``, and what they have passed so far."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .submission import Result


def checkout() -> Path:
    """The folder that holds notebooks/, labs/, solutions/ and work/: the one this package was installed from."""
    return Path(__file__).resolve().parents[2]


def record_practice(result: "Result") -> None:
    """Remember what a check said in the learner's own kernel; the landing page shows it."""
