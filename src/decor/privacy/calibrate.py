"""Calibration: a budget -> the couple (sigma_cdp, sigma_cor) that meets it.

With x = c^2 / s^2 and f_i(x) = ((I + x L_H)^-1)_ii, user i is within budget when f_i(x) / s^2 <= allowed_i. So every ratio x
has its one smallest noise, s^2 = max_i f_i(x) / allowed_i: the whole curve of couples is closed-form, and what is left to
choose is the ratio. The default takes the one with the least predicted error (`theory.predicted_error`).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from decor import progress
from decor.errors import BudgetError, FragileGraphWarning, InputError
from decor.graph.spectrum import DENSE_LIMIT, laplacian_spectrum
from decor.graph.topology import Topology

from . import gaussian, theory
from .adversary import Adversary
from .budget import Budget, Exposure
from .coalition import Exposed, Phase, exposed
from .leverage import Noise, rounded_down
from .network import UNIT_ROUNDOFF, Floats
from .plan import NoisePlan

_RATIOS = (1e-3, 1e9)
"""Ratios among which the default looks."""

_INSIDE = 1 + 2.0**-43
"""Puts a ratio inside its 40-bit interval, so that scaling a couple does not move it into the next one."""


@dataclass(frozen=True, eq=False)
class Couples:
    """Couples that spend the same budget, by growing ratio sigma_cor^2 / sigma_cdp^2."""

    ratio: Floats
    sigma_cdp: Floats
    sigma_cor: Floats


def calibrate(
    topology: Topology,
    exposure: Exposure,
    adversary: Adversary,
    budget: Budget,
    *,
    ratio: float | None = None,
    sigma_cdp: float | None = None,
    sigma_cor: float | None = None,
    edges: str = "uniform",
    method: str = "exact",
) -> NoisePlan:
    """The least noise within the budget: of the default ratio, or of the ratio, sigma_cdp or sigma_cor given.

    `edges="optimal"` lets sigma_cor differ by edge, which pays on irregular graphs. `method="paper"` spends the budget by the
    paper's conversion, for comparison. Guarantee: the plan, accounted again, is never above its budget.
    """
    if edges not in ("uniform", "optimal"):
        raise InputError(f'edges must be "uniform" or "optimal", not {edges!r}')
    if sum(given is not None for given in (ratio, sigma_cdp, sigma_cor)) > 1:
        raise InputError("give at most one of ratio, sigma_cdp and sigma_cor: each of them fixes the couple")
    need = Need.of(topology, exposure, adversary, budget, method)
    if ratio is not None:
        x = _checked("ratio", ratio)
    elif sigma_cdp is not None:
        x = _ratio_for_cdp(need, _checked("sigma_cdp", sigma_cdp))
    elif sigma_cor is not None:
        x = _ratio_for_cor(need, _checked("sigma_cor", sigma_cor))
    else:
        x = _default_ratio(need)
    s, c = need.couple(x)
    # what was given stays what it is: both replacements only add noise
    plan = NoisePlan(topology, exposure, adversary, max(s, sigma_cdp or 0.0), max(c, sigma_cor or 0.0), budget)
    if edges == "optimal" and c > 0 and topology.edge_count:
        from .edges import optimal

        progress.report("designing the noise of every edge")
        plan = optimal(plan, need.allowed)
    return _within(plan, budget, method)


def couples(
    topology: Topology, exposure: Exposure, adversary: Adversary, budget: Budget, ratios: ArrayLike | None = None
) -> Couples:
    """The curve of couples over `ratios` (by default 25 from 0.1 to a million)."""
    need = Need.of(topology, exposure, adversary, budget)
    try:
        x = np.atleast_1d(np.asarray(np.geomspace(0.1, 1e6, 25) if ratios is None else ratios, dtype=np.float64))
    except (ValueError, TypeError):
        x = np.array([np.nan])
    if not ((x >= 0).all() and (x <= 1e100).all()):
        raise InputError(f"ratios must be numbers from 0 to 1e100, not {ratios!r}")
    s = need.sigma_cdp(x)
    return Couples(x, s, np.sqrt(x) * s)


@dataclass(frozen=True, eq=False)
class Need:
    """What the budget asks: user i's leverage (Sigma^-1)_ii against the adversary may be at most allowed[i]."""

    topology: Topology
    adversary: Adversary
    steps: int
    allowed: Floats

    @classmethod
    def of(cls, topology: Topology, exposure: Exposure, adversary: Adversary, budget: Budget, method: str = "exact") -> Need:
        for given, kind in ((topology, Topology), (exposure, Exposure), (adversary, Adversary), (budget, Budget)):
            if not isinstance(given, kind):
                raise InputError(f"a {kind.__name__} is needed, not {given!r}")
        users = topology.users
        exposure.check(users)
        adversary.check(users)
        if exposure.unit == "user" or min(exposure.rates(users)) == 1:
            if method not in ("exact", "paper"):
                raise InputError(f'method must be "exact" or "paper", not {method!r}')
            mu = (gaussian.mu if method == "exact" else gaussian.paper_mu)(budget.epsilon, budget.delta)
            allowed = np.full(users, (mu / exposure.shift) ** 2 / exposure.steps)
        elif method == "exact":
            z = _multipliers(exposure, budget, users)
            assert exposure.batch_size is not None
            allowed = (exposure.batch_size / (exposure.clip * z)) ** 2
        else:
            raise BudgetError('method "paper" is for unit "user"; the paper has no accountant for examples that composes')
        return cls(topology, adversary, exposure.steps, allowed * (1 - 1e-9))

    def exposed(self, ratio: float) -> Exposed:
        if self.adversary.average_only:
            users = self.topology.users
            return Exposed(np.full(users, 1 / users), 0, (), True)
        return exposed((Phase(Noise(self.topology, float(ratio)), 1.0),), self.adversary.colluders)

    def sigma_cdp(self, ratios: Floats) -> Floats:
        """The smallest sigma_cdp at every ratio, certified."""
        curve = _spectral(self) if self.adversary.colluders == 0 and not self.adversary.average_only else None
        if curve is not None:
            return np.asarray(np.sqrt(curve(ratios)))
        return np.array([self._sigma_cdp(float(x)) for x in ratios])

    def sigma_cdp_squared(self, ratio: float) -> float:
        return float((self.exposed(ratio).per_user / self.allowed).max())

    def _sigma_cdp(self, ratio: float) -> float:
        return math.sqrt(self.sigma_cdp_squared(ratio))

    def without(self, coalition: tuple[int, ...]) -> Need:
        """What an eavesdropper would ask if these users were gone."""
        left, kept = Noise(self.topology, 1.0).network().without(coalition)
        return Need(Topology(left.nodes, left.edges), Adversary.eavesdropper(), self.steps, self.allowed[kept])

    def couple(self, ratio: float) -> tuple[float, float]:
        x = rounded_down(ratio) * _INSIDE
        s = self._sigma_cdp(x)
        return s, math.sqrt(x) * s

    @property
    def local(self) -> float:
        """sigma_cdp of local DP: what no correlated noise at all would need."""
        return float(1 / np.sqrt(self.allowed.min()))


def _multipliers(exposure: Exposure, budget: Budget, users: int) -> Floats:
    """Every user's noise multiplier; above eight different rates, they are rounded up to eight."""
    rates = np.array(exposure.rates(users))
    levels = np.unique(rates)
    if levels.size > 8:
        levels = np.unique(np.quantile(levels, np.linspace(0, 1, 9)[1:], method="higher"))
    found = []
    for k, rate in enumerate(levels.tolist()):
        progress.report("noise for every sampling rate", k, levels.size)
        found.append(_multiplier(budget, rate, exposure.steps, str(exposure.sampling), str(exposure.relation)))
    return np.array(found)[np.searchsorted(levels, rates)]


@lru_cache(maxsize=256)
def _multiplier(budget: Budget, rate: float, steps: int, sampling: str, relation: str) -> float:
    """Remembered, because a plan, its baselines and its couples ask for the same one."""
    from . import subsampled

    return subsampled.noise_multiplier(budget.epsilon, budget.delta, rate, steps, sampling, relation)


def _spectral(need: Need) -> Callable[[Floats], Floats] | None:
    """max_i f_i(x) / allowed_i for many x at once, from the eigenvectors of L; None where that could not be certified.

    An eigendecomposition is right for a matrix within n u |L| of L, which moves f by a relative n u |L| / lambda_2 at most;
    the null space is known exactly. The result is raised by (generously) that much.
    """
    topology = need.topology
    spectrum = laplacian_spectrum(topology)
    if spectrum is not None:
        least = need.allowed.min()

        def closed(x: Floats) -> Floats:
            parts = np.array_split(x, 1 + x.size * spectrum.size // 4_000_000)
            means = [(1.0 / (1.0 + np.multiply.outer(part, spectrum))).mean(axis=-1) for part in parts]
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
    weights = (vectors[:, zero:] ** 2 / need.allowed[:, None]).T

    def curve(x: Floats) -> Floats:
        shrunk = 1.0 / (1.0 + np.multiply.outer(x, values[zero:]))
        return np.asarray((shrunk @ weights + 1.0 / (sizes * need.allowed)).max(axis=-1) * (1 + error))

    return curve


def _default_ratio(need: Need) -> float:
    """The ratio of least predicted error; zero, with a warning, where correlated noise cannot help the worst user."""
    if need.adversary.colluders is None or need.topology.edge_count == 0 or need.adversary.average_only:
        return 0.0
    alone = need.topology.degrees <= need.adversary.colluders
    if alone.any() and need.allowed[alone].min() <= need.allowed.min():
        warnings.warn(_fragile(need), FragileGraphWarning, stacklevel=3)
        return 0.0
    error = theory.error_weights(need.topology, need.steps)
    # against the coalition that is worst at one ratio: choosing the ratio does not need a search at every one
    seen = need.without(need.exposed(10.0).coalition) if need.adversary.colluders else need
    curve = _spectral(seen)
    if curve is None:
        return _cheaply_found(lambda x: seen.sigma_cdp_squared(x) * (error.average + float(error.consensus(x))))
    (low, high), least = np.log(_RATIOS), math.inf
    for _ in range(2):
        x = np.exp(np.linspace(low, high, 64))
        predicted = curve(x) * (error.average + error.consensus(x))
        least = min(least, float(predicted.min()))
        k = int(np.argmax(predicted <= 1.001 * least))  # of all that are as good, the least correlated noise
        low, high = np.log(x[max(k - 1, 0)]), np.log(x[min(k + 1, 63)])
    return float(x[k])


def _cheaply_found(predicted: Callable[[float], float]) -> float:
    """The best ratio to within a tenth, in about a dozen evaluations, each of which may take seconds."""
    from scipy.optimize import minimize_scalar

    def evaluated(log_ratio: float) -> float:
        progress.report("looking for the best ratio")
        return predicted(math.exp(log_ratio))

    return math.exp(minimize_scalar(evaluated, bounds=np.log(_RATIOS), method="bounded", options={"xatol": 0.1}).x)


def _ratio_for_cdp(need: Need, sigma_cdp: float) -> float:
    """The smallest ratio at which sigma_cdp is enough."""
    if sigma_cdp >= need.local:
        return 0.0
    if need._sigma_cdp(_RATIOS[1]) > sigma_cdp:
        raise BudgetError(
            f"sigma_cdp {sigma_cdp:g} is too small for this budget on this graph, however large sigma_cor: "
            f"it takes more than {need._sigma_cdp(_RATIOS[1]):.6g}; raise it, or the budget"
        )
    return _bisect(lambda x: need._sigma_cdp(x) <= sigma_cdp, 1e-12, _RATIOS[1])[1]


def _ratio_for_cor(need: Need, sigma_cor: float) -> float:
    """The largest ratio whose couple asks no more than sigma_cor."""
    if sigma_cor == 0:
        return 0.0
    # sqrt(x) s(x) grows with x: the square is x f(x), and x (I + x L)^-1 grows in every eigenvalue
    if need.couple(_RATIOS[1])[1] <= sigma_cor:
        return _RATIOS[1]
    return _bisect(lambda x: need.couple(x)[1] > sigma_cor, 1e-18, _RATIOS[1])[0]


def _bisect(enough: Callable[[float], bool], low: float, high: float) -> tuple[float, float]:
    """Where `enough` begins, between two ratios a relative 1e-9 apart: the first not enough, the second enough."""
    while high / low > 1 + 1e-9:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return low, high


def _within(plan: NoisePlan, budget: Budget, method: str) -> NoisePlan:
    """The plan itself, or (rounding) the next larger one that is within the budget when accounted again."""
    more = 1e-12
    while not plan.guarantee(budget.delta, method=method).epsilon <= budget.epsilon:
        plan = plan.scaled(1 + more)
        more *= 4
    return plan


def _fragile(need: Need) -> str:
    """What the adversary can do on this graph, and what would help."""
    topology, q, n = need.topology, need.adversary.colluders or 0, need.topology.users
    user = int(np.argmin(topology.degrees))
    who = [topology.name(int(v)) for v in topology.neighbours(user)]
    shown = " and ".join(who) if len(who) < 6 else f"{len(who)} users"
    plural = "s" if len(who) > 1 and len(who) < 6 else ""
    able = f"user{plural} {shown} can isolate user" if who else "nobody shares a secret with user"
    degree = q + 2 + (q * n) % 2
    better = f"random_regular({n}, degree={degree})" if degree < n else f"more than {n} users"
    fewer = int(topology.degrees.min()) - 1
    lesser = f", or plan for {Adversary(fewer)}" if fewer >= 0 else ""
    return (
        f"{topology!r} against {need.adversary.sentence}: {able} {topology.name(user)}, so correlated noise buys nothing there "
        f"and the plan is local DP. Use {better}{lesser}."
    )


def _checked(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not (value >= 0 and math.isfinite(value)):
        raise BudgetError(f"{name} must be a finite number of at least 0, not {value!r}")
    if value > 1e100:
        raise BudgetError(f"{name} must be at most 1e100, not {value!r}")
    return float(value)
