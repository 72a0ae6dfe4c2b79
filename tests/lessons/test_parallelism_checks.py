"""Lab 7's checks over many seeds: other right answers pass, mistakes never slip through, and no input is shown."""

import functools

import answers
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DistributedSampler

from accelerando import quizzes
from accelerando.checks import parallelism as checks
from accelerando.submission import LocalSubmission, SpeedTask, Wrong, judge

ALTERNATIVES = {
    "parallelism.ring_step": [
        """
def ring_step(rank, step, world_size):  # the other way around
    send = (rank + step) % world_size
    return {
        "to": (rank - 1) % world_size,
        "send": send,
        "receive": (send + 1) % world_size,
        "adds": step + 1 < world_size,
    }
""",
        """
def ring_step(rank, step, world_size):  # pieces shifted by one, the halves written apart
    right, adds = (rank + 1) % world_size, step < world_size - 1
    piece = rank - step - 1 if adds else rank - (step - world_size + 1)
    return {"to": right, "send": piece % world_size, "receive": (piece - 1) % world_size, "adds": adds}
""",
    ],
    "parallelism.share": [
        """
def share(n, rank, world_size, epoch, is_training):
    order = torch.arange(n)
    if is_training:
        order = torch.randperm(n, generator=torch.Generator().manual_seed(7 * epoch + 3))
        order = order.repeat(world_size)[: -(-n // world_size) * world_size]
        return order.view(world_size, -1)[rank].tolist()
    return torch.tensor_split(order, world_size)[rank].tolist()
""",
    ],
    "parallelism.loss_weights": [
        """
def loss_weights(images):
    mean = sum(sum(own) for own in images) / len(images)
    return [[count / mean for count in own] for own in images]
""",
    ],
    "parallelism.first_that_fits": [
        """
def first_that_fits(parameters, world_size, activation_bytes, memory_bytes):
    room, n = memory_bytes - activation_bytes, world_size
    for stage, parts in enumerate(((1, 1, 1), (1, 1, n), (1, n, n), (n, n, n))):
        if sum(size * parameters / part for size, part in zip((2, 2, 12), parts)) <= room:
            return stage
""",
    ],
}
submission = functools.partial(answers.submission, torch=torch, dist=dist, nn=nn, DistributedSampler=DistributedSampler)


@pytest.mark.parametrize("question", ALTERNATIVES)
def test_other_right_answers_pass_for_every_seed(question: str) -> None:
    answers.assert_right(question, map(submission, ALTERNATIVES[question]), seeds=15)


@pytest.mark.parametrize("question", ALTERNATIVES)
def test_no_mistake_slips_through_for_any_seed(question: str) -> None:
    said = answers.assert_no_mistake_slips_through(question, submission, seeds=15)
    assert not any("`find_" in message for message in said)


def test_averaging_by_hand_after_the_last_batch_is_another_right_answer() -> None:
    code = """
def train(ddp, steps, optimizer):
    model = ddp.module
    for batches in steps:
        optimizer.zero_grad()
        for images, labels in batches:
            (nn.functional.cross_entropy(model(images), labels) / len(batches)).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        optimizer.step()
"""
    result = judge("parallelism.train", submission(code), 5)
    assert not isinstance(result, SpeedTask)
    assert result.status == "passed", result.message


@pytest.mark.parametrize("value", ["len", "torch.sum", "'text'", "print"])
def test_what_is_not_written_in_its_cell_is_refused_without_starting_ranks(value: str) -> None:
    result = judge("parallelism.train", LocalSubmission({"train": eval(value)}), 1)
    assert not isinstance(result, SpeedTask)
    assert "written in its cell" in result.message


def reports(sent: int | None, plain: int | None) -> list[dict]:
    return [{"sent_bytes": sent, "plain_bytes": plain} for _ in range(2)]


def test_bytes_are_judged_by_the_threshold_and_a_system_that_does_not_count_costs_nothing() -> None:
    checks._judge_bytes(reports(100, 400), 4.0, 50)
    with pytest.raises(Wrong, match=r"3\.3 times fewer, wanted 4"):
        checks._judge_bytes(reports(120, 400), 4.0, 50)
    with pytest.raises(checks.NotMeasurableHere):
        checks._judge_bytes(reports(None, None), 4.0, 50)
    with pytest.raises(Wrong, match="On which other way"):
        checks._judge_bytes(reports(49, 400), 4.0, 50)


def test_compressed_gradients_are_another_right_answer() -> None:
    code = """
def train(ddp, steps, optimizer):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    for batches in steps:
        optimizer.zero_grad()
        with ddp.no_sync():
            for images, labels in batches[:-1]:
                (nn.functional.cross_entropy(ddp(images), labels) / len(batches)).backward()
        images, labels = batches[-1]
        (nn.functional.cross_entropy(ddp(images), labels) / len(batches)).backward()
        optimizer.step()
"""
    result = judge("parallelism.train", submission(code), 5)
    assert not isinstance(result, SpeedTask)
    assert result.status == "passed", result.message


def test_who_keeps_only_backward_inside_no_sync_is_asked_about_the_forward() -> None:
    found = [{**report, "uses_no_sync": True} for report in reports(400, 400)]
    with pytest.raises(Wrong, match="the forward before it as well"):
        checks._judge_bytes(found, 4.0, 50)
    with pytest.raises(Wrong, match="How often"):
        checks._judge_bytes(reports(400, 400), 4.0, 50)


def test_the_first_wrong_weight_is_named_with_its_factor() -> None:
    images = [[6, 2], [4]]
    checks._judge_weights([[1.0, 1 / 3], [2 / 3]], images, "the example")
    with pytest.raises(Wrong, match=r"batch 1 of rank 0 .* is 4 times .* How much of the whole mean"):
        checks._judge_weights([[1.0, 4 / 3], [2 / 3]], images, "the example")
    with pytest.raises(Wrong, match=r"batch 0 of rank 0 .* is 0\.5 times .* same factor"):
        checks._judge_weights([[0.5, 1 / 6], [1 / 3]], images, "the example")
    with pytest.raises(Wrong, match="though the batch is empty"):
        checks._judge_weights([[2.0], [1.0]], [[5], [0]], "an empty batch")


ODD_VALUES = [
    "None", "True", "10**400", "float('nan')", "-1", "'x' * 10**5", "[]", "{}", "[[1], {'a': None}]",
    "[[float('nan')]]", "torch.zeros(2, 2)", "torch.tensor(1 + 2j)", "(i for i in range(3))", "object()", "1.0",
]  # fmt: skip


@pytest.mark.parametrize("value", ODD_VALUES)
def test_an_odd_value_is_a_wrong_answer_and_no_mistake_of_the_check(value: str) -> None:
    odd = eval(value)
    move = {"to": 1, "send": 0, "receive": 0, "adds": True}
    answers = {
        "ring_step": [odd, *({**move, key: odd} for key in move if (key, value) != ("adds", "True"))],
        "share": [odd, [odd], [0, odd]],
        "loss_weights": [odd, [odd], [[odd, 1.0], [1.0]]],
        "first_that_fits": [odd],
        "train": [odd],
        "quiz": [odd, {question.id: odd for question in quizzes.read("parallelism")}],
    }
    for name, found in answers.items():
        for answer in found:
            is_value = name in ("quiz", "train")
            namespace = {name: answer if is_value else lambda *_, answer=answer: answer}
            result = judge(f"parallelism.{name}", LocalSubmission(namespace), 3)
            assert getattr(result, "status", "valid") == "failed", (name, answer)
