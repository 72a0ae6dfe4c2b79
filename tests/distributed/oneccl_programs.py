"""What `test_oneccl` runs on each rank: the same collective through ccl and through gloo, many times in one launch.

Rank 0 lets Hypothesis draw the cases and sends each to the others; so a failing case shrinks, though it takes several
processes. Values are small whole numbers, which every type adds and multiplies exactly: results must be equal to the
last bit.
"""

import datetime
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

TYPES = ("float32", "float64", "bfloat16", "float16", "int8", "uint8", "int32", "int64", "bool")
OPERATIONS = ("SUM", "AVG", "MIN", "MAX", "PRODUCT")
LAYOUTS = ("contiguous", "transposed", "strided")
REDUCTIONS = ("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor", "all_reduce_coalesced")
MOVES = (
    "broadcast",
    "all_gather",
    "all_gather_into_tensor",
    "gather",
    "scatter",
    "all_to_all",
    "all_to_all_single",
    "ring",
)


def cases(world_size: int) -> st.SearchStrategy[dict[str, Any]]:
    """Everything that a caller can vary."""
    return st.fixed_dictionaries(
        {
            "collective": st.sampled_from([*REDUCTIONS, *MOVES]),
            "dtype": st.sampled_from(TYPES),
            "operation": st.sampled_from(OPERATIONS),
            "shape": st.one_of(
                st.lists(st.integers(0, 5), max_size=3),
                st.integers(1, 60_000).map(lambda length: [length]),
            ),
            "layout": st.sampled_from(LAYOUTS),
            "root": st.integers(0, world_size - 1),
            "is_async": st.booleans(),
            "splits": st.lists(st.integers(0, 3), min_size=world_size**2, max_size=world_size**2),
            "seed": st.integers(0, 2**31),
        }
    )


def every_combination() -> Iterator[dict[str, Any]]:
    """Each collective with each type and, where it reduces, each operation: chance alone would leave many out."""
    combinations = [*itertools.product(REDUCTIONS, TYPES, OPERATIONS), *itertools.product(MOVES, TYPES, ["SUM"])]
    for number, (collective, dtype, operation) in enumerate(combinations):
        yield {
            "collective": collective, "dtype": dtype, "operation": operation, "shape": [3, 5], "root": 0,
            "layout": LAYOUTS[number % 3], "is_async": number % 2 == 1, "splits": [2, 0, 1, 3] * 4, "seed": number,
        }  # fmt: skip


def everything(examples: int) -> dict[str, Any]:
    """Return a finding for each claim: None, or what was wrong."""
    import torch
    import torch.distributed as dist

    from accelerando.backends import oneccl

    oneccl.register()
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
    ccl = dist.new_group(backend="ccl", timeout=datetime.timedelta(seconds=60))
    claims = {
        "same_as_gloo": lambda: same_as_gloo(ccl, examples),
        "ddp": lambda: ddp_gradients(ccl),
        "order": lambda: in_order(ccl),
        "future": lambda: future_of(ccl),
        "groups": groups_side_by_side,
        "errors": lambda: refused(ccl),
    }
    findings = {name: claim() for name, claim in claims.items()}
    torch.manual_seed(0)
    dist.destroy_process_group()
    return findings


def same_as_gloo(ccl: Any, examples: int) -> str | None:
    import torch.distributed as dist

    world_size = dist.get_world_size()

    def mismatch(case: dict[str, Any] | None) -> list[str | None]:
        told: list[Any] = [case]
        dist.broadcast_object_list(told, src=0)
        if told[0] is None:
            return []
        try:
            wrong = difference(told[0], ccl)
        except Exception as error:
            wrong = repr(error)
        all_wrong: list[str | None] = [None] * world_size
        dist.all_gather_object(all_wrong, wrong)
        return [*all_wrong, "go on"]

    if dist.get_rank() != 0:
        while mismatch(None):
            pass
        return None

    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(cases(world_size))
    def holds(case: dict[str, Any]) -> None:
        wrong = [f"rank {rank}: {text}" for rank, text in enumerate(mismatch(case)[:-1]) if text]
        assert not wrong, f"{wrong[0]} in {case}"

    try:
        for case in every_combination():
            holds.hypothesis.inner_test(case)
        holds()
    except AssertionError as error:
        return str(error)
    finally:
        mismatch(None)
    return None


def difference(case: dict[str, Any], ccl: Any) -> str | None:
    import torch

    found, expected = through(case, ccl, "ccl"), through(case, None, "gloo")
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        if one.dtype != other.dtype or not torch.equal(one, other):
            return f"{one.flatten()[:8].tolist()} instead of {other.flatten()[:8].tolist()}"
    return None


def numbers(case: dict[str, Any], part: int = 0, shape: list[int] | None = None) -> Any:
    """Return this rank's values for a part of a case: other ones on each rank."""
    import torch
    import torch.distributed as dist

    generator = torch.Generator().manual_seed(case["seed"] + 1000 * dist.get_rank() + part)
    low = 0 if case["dtype"] in ("uint8", "bool") else -3
    values = torch.randint(low, 4, shape if shape is not None else case["shape"], generator=generator)
    return values.to(getattr(torch, case["dtype"]))


def laid_out(tensor: Any, layout: str) -> Any:
    """Return the same values, stored otherwise."""
    import torch

    if layout == "transposed" and tensor.dim() >= 2:
        return tensor.transpose(0, 1).contiguous().transpose(0, 1)
    if layout == "strided" and tensor.dim() >= 1:
        wide = torch.zeros([*tensor.shape[:-1], 2 * tensor.shape[-1]], dtype=tensor.dtype)
        wide[..., ::2] = tensor
        return wide[..., ::2]
    return tensor.clone()


def through(case: dict[str, Any], group: Any, backend: str) -> list[Any]:
    """Return what a collective leaves on this rank; gloo is composed where it lacks one."""
    import torch
    import torch.distributed as dist

    rank, size, root = dist.get_rank(), dist.get_world_size(), case["root"]
    name, is_ccl = case["collective"], backend == "ccl"
    layout = case["layout"] if is_ccl else "contiguous"

    def of(part: int = 0, shape: list[int] | None = None) -> Any:
        return laid_out(numbers(case, part, shape), layout)

    def empty(shape: list[int] | None = None) -> Any:
        fresh = torch.zeros(shape if shape is not None else case["shape"], dtype=getattr(torch, case["dtype"]))
        return laid_out(fresh, layout)

    def done(call: Any, *arguments: Any, **options: Any) -> None:
        work = call(*arguments, group=group, async_op=case["is_async"], **options)
        if case["is_async"]:
            work.wait()

    def reduced(tensor: Any) -> Any:
        """All-reduce in place, as gloo can."""
        operation = case["operation"]
        if is_ccl:
            done(dist.all_reduce, tensor, op=getattr(dist.ReduceOp, operation))
            return tensor
        if tensor.dtype == torch.bool:
            whole = tensor.to(torch.uint8)
            done(dist.all_reduce, whole, op=dist.ReduceOp.MAX if operation in ("SUM", "MAX") else dist.ReduceOp.MIN)
            return whole.to(torch.bool)
        done(dist.all_reduce, tensor, op=getattr(dist.ReduceOp, "SUM" if operation == "AVG" else operation))
        if operation == "AVG":
            tensor = tensor.div(size, rounding_mode=None if tensor.is_floating_point() else "trunc").to(tensor.dtype)
        return tensor

    if name in REDUCTIONS and case["dtype"] == "bool" and case["operation"] == "AVG":
        return []  # refused, which another test shows
    operation = getattr(dist.ReduceOp, case["operation"])
    if name == "all_reduce":
        return [reduced(of())]
    if name == "all_reduce_coalesced":
        tensors = [of(0), of(1, [3])]
        if is_ccl:
            options = dist.AllreduceCoalescedOptions()
            options.reduceOp = operation
            group._get_backend(torch.device("cpu")).allreduce_coalesced(tensors, options).wait()
            return tensors
        return [reduced(tensor) for tensor in tensors]
    if name == "reduce":
        tensor = of()
        if is_ccl:
            done(dist.reduce, tensor, root, op=operation)
            return [tensor]
        return [reduced(tensor) if rank == root else (reduced(tensor.clone()), tensor)[1]]
    if name in ("reduce_scatter", "reduce_scatter_tensor"):
        parts = [of(part) for part in range(size)]
        if not is_ccl:
            return [[reduced(part) for part in parts][rank]]
        output = empty()
        if name == "reduce_scatter":
            done(dist.reduce_scatter, output, parts, op=operation)
        elif output.dim() == 0:
            done(dist.reduce_scatter_tensor, output, torch.stack(parts), op=operation)
        else:
            done(dist.reduce_scatter_tensor, output, laid_out(torch.cat(parts), layout), op=operation)
        return [output]
    if name == "broadcast":
        tensor = of()
        done(dist.broadcast, tensor, src=root)
        return [tensor]
    if name == "all_gather":
        outputs = [empty() for _ in range(size)]
        done(dist.all_gather, outputs, of())
        return outputs
    if name == "all_gather_into_tensor":
        if is_ccl:
            output = empty([size, *case["shape"]])
            done(dist.all_gather_into_tensor, output, of())
            return [output]
        outputs = [empty() for _ in range(size)]
        done(dist.all_gather, outputs, of())
        return [torch.stack(outputs)]
    if name == "gather":
        outputs = [empty() for _ in range(size)] if rank == root else None
        done(dist.gather, of(), outputs, dst=root)
        return outputs or []
    if name == "scatter":
        output = empty()
        done(dist.scatter, output, [of(part) for part in range(size)] if rank == root else None, src=root)
        return [output]
    if name == "ring":
        if size == 1:
            return []
        output, tensor = empty(), of()
        works = [dist.isend(tensor, (rank + 1) % size, group=group), dist.irecv(output, (rank - 1) % size, group=group)]
        for work in works:
            work.wait()
        return [output]
    splits = [case["splits"][one * size : (one + 1) * size] for one in range(size)]  # [from][to]
    inputs = [of(part, [splits[rank][part], 2]) for part in range(size)]
    shapes = [[splits[other][rank], 2] for other in range(size)]
    if not is_ccl:
        outputs = [empty(shape) for shape in shapes]
        works = [dist.isend(inputs[other], other) for other in range(size) if other != rank]
        works += [dist.irecv(outputs[other], other) for other in range(size) if other != rank]
        for work in works:
            work.wait()
        outputs[rank] = inputs[rank]
        return outputs if name == "all_to_all" else [torch.cat(outputs)]
    if name == "all_to_all":
        outputs = [empty(shape) for shape in shapes]
        done(dist.all_to_all, outputs, inputs)
        return outputs
    output = empty([sum(shape[0] for shape in shapes), 2])
    rows = [shape[0] for shape in shapes]
    done(dist.all_to_all_single, output, laid_out(torch.cat(inputs), layout), rows, splits[rank])
    return [output]


def ddp_gradients(ccl: Any) -> str | None:
    """Train the same small net through both; buckets of two sizes, and inputs that differ between ranks."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    gradients = []
    for group in (ccl, None):
        torch.manual_seed(1)
        net = nn.Sequential(nn.Linear(64, 700), nn.ReLU(), nn.Linear(700, 700), nn.ReLU(), nn.Linear(700, 3))
        wrapped = DistributedDataParallel(net, process_group=group, bucket_cap_mb=1)
        torch.manual_seed(2 + dist.get_rank())
        for _ in range(2):
            wrapped(torch.randn(8, 64)).square().mean().backward()
        gradients.append([parameter.grad for parameter in net.parameters()])
    for one, other in zip(*gradients, strict=True):
        if not torch.allclose(one, other, rtol=1e-5, atol=1e-7):
            return f"gradients differ by {(one - other).abs().max().item():g}"
    return None


def in_order(ccl: Any) -> str | None:
    import torch
    import torch.distributed as dist

    size = dist.get_world_size()
    tensor = torch.ones(300_000)
    works = [dist.all_reduce(tensor, group=ccl, async_op=True) for _ in range(4)]
    for work in works:
        work.wait()
    return None if bool((tensor == float(size**4)).all()) else f"{tensor.unique().tolist()} instead of {size**4}"


def future_of(ccl: Any) -> str | None:
    import torch
    import torch.distributed as dist

    work = dist.all_reduce(torch.ones(5), group=ccl, async_op=True)
    value = work.get_future().then(lambda future: future.value()[0].sum().item()).wait()
    return None if value == 5.0 * dist.get_world_size() else f"the future gave {value}"


def groups_side_by_side() -> str | None:
    """Let two groups that share rank 0 work, one made of all and one of the first half."""
    import torch
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    half = list(range((size + 1) // 2))
    first = dist.new_group(half, backend="ccl")
    all_of_them = dist.new_group(backend="ccl")
    one, other = torch.full((4,), float(rank)), torch.full((4,), float(rank))
    works = [dist.all_reduce(other, group=all_of_them, async_op=True)]
    if rank in half:
        works.append(dist.all_reduce(one, group=first, async_op=True))
    for work in reversed(works):
        work.wait()
    expected = float(sum(half)) if rank in half else float(rank)
    if one[0] != expected or other[0] != float(sum(range(size))):
        return f"{one[0]} and {other[0]}"
    return None


def refused(ccl: Any) -> dict[str, str]:
    """Return the type and text of the error for each call that cannot be."""
    import torch
    import torch.distributed as dist

    size = dist.get_world_size()
    calls = {
        "bitwise": lambda: dist.all_reduce(torch.ones(2, dtype=torch.int32), op=dist.ReduceOp.BXOR, group=ccl),
        "average of truth": lambda: dist.all_reduce(torch.ones(2) > 0, op=dist.ReduceOp.AVG, group=ccl),
        "sparse": lambda: dist.all_reduce(torch.ones(2).to_sparse(), group=ccl),
        "type": lambda: dist.all_reduce(torch.ones(2).to(torch.float8_e4m3fn), group=ccl),
        "sizes": lambda: dist.all_gather_into_tensor(torch.ones(2 * size + 1), torch.ones(2), group=ccl),
        "splits": lambda: dist.all_to_all_single(torch.ones(size), torch.ones(size), [9] * size, [1] * size, group=ccl),
        "any source": lambda: dist.recv(torch.ones(1), group=ccl),
    }
    said = {}
    for name, call in calls.items():
        try:
            call()
            said[name] = "no error"
        except Exception as error:
            said[name] = f"{type(error).__name__}: {error}"
    dist.barrier(group=ccl)  # and the group is as good as before
    return said


def two_misfortunes(store_file: str, rank: int) -> None:
    """Let rank 2 not come in time to one group, rank 1 die in another; rank 0 prints what it was told."""
    import torch
    import torch.distributed as dist

    from accelerando.backends import oneccl

    oneccl.register()
    limit = datetime.timedelta(seconds=60)
    dist.init_process_group("ccl", store=dist.FileStore(store_file, 3), rank=rank, world_size=3, timeout=limit)
    with_dead = dist.new_group([0, 1])
    with_late = dist.new_group([0, 2], timeout=datetime.timedelta(seconds=2))
    tensor = torch.ones(100_000)
    dist.all_reduce(tensor)
    if rank == 2:
        time.sleep(120)  # ended by the test
    if rank == 1:
        work = dist.all_reduce(torch.ones(2**24), group=with_dead, async_op=True)
        time.sleep(0.002)
        os.kill(os.getpid(), signal.SIGKILL)
        work.wait()
    said = []
    for group, size in ((with_late, 100), (with_late, 100), (with_dead, 2**24), (with_dead, 100)):
        began_s = time.monotonic()
        try:
            dist.all_reduce(torch.ones(size), group=group)
            said.append(["no error", 0.0])
        except Exception as error:
            said.append([f"{type(error).__name__}: {error}", time.monotonic() - began_s])
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    two_misfortunes(sys.argv[1], int(sys.argv[2]))
