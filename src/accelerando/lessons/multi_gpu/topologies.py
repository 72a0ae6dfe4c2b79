"""Reads topologies of real shape: who is close to whom, which ring is best, and what one slow hop costs."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from accelerando import collectives, costs, programs, readers
from accelerando.lessons.multi_gpu import wires

FOLDER = Path(__file__).with_name("dumps")
MACHINES = {
    "8 x V100, cube mesh": ("v100_cube", "V100"),
    "8 x H100, NVSwitch": ("h100_switch", "H100"),
    "4 x A100, bridges across sockets": ("a100_pairs", "A100"),
    "4 x V100, a square": ("v100_square", "V100"),
    "8 GPUs, PCIe only": ("pcie_8", "V100"),
}
"""Name -> file in ``dumps`` and kind of GPU. The texts were written for this lesson in the shape of real ones."""
Pair = tuple[int, int]


@dataclass(frozen=True)
class Topology:
    """What a matrix of ``nvidia-smi topo -m`` says.

    Args:
        gpus: How many.
        links: Pair of GPUs, smaller number first -> name of the link, as "NV2" or "SYS".
        islands: Groups of GPUs that are all linked by NVLink with each other; None where rows are missing.
        ring: The ring with the best slowest hop; None where rows are missing or there is one GPU.
        slowest: Name of its slowest hop.
        nics: GPU -> its nearest network cards; None where the matrix names none.
        warnings: What the reader remarked.
    """

    gpus: int
    links: dict[Pair, str]
    islands: tuple[tuple[int, ...], ...] | None
    ring: tuple[int, ...] | None
    slowest: str | None
    nics: dict[int, tuple[str, ...]] | None
    warnings: tuple[str, ...] = field(default=())

    def hops(self, order: Sequence[int]) -> tuple[str, ...]:
        """The links that a ring in this order goes over, the one back to the start too."""
        return tuple(self.links[min(a, b), max(a, b)] for a, b in _around(order))

    def sentence(self) -> str:
        """Say what stands out."""
        groups = [f"{{{', '.join(map(str, island))}}}" for island in self.islands or ()]
        alone = self.gpus - sum(map(len, self.islands or ()))
        if self.islands is None:
            told = f"{self.gpus} GPUs, and not all pairs are known"
        elif not groups:
            told = f"{self.gpus} GPUs without NVLink"
        elif groups == [f"{{{', '.join(map(str, range(self.gpus)))}}}"]:
            told = f"All {self.gpus} GPUs are one island of NVLink"
        else:
            told = f"{len(groups)} islands of NVLink: {' and '.join(groups)}" + (f"; {alone} alone" if alone else "")
        if self.ring:
            order = " → ".join(map(str, (*self.ring, self.ring[0])))
            told += f". Best ring: {order}; its slowest hop is {self.slowest}"
            plain = slowest(self.hops(range(self.gpus)))
            told += "" if plain == self.slowest else f" (in the order of their numbers it would be {plain})"
        if self.nics:
            told += ". Nearest network card: " + "; ".join(
                f"{', '.join(cards)} for GPU {', '.join(map(str, gpus))}" for cards, gpus in self._by_cards().items()
            )
        return f"{told}."

    def _by_cards(self) -> dict[tuple[str, ...], list[int]]:
        found: dict[tuple[str, ...], list[int]] = {}
        for gpu, cards in (self.nics or {}).items():
            found.setdefault(cards, []).append(gpu)
        return found


def read(text: str) -> Topology:
    """Read what ``nvidia-smi topo -m`` printed.

    Raises:
        readers.Unreadable: In words, if it is no such matrix.
    """
    said = readers.parse("topo", text)
    ring = said["best_ring"] or {}
    return Topology(
        said["gpus"],
        {(a, b): name for a, b, name in said["links"]},
        None if said["nvlink_islands"] is None else tuple(map(tuple, said["nvlink_islands"])),
        tuple(ring["order"]) if ring else None,
        ring.get("slowest"),
        None if said["nearest_nics"] is None else {int(gpu): tuple(n) for gpu, n in said["nearest_nics"].items()},
        tuple(said["warnings"]),
    )


def text(machine: str) -> str:
    """The matrix of one of `MACHINES`, as it would be printed."""
    return (FOLDER / f"{MACHINES[machine][0]}.txt").read_text(encoding="utf-8")


def texts() -> dict[str, str]:
    """Every machine of `MACHINES` with its matrix, for the explorer; last, this one, if it has several GPUs."""
    found = {machine: text(machine) for machine in MACHINES}
    own = programs.ask("nvidia-smi", "topo", "-m")
    with contextlib.suppress(readers.Unreadable):
        if own and read(own).gpus > 1:
            found["this machine"] = own
    return found


def slowest(hops: Sequence[str]) -> str:
    """Name the slowest of some links."""
    return min(hops, key=lambda name: wires.hop(name, "V100").bandwidth_bytes_per_s)


def predict_ring_s(topology: Topology, order: Sequence[int], message_bytes: float, gpu: str) -> float:
    """Predict an all-reduce around a ring: every step lasts as long as its slowest hop.

    Args:
        topology: Of the machine.
        order: The GPUs, in the order of the ring.
        message_bytes: Of the tensor.
        gpu: Kind, as `wires.hop` takes it.
    """
    links = [wires.hop(name, gpu) for name in topology.hops(order)]
    return predict_paced_s(
        collectives.ring(len(links)), message_bytes, dict(zip(_around(range(len(links))), links, strict=True))
    )


def predict_paced_s(schedule: collectives.Schedule, message_bytes: float, links: dict[Pair, costs.Link]) -> float:
    """Predict an all-reduce over links that differ.

    Args:
        schedule: Who sends what to whom.
        message_bytes: Of the tensor.
        links: (source, target) -> the link between them, for all messages of the schedule.
    """
    piece = message_bytes / schedule.pieces
    return sum(
        max(
            links[one.source, one.target].latency_s + piece / links[one.source, one.target].bandwidth_bytes_per_s
            for one in step
        )
        for step in schedule.steps
    )


def compare(message_bytes: float = 200e6) -> str:
    """Markdown: every machine's islands, its best ring, and what it costs to ring in the order of the numbers."""
    lines = [
        f"| machine | islands | slowest hop, by number | slowest hop, best ring | {message_bytes / 1e6:g} MB, one ring "
        f"by number | one best ring |",
        "|---|---|---|---|---|---|",
    ]
    for name, (_, gpu) in MACHINES.items():
        found = read(text(name))
        assert found.ring is not None
        assert found.islands is not None
        by_number = range(found.gpus)
        times = [predict_ring_s(found, order, message_bytes, gpu) for order in (by_number, found.ring)]
        groups = " ".join("{" + ",".join(map(str, island)) + "}" for island in found.islands) or "none"
        hops = [slowest(found.hops(order)) for order in (by_number, found.ring)]
        speeds = [f"{hop}, {wires.hop(hop, gpu).bandwidth_bytes_per_s / 1e9:g} GB/s" for hop in hops]
        lines.append(
            f"| {name} | {groups} | {speeds[0]} | {speeds[1]} | {1e3 * times[0]:.3g} ms | {1e3 * times[1]:.3g} ms |"
        )
    return "\n".join(lines)


def read_xml() -> str:
    """Say what NCCL's own topology file tells of the square of four, and check it against the matrix."""
    said = readers.read("topo-xml", FOLDER / "v100_square.xml")
    matrix = read(text("4 x V100, a square"))
    links = {(a, b): f"NV{count}" for a, b, count in said["nvlinks"]}
    same = links == {pair: name for pair, name in matrix.links.items() if name.startswith("NV")}
    return (
        f"Of the square of four, NCCL's own file names {said['gpus']} GPUs, {said['numa_nodes']} NUMA nodes, "
        f"{said['pci_switches']} PCIe switches, {said['nics']} network card, and NVLinks between "
        f"{', '.join(f'{a}–{b} ({n})' for (a, b), n in links.items())}: {'the same as' if same else 'NOT the same as'} "
        "the matrix."
    )


def _around(order: Sequence[int]) -> list[Pair]:
    return list(itertools.pairwise([*order, order[0]]))
