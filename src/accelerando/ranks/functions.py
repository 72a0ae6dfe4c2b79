"""A function of a notebook as a file that other processes can import: its text, and all that it names.

Functions and classes of the notebook go by their text, modules and what comes from them by an import, numbers, text,
lists, dicts, arrays and tensors by value. Nothing is pickled, so anything else is refused by name.
"""

import __future__

import ast
import dis
import importlib.util
import inspect
import io
import linecache
import sys
import textwrap
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from accelerando import wire

MODULE = "notebook_cell"
_HEAD = """from __future__ import annotations

from accelerando.ranks.inside import names as _names

globals().update(_names())
"""
_NOT_LOCAL = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_GLOBALS"}


def write(function: Callable[..., Any], folder: Path) -> str:
    """Make a function callable by name in another process.

    Args:
        function: Of an importable module, or of a notebook or script.
        folder: Where its text goes if it cannot be imported.

    Returns:
        ``"module:function"``, for a process that has ``folder`` on its path.

    Raises:
        ValueError: If it has no text, or names something that cannot be sent.
    """
    name = getattr(function, "__name__", "")
    if not isinstance(function, types.FunctionType) or not name.isidentifier():
        raise ValueError(f"{name or function!r} cannot be sent to ranks: give a function that is written with `def`")
    if _origin(function):
        return f"{function.__module__}:{name}"
    sent = _Sent()
    sent.add(name, function)
    text = "\n".join([_HEAD, *sent.imports.values(), "", *sent.texts.values()])
    (folder / f"{MODULE}.py").write_text(text, encoding="utf-8")
    with (folder / "names").open("wb") as stream:
        wire.write_message(stream, sent.values)
    return f"{MODULE}:{name}"


class _Sent:
    """What has been collected so far, by the name under which it is known."""

    def __init__(self) -> None:
        self.imports: dict[str, str] = {}
        self.texts: dict[str, str] = {}
        self.values: dict[str, Any] = {}

    def add(self, name: str, thing: Any) -> None:
        if name in self.imports or name in self.texts or name in self.values:
            return
        if isinstance(thing, types.ModuleType):
            self.imports[name] = f"import {thing.__name__} as {name}"
        elif origin := _origin(thing):
            self.imports[name] = f"from {origin} import {thing.__name__} as {name}"
        elif isinstance(thing, types.FunctionType | type) and thing.__name__ == name:
            self._add_text(name, thing)
        else:
            try:
                wire.write_message(io.BytesIO(), thing)
            except wire.WireError:
                kind = type(thing).__name__
                raise ValueError(
                    f"the function names {name!r}, which cannot be sent to ranks (it is a {kind}): build it inside "
                    "the function, or give its parts as payload"
                ) from None
            self.values[name] = thing

    def _add_text(self, name: str, thing: Any) -> None:
        text = _text(thing)
        self.texts[name] = ""  # it may name itself
        around = dict(vars(sys.modules.get(thing.__module__, types.ModuleType("nothing"))))
        around |= getattr(thing, "__globals__", {})
        if isinstance(thing, types.FunctionType):
            cells = zip(thing.__code__.co_freevars, thing.__closure__ or (), strict=True)
            around |= {free: cell.cell_contents for free, cell in cells}
        for needed in sorted(set(_names_in(text))):
            if needed in around and needed != name:
                self.add(needed, around[needed])
        del self.texts[name]  # after what it needs: a base class or a decorator must stand above
        self.texts[name] = text


def _names_in(text: str) -> Iterator[str]:
    """Give the names that a text takes from its surroundings; those in annotations are never looked up."""
    waiting = [compile(text, "<text>", "exec", flags=__future__.annotations.compiler_flag, dont_inherit=True)]
    while waiting:
        code = waiting.pop()
        own = set()
        for step in dis.get_instructions(code):
            if step.opname == "STORE_NAME":
                own.add(step.argval)
            elif step.opname in _NOT_LOCAL and step.argval not in own and not step.argval.startswith("__"):
                yield step.argval
        waiting += [part for part in code.co_consts if isinstance(part, types.CodeType)]


def _origin(thing: Any) -> str | None:
    """Name the module from which a function or class can be imported by its own name."""
    name, home = getattr(thing, "__name__", None), getattr(thing, "__module__", None)
    if not isinstance(name, str) or not name.isidentifier():
        return None
    homes = [home] if home else [module for module in sys.modules if not module.startswith("_")]
    for candidate in homes:
        module = sys.modules.get(candidate)
        if module is not None and candidate != "__main__" and vars(module).get(name) is thing and _is_found(candidate):
            return candidate
    return None


def _is_found(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError, AttributeError):
        return False


def _text(thing: Any) -> str:
    """Find the text of a function or class; a notebook's classes only stand in the memory of its cells."""
    try:
        return textwrap.dedent(inspect.getsource(thing))
    except (OSError, TypeError):
        if isinstance(thing, type):
            known = [entry[2] for entry in linecache.cache.values() if len(entry) > 2]  # (size, time, lines, path)
            for lines in reversed(known):
                if text := _class_in("".join(lines), thing.__name__):
                    return text
    raise ValueError(
        f"the text of {thing.__name__!r} cannot be found: write it in a cell of its own, with `def`"
    ) from None


def _class_in(text: str, name: str) -> str | None:
    if f"class {name}" not in text:
        return None
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return None
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            return "\n".join(text.splitlines()[first - 1 : node.end_lineno]) + "\n"
    return None
