"""A federation as the page shows it: nodes, edges, the whole in a sentence, and warnings."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from typing import Any

from decor.text import epsilon_text, rounded_up

from .federation_graph import FederationGraph, Node, State, join_names
from .node_poll import Observation
from .node_status import NodeStatus

LABELS: dict[State, str] = {
    "working": "at work",
    "waiting": "waits",
    "behind": "behind",
    "finished": "finished",
    "stopped": "stopped",
    "unreachable": "not reachable",
    "unasked": "not asked",
}
_SENTENCES: dict[State, tuple[str, str]] = {
    "unreachable": ("is not reachable", "are not reachable"),
    "stopped": ("has stopped", "have stopped"),
    "behind": ("is behind", "are behind"),
    "waiting": ("waits", "wait"),
    "finished": ("has finished", "have finished"),
}
"""What is said of one and of several, in the order of their weight."""
_MOST_NAMES = 3
"""Names of users in one part of the sentence; more are counted."""


def describe_federation(observations: Sequence[Observation]) -> dict[str, Any]:
    """All that the page shows.

    Args:
        observations: What is known of each node that is asked.
    """
    graph = FederationGraph(observations)
    asked = [node for node in graph.nodes if node.seen is not None]
    states = [graph.states[node.id][0] for node in asked]
    known = [node.status for node in asked if node.status is not None]
    federations = [status.federation for status in known if status.federation]
    return {
        "kind": "federation",
        # of several the first: a warning says that there are others
        "title": federations[0] if federations else "federation",
        "said": _sentence(graph, asked),
        # no node yet is the beginning: `all` alone would call it the end
        "over": bool(states) and all(state == "finished" for state in states),
        "warnings": [*_other_files(asked), *_same_names(asked)],
        "labels": LABELS,
        "nodes": [_describe_node(graph, node) for node in graph.nodes],
        "edges": [_describe_edge(graph, a, b) for a, b in graph.edges],
        "places": graph.places,
        **_figures(known, states),
    }


def _sentence(graph: FederationGraph, asked: Sequence[Node]) -> str:
    if not asked:
        return "No node is here yet."
    named: dict[State, list[Node]] = {}
    for node in asked:
        named.setdefault(graph.states[node.id][0], []).append(node)
    if len(named.get("finished", ())) == len(asked):
        return f"All {len(asked)} have finished." if len(asked) > 1 else "It has finished."
    steps = _step_text([node.status for node in asked if node.speaks and node.status])
    parts = [f"{len(named.get('working', ()))} of {len(asked)} at work{steps}"]
    for state, (one, several) in _SENTENCES.items():
        nodes = named.get(state, [])
        if not nodes:
            continue
        said = one if len(nodes) == 1 else several
        if len(nodes) > _MOST_NAMES:
            parts.append(f"{len(nodes)} {said}")
        else:
            since = _since(state, nodes[0]) if len(nodes) == 1 else ""
            parts.append(f"{join_names([node.id for node in nodes])} {said}{since}")
    return "; ".join(parts) + "."


def _describe_node(graph: FederationGraph, node: Node) -> dict[str, Any]:
    state, why = graph.states[node.id]
    seen, status = node.seen, node.status or NodeStatus()
    neighbours = []
    for other in graph.near[node.id]:
        edge, problem = graph.edge_state(graph.number[node.id], graph.number[other.id])
        view = node.view_of(other.id)
        way = view.way if view is not None and edge == "connected" else ""
        neighbours.append({"name": other.id, "state": edge, "way": way, "problem": problem})
    return {
        "name": node.id,
        "state": state,
        "text": _state_text(state, why, _since(state, node)),
        "progress": _clock(seen.progress_at, "%H:%M:%S") if seen and seen.progress_at else "",
        "source": "" if seen is None else seen.source,
        "federation": status.federation,
        "digest": status.digest[:12],
        "step": status.step,
        "steps": status.steps,
        "messages": status.messages,
        "missed": status.missed,
        "late": status.late,
        "noise_left": _noise_text(status.noise_left),
        # grows with the messages; the promise is the whole plan from the first one on
        "epsilon": _epsilon(status.epsilon_if_fixed),
        "of_plan": _epsilon(_plan_epsilon(status)),
        "delta": None if status.delta is None else rounded_up(status.delta),
        "ledger_epsilon": _epsilon(status.ledger_epsilon),
        "ledger_limit": _epsilon(status.ledger_limit),
        "neighbours": neighbours,
    }


def _state_text(state: State, why: str, since: str) -> str:
    # the reason has the verb already, as in "waits for kiel"
    if state == "waiting":
        return why
    return f"{LABELS[state]}{since}" + (f": {why}" if why else "")


def _describe_edge(graph: FederationGraph, a: int, b: int) -> dict[str, Any]:
    state, problem = graph.edge_state(a, b)
    return {"ends": [a, b], "state": state, "problem": problem}


def _other_files(asked: Sequence[Node]) -> Iterable[str]:
    """A warning if nodes are at different federation files."""
    groups: dict[str, list[str]] = {}
    for node in asked:
        if node.status is not None and node.status.digest:
            groups.setdefault(node.status.digest, []).append(node.id)
    if len(groups) > 1:
        named = "; ".join(f"{join_names(names)}: {digest[:12]}" for digest, names in groups.items())
        yield (
            f"These nodes have different federation files, and refuse each other ({named}). "
            "Compare them with decor federation check."
        )
    names = sorted({n.status.federation for n in asked if n.status and n.status.federation})
    # older nodes do not tell the digest of their file
    if len(groups) <= 1 and len(names) > 1:
        yield f"These nodes are of different federations: {join_names(names)}."


def _same_names(asked: Sequence[Node]) -> Iterable[str]:
    places_of: dict[str, list[str]] = {}
    for node in asked:
        if node.seen is not None and node.status is not None and node.status.user:
            places_of.setdefault(node.status.user, []).append(node.seen.source)
    for name, sources in places_of.items():
        # a warning and no error: it may be one node at two addresses
        if len(sources) > 1:
            yield (
                f"{join_names(sources)} both call themselves {name}. If these are two nodes, stop "
                "one: a key must never run twice."
            )


def _figures(known: Sequence[NodeStatus], states: Sequence[State]) -> dict[str, Any]:
    """The figures of all nodes together: the slowest, and the largest of each cost."""
    steps = [status.step for status in known if status.step is not None]
    spent = [s.epsilon_if_fixed for s in known if s.epsilon_if_fixed is not None]
    plans = [each for each in map(_plan_epsilon, known) if each is not None]
    left = [status.noise_left for status in known if status.noise_left is not None]
    return {
        "working": states.count("working"),
        "asked": len(states),
        "slowest": min(steps, default=None),
        "fastest": max(steps, default=None),
        "steps": max((s.steps for s in known if s.steps is not None), default=None),
        "epsilon": _epsilon(max(spent, default=None)),
        "of_plan": _epsilon(max(plans, default=None)),
        "spent_part": max(spent, default=0.0) / max(plans) if plans and max(plans) > 0 else None,
        "noise_left": _noise_text(max(left, default=None)),
    }


def _plan_epsilon(status: NodeStatus) -> float | None:
    """Epsilon of the whole plan: what is promised from the first message on."""
    if status.epsilon_planned is not None:
        return status.epsilon_planned
    # older nodes promise 0 before their first message, and the whole plan after it
    return status.epsilon if status.messages else None


def _epsilon(value: float | None) -> str | None:
    return None if value is None else epsilon_text(value)


def _noise_text(times: float | None) -> str | None:
    """How many times the planned noise is in the average model; "1" if all has cancelled."""
    if times is None or not math.isfinite(times):
        return None
    return rounded_up(max(times, 1.0))


def _step_text(speaking: Sequence[NodeStatus]) -> str:
    steps = [status.step for status in speaking if status.step is not None]
    of = [status.steps for status in speaking if status.steps is not None]
    if not steps or not of:
        return ""
    return f", step {min(steps):,} of {max(of):,}"


def _since(state: State, node: Node) -> str:
    """Since when a node is away, if that was seen."""
    seen = node.seen
    if state not in ("stopped", "unreachable") or seen is None or seen.alive:
        return ""
    return "" if seen.changed_at is None else f" since {_clock(seen.changed_at)}"


def _clock(moment: float, style: str = "%H:%M") -> str:
    """A time of today, or with its date."""
    then, now = time.localtime(moment), time.localtime()
    return time.strftime(style if then[:3] == now[:3] else f"%Y-%m-%d {style}", then)
