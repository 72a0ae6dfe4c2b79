"""The matrix of ``nvidia-smi topo -m`` as text: header, rows and columns, whatever was wrapped, cut or pasted twice."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from accelerando.readers.text import Line, Pasted, Unreadable, other_kind

MAX_GPUS = 128
_LINK = re.compile(r"NV\d{1,2}|X|SYS|NODE|PHB|PXB|PIX|SOC|PSB")
_ANY_LINK = re.compile(rf"(?:{_LINK.pattern}|OK|NS|GNS|CNS|TNS|DR|N/A)")
_PLACES = {"PIX": 5.0, "PXB": 4.0, "PSB": 4.0, "PHB": 3.0, "NODE": 2.0, "SYS": 1.0, "SOC": 1.0}
_TITLES = re.compile(r"\b(CPU\s+Affinity|NUMA\s+Affinity|GPU\s+NUMA\s+ID|NUMA\s+node)\b", re.I)
_ROW = re.compile(rf"^\s*([A-Za-z][\w./-]*)\s+((?:{_LINK.pattern})(?:\s|$).*|\s*X\s.*)$")
_DEVICE = re.compile(r"[A-Za-z][\w./-]*\d[\w./-]*")
_LEGEND = re.compile(r"^\s*(NIC\d+)\s*:\s*(\S+)\s*$")
_END = re.compile(r"^\s*(?:Legend|NIC Legend)\b|^\s*(?:X|SYS|NODE|PHB|PXB|PIX|NV#)\s+=")


def link_speed(name: str) -> float:
    """Rank a link's name: more NVLinks before fewer, then the shorter way through PCIe."""
    return 100.0 + int(name[2:]) if name.startswith("NV") else _PLACES[name]


@dataclass
class Matrix:
    """Devices and their rows as they stand in the text: links first, the columns after them in ``tails``."""

    devices: list[str]
    titles: list[str]
    rows: dict[str, list[str]] = field(default_factory=dict)
    tails: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    nic_names: dict[str, str] = field(default_factory=dict)

    @property
    def gpus(self) -> list[str]:
        """The GPUs among the devices."""
        return [device for device in self.devices if re.fullmatch(r"GPU\d+", device)]

    def link(self, first: str, second: str) -> str | None:
        """Return the link of two devices, from whichever row says it; the slower one if the rows differ."""
        said = []
        for one, other in ((first, second), (second, first)):
            row = self.rows.get(one)
            place = self.devices.index(other)
            if row and place < len(row) and row[place] != "X":
                said.append(row[place])
        if len(set(said)) > 1:
            self.warnings.append(
                f"{first} and {second}: one row says {said[0]}, the other {said[1]}; the slower one counts"
            )
        return min(said, key=link_speed, default=None)


def read_matrix(pasted: Pasted) -> Matrix:
    """Find the matrix in a text and read it, wrapped or cut as it may be.

    Raises:
        Unreadable: If there is none, or one that contradicts itself.
    """
    start = next((i for i, line in enumerate(pasted.lines) if _is_header(line.text)), None)
    if start is None:
        row = next(
            (line for line in pasted.lines if re.match(r"^\s*GPU\d+\s", line.text) and _ROW.match(line.text)), None
        )
        if row:
            raise Unreadable("the header line with GPU0, GPU1… above the matrix is missing", row.number)
        raise other_kind("topo (nvidia-smi topo -m)", pasted.text)
    header, first_row = _gather_header(pasted.lines, start)
    matrix = Matrix(*_read_header(header, pasted.lines[start].number))
    current: str | None = None
    for line in pasted.lines[first_row:]:
        legend = _LEGEND.match(line.text)
        if legend:
            matrix.nic_names[legend.group(1)] = legend.group(2)
            current = None
        elif _END.match(line.text):
            current = None
        elif _is_header(line.text) and matrix.tails:
            matrix.warnings.append(f"a second matrix starts at line {line.number}: only the first was read")
            break
        elif (label := _row_label(line.text, matrix)) is not None:
            if label in matrix.tails:
                matrix.warnings.append(f"{label} has two rows: the second, in line {line.number}, was not read")
                current = None
                continue
            current = label
            matrix.tails[label] = line.text.strip()[len(label) :]
        elif re.match(r"^\s*GPU\d+\s+(?:X|NV\d+|SYS|NODE|PHB|PXB|PIX)\s", line.text):
            raise Unreadable(f"a row for {line.text.split()[0]}, which the header does not name", line.number)
        elif current is not None and line.text.strip():
            if not re.fullmatch(r"[\sXA-Z0-9,/-]+", line.text):
                current = None
                continue
            matrix.tails[current] = _join(matrix.tails[current], line.text)
            matrix.warnings.append("wrapped rows joined again")
    if not any(gpu in matrix.tails for gpu in matrix.gpus):
        raise Unreadable("the matrix has a header, but no rows", pasted.lines[start].number)
    _split_rows(matrix, pasted)
    return matrix


def _is_header(text: str) -> bool:
    tokens = _TITLES.sub(" ", text).split()
    if not tokens or not re.fullmatch(r"GPU\d+", tokens[0]):
        return bool(re.match(r"^\s*(?:GPU\d+){2,}", text))
    # All but the last, which a terminal may have broken, end in a number as devices do: a sentence about GPU0 does not.
    rest = [token for token in tokens[1:-1] if token not in ("CPU", "NUMA", "GPU", "Affinity", "ID")]
    is_list = len(tokens) == 1 or not _ANY_LINK.fullmatch(tokens[1])
    return is_list and all(_DEVICE.fullmatch(token) for token in rest) and bool(re.fullmatch(r"[\w./-]+", tokens[-1]))


def _gather_header(lines: tuple[Line, ...], start: int) -> tuple[str, int]:
    """Return the header, wrapped or not, and the index of the line after it."""
    header, place = lines[start].text, start + 1
    rows = (_ROW.match(line.text) for line in lines[place:])
    labels = {row.group(1) for row in rows if row}
    while place < len(lines):
        text = lines[place].text
        if not text.strip() or re.match(r"^\s*GPU\d+\s+(?:X|NV\d|SYS|NODE|PHB|PXB|PIX|SOC|OK|N/A)", text):
            break
        if not re.fullmatch(r"[\s\w./-]+", text):
            break
        header = _join_header(header, text, labels)
        place += 1
    return header, place


def _join_header(header: str, more: str, labels: set[str]) -> str:
    """Join a wrapped header; the rows' own labels tell where the break is inside a name."""
    left, right = header.split()[-1], more.split()[0]
    words = labels | {"CPU", "NUMA", "GPU", "Affinity", "ID"}
    is_inside = right not in words and left + right in words
    return header + more.lstrip() if is_inside else f"{header} {more}"


def _read_header(header: str, line: int) -> tuple[list[str], list[str]]:
    if re.search(r"GPU\d+[A-Z]", header):
        raise Unreadable("the columns run into one another: the tabs between them are lost", line)
    title = _TITLES.search(header)
    devices = (header[: title.start()] if title else header).split()
    titles = [" ".join(found.split()).lower() for found in _TITLES.findall(header)]
    gpus = [device for device in devices if re.fullmatch(r"GPU\d+", device)]
    if not gpus or gpus != [f"GPU{number}" for number in range(len(gpus))]:
        raise Unreadable(
            f"the header names the GPUs {', '.join(gpus) or '(none)'}: expected GPU0, GPU1… in order", line
        )
    if len(gpus) > MAX_GPUS:
        raise Unreadable(f"{len(gpus)} GPUs in one machine: at most {MAX_GPUS} are believed", line)
    if len(set(devices)) < len(devices):
        raise Unreadable("the header names a device twice", line)
    return devices, titles


def _row_label(text: str, matrix: Matrix) -> str | None:
    """Return which device's row a line starts; None if it starts none."""
    tokens = text.split()
    if len(tokens) >= 2 and tokens[0] in matrix.devices and _ANY_LINK.fullmatch(tokens[1]):
        return tokens[0]
    return None


def _join(row: str, more: str) -> str:
    """Join a wrapped row; where the break is inside a word, close it."""
    left, right = row.split()[-1:] or [""], more.split()[:1] or [""]
    is_inside = not _ANY_LINK.fullmatch(right[0]) and _LINK.fullmatch(left[0] + right[0]) is not None
    is_inside = is_inside or left[0].endswith(("-", ",")) or right[0].startswith(("-", ","))
    return row.rstrip() + more.lstrip() if is_inside else f"{row} {more}"


def _split_rows(matrix: Matrix, pasted: Pasted) -> None:
    """Cut each row into its links and its tail; refuse links of another kind of matrix."""
    width = len(matrix.devices)
    numbers = {line.text.split()[0]: line.number for line in reversed(pasted.lines) if line.text.split()}
    for label, row in matrix.tails.items():
        pieces = re.findall(r"\S+", row)
        links: list[str] = []
        for piece in pieces[:width]:
            if not _LINK.fullmatch(piece):
                break
            links.append(piece)
        is_cut = not pasted.ends_with_newline and numbers[label] == pasted.lines[-1].number
        if is_cut and links and len(links) == len(pieces) and links[-1] != "X":
            pieces.pop()
            links.pop()  # NV18 cut to NV1
        strange = pieces[len(links)] if len(links) < min(width, len(pieces)) else None
        if strange and re.fullmatch(r"OK|NS|GNS|CNS|TNS|DR", strange):
            raise Unreadable(
                f"{label} has {strange!r}: this is nvidia-smi topo -p2p; make the matrix with topo -m", numbers[label]
            )
        if strange and len(links) == 0:
            raise Unreadable(f"{label} has {strange!r}, which is no link", numbers[label])
        own = matrix.devices.index(label)
        if (own < len(links) and links[own] != "X") or "X" in links[:own] or "X" in links[own + 1 :]:
            raise Unreadable(f"the row of {label} does not fit the header: its X is in another column", numbers[label])
        if len(links) < width:
            matrix.warnings.append(f"the row of {label} has {len(links)} of {width} links: it is cut")
        matrix.rows[label] = links
        skipped = re.match(rf"(?:\s*\S+){{{len(links)}}}[ ]*\t?", row) if len(links) == width else None
        matrix.tails[label] = row[skipped.end() :] if skipped else ""
