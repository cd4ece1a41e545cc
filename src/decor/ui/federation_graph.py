"""The users of a federation and their edges, with the state of each: from what nodes have said."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from decor.graph.topology import Topology
from decor.results.graph_layout import places

from .node_poll import Observation
from .node_status import NeighbourStatus, NodeStatus

State = Literal["working", "waiting", "behind", "finished", "stopped", "unreachable", "unasked"]
EdgeState = Literal["connected", "broken", "done", "unknown"]

_AHEAD = 2
"""Steps between neighbours that never occur while both take part: one waits for the other."""


@dataclass(frozen=True)
class Node:
    """A user of the federation; `seen` is None if it is known by its neighbours' words alone."""

    id: str
    seen: Observation | None

    @property
    def status(self) -> NodeStatus | None:
        return self.seen.status if self.seen is not None else None

    @property
    def speaks(self) -> bool:
        """Whether a running node has answered the last question."""
        return self.seen is not None and self.seen.reachable and self.seen.alive is True

    def view_of(self, other: str) -> NeighbourStatus | None:
        """What it says now of a neighbour."""
        if not self.speaks or self.status is None:
            return None
        return next((each for each in self.status.neighbours if each.name == other), None)


class FederationGraph:
    """The graph at one moment.

    Args:
        observations: What is known of each node that is asked.
    """

    def __init__(self, observations: Sequence[Observation]) -> None:
        self.nodes = _name_nodes(observations)
        self.edges = sorted(set(_edges_of(self.nodes)))
        self.number = {node.id: k for k, node in enumerate(self.nodes)}
        self.near: dict[str, list[Node]] = {node.id: [] for node in self.nodes}
        for a, b in self.edges:
            self.near[self.nodes[a].id].append(self.nodes[b])
            self.near[self.nodes[b].id].append(self.nodes[a])
        self.states = {node.id: self._state(node) for node in self.nodes}

    @property
    def places(self) -> list[list[float]]:
        """Where to draw each node."""
        return _place(len(self.nodes), tuple(self.edges))

    def _state(self, node: Node) -> tuple[State, str]:
        """The state, and in a few words why."""
        seen, status = node.seen, node.status
        if seen is None and self._is_done(node):
            return "finished", ""
        if seen is None:
            return "unasked", self._neighbours_view(node)
        if status is None:
            return "unreachable", seen.problem
        # before reachability: who is done may leave, and that is no failure
        if status.done or self._is_done(node):
            return "finished", "" if node.speaks else "its process has ended"
        if not seen.reachable or (status.in_use and seen.changed_at is not None):
            words = (_why_silent(seen, status), self._neighbours_view(node))
            return "unreachable", "; ".join(filter(None, words))
        # a node locks its ledger before it opens the socket that answers questions
        if status.in_use:
            return "waiting", "is starting"
        if not status.running:
            return "stopped", status.problem or "restart it to go on"
        if status.paused:
            return "waiting", status.paused
        if (ahead := self._furthest_neighbour(node)) is not None:
            return "behind", ahead
        last = status.step is not None and status.step == status.steps
        return "working", "in its last rounds" if last else ""

    def _is_done(self, node: Node) -> bool:
        """Whether a neighbour has ever said so: then it may leave, and so may the neighbour."""
        digest = node.status.digest if node.status is not None else ""
        for other in self.near[node.id]:
            status = other.status
            # of the same run, as far as is known
            if status is not None and (not digest or status.digest in ("", digest)):
                if any(each.name == node.id and each.done for each in status.neighbours):
                    return True
        return False

    def _neighbours_view(self, node: Node) -> str:
        """What its neighbours say of a node that says nothing itself."""
        views = {other.id: other.view_of(node.id) for other in self.near[node.id]}
        here = [other for other, view in views.items() if view is not None and view.here]
        away = [other for other, view in views.items() if view is not None and not view.here]
        if here:
            return f"{join_names(here)} {'is' if len(here) == 1 else 'are'} connected to it"
        return f"not connected to {join_names(away)}" if away else ""

    def _furthest_neighbour(self, node: Node) -> str | None:
        """The neighbour that was two steps ahead before this node was asked; None: none was.

        Answers come one after the other: a neighbour that answered later may be ahead of anybody.
        """
        seen, status = node.seen, node.status
        if seen is None or status is None or status.step is None:
            return None
        ahead: dict[str, int] = {}
        for other in self.near[node.id]:
            step = None if other.seen is None else other.seen.step_known_at(seen.asked_at)
            if step is not None and step - status.step >= _AHEAD:
                ahead[other.id] = step - status.step
        if not ahead:
            return None
        first = max(ahead, key=lambda other: ahead[other])
        return f"{ahead[first]:,} steps behind {first}"

    def edge_state(self, a: int, b: int) -> tuple[EdgeState, str]:
        """The state of an edge, and what is wrong with it.

        Args:
            a: The number of one end.
            b: The number of the other.
        """
        ends = self.nodes[a], self.nodes[b]
        views = [one.view_of(other.id) for one, other in (ends, ends[::-1])]
        told = [view for view in views if view is not None]
        finished = any(self.states[end.id][0] == "finished" for end in ends)
        if finished or any(view.done for view in told):
            return "done", ""
        # one end is enough: the other may not have noticed yet
        if any(not view.here for view in told):
            return "broken", next((view.problem for view in told if view.problem), "")
        return ("connected", "") if told else ("unknown", "")


def _name_nodes(observations: Sequence[Observation]) -> list[Node]:
    """Each user once: those that are asked, and those that they name."""
    asked: dict[str, Observation] = {}
    order: dict[str, None] = {}
    for seen in observations:
        name = (seen.status.user if seen.status is not None else "") or seen.source
        # two nodes of one name: both are shown, and a warning says so
        asked[name if name not in asked else f"{name} ({seen.source})"] = seen
    known = [seen.status for seen in observations if seen.status is not None]
    # the order of the federation's file, where a ledger tells it
    for status in known:
        order |= dict.fromkeys(status.users)
    order |= dict.fromkeys(asked)
    for status in known:
        order |= dict.fromkeys(each.name for each in status.neighbours)
    return [Node(name, asked.get(name)) for name in order]


def _edges_of(nodes: Sequence[Node]) -> Iterable[tuple[int, int]]:
    number = {node.id: k for k, node in enumerate(nodes)}
    for k, node in enumerate(nodes):
        if node.status is None:
            continue
        for each in node.status.neighbours:
            # a node may say anything, but an edge to itself is none
            if number[each.name] != k:
                yield min(k, number[each.name]), max(k, number[each.name])
        for a, b in node.status.edges:
            # edges between names that no list of users has are no edges of this graph
            if a in number and b in number and a != b:
                yield min(number[a], number[b]), max(number[a], number[b])


@lru_cache(maxsize=8)
def _place(users: int, edges: tuple[tuple[int, int], ...]) -> list[list[float]]:
    """Where to draw each user; those without edges are in a row below the others."""
    joined = sorted({end for pair in edges for end in pair})
    alone = [user for user in range(users) if user not in set(joined)]
    at = np.zeros((users, 2))
    if not joined:
        alone, joined = [], list(range(users))
    if not joined:
        return []
    number = {user: k for k, user in enumerate(joined)}
    pairs = np.array([[number[a], number[b]] for a, b in edges], dtype=np.int64).reshape(-1, 2)
    at[joined] = places(Topology(len(joined), pairs))
    low, high = at[joined].min(axis=0), at[joined].max(axis=0)
    for k, user in enumerate(alone):
        width = max(high[0] - low[0], 1.0)
        at[user] = low[0] + width * (k + 0.5) / len(alone), low[1] - 0.15 * max(high[1] - low[1], 1)
    return [[round(float(x), 4), round(float(y), 4)] for x, y in at]


def _why_silent(seen: Observation, status: NodeStatus) -> str:
    if seen.reachable:
        return status.problem
    # it may have finished and left: nobody has told
    last = status.step is not None and status.step == status.steps
    return f"{seen.problem}; it was in its last rounds" if last else seen.problem


def join_names(names: Sequence[str]) -> str:
    """Names in a sentence; of many, the first.

    Args:
        names: At least one.
    """
    if len(names) > 8:
        return f"{', '.join(names[:8])} and {len(names) - 8} more"
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
