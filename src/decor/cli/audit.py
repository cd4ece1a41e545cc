"""`decor audit`: attacks what an engine sends, and fails if it proves more than is claimed."""

from __future__ import annotations

import argparse
import json
import tempfile
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import decor
from decor import progress
from decor.cpu_cores import cores
from decor.distributed import launch
from decor.distributed.world import World
from decor.errors import AuditFailed, FragileGraphWarning, InputError, require, write_errors
from decor.results.audit_summary import HEADER, AuditSummary
from decor.results.safe_files import replace_text
from decor.text import table

from . import options as opt
from . import task_option, values
from .json_output import write_json
from .node import require_libraries
from .task_option import TaskOption

_EXAMPLE = """examples:
  decor audit --topology ring --users 8 --epsilon 3 --adversary curious
  decor audit trial/federation.toml  # real peers on this machine, with that graph and noise
  decor audit run                    # plan and engine of a saved run; adds to its report.html
  decor audit --function own.loop:messages --epsilon 3 --delta 1e-5  # code that is not DECOR's"""

ENGINES = ("vectorised", "process-group", "peers")
_EPSILON = 3.0


@dataclass(frozen=True)
class _EngineSpec:
    """The engine to audit: as a run's manifest describes it, changed by the options."""

    name: Any = "vectorised"
    dtype: Any = "float32"
    device: Any = "cpu"
    tf32: bool = False
    bf16: bool = False
    private: bool = False


def add_to(commands: Any) -> None:
    help = "attack an engine, to check that its privacy guarantee holds"
    parser = opt.add_command(commands, "audit", run, help, _EXAMPLE)
    what = (
        "a saved plan, a federation file or the folder of a run, instead of the noise, graph and "
        "exposure options; also sets the default adversary and delta"
    )
    parser.add_argument("what", nargs="?", metavar="WHAT", help=what)
    engine = (
        f"engine to attack: {', '.join(ENGINES[:-1])} or {ENGINES[-1]} (default: that of the run, "
        "peers for a federation file, otherwise vectorised)"
    )
    parser.add_argument("--engine", choices=ENGINES, metavar="NAME", help=engine)
    count = "with --engine process-group, number of processes (default: one per core)"
    parser.add_argument("--processes", type=values.whole, metavar="N", help=count)
    device = (
        "where to compute, except with --engine peers: cpu or cuda (default: as the run was "
        "trained, otherwise cpu)"
    )
    parser.add_argument("--device", metavar="NAME", help=device)
    canaries = (
        "number of canaries, planted secrets that the attack guesses; more prove more (default: "
        "120,000, or 80,000 with --unit example)"
    )
    parser.add_argument("--canaries", type=values.whole, metavar="N", help=canaries)
    steps = "steps to run and attack (default: as many as take a few seconds)"
    parser.add_argument("--audit-steps", type=values.whole, metavar="T", help=steps)
    sure = (
        "probability that a correct engine passes (default: 0.9999); not used with --function, "
        "where it is 0.999"
    )
    parser.add_argument("--confidence", type=values.number, default=0.9999, metavar="P", help=sure)
    seed = (
        "secret to attack a private run; or a number for a repeatable simulation (default: as the "
        "run was trained, otherwise 0)"
    )
    parser.add_argument("--seed", type=values.seed, metavar="S", help=seed)
    opt.add_epsilon(
        parser, default=_EPSILON, syntax=", unless --sigma-cdp and --sigma-cor are given"
    )
    opt.add_fixed_noise(parser)
    task = (
        "take the users (and, with --unit example, the number of records of each) from this task, "
        "instead of --users and --records. Its data are not used: the audit plants its own canaries"
    )
    parser.add_argument("--task", type=TaskOption, metavar="TASK", help=task)
    opt.add_adversary(parser)
    opt.add_graph(parser)
    opt.add_exposure(parser)
    opt.add_output(parser)
    foreign = parser.add_argument_group(
        "code that is not DECOR's, which claims --epsilon at --delta"
    )
    function = (
        "a function of a data set and a seed that returns everything an adversary sees; this runs "
        "it, on two data sets that differ in one record (--relation)"
    )
    foreign.add_argument("--function", metavar="MODULE:FUNCTION", help=function)
    pair = "a function that returns two neighbouring data sets (default: (X, y) with one canary)"
    foreign.add_argument("--datasets", metavar="MODULE:FUNCTION", help=pair)
    calls = "times to call the function; more prove more (default: 50,000)"
    foreign.add_argument("--calls", type=values.whole, metavar="N", help=calls)
    any_noise = "use only the bound that holds for any noise; for mechanisms that are not Gaussian"
    foreign.add_argument("--any-noise", action="store_true", help=any_noise)
    # for rank 0 of a process group: where it leaves the result for the command that started it
    parser.add_argument("--hand-over", help=argparse.SUPPRESS)


def run(options: argparse.Namespace) -> None:
    if options.function is not None:
        _run_function(options)
        return
    for name in ("datasets", "calls"):
        if getattr(options, name) is not None:
            raise InputError(f"{opt.flag_of(name)} is for --function; give both, or neither")
    # before a plan is computed: a missing library is reported at once
    if options.engine == "peers" or str(options.what).endswith(".toml"):
        require_libraries()
    plan, engine, folder = _target(options)
    if folder is not None:
        require("matplotlib", None, "reports")
    if options.seed is not None:
        engine = replace(engine, private=options.seed == "secret")
    several = engine.name == "process-group"
    if several and engine.private:
        raise InputError(
            "a private run of several processes cannot be audited: no process knows all noise; "
            "audit --engine vectorised --seed secret, which draws the same noise, or --engine peers"
        )
    if not several and options.processes is not None:
        raise InputError("--processes needs --engine process-group; give both, or neither")
    if several and World.from_environment() is None:
        audit = _audit_in_processes(plan, options)
    else:
        audit = _audit(plan, engine, options)
    if not World.current().is_first:  # only rank 0 has the messages of all users
        return
    if options.hand_over is not None:
        Path(options.hand_over).write_text(json.dumps(audit.to_json()), encoding="utf-8")
        return
    _show(audit, folder, options)
    # raised last: a failure is shown and saved like a success
    if not audit.passed:
        raise AuditFailed(audit.failures[0])


def _run_function(options: argparse.Namespace) -> None:
    """Audits code that is not ours."""
    from decor.learning.own_data import import_function

    if options.epsilon is None:
        raise InputError("give --epsilon: what the function claims")
    # an option that is ignored would look like a part of the audit
    for name in ("what", "engine", "plot", "task", "canaries", "audit_steps", "sigma_cdp"):
        if getattr(options, name) is not None:
            raise InputError(f"--function is audited without {name.replace('_', ' ')}; drop it")
    messages = import_function(options.function, "--function")
    pair = options.datasets and import_function(options.datasets, "--datasets")()
    given = {"calls": options.calls, "datasets": pair, "relation": options.relation}
    audit = decor.audit_function(
        messages,
        epsilon=options.epsilon,
        delta=opt.delta_of(options),
        gaussian_noise=not options.any_noise,
        seed=options.seed if isinstance(options.seed, int) else 0,
        **{name: value for name, value in given.items() if value is not None},
    )
    progress.report("")
    if options.json:
        write_json(audit.to_json())
    else:
        print(audit)
    if not audit.passed:
        raise AuditFailed(audit.failure)


def _audit(plan: decor.NoisePlan, spec: _EngineSpec, options: argparse.Namespace) -> AuditSummary:
    engine = _make_engine(spec, options)
    if isinstance(engine, decor.ProcessGroup):
        from decor.distributed.communicator import Communicator

        launch.prepare_worker()
        # joined first: from here on, only rank 0 reports bad input
        Communicator.from_environment(engine.device)
    audit = decor.audit(
        plan,
        engine=engine,
        delta=options.delta,
        canaries=options.canaries,
        steps=options.audit_steps,
        confidence=options.confidence,
        # canaries are drawn from a known seed, also where the noise is secret
        seed=options.seed if isinstance(options.seed, int) else 0,
    )
    progress.report("")
    return AuditSummary.from_json(audit.to_json())


def _audit_in_processes(plan: decor.NoisePlan, options: argparse.Namespace) -> AuditSummary:
    """Runs this command again in several processes; rank 0 writes the result to a file."""
    count = cores() if options.processes is None else options.processes
    if not 1 <= count <= plan.topology.users:
        raise InputError(
            f"--processes must be from 1 to the {plan.topology.users} users, not {count}"
        )
    # through a file: libraries in the workers may print to standard output
    with tempfile.TemporaryDirectory(prefix="decor-audit-") as folder:
        file = Path(folder) / "audit.json"
        launch.start(count, [*options.arguments, "--hand-over", str(file)])
        return AuditSummary.from_json(json.loads(file.read_text(encoding="utf-8")))


def _make_engine(spec: _EngineSpec, options: argparse.Namespace) -> Any:
    """The engine of a description, with the same precision on the same kind of device."""
    if spec.name == "peers":
        return decor.Peers(dtype=spec.dtype)
    device = _available(spec.device) if options.device is None else options.device
    # elsewhere there is no TF32, and the engine would refuse the option
    tf32 = device != "cpu" and spec.dtype == "float32" and spec.tf32
    bf16 = spec.dtype == "float32" and spec.bf16 and not tf32
    kind = decor.ProcessGroup if spec.name == "process-group" else decor.Vectorised
    seed = None if spec.private else 0
    return kind(seed=seed, device=device, dtype=spec.dtype, tf32=tf32, bf16=bf16)


def _available(device: str) -> str:
    """The device on which the run was trained, if this machine has it; else cpu."""
    from decor.training.vectorised import check_device

    try:
        check_device(device)
    except InputError as problem:
        warnings.warn(
            f"the run was trained on {device}, and is audited on cpu: {problem}", stacklevel=2
        )
        return "cpu"
    return device


def _target(options: argparse.Namespace) -> tuple[decor.NoisePlan, _EngineSpec, Path | None]:
    """The plan, the engine, and the folder of the run that gets the result."""
    if options.what is None:
        return _plan_of_options(options), _EngineSpec(options.engine or "vectorised"), None
    for name in ("epsilon", "sigma_cdp", "sigma_cor"):
        if getattr(options, name) is not None:
            raise InputError(f"{options.what} already sets the noise; drop {opt.flag_of(name)}")
    if options.task is not None:
        raise InputError(f"{options.what} already sets the users; drop --task")
    opt.refuse_beside_plan(options)
    path = Path(options.what)
    engine, folder = _EngineSpec(), None
    if path.suffix == ".toml":
        from decor.federation.federation import Federation

        federation = Federation.read(path)
        plan, engine = federation.plan, _EngineSpec("peers", federation.dtype)
    elif path.is_dir():
        saved = decor.Run.load(path)
        plan, engine, folder = saved.plan, _engine_of_run(saved, options), path
    else:
        plan = decor.NoisePlan.load(path)
    if options.engine is not None:
        engine = replace(engine, name=options.engine)
    # messages depend on the noise alone: any adversary may be asked about
    if options.adversary is not None:
        plan = replace(plan, adversary=opt.adversary_of(options))
    return plan, engine, folder


def _engine_of_run(run: decor.Run, options: argparse.Namespace) -> _EngineSpec:
    saved = run.manifest.get("engine")
    held: dict[str, Any] = saved if isinstance(saved, dict) else {"name": saved}
    if options.engine is None and (name := held.get("name")) not in ENGINES:
        raise InputError(
            f"the run's manifest names the engine {name!r}; give --engine, with one of "
            f"{', '.join(ENGINES)}"
        )
    # the manifest is a file that anyone may have edited
    for name, kinds in (("dtype", ("float32", "float64")), ("device", ("cpu", "cuda"))):
        if held.get(name, kinds[0]) not in kinds:
            raise InputError(
                f"the run's manifest has the {name} {held[name]!r}, not {' or '.join(kinds)}; "
                "audit its plan.json instead"
            )
    engine = _EngineSpec(
        held.get("name"),
        held.get("dtype", "float32"),
        held.get("device", "cpu"),
        held.get("tf32") is True,
        # a private run has none, whatever an edited manifest says
        run.simulated and held.get("bf16") is True,
    )
    if not run.simulated and engine.name in ("vectorised", "process-group"):
        # one process draws the same secret noise as several, and all its messages can be read
        engine = replace(engine, name="vectorised", private=True)
    return engine


def _plan_of_options(options: argparse.Namespace) -> decor.NoisePlan:
    topology = _topology(options)
    setting = topology, opt.exposure_of(options), opt.adversary_of(options)
    noise = options.sigma_cdp, options.sigma_cor
    if noise != (None, None):
        # half of a noise pair, or a pair and a budget, has no clear meaning
        if options.epsilon is not None or None in noise:
            raise InputError("give --epsilon, or both --sigma-cdp and --sigma-cor (0 for none)")
        return decor.NoisePlan(*setting, *noise)
    epsilon = _EPSILON if options.epsilon is None else options.epsilon
    budget = decor.Budget(epsilon, opt.delta_of(options))
    with warnings.catch_warnings():
        # the audit shows how little a fragile graph hides
        warnings.simplefilter("ignore", FragileGraphWarning)
        return decor.calibrate(*setting, budget, any_delta=options.any_delta)


def _topology(options: argparse.Namespace) -> decor.Topology:
    """The graph; also the numbers of records, where a task is named."""
    if options.task is None:
        return opt.topology_of(options)
    if options.records is not None:
        raise InputError("--records follows from the task's data; drop it")
    topology = task_option.topology_of(options.task, options)
    if options.unit == "example" and options.rate is None:
        options.records = options.task.make(topology.labels or topology.users).records
    return topology


def _save(audit: AuditSummary, folder: Path) -> list[Any]:
    """Writes the result beside the run, and into its report."""
    from decor.results import build_report, report

    with write_errors(folder / "audit.json"):
        replace_text(folder / "audit.json", json.dumps(audit.to_json(), indent=1) + "\n")
    saved = decor.Run.load(folder)
    name = folder.name
    page = build_report.report_of_runs([(name or "run", saved)])
    page = replace(page, audits=((name, audit),))
    report.write(page, folder / "report.html")
    return [folder / "audit.json", folder / "report.html"]


def _show(audit: AuditSummary, folder: Path | None, options: argparse.Namespace) -> None:
    written = [] if folder is None else _save(audit, folder)
    if options.plot is not None:
        from decor.auditing.figure import draw

        draw(audit, options.plot)
        written.append(options.plot)
    if options.json:
        write_json(audit.to_json())
        return
    steps = f"{audit.steps} of {audit.steps_of_plan:,} steps"
    print(f"{audit.topology}; {audit.canaries:,} canaries, {steps}")
    print(table(HEADER, audit.rows))
    print(f"\n{audit.checks_passed} of {len(audit.checks)} checks passed.")
    for source, result in audit.last_bits.items():
        print(f"Last bits of messages, {source}: {result}.")
    print(f"\n{audit.statement}  ({audit.seconds:g} s)")
    for path in written:
        print(f"wrote {path}")
