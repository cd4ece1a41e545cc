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
from decor.cpu_cores import cores
from decor.distributed import launch
from decor.distributed.world import World
from decor.errors import InputError, require
from decor.federation.exit_codes import INTERRUPTED
from decor.learning.recipe import Recipe
from decor.results.live_status import LiveStatus
from decor.results.stop_reason import StopReason
from decor.text import amount, table

from . import options as opt
from . import task_option, training_options, values
from .json_output import guarantee_json, write_json

_EXAMPLE = """example:
  decor train --task breast-cancer --topology ring --users 16 --epsilon 10 --steps 100 \\
      --learning-rate 0.1 --output run"""

_RESTART_MARK = ".torchrun"
"""A file in the run's folder that names the torchrun whose run it is."""


def add_to(commands: Any) -> None:
    help = "train with the noise that a privacy budget needs, and save the run"
    parser = opt.add_command(commands, "train", run, help, _EXAMPLE)
    training_options.add_task(parser)
    rate = "step size"
    parser.add_argument(
        "--learning-rate", type=values.number, required=True, metavar="R", help=rate
    )
    opt.add_epsilon(parser, required=False, syntax="; required without --plan")
    plan = (
        "a plan saved by decor plan, instead of --epsilon, --delta, --adversary and the graph "
        "and exposure options"
    )
    parser.add_argument("--plan", metavar="FILE", help=plan)
    opt.add_adversary(parser)
    opt.add_graph(parser)
    opt.add_exposure(parser, training_options.STEPS, records=training_options.RECORDS)
    training_options.add_training(parser)
    _add_engine(parser)
    parser.add_argument("--output", required=True, metavar="DIR", help="folder for the run")
    every = "seconds between checkpoints (default: 10)"
    parser.add_argument(
        "--checkpoint-every", type=values.number, default=10.0, metavar="S", help=every
    )
    opt.add_resume(parser, "run")
    board = "also write metrics for TensorBoard to this folder"
    parser.add_argument("--tensorboard", metavar="DIR", help=board)
    opt.add_json(parser)


def _add_engine(parser: argparse.ArgumentParser) -> None:
    names = ("vectorised", "process-group")
    engine = (
        "vectorised for all users in one process, process-group for users spread over several "
        "processes (default: vectorised, or process-group under torchrun)"
    )
    parser.add_argument("--engine", choices=names, metavar="NAME", help=engine)
    count = (
        "with --engine process-group and no torchrun, number of processes (default: one per core)"
    )
    parser.add_argument("--processes", type=values.whole, metavar="N", help=count)
    parser.add_argument(
        "--device",
        default="cpu",
        metavar="NAME",
        help="where to compute: cpu or cuda (default: cpu)",
    )
    tf32 = "with --device cuda, use TF32 matrix multiplication, faster and less precise"
    parser.add_argument("--tf32", action="store_true", help=tf32)
    bf16 = "compute gradients in bfloat16 (8 significant bits), which GPUs multiply fastest"
    parser.add_argument("--bf16", action="store_true", help=bf16)
    seed = (
        "secret for a private run; or a number for a repeatable simulation, which is not private: "
        "anyone with the number can subtract the noise (default: 0)"
    )
    parser.add_argument("--seed", type=values.seed, default=0, metavar="S", help=seed)
    private = (
        "with --seed secret, also record the training loss, in private.jsonl, which must stay "
        "private; a run stopped because of what it shows has no guarantee"
    )
    parser.add_argument("--private-metrics", action="store_true", help=private)
    disconnected = "accept a disconnected graph, whose parts end up with different models"
    parser.add_argument("--allow-disconnected", action="store_true", help=disconnected)


def run(options: argparse.Namespace) -> int:
    # the report comes last: better to know before the hours of training
    require("matplotlib", None, "reports")
    folder, started = Path(options.output), World.from_environment() is not None
    launch.prepare_worker()
    if options.engine == "vectorised" and started:
        raise InputError(
            "torchrun has started several processes, but the engine vectorised is one process; "
            "drop --engine, or start without torchrun"
        )
    world = World()
    if started:
        # joined before Ctrl-C is caught: a process that ends at once must not be waited for by
        # others that go on to the next measurement
        from decor.distributed.communicator import Communicator

        Communicator.from_environment(options.device)
        world = World.current()
    if world.is_first:  # only rank 0 writes the folder
        _check_folder(folder, options, started)
    if options.engine == "process-group" and not started:
        _start_processes(options)
        return 0
    if options.processes is not None and not started:
        raise InputError("--processes needs --engine process-group; give both, or neither")
    task, plan, recipe = _task_plan_and_recipe(options)
    resumed = decor.Run.load(folder) if options.resume and world.is_first else None
    history = None if resumed is None else resumed.history
    live = LiveStatus(folder, plan, history, options.seed != "secret")
    with _stop_on_interrupt(world) as interrupted:
        # callbacks run at rank 0, which has the models of all users
        callbacks = [
            *(_tensorboard(options.tensorboard) if world.is_first else ()),
            lambda moment: live.record(moment.step, moment.public),
            _checkpoints(folder, options.checkpoint_every, options.overwrite),
            interrupted,
        ]
        result = decor.train(
            task,
            plan,
            recipe,
            learning_rate=options.learning_rate,
            engine=_engine(options, started),
            callbacks=callbacks,
            resume=resumed,
            allow_disconnected=options.allow_disconnected,
        )
    # the other ranks have neither the models nor a folder
    if not world.is_first:
        return 0
    result.save(folder, overwrite=options.overwrite)
    # after the save: a page that looks in between still finds a run
    live.remove()
    # it is over: a later start must not take the run for its own and resume it
    (folder / _RESTART_MARK).unlink(missing_ok=True)
    _show(result, folder, options)
    stopped = result.stopped
    # so that a script does not go on to its next command
    return INTERRUPTED if stopped is not None and stopped.cause == "interrupted" else 0


def _check_folder(folder: Path, options: argparse.Namespace, started: bool) -> None:
    """Refuses to overwrite a run, or to resume where there is none.

    A run that torchrun restarts (`started`) resumes by itself.
    """
    manifest, mark = folder / "manifest.json", folder / _RESTART_MARK
    by_torchrun = started and "TORCHELASTIC_RUN_ID" in os.environ
    # the run's id alone may be "none" for every torchrun of this machine
    starter = f"{os.environ.get('TORCHELASTIC_RUN_ID')} {os.getppid()}"
    if by_torchrun and mark.exists() and mark.read_text() == starter:
        options.resume, options.overwrite = manifest.exists(), False
    elif manifest.exists() and not (options.resume or options.overwrite):
        raise InputError(
            f"{options.output!r} already holds a run or a comparison; resume a run with --resume, "
            "replace it with --overwrite, or name another folder"
        )
    elif options.resume and not manifest.exists():
        raise InputError(f"there is nothing to resume in {options.output!r}; drop --resume")
    elif by_torchrun:
        folder.mkdir(parents=True, exist_ok=True)
        if not options.resume:
            # a restart must not resume the run that was to be replaced
            manifest.unlink(missing_ok=True)
        mark.write_text(starter)


def _engine(options: argparse.Namespace, started: bool) -> decor.Vectorised | decor.ProcessGroup:
    common: dict[str, Any] = {
        "seed": _seed(options),
        "device": options.device,
        "tf32": options.tf32,
        "bf16": options.bf16,
    }
    if not started:
        return decor.Vectorised(
            **common, threads=options.threads, private_metrics=options.private_metrics
        )
    if options.private_metrics:
        raise InputError(
            "--private-metrics needs a single process: a private loss must not travel between "
            "processes; drop it"
        )
    # one thread each by default: the processes already share the cores
    return decor.ProcessGroup(**common, threads=options.threads or 1)


def _seed(options: argparse.Namespace) -> int | None:
    """None draws secret noise."""
    return None if options.seed == "secret" else options.seed


def _start_processes(options: argparse.Namespace) -> None:
    """Runs this command again in several processes, after every check that one process can do."""
    from decor.learning.batches import check_size
    from decor.training.engine import Setting
    from decor.training.share import common_rate
    from decor.training.validation import check

    count = cores() if options.processes is None else options.processes
    task, plan, recipe = _task_plan_and_recipe(options)
    if not 1 <= count <= task.users:
        raise InputError(f"--processes must be from 1 to the {task.users} users, not {count}")
    # a mistake costs nothing here: each process would first load torch and the data
    check(task, plan, recipe, options.allow_disconnected)
    Setting(plan, options.learning_rate, _seed(options))  # checks the learning rate
    size = recipe.batch_size or plan.exposure.batch_size
    check_size(task.counts, size, common_rate(plan))
    launch.start(count, options.arguments)


def _task_plan_and_recipe(options: argparse.Namespace) -> tuple[Any, decor.NoisePlan, Recipe]:
    if options.plan is not None:
        if any(each is not None for each in (options.epsilon, options.delta, options.adversary)):
            raise InputError(
                "the saved plan already sets the budget and the adversary; drop --epsilon, "
                "--delta and --adversary"
            )
        # beside a plan the batch size is the recipe's; the plan has the one that costs privacy
        batch_size, options.batch_size = options.batch_size, None
        opt.refuse_beside_plan(options)
        plan = decor.NoisePlan.load(options.plan)
        task = training_options.task_of(options, plan.topology)
        return task, plan, training_options.recipe_of(options, plan.topology, batch_size)
    # no default: how much privacy to spend is for a person to decide
    if options.epsilon is None:
        raise InputError(
            "give --epsilon (the largest to spend), or a plan saved by decor plan with --plan FILE"
        )
    topology = task_option.topology_of(options.task, options)
    task = training_options.task_of(options, topology)
    exposure, batch_size = training_options.exposure_of(options, task)
    recipe = training_options.recipe_of(options, topology, batch_size)
    plan = decor.calibrate(
        topology,
        exposure,
        opt.adversary_of(options),
        decor.Budget(options.epsilon, opt.delta_of(options)),
        gossip_rounds=recipe.gossip_rounds,
        accelerate=recipe.accelerate,
        any_delta=options.any_delta,
    )
    return task, plan, recipe


@contextmanager
def _stop_on_interrupt(world: World) -> Iterator[Any]:
    """A callback that stops the run cleanly after Ctrl-C; a second Ctrl-C stops at once."""
    interrupted = False

    def note(*_: object) -> None:
        nonlocal interrupted
        interrupted = True
        signal.signal(signal.SIGINT, before)  # a second Ctrl-C is not caught
        if world.is_first:
            print(
                "\ndecor: stopping after this measurement; press Ctrl-C again to stop at once",
                file=sys.stderr,
            )

    def stop(moment: Any) -> StopReason | None:
        text = f"interrupted after step {moment.step}; resume with --resume"
        return StopReason(text, "interrupted") if interrupted else None

    before = signal.signal(signal.SIGINT, note)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


def _checkpoints(folder: Path, seconds: float, overwrite: bool) -> Any:
    """A callback that saves the run regularly, so that a killed process leaves a valid folder."""
    saved = time.monotonic()

    def save(moment: Any) -> None:
        nonlocal saved
        if time.monotonic() - saved >= seconds:
            moment.run().save(folder, overwrite)
            # taken after the save, so that a slow disk does not slow the run down
            saved = time.monotonic()

    return save


def _tensorboard(path: str | None) -> list[Any]:
    """No callback, or one that writes every public metric for TensorBoard."""
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
        writer.flush()  # so that the board follows the run

    return [log]


def _show(run: decor.Run, folder: Path, options: argparse.Namespace) -> None:
    from decor.results import build_report, report
    from decor.results.tables import BASE_RATE

    data = build_report.report_of_runs([(folder.name or "run", run)])
    report.write(data, folder / "report.html")
    guarantee, plan = run.guarantee, run.plan
    progress.report("")
    if options.json:
        write_json(
            {
                "steps_taken": run.steps_taken,
                "stopped": run.stopped,
                "simulated": run.simulated,
                "metrics": run.metrics,
                **guarantee_json(guarantee),
                "statement": str(guarantee),
                "sigma_cdp": plan.sigma_cdp,
                "sigma_cor": plan.sigma_cor,
                "output": str(folder),
                "report": str(folder / "report.html"),
            }
        )
        return
    rows = [[name, f"{value:.6g}"] for name, value in run.metrics.items() if name != "step"]
    if "accuracy" in run.metrics and (rate := run.manifest.get("base_rate")) is not None:
        rows.append([BASE_RATE, f"{rate:.6g}"])
    task = run.manifest["task"]["name"]
    print(f"{task} on {plan.topology.description}, {amount(run.steps_taken, 'step')}")
    print(table(["metric", "value"], rows))
    if run.simulated:
        print("  (the training loss is of private data: a private run does not measure it)")
    if run.stopped:
        print(f"\n{run.stopped}")
    print(f"\n{guarantee}\n\nwrote {folder}, {folder / 'report.html'}")
