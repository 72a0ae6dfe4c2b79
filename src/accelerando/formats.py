"""Number formats bit by bit: which numbers a format can hold, how it rounds, and what becomes of the others. Pure.

A floating-point number is a sign, an exponent and a fraction. The exponent says between which two powers of two it
lies, the fraction says where between them. Bits spent on one are missing in the other: that is all there is to choose.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Format:
    """A binary floating-point format of up to 32 bits.

    Args:
        name: As people write it.
        exponent_bits: At least 2; the bias is ``2**(exponent_bits - 1) - 1``.
        fraction_bits: At least 1; the leading 1 in front of them is not stored.
        has_infinity: The highest exponent stands for infinity and NaN, as in IEEE 754. Without it (e4m3) it holds
            numbers, only the last fraction of it is NaN, and that is what an overflow becomes.
    """

    name: str
    exponent_bits: int
    fraction_bits: int
    has_infinity: bool = True

    @property
    def bits(self) -> int:
        """Sign, exponent and fraction."""
        return 1 + self.exponent_bits + self.fraction_bits

    @property
    def bias(self) -> int:
        """What is subtracted from the stored exponent."""
        return int(2 ** (self.exponent_bits - 1)) - 1

    @property
    def largest(self) -> float:
        """The largest finite number."""
        top = 2**self.exponent_bits - (2 if self.has_infinity else 1) - self.bias
        steps = 2 ** (self.fraction_bits + 1) - (1 if self.has_infinity else 2)
        return math.ldexp(steps, top - self.fraction_bits)

    @property
    def smallest_normal(self) -> float:
        """The smallest number with all its fraction bits."""
        return math.ldexp(1.0, 1 - self.bias)

    @property
    def smallest(self) -> float:
        """The smallest number above zero: a *subnormal* one, whose leading 1 is gone."""
        return math.ldexp(1.0, 1 - self.bias - self.fraction_bits)

    @property
    def epsilon(self) -> float:
        """The distance from 1 to the next larger number."""
        return math.ldexp(1.0, -self.fraction_bits)

    def spacing(self, values: npt.ArrayLike) -> Numbers:
        """Return the distance between neighbours around each value, as if there were no largest number."""
        _, exponents = np.frexp(np.abs(np.asarray(values, dtype=np.float64)))
        lowest = 1 - self.bias - self.fraction_bits
        return np.ldexp(1.0, np.maximum(exponents - 1 - self.fraction_bits, lowest))

    def round(self, values: npt.ArrayLike) -> Numbers:
        """Round to the nearest number of the format; halfway to the one whose last bit is 0.

        Args:
            values: Any shape.

        Returns:
            The same shape. What rounds beyond the largest number is infinity, or NaN where the format has none.
        """
        given = np.asarray(values, dtype=np.float64)
        finite = np.where(np.isfinite(given), given, 0.0)
        spacing = self.spacing(finite)
        rounded = np.rint(finite / spacing) * spacing
        rounded = np.where(np.isfinite(given), rounded, given)
        beyond = np.abs(rounded) > self.largest
        return np.where(beyond, np.copysign(np.inf, given) if self.has_infinity else np.nan, rounded)

    def encode(self, value: float) -> tuple[str, str, str]:
        """Round a value and write its bits.

        Returns:
            Sign, exponent and fraction, each as zeros and ones.
        """
        rounded = float(self.round(value))
        sign = "1" if math.copysign(1.0, rounded) < 0 else "0"
        ones = 2**self.exponent_bits - 1, 2**self.fraction_bits - 1
        if math.isnan(rounded):
            exponent, fraction = ones
        elif math.isinf(rounded):
            exponent, fraction = ones[0], 0
        else:
            steps = round(abs(rounded) / float(self.spacing(rounded)))
            is_normal = steps > ones[1]
            fraction = steps - is_normal * (ones[1] + 1)
            exponent = math.frexp(rounded)[1] - 1 + self.bias if is_normal else 0
        return sign, f"{exponent:0{self.exponent_bits}b}", f"{fraction:0{self.fraction_bits}b}"

    def fate(self, values: npt.ArrayLike) -> Fate:
        """Count what becomes of the values that are not zero already."""
        given = np.abs(np.asarray(values, dtype=np.float64))
        given = given[given > 0]
        if not given.size:
            return Fate(0.0, 0.0, 0.0, 0.0)
        rounded = self.round(given)
        overflow = float(np.mean(~(rounded <= self.largest)))
        lost = float(np.mean(rounded == 0))
        coarse = float(np.mean((rounded > 0) & (rounded < self.smallest_normal)))
        return Fate(lost, coarse, 1 - lost - coarse - overflow, overflow)


@dataclass(frozen=True)
class Fate:
    """What becomes of numbers in a format, as shares of those that are not zero; together 1, or all 0 for none.

    Args:
        lost: Become zero.
        coarse: Land among the subnormals, where fraction bits are missing.
        kept: Are rounded as the format promises.
        overflow: Become infinity or NaN.
    """

    lost: float
    coarse: float
    kept: float
    overflow: float

    def __str__(self) -> str:
        return (
            f"{self.kept:.1%} keep their fraction bits, {self.coarse:.1%} lose some (subnormal), "
            f"{self.lost:.1%} become zero, {self.overflow:.1%} overflow"
        )


FP32 = Format("fp32", 8, 23)
TF32 = Format("tf32", 8, 10)
FP16 = Format("fp16", 5, 10)
BF16 = Format("bf16", 8, 7)
E4M3 = Format("fp8 e4m3", 4, 3, has_infinity=False)
E5M2 = Format("fp8 e5m2", 5, 2)
FORMATS = (FP32, TF32, FP16, BF16, E4M3, E5M2)
"""From wide to narrow. tf32 is no format to store numbers in: it is what some processors round fp32 inputs to."""


def find(name: str) -> Format:
    """The format of that name.

    Raises:
        ValueError: With the names that exist.
    """
    for known in FORMATS:
        if known.name == name:
            return known
    raise ValueError(f"there is no format {name!r}: say one of {', '.join(known.name for known in FORMATS)}")


def table(formats: tuple[Format, ...] = FORMATS) -> str:
    """Ranges and spacings of several formats, as a Markdown table."""
    head = "| format | sign + exponent + fraction bits | largest | smallest normal | smallest | next after 1 |"
    rows = [
        f"| {one.name} | 1 + {one.exponent_bits} + {one.fraction_bits} = {one.bits} | {one.largest:.3g} | "
        f"{one.smallest_normal:.2g} | {one.smallest:.2g} | 1 + {one.epsilon:.2g} |"
        for one in formats
    ]
    return "\n".join([head, "|---|---|---|---|---|---|", *rows])
