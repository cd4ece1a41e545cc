"""From runs to report data: what each method reached, what it guarantees, how to repeat it."""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from decor.errors import InputError
from decor.graph.gossip import Gossip
from decor.graph.topology import Topology
from decor.privacy.adversary import Adversary
from decor.privacy.guarantee import Guarantee
from decor.privacy.plan import NoisePlan
from decor.privacy.plan_answer import PlanAnswer
from decor.text import amount

from .json_dataclass import Settings
from .report_data import (
    AdversaryEpsilon,
    Curve,
    GraphDrawing,
    Method,
    MethodKind,
    Metric,
    NoiseOrigin,
    Outcome,
    Repeat,
    Report,
    SigmaRange,
    Tuning,
)
from .run import Run
from .signing import Facts, Signing, today

_DELTA = 1e-5
"""For plans without a budget, which have no delta of their own."""

METRICS = (
    Metric("accuracy", "test accuracy", "higher", percent=True),
    Metric("loss", "training loss", "lower"),
    Metric("test_loss", "test loss", "lower"),
    Metric("distance", "squared distance to the optimum", "lower"),
    Metric("consensus", "squared distance to consensus", "lower"),
)
"""All metrics that runs can have, the most interesting first."""

HONEST = (
    "Users follow the protocol and are curious. Users who deviate from it, and side channels, are "
    "not covered."
)
"""What no guarantee covers."""
_LOSS = (
    "The training loss is computed on private data: a simulation shows it, a private run does not "
    "measure it."
)
_SEED = (
    "This is a simulation: anyone who knows its seed can subtract the noise, so its models must "
    "not be released. A private run (decor train --seed secret) makes models that may be."
)
_SECRET = (
    "The noise of this private run came from 256 bits of the operating system that are stored "
    "nowhere: it cannot be repeated."
)
_PEERS = (
    "The noise of real peers comes from secrets that each of them drew from its own operating "
    "system: there is no seed, and running the same federation again gives other values."
)


def describe_method(kind: MethodKind, graph: str | None, graph_text: str | None = None) -> Method:
    """Names a method and describes it in a sentence.

    Args:
        kind: The kind of method.
        graph: The name of its graph; None for central DP.
        graph_text: How the sentence calls a graph that has no name of its own.
    """
    where = f" on {graph_text or f'the graph {graph!r}'}" if graph else ""
    match kind:
        case "decor":
            name = f"DECOR {graph}"
            sentence = f"Noise that cancels between neighbours{where}, and a little noise per user."
        case "central":
            name = "central DP"
            sentence = "A trusted server adds noise to the average: the least that privacy costs."
        case "local":
            name = f"local DP {graph}"
            sentence = f"Independent noise per user alone{where}: no secrets, and no trust."
        case "none":
            name = "no privacy"
            sentence = "The same training without noise and without clipping."
    return Method(name, kind, graph, sentence)


def method_kind(plan: NoisePlan) -> MethodKind:
    """The kind of method that a plan belongs to."""
    if _is_silent(plan):
        return "none"
    if plan.adversary.average_only:
        return "central"
    return "local" if plan.adversary.colluders is None else "decor"


def summarise_runs(name: str, epsilon: float | None, runs: Sequence[Run]) -> Outcome:
    """The outcome of one method with one budget, from one run per seed."""
    first, plan = runs[0], runs[0].plan
    # all runs of a setting measure the same
    metrics = [metric for metric in first.history if metric != "step"]
    # a seed that stopped early has fewer steps: its curve ends with None
    longest = max((run.history["step"] for run in runs), key=len)
    rows = {m: tuple(_pad(run.history[m], len(longest)) for run in runs) for m in metrics}
    final = {m: tuple(_final_value(run, m) for run in runs) for m in metrics}
    guarantee: Guarantee | None = None
    adversaries: tuple[AdversaryEpsilon, ...] = ()
    if epsilon is not None:
        # the run that went furthest; the guarantee is the whole plan's anyway
        guarantee, adversaries = _privacy(max(runs, key=lambda run: run.steps_taken))
    return Outcome(
        method=name,
        epsilon=epsilon,
        delta=plan.budget.delta if plan.budget is not None else _DELTA,
        noise=noise_origin(first),
        simulated=first.simulated,
        seeds=tuple(_seed(run, k) for k, run in enumerate(runs)),
        learning_rate=first.manifest.get("learning_rate"),
        # without noise nothing is clipped, however large the clip of the plan
        clip=plan.exposure.clip if plan.least_sigma_cdp > 0 else None,
        sigma_cdp=_sigma(plan.sigma_cdp),
        sigma_cor=_sigma(plan.sigma_cor),
        # the smallest number: the table says "60 of 200" if a single seed stopped
        steps=min(run.steps_taken for run in runs),
        planned_steps=plan.exposure.steps,
        # one reason is enough for a notice; usually all seeds stop for the same one
        stopped=next((run.stopped for run in runs if run.stopped is not None), None),
        final=final,
        curve=Curve(tuple(longest), rows),
        guarantee=None if guarantee is None else str(guarantee),
        per_user_epsilon=None if guarantee is None else tuple(guarantee.per_user.tolist()),
        adversaries=adversaries,
        spent=None if guarantee is None else guarantee.epsilon,
    )


def make_report(
    title: str,
    methods: Sequence[Method],
    outcomes: Sequence[Outcome],
    graphs: Sequence[tuple[str, Topology]],
    *,
    subtitle: str = "",
    tuning: Tuning | None = None,
    repeat: Repeat | None = None,
    notes: Sequence[str] = (),
    base_rate: float | None = None,
) -> Report:
    """The report of these outcomes; its metrics are those that every outcome has."""
    # peers measure less than the simulator, and may stand beside it
    known = {metric.name for metric in METRICS}
    # a task's own metrics
    own = [Metric(m, m, "higher") for m in outcomes[0].final if m not in known] if outcomes else []
    common = tuple(
        m for m in (*METRICS, *own) if all(m.name in outcome.final for outcome in outcomes)
    )
    return Report(
        title=title,
        subtitle=subtitle,
        made=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        metrics=common,
        methods=tuple(methods),
        outcomes=tuple(outcomes),
        graphs=tuple(GraphDrawing.of_topology(topology, name) for name, topology in graphs),
        tuning=tuning,
        repeat=repeat,
        notes=(*notes, *_limits(common, outcomes)),
        base_rate=base_rate,
    )


def report_of_runs(
    runs: Sequence[tuple[str, Run]], owner: str = "", date: str | None = None
) -> Report:
    """The report of saved runs, each of them a method of its own.

    Args:
        runs: The runs by their names.
        owner: Who answers for them; empty: to be filled in by hand.
        date: The date to sign at; None: today.

    Raises:
        InputError: If the runs are of different tasks, or the date is none.
    """
    tasks = {run.manifest.get("task", {}).get("name", "run") for _, run in runs}
    if len(tasks) > 1:
        names = ", ".join(sorted(tasks))
        raise InputError(f"these runs are of different tasks ({names}); report them apart")
    # equal graphs have equal digests, whatever they are called
    one_graph = len({run.plan.topology.digest for _, run in runs}) == 1
    methods, outcomes, graphs = [], [], {}
    for name, run in runs:
        graph, graph_text = _graph_name(run, one_graph)
        graphs[graph] = run.plan.topology
        # the name of the folder tells runs apart, which the name of a method may not
        sentence = describe_method(method_kind(run.plan), graph, graph_text).sentence
        methods.append(Method(name, method_kind(run.plan), graph, sentence))
        outcomes.append(summarise_runs(name, _report_epsilon(run), [run]))
    first = runs[0][1]
    topology, manifest = first.plan.topology, first.manifest
    plural = "s" if len(runs) > 1 else ""
    base_rates = {run.manifest.get("base_rate") for _, run in runs}
    report = make_report(
        f"{manifest.get('task', {}).get('name', 'run')}: {len(runs)} run{plural}",
        methods,
        outcomes,
        list(graphs.items()),
        subtitle=topology.description if len(graphs) == 1 else amount(topology.users, "user"),
        repeat=Repeat(
            # no command: a run does not keep the one that made it
            versions=manifest.get("versions", {}),
            seconds=manifest.get("seconds"),
            options=_options_of(first),
        ),
        # runs on other test data have another one
        base_rate=base_rates.pop() if len(base_rates) == 1 else None,
    )
    return replace(
        report, signing=Signing(digests=_digests(runs), owner=owner, date=date or today())
    )


def _digests(runs: Sequence[tuple[str, Run]]) -> Facts:
    """The digests of plans and federations, each once, with the runs that have it."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, run in runs:
        found.setdefault(("plan", run.plan.digest), []).append(name)
        if isinstance(federation := run.manifest.get("federation"), str):
            found.setdefault(("federation", federation), []).append(name)
    facts = []
    for (what, digest), names in found.items():
        # beside one digest of a kind, names would say nothing
        of = "" if len(names) == len(runs) else f" of {', '.join(names)}"
        facts.append((f"{what}{of}", digest))
    return tuple(facts)


def _options_of(run: Run) -> Settings:
    """How a run was trained, from its manifest: what is off is left out."""
    # a peer's manifest counts the users whose data it has, which is one
    options: Settings = {"users": run.plan.topology.users}
    for part in ("task", "recipe", "engine"):
        held = run.manifest.get(part)
        entries = held if isinstance(held, dict) else {"name": held}
        for key, value in entries.items():
            name = f"task {key}" if part == "task" and key not in ("name", "parameters") else key
            if key == "name":
                name = part
            if key in ("gossip", "final_gossip"):
                value = _gossip_text(value)
            # "number" is the user's, which is named
            if key not in ("users", "fingerprint", "number") and value not in (None, False, 0):
                options[name] = value
    return options


def _gossip_text(held: Any) -> str | None:
    """Rounds of gossip in words; None where there are none."""
    try:
        gossip = Gossip(**held)
    except (TypeError, InputError):  # a manifest that no run wrote
        return str(held)
    return gossip.description if gossip.rounds else None


def noise_origin(run: Run) -> NoiseOrigin:
    """Where the noise of a run came from."""
    engine = run.manifest.get("engine")
    if isinstance(engine, dict) and engine.get("name") == "peers":
        return "peers"
    return "seed" if run.simulated else "secret"


def _limits(metrics: Sequence[Metric], outcomes: Sequence[Outcome]) -> list[str]:
    """What the guarantees do not cover."""
    origins = {outcome.noise for outcome in outcomes}
    notes = [HONEST]
    if any(metric.name == "loss" for metric in metrics):
        notes.append(_LOSS)
    by_origin: dict[NoiseOrigin, str] = {"seed": _SEED, "secret": _SECRET, "peers": _PEERS}
    return notes + [note for origin, note in by_origin.items() if origin in origins]


def _report_epsilon(run: Run) -> float | None:
    """The budget, if the plan keeps within it; otherwise what the plan costs."""
    # no noise, no guarantee
    if _is_silent(run.plan):
        return None
    spent, budget = _guarantee(run).epsilon, run.plan.budget
    # a plan made by hand may cost more than the budget it carries
    return budget.epsilon if budget is not None and spent <= budget.epsilon else spent


def _graph_name(run: Run, one_graph: bool) -> tuple[str, str | None]:
    """The name of a run's graph, and how a sentence calls a graph without a name."""
    topology = run.plan.topology
    # beside other graphs, "its own graph" would be ambiguous
    if not one_graph:
        return topology.description, None
    if topology.family is not None:
        return repr(topology), None
    name = "the federation's graph" if noise_origin(run) == "peers" else "its own graph"
    return name, name


def _privacy(run: Run) -> tuple[Guarantee, tuple[AdversaryEpsilon, ...]]:
    """The guarantee against the plan's adversary, and epsilon against each adversary."""
    guarantee, plan = _guarantee(run), run.plan
    listed = [] if plan.adversary.average_only else plan.listed_adversaries()
    if plan.exposure.unit == "example":  # each takes seconds: the two that say most
        listed = [a for a in listed if a in (plan.adversary, Adversary.everyone())]
    rows = PlanAnswer(plan, guarantee).adversary_rows(
        listed, lambda adversary: run.guarantee_at(guarantee.delta, adversary)
    )
    return guarantee, tuple(
        AdversaryEpsilon(str(row.adversary), row.epsilon, row.exact, row.worst_user) for row in rows
    )


def _guarantee(run: Run) -> Guarantee:
    """At the budget's delta, or at the usual delta for a plan without a budget."""
    return run.guarantee if run.plan.budget is not None else run.guarantee_at(_DELTA)


def _is_silent(plan: NoisePlan) -> bool:
    return plan.sigma_cdp == 0 and not any(np.atleast_1d(plan.sigma_cor))


def _seed(run: Run, number: int) -> int:
    """The seed of a simulation; runs without a known seed are numbered."""
    seed = run.manifest.get("seed")
    # the manifest of a private run says "secret", and that of a peer nothing
    return seed if isinstance(seed, int) else number


def _sigma(sigma: float | tuple[float, ...]) -> float | SigmaRange:
    if isinstance(sigma, float):
        return sigma
    # a graph without edges has no sigma_cor
    return SigmaRange(min(sigma, default=0.0), max(sigma, default=0.0))


def _final_value(run: Run, metric: str) -> float | None:
    """The last value; None for a run that diverged, whatever its other metrics say."""
    known = [run.metrics[m.name] for m in METRICS if m.name in run.metrics]
    value = run.metrics[metric]
    # accuracy of a diverged model is finite, but means nothing
    return value if all(map(math.isfinite, [value, *known])) else None


def _pad(values: Sequence[float], length: int) -> tuple[float | None, ...]:
    known = [value if math.isfinite(value) else None for value in values]
    return (*known, *[None] * (length - len(values)))
