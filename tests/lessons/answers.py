"""Answers as text, judged seed by seed: what the tests of every lab's checks share."""

import linecache
from collections.abc import Callable, Iterable

from accelerando.submission import LocalSubmission, Result, SpeedTask, find_check, judge


def submission(code: str, **names: object) -> LocalSubmission:
    """An answer as the learner's kernel holds it.

    Args:
        code: What stands in the answer's cell; its lines can be read, as those of a cell can.
        names: What the lab's set-up cell gives.
    """
    namespace: dict[str, object] = {"__name__": "__main__", **names}
    file = f"<answer {hash(code)}>"
    linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
    exec(compile(code, file, "exec"), namespace)
    return LocalSubmission(namespace)


def judged(question: str, answer: LocalSubmission, seed: int) -> Result:
    """What came of an answer to a question that is not timed."""
    result = judge(question, answer, seed)
    assert not isinstance(result, SpeedTask)
    return result


def assert_right(question: str, answers: Iterable[LocalSubmission], seeds: int) -> None:
    """Each answer passes for every seed."""
    for answer in answers:
        for seed in range(seeds):
            result = judged(question, answer, seed)
            assert result.status == "passed", (seed, result.message)


def assert_no_mistake_slips_through(question: str, answer: Callable[[str], LocalSubmission], seeds: int) -> list[str]:
    """Each listed mistake fails for every seed; returns the sentences."""
    said = []
    for wrong in find_check(question).wrong:
        for seed in range(seeds):
            result = judged(question, answer(wrong.code), seed)
            assert result.status == "failed", (wrong.mistake, seed)
            said.append(result.message)
    return said
