"""The report data: one plain dictionary from which the page, the figures and the terminal table are
made.

It holds only what JSON can hold. An infinite epsilon is the string "inf", a value that does not
exist (a seed that diverged) is None, and nothing is NaN. `check` says what is missing or wrong
before anything is drawn. Its keys (those with ? may be absent):

    format "decor-report-1", title, subtitle?, made? (ISO time), notes? [sentence] metrics [{name,
    label, better: "higher" | "lower", percent?: the values are fractions of 1}], the main one first
    methods [{name, kind: one of KINDS, graph?: name of a graph, sentence?}] outcomes [{method,
    epsilon: the budget, the same number for all methods that are compared (None: no privacy),
    seeds,
               noise?: where it came from, one of NOISE (of "secret" and "peers" the seeds only
               number the runs),
               final: {metric: one value per seed}, curve?: {step: [...], metric: [one list per
               seed]}, guarantee?: a sentence, delta?, spent?: the epsilon really spent,
               learning_rate?, clip?, sigma_cdp?, sigma_cor?: number or {low, high}, steps?,
               planned_steps?, stopped?: why it ended early, per_user_epsilon?: one per user of the
               method's graph, adversaries?: [{adversary, epsilon, exact?, worst_user?}]}], one for
               a method and epsilon
    graphs? [{name, users or places, description?, edges?, labels?}], as `drawn_graph` makes them
    tuning? {warning, criterion?, grid?}, repeat? {command?, versions?, machine?, seconds?,
    options?, files?}
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from decor.errors import InputError
from decor.graph.topology import Topology

FORMAT = "decor-report-1"
KINDS = ("decor", "central", "local", "none")
NOISE = ("seed", "secret", "peers")
DRAWN_USERS = 1500
"""Above this many users a graph is shown as the distribution of epsilons instead."""
DRAWN_EDGES = 20_000

Data = dict[str, Any]


def number(value: Any) -> float:
    """A number of the report data as a float: "inf" is infinity."""
    return math.inf if value == "inf" else float(value)


def by_peers(data: Data) -> bool:
    """Whether all of it was reached by real peers, who have no seeds."""
    return all(outcome.get("noise") == "peers" for outcome in data["outcomes"])


def check(data: Data) -> None:
    """Raise InputError, naming the place, unless this is complete and consistent report data."""
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        found = data.get("format") if isinstance(data, dict) else type(data).__name__
        raise InputError(
            f"this is not report data: its format is {found!r} where {FORMAT!r} is needed."
        )
    try:
        json.dumps(data, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as problem:
        raise InputError(
            f"the report data is not plain JSON ({problem}): give lists, text and finite numbers, "
            '"inf" for an infinite epsilon '
            "and None for a value that does not exist."
        ) from None
    _text(data, "title", "report")
    for key in ("subtitle", "made"):
        _text(data, key, "report", optional=True)
    _check_metrics(_list(data, "metrics", "report"))
    graphs = {g["name"]: g for g in _check_graphs(data.get("graphs") or [])}
    methods = _check_methods(_list(data, "methods", "report"), graphs)
    _check_outcomes(data, methods, graphs)
    _check_surroundings(data)


def drawn_graph(topology: Topology, name: str) -> dict[str, Any]:
    """A topology as an entry of `graphs`: where everybody is drawn, who talks to whom; without both
    where it is too large.
    """
    entry: dict[str, Any] = {
        "name": name,
        "description": topology.description,
        "users": topology.users,
    }
    if topology.users <= DRAWN_USERS:
        from .graph_layout import places

        entry["places"] = [[round(float(x), 4), round(float(y), 4)] for x, y in places(topology)]
        entry["labels"] = [topology.name(user) for user in range(topology.users)]
        if topology.edge_count <= DRAWN_EDGES:
            entry["edges"] = [[int(u), int(v)] for u, v in topology.edges]
    return entry


def _bad(where: str, value: Any, wanted: str) -> InputError:
    shown = repr(value)
    return InputError(
        f"report data, {where}: {shown if len(shown) <= 80 else shown[:77] + '...'} "
        f"where {wanted} is needed."
    )


def _text(holder: Data, key: str, where: str, optional: bool = False) -> str:
    value = holder.get(key)
    if value is None and optional:
        return ""
    if not isinstance(value, str) or (not optional and not value.strip()):
        raise _bad(f"{where}.{key}", value, "some text")
    return value


def _list(holder: Data, key: str, where: str) -> list[Any]:
    value = holder.get(key)
    if not isinstance(value, list) or not value:
        raise _bad(f"{where}.{key}", value, "a list with at least one entry")
    return value


def _number(
    value: Any,
    where: str,
    *,
    infinite: bool = False,
    optional: bool = False,
    least: float = -math.inf,
) -> None:
    if (value is None and optional) or (value == "inf" and infinite):
        return
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not math.isfinite(value)
        or value < least
    ):
        limit = "" if least == -math.inf else f" of at least {least:g}"
        raise _bad(
            where,
            value,
            f"a number{limit}"
            + (' or "inf"' if infinite else "")
            + (" or None" if optional else ""),
        )


def _each(entries: Any, where: str) -> list[Data]:
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise _bad(where, entries, "a list of dictionaries")
    return entries


def _unique(names: Sequence[Any], where: str) -> None:
    for name in names:
        if names.count(name) > 1:
            raise _bad(where, name, "a name that no other entry has")


def _check_metrics(metrics: list[Any]) -> None:
    for k, metric in enumerate(_each(metrics, "metrics")):
        where = f"metrics[{k}]"
        if _text(metric, "name", where) == "step":
            raise _bad(f"{where}.name", "step", "another name (a curve keeps its steps there)")
        _text(metric, "label", where)
        if metric.get("better") not in ("higher", "lower"):
            raise _bad(f"{where}.better", metric.get("better"), '"higher" or "lower"')
        if not isinstance(metric.get("percent", False), bool):
            raise _bad(
                f"{where}.percent",
                metric["percent"],
                "True (the values are fractions of 1) or False",
            )
    _unique([metric["name"] for metric in metrics], "metrics[].name")


def _check_graphs(graphs: Any) -> list[Data]:
    for k, graph in enumerate(_each(graphs, "graphs")):
        where = f"graphs[{k}]"
        _text(graph, "name", where)
        _text(graph, "description", where, optional=True)
        users = graph_users(graph)
        if users is None:
            raise _bad(
                f"{where}.users", graph.get("users"), "the number of users (or their places)"
            )
        for key in ("places", "labels"):
            if graph.get(key) is not None and (
                not isinstance(graph[key], list) or len(graph[key]) != users
            ):
                raise _bad(
                    f"{where}.{key}", graph[key], f"a list with one entry for each of {users} users"
                )
        for place in graph.get("places") or []:
            _pair(place, f"{where}.places", "a place [x, y]")
        for edge in graph.get("edges") or []:
            _pair(edge, f"{where}.edges", "an edge [i, j]")
            if not all(isinstance(end, int) and 0 <= end < users for end in edge):
                raise _bad(f"{where}.edges", edge, f"two users from 0 to {users - 1}")
        if not all(isinstance(label, str) for label in graph.get("labels") or []):
            raise _bad(f"{where}.labels", graph["labels"], "text for everybody")
    _unique([graph["name"] for graph in graphs], "graphs[].name")
    return list(graphs)


def graph_users(graph: Data) -> int | None:
    """How many users an entry of `graphs` has; None where it does not say."""
    places, users = graph.get("places"), graph.get("users")
    if isinstance(users, int) and users > 0:
        return users
    return len(places) if isinstance(places, list) and places else None


def _pair(value: Any, where: str, wanted: str) -> None:
    if not isinstance(value, list) or len(value) != 2:
        raise _bad(where, value, wanted)
    for part in value:
        _number(part, where)


def _check_methods(methods: list[Any], graphs: dict[str, Data]) -> dict[str, Data]:
    for k, method in enumerate(_each(methods, "methods")):
        where = f"methods[{k}]"
        _text(method, "name", where)
        _text(method, "sentence", where, optional=True)
        if method.get("kind") not in KINDS:
            raise _bad(f"{where}.kind", method.get("kind"), " or ".join(map(repr, KINDS)))
        if method.get("graph") is not None and graphs and method["graph"] not in graphs:
            raise _bad(
                f"{where}.graph",
                method["graph"],
                f"None or one of the graphs ({', '.join(graphs)})",
            )
    _unique([method["name"] for method in methods], "methods[].name")
    return {method["name"]: method for method in methods}


def _check_outcomes(data: Data, methods: dict[str, Data], graphs: dict[str, Data]) -> None:
    seen = set()
    for k, outcome in enumerate(_each(_list(data, "outcomes", "report"), "outcomes")):
        where = f"outcomes[{k}]"
        name, epsilon = outcome.get("method"), outcome.get("epsilon")
        if not isinstance(name, str) or name not in methods:
            raise _bad(f"{where}.method", name, f"one of the methods ({', '.join(methods)})")
        _number(epsilon, f"{where}.epsilon", infinite=True, optional=True, least=0)
        if epsilon == 0:
            raise _bad(f"{where}.epsilon", epsilon, "a number above 0 (None for no privacy)")
        if (name, epsilon) in seen:
            raise _bad(where, (name, epsilon), "a method and epsilon that no other outcome has")
        seen.add((name, epsilon))
        _check_settings(outcome, where)
        _check_values(outcome, data["metrics"], where)
        _check_privacy(outcome, graphs.get(str(methods[name].get("graph"))), where)


def _check_settings(outcome: Data, where: str) -> None:
    for seed in _list(outcome, "seeds", where):
        _number(seed, f"{where}.seeds")
    if outcome.get("noise", "seed") not in NOISE:
        raise _bad(f"{where}.noise", outcome["noise"], " or ".join(map(repr, NOISE)))
    for key in ("delta", "learning_rate", "clip", "sigma_cdp", "steps", "planned_steps"):
        _number(outcome.get(key), f"{where}.{key}", optional=True, least=0)
    _number(outcome.get("spent"), f"{where}.spent", infinite=True, optional=True, least=0)
    cor = outcome.get("sigma_cor")
    for value in (cor.get("low"), cor.get("high")) if isinstance(cor, dict) else (cor,):
        _number(value, f"{where}.sigma_cor", optional=not isinstance(cor, dict), least=0)
    for key in ("stopped", "guarantee"):
        _text(outcome, key, where, optional=True)


def _check_values(outcome: Data, metrics: list[Data], where: str) -> None:
    """`final` has one value per seed for every metric; `curve` (or None) has one list per seed, as
    long as its steps.
    """
    seeds, final, curve = len(outcome["seeds"]), outcome.get("final"), outcome.get("curve")
    if not isinstance(final, dict):
        raise _bad(f"{where}.final", final, "a dictionary with a list for every metric")
    for metric in metrics:
        name = metric["name"]
        _row(final.get(name), seeds, f"{where}.final.{name}", "one value per seed")
    if curve is None:
        return
    if not isinstance(curve, dict) or not isinstance(curve.get("step"), list):
        raise _bad(f"{where}.curve", curve, "None or a dictionary with the list `step`")
    for step in curve["step"]:
        _number(step, f"{where}.curve.step", least=0)
    if any(b <= a for a, b in zip(curve["step"], curve["step"][1:], strict=False)):
        raise _bad(f"{where}.curve.step", curve["step"], "steps that grow")
    for name in {metric["name"] for metric in metrics} & set(curve):
        if not isinstance(curve[name], list) or len(curve[name]) != seeds:
            raise _bad(f"{where}.curve.{name}", curve[name], "one list per seed")
        for row in curve[name]:
            _row(row, len(curve["step"]), f"{where}.curve.{name}", "one value per step")


def _row(values: Any, length: int, where: str, wanted: str) -> None:
    if not isinstance(values, list) or len(values) != length:
        raise _bad(where, values, f"{wanted} ({length} values, None where there is none)")
    for value in values:
        _number(value, where, optional=True)


def _check_privacy(outcome: Data, graph: Data | None, where: str) -> None:
    users = outcome.get("per_user_epsilon")
    if users is not None:
        expected = graph_users(graph) if graph else len(users)
        if not isinstance(users, list) or len(users) != expected:
            raise _bad(
                f"{where}.per_user_epsilon",
                users,
                f"None or one epsilon for each of {expected} users",
            )
        for value in users:
            _number(value, f"{where}.per_user_epsilon", infinite=True, least=0)
    for k, row in enumerate(_each(outcome.get("adversaries") or [], f"{where}.adversaries")):
        _text(row, "adversary", f"{where}.adversaries[{k}]")
        _number(row.get("epsilon"), f"{where}.adversaries[{k}].epsilon", infinite=True, least=0)
        _number(
            row.get("worst_user"), f"{where}.adversaries[{k}].worst_user", optional=True, least=0
        )


def _check_surroundings(data: Data) -> None:
    for key in ("tuning", "repeat"):
        if not isinstance(data.get(key), dict | None):
            raise _bad(key, data[key], "a dictionary or None")
    repeat = data.get("repeat") or {}
    _text(repeat, "command", "repeat", optional=True)
    _number(repeat.get("seconds"), "repeat.seconds", optional=True, least=0)
    for key in ("versions", "files", "options"):
        if not isinstance(repeat.get(key), dict | None):
            raise _bad(f"repeat.{key}", repeat[key], "a dictionary or None")
    notes = data.get("notes")
    if notes is not None and (
        not isinstance(notes, list) or not all(isinstance(note, str) for note in notes)
    ):
        raise _bad("notes", notes, "a list of sentences")
