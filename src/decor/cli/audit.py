"""`decor audit`: attacks what an engine sends, and fails if it proves more than is claimed."""

from __future__ import annotations

import argparse
import json
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import decor
from decor import progress
from decor.distributed import launch
from decor.distributed.world import World
from decor.errors import AuditFailed, FragileGraphWarning, InputError
from decor.machine import cores
from decor.results.files import replace_text
from decor.text import table

from . import node
from . import options as opt
from .terminal import write_json

_AUDIT = """examples:
  decor audit --topology ring --users 8 --epsilon 3 --adversary curious
  decor audit trial/federation.toml     real peers on this machine, with that graph and noise
  decor audit run                       plan and engine of a saved run; adds to its report.html"""

ENGINES = ("vectorised", "process-group", "peers")


def add_commands(commands: Any) -> None:
    raw = argparse.RawDescriptionHelpFormatter
    audit = commands.add_parser(
        "audit", help="measures that the privacy holds", epilog=_AUDIT, formatter_class=raw
    )
    audit.set_defaults(run=run_audit)
    said = (
        "a saved plan, a federation's file, or the folder of a run; or describe a plan by the "
        "options below"
    )
    audit.add_argument("what", nargs="?", metavar="WHAT", help=said)
    audit.add_argument(
        "--engine", choices=ENGINES, metavar="NAME", help=f"whose messages: {', '.join(ENGINES)}"
    )
    audit.add_argument(
        "--processes",
        type=opt.whole,
        metavar="N",
        help="of process-group (default: one for every core)",
    )
    audit.add_argument(
        "--device",
        help="of the simulator: cpu or cuda (default: cpu, or where the run was trained)",
    )
    audit.add_argument(
        "--canaries",
        type=opt.whole,
        metavar="N",
        help="more prove more (default: 120,000, or 80,000 records)",
    )
    audit.add_argument(
        "--audit-steps",
        type=opt.whole,
        metavar="T",
        help="steps to run (default: what takes some seconds)",
    )
    sure = "of a failure not being chance (default: 0.9999)"
    audit.add_argument("--confidence", type=opt.number, default=0.9999, metavar="P", help=sure)
    seeds = (
        "of canaries and of simulated noise, or secret: attack a private run (default: 0, or "
        "as the run was trained)"
    )
    audit.add_argument("--seed", type=opt.seed, metavar="S", help=seeds)
    audit.add_argument(
        "--epsilon", type=opt.number, metavar="E", help="the claim (default: 3), or give the noise:"
    )
    audit.add_argument(
        "--sigma-cdp", type=opt.number, metavar="S", help="independent noise of every user"
    )
    audit.add_argument("--sigma-cor", type=opt.number, metavar="S", help="noise of every edge")
    opt.add_adversary(audit)
    opt.add_graph(audit)
    opt.add_exposure(audit)
    opt.add_output(audit)
    audit.add_argument("--hand-over", help=argparse.SUPPRESS)


def run_audit(options: argparse.Namespace) -> None:
    if options.engine == "peers" or str(options.what).endswith(".toml"):
        node.installed()
    plan, told, folder = _target(options)
    if options.seed is not None:
        told["private"] = options.seed == "secret"
    if told["name"] == "process-group" and told.get("private"):
        raise InputError(
            "a private run of several processes is not audited: no process knows the noise of "
            "all; audit --engine vectorised "
            "--seed secret, which draws the same noise, or --engine peers"
        )
    if told["name"] != "process-group" and options.processes is not None:
        raise InputError("--processes are those of --engine process-group; say both, or neither")
    if told["name"] == "process-group" and World.announced() is None:
        data = _by_processes(plan, options)
    else:
        data = _audited(plan, told, options)
    if not World.joined().is_first:  # which has heard the messages, and says what it found
        return
    if options.hand_over is not None:
        Path(options.hand_over).write_text(json.dumps(data), encoding="utf-8")
        return
    _show(data, folder, options)
    if not data["passed"]:
        raise AuditFailed(data["failures"][0])


def _audited(
    plan: decor.NoisePlan, told: dict[str, Any], options: argparse.Namespace
) -> dict[str, Any]:
    engine = _engine(told, options)
    if isinstance(engine, decor.ProcessGroup):
        from decor.distributed.communicator import Team

        launch.enlist()
        # what is refused from here on the first process says alone
        Team.of_environment(engine.device)
    found = decor.audit(
        plan,
        engine=engine,
        delta=options.delta,
        canaries=options.canaries,
        steps=options.audit_steps,
        confidence=options.confidence,
        seed=options.seed if isinstance(options.seed, int) else 0,
    )
    progress.report("")
    return found.to_json()


def _by_processes(plan: decor.NoisePlan, options: argparse.Namespace) -> dict[str, Any]:
    """This very command in several processes, of which the first hands over what it has found."""
    count = cores() if options.processes is None else options.processes
    if not 1 <= count <= plan.topology.users:
        raise InputError(
            f"--processes must be from 1 to the {plan.topology.users} users, not {count}"
        )
    with tempfile.TemporaryDirectory(prefix="decor-audit-") as folder:
        file = Path(folder) / "audit.json"
        launch.start(count, [*options.words, "--hand-over", str(file)])
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return found


def _engine(told: dict[str, Any], options: argparse.Namespace) -> Any:
    """The engine of which a manifest tells this: its numbers are as long, and made on the same kind
    of device.
    """
    dtype = told.get("dtype", "float32")
    if told["name"] == "peers":
        return decor.Peers(dtype=dtype)
    device = _device(told.get("device", "cpu")) if options.device is None else options.device
    tf32 = device != "cpu" and dtype == "float32" and told.get("tf32") is True
    kind = decor.ProcessGroup if told["name"] == "process-group" else decor.Vectorised
    return kind(seed=None if told.get("private") else 0, device=device, dtype=dtype, tf32=tf32)


def _device(trained: str) -> str:
    """Where the run was trained, if this machine has it."""
    from decor.training.vectorised import check_device

    try:
        check_device(trained)
    except InputError as problem:
        warnings.warn(
            f"the run was trained on {trained}, and is audited on cpu: {problem}", stacklevel=2
        )
        return "cpu"
    return trained


def _target(options: argparse.Namespace) -> tuple[decor.NoisePlan, dict[str, Any], Path | None]:
    """(the plan, the engine it is for as a manifest tells of it, the folder that the outcome
    belongs to).
    """
    if options.what is None:
        return _described(options), {"name": options.engine or "vectorised"}, None
    for name in ("epsilon", "sigma_cdp", "sigma_cor"):
        if getattr(options, name) is not None:
            raise InputError(
                f"{options.what} already says the noise; drop --{name.replace('_', '-')}"
            )
    opt.refuse_beside_plan(options)
    path = Path(options.what)
    if path.suffix == ".toml":
        from decor.federation.federation import Federation

        federation = Federation.read(path)
        plan, told, folder = federation.plan, {"name": "peers", "dtype": federation.dtype}, None
    elif path.is_dir():
        run = decor.Run.load(path)
        plan, told, folder = run.plan, _engine_of(run, options), path
    else:
        plan, told, folder = decor.NoisePlan.load(path), {"name": "vectorised"}, None
    if options.engine is not None:
        told |= {"name": options.engine}
    return (
        (plan if options.adversary is None else replace(plan, adversary=opt.adversary_of(options))),
        told,
        folder,
    )


def _engine_of(run: decor.Run, options: argparse.Namespace) -> dict[str, Any]:
    held = run.manifest.get("engine")
    told: dict[str, Any] = dict(held) if isinstance(held, dict) else {"name": held}
    if options.engine is None and (name := told.get("name")) not in ENGINES:
        raise InputError(
            f"the run's manifest names the engine {name!r}; say --engine, with one "
            f"of {', '.join(ENGINES)}"
        )
    for name, kinds in (("dtype", ("float32", "float64")), ("device", ("cpu", "cuda"))):
        if told.get(name, kinds[0]) not in kinds:
            needed = " or ".join(kinds)
            raise InputError(
                f"the run's manifest has the {name} {told[name]!r} where {needed} is needed; "
                "audit its plan.json instead"
            )
    if not run.simulated and told.get("name") in ("vectorised", "process-group"):
        # one process draws the same noise as several, and can be listened to
        told |= {"name": "vectorised", "private": True}
    return told


def _described(options: argparse.Namespace) -> decor.NoisePlan:
    topology, exposure, adversary = (
        opt.topology_of(options),
        opt.exposure_of(options),
        opt.adversary_of(options),
    )
    if options.sigma_cdp is not None or options.sigma_cor is not None:
        if options.epsilon is not None or options.sigma_cdp is None or options.sigma_cor is None:
            raise InputError("give --epsilon, or both --sigma-cdp and --sigma-cor (0 for none)")
        return decor.NoisePlan(topology, exposure, adversary, options.sigma_cdp, options.sigma_cor)
    budget = decor.Budget(
        3.0 if options.epsilon is None else options.epsilon,
        opt.DELTA if options.delta is None else options.delta,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FragileGraphWarning)  # the audit shows what it means
        return decor.calibrate(topology, exposure, adversary, budget, any_delta=options.any_delta)


def _kept(data: dict[str, Any], folder: Path) -> list[Any]:
    """The outcome beside the run, and in its report."""
    from decor.results import outcomes, report

    replace_text(folder / "audit.json", json.dumps(data, indent=1) + "\n")
    run = decor.Run.load(folder)
    shown = outcomes.of_runs([(folder.name or "run", run)], run.manifest.get("command", ""))
    report.write(shown | {"audits": [(folder.name, data)]}, folder / "report.html")
    return [folder / "audit.json", folder / "report.html"]


def _show(data: dict[str, Any], folder: Path | None, options: argparse.Namespace) -> None:
    wrote = [] if folder is None else _kept(data, folder)
    if options.plot is not None:
        from decor.auditing.figure import drawn

        drawn(data, options.plot)
        wrote.append(options.plot)
    if options.json:
        write_json(data)
        return
    from decor.results.audit_section import HEADER, lines

    print(
        f"{data['topology']}; {data['canaries']:,} canaries, {data['steps']} of "
        f"{data['steps_of_plan']:,} steps"
    )
    print(table(HEADER, lines(data)))
    right = sum(check["passed"] for check in data["checks"])
    bits = "\n".join(
        f"Last bits of messages, {wire}: {said}." for wire, said in data["last_bits"].items()
    )
    print(
        f"\n{right} of {len(data['checks'])} checks passed.\n{bits}\n\n{data['statement']}  "
        f"({data['seconds']:g} s)"
    )
    for path in wrote:
        print(f"wrote {path}")
