"""Options that follow from dataclass fields, and options that would change nothing."""

import argparse
from dataclasses import fields

import pytest

from decor.cli import options as opt
from decor.cli.main import parser
from decor.errors import InputError
from decor.learning.recipe import Recipe
from decor.privacy.budget import Budget, Exposure


@pytest.mark.parametrize("command", ["plan", "account", "train", "compare", "audit"])
@pytest.mark.parametrize("owner", [Exposure, Recipe, Budget])
def test_an_option_has_the_help_text_of_its_field(command, owner):
    (commands,) = [a for a in parser()._actions if isinstance(a, argparse._SubParsersAction)]
    helps = {action.dest: action.help for action in commands.choices[command]._actions}
    named = [each for each in fields(owner) if each.name in helps]
    assert named or owner is Recipe
    for each in named:
        several = command == "compare" and each.name == "epsilon"
        shared = owner is Recipe and each.name == "batch_size"  # Exposure has it too
        text = each.metadata["help"]
        if each.name == "weighting" and command in ("train", "compare"):
            # there the task has the records, and --records is refused
            text = text.replace("--records", "the task's data")
        if not several and not shared:
            assert text in helps[each.name]


def test_only_options_that_were_given_are_given():
    options = parser().parse_args("plan --epsilon 3 --clip 0.5 --gossip-rounds 0".split())
    assert opt.field_values(options, Exposure) == {"clip": 0.5}
    assert opt.field_values(options, Recipe) == {"gossip_rounds": 0}
    exposure = opt.exposure_of(options)
    assert exposure == Exposure(clip=0.5, steps=1000)


def test_an_option_for_one_of_several_graphs_is_not_refused_for_the_others():
    line = "compare --topology ring,random-regular --degree 5 --users 8"
    graphs = dict(opt.topologies_of(parser().parse_args(line.split())))
    assert set(graphs["ring"].degrees) == {2} and set(graphs["random-regular"].degrees) == {5}
    with pytest.raises(InputError, match="--degree does not apply to ring"):
        opt.topologies_of(parser().parse_args("compare --topology ring --degree 5".split()))
