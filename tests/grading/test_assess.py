"""`./course assess` on small tasks: what it runs, what it says, what it leaves behind."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import numpy as np
import psutil
import pytest
from tiny_final import HONEST, LIMITS, SETUP, STARTER_S, TIMED, assessed, submission, tasks

from accelerando import catalog, work
from accelerando.cli import app
from accelerando.grading import assess, final_report, final_task, isolation, session, sides, trainer
from accelerando.grading.lane import lane
from accelerando.grading.trainer import SandboxTrainer

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def honest() -> assess.Assessment:
    return assessed(HONEST, seed=123456789)


def test_starter_reference_and_submission_really_train_on_both_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "FEWEST_ROUNDS", 2)
    reference = sides.course_sides()["reference"]
    found = assess.assess(
        Path("final.ipynb"),
        lesson=TIMED,
        read=lambda path, lesson: sides.FinalSubmission(submission(HONEST).lab, reference, 100),
        make_tasks=lambda seed: final_task.make_session(seed, train_images=600, held_out_images=400),
        budget_s=30.0,  # time for the two rounds, too few for a tier; that accuracy is lost may show at once
    )
    assert found.session is not None, found.report.results
    assert {(run.side, run.task) for run in found.session.runs} >= {
        (side, "real") for side in ("starter", "reference", "submission")
    }
    assert all(run.seconds > 0 and run.accuracy > 0.15 for run in found.session.runs)
    assert {result.status for result in found.report.results} <= {"undecided", "failed"}


def test_report_tells_all_but_the_seed(honest: assess.Assessment) -> None:
    told = json.dumps(honest.as_json())
    page = final_report.report_page(honest, datetime(2026, 1, 1))
    assert "123456789" not in told + page
    assert honest.as_json()["points"] == 45
    assert page.count("data:image/png;base64,") == 2
    assert "Train faster, keep the accuracy" in page


def test_certificate_is_written_only_when_passed(honest: assess.Assessment, tmp_path: Path) -> None:
    when = datetime(2026, 1, 1)
    assert not honest.has_passed
    assert [path.name for path in final_report.write_results(honest, tmp_path, when)] == ["report.html", "report.json"]
    paths = final_report.write_results(replace(honest, pass_points=45), tmp_path, when)
    assert paths[2] == tmp_path / "other-2026-01-01-000000-2" / "certificate.html"
    assert "Final assessment passed" in paths[2].read_text()


def test_only_the_learners_own_file_earns_the_certificate_that_the_course_shows(
    honest: assess.Assessment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(work.ENVIRONMENT_NAME, str(tmp_path))
    passed = replace(honest, pass_points=45)
    final_report.write_results(passed, work.results_folder(), datetime(2026, 1, 1))
    assert work.certificate() is None
    own = replace(passed, report=replace(passed.report, notebook=str(tmp_path / "assessment/final/final.ipynb")))
    final_report.write_results(own, work.results_folder(), datetime(2026, 1, 2))
    assert work.certificate() == tmp_path / "results" / "final-2026-01-02-000000" / "certificate.html"


def test_text_of_the_learner_is_not_read_as_markup() -> None:
    found = assessed("def prepare(shape, classes):\n    raise ValueError('<script>alert(1)</script>')\n")
    page = final_report.report_page(found, datetime(2026, 1, 1))
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("", "`prepare` is not defined"),
        ("raise RuntimeError('no')", "stopped with RuntimeError"),
        ("def prepare(", "stopped with SyntaxError"),
        ("import not_there", "stopped with ModuleNotFoundError"),
        (f"{HONEST}\ndef predict(images):\n    return 'yes'\n", "should return an array of scores"),
        (f"{HONEST}\ndef train(images, labels, budget_s):\n    raise NotImplementedError\n", "not answered yet"),
        (f"{HONEST}\nimport accelerando.training\n", "out of reach"),
    ],
)
def test_unusable_submission_fails_with_a_sentence(code: str, sentence: str) -> None:
    results = assessed(code).report.results
    assert {result.status for result in results} == {"failed"}
    assert sentence in results[0].message


def test_gpu_that_is_not_there_is_named() -> None:
    code = f"{HONEST}\ndef train(images, labels, budget_s):\n    import torch\n    torch.zeros(1, device='cuda:7')\n"
    results = assessed(code).report.results
    assert {result.status for result in results} == {"failed"}
    assert re.search("CUDA|NVIDIA", results[0].message)
    assert "line 3 of `train`" in results[0].message


def test_prepare_sees_no_image_and_its_time_does_not_count() -> None:
    code = (
        f"{HONEST}\ndef prepare(shape, classes):\n    import time; time.sleep(0.7)\n    assert shape == [200, 28, 28]\n"
    )
    found = assessed(code)
    assert found.session is not None
    assert max(found.session.times_s("submission", "real")) < 0.7 < STARTER_S


def test_cells_of_the_learners_own_are_not_run(tmp_path: Path) -> None:
    from accelerando.grading import release
    from accelerando.grading.notebooks import read_notebook, write_notebook

    source = work.checkout() / "solutions" / "final" / "final.ipynb"
    notebook, _ = read_notebook(source)
    manifest = release.make_manifest(notebook, catalog.final())
    path = tmp_path / "final.ipynb"
    notebook["cells"].append(
        {
            "cell_type": "code",
            "source": "raise SystemExit",
            "id": "own",
            "metadata": {},
            "outputs": [],
            "execution_count": None,
        }
    )
    write_notebook(path, notebook)
    found = sides.read_final(path, manifest=manifest)
    given = [cell.grade_id for cell in manifest.locked if cell.kind == "setup"]
    assert [cell.kind for cell in found.training] == ["setup"] * len(given) + ["solution"]
    assert {cell.kind for cell in found.lab.cells} == {"setup", "solution"}
    assert not found.is_too_large


def test_waiting_for_another_timed_run_costs_nothing_of_the_budget() -> None:
    import threading

    def hold() -> None:
        with lane("exclusive"):
            time.sleep(1.0)

    other = threading.Thread(target=hold)
    other.start()
    time.sleep(0.2)
    found = assessed(HONEST)
    other.join()
    assert [result.status for result in found.report.results] == ["passed"] * 3


HANGS = f"{HONEST}\ndef train(images, labels, budget_s):\n    import os\n    os.fork()\n    while True: pass\n"


def start_grader(code: str, folder: Path) -> subprocess.Popen[bytes]:
    """The real command in a process of its own, with the learner's folder in ``folder``."""
    file = folder / "work" / "final.ipynb"
    file.parent.mkdir(exist_ok=True)
    file.write_text("{}")
    environment = os.environ | {work.ENVIRONMENT_NAME: str(file.parent)}
    command = [sys.executable, str(HERE / "killed_grader.py"), code, str(file)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder, env=environment)


def test_killed_grader_leaves_no_process_no_lock_no_result_and_the_next_run_goes_on(tmp_path: Path) -> None:
    grader = start_grader(HANGS, tmp_path)
    try:
        assert grader.stdout is not None
        grader.stdout.readline()
        below: list[psutil.Process] = []
        ends_s = time.monotonic() + 60
        while not any(process.cpu_times().user > 0.5 for process in below if process.is_running()):
            assert time.monotonic() < ends_s
            time.sleep(0.1)
            below = [p for p in psutil.Process(grader.pid).children(recursive=True) if p.is_running()]
        os.kill(grader.pid, signal.SIGKILL)
        grader.wait()
        _, alive = psutil.wait_procs(below, timeout=10)
        assert [p for p in alive if p.status() != psutil.STATUS_ZOMBIE] == []
    finally:
        grader.kill()
        grader.communicate()
    with lane("exclusive", patience_s=60):
        pass
    assert [path.name for path in (tmp_path / "work").rglob("*")] == ["final.ipynb"]
    following = start_grader(HONEST, tmp_path)
    said, complaints = following.communicate(timeout=120)
    assert following.returncode == 0, complaints
    assert b"45 of 45 points" in said
    (folder,) = (tmp_path / "work" / "results").iterdir()
    assert json.loads((folder / "report.json").read_text())["points"] == 45
    assert (tmp_path / "work" / "progress.json").is_file()


def test_what_a_grader_killed_while_writing_has_left_is_swept_away(honest: assess.Assessment, tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (tmp_path / f".unfinished-{ended.pid}").mkdir()
    (tmp_path / f".unfinished-{ended.pid}" / "report.html").write_text("half")
    (tmp_path / f".unfinished-{os.getppid()}").mkdir()  # another grader that is still at work
    final_report.write_results(honest, tmp_path, datetime(2026, 1, 1))
    assert {path.name for path in tmp_path.iterdir()} == {
        f".unfinished-{os.getppid()}", "other-2026-01-01-000000",
    }  # fmt: skip


def test_a_report_that_cannot_be_written_leaves_nothing(
    honest: assess.Assessment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> int:
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="no space"):
        final_report.write_results(honest, tmp_path, datetime(2026, 1, 1))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("losses = [3.0, 2.0, 1.0]", (3.0, 2.0, 1.0)),
        ("losses = [1.0] * 30 + [0.0] * 90", (1.0,) * 15 + (0.0,) * 45),
        ("losses = [float('nan')]", ()),
        ("losses = [[1.0], [1.0, 2.0]]", ()),
        ("losses = 'none'", ()),
        ("class Losses(list):\n    def __iter__(self):\n        while True: yield 1.0\nlosses = Losses()", ()),
        ("", ()),
    ],
)
def test_losses_are_shown_when_they_are_told_and_never_matter(
    told: str, expected: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accelerando.grading.trainer._ASIDE_S", 1.0)
    task = tasks(1)[0]
    trainer = SandboxTrainer({"submission": submission(f"{HONEST}\n{told}\n", SETUP).training}, limits=LIMITS)
    trained = trainer("submission", task, np.arange(len(task.train)), 20.0)
    assert trained.losses == expected


def test_report_draws_losses_and_says_when_the_submission_tells_none(honest: assess.Assessment) -> None:
    when = datetime(2026, 1, 1)
    assert "The submission told none" in final_report.report_page(honest, when)
    assert honest.session is not None
    runs = tuple(replace(run, losses=(2.0, 1.0, 0.5)) for run in honest.session.runs)
    page = final_report.report_page(replace(honest, session=replace(honest.session, runs=runs)), when)
    assert page.count("data:image/png;base64,") == 3
    assert "Training loss over each run" in page
    assert "told none" not in page


def test_no_setting_of_the_user_reaches_one_side_and_not_another(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_WAIT_POLICY", "OMP_NUM_THREADS", "KMP_AFFINITY", "LD_PRELOAD", "PYTHONPATH"):
        monkeypatch.setenv(name, "" if name == "LD_PRELOAD" else "1")
    code = f"{HONEST}\nimport os\nlosses = [float(n in os.environ) for n in ('OMP_WAIT_POLICY', 'OMP_NUM_THREADS', "
    code += "'KMP_AFFINITY', 'LD_PRELOAD', 'PYTHONPATH')]\n"
    task = tasks(1)[0]
    trainer = SandboxTrainer({"submission": submission(code, SETUP).training}, limits=LIMITS)
    assert trainer("submission", task, np.arange(len(task.train)), 20.0).losses == (0.0,) * 5


def run_command(*arguments: str) -> tuple[int, str]:
    from typer.testing import CliRunner

    result = CliRunner().invoke(app, arguments)
    return result.exit_code, result.output


@pytest.mark.parametrize("command", [("assess",), ("check", "1")])
def test_isolation_can_be_required(command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "describe", lambda choice="auto": "not isolated: no bubblewrap")
    code, said = run_command(*command, "--require-isolation", "--json")
    assert code == 2
    assert "not isolated" in json.loads(said)["error"]


def test_missing_file_is_refused_in_one_line(tmp_path: Path) -> None:
    code, said = run_command("assess", "--submission", str(tmp_path / "none.ipynb"))
    assert code == 2
    assert said.count("\n") == 1


def test_not_isolated_is_the_first_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "final.ipynb"
    file.write_text("{}")
    monkeypatch.setenv(work.ENVIRONMENT_NAME, str(tmp_path))

    def stand_in(path: Path, **options: object) -> assess.Assessment:
        return replace(found, report=replace(found.report, isolation="not isolated: no bubblewrap"))

    found = assessed("")
    monkeypatch.setattr(assess, "assess", stand_in)
    code, said = run_command("assess", "--submission", str(file))
    lines = [line for line in said.splitlines() if line.strip()]
    assert lines[0] == "not isolated: no bubblewrap"
    assert code == 1
    assert len(list((tmp_path / "results").glob("*/report.*"))) == 2
    assert not list((tmp_path / "results").glob(".*"))


def test_a_report_that_fails_in_any_way_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "final.ipynb"
    file.write_text("{}")
    found = assessed(HONEST)

    def broken(*words: object) -> None:
        raise ValueError("no such colour")

    monkeypatch.setattr(assess, "assess", lambda path, **options: found)
    monkeypatch.setattr(final_report, "write_results", broken)
    code, said = run_command("assess", "--submission", str(file))
    assert code == 0
    assert "course: the report was not written: ValueError: no such colour\n" in said
    assert "45 of 45" in said


def test_plain_process_grades_too_and_says_so() -> None:
    found = assessed(HONEST, choice="plain")
    assert found.report.points == 45
    assert not found.is_isolated


ONCE = """
runs = []

def train(images, labels, budget_s, train=train):
    runs.append(1)
    assert len(runs) == 1
    train(images, labels, budget_s)
"""


def test_trainer_gives_each_run_a_fresh_process() -> None:
    task = tasks(1)[0]
    train = SandboxTrainer({"submission": submission(HONEST + ONCE, SETUP).training}, limits=LIMITS)
    for _ in range(2):
        trained = train("submission", task, np.arange(len(task.train)), 20.0)
        assert trained.scores.shape == (len(task.held_out), 10)


def test_prepare_and_cells_that_do_not_end_are_too_slow_not_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "PREPARE_S", 1.0)
    task = tasks(1)[0]
    for code, told in (
        (f"{HONEST}\ndef prepare(shape, classes):\n    while True: pass\n", "`prepare` did not end within 1 s"),
        (f"{HONEST}\nwhile True: pass\n", "took longer than 1 s"),
    ):
        train = SandboxTrainer({"submission": submission(code, SETUP).training}, limits=LIMITS)
        with pytest.raises(trainer.TooSlow, match=told):
            train("submission", task, np.arange(len(task.train)), 20.0)


def test_waiting_for_the_machine_is_no_time_of_the_grading() -> None:
    import threading

    def hold() -> None:
        with lane("exclusive"):
            time.sleep(2.0)

    alone = assessed(HONEST).report.seconds
    other = threading.Thread(target=hold)
    other.start()
    time.sleep(0.2)
    beside = assessed(HONEST).report.seconds
    other.join()
    assert beside < alone + 1.5


def test_a_mistake_of_the_grader_itself_costs_part_a_no_more_than_its_verdict() -> None:
    def broken(cells: object, **options: object) -> object:
        def train(*words: object) -> None:
            raise TypeError("Got unsupported ScalarType BFloat16")

        return train

    found = assessed(HONEST, make_trainer=broken)
    assert {result.status for result in found.report.results} == {"ungradable"}
    assert "the check itself stopped with TypeError" in found.report.results[0].message
