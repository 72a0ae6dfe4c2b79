"""What damage to pasted text does: nothing, a warning, or a refusal, but never a wrong answer."""

import json
from pathlib import Path
from typing import Any

import pytest
from cases import HARMLESS_DAMAGE, everything
from hypothesis import given, settings
from hypothesis import strategies as st

from accelerando import readers
from accelerando.readers.text import Unreadable, cpu_list, decode

CASES = list(everything())
NAMES = [name for _, name, _ in CASES]


def parse(kind: str, text: str) -> dict[str, Any]:
    return __import__(f"accelerando.readers.{readers.KINDS[kind]}", fromlist=["parse"]).parse(text)


def facts(answer: dict[str, Any]) -> dict[str, Any]:
    """Everything that does not depend on where a line stands or what was repaired."""
    return {key: value for key, value in answer.items() if key not in ("warnings", "line", "harmless", "rule")}


@pytest.mark.parametrize("damage", HARMLESS_DAMAGE)
@pytest.mark.parametrize(("kind", "name", "text"), CASES, ids=NAMES)
def test_harmless_damage_changes_no_answer(kind: str, name: str, text: str, damage: str) -> None:
    data = HARMLESS_DAMAGE[damage](text).encode()
    assert facts(parse(kind, decode(data))) == facts(parse(kind, text))


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
@pytest.mark.parametrize(("kind", "name", "text"), CASES, ids=NAMES)
def test_every_encoding_gives_the_same_answer(kind: str, name: str, text: str, encoding: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(text.replace("\n", "\r\n").encode(encoding))
    assert facts(readers.read(kind, path)) == facts(parse(kind, text))


def is_invented(part: Any, whole: Any) -> bool:
    """True if a cut text says something that the whole one does not."""
    if part is None or part == whole:
        return False
    if isinstance(part, dict) and isinstance(whole, dict):
        return any(key not in whole or is_invented(value, whole[key]) for key, value in part.items())
    if isinstance(part, list) and isinstance(whole, list):
        return any(item not in whole for item in part)
    return True


# What a cut may change without inventing anything: fewer elements of a list are seen, a verdict is open or later.
MAY_SHRINK = {
    "nccl-log": {"verdict", "root_cause", "nranks"},
    "hosts": {"slots", "world_size"},
    "topo": {"gpus", "nearest_nics"},
}
# A list of hosts, one a line, is whole after every line: no reader can know that more should follow.
OPEN_ENDED = {"hosts_openmpi.txt", "cl_06_openmpi_hostfile_missing_slots.txt", "cpuinfo_arm.txt"}


@pytest.mark.parametrize(("kind", "name", "text"), CASES, ids=NAMES)
def test_text_cut_after_any_line_is_refused_or_says_less(kind: str, name: str, text: str) -> None:
    whole = facts(parse(kind, text))
    lines = text.split("\n")
    for length in range(1, len(lines)):
        try:
            part = facts(parse(kind, "\n".join(lines[:length]) + "\n"))
        except Unreadable:
            continue
        if name in OPEN_ENDED:
            continue
        for key, value in part.items():
            if key not in MAY_SHRINK.get(kind, set()):
                assert not is_invented(value, whole[key]), f"cut after line {length}: {key} = {value}"


@pytest.mark.parametrize(("kind", "name", "text"), CASES, ids=NAMES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_damage_ends_in_an_answer_or_a_refusal(kind: str, name: str, text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    new = data.draw(
        st.one_of(st.just(""), st.text(max_size=8), st.sampled_from(["\n", "\t", "NV1", "[", "GPU0", "0-99999999"]))
    )
    damaged = text[:start] + new + text[end if data.draw(st.booleans()) else start :]
    for other in {kind, data.draw(st.sampled_from(sorted(readers.KINDS)))}:
        try:
            answer = parse(other, damaged)
        except Unreadable:
            continue
        assert set(answer) == set(parse(kind, text)) or other != kind
        json.dumps(answer)


@pytest.mark.parametrize(("kind", "name", "text"), CASES, ids=NAMES)
def test_a_file_of_another_kind_is_refused(kind: str, name: str, text: str) -> None:
    for other in set(readers.KINDS) - {kind}:
        with pytest.raises(Unreadable):
            parse(other, text)


@given(st.binary(max_size=300))
@settings(max_examples=100, deadline=None)
def test_any_bytes_end_in_text_or_a_refusal(data: bytes) -> None:
    try:
        text = decode(data)
    except Unreadable:
        return
    for kind in readers.KINDS:
        try:
            parse(kind, text)
        except Unreadable:
            continue


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty"),
        (b" \r\n\t\n", "empty"),
        (b"\xff\xfe", "empty"),
        (b"\x1f\x8b\x08\x00abc", "compressed"),
        (bytes(range(256)) * 4, "binary"),
        (b"\x7fELF\x02\x01\x01" + b"\0" * 60, "binary"),
    ],
)
def test_empty_and_binary_files_are_refused(data: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "dump"
    path.write_bytes(data)
    for kind in readers.KINDS:
        with pytest.raises(Unreadable, match=message):
            readers.read(kind, path)


def test_missing_file_folder_and_unknown_kind_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match="no such file"):
        readers.read("lscpu", tmp_path / "none")
    with pytest.raises(Unreadable, match="not a file"):
        readers.read("lscpu", tmp_path)
    with pytest.raises(ValueError, match="choose one of lscpu"):
        readers.read("dmesg", tmp_path)


@given(st.sets(st.integers(0, 300)))
def test_cpu_list_reads_what_the_kernel_writes(cpus: set[int]) -> None:
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    text = ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
    assert cpu_list(text) == sorted(cpus)


@pytest.mark.parametrize("text", ["a", "3-1", "0-999999999", "1--2", "0x3"])
def test_other_text_is_no_cpu_list(text: str) -> None:
    assert cpu_list(text) is None
