"""The accountant: steps under given graphs and noise -> (epsilon, delta) of each user.

User level: given all messages so far, one user's data moves one row of the next messages. So a step
is a Gaussian shift of 2 C sqrt((Sigma^-1)_ii), and T steps compose exactly into mu_i^2 = sum_t 4
C_t^2 (Sigma_t^-1)_ii. Example level: the same with the subsampled Gaussian, composed as privacy
loss distributions. No sum of maxima is taken where a maximum of sums exists.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from decor import progress
from decor.array_types import Floats
from decor.choices import Method, Relation, Sampling
from decor.errors import InputError
from decor.graph.topology import Topology
from decor.privacy.adversary import Adversary
from decor.privacy.budget import Exposure, check_method, validate_delta
from decor.privacy.guarantee import Guarantee
from decor.privacy.leverage.coalition import Phase, WorstLeverages, worst_leverages
from decor.privacy.leverage.solve import ScaledCovariance

from . import gaussian

_ROUNDING = 1 + 2.0**-48
"""Covers the few roundings between leverages and mu."""

_DISTINCT = 24
"""Example level: with more different users, noise multipliers are rounded down by up to 0.5 %."""


@dataclass(frozen=True)
class Segment:
    """Some steps of a run, under one graph, one noise and one exposure."""

    topology: Topology
    exposure: Exposure
    sigma_cdp: float | tuple[float, ...]
    sigma_cor: float | tuple[float, ...]

    @property
    def least_own(self) -> float:
        """The smallest sigma_cdp of any user: leverages are in units of its inverse square."""
        return min(self.sigma_cdp) if isinstance(self.sigma_cdp, tuple) else self.sigma_cdp

    @property
    def noise(self) -> ScaledCovariance:
        unit = self.least_own

        def ratio(c: float) -> float:
            # the square of a larger quotient could overflow
            return (c / unit) ** 2 if c / unit < 1e100 else 1e200

        s, c = self.sigma_cdp, self.sigma_cor
        ratios = tuple(map(ratio, c)) if isinstance(c, tuple) else ratio(c)
        differs = isinstance(s, tuple) and max(s) > unit
        own = tuple(map(ratio, s)) if isinstance(s, tuple) and differs else None
        return ScaledCovariance(self.topology, ratios, own)


def account(
    segments: Sequence[Segment], adversary: Adversary, delta: float, method: Method = "exact"
) -> Guarantee:
    """The guarantee of the adaptive composition of all segments.

    Args:
        segments: The run, in order; at least one.
        adversary: Against whom.
        delta: Failure probability.
        method: "exact", or "paper" for the paper's looser conversion.

    Guarantee: epsilon is never below the truth.
    """
    delta = validate_delta(delta)
    if not isinstance(adversary, Adversary):
        raise InputError(
            f"adversary must be an Adversary, such as Adversary.curious(), not {adversary!r}"
        )
    exposure, topology = segments[0].exposure, segments[0].topology
    check_method(method, exposure)
    adversary.check(topology.users)
    for s in segments:
        s.exposure.check(s.topology)
        # the same graph read from two files may number its users differently
        if s.topology.labels != topology.labels:
            raise InputError(
                "the phases of a run name their users differently; give all graphs the same users "
                "in the same order"
            )
        same = (s.exposure.unit, s.exposure.relation) == (exposure.unit, exposure.relation)
        # one sentence for all phases: numbers of examples are public in all or in none
        same = same and s.exposure.counts_are_public == exposure.counts_are_public
        if s.topology.users != topology.users or not same:
            raise InputError(
                "all phases of a run must have the same users, the same unit of privacy, the same "
                "relation, and all or none of them a common rate"
            )
    if not all(math.isfinite(_local_mu_squared(s)) for s in segments):
        # (almost) no independent noise: the sum of all messages reveals the data
        no_privacy = np.full(topology.users, np.inf)
        result = _Result(math.inf, 0, (), True, no_privacy.copy)
    elif exposure.unit == "user" or all(min(s.exposure.rates(s.topology)) == 1 for s in segments):
        result = _account_gaussian(segments, adversary, delta, method)
    else:
        result = _account_subsampled(segments, adversary, delta)
    return Guarantee(
        epsilon=result.epsilon,
        delta=delta,
        adversary=adversary,
        unit=exposure.unit,
        relation=exposure.relation or "replace",
        steps=sum(s.exposure.steps for s in segments),
        worst_user=result.user,
        worst_coalition=result.coalition,
        exact=result.exact and method == "exact",
        method=method,
        topology=topology,
        everybody=result.per_user,
        counts_are_public=exposure.counts_are_public,
        alike=_are_alike(segments, adversary),
    )


def _are_alike(segments: Sequence[Segment], adversary: Adversary) -> bool:
    """Whether all users are known to be equally exposed: by symmetry, before any computation."""
    cut = []
    for s in segments:
        levels = (np.ravel(s.sigma_cdp), np.ravel(s.sigma_cor))
        if any(len(level) and level.min() != level.max() for level in levels):
            return False
        if s.exposure.counts_are_public and len(set(s.exposure.rates(s.topology))) > 1:
            return False
        # without noise on edges, or with all of it known, the graph hides nothing for anyone
        if adversary.colluders is not None and np.any(s.sigma_cor) and s.topology not in cut:
            cut.append(s.topology)
    # colluders are the same in all phases: each graph may be symmetric, and both together not
    if len(cut) > 1 and adversary.colluders:
        return False
    # where all neighbours of each user may collude, everyone has its own noise alone
    if len(cut) == 1 and cut[0].degrees.max() <= (adversary.colluders or 0):
        return True
    return all(_is_symmetric(topology) for topology in cut)


def _is_symmetric(topology: Topology) -> bool:
    """Whether all users are known to be equivalent, also in a ring or complete graph from a file.

    `Topology.vertex_transitive` is about the numbering too, which closed forms rely on.
    """
    n, degrees = topology.users, topology.degrees
    if topology.vertex_transitive or topology.edge_count == n * (n - 1) // 2:
        return True
    # a connected graph whose users have two neighbours each is a ring
    return bool((degrees == 2).all()) and topology.is_connected


class _Result(NamedTuple):
    """`per_user` computes each user's epsilon when it is needed: it may take minutes."""

    epsilon: float
    user: int
    coalition: tuple[int, ...]
    exact: bool
    per_user: Callable[[], Floats]


def _account_gaussian(
    segments: Sequence[Segment], adversary: Adversary, delta: float, method: Method
) -> _Result:
    weights = [_local_mu_squared(s) for s in segments]
    worst, scale = _worst_leverages(segments, weights, adversary)
    convert = gaussian.epsilon if method == "exact" else gaussian.paper_epsilon

    def epsilon(leverage: Any) -> Any:
        return convert(np.sqrt(scale * leverage) * _ROUNDING, delta)

    return _Result(
        float(epsilon(worst.worst)),
        worst.user,
        worst.coalition,
        worst.exact,
        lambda: np.array(epsilon(worst.per_user)),
    )


def _local_mu_squared(segment: Segment) -> float:
    """mu^2 of the user with the least own noise by that alone (local DP); infinite without any."""
    if segment.least_own == 0:
        return math.inf

    step = segment.exposure.shift / segment.least_own
    return step * step * segment.exposure.steps


def _worst_leverages(
    segments: Sequence[Segment], weights: Sequence[float], adversary: Adversary
) -> tuple[WorstLeverages, float]:
    """Worst leverages in units of the heaviest weight, and that weight.

    So the search for coalitions depends on ratios alone, and its result is reused.
    """
    scale = max(*weights, 1e-300)  # a mu so small that its epsilon is 0 at any delta
    if adversary.average_only:
        users = segments[0].topology.users
        # the average of n messages has the variance of their sum, over n^2
        alone = [users / float(np.sum(s.noise.ground)) for s in segments]
        total = sum(w / scale / users * a for w, a in zip(weights, alone, strict=True))
        return WorstLeverages(np.full(users, total), 0, (), True), scale
    phases = tuple(Phase(s.noise, w / scale) for s, w in zip(segments, weights, strict=True))
    return worst_leverages(phases, adversary.colluders), scale


def _account_subsampled(segments: Sequence[Segment], adversary: Adversary, delta: float) -> _Result:
    """Each user's composition of subsampled Gaussians, with each phase's worst leverage."""
    users = segments[0].topology.users
    worst = [_worst_leverages([s], [1.0], adversary)[0] for s in segments]
    # one row per segment, one column per user
    z = np.array([_multiplier(s, w.per_user) for s, w in zip(segments, worst, strict=True)])
    rates = np.array([s.exposure.rates(s.topology) for s in segments])
    kinds = tuple(
        (s.exposure.sampling or "poisson", s.exposure.relation or "replace", s.exposure.steps)
        for s in segments
    )

    def epsilon(user: int, z: Floats) -> tuple[float, bool]:
        return _compose(kinds, tuple(z[:, user].tolist()), tuple(rates[:, user].tolist()), delta)

    values = {user: epsilon(user, z) for user in _least_protected(z, rates)}
    user = max(values, key=lambda user: values[user][0])
    # of equally exposed users, the one whose coalition is known
    known = worst[0].user
    if (z[:, user] == z[:, known]).all() and (rates[:, user] == rates[:, known]).all():
        user = known
        values[user] = epsilon(user, z)
    without_coalition = adversary.colluders in (0, None)
    attained = all(w.exact for w in worst) and (len(segments) == 1 or without_coalition)
    # no mechanism is known to attain the pair that dominates both directions of fixed-size sampling
    attained = attained and all(s.exposure.sampling != "fixed" for s in segments)
    # when users differ in rate, the worst user need not be the one whose coalition was found
    attained = attained and (without_coalition or user == known or len(set(rates[0])) == 1)
    coalition = worst[0].coalition if user == known else ()

    def per_user() -> Floats:
        different = len({*zip(*z.tolist(), *rates.tolist(), strict=True)})
        # rounded down, so that users share a composition and no epsilon comes out too small
        rounded = z if different <= _DISTINCT else np.exp(np.floor(np.log(z) * 200) / 200)
        result = np.empty(users)
        for user in range(users):
            progress.report("each user's epsilon", user, users)
            result[user] = epsilon(user, rounded)[0]
        return result

    value, tight = values[user]
    return _Result(value, user, coalition, attained and tight, per_user)


def _multiplier(segment: Segment, leverage: Floats) -> Floats:
    """z = b sigma_eff / C: the noise in units of one clipped example's share of the average."""
    exposure = segment.exposure
    assert exposure.batch_size is not None
    result: Floats = (
        exposure.batch_size * segment.least_own / (exposure.clip * np.sqrt(leverage) * _ROUNDING)
    )
    return result


def _least_protected(z: Floats, rates: Floats) -> list[int]:
    """Users that no other user beats in both less noise and a higher rate; the worst is one."""
    candidates: list[int] = []
    # in this order a user is never dominated by a later one
    order = np.lexsort((*-rates, *z))
    for user in order.tolist():
        dominated = any(
            (z[:, c] <= z[:, user]).all() and (rates[:, c] >= rates[:, user]).all()
            for c in candidates
        )
        if not dominated:
            candidates.append(user)
    return candidates


@lru_cache(maxsize=4096)
def _compose(
    kinds: tuple[tuple[Sampling, Relation, int], ...],
    z: tuple[float, ...],
    rates: tuple[float, ...],
    delta: float,
) -> tuple[float, bool]:
    from . import subsampled  # scipy.fft, which user level does without

    phases = [
        subsampled.SubsampledStep(noise, rate, sampling, relation, steps)
        for (sampling, relation, steps), noise, rate in zip(kinds, z, rates, strict=True)
    ]
    return subsampled.epsilon(phases, delta)
