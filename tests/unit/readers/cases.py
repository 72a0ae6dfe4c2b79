"""The fixtures of the readers, and what damage does to pasted text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

FIXTURES = Path(__file__).parent / "fixtures"
# Real inputs with right answers, where they lie beside the checkout.
SHARED = Path(__file__).resolve().parents[4] / "shared" / "cases"

KIND_OF = {
    "lscpu_new_two_sockets.txt": "lscpu",
    "lscpu_old_offline.txt": "lscpu",
    "lscpu_hybrid.json": "lscpu",
    "cpuinfo_arm.txt": "lscpu",
    "topo_hgx.txt": "topo",
    "topo_rocm.txt": "topo",
    "topo_dump.xml": "topo-xml",
    "nccl_ok_nvlink.log": "nccl-log",
    "nccl_failed_shm.log": "nccl-log",
    "nccl_hang_watchdog.log": "nccl-log",
    "hosts_slurm_env.txt": "hosts",
    "hosts_openmpi.txt": "hosts",
}


def fixture(name: str) -> str:
    return (FIXTURES / name).read_text(encoding="utf-8")


def everything() -> Iterator[tuple[str, str, str]]:
    """Yield (kind, name, text) of every fixture, and of every shared case that is there."""
    for name, kind in KIND_OF.items():
        yield kind, name, fixture(name)
    for path in sorted(SHARED.glob("*")):
        for mark, kind in (
            ("lscpu", "lscpu"),
            ("topo_", "topo"),
            ("xml_", "topo-xml"),
            ("nccl_", "nccl-log"),
            ("cl_", "hosts"),
        ):
            if path.name.startswith(mark) or f"_{mark}_" in path.name:
                yield kind, path.name, path.read_text(encoding="utf-8")
                break


def numbered(text: str) -> str:
    return "\n".join(f"{number:4d}  {line}" for number, line in enumerate(text.rstrip("\n").split("\n"), 1)) + "\n"


HARMLESS_DAMAGE: dict[str, Callable[[str], str]] = {
    "windows line ends": lambda text: text.replace("\n", "\r\n"),
    "old mac line ends": lambda text: text.replace("\n", "\r"),
    "quoted in a mail": lambda text: "".join(f"> {line}\n" for line in text.rstrip("\n").split("\n")),
    "coloured": lambda text: "".join(f"\x1b[1;32m{line}\x1b[0m\n" for line in text.rstrip("\n").split("\n")),
    "coloured, escapes lost": lambda text: "".join(f"[4m{line}[0m\n" for line in text.rstrip("\n").split("\n")),
    "fenced": lambda text: f"Here it is:\n\n```\n{text}```\n\nWhat is wrong with it?\n",
    "indented": lambda text: "".join(f"    {line}\n" for line in text.rstrip("\n").split("\n")),
    "numbered lines": numbered,
    "tagged by mpirun": lambda text: "".join(f"[1,0]<stdout>:{line}\n" for line in text.rstrip("\n").split("\n")),
    "trailing spaces": lambda text: text.replace("\n", "   \n"),
    "unbreakable spaces": lambda text: text.replace("  ", "\xa0 "),
    "blank line after each": lambda text: text.replace("\n", "\n\n"),
}
