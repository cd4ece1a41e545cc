"""LeverageLimit: the leverage that a budget allows each user, hence the noise that it needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from decor import progress
from decor.array_types import Floats
from decor.choices import Method, Relation, Sampling
from decor.errors import InputError
from decor.graph.laplacian import DENSE_LIMIT, laplacian_spectrum
from decor.graph.topology import Topology
from decor.privacy.adversary import Adversary
from decor.privacy.budget import Budget, Exposure, check_method
from decor.privacy.loss import gaussian

from .coalition import Phase, WorstLeverages, worst_leverages
from .network import UNIT_ROUNDOFF
from .solve import ScaledCovariance, round_down_ratio

_INSIDE = 1 + 2.0**-43
"""Moves a ratio inside its 40-bit interval, so that scaling a noise pair does not leave it."""


@dataclass(frozen=True, eq=False)
class LeverageLimit:
    """The largest leverage (Sigma^-1)_ii that each user may have against the adversary.

    Attributes:
        topology: The graph.
        adversary: Against whom.
        exposure: What the run does with private data.
        budget: What the Gaussian noise may spend: without the share of delta that `calibrate`
            keeps for the tables of private runs.
        allowed: The limit of each user. At example level it starts at what the highest sampling
            rate allows, which is safe for all users. `sharpen` raises it to what a user's own rate
            allows, where that matters: a search of about 0.1 s per rate, and few rates matter.
        rates: Each user's sampling rate at example level; None at user level.
    """

    topology: Topology
    adversary: Adversary
    exposure: Exposure
    budget: Budget
    allowed: Floats
    rates: Floats | None = None
    _sharpened: set[float] = field(default_factory=set)

    @classmethod
    def of(
        cls,
        topology: Topology,
        exposure: Exposure,
        adversary: Adversary,
        budget: Budget,
        method: Method = "exact",
    ) -> LeverageLimit:
        """The limit for a budget; the arguments are checked here, for `calibrate` and `couples`."""
        arguments = ((topology, Topology), (exposure, Exposure), (adversary, Adversary))
        for given, kind in (*arguments, (budget, Budget)):
            if not isinstance(given, kind):
                raise InputError(f"a {kind.__name__} is needed, not {given!r}")
        check_method(method, exposure)
        exposure.check(topology)
        adversary.check(topology.users)
        if method == "exact":
            budget = budget.accounted
        # at a sampling rate of 1 each step is a plain Gaussian, as at user level
        if exposure.unit == "user" or min(exposure.rates(topology)) == 1:
            largest_mu = gaussian.mu if method == "exact" else gaussian.paper_mu
            mu = largest_mu(budget.epsilon, budget.delta)
            # a relative 1e-9 less than allowed: the roundings until the plan is accounted again
            leverage = (mu / exposure.shift) ** 2 / exposure.steps * (1 - 1e-9)
            return cls(topology, adversary, exposure, budget, np.full(topology.users, leverage))
        rates = np.array(exposure.rates(topology))
        limit = cls(topology, adversary, exposure, budget, np.zeros(topology.users), rates)
        limit.sharpen([int(rates.argmax())])
        return limit

    def sharpen(self, users: Iterable[int]) -> bool:
        """Raises the limits of these users to what their own rates allow; False if nothing is new.

        A user with a lower rate is allowed at least as much, so its limit is raised too.
        """
        if self.rates is None:
            return False
        new = {float(self.rates[user]) for user in users} - self._sharpened
        for rate in new:
            progress.report("noise for every sampling rate")
            # a lower rate needs less noise (the privacy loss grows with the rate)
            lower = self.rates <= rate
            allowed = _leverage_at_rate(self.exposure, self.budget, rate)
            self.allowed[lower] = np.maximum(self.allowed[lower], allowed)
        self._sharpened.update(new)
        return bool(new)

    def worst_at(self, ratio: float) -> WorstLeverages:
        """Each user's worst leverage with sigma_cdp = 1 and this variance ratio."""
        if self.adversary.average_only:
            # the average of n messages has the variance of one over n
            users = self.topology.users
            return WorstLeverages(np.full(users, 1 / users), 0, (), True)
        phase = Phase(ScaledCovariance(self.topology, float(ratio)), 1.0)
        return worst_leverages((phase,), self.adversary.colluders)

    def sigma_cdp_squared(self, ratio: float) -> float:
        """The smallest sigma_cdp^2 within the limits at a ratio, certified."""
        leverages = self.worst_at(ratio).per_user
        # sharpening one user's limit may make another user decide: until none is new
        while self.sharpen([int((leverages / self.allowed).argmax())]):
            pass
        return float((leverages / self.allowed).max())

    def sigma_cdp(self, ratio: float) -> float:
        return math.sqrt(self.sigma_cdp_squared(ratio))

    def sigma_cdp_curve(self, ratios: Floats) -> Floats:
        """`sigma_cdp` at many ratios, at once where no coalition has to be searched."""
        alone = self.adversary.colluders == 0 and not self.adversary.average_only
        curve = self.curve() if alone else None
        if curve is not None:
            return np.asarray(np.sqrt(curve(ratios)))
        return np.array([self.sigma_cdp(float(x)) for x in ratios])

    def noise_pair(self, ratio: float) -> tuple[float, float]:
        """The smallest (sigma_cdp, sigma_cor) at a ratio."""
        x = round_down_ratio(ratio) * _INSIDE
        s = self.sigma_cdp(x)
        return s, math.sqrt(x) * s

    @property
    def local_sigma(self) -> float:
        """sigma_cdp of local DP: the noise needed without any correlated noise."""
        return float(1 / np.sqrt(self.allowed.min()))

    def without(self, coalition: tuple[int, ...]) -> LeverageLimit:
        """The limit against an eavesdropper once these users are deleted from the graph."""
        # any positive ratio gives the graph that is left
        left, kept = ScaledCovariance(self.topology, 1.0).network().without(coalition)
        rates = None if self.rates is None else self.rates[kept]
        limit = replace(
            self,
            topology=Topology(left.nodes, left.edges),
            adversary=Adversary.eavesdropper(),
            allowed=self.allowed[kept],
            rates=rates,
            _sharpened=set(self._sharpened),
        )
        if rates is not None:
            limit.sharpen([int(rates.argmax())])
        return limit

    def curve(self) -> Callable[[Floats], Floats] | None:
        """sigma_cdp^2 against an eavesdropper at many ratios at once, from the spectrum of L.

        None where the result could not be certified. An eigendecomposition is exact for a matrix
        within n u |L| of L, which moves ((I + x L)^-1)_ii by a relative n u |L| / lambda_2 at
        most; the null space is known exactly. The result is raised by (generously) that much.
        """
        topology = self.topology
        spectrum = laplacian_spectrum(topology)
        if spectrum is not None:
            return self._transitive_curve(spectrum)
        if topology.users > DENSE_LIMIT:
            return None
        values, vectors = np.linalg.eigh(topology.laplacian.toarray())
        zero = topology.component_count
        sizes = np.bincount(topology.components)[topology.components]
        if zero == topology.users:  # no edges: the noise of local DP at any ratio
            return lambda x: np.full(np.shape(x), 1.0 / self.allowed.min())
        error = 64 * topology.users * UNIT_ROUNDOFF * values[-1] / values[zero]
        if not 0 <= error < 1e-9:
            return None
        weights = (vectors[:, zero:] ** 2).T

        def curve(x: Floats) -> Floats:
            # the null space contributes 1 / (size of the user's component)
            leverages = 1.0 / (1.0 + np.multiply.outer(x, values[zero:])) @ weights + 1.0 / sizes
            while self.sharpen(np.unique((leverages / self.allowed).argmax(axis=-1)).tolist()):
                pass
            return np.asarray((leverages / self.allowed).max(axis=-1) * (1 + error))

        return curve

    def _transitive_curve(self, spectrum: Floats) -> Callable[[Floats], Floats]:
        """On a vertex-transitive graph each user has the mean of 1 / (1 + x lambda)."""
        least = self.allowed.min()

        def curve(x: Floats) -> Floats:
            # in parts, so that the outer product stays small
            parts = np.array_split(x, 1 + x.size * spectrum.size // 4_000_000)
            means = [(1.0 / (1.0 + np.multiply.outer(p, spectrum))).mean(axis=-1) for p in parts]
            return np.asarray(np.concatenate(means) * (1 + 1e-13) / least)

        return curve


def _leverage_at_rate(exposure: Exposure, budget: Budget, rate: float) -> float:
    """The largest leverage of a user with this sampling rate."""
    sampling, relation = exposure.sampling or "poisson", exposure.relation or "replace"
    z = _noise_multiplier(budget, rate, exposure.steps, sampling, relation)
    assert exposure.batch_size is not None
    return (exposure.batch_size / (exposure.clip * z)) ** 2 * (1 - 1e-9)


@lru_cache(maxsize=4096)
def _noise_multiplier(
    budget: Budget, rate: float, steps: int, sampling: Sampling, relation: Relation
) -> float:
    """Cached: a plan, its baselines and its noise pairs ask for the same one."""
    from decor.privacy.loss.noise_multiplier import noise_multiplier

    return noise_multiplier(budget.epsilon, budget.delta, rate, steps, sampling, relation)
