"""The fixtures of the readers, and what damage does to pasted text."""

from __future__ import annotations

import json
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


def before_each(prefix: str) -> Callable[[str], str]:
    """Put the same words before each line; ``{}`` counts."""

    def damage(text: str) -> str:
        lines = text.rstrip("\n").split("\n")
        return "".join(prefix.format(number % 60) + f"{line}\n" for number, line in enumerate(lines))

    return damage


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
    "quoted twice in a mail": before_each(">> "),
    "quoted in a quote": before_each("> > "),
    "stamped with the date": before_each("2026-05-06T10:11:{:02d}.123456Z "),
    "stamped by Kubernetes": before_each("2026-05-06T10:11:{:02d}.123456789Z stdout F "),
    "stamped with the clock": before_each("[10:11:{:02d}] "),
    "logged by Python": before_each("2026-05-06 10:11:{:02d},123 - INFO - "),
    "logged by the system": before_each("May  6 10:11:{:02d} node1 bash[123]: "),
    "named by pdsh": before_each("gpu-node-17: "),
    "in a box": lambda text: "".join(f"│ {line}   │\n" for line in text.rstrip("\n").split("\n")),
    "listed by Ansible": lambda text: "".join(f"    {json.dumps(line)},\n" for line in text.rstrip("\n").split("\n")),
    "in one line of JSON": lambda text: json.dumps(text) + "\n",
    "trailing spaces": lambda text: text.replace("\n", "   \n"),
    "unbreakable spaces": lambda text: text.replace("  ", "\xa0 "),
    "blank line after each": lambda text: text.replace("\n", "\n\n"),
}
