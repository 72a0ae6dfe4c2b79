"""Formats agree with torch's own types bit by bit, and with the definition where torch has none."""

import math

import numpy as np
import pytest
import torch

from accelerando import formats
from accelerando.formats import Format

TORCH = {
    "fp16": (torch.float16, torch.int16),
    "bf16": (torch.bfloat16, torch.int16),
    "fp8 e4m3": (torch.float8_e4m3fn, torch.uint8),
    "fp8 e5m2": (torch.float8_e5m2, torch.uint8),
}
typed = pytest.mark.parametrize("name", TORCH)


def values(form: Format) -> np.ndarray:
    """Every number of a narrow format, the points halfway between neighbours, and what lies beside both; as float32."""
    draw = np.random.default_rng(1)
    spread = np.exp2(draw.uniform(math.log2(form.smallest) - 3, math.log2(form.largest) + 2, 4000))
    found = form.round(spread)
    found = found[np.isfinite(found)]
    half = form.spacing(found) / 2
    every = np.concatenate([spread, found, found + half, found + half * 1.01, found + half * 0.99, [0.0]])
    every = np.concatenate([every, -every])
    with np.errstate(over="ignore"):
        return every.astype(np.float32)


@typed
def test_rounding_is_torchs(name: str) -> None:
    form, given = formats.find(name), values(formats.find(name))
    expected = torch.from_numpy(given).to(TORCH[name][0]).double().numpy()
    np.testing.assert_array_equal(form.round(given), expected)


@typed
def test_bits_are_torchs(name: str) -> None:
    form = formats.find(name)
    dtype, whole = TORCH[name]
    for value in (0.0, -0.0, 0.1, -1.0, 3.14159, form.largest, form.smallest, -form.smallest_normal, 5 * form.smallest):
        bits = int(torch.tensor(value, dtype=torch.float32).to(dtype).view(whole)) % 2**form.bits
        assert "".join(form.encode(value)) == f"{bits:0{form.bits}b}", value


@typed
def test_ranges_are_torchs(name: str) -> None:
    form, info = formats.find(name), torch.finfo(TORCH[name][0])
    assert (form.largest, form.smallest_normal, form.epsilon) == (info.max, info.tiny, info.eps)
    one = torch.ones((), dtype=TORCH[name][1]).view(TORCH[name][0])  # the bits 0…01
    assert form.smallest == one.double().item()


def test_fp32_keeps_what_is_fp32() -> None:
    given = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    np.testing.assert_array_equal(formats.FP32.round(given), given.astype(np.float64))
    assert formats.FP32.largest == torch.finfo(torch.float32).max


def test_tf32_drops_thirteen_bits_of_fp32_to_even() -> None:
    given = np.random.default_rng(2).standard_normal(1000).astype(np.float32)
    bits = given.view(np.uint32).astype(np.uint64)
    bits = (bits + 0xFFF + ((bits >> 13) & 1)) >> 13 << 13
    np.testing.assert_array_equal(formats.TF32.round(given), bits.astype(np.uint32).view(np.float32).astype(np.float64))


def test_infinity_and_nan_keep_their_bits() -> None:
    assert formats.E5M2.encode(math.inf) == ("0", "11111", "00")
    assert formats.E5M2.encode(-1e9) == ("1", "11111", "00")
    assert formats.E4M3.encode(1e9)[1:] == ("1111", "111")
    assert math.isnan(float(formats.E4M3.round(math.inf))) or math.isinf(float(formats.E4M3.round(math.inf)))


def test_every_number_has_one_fate() -> None:
    form = formats.FP16
    found = form.fate([0.0, 1.0, -2.0, form.smallest * 3, form.smallest * 0.4, 1e6, -1e6])
    assert (found.kept, found.coarse, found.lost, found.overflow) == pytest.approx((2 / 6, 1 / 6, 1 / 6, 2 / 6))
    assert formats.FP16.fate([0.0]) == formats.Fate(0.0, 0.0, 0.0, 0.0)
    assert formats.E4M3.fate([1e6]).overflow == 1.0


def test_an_unknown_format_is_told_what_there_is() -> None:
    with pytest.raises(ValueError, match="fp16, bf16"):
        formats.find("fp12")


def test_the_table_has_a_row_each() -> None:
    assert formats.table().count("\n") == 1 + len(formats.FORMATS)
    assert "448" in formats.table()
