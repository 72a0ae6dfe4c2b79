"""Lab 10's checks: other right answers pass over many seeds, garbage gets one sentence, no held-back input is shown."""

import linecache
import os
import signal

import pytest
import torch

from accelerando import catalog, quizzes
from accelerando.probes import clusters as probe
from accelerando.submission import LocalSubmission, SpeedTask, Wrong, find_check, judge

RIGHT = {
    "clusters.torchrun_words": """
def torchrun_words(host_file, host, port):  # options in two words each, and in torchrun's older spelling
    found = re.findall(r"^[ \\t]*([\\w.-]+)[^#\\n]*?\\\\bslots=(\\\\d+)", host_file, re.MULTILINE)
    names = [name for name, _ in found]
    return ["torchrun", "--master_addr", names[0], "--master_port", str(port), "--nnodes", str(len(names)),
            "--node_rank", str(names.index(host)), "--nproc_per_node", dict(found)[host], "train.py"]
""".replace("\\\\", "\\"),
    "clusters.efficiency": """
def efficiency(forward_s, backward_s, parameters, nodes, mbit_per_s, batches):
    bits = 64 * parameters * (1 - 1 / nodes)
    waits = bits / mbit_per_s / 1e6 - backward_s
    whole = (forward_s + backward_s) * batches
    return whole / (whole + waits) if waits > 0 else 1
""",
    "clusters.remaining": """
def remaining(order, seen, rank, world_size):
    mine = []
    for start in range(seen, len(order) - world_size + 1, world_size):
        mine.append(order[start + world_size - 1 - rank])  # the other way around in each round
    return mine
""",
    "clusters.save": """
def save(path, parts, place):
    folder, name = os.path.split(path)
    number = sum(1 for _ in os.scandir(folder))
    torch.save({"parts": {name: part.state_dict() for name, part in parts.items()}, "place": dict(place),
                "rng": torch.get_rng_state(), "note": "mine"}, os.path.join(folder, f"{number}.part"))
    os.rename(os.path.join(folder, f"{number}.part"), path)
""",
    "clusters.slow_link_plan": """
def slow_link_plan(start, link):
    return {"compression": "powersgd", "accumulate": 2, "learning_rate": 1}
""",
}
GARBAGE = ("None", "[]", "float('nan')", "10**400", "{}", "'x'", "[float('inf')]", "[None] * 4", "{1: 2}", "[[]]")


def of(source: str) -> LocalSubmission:
    import re

    namespace: dict = {"os": os, "torch": torch, "re": re}
    file = f"<answer {hash(source)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(source, file, "exec"), namespace)
    return LocalSubmission(namespace)


@pytest.mark.parametrize("question", RIGHT)
@pytest.mark.parametrize("seed", range(3))
def test_other_right_answers_pass(question: str, seed: int) -> None:
    outcome = judge(question, of(RIGHT[question]), seed)
    assert isinstance(outcome, SpeedTask) or outcome.status == "passed", outcome


@pytest.mark.parametrize("question", [question for question in RIGHT if question != "clusters.save"])
@pytest.mark.parametrize("value", GARBAGE)
def test_garbage_gets_one_sentence(question: str, value: str) -> None:
    name = catalog.question(question).function
    outcome = judge(question, of(f"def {name}(*arguments):\n    return {value}\n"), 5)
    assert not isinstance(outcome, SpeedTask) or value == "[]"
    if not isinstance(outcome, SpeedTask):
        assert outcome.status == "failed"
        assert 20 < len(outcome.message) < 400


@pytest.mark.parametrize("body", [
    "pass", "open(path, 'w').write('x')", "raise KeyError(path)", "torch.manual_seed(0)",
    "torch.save({'parts': parts, 'place': place, 'rng': torch.get_rng_state()}, path)",
])  # fmt: skip
def test_a_save_that_is_none_gets_one_sentence(body: str) -> None:
    outcome = judge("clusters.save", of(f"def save(path, parts, place):\n    {body}\n"), 5)
    assert not isinstance(outcome, SpeedTask)
    assert outcome.status == "failed"
    assert 20 < len(outcome.message) < 400


def test_wrong_answers_fail_on_every_seed() -> None:
    for question in ("clusters.torchrun_words", "clusters.efficiency", "clusters.remaining"):
        for wrong in find_check(question).wrong:
            for seed in range(5):
                outcome = judge(question, of(wrong.code), seed)
                assert not isinstance(outcome, SpeedTask)
                assert outcome.status == "failed", wrong.mistake


def test_a_process_is_really_killed_while_it_saves(tmp_path: pytest.TempPathFactory) -> None:
    path = tmp_path / "checkpoint.pt"  # type: ignore[operator]

    def save(name: str, parts: dict, place: dict) -> None:
        with open(name, "wb") as file:
            file.write(bytes(100_000))

    assert probe._die_saving(save, path, {}, 0, 10_000) is True
    assert path.stat().st_size <= 10_000
    assert probe._die_saving(save, path, {}, 0, 1_000_000) is False
    assert signal.getsignal(signal.SIGXFSZ) != signal.SIG_DFL, "the learner's own process is as it was"


def test_the_random_state_of_the_kernel_is_left_alone() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    with pytest.raises(Wrong, match="random"):
        probe.save({"save": lambda path, parts, place: torch.rand(1)}, 5)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_quiz_points_to_sections_of_the_lesson() -> None:
    from accelerando import work
    from accelerando.grading.notebooks import read_notebook

    lesson = catalog.find("clusters")
    notebook, _ = read_notebook(work.checkout() / "notebooks" / f"{lesson.folder}.ipynb")
    text = "\n".join(cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "markdown")
    for question in quizzes.read("clusters"):
        assert f"## {question.section}\n" in text
