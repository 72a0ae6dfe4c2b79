"""The labels and values of ``lscpu``, from its text or its JSON, whatever was wrapped, run together or cut."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from accelerando.readers.isa import ALWAYS_LAST, KNOWN_FLAGS, X86_NEVER_LAST
from accelerando.readers.text import Line, Pasted, Unreadable, other_kind

# Longest first, so that "CPU(s)" is not found inside "NUMA node0 CPU(s)".
_LABELS = (
    r"NUMA node\d+ CPU\(s\)", r"On-line CPU\(s\) (?:list|mask)", r"Off-line CPU\(s\) (?:list|mask)",
    r"Vulnerability [\w .,/-]+?", r"Thread\(s\) per core", r"Core\(s\) per (?:socket|cluster)",
    r"Socket\(s\) per book", r"Book\(s\) per drawer", r"CPU socket\(s\)", r"CPU op-mode\(s\)",
    r"CPU\(s\) scaling MHz", r"CPU (?:max |min |static |dynamic )?MHz", r"BIOS Vendor ID", r"BIOS Model name",
    r"BIOS CPU family", r"Hypervisor vendor", r"Virtualization type", r"Virtualization", r"Frequency boost",
    r"Address sizes", r"Architecture", r"Byte Order", r"NUMA node\(s\)", r"Vendor ID", r"Model name", r"CPU family",
    r"Machine type", r"Cluster\(s\)", r"Drawer\(s\)", r"Socket\(s\)", r"Book\(s\)", r"CPU\(s\)", r"Stepping",
    r"BogoMIPS", r"L\d[di]? cache", r"L\d[di]?", r"Hypervisor", r"Dispatching mode", r"Model", r"Flags", r"Features",
)  # fmt: skip
_FIELD = re.compile(rf"^\s*(?:[-*|•]\s*)?({'|'.join(_LABELS)})\s*[:：]\s*(.*)$")
_ANY_FIELD = re.compile(r"^\s*[A-Z][\w ().,/-]{0,60}:(?:\s|$)")
_RUN_TOGETHER = re.compile(rf"(?<![\w(])({'|'.join(_LABELS)}):")
_STRONG = re.compile(r"CPU\(s\)$|Thread|Core|Socket|Architecture|Vendor|Model name|NUMA|CPU op|Byte|cache|Flags|list")
_FLAGS_BY_CONTENT = re.compile(r"^\s*[^\s:：][^:：]{0,40}[:：]\s+((?:fpu vme de|fp asimd|half thumb)\b.*)$")
_LONGEST_FLAG = 24
_CPU_RANGE_ONLY = re.compile(r"^\s*[\d,\- ]+$")


@dataclass
class Fields:
    """Labels in the order they came, with the values; a label may come twice (two kinds of core)."""

    values: dict[str, list[str]] = field(default_factory=dict)
    flag_lines: list[list[str]] = field(default_factory=list)
    last: str | None = None
    warnings: list[str] = field(default_factory=list)
    is_cut: bool = False

    def add(self, label: str, value: str) -> None:
        """Keep one more value."""
        self.values.setdefault(label, []).append(value.strip())
        self.last = label

    def first(self, *labels: str) -> str | None:
        """The first value of the first of these labels that has one."""
        found = (self.values[label][0] for label in labels if label in self.values)
        return next((value for value in found if value), None)

    def number(self, *labels: str) -> int | None:
        """The same as a number; None where it is none."""
        value = self.first(*labels)
        return int(value) if value and re.fullmatch(r"\d{1,7}", value) else None


def read_json(pasted: Pasted) -> Fields:
    """Read ``lscpu --json``, damaged or not.

    Raises:
        Unreadable: If it is something else.
    """
    fields = Fields()
    text = pasted.text
    try:
        start = text.index("{")
        document, _ = json.JSONDecoder().raw_decode(text[start:])
        pairs = list(_walk(document.get("lscpu") if isinstance(document, dict) else document))
    except (ValueError, RecursionError):
        pairs = re.findall(r'"field"\s*:\s*"((?:[^"\\]|\\.)*)"\s*,\s*"data"\s*:\s*(?:"((?:[^"\\\n]|\\.)*)"|null)', text)
        fields.warnings.append("the JSON is damaged: only its whole entries were read")
    for label, value in pairs:
        label = label.strip().rstrip(":")
        if label in ("Flags", "Features"):
            fields.flag_lines.append(value.split())
        fields.add(label, value)
    if not any(_STRONG.search(label) for label in fields.values):
        raise other_kind("lscpu --json", text)
    return fields


def _walk(entries: Any, depth: int = 0) -> Iterable[tuple[str, str]]:
    if not isinstance(entries, list) or depth > 20:
        return
    for entry in entries:
        if isinstance(entry, dict) and isinstance(entry.get("field"), str):
            data = entry.get("data")
            yield entry["field"], "" if data is None else str(data)
            yield from _walk(entry.get("children"), depth + 1)


def read_text(pasted: Pasted) -> Fields:
    """Read the text of ``lscpu``, wrapped, run together or cut.

    Raises:
        Unreadable: If it is something else, or in another language.
    """
    fields = Fields()
    lines = _apart(pasted.lines)
    current: str | None = None
    filled = [line for line in lines if line.text.strip()]
    for line in filled:
        if "Architecture" in fields.values and re.match(r"^\s*Architecture\s*:", line.text):
            fields.warnings.append(f"a second dump starts at line {line.number}: only the first was read")
            break
        match = _FIELD.match(line.text)
        flags = _FLAGS_BY_CONTENT.match(line.text)
        if flags or (match and match.group(1) in ("Flags", "Features")):
            current = "Flags"
            if match is None:
                fields.warnings.append("labels in another language were not read: run it again as LC_ALL=C lscpu")
            fields.flag_lines.append((flags or match).group(1 if flags else 2).split())  # type: ignore[union-attr]
            fields.add("Flags", "")
        elif match:
            current = re.sub(r" cache$", "", match.group(1))
            fields.add(current, match.group(2))
        elif _ANY_FIELD.match(line.text):
            current = None
            fields.last = "other"
        elif current == "Flags" and re.fullmatch(r"[\s\w.:-]*", line.text) and not re.search(r"[.:](\s|$)", line.text):
            fields.flag_lines.append(line.text.split())
        elif current and _CPU_RANGE_ONLY.match(line.text) and ("list" in current or "NUMA node" in current):
            fields.values[current][-1] += line.text.strip()
        elif line.text.strip() in ("...", "…", "[...]", "<snip>"):
            fields.is_cut = fields.is_cut or current == "Flags"
    if sum(bool(_STRONG.search(label)) for label in fields.values) < 2:
        if re.search(r"\bCPU\(?s?\)?\s*[:：]\s*\d+", pasted.text) and fields.values:
            raise Unreadable("this may be lscpu in another language: run it again as LC_ALL=C lscpu", 1)
        raise other_kind("lscpu", pasted.text)
    _judge_the_end(fields, pasted)
    return fields


def _apart(lines: tuple[Line, ...]) -> list[Line]:
    """Undo lost line breaks: several labels on one line become several lines with the same number."""
    result = []
    for line in lines:
        found = list(_RUN_TOGETHER.finditer(line.text))
        if len(found) < 3:
            result.append(line)
            continue
        ends = [match.start() for match in found[1:]] + [len(line.text)]
        result += [Line(line.number, line.text[match.start() : end]) for match, end in zip(found, ends, strict=True)]
    return result


def _judge_the_end(fields: Fields, pasted: Pasted) -> None:
    """Decide what a missing end makes doubtful, so that a cut number or flag is not taken for a whole one."""
    last = fields.last
    if last == "Flags" and fields.flag_lines:
        words = fields.flag_lines[-1] or [""]
        is_new_style = not {"CPU MHz", "NUMA node(s)"} & set(fields.values)
        is_x86 = "fpu" in fields.flag_lines[0]
        if words[-1] in ALWAYS_LAST:
            return
        if not pasted.ends_with_newline or (is_x86 and words[-1] in X86_NEVER_LAST) or words[-1].endswith(("...", "…")):
            fields.is_cut = True
        elif is_new_style and (words[-1] not in KNOWN_FLAGS or not _ends_short(fields.flag_lines)):
            fields.is_cut = True  # the next line of a wrapped list may be missing
    elif last is not None and last != "other" and not pasted.ends_with_newline and pasted.lines[-1].text.strip():
        if last.startswith(("Vulnerability", "NUMA node", "Virtualization", "Hypervisor")) and last != "NUMA node(s)":
            return
        fields.values[last].pop()
        if not fields.values[last]:
            del fields.values[last]
        fields.warnings.append(f"the last line ({last}) has no line end and may be cut: not used")


def _ends_short(flag_lines: list[list[str]]) -> bool:
    """True when no line is wrapped, or the last has room left: the wrapped list goes no further."""
    widths = [len(" ".join(words)) for words in flag_lines]
    return len(widths) == 1 or widths[-1] + _LONGEST_FLAG < max(widths)
