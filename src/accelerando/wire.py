"""What travels between a parent and its workers: a length, a JSON header, raw array bytes. Never pickle.

A value is any nesting of dict (with string keys), list, tuple, str, int, float, bool and None, with numpy
arrays and torch tensors in it. Floats survive exactly, NaN and infinities too; tuples arrive as lists; tensors
arrive as contiguous CPU tensors.
"""

import json
import math
import struct
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

_PREFIX = struct.Struct("<4sIQ")  # magic, header bytes, body bytes
_MAGIC = b"ACC1"
_MAX_HEADER_BYTES = 8 * 2**20
_MAX_DEPTH = 64
_NUMPY_KINDS = frozenset("biufc")
_MARK = "__wire__"
# torch crashes, and raises nothing, on raw bytes of some others, such as quint8.
_TORCH_DTYPES = frozenset({
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32",
    "float64", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2",
})  # fmt: skip


class WireError(ValueError):
    """A message that cannot be sent, or one that arrived malformed or too large."""


class WireClosed(WireError):
    """The other side closed the pipe before a whole message had come."""


@dataclass(frozen=True)
class _Array:
    library: str  # "numpy" or "torch"
    dtype: str
    shape: tuple[int, ...]
    data: memoryview


def write_message(stream: BinaryIO, value: Any) -> None:
    """Send one value.

    Args:
        stream: A binary stream; flushed afterwards.
        value: See the module's first lines.

    Raises:
        WireError: If the value holds something else (the message says what and where), or is nested too deep.
    """
    arrays: list[_Array] = []
    tree = _flatten(value, arrays, "value", 0)
    table = [[array.library, array.dtype, list(array.shape)] for array in arrays]
    header = json.dumps({"tree": tree, "arrays": table}, allow_nan=False).encode()
    if len(header) > _MAX_HEADER_BYTES:
        raise WireError(
            f"the message has {len(header)} bytes of JSON, at most {_MAX_HEADER_BYTES} are allowed: send arrays"
        )
    stream.write(_PREFIX.pack(_MAGIC, len(header), sum(array.data.nbytes for array in arrays)))
    stream.write(header)
    for array in arrays:
        stream.write(array.data)
    stream.flush()


def read_message(stream: BinaryIO, max_bytes: int = 2**30) -> Any:
    """Receive one value; every size is checked before it is read.

    Args:
        stream: A binary stream.
        max_bytes: Largest body (array bytes) accepted.

    Raises:
        WireClosed: If the stream ended in the middle, or before the message.
        WireError: If the message is malformed or larger than allowed.
    """
    magic, header_bytes, body_bytes = _PREFIX.unpack(_read_exactly(stream, _PREFIX.size))
    if magic != _MAGIC:
        raise WireError("the message does not start as one of ours")
    if header_bytes > _MAX_HEADER_BYTES or body_bytes > max_bytes:
        raise WireError(f"the message announces {header_bytes + body_bytes} bytes, at most {max_bytes} are allowed")
    try:
        header = json.loads(_read_exactly(stream, header_bytes))
        table, tree = header["arrays"], header["tree"]
        layouts = [_layout(*row) for row in table]
    except (ValueError, KeyError, TypeError, RecursionError, AttributeError) as error:
        raise WireError(f"the message has a malformed header: {error}") from None
    if sum(nbytes for _, _, _, nbytes in layouts) != body_bytes:
        raise WireError("the announced arrays do not add up to the announced bytes")
    bodies = [_read_exactly(stream, nbytes) for _, _, _, nbytes in layouts]
    try:
        arrays = [_array(*layout[:3], body) for layout, body in zip(layouts, bodies, strict=True)]
        return _unflatten(tree, arrays)
    except (IndexError, KeyError, TypeError, ValueError, RecursionError, RuntimeError, OverflowError) as error:
        raise WireError(f"the message has a malformed tree: {error}") from None


def _flatten(value: Any, arrays: list[_Array], where: str, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise WireError(f"{where[:80]} is nested more than {_MAX_DEPTH} levels deep")
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {_MARK: "float", "is": repr(float(value))}
    if isinstance(value, list | tuple):
        return [_flatten(item, arrays, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)]
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise WireError(f"{where} has the key {key!r}: keys must be str, not {type(key).__name__}")
        tree = {key: _flatten(item, arrays, f"{where}[{key!r}]", depth + 1) for key, item in value.items()}
        return {_MARK: "dict", "is": tree} if _MARK in tree else tree
    array = _as_array(value)
    if array is None:
        raise WireError(
            f"{where} is of type {type(value).__name__}, which cannot be sent: "
            "use numbers, text, lists, dicts or arrays"
        )
    if array.library == "scalar":
        return _flatten(value.item(), arrays, where, depth)
    arrays.append(array)
    return {_MARK: "array", "is": len(arrays) - 1}


def _as_array(value: Any) -> _Array | None:
    if isinstance(value, np.generic):
        return _Array("scalar", "", (), memoryview(b""))
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in _NUMPY_KINDS:
            raise WireError(f"an array of dtype {value.dtype} cannot be sent: use a number or bool dtype")
        plain = np.ascontiguousarray(value).astype(value.dtype.newbyteorder("<"), copy=False)
        return _Array("numpy", plain.dtype.name, value.shape, plain.reshape(-1).view(np.uint8).data)
    if type(value).__module__.partition(".")[0] != "torch":
        return None
    import torch

    if not isinstance(value, torch.Tensor):
        return None
    if value.layout != torch.strided or value.is_quantized:
        raise WireError("a sparse or quantized tensor cannot be sent: make it dense first")
    dtype = str(value.dtype).removeprefix("torch.")
    if dtype not in _TORCH_DTYPES:
        raise WireError(f"a tensor of dtype {dtype} cannot be sent: convert it first")
    plain_tensor = value.detach().cpu().contiguous().reshape(-1)
    data = plain_tensor.view(torch.uint8).numpy().data if plain_tensor.numel() else memoryview(b"")
    return _Array("torch", dtype, tuple(value.shape), data)


def _layout(library: str, dtype: str, shape: list[int]) -> tuple[str, str, tuple[int, ...], int]:
    if library not in ("numpy", "torch") or not all(isinstance(n, int) and n >= 0 for n in shape):
        raise WireError("the message describes an array that cannot be")
    if library == "numpy":
        kind = np.dtype(dtype)
        if kind.kind not in _NUMPY_KINDS:
            raise WireError(f"arrays of dtype {dtype} are not accepted")
        itemsize = kind.itemsize
    else:
        itemsize = _torch_dtype(dtype).itemsize
    return library, dtype, tuple(shape), math.prod(shape) * itemsize


def _torch_dtype(name: str) -> Any:
    import torch

    if name not in _TORCH_DTYPES:
        raise WireError(f"tensors of dtype {str(name)[:20]!r} are not accepted")
    return getattr(torch, name)


def _array(library: str, dtype: str, shape: tuple[int, ...], data: bytearray) -> Any:
    if library == "numpy":
        return np.frombuffer(data, dtype=np.dtype(dtype)).reshape(shape)
    import torch

    if not data:
        return torch.empty(shape, dtype=_torch_dtype(dtype))
    return torch.frombuffer(data, dtype=_torch_dtype(dtype)).reshape(shape)


def _unflatten(tree: Any, arrays: list[Any]) -> Any:
    if isinstance(tree, list):
        return [_unflatten(item, arrays) for item in tree]
    if isinstance(tree, dict):
        match tree.get(_MARK):
            case None:
                return {key: _unflatten(item, arrays) for key, item in tree.items()}
            case "array":
                return arrays[tree["is"]]
            case "float":
                return float(tree["is"])
            case "dict":
                return {key: _unflatten(item, arrays) for key, item in tree["is"].items()}
        raise WireError("an unknown mark in the message")
    return tree


def _read_exactly(stream: BinaryIO, nbytes: int) -> bytearray:
    data = bytearray()
    while len(data) < nbytes:
        piece = stream.read(min(nbytes - len(data), 2**20))
        if not piece:
            raise WireClosed("the pipe was closed before the whole message had come")
        data += piece
    return data
