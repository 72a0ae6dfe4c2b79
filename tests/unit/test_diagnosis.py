"""What the doctor finds: gaps by lesson, and packages that strayed from the lock."""

import dataclasses
import sys
from importlib import metadata
from pathlib import Path

import pytest

from accelerando import catalog, diagnosis, machine


@pytest.fixture(scope="module")
def here() -> machine.Machine:
    return machine.probe()


def test_every_need_of_the_catalog_is_known_to_the_machine(here: machine.Machine) -> None:
    machine.missing(here, {need for lesson in catalog.lessons() for need in lesson.needs})


def test_a_machine_that_lacks_a_thing_names_every_lesson_that_needs_it(here: machine.Machine) -> None:
    bare = dataclasses.replace(here, compilers=(), usable_cores=1)
    gaps = diagnosis.find_gaps(bare)
    needing = tuple(lesson.number for lesson in catalog.lessons() if "compiler" in lesson.needs)
    [compiler] = [gap for gap in gaps if gap.missing.need == "compiler"]
    assert compiler.lessons == needing
    assert len(needing) > 1
    [cores] = [gap for gap in gaps if gap.missing.need == "cores"]
    assert cores.lessons == ()
    assert gaps.index(cores) < gaps.index(compiler)


def test_a_lock_that_fits_has_no_strays_and_counts_what_applies_here(tmp_path: Path) -> None:
    lock = tmp_path / "requirements.txt"
    lock.write_text(
        f"# a comment\n\nnumpy=={metadata.version('numpy')}\n"
        "winonly==1.0 ; sys_platform == 'win32'\n"
        f"torch=={metadata.version('torch')} ; python_version >= '3.0'  # markers that hold here count\n"
    )
    assert sys.platform != "win32"
    assert diagnosis.compare_lock(lock) == diagnosis.Lock(2, ())


def test_other_versions_and_absent_packages_are_named(tmp_path: Path) -> None:
    lock = tmp_path / "requirements.txt"
    lock.write_text("numpy==0.1\nno-such-package==2.0\n")
    assert diagnosis.compare_lock(lock) == diagnosis.Lock(
        2,
        (
            diagnosis.Strayed("numpy", "0.1", metadata.version("numpy")),
            diagnosis.Strayed("no-such-package", "2.0", None),
        ),
    )


def test_no_lock_is_not_a_lock_that_fits(tmp_path: Path) -> None:
    assert diagnosis.compare_lock(tmp_path / "requirements.txt").packages == 0
