"""Answer cells with a starter: what learners get, what the reference is, and what is refused."""

import pytest

from accelerando.grading import starters
from accelerando.grading.cells import new_cell, new_notebook

SOURCE = """import torch

### BEGIN STARTER
def train():
    return "slow"
### END STARTER
### BEGIN SOLUTION
def train():
    return "fast"
### END SOLUTION
LAST = 1"""


def outcome(source: str) -> str:
    names: dict = {}
    exec(source.replace("import torch", ""), names)
    return names["train"]()


def test_learner_gets_the_starter_and_the_reference_the_solution() -> None:
    starter, solution = starters.starter_of(SOURCE), starters.solution_of(SOURCE)
    assert (outcome(starter), outcome(solution)) == ("slow", "fast")
    for text, other in ((starter, "fast"), (solution, "slow")):
        assert other not in text
        assert "BEGIN" not in text
        assert "END" not in text
        assert text.startswith("import torch")
        assert text.endswith("LAST = 1")


def test_source_as_it_stands_runs_the_solution() -> None:
    assert outcome(SOURCE) == "fast"


def test_stub_of_nbgrader_is_replaced_in_cells_with_a_starter_only() -> None:
    other = "def shard():\n    ### BEGIN SOLUTION\n    return 1\n    ### END SOLUTION"
    source = new_notebook([new_cell("solution", "final.train", SOURCE), new_cell("solution", "final.shard", other)])
    released = new_notebook(
        [
            new_cell("solution", "final.train", "# YOUR CODE HERE\nraise NotImplementedError()"),
            new_cell("solution", "final.shard", "def shard():\n    # YOUR CODE HERE\n    raise NotImplementedError()"),
        ]
    )
    made = starters.with_starters(released, source)
    assert made["cells"][0]["source"] == starters.starter_of(SOURCE)
    assert made["cells"][1] == released["cells"][1]
    assert "YOUR CODE" in released["cells"][0]["source"]


@pytest.mark.parametrize(
    "broken",
    [
        SOURCE.replace("### END STARTER\n", ""),
        SOURCE.replace("BEGIN STARTER", "BEGIN SOLUTION"),
        SOURCE + "\n### BEGIN STARTER",
        "\n".join(reversed(SOURCE.splitlines())),
    ],
)
def test_markers_out_of_order_are_refused(broken: str) -> None:
    with pytest.raises(ValueError, match="BEGIN STARTER, END STARTER"):
        starters.starter_of(broken)
