"""Compiles the backend's extension once per machine: torch version, source, compiler and oneCCL decide which "once".

A finished extension appears by renaming, so nobody ever sees half of one, and whoever builds holds a lock that its
death frees: a killed build is simply begun again. (`torch.utils.cpp_extension.load` would wait for ever for its maker.)
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from accelerando import programs, progress

MODULE = "_oneccl"
_SOURCES = ("backend.cpp", "engine.hpp")
_INSTALL = "`pip install oneccl-cpu==2021.15.2 oneccl-cpu-devel==2021.15.2 intel-cmplr-lib-rt`"
_LOOK_EVERY_S = 0.1


class OneCCLMissing(RuntimeError):
    """The ``ccl`` backend cannot be had here; the message is the reason, in a sentence."""


def why_not() -> str | None:
    """Say in one sentence why the backend cannot be built or used here; None if it can."""
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "AMD64"):
        return f"oneCCL is made for Linux on x86-64, and this is {platform.system()} on {platform.machine()}"
    if find_library() is None:
        return f"the oneCCL library is not installed: {_INSTALL}"
    if find_compiler() is None:
        return "there is no C++ compiler to build the backend with: install g++ or clang++"
    if is_built():
        return None
    if _find_headers() is None:
        return f"oneCCL's headers are not installed: {_INSTALL}"
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file():
        return "Python's own headers (Python.h) are missing: install the package python3-dev"
    try:
        _folder().mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        return f"{_folder()} cannot be made to keep the built backend in ({problem.strerror}): set XDG_CACHE_HOME"
    if not os.access(_folder(), os.W_OK):
        return f"{_folder()}, where the built backend is kept, cannot be written: set XDG_CACHE_HOME"
    return None


def find_library() -> Path | None:
    """Find ``libccl.so.1`` as the package installed it."""
    return _installed("oneccl-cpu", "libccl.so.1")


def find_compiler() -> programs.Program | None:
    """Find a C++ compiler; the plain names for C are left out."""
    return next((found for found in programs.find_compilers() if "+" in found.command or found.kind == "Intel"), None)


def is_built() -> bool:
    """Tell whether a finished extension for this torch, source, compiler and oneCCL is there."""
    return find_library() is not None and find_compiler() is not None and _target().is_file()


def load(time_limit_s: float) -> Any:
    """Return the extension as a module, built if need be; one that cannot be loaded is built again, once.

    Raises:
        OneCCLMissing: If it could not be built or loaded.
    """
    if MODULE in sys.modules:
        return sys.modules[MODULE]
    import torch  # noqa: F401  (the extension's symbols come from it)

    target = build(time_limit_s)
    try:
        return _import(target)
    except ImportError:
        target.unlink(missing_ok=True)
    try:
        return _import(build(time_limit_s))
    except ImportError as problem:
        raise OneCCLMissing(f"the backend was built but cannot be loaded: {problem}") from problem


def build(time_limit_s: float = 600.0) -> Path:
    """Compile the extension unless that was done before, by whichever process comes first.

    Returns:
        The extension's file.

    Raises:
        OneCCLMissing: If the compiler failed, or nothing came of it within ``time_limit_s``.
    """
    reason = why_not()
    if reason:
        raise OneCCLMissing(reason)
    target = _target()
    if target.is_file():
        return target
    deadline_s = time.monotonic() + time_limit_s
    with _lock(target.parent / "lock", deadline_s):
        if target.is_file():
            return target
        for stale in target.parent.glob("building-*"):  # we hold the lock: their makers are dead
            shutil.rmtree(stale, ignore_errors=True)
        place = Path(tempfile.mkdtemp(prefix="building-", dir=target.parent))
        try:
            _compile(place / target.name, place / "log", deadline_s)
            (place / target.name).replace(target)
        finally:
            shutil.rmtree(place, ignore_errors=True)
    return target


def _compile(output: Path, log: Path, deadline_s: float) -> None:
    began_s = time.monotonic()
    with log.open("wb") as stream, _shown() as tell:
        compiler = subprocess.Popen(
            _command(output), stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, start_new_session=True
        )
        try:
            while compiler.poll() is None:
                time.sleep(_LOOK_EVERY_S)
                now_s = time.monotonic()
                tell(f"{now_s - began_s:.0f} s, usually 20 to 60 s")
                if now_s > deadline_s:
                    raise OneCCLMissing(f"building the backend was not done after {now_s - began_s:.0f} s")
        finally:
            if compiler.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(compiler.pid, signal.SIGKILL)
                compiler.wait()
    if compiler.returncode != 0:
        lines = log.read_text(errors="replace").splitlines()
        said = next((line for line in lines if "error" in line.lower()), lines[-1] if lines else "it said nothing")
        raise OneCCLMissing(f"the compiler could not build the backend: {said[:300]}")


@contextlib.contextmanager
def _shown() -> Iterator[Any]:
    """A bar for who watches; a line for who reads a log."""
    with progress.bar(1, "compiling the oneCCL backend, once", unit="files") as advance:
        if not sys.stdout.isatty() and "ipykernel" not in sys.modules:
            sys.stderr.write("compiling the oneCCL backend, once: about half a minute\n")
        yield lambda note: advance(0, note)
        advance(1, "done")


def _command(output: Path) -> list[str]:
    import torch

    compiler, headers, library = find_compiler(), _find_headers(), find_library()
    assert compiler is not None
    assert headers is not None
    assert library is not None
    abi = [
        f'-DPYBIND11_{name}="{value}"'
        for name in ("COMPILER_TYPE", "STDLIB", "BUILD_ABI")
        if (value := getattr(torch._C, f"_PYBIND11_{name}", None)) is not None
    ]
    home = Path(torch.__file__).parent
    includes = [home / "include", home / "include/torch/csrc/api/include", headers, sysconfig.get_paths()["include"]]
    return [
        compiler.path, "-std=c++17", "-O2", "-fPIC", "-shared", "-w",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}", f"-DTORCH_EXTENSION_NAME={MODULE}", *abi,
        *(f"-isystem{path}" for path in includes),
        str(Path(__file__).with_name(_SOURCES[0])), "-o", str(output),
        f"-L{home / 'lib'}", "-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python",
        f"-L{library.parent}", "-l:libccl.so.1", f"-Wl,-rpath,{library.parent}", "-pthread", "-ldl",
    ]  # fmt: skip


def _target() -> Path:
    compiler, library = find_compiler(), find_library()
    assert compiler is not None
    assert library is not None
    seen = [importlib.metadata.version("torch"), importlib.metadata.version("oneccl-cpu"), str(library)]
    seen += [compiler.path, compiler.version or "", str(sysconfig.get_config_var("SOABI"))]
    seen += [Path(__file__).with_name(name).read_text(encoding="utf-8") for name in _SOURCES]
    return _folder() / f"{hashlib.sha256(chr(0).join(seen).encode()).hexdigest()[:16]}.so"


def _folder() -> Path:
    """Each user's own: nobody loads code that somebody else can write."""
    import platformdirs

    base = os.environ.get("XDG_CACHE_HOME")
    root = Path(base) / "accelerando" if base else Path(platformdirs.user_cache_dir("accelerando"))
    return root / f"oneccl-{os.getuid()}"


@contextlib.contextmanager
def _lock(path: Path, deadline_s: float) -> Iterator[None]:
    import fcntl

    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline_s:
                    raise OneCCLMissing("another process is still building the backend") from None
                time.sleep(_LOOK_EVERY_S)
        yield


def _import(path: Path) -> Any:
    specification = importlib.util.spec_from_file_location(MODULE, path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    sys.modules[MODULE] = module
    return module


def _find_headers() -> Path | None:
    found = _installed("oneccl-cpu-devel", "ccl.hpp")
    return None if found is None else found.parents[1]


def _installed(package: str, name: str) -> Path | None:
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in files:
        if file.name == name:
            path = Path(str(file.locate())).resolve()
            if path.is_file():
                return path
    return None
