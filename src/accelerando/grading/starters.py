"""Answer cells that begin with working code: the learner gets a starter to improve instead of an empty function.

In the hand-written source such a cell holds both, the solution redefining what the starter defines::

    ### BEGIN STARTER
    def train(images, labels, budget_s): ...   # correct and slow
    ### END STARTER
    ### BEGIN SOLUTION
    def train(images, labels, budget_s): ...   # the reference
    ### END SOLUTION

Released, it holds the starter alone. nbgrader knows one stub for all cells, so the starter is put back after it.
"""

import copy

from .cells import BEGIN_SOLUTION, END_SOLUTION, Notebook, marks_of

BEGIN_STARTER, END_STARTER = "BEGIN STARTER", "END STARTER"


def has_starter(source: str) -> bool:
    """Whether a source cell brings a starter."""
    return BEGIN_STARTER in source


def starter_of(source: str) -> str:
    """What a learner gets of a cell that brings a starter: the cell without markers and without its solution.

    Raises:
        ValueError: If a marker is missing or they are not in order.
    """
    return "\n".join(_outside(source, (BEGIN_SOLUTION, END_SOLUTION))).strip("\n")


def solution_of(source: str) -> str:
    """What the reference submission holds of such a cell: the cell without markers and without its starter."""
    return "\n".join(_outside(source, (BEGIN_STARTER, END_STARTER))).strip("\n")


def with_starters(released: Notebook, source: Notebook) -> Notebook:
    """Put the starters back into a released notebook, whose solutions nbgrader has replaced by its stub.

    Args:
        released: As nbgrader made it.
        source: The hand-written notebook it was made from.
    """
    starters = {
        marks_of(cell)["grade_id"]: starter_of(cell["source"])
        for cell in source["cells"]
        if marks_of(cell).get("solution") and has_starter(cell["source"])
    }
    notebook = copy.deepcopy(released)
    for cell in notebook["cells"]:
        starter = starters.get(marks_of(cell).get("grade_id"))
        if starter is not None:
            cell["source"] = starter
    return notebook


def _outside(source: str, dropped: tuple[str, str]) -> list[str]:
    """The lines outside one kind of region; all markers go."""
    order = (BEGIN_STARTER, END_STARTER, BEGIN_SOLUTION, END_SOLUTION)
    lines = source.splitlines()
    places = [[number for number, line in enumerate(lines) if marker in line] for marker in order]
    if any(len(found) != 1 for found in places) or places != sorted(places):
        raise ValueError(f"a cell with a starter needs, once each and in this order: {', '.join(order)}")
    at = {marker: found[0] for marker, found in zip(order, places, strict=True)}
    return [
        line
        for number, line in enumerate(lines)
        if not at[dropped[0]] <= number <= at[dropped[1]] and number not in at.values()
    ]
