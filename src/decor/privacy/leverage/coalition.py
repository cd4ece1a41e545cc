"""The worst coalition: which q users, pooling their secrets, expose which user, and how much.

The maximum of sum_p w_p R_i^p(S) over sets S of q users and users i outside S, where phase p of the
run has leverages R^p(S) once S is deleted from its graph, and weight w_p. The colluding set is the
same over the whole run.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

from decor import progress
from decor.array_types import Floats, Ints
from decor.errors import CannotBound
from decor.privacy.threads import one_thread

from . import dense, local_bounds
from .deletion import TOLERANCE, after_deletion, from_scratch, pad
from .network import UNIT_ROUNDOFF
from .solve import SMALL, ScaledCovariance, diagonal, leverages

ENUMERATION_LIMIT = 400_000_000
"""Largest subsets x users^3 at which all subsets are tried: a second or two."""

DENSE_LIMIT = 5_000
"""Most users for which single deletions start from the dense inverse (8 s; 200 MB a matrix)."""

SEARCH_LIMIT = 100_000_000_000
"""Branches x users^2 x degree after which a search returns its certified bound: about a minute.

A count and not a time, so that the same call gives the same answer on every machine.
"""


@dataclass(frozen=True)
class Phase:
    """One phase of a run: its noise, and the weight of its leverages in the sum."""

    noise: ScaledCovariance
    weight: float


@dataclass(frozen=True, eq=False)
class WorstLeverages:
    """Each user's largest weighted sum of leverages over all coalitions.

    Attributes:
        per_user: An upper bound for each user.
        user: The most exposed user.
        coalition: The coalition that exposes it; empty if there is none, if it is everyone else,
            or (not exact) if it was not found.
        exact: Whether `coalition` attains the worst user's bound to a relative 1e-7.
    """

    per_user: Floats
    user: int
    coalition: tuple[int, ...]
    exact: bool

    def __post_init__(self) -> None:
        self.per_user.setflags(write=False)  # results are cached and shared

    @property
    def worst(self) -> float:
        return float(self.per_user.max())


@lru_cache(maxsize=64)
def worst_leverages(phases: tuple[Phase, ...], colluders: int | None) -> WorstLeverages:
    """Each user's worst leverage against `colluders` users (None: against everyone else).

    Guarantee: `per_user` is never below the truth.
    """
    n = phases[0].noise.topology.users
    # what each user's own noise alone gives it: local DP
    local = _sum_over_phases(phases, [p.noise.network().isolated for p in phases])
    if colluders is None or not any(p.noise.correlated for p in phases):
        return WorstLeverages(local, _first_largest(local), (), True)
    # a search takes thousands of small products; a small graph without a search takes a few
    with one_thread() if n > SMALL or colluders > 1 else nullcontext():
        if colluders == 0:
            return _without_colluders(phases)
        alone = _union_degrees(phases) <= colluders
        if not alone.any():
            return _search(phases, colluders)
        # if all neighbours of a user collude, only its own noise is left: nothing is worse for it
        user = int(np.argmax(np.where(alone, local, 0.0)))
        neighbours = np.unique(np.concatenate([p.noise.topology.neighbours(user) for p in phases]))
        coalition, exact = pad(neighbours.tolist(), user, colluders, n), True
        per_user = local
        if not alone.all():
            others = _search(phases, colluders)
            per_user = np.where(alone, local, others.per_user)
            # with own noise for each user, another user may be exposed more
            if per_user.max() > local[user] * (1 + TOLERANCE):
                found = per_user[others.user] >= per_user.max() * (1 - TOLERANCE)
                user = others.user if found else int(np.argmax(per_user))
                coalition, exact = (others.coalition, others.exact) if found else ((), False)
        return WorstLeverages(per_user, user, coalition, exact)


def _without_colluders(phases: Sequence[Phase]) -> WorstLeverages:
    try:
        per_user = _sum_over_phases(phases, [leverages(p.noise) for p in phases])
    except CannotBound:  # too large even for sparse elimination
        return _local_bounds(phases, 0)
    return WorstLeverages(per_user, _first_largest(per_user), (), True)


def _sum_over_phases(phases: Sequence[Phase], values: Sequence[Floats]) -> Floats:
    total = sum(p.weight * each for p, each in zip(phases, values, strict=True))
    assert isinstance(total, np.ndarray)
    return total


def _first_largest(values: Floats) -> int:
    """The first of the users whose values are largest but for rounding."""
    return int(np.argmax(values >= values.max() * (1 - 1e-12)))


def _union_degrees(phases: Sequence[Phase]) -> Ints:
    """Each user's number of neighbours over the whole run."""
    if len(phases) == 1:
        return phases[0].noise.topology.degrees
    union = np.unique(np.concatenate([p.noise.topology.edges for p in phases]), axis=0)
    return np.bincount(union.ravel(), minlength=phases[0].noise.topology.users).astype(np.int64)


def _search(phases: Sequence[Phase], q: int) -> WorstLeverages:
    """The method that suits the size; only `_local_bounds` finds no coalition."""
    noise = phases[0].noise
    n = noise.topology.users
    # then user 0 stands for all users, as the target or as the one colluder
    transitive = len(phases) == 1 and noise.uniform and noise.topology.vertex_transitive
    if transitive and q == 1:
        return _transitive_deletion(phases[0], n)
    subsets = math.comb(n - 1, q) if transitive else math.comb(n, q)
    if subsets * n**3 <= ENUMERATION_LIMIT:
        return _enumerate(phases, q, transitive)
    if n > DENSE_LIMIT:
        return _local_bounds(phases, q)
    return _single_deletions(phases) if q == 1 else _branch_and_bound(phases, q, transitive)


def _transitive_deletion(phase: Phase, n: int) -> WorstLeverages:
    """One curious user on a vertex-transitive graph: whichever it is, call it user 0."""
    network, kept = phase.noise.network().without([0])
    values = phase.weight * diagonal(network)
    worst = _first_largest(values)
    return WorstLeverages(np.full(n, values.max()), int(kept[worst]), (0,), True)


def _enumerate(phases: Sequence[Phase], q: int, transitive: bool) -> WorstLeverages:
    """Every subset by its own elimination, in batches: exact at any ratio."""
    n = phases[0].noise.topology.users
    matrices = [(p.weight, p.noise.network().dense(), p.noise.ground) for p in phases]
    best, sets = np.zeros(n), np.zeros((n, q), dtype=np.int64)
    subsets = itertools.combinations(range(1 if transitive else 0, n), q)
    for chunk in _chunks(subsets, max(1, 2_000_000 // n**2)):
        batch = np.arange(chunk.shape[0])[:, None]
        values = np.zeros((chunk.shape[0], n))
        for weight, K, g in matrices:
            left = np.repeat(K[None], chunk.shape[0], axis=0)
            left[batch, chunk, :] = 0.0
            left[batch, :, chunk] = 0.0
            values += weight * dense.batch_diagonal(left, np.repeat(g[None], len(chunk), axis=0))
        values[batch, chunk] = 0.0  # a colluder is not a target
        winner = values.argmax(axis=0)
        value = values[winner, np.arange(n)]
        better = value > best
        best[better], sets[better] = value[better], chunk[winner[better]]
    if transitive:
        best[:] = best[0]
    # the second term: the sum over phases
    best *= 1 + dense.relative_error(n) + 4 * UNIT_ROUNDOFF * len(phases)
    user = 0 if transitive else _first_largest(best)
    return WorstLeverages(best, user, tuple(sets[user].tolist()), True)


def _chunks(sets: Iterator[tuple[int, ...]], size: int) -> Iterator[Ints]:
    while chunk := list(itertools.islice(sets, size)):
        yield np.array(chunk, dtype=np.int64)


def _single_deletions(phases: Sequence[Phase]) -> WorstLeverages:
    """One curious user: each deletion is a low-rank update of one dense inverse."""
    n = phases[0].noise.topology.users
    best, by = np.zeros(n), np.zeros(n, dtype=np.int64)
    parts = []
    for p in phases:
        progress.report(f"inverting {n:,} users")
        network = p.noise.network()
        G = dense.inverse(network.dense(), network.ground)
        parts.append((p.weight, network, network.neighbour_lists(), G))
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
    # the low-rank result is an upper bound; only a new elimination shows that it is attained
    curious = int(by[user])
    attained = sum(p.weight * from_scratch(p.noise.network(), [curious])[user] for p in phases)
    exact = bool(best[user] <= attained * (1 + TOLERANCE))
    return WorstLeverages(best, user, (curious,), exact)


def _branch_and_bound(phases: Sequence[Phase], q: int, transitive: bool) -> WorstLeverages:
    """Each phase by itself: the sum of the phases' maxima bounds the maximum of their sum."""
    from . import branch  # numba takes a second to import

    results = []
    for phase in phases:
        progress.report("searching coalitions (the first time also compiles, about 15 s)")
        topology = phase.noise.topology
        limit = 1000 + SEARCH_LIMIT // (topology.users**2 * int(topology.degrees.max()))
        report = partial(progress.report, "searching coalitions", total=limit)
        targets = [0] if transitive else None
        network = phase.noise.network()
        results.append(branch.worst_coalition(network, q, targets, limit, progress=report))
    per_user = _sum_over_phases(phases, [result.per_user for result in results])
    # a coalition that is worst in one phase need not be worst in the sum: try each phase's
    tried = []
    for result in results:
        values = [from_scratch(p.noise.network(), result.coalition) for p in phases]
        tried.append((_sum_over_phases(phases, values), result.coalition))
    attained, coalition = max(tried, key=lambda pair: float(pair[0].max()))
    worst = float(per_user.max())
    user = int(np.argmax(attained))
    exact = worst <= float(attained.max()) * (1 + TOLERANCE)
    per_user[user] = worst
    return WorstLeverages(per_user, user, coalition, exact)


def _local_bounds(phases: Sequence[Phase], q: int) -> WorstLeverages:
    """Too large to search: certified upper bounds, each phase by itself."""
    bounds = [local_bounds.upper_bounds(p.noise.network(), q) for p in phases]
    per_user = _sum_over_phases(phases, bounds)
    return WorstLeverages(per_user, _first_largest(per_user), (), False)
