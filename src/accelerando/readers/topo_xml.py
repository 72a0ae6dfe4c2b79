"""Reader of the topology XML that NCCL and RCCL read (``NCCL_TOPO_FILE``) and write (``NCCL_TOPO_DUMP_FILE``)."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import Any
from xml.etree.ElementTree import Element, ParseError

from accelerando.readers.text import Unreadable, clean, other_kind

MAX_CHARACTERS = 8 * 2**20
MAX_DEPTH = 64
_BROKEN_VALUE = re.compile(r'="[^"<>\n]{0,200}\n[^"<>]{0,200}"')
_GPU_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")
_NIC_CLASS, _SWITCH_CLASS = "0x02", "0x0604"
_NVSWITCH_CLASS = "0x068000"  # 0x068001 is a CPU that has NVLinks itself (POWER9)


def parse(text: str) -> dict[str, Any]:
    """Read a topology file.

    Args:
        text: The XML, with comments, prose or markdown fences around it if need be.

    Returns:
        The keys of the contract's ``topo-xml`` line. ``nvlinks`` is None where no GPU is described in so much detail
        that links could stand there (the files that clouds ship), [] where they could and do not.

    Raises:
        Unreadable: If it is no topology, is cut off, or declares entities.
    """
    pasted = clean(text, markup=False)
    warnings = list(pasted.warnings)
    root = _read_root(pasted.text, warnings)
    elements = list(_walk(root))
    cpus = [
        (element.get("host_hash", ""), element.get("numaid", "")) for element, _ in elements if element.tag == "cpu"
    ]
    gpus = [(element, parents) for element, parents in elements if _is_gpu(element)]
    if not cpus and not gpus:
        raise Unreadable("a <system> without CPUs and GPUs: no topology", 1)
    numbers = [numaid for _, numaid in cpus if re.fullmatch(r"\d+", numaid)]
    if len(set(cpus)) < len(cpus):
        warnings.append("a NUMA node is listed twice: it is counted once")
    return {
        "numa_nodes": len({cpu for cpu in cpus if cpu[1] in numbers}) or None,
        "gpus": len(gpus),
        "nics": _count_nics(elements),
        "pci_switches": sum(_is_switch(element) for element, _ in elements),
        "nvlinks": _nvlinks(gpus, warnings),
        "warnings": warnings,
    }


def _read_root(text: str, warnings: list[str]) -> Element:
    from defusedxml.common import DefusedXmlException
    from defusedxml.ElementTree import fromstring

    if len(text) > MAX_CHARACTERS:
        raise Unreadable(f"a topology of more than {MAX_CHARACTERS >> 20} MiB is not believed")
    if "<system" not in text and "&lt;system" in text:
        text = html.unescape(text)
        warnings.append("HTML mark-up removed")
    if re.search("[“”„]", text):
        text = re.sub("[“”„]", '"', text)
        warnings.append("typographic quotes replaced by plain ones")
    start = text.find("<system")
    if start < 0:
        if "<graphs" in text:
            raise Unreadable(
                "this is NCCL's graph file (rings and trees), not its topology", _line(text, text.find("<graphs"))
            )
        raise other_kind("topo-xml (NCCL topology XML)", text)
    first = 0
    if not re.match(r"\s*<", text):
        first = start
        warnings.append("text around the XML was passed over")
    end = text.find("</system>", start)
    second = text.find("<system", end)
    if end > 0 and second > 0:
        warnings.append(f"a second topology starts at line {_line(text, second)}: only the first was read")
    document = text[first : end + len("</system>")] if end > start else text[first:]
    offset = text.count("\n", 0, first) + document.count("\n", 0, len(document) - len(document.lstrip()))
    document = re.sub(r"<\?xml\b[^>\n]*\?>", "", document.lstrip())  # a comment may stand above it, which XML forbids
    original = document
    whole = _BROKEN_VALUE.sub(lambda value: value.group(0).replace("\n", ""), document)
    if whole != document:  # XML would take the line's end for a space in the value
        document = whole
        warnings.append("wrapped lines joined again")
    try:
        root: Element = fromstring(document, forbid_dtd=True)
    except DefusedXmlException as error:
        raise Unreadable("it declares a document type or entities: refused, a topology needs neither", 1) from error
    except ParseError as error:
        whole = _unwrapped(document)
        try:
            root = fromstring(whole, forbid_dtd=True)
        except (DefusedXmlException, ParseError, ValueError, RecursionError):
            raise _damaged(_error_in(original) or error, text, offset) from error
        warnings[:] = dict.fromkeys([*warnings, "wrapped lines joined again"])
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"no XML that can be read: {error}", 1) from error
    if root.tag != "system":
        raise Unreadable(f"its outermost element is <{root.tag}>: expected <system>", _line(text, start))
    return root


def _error_in(document: str) -> ParseError | None:
    """Find where the text stops making sense as it stands, with its own line numbers."""
    from defusedxml.ElementTree import fromstring

    try:
        fromstring(document, forbid_dtd=True)
    except ParseError as error:
        return error
    return None


def _unwrapped(document: str) -> str:
    """Join lines that start with no element to the one before; the space that stood at the break may be lost."""
    return re.sub(r"\n(?=\s*[^\s<])", "", re.sub(r'(?<=")\n(?=[a-z_]+=)', " ", document))


def _damaged(error: ParseError, text: str, offset: int) -> Unreadable:
    line = error.position[0] + offset
    what = "the end is cut off" if "no element found" in str(error) or "</system>" not in text else "it is damaged"
    return Unreadable(f"no whole XML: {what} ({error})", line)


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def _walk(root: Element) -> Iterator[tuple[Element, tuple[Element, ...]]]:
    """Yield every element with its ancestors, in document order, without recursion."""
    stack: list[tuple[Element, tuple[Element, ...]]] = [(root, ())]
    while stack:
        element, parents = stack.pop()
        if len(parents) > MAX_DEPTH:
            raise Unreadable(f"elements stand {MAX_DEPTH} deep in one another: no machine is built so")
        yield element, parents
        stack.extend((child, (*parents, element)) for child in reversed(element))


def _is_switch(element: Element) -> bool:
    return element.tag == "pci" and element.get("class", "").startswith(_SWITCH_CLASS)


def _is_gpu(element: Element) -> bool:
    """A PCI device of a display or accelerator class, or one that has a ``gpu`` element."""
    if element.tag != "pci" or _is_switch(element):
        return False
    return element.get("class", "").startswith(_GPU_CLASSES) or element.find("gpu") is not None


def _count_nics(elements: list[tuple[Element, tuple[Element, ...]]]) -> int:
    """Count network cards: PCI devices, and ``nic`` elements that belong to no PCI device (virtual ones)."""
    count = 0
    for element, parents in elements:
        if element.tag == "pci":
            count += element.get("class", "").startswith(_NIC_CLASS)
        elif element.tag == "nic":
            owner = parents[-1] if parents else None
            count += owner is None or owner.tag != "pci" or not owner.get("class", "").startswith(_NIC_CLASS)
    return count


def _nvlinks(gpus: list[tuple[Element, tuple[Element, ...]]], warnings: list[str]) -> list[list[int]] | None:
    """Return [GPU, GPU, number of links] of each linked pair; through NVSwitches every pair of GPUs is linked."""
    described = [(pci, pci.find("gpu")) for pci, _ in gpus]
    if not any(gpu is not None for _, gpu in described):
        return None
    ids: dict[str, int] = {}
    for place, (pci, gpu) in enumerate(described):
        dev = gpu.get("dev", "") if gpu is not None else ""
        ids[_bus(pci.get("busid", ""))] = int(dev) if re.fullmatch(r"\d{1,4}", dev) else place
    if len(set(ids.values())) < len(ids):
        warnings.append("GPU numbers stand there twice (several hosts?): GPUs are numbered in the order of the file")
        ids = {bus: place for place, bus in enumerate(ids)}
    direct: dict[tuple[int, int], int] = {}
    switched: dict[int, int] = {}
    for pci, gpu in described:
        here = ids[_bus(pci.get("busid", ""))]
        for link in [] if gpu is None else [*gpu.iter("nvlink"), *gpu.iter("xgmi")]:
            text, target = link.get("count", "1"), ids.get(_bus(link.get("target", "")))
            links = int(text) if re.fullmatch(r"\d{1,4}", text) else 0
            if target is not None and target != here:
                pair = (min(here, target), max(here, target))
                direct[pair] = max(direct.get(pair, 0), links)
            elif link.get("tclass", "").startswith(_NVSWITCH_CLASS):
                switched[here] = switched.get(here, 0) + links
    if switched:
        warnings.append("GPUs are linked through NVSwitches: a pair has as many links as each of the two has")
    for first in switched:
        for second in switched:
            if first < second:
                direct[first, second] = min(switched[first], switched[second])
    return [[first, second, links] for (first, second), links in sorted(direct.items())]


def _bus(text: str) -> str:
    """Write a PCI address one way: lower case, with four digits of domain."""
    parts = text.strip().lower().split(":")
    return ":".join([parts[0][-4:].zfill(4), *parts[1:]]) if len(parts) == 3 else text.strip().lower()
