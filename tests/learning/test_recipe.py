"""One recipe for library, commands and federation file: fields, defaults and checks."""

import inspect
from dataclasses import MISSING, fields

import pytest

import decor
from decor.cli.main import parser
from decor.errors import InputError
from decor.federation.file import Training
from decor.learning.recipe import Recipe, recipe_with


def test_every_field_has_a_default_a_help_text_and_stands_in_the_docstring():
    for each in fields(Recipe):
        assert each.default is not MISSING and each.metadata["help"] and each.metadata["metavar"]
        assert f"\n    {each.name}: " in inspect.cleandoc(Recipe.__doc__)


@pytest.mark.parametrize("command", ["train", "compare"])
def test_commands_have_an_option_for_every_field_which_is_the_recipes_default_unless_given(command):
    needed = (
        ["--task", "digits", "--learning-rate", "0.1", "--output", "x"]
        if command == "train"
        else []
    )
    options = vars(parser().parse_args([command, *needed]))
    for each in fields(Recipe):
        assert not options[each.name], f"--{each.name} is not given, and must not say anything"


def test_the_federations_file_has_the_recipes_defaults():
    shared = {each.name: each for each in fields(Training)}
    for each in fields(Recipe):
        # which have names there
        if each.name in shared and each.name not in ("schedule", "accelerate", "gossip_rounds"):
            assert shared[each.name].default == each.default, each.name
    assert shared["schedule"].default == "constant" and shared["accelerate"].default == "no"
    # a file has numbers, which mean the same on every machine; `federation new` writes them
    assert shared["gossip_rounds"].default == 1


def test_fields_by_name_are_short_for_a_recipe():
    assert recipe_with(None, {}) == Recipe() and recipe_with(None, {"momentum": 0.5}) == Recipe(
        momentum=0.5
    )
    assert recipe_with(Recipe(weight_decay=0.1), {"momentum": 0.5}) == Recipe(
        weight_decay=0.1, momentum=0.5
    )
    task = decor.tasks.breast_cancer(users=3)
    plan = decor.NoisePlan(
        decor.ring(3), decor.Exposure(1.0, 4), decor.Adversary.curious(), 0.1, 0.1
    )
    short = decor.train(task, plan, learning_rate=0.1, momentum=0.5, gossip_rounds=2)
    whole = decor.train(task, plan, decor.Recipe(momentum=0.5, gossip_rounds=2), learning_rate=0.1)
    assert short.metrics == whole.metrics and short.manifest["recipe"] == whole.manifest["recipe"]
    with pytest.raises(TypeError, match="momentun"):
        decor.train(task, plan, learning_rate=0.1, momentun=0.5)


def test_the_manifest_says_what_version_0_1_said():
    assert Recipe(
        gossip_rounds=3, accelerate="chebyshev", schedule=decor.schedule.Cosine(0.1)
    ).to_json() == {
        "schedule": {"name": "Cosine", "final": 0.1},
        "momentum": 0.0,
        "weight_decay": 0.0,
        "gossip": {"rounds": 3, "accelerate": True},
        "final_gossip": {"rounds": 0, "accelerate": True},
        "local_steps": 1,
        "batch_size": None,
        "evaluate_every": None,
    }


@pytest.mark.parametrize(
    ("averaging", "steps", "models"), [(0, 7, 0), (0.01, 7, 1), (0.5, 7, 4), (1, 7, 7), (0.5, 0, 0)]
)
def test_averaging_takes_its_share_of_the_last_models(averaging, steps, models):
    assert Recipe(averaging=averaging).models_to_average(steps) == models


@pytest.mark.parametrize(
    "wrong",
    [
        {"momentum": 1.0},
        {"momentum": "fast"},
        {"weight_decay": -1},
        {"averaging": 1.1},
        {"averaging": -0.1},
        {"averaging": None},
        {"gossip_rounds": -1},
        {"accelerate": "soon"},
        {"final_gossip_rounds": 0.5},
        {"local_steps": 0},
        {"batch_size": 1.5},
        {"evaluate_every": "often"},
        {"schedule": 0.1},
    ],
    ids=str,
)
def test_what_cannot_be_meant_is_refused_with_its_value(wrong):
    ((name, value),) = wrong.items()
    with pytest.raises(InputError) as refused:
        Recipe(**wrong)
    assert repr(value) in str(refused.value)
