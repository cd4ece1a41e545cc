"""Gossip rounds designed for a graph: the polynomial of W that leaves least of the edges' noise.

Several rounds in a row, each x <- (W - r) x / (1 - r), are the polynomial P with those roots and
P(1) = 1. Repeated in every step, P leaves the share q / (1 - q) of the noise in a mode, where q is
P^2 at the mode's eigenvalue. With as many rounds as W has other eigenvalues nothing is left, and
all users hold the average (16 users: 8 rounds on a ring, 4 on a torus or a hypercube).

The order of the rounds changes nothing as long as every message arrives. A message that arrives at
one end of an edge only leaves a difference that later rounds enlarge, and that moves the average
for good. So rounds are put in the order that leaves least of lost messages (`loss_left`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import combinations

import numpy as np

from decor.array_types import Floats
from decor.errors import InputError

from .eigenmodes import modes_of, second_eigenvalue
from .laplacian import DENSE_LIMIT
from .topology import Topology

_LOST = 0.1
"""Share of lost messages that rounds are ordered for."""
_AVERAGE_COUNTS = 10.0
"""How much worse noise in the average is than disagreement: later steps do not forget it."""
_ORDERED = 16
"""Rounds up to which their order is searched; beyond, it is Leja's."""
_BINS = 512
"""Groups of modes for that search."""
_OWN_NOISE = 0.01
"""Weight of users' own noise: edge noise has 10 to 1000 times its variance in plans with gossip."""


@lru_cache(maxsize=64)
def design_roots(topology: Topology, rounds: int) -> tuple[float, ...]:
    """One root per round, in the order that leaves least of lost messages.

    Up to 16 rounds; more are ordered to keep intermediate values small. The polynomial is never
    worse than plain or Chebyshev rounds.
    """
    modes = modes_of(topology)
    if not modes.exact:
        raise InputError(
            "rounds designed for a graph need all its eigenvalues, which are computed for up to "
            f"{DENSE_LIMIT:,} users of an irregular graph, not for {topology.users:,}; use "
            "accelerate=True for Chebyshev rounds"
        )
    w, noise = modes.eigenvalues, modes.edges + _OWN_NOISE * modes.users

    def residual(roots: Floats) -> float:
        return _residual(_squares(roots, w), noise)

    chebyshev = np.cos(np.pi * (np.arange(rounds) + 0.5) / max(rounds, 1))
    candidates = [np.zeros(rounds), second_eigenvalue(topology) * chebyshev]
    best = min(candidates, key=residual)
    if len(w) and rounds > 1:
        q, previous = _squares(best, w), np.inf
        for _ in range(60):
            # The minimum of sum noise q / (1 - q) solves a least squares problem with these
            # weights. Half a step at a time: a whole step can overshoot to a P that lets some mode
            # grow.
            # 0.999: the weight of a mode that hardly shrinks has to stay finite
            roots = _least_squares(w, noise / (1 - np.minimum(q, 0.999)) ** 2, rounds)
            reached = _squares(roots, w)
            q = (q + np.minimum(reached, 1.0)) / 2
            candidates.append(roots)
            current = _residual(reached, noise)
            if np.isfinite(previous) and abs(current - previous) <= 1e-4 * previous:
                break
            previous = current
        best = min(candidates, key=residual)
    return tuple(_order(best, topology).tolist())


def loss_left(topology: Topology, roots: Floats | None = None) -> float:
    """What a step leaves of the edges' noise if a tenth of all messages is lost, at one end each.

    Squared, with ten times the weight for what is left in the average of all models. The sum over
    modes is a mean-field estimate: what a loss leaves is spread evenly over all modes.

    Args:
        topology: The graph.
        roots: Of the rounds in their order; by default one plain round.
    """
    w, users, edges = _group_modes(topology)
    plain = np.zeros(1) if roots is None else np.asarray(roots)
    return _loss_left(plain, w, users, edges, _mean_weight(topology), topology.users)


def _loss_left(
    roots: Floats, w: Floats, users: Floats, edges: Floats, weight: float, n: int
) -> float:
    average, energy = 0.0, edges.copy()
    for r in roots:
        # a lost message moves one model by a w_ij times the difference along the edge
        lost = 2 * _LOST * weight * float((1 - w) @ energy) / (1 - r) ** 2
        # mean field: each of the n modes gets an equal share of a loss, the average one of them
        energy = energy * ((w - r) / (1 - r)) ** 2 + users * lost / n
        average += lost / n
    return _AVERAGE_COUNTS * average + float(energy.sum())


def _mean_weight(topology: Topology) -> float:
    return float(topology.edge_weights.mean()) if topology.edge_count else 0.0


def _group_modes(topology: Topology) -> tuple[Floats, Floats, Floats]:
    """Eigenvalues, and the noise of users and of edges; modes of about one eigenvalue together."""
    modes = modes_of(topology)
    w, users, edges = modes.eigenvalues, modes.users, modes.edges
    if len(w) <= _BINS:
        return w, users, edges
    # eigenvalues of W lie from -1 to 1, so that (1 - w) / 2 is a share
    group = np.minimum(((1 - w) / 2 * _BINS).astype(int), _BINS - 1)
    kept, place = np.unique(group, return_inverse=True)
    total, users, edges = (
        np.bincount(place, values).astype(np.float64) for values in (users * w, users, edges)
    )
    # each group at the mean of its eigenvalues, weighted by users' noise
    return total / users, users, edges


def _order(roots: Floats, topology: Topology) -> Floats:
    """The roots in a good order for lost messages: no exchange of two of them makes it better."""
    if len(roots) < 2 or len(roots) > _ORDERED or not topology.edge_count:
        return _leja_order(roots)
    modes, weight, n = _group_modes(topology), _mean_weight(topology), topology.users
    # small coefficients first: the large ones then find little left
    starts = (np.sort(roots), _leja_order(roots))
    found = [_exchange(start, lambda r: _loss_left(r, *modes, weight, n)) for start in starts]
    return min(found, key=lambda pair: pair[1])[0]


def _exchange(roots: Floats, cost: Callable[[Floats], float]) -> tuple[Floats, float]:
    best, least, better = roots, cost(roots), True
    while better:
        better = False
        for i, j in combinations(range(len(roots)), 2):
            tried = best.copy()
            tried[[i, j]] = tried[[j, i]]
            value = cost(tried)
            # not for a difference that is rounding alone
            if value < least * (1 - 1e-9):
                best, least, better = tried, value, True
    return best, least


def _least_squares(w: Floats, weights: Floats, rounds: int) -> Floats:
    """Roots of the P with P(1) = 1 and the least sum of weights P(w)^2.

    They are the nodes, except 1, of the Gauss-Radau rule with a node at 1, by Lanczos.
    """
    basis = np.empty((rounds + 1, len(w)))
    basis[0] = np.sqrt(weights / weights.sum())
    diagonal: list[float] = []
    beside: list[float] = []
    for k in range(rounds):
        u = w * basis[k]
        diagonal.append(float(u @ basis[k]))
        for _ in range(2):  # "twice is enough" for orthogonality to working precision (Kahan)
            u = u - (basis[: k + 1] @ u) @ basis[: k + 1]
        size = float(np.linalg.norm(u))
        if size < 1e-12:  # the roots are all the eigenvalues; further rounds are plain
            roots = np.linalg.eigvalsh(_tridiagonal(diagonal, beside))
            return np.concatenate([roots, np.zeros(rounds - len(diagonal))])
        beside.append(size)
        basis[k + 1] = u / size
    # Golub's modification of the last diagonal entry puts a node at 1
    shifted = _tridiagonal(diagonal, beside[:-1]) - np.eye(rounds)
    last = np.linalg.solve(shifted, beside[-1] ** 2 * np.eye(rounds)[-1])[-1]
    return np.sort(np.linalg.eigvalsh(_tridiagonal([*diagonal, 1.0 + last], beside)))[:-1]


def _tridiagonal(diagonal: list[float], beside: list[float]) -> Floats:
    return np.asarray(np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1), dtype=float)


def _squares(roots: Floats, w: Floats) -> Floats:
    """P^2 at eigenvalues."""
    with np.errstate(over="ignore"):  # infinite is no worse than large
        return np.asarray(np.prod((w[:, None] - roots) / (1 - roots), axis=1) ** 2)


def _residual(q: Floats, noise: Floats) -> float:
    """The noise left after infinitely many steps; infinite if a mode does not shrink."""
    return float(noise @ (q / (1 - q))) if (q < 1).all() else np.inf


def _leja_order(roots: Floats) -> Floats:
    """Leja's order: each root far from those before it, so that no mode grows much on the way."""
    rest, ordered = roots.copy(), []
    # sums of logarithms are products of distances, without under- or overflow
    far = np.log(np.abs(rest) + 1e-300)
    while len(rest):
        k = int(np.argmax(far))
        ordered.append(rest[k])
        rest, far = np.delete(rest, k), np.delete(far, k)
        # the largest root is first; from then on only distances between roots count
        far = (far if len(ordered) > 1 else 0.0) + np.log(np.abs(rest - ordered[-1]) + 1e-300)
    return np.array(ordered)
