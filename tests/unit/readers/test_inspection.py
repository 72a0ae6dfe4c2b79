"""``./course inspect``: exit codes, JSON, and words for people."""

import io
import json
import sys
from pathlib import Path

import pytest
from cases import FIXTURES, fixture

from accelerando.readers import hosts, inspect_command, inspection, lscpu, topo


def test_json_is_the_readers_answer_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert inspect_command("lscpu", FIXTURES / "lscpu_old_offline.txt", True) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == lscpu.parse(fixture("lscpu_old_offline.txt"))
    assert printed.err == ""


def test_refusal_is_json_too_and_exits_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert inspect_command("topo", FIXTURES / "lscpu_old_offline.txt", True) == 1
    refusal = json.loads(capsys.readouterr().out)
    assert set(refusal) == {"error", "line"}
    assert "looks like lscpu" in refusal["error"]


def test_unknown_kind_exits_2_and_missing_file_1(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert inspect_command("dmesg", FIXTURES / "topo_hgx.txt", True) == 2
    assert "choose one of" in capsys.readouterr().err
    assert inspect_command("topo", tmp_path / "none", False) == 1
    assert "no such file" in capsys.readouterr().err


def test_standard_input_is_read(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.TextIOWrapper(io.BytesIO(b"n[1-2]\n"))
    monkeypatch.setattr(sys, "stdin", stream)
    assert inspect_command("hosts", Path("-"), True) == 0
    assert json.loads(capsys.readouterr().out)["hosts"] == ["n1", "n2"]


def test_people_read_unknown_where_the_dump_does_not_say() -> None:
    text = inspection.describe(lscpu.parse(fixture("cpuinfo_arm.txt")))
    assert "caches             unknown" in text
    assert "fp16               yes" in text
    text = inspection.describe(lscpu.parse(fixture("lscpu_new_two_sockets.txt")))
    assert "1: 16-31,48-63" in text


def test_the_order_of_a_ring_is_not_written_as_a_range() -> None:
    assert "order: 0 -> 1 -> 2 -> 3" in inspection.describe(topo.parse(fixture("topo_hgx.txt")))


def test_prompts_of_a_shell_are_passed_over() -> None:
    assert hosts.parse("$ scontrol show hostnames\nd05-41\nd05-42\n")["hosts"] == ["d05-41", "d05-42"]
    assert hosts.parse("[ann@login2 ~]$ echo $SLURM_NODELIST\nd05-[41-42]\n")["hosts"] == ["d05-41", "d05-42"]
