"""Recipes: data that says what is wrong with it, and the schedules they name."""

import json

import pytest

from accelerando.recipes import Recipe, learning_rate_at


def test_recipe_survives_json():
    recipe = Recipe(batch_size=7, loader="per_sample", num_workers=1, prefetch_factor=4, clip_norm=1.0)
    assert Recipe.from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe


def test_what_is_left_out_keeps_its_default():
    assert Recipe.from_dict({"batch_size": 64}) == Recipe(batch_size=64)
    assert Recipe.from_dict({}) == Recipe()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"batchsize": 64}, "did you mean 'batch_size'"),
        ({"quality": 1}, "a recipe has batch_size, epochs"),
        ({"batch_size": 0}, "batch_size is 0: it must be a whole number from 1 to 65,536"),
        ({"batch_size": 64.0}, "whole number"),
        ({"batch_size": "64"}, "whole number"),
        ({"batch_size": True}, "whole number"),
        ({"learning_rate": float("nan")}, "number from 0 to 100"),
        ({"learning_rate": -0.1}, "number from 0 to 100"),
        ({"optimizer": "SGD"}, "one of sgd, adam, adamw"),
        ({"optimizer": ["sgd"]}, "one of sgd, adam, adamw"),
        ({"compile": "yes"}, "true or false"),
        ({"threads": 0}, "from 1 to 1,024 or null"),
        ({"num_workers": 2}, "need loader 'per_sample'"),
        ({"loader": "per_sample", "prefetch_factor": 2}, "at least 1 worker"),
        ({"optimizer": "adam", "nesterov": True}, "needs optimizer 'sgd'"),
        ({"nesterov": True, "momentum": 0.0}, "momentum above 0"),
        ([("batch_size", 1)], "dictionary"),
    ],
)
def test_bad_recipe_is_refused_with_what_is_allowed(values, message):
    with pytest.raises(ValueError, match=message):
        Recipe.from_dict(values)


def test_changed_recipe_differs_in_the_changed_field_only():
    base = Recipe()
    assert base.difference(base.changed(batch_size=32, seed=1)) == {"batch_size": (128, 32), "seed": (0, 1)}
    with pytest.raises(ValueError, match="did you mean 'epochs'"):
        base.changed(epoch=3)


@pytest.mark.parametrize("schedule", ["constant", "cosine", "one_cycle"])
@pytest.mark.parametrize("total", [1, 2, 7, 100])
@pytest.mark.parametrize("warmup", [None, 0.0, 0.5])
def test_rate_is_positive_and_never_above_its_height(schedule, total, warmup):
    recipe = Recipe(schedule=schedule, warmup_fraction=warmup, learning_rate=0.4)
    rates = [learning_rate_at(recipe, step, total) for step in range(total)]
    assert all(0 < rate <= 0.4 for rate in rates)


def test_one_cycle_climbs_for_a_quarter_then_falls_to_almost_nothing():
    recipe = Recipe(schedule="one_cycle", learning_rate=1.0)
    rates = [learning_rate_at(recipe, step, 100) for step in range(100)]
    assert rates[0] == pytest.approx(1 / 25)
    assert rates.index(max(rates)) == 25
    assert rates[:26] == sorted(rates[:26])
    assert rates[25:] == sorted(rates[25:], reverse=True)
    assert rates[-1] < 0.02


def test_cosine_is_half_way_down_in_the_middle():
    assert learning_rate_at(Recipe(schedule="cosine", learning_rate=1.0), 50, 100) == pytest.approx(0.5)
