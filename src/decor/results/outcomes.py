"""From runs to report data: what a method reached with every seed, what it promised, and how to
repeat it.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from decor.errors import InputError
from decor.graph.topology import Topology
from decor.privacy.adversary import Adversary
from decor.privacy.guarantee import Guarantee
from decor.privacy.plan import NoisePlan

from .report_data import FORMAT, Data, drawn_graph
from .run import Run

_DELTA = 1e-5

METRICS: tuple[dict[str, Any], ...] = (
    {"name": "accuracy", "label": "test accuracy", "better": "higher", "percent": True},
    {"name": "loss", "label": "training loss", "better": "lower"},
    {"name": "test_loss", "label": "test loss", "better": "lower"},
    {"name": "distance", "label": "squared distance to the optimum", "better": "lower"},
    {"name": "consensus", "label": "squared distance to consensus", "better": "lower"},
)
"""All metrics that runs can have, the one that people look at first first."""

_CURIOUS = (
    "Users follow the protocol and are curious; somebody who deviates from it, and side "
    "channels, are not covered."
)
_LOSS = (
    "The training loss is computed on private data: a simulation shows it, a private run does "
    "not measure it."
)
_SEED = (
    "This is a simulation: anyone who knows its seed can subtract the noise, so that its models "
    "are not to be released. A "
    "private run (decor train --seed secret) makes models that are."
)
_SECRET = (
    "The noise of this private run came from 256 bits of the operating system that are kept "
    "nowhere: it cannot be repeated."
)
_PEERS = (
    "The noise of real peers comes from secrets that each of them drew from its own operating "
    "system: there is no seed, and the "
    "same federation run anew gives other numbers."
)


def method(kind: str, graph: str | None, where: str | None = None) -> dict[str, Any]:
    """An entry of `methods`; `where` says in words what a graph without a name of its own is."""
    where = f" on {where or f'the graph {graph!r}'}" if graph else ""
    name, sentence = {
        "decor": (
            f"DECOR {graph}",
            f"Noise that cancels between neighbours{where}, and a little of everybody's own.",
        ),
        "central": (
            "central DP",
            "A trusted server adds noise to the average: what privacy costs at least.",
        ),
        "local": (
            f"local DP {graph}",
            f"Everybody's own noise alone{where}: no secrets, and no trust in anybody.",
        ),
        "none": ("no privacy", "The same training without noise and without clipping."),
    }[kind]
    return {"name": name, "kind": kind, "graph": graph, "sentence": sentence}


def outcome(
    name: str, epsilon: float | str | None, runs: Sequence[Run], guarantees: bool = True
) -> dict[str, Any]:
    """An entry of `outcomes`: one setting, one run a seed."""
    plan, taken = runs[0].plan, min(run.steps_taken for run in runs)
    names = [name for name in runs[0].history if name != "step"]
    longest = max((run.history["step"] for run in runs), key=len)
    stopped = next((run.stopped for run in runs if run.stopped is not None), None)
    entry: dict[str, Any] = {
        "method": name,
        "epsilon": epsilon,
        "delta": plan.budget.delta if plan.budget is not None else _DELTA,
        "noise": _whence(runs[0]),
        "simulated": runs[0].simulated,
        "seeds": [
            run.manifest["seed"] if isinstance(run.manifest.get("seed"), int) else k
            for k, run in enumerate(runs)
        ],
        "learning_rate": runs[0].manifest.get("learning_rate"),
        "clip": plan.exposure.clip if plan.sigma_cdp > 0 else None,
        "sigma_cdp": plan.sigma_cdp,
        "sigma_cor": _sigma_cor(plan),
        "steps": taken,
        "planned_steps": plan.exposure.steps,
        "stopped": stopped,
        "final": {
            n: [_finite(run.metrics[n]) if _whole(run) else None for run in runs] for n in names
        },
        "curve": {
            "step": longest,
            **{n: [_padded(run.history[n], len(longest)) for run in runs] for n in names},
        },
        "guarantee": None,
        "per_user_epsilon": None,
        "adversaries": [],
    }
    if epsilon is not None and guarantees:
        entry |= _privacy(max(runs, key=lambda run: run.steps_taken))
    return entry


def report(
    title: str,
    methods: Sequence[dict[str, Any]],
    outcomes: Sequence[dict[str, Any]],
    graphs: Sequence[tuple[str, Topology]],
    *,
    subtitle: str = "",
    tuning: dict[str, Any] | None = None,
    repeat: dict[str, Any] | None = None,
    notes: Sequence[str] = (),
) -> Data:
    """The whole report data; metrics are those that every outcome has."""
    common = [m for m in METRICS if all(m["name"] in entry["final"] for entry in outcomes)]
    return {
        "format": FORMAT,
        "title": title,
        "subtitle": subtitle,
        "made": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "metrics": common,
        "methods": list(methods),
        "outcomes": list(outcomes),
        "graphs": [drawn_graph(topology, name) for name, topology in graphs],
        "tuning": tuning,
        "repeat": repeat,
        "notes": [*notes, *_not_covered(common, outcomes)],
    }


def _not_covered(
    metrics: Sequence[dict[str, Any]], outcomes: Sequence[dict[str, Any]]
) -> list[str]:
    """What no guarantee is about, of runs such as these."""
    whence = {entry.get("noise", "seed") for entry in outcomes}
    said = {
        _CURIOUS: True,
        _LOSS: any(m["name"] == "loss" for m in metrics),
        _SEED: "seed" in whence,
    }
    said |= {_SECRET: "secret" in whence, _PEERS: "peers" in whence}
    return [sentence for sentence, applies in said.items() if applies]


def of_runs(runs: Sequence[tuple[str, Run]], command: str) -> Data:
    """The report of saved runs, each a method of its own."""
    methods, entries, graphs = [], [], {}
    for name, run in runs:
        plan = run.plan
        graph, where = _named(run, alone=len({r.plan.topology.digest for _, r in runs}) == 1)
        graphs[graph] = plan.topology
        silent = plan.sigma_cdp == 0 and not any(np.atleast_1d(plan.sigma_cor))
        kind = (
            "none"
            if silent
            else "central"
            if plan.adversary.average_only
            else "local"
            if plan.adversary.colluders is None
            else "decor"
        )
        methods.append(method(kind, graph, where) | {"name": name, "graph": graph})
        epsilon: float | str | None = None
        if not silent:
            spent = _guarantee(run).epsilon
            # what was spent, unless the plan meets its budget
            within = plan.budget is not None and spent <= plan.budget.epsilon
            epsilon = plan.budget.epsilon if within and plan.budget is not None else _json(spent)
        entries.append(outcome(name, epsilon, [run]))
    first = runs[0][1]
    task = first.manifest.get("task", {})
    names = {run.manifest.get("task", {}).get("name", "run") for _, run in runs}
    if len(names) > 1:
        raise InputError(
            f"these runs are of different tasks ({', '.join(sorted(names))}); report them apart"
        )
    return report(
        f"{task.get('name', 'run')}: {len(runs)} run{'s' if len(runs) > 1 else ''}",
        methods,
        entries,
        list(graphs.items()),
        subtitle=first.plan.topology.description
        if len(graphs) == 1
        else f"{first.plan.topology.users} users",
        repeat={
            "command": command,
            "versions": first.manifest.get("versions", {}),
            "seconds": first.manifest.get("seconds"),
            "options": {
                k: first.manifest[k] for k in ("task", "recipe", "engine") if k in first.manifest
            },
        },
    )


def _whence(run: Run) -> str:
    """Where a run's randomness came from: a seed, a secret one, or the secrets of real peers."""
    engine = run.manifest.get("engine")
    if isinstance(engine, dict) and engine.get("name") == "peers":
        return "peers"
    return "seed" if run.simulated else "secret"


def _named(run: Run, alone: bool) -> tuple[str, str | None]:
    """The name of a run's graph, and what a sentence calls it if it has none."""
    topology = run.plan.topology
    if not alone:
        return topology.description, None
    if topology.family is not None:
        return repr(topology), None
    called = "the federation's graph" if _whence(run) == "peers" else "its own graph"
    return called, called


def _privacy(run: Run) -> dict[str, Any]:
    """What the steps taken cost, against the plan's adversary and (where that is quick) against the
    others.
    """
    guarantee = _guarantee(run)
    listed = [] if run.plan.adversary.average_only else run.plan.listed_adversaries()
    if run.plan.exposure.unit == "example":  # each takes seconds: the two that say most
        listed = [a for a in listed if a in (run.plan.adversary, Adversary.everyone())]
    rows = []
    for adversary in listed:
        g = (
            guarantee
            if adversary == guarantee.adversary
            else run.guarantee_at(guarantee.delta, adversary)
        )
        rows.append(
            {
                "adversary": str(adversary),
                "epsilon": _json(g.epsilon),
                "exact": g.exact,
                "worst_user": g.worst_user,
            }
        )
    return {
        "spent": _json(guarantee.epsilon),
        "guarantee": str(guarantee),
        "per_user_epsilon": [_json(e) for e in guarantee.per_user.tolist()],
        "adversaries": rows,
    }


def _guarantee(run: Run) -> Guarantee:
    """At the budget's delta; a plan made by hand has none, and is asked about the usual one."""
    return run.guarantee if run.plan.budget is not None else run.guarantee_at(_DELTA)


def _sigma_cor(plan: NoisePlan) -> Any:
    c = plan.sigma_cor
    return c if isinstance(c, float) else {"low": min(c, default=0.0), "high": max(c, default=0.0)}


def _whole(run: Run) -> bool:
    """Diverged runs have no last value worth showing."""
    return all(math.isfinite(value) for value in run.metrics.values())


def _padded(values: Sequence[float], length: int) -> list[float | None]:
    return [_finite(value) for value in values] + [None] * (length - len(values))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _json(value: float) -> float | str:
    return "inf" if math.isinf(value) else value
