"""The curve of noise pairs: every (sigma_cdp, sigma_cor) that spends one budget, over their
ratio.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from decor.arrays import Floats
from decor.errors import InputError
from decor.graph.topology import Topology

from .adversary import Adversary
from .budget import Budget, Exposure
from .leverage.limit import Need


@dataclass(frozen=True, eq=False)
class Couples:
    """Couples that spend the same budget, by growing ratio sigma_cor^2 / sigma_cdp^2."""

    ratio: Floats
    sigma_cdp: Floats
    sigma_cor: Floats


def couples(
    topology: Topology,
    exposure: Exposure,
    adversary: Adversary,
    budget: Budget,
    ratios: ArrayLike | None = None,
) -> Couples:
    """The curve of couples over `ratios` (by default 25 from 0.1 to a million)."""
    need = Need.of(topology, exposure, adversary, budget)
    try:
        x = np.atleast_1d(
            np.asarray(np.geomspace(0.1, 1e6, 25) if ratios is None else ratios, dtype=np.float64)
        )
    except (ValueError, TypeError):
        x = np.array([np.nan])
    if not ((x >= 0).all() and (x <= 1e100).all()):
        raise InputError(f"ratios must be numbers from 0 to 1e100, not {ratios!r}")
    s = need.sigma_cdp(x)
    return Couples(x, s, np.sqrt(x) * s)
