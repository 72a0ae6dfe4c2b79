"""The ledger: results on disk, with what is needed to trust them later.

A number without its machine, versions, commit and date is a rumour. A ledger is one JSON file that holds results
beside all four, is written in one step, and refuses to be read when it is damaged or of another schema.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import importlib
import importlib.metadata
import json
import os
import platform
import subprocess
import types
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

SCHEMA = 1
KINDS = {
    "Measurement": "accelerando.measure",
    "Comparison": "accelerando.measure",
    "FitResult": "accelerando.training",
}
"""What can be stored, by class name, and the module that defines it."""

PACKAGES = ("torch", "torchvision", "numpy", "intel-extension-for-pytorch", "accelerando")
MOST_BYTES = 256 * 2**20


@dataclass(frozen=True)
class Ledger:
    """Results, and the circumstances they were measured in.

    Args:
        results: Measurements, comparisons and fit results by a name of your choice.
        machine: The machine, as plain values.
        versions: Python and the packages that decide speed.
        commit: The course's commit; None outside a checkout, with "+changes" when files differed from it.
        date: When it was written, ISO 8601, UTC.
        schema: Format number.
    """

    results: dict[str, Any]
    machine: dict[str, Any]
    versions: dict[str, str]
    commit: str | None
    date: str
    schema: int = SCHEMA


def record(results: Mapping[str, Any], machine: Any = None) -> Ledger:
    """Put results together with this machine, these versions, this commit and this minute.

    Args:
        results: Measurements, comparisons or fit results by name.
        machine: A ``machine.Machine``, or plain values; None asks for this machine.

    Raises:
        ValueError: If a result is of a class that the ledger does not know.
    """
    for name, result in results.items():
        if type(result).__name__ not in KINDS:
            raise ValueError(f"result {name!r} is a {type(result).__name__}: a ledger keeps {', '.join(KINDS)}")
    if machine is None:
        from accelerando import machine as hardware

        machine = hardware.probe()
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return Ledger(dict(results), _plain_machine(machine), versions(), commit(), now)


def _plain_machine(machine: Any) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(_encoded(machine)))
    plain.pop(_KIND, None)
    return plain


def origin() -> dict[str, Any]:
    """Say where figures come from: this machine, without the folders of its programs, the versions and the commit."""
    from accelerando import machine as hardware

    described = asdict(hardware.probe())
    for program in (*described["mpi"], *described["compilers"]):
        program.pop("path")
    return {"machine": described, "versions": versions(), "commit": commit()}


def versions() -> dict[str, str]:
    """List the versions of Python and of the packages that decide speed; what is not installed is left out."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def commit() -> str | None:
    """Name the checkout's commit, with "+changes" when tracked files differ from it; None outside a checkout."""
    here = Path(__file__).parent

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(here), *words], capture_output=True, text=True, timeout=10, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    name = git("rev-parse", "HEAD")
    if not name or git("ls-files", Path(__file__).name) != Path(__file__).name:
        return None  # installed inside somebody else's checkout: their commit says nothing about ours
    return name + ("+changes" if git("status", "--porcelain", "--untracked-files=no") else "")


def save(ledger: Ledger, path: str | Path) -> None:
    """Write a ledger in one step: a crash, a full disk or Ctrl-C leaves the old file or the new one, never half."""
    path = Path(path)
    values = {field.name: _encoded(getattr(ledger, field.name)) for field in dataclasses.fields(ledger)}
    text = json.dumps(values, indent=1, allow_nan=False) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def load(path: str | Path) -> Ledger:
    """Read a ledger.

    Raises:
        ValueError: If the file is missing, damaged, of another schema, or holds what a ledger does not; one sentence.
    """
    path = Path(path)
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ValueError(f"{path} is larger than {MOST_BYTES // 2**20} MiB: this is no ledger of ours")
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: it is not JSON ({error})") from error
    if not isinstance(values, dict) or "schema" not in values:
        raise ValueError(f"{path} is not a ledger: it has no schema number")
    if values["schema"] != SCHEMA or isinstance(values["schema"], bool):
        raise ValueError(
            f"{path} has schema {values['schema']!r}: this version reads schema {SCHEMA}; "
            "measure again, or use the version that wrote it"
        )
    try:
        ledger: Ledger = _rebuilt(Ledger, {key: _decoded(value) for key, value in values.items()})
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    return ledger


_KIND, _ARRAY, _NUMBER = "__kind__", "__array__", "__number__"


def _encoded(value: Any) -> Any:
    """Turn a value into JSON: dataclasses by name, arrays as base64 with dtype and shape, NaN and infinity by name."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        plain = {field.name: _encoded(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {_KIND: type(value).__name__, **plain}
    if isinstance(value, np.ndarray):
        content = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode("ascii")
        return {_ARRAY: value.dtype.name, "shape": list(value.shape), "base64": content}
    if isinstance(value, np.generic):
        return _encoded(value.item())
    if isinstance(value, Mapping):
        return {str(key): _encoded(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_encoded(entry) for entry in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return {_NUMBER: repr(value)}  # JSON has neither NaN nor infinity; other readers refuse them
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ValueError(f"a ledger cannot keep a {type(value).__name__}")


def _decoded(value: Any) -> Any:
    """Undo ``_encoded``; dataclasses of a known kind are made again, with their nested ones."""
    if isinstance(value, list):
        return [_decoded(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    if _NUMBER in value:
        if value[_NUMBER] not in ("nan", "inf", "-inf"):
            raise ValueError(f"{value[_NUMBER]!r} is not a number")
        return float(value[_NUMBER])
    if _ARRAY in value:
        dtype = np.dtype(value[_ARRAY])
        if dtype.kind not in "biuf":
            raise ValueError(f"arrays of {dtype.name} are not kept in a ledger")
        content = base64.b64decode(value["base64"], validate=True)
        return np.frombuffer(content, dtype).reshape(value["shape"]).copy()
    inside = {key: _decoded(entry) for key, entry in value.items()}
    if value.get(_KIND) in KINDS:
        family = getattr(importlib.import_module(KINDS[value[_KIND]]), value[_KIND])
        return _rebuilt(family, inside)
    return inside


def _rebuilt(family: type[Any], values: Mapping[str, Any]) -> Any:
    """Make a dataclass from plain values, following its type hints into tuples, dictionaries and other dataclasses."""
    hints = typing.get_type_hints(family)
    names = {field.name for field in dataclasses.fields(family)}
    given = {key: entry for key, entry in values.items() if key != _KIND}
    unknown = sorted(set(given) - names)
    if unknown:
        raise ValueError(f"{family.__name__} has no {', '.join(unknown)}")
    required = {
        field.name
        for field in dataclasses.fields(family)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }
    missing = sorted(required - set(given))
    if missing:
        raise ValueError(f"{family.__name__} lacks {', '.join(missing)}")
    shaped = {}
    for key, entry in given.items():
        try:
            shaped[key] = _shaped(hints[key], entry)
        except TypeError as error:
            raise ValueError(f"{family.__name__}.{key} {error}") from error
    return family(**shaped)


def _shaped(hint: Any, value: Any) -> Any:
    """Turn a plain value into what a type hint asks for; TypeError when it cannot be that."""
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    expected = origin or hint
    if expected is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if expected in (bool, int, float, str, np.ndarray):
        if not isinstance(value, expected) or (expected is int and isinstance(value, bool)):
            raise TypeError(f"should be {expected.__name__}, not {type(value).__name__}")
        return value
    if origin is typing.Literal and value not in options:
        raise TypeError(f"should be one of {', '.join(map(str, options))}")
    if expected in (dict, tuple, list) and not isinstance(value, dict if expected is dict else list):
        raise TypeError(f"should be {expected.__name__}, not {type(value).__name__}")
    if origin in (typing.Union, types.UnionType):
        fitting = [option for option in options if option is not type(None)]
        return value if value is None or len(fitting) != 1 else _shaped(fitting[0], value)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type) and isinstance(value, Mapping):
        return _rebuilt(hint, value)
    if origin is tuple and isinstance(value, list):
        each = options[0] if len(options) == 2 and options[1] is Ellipsis else None
        shapes = [each] * len(value) if each is not None else options or [typing.Any] * len(value)
        return tuple(_shaped(shape, entry) for shape, entry in zip(shapes, value, strict=True))
    if origin is list and isinstance(value, list) and options:
        return [_shaped(options[0], entry) for entry in value]
    if origin is dict and isinstance(value, Mapping) and len(options) == 2:
        key_type = int if options[0] is int else str
        return {key_type(key): _shaped(options[1], entry) for key, entry in value.items()}
    return value
