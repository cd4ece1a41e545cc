"""The worst coalition: which q users, pooling their secrets, expose whom, and by how much.

What is maximised is sum_p w_p R_i^p(S) over sets S of q users and over users i outside S, where
phase p of the run has leverages R^p(S) once S is deleted from its graph, and weight w_p. The
colluding set is fixed over the run.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

from decor import progress
from decor.arrays import Floats, Ints
from decor.errors import CannotBound
from decor.privacy.threads import one_thread

from . import dense, local_bounds
from .deletion import TOLERANCE, after_deletion, from_scratch
from .network import UNIT_ROUNDOFF
from .solve import SMALL, Noise, diagonal, leverages

ENUMERATION_LIMIT = 400_000_000
"""Subsets x users^3 up to which all subsets are simply tried: a second or two."""

DENSE_LIMIT = 5_000
"""Users up to which all deletions of one user are done on the dense inverse (8 s; 200 MB a
matrix).
"""

SEARCH_LIMIT = 100_000_000_000
"""Branches x users^2 x degree looked at before a search returns its certified bound: about a
minute. A count and not a time, so that the same question has the same answer everywhere.
"""


@dataclass(frozen=True)
class Phase:
    """Noise that lasts a while, and the weight of its leverages in the sum."""

    noise: Noise
    weight: float


@dataclass(frozen=True, eq=False)
class Exposed:
    """How exposed everybody is: for each user an upper bound, over coalitions, on its sum of
    weighted leverages.

    `exact` says that the worst user's figure is attained, by `coalition`, to a relative 1e-7; else
    it is an upper bound. An empty coalition stands for nobody, or for everyone else, or (not exact)
    for one that was not found.
    """

    per_user: Floats
    user: int
    coalition: tuple[int, ...]
    exact: bool

    def __post_init__(self) -> None:
        self.per_user.setflags(write=False)  # answers are remembered and shared

    @property
    def worst(self) -> float:
        return float(self.per_user.max())


def first_largest(values: Floats) -> int:
    """The first of those that are largest but for rounding."""
    return int(np.argmax(values >= values.max() * (1 - 1e-12)))


@lru_cache(maxsize=64)
def exposed(phases: tuple[Phase, ...], colluders: int | None) -> Exposed:
    """Everybody's exposure against `colluders` users pooling their secrets (None: against everyone
    else).

    Guarantee: `per_user` is never below the truth.
    """
    # a search takes thousands of products, however few the users
    if phases[0].noise.topology.users <= SMALL and (colluders or 0) < 2:
        return _exposed(phases, colluders)
    with one_thread():
        return _exposed(phases, colluders)


def _exposed(phases: tuple[Phase, ...], colluders: int | None) -> Exposed:
    n = phases[0].noise.topology.users
    total = sum(p.weight for p in phases)
    if colluders is None or not any(p.noise.correlated for p in phases):
        return Exposed(np.full(n, total), 0, (), True)
    if colluders == 0:
        try:
            per_user = sum(p.weight * leverages(p.noise) for p in phases)
        except CannotBound:  # too large even for sparse elimination
            return _bounded(phases, 0)
        assert isinstance(per_user, np.ndarray)
        return Exposed(per_user, first_largest(per_user), (), True)
    alone = _union_degrees(phases) <= colluders
    if alone.any():
        user = int(np.argmax(alone))
        coalition = _padded(_union_neighbours(phases, user), user, colluders, n)
        per_user = np.full(n, total)
        if not alone.all():
            per_user[~alone] = _searched(phases, colluders).per_user[~alone]
        return Exposed(per_user, user, coalition, True)
    return _searched(phases, colluders)


def _union_degrees(phases: Sequence[Phase]) -> Ints:
    """How many neighbours every user has over the whole run: that many colluders leave it alone
    with its own noise.
    """
    if len(phases) == 1:
        return phases[0].noise.topology.degrees
    union = np.unique(np.concatenate([p.noise.topology.edges for p in phases]), axis=0)
    return np.bincount(union.ravel(), minlength=phases[0].noise.topology.users).astype(np.int64)


def _union_neighbours(phases: Sequence[Phase], user: int) -> Ints:
    return np.unique(np.concatenate([p.noise.topology.neighbours(user) for p in phases]))


def _padded(coalition: Ints, user: int, q: int, n: int) -> tuple[int, ...]:
    """More colluders never hurt the coalition: fill up to q with users other than the victim."""
    chosen = [int(v) for v in coalition]
    others = (v for v in range(n) if v != user and v not in chosen)
    return tuple(sorted(chosen + list(itertools.islice(others, q - len(chosen)))))


def _searched(phases: Sequence[Phase], q: int) -> Exposed:
    n = phases[0].noise.topology.users
    alike = (
        len(phases) == 1 and phases[0].noise.uniform and phases[0].noise.topology.vertex_transitive
    )
    if alike and q == 1:
        return _one_deletion(phases[0], n)
    subsets = math.comb(n - 1, q) if alike else math.comb(n, q)
    if subsets * n**3 <= ENUMERATION_LIMIT:
        return _enumerated(phases, q, alike)
    if n > DENSE_LIMIT:
        return _bounded(phases, q)
    return _single_deletions(phases) if q == 1 else _branched(phases, q, alike)


def _one_deletion(phase: Phase, n: int) -> Exposed:
    """All users alike and one curious: whoever is curious, call it user 0."""
    network, kept = phase.noise.network().without([0])
    values = phase.weight * diagonal(network)
    worst = first_largest(values)
    return Exposed(np.full(n, values.max()), int(kept[worst]), (0,), True)


def _enumerated(phases: Sequence[Phase], q: int, alike: bool) -> Exposed:
    """Every subset from scratch, in batches: exact at any ratio."""
    n = phases[0].noise.topology.users
    matrices = [(p.weight, p.noise.network().dense()) for p in phases]
    best, sets = np.zeros(n), np.zeros((n, q), dtype=np.int64)
    for chunk in _chunks(
        itertools.combinations(range(1 if alike else 0, n), q), max(1, 2_000_000 // n**2)
    ):
        batch = np.arange(chunk.shape[0])[:, None]
        values = np.zeros((chunk.shape[0], n))
        for weight, K in matrices:
            left = np.repeat(K[None], chunk.shape[0], axis=0)
            left[batch, chunk, :] = 0.0
            left[batch, :, chunk] = 0.0
            values += weight * dense.batched_diagonal(left, np.ones((chunk.shape[0], n)))
        values[batch, chunk] = 0.0  # a colluder is not a victim
        winner = values.argmax(axis=0)
        value = values[winner, np.arange(n)]
        better = value > best
        best[better], sets[better] = value[better], chunk[winner[better]]
    if alike:
        best[:] = best[0]
    best *= 1 + dense.relative_error(n) + 4 * UNIT_ROUNDOFF * len(phases)
    user = 0 if alike else first_largest(best)
    return Exposed(best, user, tuple(sets[user].tolist()), True)


def _chunks(sets: Iterator[tuple[int, ...]], size: int) -> Iterator[Ints]:
    while chunk := list(itertools.islice(sets, size)):
        yield np.array(chunk, dtype=np.int64)


def _single_deletions(phases: Sequence[Phase]) -> Exposed:
    """One curious user: each deletion is a change of low rank to one dense inverse, from scratch
    where that would cancel.
    """
    n = phases[0].noise.topology.users
    best, by = np.zeros(n), np.zeros(n, dtype=np.int64)
    parts = []
    for p in phases:
        progress.report(f"inverting {n:,} users")
        network = p.noise.network()
        parts.append(
            (
                p.weight,
                network,
                network.neighbour_lists(),
                dense.inverse(network.dense(), network.ground),
            )
        )
    for v in range(n):
        if v % 64 == 0:
            progress.report("each user being curious", v, n)
        values = np.zeros(n)
        for weight, network, neighbours, G in parts:
            values += weight * after_deletion(G, network, v, *neighbours[v])
        values[v] = 0.0
        better = values > best
        best[better], by[better] = values[better], v
    user = int(np.argmax(best))
    attained = sum(
        p.weight * from_scratch(p.noise.network(), [int(by[user])])[user] for p in phases
    )
    exact = bool(best[user] <= attained * (1 + TOLERANCE))
    return Exposed(best, user, (int(by[user]),), exact)


def _branched(phases: Sequence[Phase], q: int, alike: bool) -> Exposed:
    """Branch and bound, phase by phase; over several phases the sum of the maxima bounds the
    maximum of the sum.
    """
    from . import branch  # numba: a second to import

    def searched(phase: Phase) -> branch.Worst:
        progress.report("searching coalitions (the first time also compiles, about 15 s)")
        topology = phase.noise.topology
        limit = 1000 + SEARCH_LIMIT // (topology.users**2 * int(topology.degrees.max()))
        shown = partial(progress.report, "searching coalitions", total=limit)
        return branch.worst_coalition(
            phase.noise.network(), q, [0] if alike else None, limit, progress=shown
        )

    found = [searched(p) for p in phases]
    per_user = sum(p.weight * f.per_user for p, f in zip(phases, found, strict=True))
    assert isinstance(per_user, np.ndarray)
    tried = [
        (sum(p.weight * from_scratch(p.noise.network(), f.coalition) for p in phases), f.coalition)
        for f in found
    ]
    attained, coalition = max(tried, key=lambda t: float(np.max(t[0])))
    worst = float(per_user.max())
    user = int(np.argmax(attained))
    exact = worst <= float(np.max(attained)) * (1 + TOLERANCE)
    per_user[user] = worst
    return Exposed(per_user, user, coalition, exact)


def _bounded(phases: Sequence[Phase], q: int) -> Exposed:
    """Too large to search: certified upper bounds, each phase by itself."""
    per_user = sum(p.weight * local_bounds.upper_bounds(p.noise.network(), q) for p in phases)
    assert isinstance(per_user, np.ndarray)
    return Exposed(per_user, first_largest(per_user), (), False)
