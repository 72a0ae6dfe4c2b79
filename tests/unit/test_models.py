"""Models: sizes are data, shapes are what they promise, counts agree with arithmetic done by hand."""

import json

import pytest
import torch
from torch import nn

from accelerando import counts, models

FAMILIES = [models.MlpSizes(), models.SLIM_CNN, models.TEXTBOOK_CNN, models.TransformerSizes()]


@pytest.mark.parametrize("sizes", FAMILIES, ids=lambda sizes: type(sizes).__name__)
def test_sizes_survive_json(sizes):
    assert models.sizes_from_dict(json.loads(json.dumps(models.sizes_to_dict(sizes)))) == sizes


@pytest.mark.parametrize("sizes", FAMILIES[:3])
def test_image_models_give_one_logit_per_class(sizes):
    assert models.build(sizes)(models.example_input(sizes, 5)).shape == (5, 10)


def test_textbook_cnn_has_1_7_million_parameters():
    by_hand = (25 * 32 + 32) + (25 * 32 * 64 + 64) + (7 * 7 * 64 * 512 + 512) + (512 * 10 + 10)
    assert counts.parameters(models.build(models.TEXTBOOK_CNN)) == by_hand
    assert 1.6e6 < by_hand < 1.8e6


def test_bias_before_batch_norm_adds_parameters_that_receive_no_gradient():
    torch.manual_seed(0)
    sizes = models.CnnSizes(bias=True)
    model = models.build(sizes)
    assert counts.parameters(model) - counts.parameters(models.build(models.SLIM_CNN)) == 16 + 32 + 64
    nn.functional.cross_entropy(model(models.example_input(sizes, 16)), torch.arange(16) % 10).backward()
    convolution = model[0]
    assert convolution.bias.grad.abs().max() < 1e-6 < convolution.weight.grad.abs().max()


def test_transformer_cannot_see_the_future():
    torch.manual_seed(0)
    sizes = models.TransformerSizes(context=16)
    model = models.build(sizes).eval()
    tokens = models.example_input(sizes, 2)
    changed = tokens.clone()
    changed[:, 9:] = (changed[:, 9:] + 1) % sizes.vocabulary
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :9], after[:, :9])
    assert not torch.allclose(before[:, 9:], after[:, 9:])


def test_transformer_refuses_a_sequence_longer_than_its_context():
    with pytest.raises(ValueError, match="at most 16"):
        models.build(models.TransformerSizes(context=16))(torch.zeros(1, 17, dtype=torch.int64))


def test_flops_of_an_mlp_are_two_per_weight_forward_and_backward_skips_the_input_gradient():
    sizes = models.MlpSizes(hidden=(20,))
    first, second = 784 * 20, 20 * 10
    assert models.flops_per_image(sizes, is_training=False) == 2 * (first + second)
    # Backward: both weight gradients, and the gradient of the hidden layer, but not that of the image.
    assert models.flops_per_image(sizes) == 2 * (first + second) * 2 + 2 * second


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kind": "cnn", "channels": [16, 0]}, "channels entry is 0"),
        ({"kind": "cnn", "channels": []}, "at least one"),
        ({"kind": "cnn", "channels": [1, 2, 3, 4, 5]}, "at most 4"),
        ({"kind": "cnn", "kernel": 4}, "odd"),
        ({"kind": "cnn", "batch_norm": 1}, "true or false"),
        ({"kind": "cnn", "chanels": [16]}, "has no size chanels: it has channels"),
        ({"kind": "mlp", "dropout": 1.0}, "not including, 1"),
        ({"kind": "transformer", "width": 65}, "multiple of heads"),
        ({"kind": "resnet"}, "one of mlp, cnn, gated, transformer"),
        ({}, "one of mlp, cnn, gated, transformer"),
        ([], "give a mapping"),
    ],
)
def test_bad_sizes_are_refused_with_what_is_allowed(values, message):
    with pytest.raises(ValueError, match=message):
        models.sizes_from_dict(values)
