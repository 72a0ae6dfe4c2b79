"""What a worker makes of a notebook's cells and of requests; one worker per kind of isolation serves all tests."""

import ast
from collections.abc import Iterator

import numpy as np
import pytest

from accelerando.grading import isolation
from accelerando.grading.labs import LabCell
from accelerando.grading.sandbox import CellFailure, Limits, Sandbox, SandboxedSubmission
from accelerando.grading.worker import Mask
from accelerando.submission import NotAnswered, Wrong

CHOICES = ["auto"] if isolation.describe() != "isolated by bubblewrap" else ["auto", "plain"]

CELLS = {
    "uses the set-up": "from_setup = given + 1",
    "data": "import numpy as np\nnumbers = np.arange(6, dtype=np.float32).reshape(2, 3)\nword = 'kept'",
    "functions": """
def same(x):
    return x

def blank(x):
    raise NotImplementedError()

def divides(x):
    wanted = x / 0
    return wanted

def leaves(x):
    exit()

def gives_object(x):
    return object()

def changes(values):
    values.append(1)
    return values

def source_of_same():
    import inspect
    return inspect.getsource(same)
""",
    "name error": "first = 1\nsecond = undefined_name",
    "syntax error": "fine = 1\ndef broken(:",
    "sys.exit": "import sys\nsys.exit('enough')",
    "interrupt": "raise KeyboardInterrupt",
    "waits": "import asyncio\nwaited = await asyncio.sleep(0, 4)\nasync def never_run():\n    await asyncio.sleep(9)",
    "shadows": "from IPython import get_ipython\nget_ipython().run_line_magic('matplotlib', 'inline')\nshadowed = 5\n"
    "get_ipython = None",
    "magics": "%matplotlib inline\n!rm -rf /nowhere\nget_ipython().system('ls')\ndisplay(3)\nafter_magics = 1",
    "timed cell": "%%time\ntimed = 2",
    "timed line": "%time timed_line = 3\nword?",
    "masked module": "import accelerando.costs",
    "masked part": "from accelerando.checks import scaling",
    "grader": "from accelerando.grading import score",
    "a check": "check('tiny.double')",
    "large file": "with open('big', 'wb') as file:\n    file.write(bytes(2**25))",
    "fork that stays": "import os, time\nif os.fork() == 0:\n    os.setsid()\n    os.fork()\n    time.sleep(300)",
    "fork that returns": "import os\nos.fork()",
    "descriptors": """
import subprocess, sys
listing = "import os; print(os.listdir('/proc/self/fd'))"
open_fds = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, close_fds=False).stdout
""",
}


@pytest.fixture(scope="module", params=CHOICES)
def box(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    plain = [LabCell("plain", None, name, source, i) for i, (name, source) in enumerate(CELLS.items())]
    setup = LabCell("setup", None, "setup", "given = 1\nfrom accelerando.submission import check", 98)
    test = LabCell("test", "tiny.double", "test", "from_setup = 'a test cell ran'", 99)
    limits = Limits(file_bytes=2**24)
    with Sandbox([*plain, setup, test], masked=["accelerando.costs"], choice=request.param, limits=limits) as box:
        box.begin(None)
        yield box


@pytest.fixture
def sub(box: Sandbox) -> SandboxedSubmission:
    box.begin(None)
    return box.submission


def failure(box: Sandbox, cell: str) -> CellFailure | None:
    return next((failure for failure in box.failures if failure.cell == cell), None)


def test_the_set_up_comes_first_and_test_cells_do_not_run(sub: SandboxedSubmission) -> None:
    assert sub.value("from_setup") == 2


def test_values_and_arrays_cross_the_pipe_unharmed(sub: SandboxedSubmission) -> None:
    found = sub.value("numbers")
    assert found.dtype == np.float32
    assert np.array_equal(found, np.arange(6).reshape(2, 3))
    sent = np.random.default_rng(0).standard_normal((500, 70))
    assert np.array_equal(sub.same(sent), sent)
    assert np.isnan(sub.same(float("nan")))
    assert sub.same({"a": [1, None, "x"], "b": True}) == {"a": [1, None, "x"], "b": True}


def test_a_learner_cannot_change_the_checks_own_arguments(sub: SandboxedSubmission) -> None:
    mine = [0]
    assert sub.changes(mine) == [0, 1]
    assert mine == [0]


def test_a_blank_is_not_answered(sub: SandboxedSubmission) -> None:
    with pytest.raises(NotAnswered):
        sub.blank(1)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("divides", "ZeroDivisionError in line 2 of `divides`"),
        ("leaves", "`leaves` called `exit`"),
        ("gives_object", "is of type object, which cannot be sent"),
        ("word", "`word` should be a function, but is of type str"),
        ("nowhere", "`nowhere` is not defined"),
    ],
)
def test_a_call_that_fails_says_why_and_the_worker_goes_on(sub: SandboxedSubmission, function: str, says: str) -> None:
    with pytest.raises(Wrong) as caught:
        sub.call(function, 1)
    assert says in str(caught.value)
    assert sub.same(1) == 1


@pytest.mark.parametrize(
    ("cell", "says"),
    [
        ("name error", "stopped with NameError in line 2: name 'undefined_name' is not defined"),
        ("syntax error", "stopped with SyntaxError in line 2: invalid syntax"),
        ("sys.exit", "stopped with SystemExit in line 2: enough"),
        ("interrupt", "stopped with KeyboardInterrupt in line 1"),
        ("large file", "stopped with OSError in line 2"),
        ("masked module", "`accelerando.costs` is out of reach while a lab is graded"),
        ("masked part", "`accelerando.checks` is out of reach while a lab is graded"),
        ("grader", "`accelerando.grading` is out of reach while a lab is graded"),
    ],
)
def test_a_cell_that_raises_is_remembered_with_its_line(box: Sandbox, cell: str, says: str) -> None:
    found = failure(box, cell)
    assert found is not None
    assert says in found.message


def test_no_other_cell_failed(box: Sandbox) -> None:
    names = {"name error", "syntax error", "sys.exit", "interrupt", "large file"}
    assert {failure.cell for failure in box.failures} == names | {"masked module", "masked part", "grader"}


def test_magics_shell_lines_and_display_do_no_harm_and_timed_code_runs(sub: SandboxedSubmission) -> None:
    assert [sub.value(name) for name in ("after_magics", "timed", "timed_line")] == [1, 2, 3]


def test_a_cell_may_await_and_import_what_jupyter_has_anyway(sub: SandboxedSubmission) -> None:
    assert [sub.value(name) for name in ("waited", "shadowed")] == [4, 5]


def test_a_function_of_a_cell_has_a_source(sub: SandboxedSubmission) -> None:
    assert sub.source_of_same() == "def same(x):\n    return x\n"


def test_forgotten_forks_do_not_answer_as_well(sub: SandboxedSubmission) -> None:
    assert [sub.same(n) for n in range(10)] == list(range(10))


def test_programs_do_not_inherit_the_protocols_pipes(sub: SandboxedSubmission) -> None:
    assert set(ast.literal_eval(sub.value("open_fds"))) <= {"0", "1", "2", "3"}  # 3 is the listing itself


def test_the_mask_leaves_other_modules_alone() -> None:
    mask = Mask(["accelerando.costs"])
    for name in ("accelerando.costs_of_living", "accelerando", "json"):
        mask.find_spec(name)
    for name in ("accelerando.costs", "accelerando.costs.inner"):
        with pytest.raises(ModuleNotFoundError, match="out of reach"):
            mask.find_spec(name)
