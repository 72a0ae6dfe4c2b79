"""`./course assess` on small tasks: what it runs, what it says, what it leaves behind."""

import json
import os
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
from accelerando.grading import assess, final_report, final_task, isolation, session, sides
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
        budget_s=30.0,  # time for the two rounds, in none of which anything can be decided
    )
    assert found.session is not None, found.report.results
    assert {(run.side, run.task) for run in found.session.runs} >= {
        (side, "real") for side in ("starter", "reference", "submission")
    }
    assert all(run.seconds > 0 and run.accuracy > 0.15 for run in found.session.runs)
    assert {result.status for result in found.report.results} == {"undecided"}


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
    assert len(final_report.write_results(honest, tmp_path, when)) == 2
    names = [path.name for path in final_report.write_results(replace(honest, pass_points=45), tmp_path, when)]
    assert names[2] == "final-2026-01-01-000000-certificate.html"
    assert "Final assessment passed" in (tmp_path / names[2]).read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)


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
    assert [cell.kind for cell in found.training] == ["setup", "solution"]
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


KILLED = """
import sys
sys.path.insert(0, sys.argv[1])
from tiny_final import HONEST, assessed
print("ready", flush=True)
assessed(HONEST + "\\ndef train(images, labels, budget_s):\\n    import os\\n    os.fork()\\n    while True: pass\\n")
"""


def test_killed_grader_leaves_no_process_and_no_lock(tmp_path: Path) -> None:
    grader = subprocess.Popen([sys.executable, "-c", KILLED, str(HERE)], stdout=subprocess.PIPE, cwd=tmp_path)
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
        grader.wait()
    with lane("exclusive", patience_s=60):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(autouse=True)
def _built(monkeypatch: pytest.MonkeyPatch) -> None:
    built = replace(catalog.final(), is_built=True)
    monkeypatch.setattr(catalog, "final", lambda: built)


def run_command(*arguments: str) -> tuple[int, str]:
    from typer.testing import CliRunner

    result = CliRunner().invoke(app, ["assess", *arguments])
    return result.exit_code, result.output


def test_isolation_can_be_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "describe", lambda choice="auto": "not isolated: no bubblewrap")
    code, said = run_command("--require-isolation", "--json")
    assert code == 2
    assert "not isolated" in json.loads(said)["error"]


def test_missing_file_is_refused_in_one_line(tmp_path: Path) -> None:
    code, said = run_command("--submission", str(tmp_path / "none.ipynb"))
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
    code, said = run_command("--submission", str(file))
    lines = [line for line in said.splitlines() if line.strip()]
    assert lines[0] == "not isolated: no bubblewrap"
    assert code == 1
    assert len(list((tmp_path / "results").glob("final-*"))) == 2
    assert not list((tmp_path / "results").glob(".*"))


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
    trainer = SandboxTrainer({"submission": submission(HONEST + ONCE, SETUP).training}, limits=LIMITS)
    for _ in range(2):
        trained = trainer("submission", task, np.arange(len(task.train)), 20.0)
        assert trained.scores.shape == (len(task.held_out), 10)
