"""Published speeds of what connects GPUs, and what NCCL counts on for one hop of a topology matrix."""

from __future__ import annotations

from dataclasses import dataclass

from accelerando import costs

NVLINK_BYTES_PER_S = {"P100": 18e9, "V100": 20e9, "A100": 20e9, "H100": 20.6e9, "B200": 40.1e9}
"""What NCCL counts on for one NVLink, one way. Source: NVIDIA/nccl, src/graph/topo.h."""
PCIE_3_BYTES_PER_S, BETWEEN_SOCKETS_BYTES_PER_S = 12e9, 10e9
"""Likewise for PCIe 3.0 x16, and for the way between two sockets of Skylake's time."""
HOP_LATENCY_S = 5e-6
"""Order of magnitude of one step of a collective inside a machine; it was not measured here."""
MEANINGS = {
    "NV#": "# NVLinks side by side, directly or through an NVSwitch",
    "PIX": "one PCIe switch",
    "PXB": "several PCIe switches",
    "PHB": "through the CPU's PCIe bridge",
    "NODE": "between two PCIe bridges of one CPU",
    "SYS": "from one CPU to another",
}


@dataclass(frozen=True)
class Wire:
    """One kind of connection.

    Args:
        name: As data sheets call it.
        bytes_per_s: One way, of one GPU or one port, as published.
        joins: What it connects.
        source: Where the number stands.
    """

    name: str
    bytes_per_s: float
    joins: str
    source: str


def predict_pcie_bytes_per_s(generation: int, lanes: int = 16) -> float:
    """Compute the bytes per second of PCI Express, one way: transfers times lanes, less the line code.

    Args:
        generation: 3, 4 or 5.
        lanes: 1 to 16.

    Source:
        PCI-SIG: 8, 16 and 32 GT/s, 128 bits of data in 130.
    """
    if generation not in (3, 4, 5):
        raise ValueError(f"generation is {generation!r}: 3, 4 and 5 share this line code")
    return 8e9 * 2 ** (generation - 3) * lanes * 128 / 130 / 8


WIRES = (
    *(
        Wire(f"PCIe {generation}.0 x16", predict_pcie_bytes_per_s(generation), "GPU and CPU, or two GPUs", "PCI-SIG")
        for generation in (3, 4, 5)
    ),
    Wire("NVLink, V100 (6 links)", 150e9, "GPUs of one machine", "NVIDIA V100 data sheet: 300 GB/s both ways"),
    Wire("NVLink, A100 (12 links)", 300e9, "GPUs of one machine", "NVIDIA A100 data sheet: 600 GB/s both ways"),
    Wire("NVLink, H100 (18 links)", 450e9, "GPUs of one machine", "NVIDIA H100 data sheet: 900 GB/s both ways"),
    Wire("NVLink, B200 (18 links)", 900e9, "GPUs of one machine", "NVIDIA B200 data sheet: 1,800 GB/s both ways"),
    Wire("Ethernet 10 Gbit/s", 1.25e9, "machines", "IEEE 802.3"),
    Wire("InfiniBand EDR", 12.5e9, "machines", "IBTA: 100 Gbit/s"),
    Wire("InfiniBand HDR", 25e9, "machines", "IBTA: 200 Gbit/s"),
    Wire("InfiniBand NDR", 50e9, "machines", "IBTA: 400 Gbit/s"),
)


def table(message_bytes: float = 1e9) -> str:
    """Markdown: every wire, and how long a message of ``message_bytes`` takes on it."""
    lines = [
        f"| wire | GB/s, one way | {message_bytes / 1e9:g} GB takes | joins | published by |",
        "|---|---|---|---|---|",
    ]
    for wire in sorted(WIRES, key=lambda wire: wire.bytes_per_s):
        taken_ms = 1e3 * message_bytes / wire.bytes_per_s
        lines.append(
            f"| {wire.name} | {wire.bytes_per_s / 1e9:.3g} | {taken_ms:.3g} ms | {wire.joins} | {wire.source} |"
        )
    return "\n".join(lines)


def hop(name: str, gpu: str) -> costs.Link:
    """The link that NCCL counts on where a topology matrix says ``name``.

    Args:
        name: "NV#", "PIX", "PXB", "PHB", "NODE" or "SYS".
        gpu: One of `NVLINK_BYTES_PER_S`.

    Returns:
        Latency and bandwidth, of a machine whose PCIe is of generation 3.
    """
    if name.startswith("NV"):
        return costs.Link(HOP_LATENCY_S, int(name[2:]) * NVLINK_BYTES_PER_S[gpu])
    if name not in MEANINGS:
        raise ValueError(f"there is no link {name!r}: say NV# with a number, or one of {', '.join(MEANINGS)}")
    speed = BETWEEN_SOCKETS_BYTES_PER_S if name == "SYS" else PCIE_3_BYTES_PER_S
    return costs.Link(HOP_LATENCY_S, speed)
