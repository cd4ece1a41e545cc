"""The accountant: steps under given graphs and noise -> (epsilon, delta) of every user against an
adversary.

User level: given everything sent so far, one user's data moves one row of the messages, so a step
is a Gaussian shift of 2 C sqrt((Sigma^-1)_ii); T of them compose exactly into mu_i^2 = sum_t 4
C_t^2 (Sigma_t^-1)_ii. Example level: the same with the subsampled Gaussian, composed as privacy
loss distributions. No sum of maxima is ever taken where a maximum of sums exists.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from decor import progress
from decor.arrays import Floats
from decor.choices import Method, Relation, Sampling
from decor.errors import BudgetError, InputError
from decor.graph.topology import Topology
from decor.privacy.adversary import Adversary
from decor.privacy.budget import Exposure, checked_delta
from decor.privacy.guarantee import Guarantee
from decor.privacy.leverage.coalition import Exposed, Phase, exposed
from decor.privacy.leverage.solve import Noise

from . import gaussian

_ROUNDING = 1 + 2.0**-48
"""Covers the few roundings between leverages and mu."""

_DISTINCT = 24
"""Example level: above this many different users, noise multipliers are rounded down together, to
within half a percent.
"""


@dataclass(frozen=True)
class Segment:
    """Some steps of a run, under one graph, one noise and one exposure."""

    topology: Topology
    exposure: Exposure
    sigma_cdp: float
    sigma_cor: float | tuple[float, ...]

    @property
    def noise(self) -> Noise:
        def ratio(c: float) -> float:
            return (c / self.sigma_cdp) ** 2 if c / self.sigma_cdp < 1e100 else 1e200

        c = self.sigma_cor
        return Noise(self.topology, tuple(map(ratio, c)) if isinstance(c, tuple) else ratio(c))


def account(
    segments: Sequence[Segment], adversary: Adversary, delta: float, method: Method = "exact"
) -> Guarantee:
    """The guarantee of the adaptive composition of all segments.

    Guarantee: epsilon is never below the truth. `method="paper"` converts as the paper does
    (looser, for comparison).
    """
    delta = checked_delta(delta)
    if not isinstance(adversary, Adversary):
        raise InputError(
            f"adversary must be an Adversary, such as Adversary.curious(), not {adversary!r}"
        )
    if method not in ("exact", "paper"):
        raise InputError(f'method must be "exact" or "paper", not {method!r}')
    first = segments[0].exposure
    users = segments[0].topology.users
    adversary.check(users)
    for s in segments:
        s.exposure.check(s.topology)
        if s.topology.labels != segments[0].topology.labels:
            raise InputError(
                "the phases of a run name their users differently; give all graphs "
                "the same users in the same order"
            )
        if s.topology.users != users or (s.exposure.unit, s.exposure.relation) != (
            first.unit,
            first.relation,
        ):
            raise InputError(
                "all phases of a run must have the same users, the same unit of "
                "privacy and the same relation"
            )
    if method == "paper" and first.unit == "example":
        raise BudgetError(
            'method "paper" is for unit "user"; the paper has no accountant for '
            "examples that composes"
        )
    if not all(math.isfinite(_spent(s)) for s in segments):
        # no independent noise (or next to none): the sum of all messages gives everybody away
        found = _Found(math.inf, 0, (), True, lambda: np.full(users, np.inf))
    elif first.unit == "user" or all(min(s.exposure.rates(s.topology)) == 1 for s in segments):
        found = _gaussian(segments, adversary, delta, method)
    else:
        found = _subsampled(segments, adversary, delta)
    return Guarantee(
        epsilon=found.epsilon,
        delta=delta,
        adversary=adversary,
        unit=first.unit,
        relation=first.relation or "replace",
        steps=sum(s.exposure.steps for s in segments),
        worst_user=found.user,
        worst_coalition=found.coalition,
        exact=found.exact and method == "exact",
        method=method,
        topology=segments[0].topology,
        everybody=found.everybody,
    )


class _Found(NamedTuple):
    epsilon: float
    user: int
    coalition: tuple[int, ...]
    exact: bool
    everybody: Callable[[], Floats]


def _gaussian(
    segments: Sequence[Segment], adversary: Adversary, delta: float, method: Method
) -> _Found:
    found, scale = _exposed(segments, [_spent(s) for s in segments], adversary)
    convert = gaussian.epsilon if method == "exact" else gaussian.paper_epsilon

    def mu(exposure: Any) -> Any:
        return np.sqrt(scale * exposure) * _ROUNDING

    worst = float(convert(mu(found.worst), delta))
    return _Found(
        worst,
        found.user,
        found.coalition,
        found.exact,
        lambda: np.array(convert(mu(found.per_user), delta)),
    )


def _spent(segment: Segment) -> float:
    """mu^2 of a user alone with its own noise; infinite without any."""
    if segment.sigma_cdp == 0:
        return math.inf
    step = segment.exposure.shift / segment.sigma_cdp
    return step * step * segment.exposure.steps


def _exposed(
    segments: Sequence[Segment], weights: Sequence[float], adversary: Adversary
) -> tuple[Exposed, float]:
    """Exposures in units of the heaviest weight: so the search for coalitions sees ratios alone,
    and its answer is reused.
    """
    scale = max(*weights, 1e-300)  # so little that it is free at any delta
    if adversary.average_only:
        users = segments[0].topology.users
        total = sum(weights) / scale / users
        return Exposed(np.full(users, total), 0, (), True), scale
    phases = tuple(Phase(s.noise, w / scale) for s, w in zip(segments, weights, strict=True))
    return exposed(phases, adversary.colluders), scale


def _subsampled(segments: Sequence[Segment], adversary: Adversary, delta: float) -> _Found:
    """Every user's composition of subsampled Gaussians; a phase's leverage is the worst over
    coalitions for that phase.
    """
    users = segments[0].topology.users
    found = [_exposed([s], [1.0], adversary)[0] for s in segments]
    steps = np.array(
        [
            [_multiplier(s, f.per_user), s.exposure.rates(s.topology)]
            for s, f in zip(segments, found, strict=True)
        ]
    )
    kinds = tuple(
        (s.exposure.sampling or "poisson", s.exposure.relation or "replace", s.exposure.steps)
        for s in segments
    )

    def epsilon(user: int, z: Floats) -> tuple[float, bool]:
        return _composed(
            kinds, tuple(z[:, user].tolist()), tuple(steps[:, 1, user].tolist()), delta
        )

    z = steps[:, 0]
    front = _least_protected(z, steps[:, 1])
    values = {user: epsilon(user, z) for user in front}
    worst = max(values, key=lambda user: values[user][0])
    # of equals, the one whose coalition is known
    if (steps[:, :, worst] == steps[:, :, found[0].user]).all():
        worst = found[0].user
        values[worst] = epsilon(worst, z)
    certain = all(f.exact for f in found) and (
        len(segments) == 1 or adversary.colluders in (0, None)
    )
    # nobody is known to attain what dominates both directions of fixed-size sampling
    certain = certain and all(s.exposure.sampling != "fixed" for s in segments)
    # when users differ in rate, the worst need not be the one whose coalition is known to be
    # attained
    known = adversary.colluders in (0, None) or worst == found[0].user or len(set(steps[0, 1])) == 1
    coalition = found[0].coalition if worst == found[0].user else ()

    def everybody() -> Floats:
        rounded = (
            z
            if len(set(map(tuple, steps.reshape(-1, users).T))) <= _DISTINCT
            else np.exp(np.floor(np.log(z) * 200) / 200)
        )
        result = np.empty(users)
        for user in range(users):
            progress.report("every user's epsilon", user, users)
            result[user] = epsilon(user, rounded)[0]
        return result

    return _Found(
        values[worst][0], worst, coalition, certain and known and values[worst][1], everybody
    )


def _multiplier(segment: Segment, leverage: Floats) -> Floats:
    """z = b sigma_eff / C: noise against one clipped record's share of the average."""
    exposure = segment.exposure
    assert exposure.batch_size is not None
    result: Floats = (
        exposure.batch_size * segment.sigma_cdp / (exposure.clip * np.sqrt(leverage) * _ROUNDING)
    )
    return result


def _least_protected(z: Floats, rates: Floats) -> list[int]:
    """Users such that nobody else has both less noise and a higher rate: the worst epsilon is among
    them.
    """
    candidates: list[int] = []
    order = np.lexsort((*-rates, *z))
    for user in order.tolist():
        if not any(
            (z[:, c] <= z[:, user]).all() and (rates[:, c] >= rates[:, user]).all()
            for c in candidates
        ):
            candidates.append(user)
    return candidates


@lru_cache(maxsize=4096)
def _composed(
    kinds: tuple[tuple[Sampling, Relation, int], ...],
    z: tuple[float, ...],
    rates: tuple[float, ...],
    delta: float,
) -> tuple[float, bool]:
    from . import subsampled

    phases = [
        subsampled.SubsampledStep(noise, rate, sampling, relation, steps)
        for (sampling, relation, steps), noise, rate in zip(kinds, z, rates, strict=True)
    ]
    return subsampled.epsilon(phases, delta)
