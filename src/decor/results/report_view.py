"""What the page draws: the report data reduced to means, spreads, texts and histograms, so that a
page stays small.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from .palette import RAMP, styles
from .report_data import DRAWN_EDGES, DRAWN_USERS, Data, by_peers, graph_users, number
from .tables import (
    SPREAD,
    Spread,
    decimals,
    epsilon_text,
    heading,
    plain,
    scale,
    spread_text,
    spreads,
    value_text,
)

CURVE_POINTS = 400
BINS = 40


def view(data: Data) -> dict[str, Any]:
    """Everything the script of the page needs, in the order of the data; "inf" is still the
    string.
    """
    columns = {metric["name"]: spreads(data, metric) for metric in data["metrics"]}
    digits = {
        m["name"]: decimals(columns[m["name"]], bool(m.get("percent"))) for m in data["metrics"]
    }
    names = [method["name"] for method in data["methods"]]
    asked = {o["epsilon"] for o in data["outcomes"] if o["epsilon"] is not None}
    return {
        "spread": SPREAD,
        "single": "one run of real peers" if by_peers(data) else "a single seed",
        "metrics": [_metric(metric, digits[metric["name"]]) for metric in data["metrics"]],
        "methods": [
            {
                "name": method["name"],
                "kind": method["kind"],
                "graph": method.get("graph"),
                "sentence": method.get("sentence") or "",
                "mark": style.mark,
                "dashed": style.dashed,
            }
            for method, style in zip(data["methods"], styles(data), strict=True)
        ],
        "epsilons": [{"value": e, "text": epsilon_text(e)} for e in sorted(asked, key=number)],
        "outcomes": [
            _outcome(
                outcome,
                names.index(outcome["method"]),
                data["metrics"],
                {m: columns[m][k] for m in columns},
                digits,
            )
            for k, outcome in enumerate(data["outcomes"])
        ],
        "graphs": [_graph(graph) for graph in data.get("graphs") or []],
        "ramp": list(RAMP),
    }


def _metric(metric: Data, digits: int) -> dict[str, Any]:
    unit = "%" if metric.get("percent") else ""
    points = "points" if unit else ""
    return {
        "name": metric["name"],
        "label": metric["label"],
        "heading": heading(metric),
        "better": metric["better"],
        "unit": unit,
        "points": points,
        "decimals": digits,
    }


def _outcome(
    outcome: Data,
    method: int,
    metrics: list[Data],
    final: dict[str, Spread | None],
    digits: dict[str, int],
) -> dict[str, Any]:
    return {
        "method": method,
        "epsilon": outcome["epsilon"],
        "epsilonText": epsilon_text(outcome["epsilon"]),
        "delta": outcome.get("delta"),
        "final": {
            m["name"]: _final(final[m["name"]], digits[m["name"]], "%" if m.get("percent") else "")
            for m in metrics
        },
        "curve": _curve(outcome, metrics),
        "guarantee": outcome.get("guarantee") or "",
        "stopped": outcome.get("stopped") or "",
        "steps": outcome.get("steps"),
        "planned": outcome.get("planned_steps"),
        "seeds": len(outcome["seeds"]),
        "runs": _runs(outcome),
        "sigmaCdp": plain(outcome.get("sigma_cdp")),
        "sigmaCor": plain(outcome.get("sigma_cor")),
        **_users(outcome.get("per_user_epsilon")),
        "adversaries": [
            {
                "name": row["adversary"],
                "epsilon": row["epsilon"],
                "text": ("" if row.get("exact", True) or row["epsilon"] == "inf" else "≤ ")
                + epsilon_text(row["epsilon"]),
                "worst": row.get("worst_user"),
            }
            for row in outcome.get("adversaries") or []
        ],
    }


def _runs(outcome: Data) -> str:
    """What an outcome speaks for."""
    count, whence = len(outcome["seeds"]), outcome.get("noise", "seed")
    if whence == "peers":
        return "one run of real peers" if count == 1 else f"{count} runs of real peers"
    return f"{count} {'private run' if whence == 'secret' else 'seed'}{'' if count == 1 else 's'}"


def _final(spread: Spread | None, digits: int, unit: str) -> dict[str, Any] | None:
    if spread is None:
        return None
    seen = (
        f"{value_text(spread.low, digits)} to {value_text(spread.high, digits)}"
        if spread.seeds > 1
        else ""
    )
    return asdict(spread) | {"text": spread_text(spread, digits, unit), "range": seen}


def _curve(outcome: Data, metrics: list[Data]) -> dict[str, Any] | None:
    """Mean and standard error over seeds at no more than CURVE_POINTS steps, the first and the last
    among them.
    """
    curve = outcome.get("curve")
    if not curve or not curve["step"]:
        return None
    count = len(curve["step"])
    kept = sorted({round(k) for k in np.linspace(0, count - 1, min(count, CURVE_POINTS)).tolist()})
    made: dict[str, Any] = {"step": [curve["step"][k] for k in kept]}
    for metric in metrics:
        if metric["name"] in curve:
            over = [
                Spread.of_seeds([row[k] for row in curve[metric["name"]]], scale(metric))
                for k in kept
            ]
            made[metric["name"]] = {
                "mean": [None if s is None else _short(s.mean) for s in over],
                "error": [None if s is None or s.error is None else _short(s.error) for s in over],
            }
    return made


def _short(value: float) -> float:
    return float(f"{value:.7g}")


def _users(values: list[Any] | None) -> dict[str, Any]:
    """Everybody's epsilon where they are drawn one by one, otherwise how they are distributed."""
    if values is None:
        return {"users": None, "histogram": None}
    if len(values) <= DRAWN_USERS:
        return {"users": values, "histogram": None}
    numbers = np.array([number(value) for value in values])
    finite = numbers[np.isfinite(numbers)]
    made: dict[str, Any] = {
        "of": len(values),
        "infinite": int(len(values) - len(finite)),
        "edges": [],
        "counts": [],
    }
    if len(finite):
        low, high = float(finite.min()), float(finite.max())
        # all alike but for rounding: one bar
        alike = high - low <= 1e-9 * high
        counts, edges = np.histogram(
            finite, bins=1 if alike else BINS, range=None if alike else (low, high)
        )
        made |= {"low": low, "high": high, "median": float(np.median(finite)), "alike": alike}
        made |= {"counts": counts.tolist(), "edges": edges.tolist()}
    return {"users": None, "histogram": made}


def _graph(graph: Data) -> dict[str, Any]:
    users = graph_users(graph) or 0
    drawn = users <= DRAWN_USERS and bool(graph.get("places"))
    edges = graph.get("edges")
    return {
        "name": graph["name"],
        "description": graph.get("description") or "",
        "users": users,
        "places": graph["places"] if drawn else None,
        "labels": (graph.get("labels") if drawn else None)
        or (list(map(str, range(users))) if drawn else None),
        "edges": edges if drawn and edges is not None and len(edges) <= DRAWN_EDGES else None,
    }
