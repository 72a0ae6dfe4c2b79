"""How the diagnosis is shown: to a person, and as JSON."""

import dataclasses
import json

import pytest

from accelerando import diagnosis, doctor, machine
from accelerando.noise import MachineState


@pytest.fixture(scope="module")
def found() -> diagnosis.Diagnosis:
    return diagnosis.diagnose()


def test_json_holds_the_whole_diagnosis_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.doctor_command(as_json=True) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == diagnosis.SCHEMA
    assert set(told) == {field.name for field in dataclasses.fields(diagnosis.Diagnosis)}
    assert set(told["machine"]) == {field.name for field in dataclasses.fields(machine.Machine)}


def test_a_person_sees_every_fact_and_every_gap(
    found: diagnosis.Diagnosis, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    gap = diagnosis.Gap((2, 8), machine.Missing("compiler", "no [C++] compiler", "run `apt install g++`"))
    lock = diagnosis.Lock(3, (diagnosis.Strayed("numpy", "2.0", None),))
    doctor.show(dataclasses.replace(found, gaps=(gap,), lock=lock))
    text = capsys.readouterr().out
    for rows in doctor.facts(found).values():
        for what, how_much in rows:
            assert what in text
            assert how_much in text
    assert "lessons 2, 8" in text
    assert "no [C++] compiler" in text
    assert "run apt install g++" in text
    assert "numpy: not installed, locked 2.0" in text


def test_nothing_missing_is_said_in_a_sentence(found: diagnosis.Diagnosis, capsys: pytest.CaptureFixture[str]) -> None:
    doctor.show(dataclasses.replace(found, gaps=(), lock=diagnosis.Lock(3, ())))
    text = capsys.readouterr().out
    assert "Nothing is missing" in text
    assert "All 3 packages" in text


def test_a_machine_of_which_nothing_is_known_is_shown_as_unknown(found: diagnosis.Diagnosis) -> None:
    unknown = dataclasses.replace(
        found.machine,
        model=None,
        sockets=None,
        physical_cores=None,
        logical_cores=None,
        numa_nodes={},
        caches={},
        simd=None,
        has_bf16=None,
        has_fp16=None,
        memory_bytes=None,
        shm_bytes=None,
        limits={},
    )
    facts = doctor.facts(dataclasses.replace(found, machine=unknown, state=machine.UNKNOWN_STATE))
    processor, memory = dict(facts["Processor"]), dict(facts["Memory"])
    for told in (processor["model"], processor["NUMA nodes"], processor["caches"], processor["SIMD"], memory["usable"]):
        assert "unknown" in told
    assert processor["in hardware"].count("unknown") == 2


def test_what_cuts_the_cores_down_is_named(found: diagnosis.Diagnosis) -> None:
    cut = dataclasses.replace(
        found.machine, usable_cores=2, logical_cores=16, cpus=(0, 1, 2, 8), limits={"cpu_quota": 2.5}
    )
    text = doctor.describe_cores(cut)
    assert text.startswith("2 usable")
    assert "affinity leaves CPUs 0-2,8" in text
    assert "quota of 2.5 CPUs" in text


def test_a_disturbed_machine_says_by_what() -> None:
    state = MachineState(0.2, 0.0, 3.0, False, None)
    assert doctor.describe_state(state).startswith("disturbed: the hypervisor took 20%")
    assert doctor.describe_state(machine.UNKNOWN_STATE) == "unknown"
    assert doctor.describe_state(MachineState(0.0, 0.0, None, None, None)) == "calm"


@pytest.mark.parametrize(
    ("numbers", "text"), [((), "none"), ((3,), "3"), ((0, 1, 2, 3), "0-3"), ((8, 0, 1, 10), "0-1,8,10")]
)
def test_cpu_ids_are_told_in_ranges(numbers: tuple[int, ...], text: str) -> None:
    assert doctor.ranges(numbers) == text
