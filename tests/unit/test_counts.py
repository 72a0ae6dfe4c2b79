"""Counts: each agrees with arithmetic done by hand, on inputs where a shortcut would differ."""

import socket
import sys

import pytest
import torch
from torch import nn

from accelerando import counts


def test_tied_weights_count_once():
    model = nn.Sequential(nn.Linear(5, 5, bias=False), nn.Linear(5, 5, bias=False))
    model[1].weight = model[0].weight
    assert counts.parameters(model) == 25
    assert counts.parameter_bytes(model) == 100


def test_frozen_parameters_take_bytes_but_are_not_trained():
    model = nn.Linear(4, 3).bfloat16()
    model.weight.requires_grad_(False)
    assert counts.parameters(model) == 3
    assert counts.parameter_bytes(model) == 2 * 15


@pytest.mark.parametrize(("family", "copies"), [(torch.optim.SGD, 1), (torch.optim.AdamW, 2)])
def test_optimizer_state_is_one_copy_for_momentum_and_two_for_adam(family, copies):
    model = nn.Linear(100, 10, bias=False)
    optimizer = family(model.parameters(), lr=0.1, **({"momentum": 0.9} if copies == 1 else {}))
    assert counts.optimizer_state_bytes(optimizer) == 0
    model(torch.ones(1, 100)).sum().backward()
    optimizer.step()
    step_counter_bytes = 4 * (copies - 1)
    assert counts.optimizer_state_bytes(optimizer) == copies * 4000 + step_counter_bytes


def test_relu_saves_its_output_once_and_views_of_it_are_free():
    x = torch.randn(8, 50, requires_grad=True)
    with counts.saved_for_backward() as saved:
        y = torch.relu(x)
        z = y.view(50, 8) * y.view(50, 8)
    assert saved.total == 8 * 50 * 4
    assert saved.tensors == 3
    z.sum().backward()


def test_parameters_saved_for_backward_are_not_activations():
    layer = nn.Linear(50, 20)
    x = torch.randn(8, 50, requires_grad=True)
    with counts.saved_for_backward(layer) as saved:
        layer(x)
    assert saved.activations == 8 * 50 * 4
    assert saved.total == 8 * 50 * 4 + 50 * 20 * 4


def test_memory_freed_during_the_forward_is_not_mistaken_for_memory_seen_before():
    x = torch.randn(1000, requires_grad=True)
    with counts.saved_for_backward() as saved:
        for _ in range(5):
            torch.sin(x + 1)  # the sum is thrown away at once: its address is free for the next one
    assert saved.total == 5 * 4000


def test_for_loop_optimizer_starts_more_operators_than_foreach():
    def operators_of_a_step(foreach: bool) -> int:
        model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(10)))
        model(torch.ones(1, 4)).sum().backward()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=foreach)
        with counts.operators() as seen:
            optimizer.step()
        return sum(seen.values())

    assert operators_of_a_step(False) >= 20 * 1
    assert operators_of_a_step(True) <= 3


def test_flops_of_a_convolution_match_its_formula_and_leave_gradients_alone():
    layer = nn.Conv2d(3, 8, 3, padding=1, bias=False)
    images = torch.randn(2, 3, 10, 10)
    forward = 2 * 2 * 10 * 10 * 8 * 3 * 9
    assert counts.flops(layer, images, is_training=False) == forward
    assert counts.flops(layer, images) == 2 * forward
    assert layer.weight.grad is None


def test_a_print_breaks_the_graph_in_two_and_the_report_says_why():
    def smooth(x):
        return torch.sin(x) + 1

    def broken(x):
        y = torch.sin(x)
        torch._dynamo.graph_break()
        return y + 1

    whole = counts.graph_breaks(smooth, torch.ones(3))
    cut = counts.graph_breaks(broken, torch.ones(3))
    assert (whole.graphs, whole.breaks, whole.reasons) == (1, 0, ())
    assert (cut.graphs, cut.breaks) == (2, 1)
    assert len(cut.reasons) == 1
    assert cut.reasons[0]


def test_last_smaller_batch_recompiles_once_then_sizes_are_dynamic():
    def scaled(x):
        return x * 2

    same = [(torch.ones(64, 3),)] * 4
    smaller = [*same, (torch.ones(17, 3),), (torch.ones(18, 3),)]
    assert counts.recompiles(scaled, same) == 0
    assert counts.recompiles(scaled, smaller) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what a connection has sent")
def test_bytes_on_the_wire_are_those_that_were_sent_and_files_are_none(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as near:
        far, _ = server.accept()
        with far:
            before = counts.sent_bytes()
            (tmp_path / "file").write_bytes(bytes(1000))
            near.sendall(bytes(5000))
            far.sendall(bytes(7))
            far.recv(5000, socket.MSG_WAITALL)
            assert counts.sent_bytes() - before == 5007
