"""What a budget asks of the noise: how exposed every user may be, and so the smallest sigma_cdp at
every ratio.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from decor import progress
from decor.arrays import Floats
from decor.choices import Method, Relation, Sampling
from decor.errors import BudgetError, InputError
from decor.graph.spectrum import DENSE_LIMIT, laplacian_spectrum
from decor.graph.topology import Topology
from decor.privacy.adversary import Adversary
from decor.privacy.budget import Budget, Exposure
from decor.privacy.loss import gaussian

from .coalition import Exposed, Phase, exposed
from .network import UNIT_ROUNDOFF
from .solve import Noise, rounded_down

_INSIDE = 1 + 2.0**-43
"""Puts a ratio inside its 40-bit interval, so that scaling a couple does not move it into the next
one.
"""


@dataclass(frozen=True, eq=False)
class Need:
    """What the budget asks: user i's leverage (Sigma^-1)_ii against the adversary may be at most
    allowed[i].

    `budget` is what noise is found for: of delta, what `calibrate` does not keep for the noise's
    tables. With `rates` (example level) `allowed` begins as what the highest sampling rate allows,
    which is safe for everybody, and is raised to a user's own allowance by `sharpen`, where it
    decides: a search of some 0.1 s for each rate, of which few decide.
    """

    topology: Topology
    adversary: Adversary
    exposure: Exposure
    budget: Budget
    allowed: Floats
    rates: Floats | None = None
    _known: set[float] = field(default_factory=set)

    @classmethod
    def of(
        cls,
        topology: Topology,
        exposure: Exposure,
        adversary: Adversary,
        budget: Budget,
        method: Method = "exact",
    ) -> Need:
        for given, kind in (
            (topology, Topology),
            (exposure, Exposure),
            (adversary, Adversary),
            (budget, Budget),
        ):
            if not isinstance(given, kind):
                raise InputError(f"a {kind.__name__} is needed, not {given!r}")
        if method not in ("exact", "paper"):
            raise InputError(f'method must be "exact" or "paper", not {method!r}')
        exposure.check(topology)
        adversary.check(topology.users)
        if method == "exact":
            budget = budget.accounted
        if exposure.unit == "user" or min(exposure.rates(topology)) == 1:
            mu = (gaussian.mu if method == "exact" else gaussian.paper_mu)(
                budget.epsilon, budget.delta
            )
            allowed = np.full(
                topology.users, (mu / exposure.shift) ** 2 / exposure.steps * (1 - 1e-9)
            )
            return cls(topology, adversary, exposure, budget, allowed)
        if method == "paper":
            raise BudgetError(
                'method "paper" is for unit "user"; the paper has no accountant for '
                "examples that composes"
            )
        rates = np.array(exposure.rates(topology))
        need = cls(topology, adversary, exposure, budget, np.zeros(topology.users), rates)
        need.sharpen([int(rates.argmax())])
        return need

    def sharpen(self, users: Iterable[int]) -> bool:
        """Raises what these users are allowed to what their own rates allow; False where that was
        done before.

        Who samples at a lower rate is allowed at least as much.
        """
        if self.rates is None:
            return False
        new = {float(self.rates[user]) for user in users} - self._known
        for rate in new:
            progress.report("noise for every sampling rate")
            lower = self.rates <= rate
            self.allowed[lower] = np.maximum(
                self.allowed[lower], _allowed(self.exposure, self.budget, rate)
            )
        self._known.update(new)
        return bool(new)

    def exposed(self, ratio: float) -> Exposed:
        if self.adversary.average_only:
            users = self.topology.users
            return Exposed(np.full(users, 1 / users), 0, (), True)
        return exposed((Phase(Noise(self.topology, float(ratio)), 1.0),), self.adversary.colluders)

    def sigma_cdp(self, ratios: Floats) -> Floats:
        """The smallest sigma_cdp at every ratio, certified."""
        curve = (
            curve_of(self)
            if self.adversary.colluders == 0 and not self.adversary.average_only
            else None
        )
        if curve is not None:
            return np.asarray(np.sqrt(curve(ratios)))
        return np.array([self.sigma_at(float(x)) for x in ratios])

    def sigma_cdp_squared(self, ratio: float) -> float:
        exposures = self.exposed(ratio).per_user
        while self.sharpen([int((exposures / self.allowed).argmax())]):
            pass
        return float((exposures / self.allowed).max())

    def sigma_at(self, ratio: float) -> float:
        return math.sqrt(self.sigma_cdp_squared(ratio))

    def without(self, coalition: tuple[int, ...]) -> Need:
        """What an eavesdropper would ask if these users were gone."""
        left, kept = Noise(self.topology, 1.0).network().without(coalition)
        rates = None if self.rates is None else self.rates[kept]
        need = replace(
            self,
            topology=Topology(left.nodes, left.edges),
            adversary=Adversary.eavesdropper(),
            allowed=self.allowed[kept],
            rates=rates,
            _known=set(self._known),
        )
        if rates is not None:
            need.sharpen([int(rates.argmax())])
        return need

    def couple(self, ratio: float) -> tuple[float, float]:
        x = rounded_down(ratio) * _INSIDE
        s = self.sigma_at(x)
        return s, math.sqrt(x) * s

    @property
    def local(self) -> float:
        """sigma_cdp of local DP: what no correlated noise at all would need."""
        return float(1 / np.sqrt(self.allowed.min()))


def _allowed(exposure: Exposure, budget: Budget, rate: float) -> float:
    """The leverage that a user who samples at this rate may have."""
    z = _multiplier(
        budget, rate, exposure.steps, exposure.sampling or "poisson", exposure.relation or "replace"
    )
    assert exposure.batch_size is not None
    return (exposure.batch_size / (exposure.clip * z)) ** 2 * (1 - 1e-9)


@lru_cache(maxsize=4096)
def _multiplier(
    budget: Budget, rate: float, steps: int, sampling: Sampling, relation: Relation
) -> float:
    """Remembered, because a plan, its baselines and its couples ask for the same one."""
    from decor.privacy.loss.noise_multiplier import noise_multiplier

    return noise_multiplier(budget.epsilon, budget.delta, rate, steps, sampling, relation)


def curve_of(need: Need) -> Callable[[Floats], Floats] | None:
    """max_i f_i(x) / allowed_i for many x at once, from the eigenvectors of L; None where that
    could not be certified.

    An eigendecomposition is right for a matrix within n u |L| of L, which moves f by a relative n u
    |L| / lambda_2 at most; the null space is known exactly. The result is raised by (generously)
    that much.
    """
    topology = need.topology
    spectrum = laplacian_spectrum(topology)
    if spectrum is not None:
        least = need.allowed.min()

        def closed(x: Floats) -> Floats:
            parts = np.array_split(x, 1 + x.size * spectrum.size // 4_000_000)
            means = [
                (1.0 / (1.0 + np.multiply.outer(part, spectrum))).mean(axis=-1) for part in parts
            ]
            return np.asarray(np.concatenate(means) * (1 + 1e-13) / least)

        return closed
    if topology.users > DENSE_LIMIT:
        return None
    values, vectors = np.linalg.eigh(topology.laplacian.toarray())
    zero = topology.component_count
    sizes = np.bincount(topology.components)[topology.components]
    if zero == topology.users:
        return lambda x: np.full(np.shape(x), 1.0 / need.allowed.min())
    error = 64 * topology.users * UNIT_ROUNDOFF * values[-1] / values[zero]
    if not 0 <= error < 1e-9:
        return None
    weights = (vectors[:, zero:] ** 2).T

    def curve(x: Floats) -> Floats:
        exposures = 1.0 / (1.0 + np.multiply.outer(x, values[zero:])) @ weights + 1.0 / sizes
        while need.sharpen(np.unique((exposures / need.allowed).argmax(axis=-1)).tolist()):
            pass
        return np.asarray((exposures / need.allowed).max(axis=-1) * (1 + error))

    return curve
