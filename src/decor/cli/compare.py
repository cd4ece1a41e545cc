"""`decor compare`: what privacy costs. Trains DECOR, central DP, local DP and no privacy."""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import decor
from decor.errors import InputError, require
from decor.results.safe_files import clear, json_or_empty

from . import options as opt
from . import report, task_option, training_options, values
from .json_output import command_line

_EXAMPLE = """example:
  decor compare --task breast-cancer --users 16 --epsilon 1,3,10,30 --topology ring,torus \\
      --output comparison"""

_FILES = (
    *("manifest.json", "report.html", "report.json", "outcomes/*.json", "metrics/*.jsonl"),
    *("figures/*.png", "figures/*.svg"),
    *("runs/*/manifest.json", "runs/*/plan.json", "runs/*/metrics.jsonl"),
    "runs/*/models-*.safetensors",
)
"""What a comparison writes into its folder, and `--overwrite` removes."""


def add_to(commands: Any) -> None:
    help = "measure what privacy costs: DECOR, central DP, local DP and no privacy"
    parser = opt.add_command(commands, "compare", run, help, _EXAMPLE)
    training_options.add_task(parser, "breast-cancer")
    parser.add_argument(
        "--epsilon",
        type=values.numbers,
        default=(1.0, 3.0, 10.0, 30.0),
        metavar="E,...",
        help="epsilons to compare (default: 1,3,10,30)",
    )
    opt.add_adversary(parser)
    opt.add_graph(parser, "ring,torus")
    opt.add_exposure(
        parser, training_options.STEPS, several_clips=True, records=training_options.RECORDS
    )
    training_options.add_training(parser)
    rates = (
        "step sizes to try; the one with the lowest training loss is used (default: twelve from "
        "0.001 to 5, and more beyond these where the smallest or largest is best)"
    )
    parser.add_argument("--learning-rate", type=values.numbers, metavar="R,...", help=rates)
    messages = (
        "number of messages that each run may send to each neighbour. Each method then tries 1 to "
        "16 designed gossip rounds per step, with as many steps as this number allows, and keeps "
        "the best"
    )
    parser.add_argument("--messages", type=values.whole, metavar="N", help=messages)
    seeds = "runs of each setting, with different seeds (default: 4)"
    parser.add_argument("--seeds", type=_seeds, default=4, metavar="N", help=seeds)
    output = "folder for the comparison (default: comparison)"
    parser.add_argument("--output", default="comparison", metavar="DIR", help=output)
    opt.add_resume(parser, "comparison")
    opt.add_json(parser)


def _seeds(text: str) -> int:
    if text == "secret":
        raise argparse.ArgumentTypeError(
            "a comparison chooses among runs, and choosing among private runs by their results "
            "reveals more than the epsilon of one; compare simulations on public data, then use "
            "decor train --seed secret with the chosen setting"
        )
    return values.whole(text)


def run(options: argparse.Namespace) -> None:
    require("matplotlib", None, "reports")
    task_option.fit_users(options.task, options)
    graphs = tuple(
        (name, task_option.name_users(options.task, graph))
        for name, graph in opt.topologies_of(options)
    )
    topology = graphs[0][1]
    task = training_options.task_of(options, topology)
    # after the task: without torch, `decor.tasks` says what to install
    from decor.results.comparison import write_comparison
    from decor.training.compare import FORMAT, RATES, Comparison, Design

    # the exposure has one clip; the design tries all of them
    clips = options.clip or (opt.CLIP,)
    options.clip = clips[0]
    if options.messages is not None:
        given = options.steps, options.gossip_rounds, options.accelerate
        if any(each is not None for each in given):
            raise InputError(
                "--messages chooses steps and rounds; drop --steps, --gossip-rounds and "
                "--accelerate"
            )
    exposure, batch_size = training_options.exposure_of(options, task)
    if options.seeds < 1:
        raise InputError(f"--seeds must be at least 1, not {options.seeds}")
    design = Design(
        graphs=graphs,
        epsilons=options.epsilon,
        exposure=exposure,
        delta=opt.delta_of(options),
        adversary=opt.adversary_of(options),
        clips=clips,
        learning_rates=options.learning_rate or RATES,
        # known on purpose: a comparison is a simulation, and can be repeated
        seeds=tuple(range(options.seeds)),
        recipe=training_options.recipe_of(options, topology, batch_size),
        any_delta=options.any_delta,
        messages=options.messages,
    )
    folder = Path(options.output)
    # after the options have been read: a mistyped one must not cost the old results
    if options.overwrite and not options.resume and (folder / "manifest.json").exists():
        _remove(folder, FORMAT)
    comparison = Comparison(task, design, folder, resume=options.resume, command=command_line())
    try:
        data = comparison.run(decor.Vectorised(threads=options.threads))
    except KeyboardInterrupt:
        with suppress(InputError):  # nothing is finished yet
            page = write_comparison(comparison.data(), folder)["report"]
            print(f"decor: interrupted; the finished methods are in {page}", file=sys.stderr)
        print(f"decor: resume with {command_line()} --resume", file=sys.stderr)
        raise
    report.show(data, write_comparison(data, folder), options.json)


def _remove(folder: Path, wanted: str) -> None:
    """Removes the files of a comparison, and nothing else; refuses any other folder."""
    # manifest.json is a common name: only the format shows that the folder is ours
    if json_or_empty(folder / "manifest.json").get("format") != wanted:
        raise InputError(
            f"{str(folder)!r} is not a comparison that could be overwritten; name another folder "
            "with --output"
        )
    clear(folder, _FILES)
