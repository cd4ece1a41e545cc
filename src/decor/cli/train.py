"""`decor train`: one run, saved to a folder."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import decor
from decor import progress
from decor.distributed import launch
from decor.distributed.world import World
from decor.errors import InputError
from decor.learning.recipe import Recipe
from decor.machine import cores
from decor.results.live_status import Live
from decor.results.stop_reason import StopReason
from decor.text import table

from . import options as opt
from . import training_options
from .terminal import INTERRUPTED, write_json

_TRAIN = """example:
  decor train --task breast-cancer --topology ring --users 16 --epsilon 10 --steps 100 \\
      --learning-rate 0.1 --output run"""


def add_commands(commands: Any) -> None:
    raw = argparse.RawDescriptionHelpFormatter
    train = commands.add_parser(
        "train", help="one private training, saved to a folder", epilog=_TRAIN, formatter_class=raw
    )
    train.set_defaults(run=run_train)
    training_options.add_task(train, None)
    train.add_argument(
        "--learning-rate", type=opt.number, required=True, metavar="R", help="step size"
    )
    train.add_argument("--epsilon", type=opt.number, metavar="E", help="the most that may be spent")
    train.add_argument(
        "--plan",
        metavar="FILE",
        help="a plan saved by decor plan, instead of epsilon, graph, steps and clip",
    )
    opt.add_adversary(train)
    opt.add_graph(train)
    opt.add_exposure(train, steps=100)
    training_options.add_training(train)
    engines = (
        "vectorised (all users in one process), or process-group (dealt out to several; "
        "what torchrun starts takes it)"
    )
    train.add_argument(
        "--engine", choices=("vectorised", "process-group"), metavar="NAME", help=engines
    )
    said = "of process-group, where torchrun has not started them (default: one for every core)"
    train.add_argument("--processes", type=opt.whole, metavar="N", help=said)
    train.add_argument("--device", default="cpu", help="cpu (default) or cuda")
    train.add_argument(
        "--tf32", action="store_true", help="on a GPU: use TF32 matrix multiplication"
    )
    secret = (
        "a number: a simulation, whose noise anyone who knows it can subtract; secret: a "
        "private run (default: 0)"
    )
    train.add_argument("--seed", type=opt.seed, default=0, metavar="S", help=secret)
    own = (
        "private run: measure the training loss too, in private.jsonl; a run stopped by looking "
        "at it has no guarantee"
    )
    train.add_argument("--private-metrics", action="store_true", help=own)
    train.add_argument(
        "--allow-disconnected",
        action="store_true",
        help="train on a graph in parts, whose models never agree",
    )
    train.add_argument("--output", required=True, metavar="DIR", help="folder for the run")
    train.add_argument(
        "--checkpoint-every",
        type=opt.number,
        default=10.0,
        metavar="S",
        help="seconds (default: 10)",
    )
    train.add_argument("--resume", action="store_true", help="go on with the run in that folder")
    train.add_argument("--overwrite", action="store_true", help="replace the run in that folder")
    train.add_argument(
        "--tensorboard", metavar="DIR", help="write metrics for TensorBoard there as well"
    )
    train.add_argument(
        "--json",
        action="store_true",
        help="one JSON object on standard output, and nothing else there",
    )


def run_train(options: argparse.Namespace) -> int:
    folder, started = Path(options.output), World.announced() is not None
    launch.enlist()
    if options.engine == "vectorised" and started:
        raise InputError(
            "torchrun has started several processes, and vectorised is one; drop "
            "--engine, or torchrun"
        )
    world = World()
    if started:
        # before the first Ctrl-C is only noted: who ends at once must not be waited for by who goes
        # on to a measurement
        from decor.distributed.communicator import Team

        Team.of_environment(options.device)
        world = World.joined()
    if world.is_first:  # of several processes the first one has the folder
        _check_folder(folder, options, started)
    if options.engine == "process-group" and not started:
        _start(options)
        return 0
    if options.processes is not None and not started:
        raise InputError("--processes are those of --engine process-group; say both, or neither")
    task, plan, recipe = _task_plan_and_recipe(options)
    resumed = decor.Run.load(folder) if options.resume and world.is_first else None
    live = Live(
        folder, plan, resumed.history if resumed is not None else None, options.seed != "secret"
    )
    engine = _engine(options, started)
    with _until_interrupted(world) as interrupted:
        # callbacks run in the first process, which has everybody's models
        callbacks = [
            *(_tensorboard(options.tensorboard) if world.is_first else ()),
            _watched(live),
            _checkpoints(folder, options.checkpoint_every, options.overwrite),
            interrupted,
        ]
        run = decor.train(
            task,
            plan,
            recipe,
            learning_rate=options.learning_rate,
            engine=engine,
            callbacks=callbacks,
            resume=resumed,
            allow_disconnected=options.allow_disconnected,
        )
    if not world.is_first:
        return 0
    run.save(folder, overwrite=options.overwrite)
    live.over()
    (folder / ".torchrun").unlink(missing_ok=True)
    _show(run, folder, options)
    return INTERRUPTED if run.stopped is not None and run.stopped.cause == "interrupted" else 0


def _check_folder(folder: Path, options: argparse.Namespace, started: bool) -> None:
    """Refuses to write over a run, or to resume none.

    A run that torchrun has `started`, and starts again, goes on by itself.
    """
    manifest, mark = folder / "manifest.json", folder / ".torchrun"
    again = started and "TORCHELASTIC_RUN_ID" in os.environ
    starter = f"{os.environ.get('TORCHELASTIC_RUN_ID')} {os.getppid()}"
    if again and mark.exists() and mark.read_text() == starter:
        options.resume, options.overwrite = manifest.exists(), False
    elif manifest.exists() and not (options.resume or options.overwrite):
        raise InputError(
            f"{options.output!r} holds a run or a comparison already; go on with a run by "
            "--resume, replace it by --overwrite, "
            "or name another folder"
        )
    elif options.resume and not manifest.exists():
        raise InputError(f"there is nothing to resume in {options.output!r}; drop --resume")
    elif again:
        folder.mkdir(parents=True, exist_ok=True)
        if not options.resume:
            # what is started again must not go on with what was to be replaced
            manifest.unlink(missing_ok=True)
        mark.write_text(starter)


def _engine(options: argparse.Namespace, started: bool) -> decor.Vectorised | decor.ProcessGroup:
    seed = None if options.seed == "secret" else options.seed
    if not started:
        own = options.private_metrics
        return decor.Vectorised(
            seed, options.device, threads=options.threads, tf32=options.tf32, private_metrics=own
        )
    if options.private_metrics:
        raise InputError(
            "--private-metrics needs one process: a loss must not travel between several; drop it"
        )
    return decor.ProcessGroup(
        seed=seed, device=options.device, threads=options.threads or 1, tf32=options.tf32
    )


def _start(options: argparse.Namespace) -> None:
    """This very command in several processes; what cannot work is said before."""
    from decor.learning.batches import check_size
    from decor.training.engine import Setting
    from decor.training.validation import check

    count = cores() if options.processes is None else options.processes
    task, plan, recipe = _task_plan_and_recipe(options)
    if not 1 <= count <= task.users:
        raise InputError(f"--processes must be from 1 to the {task.users} users, not {count}")
    check(task, plan, recipe, options.allow_disconnected)
    Setting(plan, options.learning_rate, None if options.seed == "secret" else options.seed)
    check_size(task.counts, recipe.batch_size or plan.exposure.batch_size)
    launch.start(count, options.words)


def _task_plan_and_recipe(options: argparse.Namespace) -> tuple[Any, decor.NoisePlan, Recipe]:
    if options.plan is not None:
        if (
            options.epsilon is not None
            or options.delta is not None
            or options.adversary is not None
        ):
            raise InputError(
                "--plan already says the budget and the adversary; drop --epsilon, "
                "--delta and --adversary"
            )
        batch, options.batch_size = options.batch_size, None
        opt.refuse_beside_plan(options)
        plan = decor.NoisePlan.load(options.plan)
        return (
            training_options.task_of(options, plan.topology),
            plan,
            training_options.recipe_of(options, plan.topology, batch),
        )
    if options.epsilon is None:
        raise InputError(
            "give --epsilon (the most that may be spent), or a plan saved by decor "
            "plan with --plan FILE"
        )
    topology = opt.topology_of(options)
    task = training_options.task_of(options, topology)
    options.steps = 100 if options.steps is None else options.steps
    exposure, batch = training_options.exposure_of(options, task)
    recipe = training_options.recipe_of(options, topology, batch)
    budget = decor.Budget(options.epsilon, opt.DELTA if options.delta is None else options.delta)
    plan = decor.calibrate(
        topology,
        exposure,
        opt.adversary_of(options),
        budget,
        gossip_rounds=recipe.gossip_rounds,
        accelerate=recipe.accelerate,
        any_delta=options.any_delta,
    )
    return task, plan, recipe


@contextmanager
def _until_interrupted(world: World) -> Iterator[Any]:
    """A callback that stops a run cleanly after Ctrl-C; a second Ctrl-C stops at once."""
    asked = False

    def ask(*_: object) -> None:
        nonlocal asked
        asked = True
        signal.signal(signal.SIGINT, before)
        if world.is_first:
            print(
                "\ndecor: stopping after this measurement; press Ctrl-C again to stop at once",
                file=sys.stderr,
            )

    def reason(moment: Any) -> StopReason | None:
        return (
            StopReason(f"interrupted after step {moment.step}; go on with --resume", "interrupted")
            if asked
            else None
        )

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield reason
    finally:
        signal.signal(signal.SIGINT, before)


def _checkpoints(folder: Path, every: float, overwrite: bool) -> Any:
    """A callback that saves the run every few seconds, so that even a killed process leaves a whole
    folder.
    """
    saved = time.monotonic()

    def save(moment: Any) -> None:
        nonlocal saved
        if time.monotonic() - saved >= every:
            moment.run().save(folder, overwrite)
            saved = time.monotonic()

    return save


def _watched(live: Live) -> Any:
    """A callback for those who watch the folder, as `decor ui --watch` does."""

    def tell(moment: Any) -> None:
        live.measured(moment.step, moment.public)

    return tell


def _tensorboard(path: str | None) -> list[Any]:
    if path is None:
        return []
    try:
        from torch.utils.tensorboard import SummaryWriter

        writer = SummaryWriter(path)
    except ImportError:
        raise decor.MissingExtra(
            "--tensorboard needs tensorboard: pip install tensorboard"
        ) from None
    except OSError as problem:
        raise InputError(f"--tensorboard cannot write to {path!r}: {problem}") from None

    def log(moment: Any) -> None:
        for name, value in moment.public.items():
            if name != "step":
                writer.add_scalar(name, value, moment.step)
        writer.flush()

    return [log]


def _show(run: decor.Run, folder: Path, options: argparse.Namespace) -> None:
    from decor.results import outcomes, report

    data = outcomes.of_runs([(folder.name or "run", run)], run.manifest.get("command", ""))
    report.write(data, folder / "report.html")
    guarantee = run.guarantee
    progress.report("")
    if options.json:
        write_json(
            {
                "steps_taken": run.steps_taken,
                "stopped": run.stopped,
                "simulated": run.simulated,
                "metrics": run.metrics,
                "epsilon": guarantee.epsilon,
                "delta": guarantee.delta,
                "adversary": str(guarantee.adversary),
                "statement": str(guarantee),
                "sigma_cdp": run.plan.sigma_cdp,
                "sigma_cor": run.plan.sigma_cor,
                "output": str(folder),
                "report": str(folder / "report.html"),
            }
        )
        return
    print(
        f"{run.manifest['task']['name']} on {run.plan.topology.description}, "
        f"{run.steps_taken:,} steps"
    )
    print(
        table(
            ["metric", "value"],
            [[name, f"{value:.6g}"] for name, value in run.metrics.items() if name != "step"],
        )
    )
    if run.simulated:
        print("  (the training loss is of private data: a private run does not measure it)")
    if run.stopped:
        print(f"\n{run.stopped}")
    print(f"\n{guarantee}\n\nwrote {folder}, {folder / 'report.html'}")
