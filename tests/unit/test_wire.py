"""What is sent arrives, and nothing else is accepted."""

import contextlib
import io
import json
import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from accelerando import wire


def through(value: object) -> object:
    stream = io.BytesIO()
    wire.write_message(stream, value)
    stream.seek(0)
    return wire.read_message(stream)


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.just("__wire__"), inner, max_size=4),
    max_leaves=20,
)


@given(plain)
def test_plain_values_survive_exactly(value: object) -> None:
    assert through(value) == value


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float16", "float32", "float64", "complex64"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3, 4)])
def test_numpy_arrays_survive(dtype: str, shape: tuple[int, ...]) -> None:
    array = (np.arange(np.prod(shape, dtype=int)) % 2).reshape(shape).astype(dtype)
    arrived = through({"a": [array]})["a"][0]
    assert arrived.dtype == array.dtype
    assert arrived.shape == shape
    np.testing.assert_array_equal(arrived, array)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.int64, torch.bool, torch.uint8])
@pytest.mark.parametrize("shape", [(), (0, 2), (4, 3)])
def test_tensors_survive(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.randn(shape).to(dtype)
    arrived = through(tensor)
    assert arrived.dtype == dtype
    assert torch.equal(arrived, tensor)


def test_strided_and_big_endian_arrays_arrive_in_order() -> None:
    np.testing.assert_array_equal(through(np.arange(12, dtype=">i4").reshape(3, 4).T), np.arange(12).reshape(3, 4).T)
    assert torch.equal(through(torch.arange(12).reshape(3, 4).T), torch.arange(12).reshape(3, 4).T)


def test_not_a_number_and_infinities_survive() -> None:
    first, second = through([float("nan"), float("-inf")])
    assert first != first
    assert second == float("-inf")


def test_numpy_scalars_arrive_as_plain_numbers() -> None:
    assert through([np.float64(0.5), np.int32(3), np.bool_(True)]) == [0.5, 3, True]


@pytest.mark.parametrize("value", [object(), {1: 2}, {"a": {3}}, np.array([object()]), b"bytes"])
def test_what_cannot_be_sent_is_named(value: object) -> None:
    with pytest.raises(wire.WireError):
        through(value)


def test_endless_nesting_is_refused() -> None:
    value: list[object] = []
    value.append(value)
    with pytest.raises(wire.WireError, match="deep"):
        through(value)


@pytest.mark.parametrize(
    ("library", "dtype", "shape", "nbytes"),
    [
        ("numpy", "int8", [0, 2**70], 0),
        ("torch", "int8", [0, 2**70], 0),
        ("torch", "quint8", [3], 3),
        ("numpy", "int8", [1] * 99, 1),
    ],
)
def test_an_array_that_cannot_be_is_malformed_and_nothing_else(
    library: str, dtype: str, shape: list[int], nbytes: int
) -> None:
    header = json.dumps({"tree": {"__wire__": "array", "is": 0}, "arrays": [[library, dtype, shape]]}).encode()
    stream = io.BytesIO(struct.pack("<4sIQ", b"ACC1", len(header), nbytes) + header + b"x" * nbytes)
    with pytest.raises(wire.WireError):
        wire.read_message(stream)


def test_a_huge_announcement_is_refused_before_it_is_read() -> None:
    stream = io.BytesIO(struct.pack("<4sIQ", b"ACC1", 2, 2**50) + b"{}")
    with pytest.raises(wire.WireError, match="at most"):
        wire.read_message(stream)
    assert stream.tell() == 16


@given(st.data())
def test_damaged_messages_never_raise_anything_else(data: st.DataObject) -> None:
    stream = io.BytesIO()
    wire.write_message(stream, {"a": np.arange(5), "b": [1, 2.5, "x"], "c": torch.ones(2)})
    raw = bytearray(stream.getvalue())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    raw = raw[: data.draw(st.integers(0, len(raw)))]
    with contextlib.suppress(wire.WireError):
        wire.read_message(io.BytesIO(bytes(raw)), max_bytes=2**16)
