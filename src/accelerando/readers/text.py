"""Text that people paste: decoded, cleaned, with its line numbers kept.

Dumps of other machines arrive from terminals, issue trackers, mails and Windows editors. This module undoes what
those do to text, and nothing else: colours, byte-order marks, UTF-16, quote marks, line numbers, launcher prefixes.
What it repaired it says in `Pasted.warnings`; what it cannot read it refuses with `Unreadable`.
"""

from __future__ import annotations

import html
import re
from dataclasses import dataclass
from pathlib import Path

from accelerando.readers import prefixes

MAX_BYTES = 64 * 2**20
MAX_CPU_ID = 65_536
_BLANK_LINES = 3

_ESCAPE = r"(?:\x1b|␛|\\u001b|\\x1b|\\033|\\e|\^\[)"
_ANSI = re.compile(
    rf"{_ESCAPE}\[[0-9;?]*[ -/]*[@-~]|{_ESCAPE}\][^\x07\x1b\n]*(?:\x07|\x1b\\)|\x1b[()][A-Z0-9]|\x1b[=>]"
)
_ANSI_WITHOUT_ESCAPE = re.compile(r"\[(?:\d{1,3}(?:;\d{1,3})*)?m(?![\w\]])|\[(?:0|1|4|22|24)m")
_INVISIBLE = dict.fromkeys([0x200B, 0x200C, 0x200D, 0x2060, 0xFEFF, 0x00AD])
_SPACES = {0x00A0: " ", 0x2007: " ", 0x202F: " ", 0x3000: " "}


class Unreadable(ValueError):
    """A file that cannot be read as what it was said to be.

    Attributes:
        line: Where it stops making sense, counted from 1; None when no line is to blame.
    """

    def __init__(self, message: str, line: int | None = None) -> None:
        """Keep the sentence for the reader and the line it is about."""
        super().__init__(message)
        self.line = line


@dataclass(frozen=True)
class Line:
    """One line: its number in the file (from 1) and its cleaned text."""

    number: int
    text: str


@dataclass(frozen=True)
class Pasted:
    """A cleaned file.

    Attributes:
        lines: All lines in order, of many blank ones in a row the first.
        inner: The lines of the fenced block, where a text has just one; else all.
        warnings: What was repaired on the way.
        ends_with_newline: False when the last line may be cut.
    """

    lines: tuple[Line, ...]
    inner: tuple[Line, ...]
    warnings: tuple[str, ...]
    ends_with_newline: bool

    @property
    def text(self) -> str:
        """All lines, joined again."""
        return "\n".join(line.text for line in self.lines)


def load(path: Path | str) -> str:
    """Read a file as text, whatever wrote it.

    Args:
        path: File to read; at most 64 MiB.

    Returns:
        Its text with Unix line ends, without a byte-order mark.

    Raises:
        Unreadable: If it is missing, empty, too large or not text.
    """
    path = Path(path)
    try:
        if not path.is_file():
            raise Unreadable(f"{path}: not a file" if path.exists() else f"{path}: no such file")
        if path.stat().st_size > MAX_BYTES:
            raise Unreadable(f"{path.name} is larger than {MAX_BYTES >> 20} MiB: keep the part that matters")
        data = path.read_bytes()
    except OSError as error:
        raise Unreadable(f"{path}: cannot be opened ({error.strerror})") from error
    return decode(data, path.name)


def decode(data: bytes, name: str = "the file") -> str:
    """Turn bytes into text: UTF-8, UTF-16 or UTF-32 with or without mark, else Latin-1.

    Raises:
        Unreadable: If the bytes are empty or no text.
    """
    if not data.strip(b" \t\r\n\0"):
        raise Unreadable(f"{name} is empty")
    if data.startswith((b"\x1f\x8b", b"PK\x03\x04", b"\xfd7zXZ", b"BZh", b"\x28\xb5\x2f\xfd")):
        raise Unreadable(f"{name} is compressed: unpack it first")
    text = _decode_by_mark(data)
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    sample = text[:100_000]
    odd = sum(1 for character in sample if ord(character) < 32 and character not in "\n\t\x1b\x08\x0c\x07")
    if "\0" in sample or odd > len(sample) / 50:
        raise Unreadable(f"{name} is binary, not text")
    if not text.strip():
        raise Unreadable(f"{name} is empty")
    return text


def _decode_by_mark(data: bytes) -> str:
    if data.startswith((b"\xff\xfe\0\0", b"\0\0\xfe\xff")):
        return data.decode("utf-32", errors="replace")
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", errors="replace")
    head = data[:2000]
    if len(head) >= 4 and head.count(0) > len(head) / 3:  # ASCII in two bytes each: PowerShell's habit, mark lost
        even, odd = head[0::2].count(0), head[1::2].count(0)
        if min(even, odd) <= max(even, odd) / 20:
            return data.decode("utf-16-le" if odd > even else "utf-16-be", errors="replace")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def clean(text: str, *, markup: bool = True) -> Pasted:
    """Undo colours, quotes, prefixes and line numbers; keep the numbering of lines.

    Args:
        text: What was pasted.
        markup: False leaves ``<…>`` and ``&…;`` alone (XML).
    """
    warnings: list[str] = []
    ends_with_newline = text.endswith("\n")
    plain = _ANSI_WITHOUT_ESCAPE.sub("", _ANSI.sub("", text))
    plain = re.sub(r".\x08", "", plain)  # overstrike: how old pagers underline
    if plain != text:
        warnings.append("colour or underline codes removed")
    if (written := prefixes.unescaped(plain)) != plain:
        warnings.append("quoted or escaped text written out")
        plain = written
    plain = plain.translate(_INVISIBLE).translate(_SPACES).replace("\x0c", "").replace("\x07", "")
    if markup:
        tagless = re.sub(r"</?(?:p|br|pre|code|span|div|details|summary|li|ul|td|tr)\b[^>\n]*>", "", plain, flags=re.I)
        if tagless != plain or "&lt;" in plain or "&gt;" in plain or "&nbsp;" in plain:
            warnings.append("HTML mark-up removed")
            plain = html.unescape(tagless).replace("\xa0", " ")
    lines = [line.rstrip() for line in plain.split("\n")]
    fences = [place for place, line in enumerate(lines) if re.fullmatch(r"[\s>]*(```|~~~).*", line)]
    for place in fences:
        lines[place] = ""
    lines = prefixes.removed(lines, warnings)
    numbered_lines = tuple(
        Line(number, line)
        for number, line in enumerate(lines, start=1)
        if line or not markup or any(lines[max(0, number - 1 - _BLANK_LINES) : number])
    )
    inner = numbered_lines
    if len(fences) == 2:
        inner = tuple(line for line in numbered_lines if fences[0] < line.number <= fences[1])
    return Pasted(numbered_lines, inner, tuple(warnings), ends_with_newline or not lines[-1].strip())


_LOOKS_LIKE = (
    ("an nbformat notebook", re.compile(r'"nbformat"\s*:')),
    ("topo-xml (NCCL topology XML)", re.compile(r"<system\b|<graphs\b|<cpu\s+[^>]*numaid")),
    ("nccl-log (NCCL_DEBUG output)", re.compile(r"\bNCCL (?:INFO|WARN|version)|\bRCCL version")),
    ("topo (nvidia-smi topo -m)", re.compile(r"GPU0\s+X\b|two GPUs =|Link Type between", re.I)),
    (
        "lscpu",
        re.compile(r"Thread\(s\) per core|On-line CPU|\"lscpu\"|^CPU\(s\):|^vendor_id\s*:|CPU implementer", re.M),
    ),
    ("hosts (Slurm, LSF or an MPI host file)", re.compile(r"\bSLURM_\w+=|\bslots\s*=|\bLSB_\w+=|\bJobId=")),
)


def looks_like(text: str) -> str | None:
    """Say which kind of dump a text seems to be; None if none of those the course reads."""
    return next((kind for kind, pattern in _LOOKS_LIKE if pattern.search(text)), None)


def other_kind(expected: str, text: str) -> Unreadable:
    """Make the refusal for text that is not what it was said to be."""
    seems = looks_like(text)
    hint = f"; it looks like {seems}" if seems and not seems.startswith(expected.split(" ")[0] + " ") else ""
    return Unreadable(f"this is not {expected}{hint}", _first_filled_line(text))


def _first_filled_line(text: str) -> int:
    return next((number for number, line in enumerate(text.split("\n"), start=1) if line.strip()), 1)


def cpu_list(text: str) -> list[int] | None:
    """Read a kernel CPU list such as ``0-3,8,10-11``.

    Returns:
        The ids in ascending order, [] for an empty text, None when the text is no CPU list or absurdly long.
    """
    cpus: set[int] = set()
    for part in filter(None, re.split(r"[,\s]+", text.strip())):
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?(?::(\d{1,4})(?:/(\d{1,4}))?)?", part)
        if not match:
            return None
        first, last = int(match.group(1)), int(match.group(2) or match.group(1))
        if last < first or last > MAX_CPU_ID:
            return None
        cpus.update(range(first, last + 1))
    return sorted(cpus)
