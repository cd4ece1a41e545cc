"""The curve of noise pairs: every (sigma_cdp, sigma_cor) that spends one budget."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from decor.array_types import Floats
from decor.errors import InputError
from decor.graph.topology import Topology

from .adversary import Adversary
from .budget import Budget, Exposure
from .leverage.limit import LeverageLimit


@dataclass(frozen=True, eq=False)
class Couples:
    """Noise pairs that spend the same budget.

    Attributes:
        ratio: sigma_cor^2 / sigma_cdp^2 of each pair, as they were asked for.
        sigma_cdp: Standard deviation of each user's independent noise.
        sigma_cor: Standard deviation of the noise on each edge.
    """

    ratio: Floats
    sigma_cdp: Floats
    sigma_cor: Floats

    def __repr__(self) -> str:
        if not len(self.ratio):
            return "Couples(none)"
        low, high = float(min(self.ratio)), float(max(self.ratio))
        return f"Couples({len(self.ratio)} noise pairs, ratio {low:.4g} to {high:.4g})"


def couples(
    topology: Topology,
    exposure: Exposure,
    adversary: Adversary,
    budget: Budget,
    ratios: ArrayLike | None = None,
) -> Couples:
    """The smallest noise pair within the budget at each ratio.

    Args:
        topology: The graph of the users.
        exposure: What one run does with private data.
        adversary: Against whom.
        budget: The (epsilon, delta) that each pair spends.
        ratios: Values of sigma_cor^2 / sigma_cdp^2, from 0 to 1e100; by default 25 of them from
            0.1 to a million.

    Returns:
        One noise pair per ratio, in the order given.

    Guarantee: each pair, accounted again, is within the budget up to rounding (a relative 1e-6).
    """
    limit = LeverageLimit.of(topology, exposure, adversary, budget)
    given = np.geomspace(0.1, 1e6, 25) if ratios is None else ratios
    try:
        x = np.atleast_1d(np.asarray(given, dtype=np.float64))
    except (ValueError, TypeError):
        x = np.array([np.nan])  # refused below, like any other value out of range
    if not ((x >= 0).all() and (x <= 1e100).all()):
        raise InputError(f"ratios must be numbers from 0 to 1e100, not {ratios!r}")
    sigma_cdp = limit.sigma_cdp_curve(x)
    # ratios are of variances, and sigmas are deviations
    return Couples(x, sigma_cdp, np.sqrt(x) * sigma_cdp)
