"""Whatever learner code does, the grader goes on, knows why, and leaves nothing behind."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from tiny_lab import DOUBLE, TINY, cells, tiny  # noqa: F401

from accelerando import catalog
from accelerando.grading import isolation
from accelerando.grading.labs import LabCell
from accelerando.grading.sandbox import Limits, Sandbox, clean
from accelerando.submission import Ungradable, Wrong

CHOICES = ["plain"] if isolation.describe() != "isolated by bubblewrap" else ["auto", "plain"]
LIMITS = Limits(cell_s=1.5, total_s=60, memory_bytes=300 * 2**20, processes=40, file_bytes=2**24)
QUESTION = TINY.questions[0]

pytestmark = pytest.mark.usefixtures("tiny")


@pytest.fixture(params=CHOICES)
def choice(request: pytest.FixtureRequest) -> isolation.Choice:
    return request.param


@pytest.fixture(autouse=True)
def _nothing_left(new_children: Callable[[], list[psutil.Process]]) -> Iterator[None]:
    before = scratches()
    yield
    assert new_children() == []
    assert scratches() <= before


def scratches() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob("accelerando-grading-*"))


def sandbox(choice: isolation.Choice, *made: LabCell, limits: Limits = LIMITS) -> Sandbox:
    return Sandbox(made or cells(), masked=TINY.masked, limits=limits, choice=choice)


DEADLY = {
    "import os\nos._exit(7)": "exit code 7",
    "while True:\n    pass": "took longer than 2 s",
    "import ctypes\nctypes.string_at(0)": "SIGSEGV",
    "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)": "SIGKILL",
    "import os\nos.closerange(3, 1000)": "closed its pipe to the grader",
    "hoard = []\nwhile True:\n    hoard.append(bytearray(2**22))": "of memory (the limit is 0.3 GB)",
    "import os, time\nwhile True:\n    os.fork() or time.sleep(60)": "processes (the limit is 40)",
}


def test_cells_that_kill_the_worker_are_named_and_skipped(choice: isolation.Choice) -> None:
    limits = Limits(cell_s=2, total_s=120, memory_bytes=300 * 2**20, processes=40)
    with sandbox(choice, *cells(plain=list(DEADLY)), limits=limits) as box:
        box.begin(QUESTION)
        assert box.submission.double(4) == 8
    assert [failure.cell for failure in box.failures] == [f"plain {n}" for n in range(len(DEADLY))]
    for found, says in zip(box.failures, DEADLY.values(), strict=True):
        assert says in found.message


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("while True: pass", "`double` took longer than 1.5 s. Is there a loop"),
        ("import os; os._exit(0)", "`double` ended its own process (exit code 0)"),
        ("return [bytearray(2**22) for _ in range(200)]", "of memory"),
    ],
    ids=["endless", "_exit", "memory"],
)
def test_a_call_that_kills_the_worker_loses_its_question_and_no_other(
    choice: isolation.Choice, body: str, says: str
) -> None:
    with sandbox(choice, *cells(double=f"def double(x):\n    {body}\n")) as box:
        box.begin(QUESTION)
        with pytest.raises(Wrong, match=re.escape(says)):
            box.submission.double(4)
        with pytest.raises(Wrong, match="an earlier call had ended the worker"):
            box.submission.double(4)
        box.begin(TINY.questions[1])
        assert box.submission.total([1, 2]) == 3


def test_killing_the_warden_sets_nothing_free() -> None:
    code = """
import os, signal, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvp("sleep", ["sleep", "54321"])
    os._exit(0)
time.sleep(0.5)
os.kill(os.getppid(), signal.SIGKILL)
time.sleep(5)
"""
    with sandbox("plain", *cells(plain=[code])) as box:
        box.begin(QUESTION)
        assert box.submission.double(4) == 8
    assert [p.pid for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", "54321"]] == []


DRIP = """
import os, struct, time
def double(x):
    for fd in range(100, 200):
        try:
            os.write(fd, struct.pack('<4sIQ', b'ACC1', 2**23, 2**27))
        except OSError:
            continue
        while True:
            os.write(fd, b' ' * SIZE)
            PAUSE
"""


@pytest.mark.parametrize(("size", "pause"), [(1, "time.sleep(0.005)"), (1, "pass")], ids=["drip", "flood"])
def test_a_reply_that_never_ends_is_late_however_it_comes(choice: isolation.Choice, size: int, pause: str) -> None:
    with sandbox(choice, *cells(double=DRIP.replace("SIZE", str(size)).replace("PAUSE", pause))) as box:
        box.begin(QUESTION)
        started_s = time.monotonic()
        with pytest.raises(Wrong, match=r"`double` took longer than 1\.5 s"):
            box.submission.double(4)
        assert time.monotonic() - started_s < 12


def test_a_reply_that_was_there_in_time_counts_when_the_grader_was_stopped(choice: isolation.Choice) -> None:
    with sandbox(choice) as box:
        box.begin(QUESTION)
        stopped = subprocess.Popen(["sh", "-c", f"kill -STOP {os.getpid()}; sleep 2.5; kill -CONT {os.getpid()}"])
        value = box.submission.double(4)
        stopped.wait()
        assert value == 8


def test_half_a_gigabyte_of_output_blocks_nothing_and_is_cut(choice: isolation.Choice) -> None:
    loud = (
        "import sys\nprint('the beginning')\nfor _ in range(500):\n    sys.stdout.write('x' * 10**6)\nprint('the end')"
    )
    limits = Limits(cell_s=60, total_s=120, memory_bytes=300 * 2**20)
    before = psutil.Process().memory_info().rss
    with sandbox(choice, *cells(plain=[loud]), limits=limits) as box:
        box.begin(QUESTION)
        assert box.submission.double(4) == 8
        assert psutil.Process().memory_info().rss - before < 100 * 2**20
    assert box.failures == ()
    assert len(box.output) < limits.output_bytes + 100
    assert "the beginning" in box.output
    assert "the end" in box.output
    assert "bytes left out" in box.output


@pytest.mark.skipif("auto" not in CHOICES, reason="bubblewrap does not work here")
def test_the_sandbox_shows_neither_the_course_nor_the_disk() -> None:
    look = """
import os, accelerando
from pathlib import Path
package = Path(accelerando.__file__).parent
seen = sorted(str(p.relative_to(package)) for p in package.rglob('*') if '__pycache__' not in str(p))
root = sorted(os.listdir('/'))
who = [os.getuid(), os.getpid() < 10, os.getcwd(), os.environ['HOME'], os.environ['TMPDIR']]
home_of_course = [str(p) for p in Path(COURSE).iterdir()] if Path(COURSE).exists() else []
network = os.listdir('/sys/class/net') if os.path.exists('/sys/class/net') else []
def writes(path):
    try:
        open(path, 'w'); return True
    except OSError:
        return False
writable = [writes(p) for p in ('/usr/x', str(package / 'x'), '/x', '/scratch/x')]
variables = dict(os.environ)
"""
    root = Path(__file__).resolve().parents[2]
    os.environ["A_SECRET_OF_THE_GRADER"] = "1"
    try:
        with sandbox("auto", *cells(plain=[f"COURSE = {str(root)!r}" + look])) as box:
            box.begin(QUESTION)
            ask = box.submission.value
            seen, listed, who = ask("seen"), ask("root"), ask("who")
            course, writable, variables = ask("home_of_course"), ask("writable"), ask("variables")
    finally:
        del os.environ["A_SECRET_OF_THE_GRADER"]
    assert "submission.py" in seen
    hidden = ("checks", "grading", "quizzes", "data", "costs.py")
    assert not [path for path in seen if path.split("/")[0] in hidden]
    assert "home" not in listed
    assert who == [1000, True, "/scratch", "/scratch", "/scratch"]
    assert [Path(path).name for path in course] in ([], [".venv"])
    assert writable[:2] == [False, False]
    assert writable[3]
    assert "A_SECRET_OF_THE_GRADER" not in variables


def test_a_reply_that_was_not_asked_for_ends_the_worker(choice: isolation.Choice) -> None:
    forged = """
import gc, io
def double(x):
    from accelerando import wire
    for thing in gc.get_objects():
        if isinstance(thing, io.BufferedWriter) and thing.fileno() > 2:
            wire.write_message(thing, {"value": 2 * x, "nonce": "guessed"})
    return 0
"""
    with sandbox(choice, *cells(double=forged)) as box:
        box.begin(QUESTION)
        with pytest.raises(Wrong, match=r"not asked|cannot be read"):
            box.submission.double(4)


def test_a_set_up_cell_that_fails_is_not_the_learners_fault(choice: isolation.Choice) -> None:
    with sandbox(choice, *cells(setup="import no_such_module")) as box, pytest.raises(Ungradable, match="set-up cell"):
        box.begin(QUESTION)


def test_the_total_time_ends_a_notebook_of_slow_cells(choice: isolation.Choice) -> None:
    limits = Limits(cell_s=1.0, total_s=2.5)
    slow = ["while True:\n    pass"] * 5
    started_s = time.monotonic()
    with (
        sandbox(choice, *cells(plain=slow), limits=limits) as box,
        pytest.raises(Ungradable, match=r"used up its 2\.5 s"),
    ):
        box.begin(QUESTION)
    assert time.monotonic() - started_s < 30


def test_the_total_time_begins_with_the_first_question(choice: isolation.Choice) -> None:
    with sandbox(choice, *cells(), limits=Limits(total_s=5.0)) as box:
        time.sleep(0.1)
        assert box._ends_s is None
        box.begin(QUESTION)
        assert box._ends_s is not None
        assert box._ends_s > time.monotonic()


def test_cells_that_answer_may_have_a_limit_of_their_own(choice: isolation.Choice) -> None:
    endless = cells(double="while True:\n    pass")
    with sandbox(choice, *endless, limits=replace(LIMITS, answer_s=0.5)) as box:
        box.begin(QUESTION)
        assert [(failure.message, failure.is_slow) for failure in box.failures] == [("took longer than 0.5 s", True)]


def test_what_is_timed_gets_its_time_however_long_it_waited_for_its_turn(choice: isolation.Choice) -> None:
    with sandbox(choice, *cells()) as box:
        box.begin(QUESTION)
        box._ends_s = time.monotonic()
        with pytest.raises(Ungradable, match="used up its"):
            box.submission.call("double", 2)
        box.begin(QUESTION, 10.0)
        assert box.submission.call("double", 2) == 4


def test_the_learners_text_cannot_steer_the_terminal() -> None:
    assert clean("\x1b[31mred\x1b[0m\n\x07bell \u202ereversed") == "red bell reversed"
    assert len(clean("x" * 10**6)) < 700


PROGRAM = """
import sys, time
sys.path.insert(0, {tests!r})
from tiny_lab import cells
from accelerando.grading.sandbox import Limits, Sandbox
with Sandbox(cells(plain=[{cell!r}]), choice={choice!r}, limits=Limits(cell_s=60)) as box:
    print("ready", flush=True)
    box._worker = box._run_cells()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_grader_leaves_no_process_and_no_file(choice: isolation.Choice, number: signal.Signals) -> None:
    cell = (
        "import os, time\nopen('trace', 'w').write('x')\nif os.fork() == 0:\n    os.setsid()\nprint(1)\ntime.sleep(50)"
    )
    program = PROGRAM.format(tests=str(Path(__file__).parent), cell=cell.replace("50", "51.25"), choice=choice)
    program = program.replace("def ", "def ")
    grader = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    )
    assert grader.stdout is not None
    assert grader.stdout.readline() == b"ready\n"
    family = _family_of(grader.pid, at_least=3)
    grader.send_signal(number)
    grader.wait(15)
    grader.stdout.close()
    ends_s = time.monotonic() + 10
    while any(_is_alive(process) for process in family) and time.monotonic() < ends_s:
        time.sleep(0.02)
    assert not [process for process in family if _is_alive(process)]
    time.sleep(0.1)  # the warden removes the folder after the last process


def _family_of(pid: int, at_least: int) -> list[psutil.Process]:
    ends_s = time.monotonic() + 20
    while time.monotonic() < ends_s:
        found = psutil.Process(pid).children(recursive=True)
        if (
            sum(p.status() == psutil.STATUS_SLEEPING and "worker.py" in " ".join(p.cmdline()) for p in found)
            >= at_least
        ):
            return found
        time.sleep(0.05)
    raise AssertionError(f"only {[p.cmdline() for p in psutil.Process(pid).children(recursive=True)]}")


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def test_visible_leaves_out_exactly_what_is_hidden(tmp_path: Path) -> None:
    for name in ("a.py", "costs.py", "checks/x.py", "lessons/one.py", "lessons/two.py", "__pycache__/a.pyc"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    hidden = ("accelerando.costs", "accelerando.checks", "accelerando.lessons.two")
    found = {path.relative_to(tmp_path).as_posix() for path in isolation.visible(tmp_path, hidden)}
    assert found == {"a.py", "lessons/one.py"}


def test_every_catalog_lesson_masks_modules_of_the_package_only() -> None:
    for lesson in catalog.lessons():
        assert all(module.startswith("accelerando.") for module in lesson.masked)


def test_a_course_that_lies_below_a_temporary_folder_can_be_graded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = isolation._python_folders()
    monkeypatch.setattr(isolation, "_python_folders", lambda: [*folders, str(tmp_path)])
    with sandbox("auto", *cells(plain=["x = 1"])) as box:
        box.begin(QUESTION)
        assert box.submission.value("x") == 1


def test_a_course_that_lies_below_usr_shows_no_more_of_itself_than_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path("/usr/src/app")
    monkeypatch.setattr(isolation, "PACKAGE", root / "src" / "accelerando")
    monkeypatch.setattr(isolation, "visible", lambda folder, hidden: iter(()))
    monkeypatch.setattr(isolation.sys, "prefix", str(root / ".venv"))
    words = isolation._bubblewrap((), 2**20)
    places = {
        name: next(place for place, word in enumerate(words) if word == option and words[place + 1] == folder)
        for name, option, folder in (
            ("usr", "--ro-bind", "/usr"), ("mask", "--tmpfs", str(root)),
            ("python", "--ro-bind", str(root / ".venv")), ("closed", "--remount-ro", str(root)),
        )
    }  # fmt: skip
    assert places["usr"] < places["mask"] < places["python"] < places["closed"]
    monkeypatch.setattr(isolation, "PACKAGE", Path("/usr/local/lib/python3/site-packages/accelerando"))
    assert isolation._masks("/usr") == [str(isolation.PACKAGE)]
    assert isolation._masks("/opt") == []


def test_a_worker_that_does_not_start_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(os.listdir("/proc/self/fd"))
    for broken in (OSError("no more processes"), ValueError("no such user")):

        def refuse(*words: object, error: Exception = broken, **options: object) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr("accelerando.grading.process.subprocess.Popen", refuse)
            with pytest.raises((Ungradable, ValueError)), sandbox("plain", *cells(plain=["x = 1"])) as box:
                box.begin(QUESTION)
    assert set(os.listdir("/proc/self/fd")) == before
