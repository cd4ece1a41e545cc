"""Which edges a graph should have as well: those that reduce the predicted error most.

Users whose neighbours may all collude come first: no other edge helps while they make the plan
local DP. Then one edge after the other: candidates are ranked by how much they would lower the
exposure of the user who decides the noise, and the best of them are tried, each with a whole
calibration.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from decor import checks, progress
from decor.errors import FragileGraphWarning, InputError
from decor.graph.extra_edges import edges_to_add, with_edges
from decor.graph.gossip import ONE_ROUND, Gossip
from decor.graph.laplacian import DENSE_LIMIT
from decor.graph.topology import Topology

from . import baselines, theory
from .adversary import Adversary
from .budget import Budget, Exposure
from .calibrate import calibrate
from .leverage import dense
from .leverage.coalition import Phase, worst_leverages
from .leverage.solve import ScaledCovariance

_TRIED = 6
"""Candidates that are calibrated for each edge; one where coalitions have to be searched."""
_RATIO = 10.0
"""Noise pair at which candidates are ranked."""


@dataclass(frozen=True)
class ExtraEdge:
    """An edge to add, after those before it in the list.

    Attributes:
        pair: The two users.
        error: Predicted error relative to central DP, with this edge and those before it.
    """

    pair: tuple[int, int]
    error: float


@dataclass(frozen=True)
class EdgeAdvice:
    """The edges worth adding, the best first.

    Attributes:
        topology: The graph.
        error: Predicted error relative to central DP, as the graph is.
        edges: In the order in which to add them.
    """

    topology: Topology
    error: float
    edges: tuple[ExtraEdge, ...]

    def to_json(self) -> list[dict[str, Any]]:
        """The names of each edge's users, and the error with it and those before it."""
        name = self.topology.name
        return [
            {"users": [name(user) for user in edge.pair], "predicted_error": edge.error}
            for edge in self.edges
        ]

    def __str__(self) -> str:
        if not self.edges:
            return "No edge to add reduces the predicted error."
        name, parts = self.topology.name, []
        for edge in self.edges:
            i, j = edge.pair
            parts.append(f"{name(i)}-{name(j)} ({edge.error:.3g})")
        return (
            f"Best edges to add, one after the other, with the predicted error over central DP, "
            f"now {self.error:.3g}: {', '.join(parts)}."
        )


def best_edges(
    topology: Topology,
    exposure: Exposure,
    adversary: Adversary,
    budget: Budget,
    count: int = 3,
    gossip: Gossip = ONE_ROUND,
) -> EdgeAdvice:
    """The edges that reduce the predicted error of the default plan most, chosen greedily.

    Args:
        topology: The graph, of up to DENSE_LIMIT users.
        exposure: What a run does with private data.
        adversary: Against whom.
        budget: The (epsilon, delta) to spend.
        count: How many edges, at most.
        gossip: The gossip of each step.

    Raises:
        InputError: If the graph is too large.
    """
    if topology.users > DENSE_LIMIT:
        raise InputError(
            f"edges to add are sought in graphs of up to {DENSE_LIMIT:,} users, not "
            f"{topology.users:,}"
        )
    checks.count("the number of edges to add", count)
    # any_delta: errors are only compared here; a plan's delta is checked where it is made
    central = baselines.central(topology, exposure, budget, any_delta=True)

    def error(graph: Topology) -> float:
        with warnings.catch_warnings():
            # no news: what helps users who can be isolated is the answer itself
            warnings.simplefilter("ignore", FragileGraphWarning)
            plan = calibrate(
                graph,
                exposure,
                adversary,
                budget,
                gossip_rounds=gossip.rounds,
                accelerate=gossip.accelerate,
                any_delta=True,
            )
        return theory.predicted_error(plan, gossip) / theory.average_error(central)

    now = error(topology)
    # everyone knows all noise of edges, and in the average it cancels: no edge helps
    if adversary.colluders is None or adversary.average_only:
        return EdgeAdvice(topology, now, ())
    graph, least, added = topology, now, list[ExtraEdge]()
    for k in range(count):
        progress.report("trying edges to add", k, count)
        tried = [(error(with_edges(graph, [pair])), pair) for pair in _candidates(graph, adversary)]
        if not tried:
            break
        # of equal errors the pair of lowest numbers, so that advice does not change between calls
        best, pair = min(tried)
        isolated = int(graph.degrees.min()) <= adversary.colluders
        # of two edges that a user lacks, the first changes nothing
        if best >= least * (1 - 1e-6) and not isolated:
            break
        least = best
        graph = with_edges(graph, [pair])
        added.append(ExtraEdge(pair, best))
    helps = added and added[-1].error < now * (1 - 1e-6)
    return EdgeAdvice(topology, now, tuple(added) if helps else ())


def _candidates(graph: Topology, adversary: Adversary) -> list[tuple[int, int]]:
    """Edges to try: what the user with fewest neighbours lacks, or the best ranked."""
    colluders = adversary.colluders or 0
    least = int(graph.degrees.min())
    if least <= colluders:
        user = int(graph.degrees.argmin())
        pairs = edges_to_add(graph, least + 1)
        # one edge: the next call asks again who has fewest neighbours
        return [pair for pair in pairs if user in pair][:1]
    worst = worst_leverages((Phase(ScaledCovariance(graph, _RATIO), 1.0),), colluders)
    left, kept = ScaledCovariance(graph, _RATIO).network().without(worst.coalition)
    G = dense.inverse(left.dense(), left.ground)
    i = int(np.searchsorted(kept, worst.user))
    # Sherman and Morrison: what an edge u-v takes from the leverage of i
    resistance = G.diagonal()[:, None] + G.diagonal()[None, :] - 2 * G
    # 1 / _RATIO is the resistance of the new edge, where that from a user to ground is one
    gain = (G[i][:, None] - G[i][None, :]) ** 2 / (1 / _RATIO + resistance)
    gain[left.dense() > 0] = -math.inf
    # an edge has no direction: one half is enough, and the diagonal is no edge
    gain[np.tril_indices(len(G))] = -math.inf
    order = np.argsort(-gain, axis=None, kind="stable")[: _TRIED if colluders < 2 else 1]
    pairs = [divmod(int(place), len(G)) for place in order if gain.flat[place] > 0]
    return [(int(kept[u]), int(kept[v])) for u, v in pairs]
