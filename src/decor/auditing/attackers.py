"""Who attacks: coalitions with their most exposed victims, what the plan allows each, and how each
weighs what it sees.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from decor.arrays import Array
from decor.privacy.adversary import Adversary
from decor.privacy.leverage.deletion import from_scratch
from decor.privacy.leverage.solve import leverages
from decor.privacy.loss.accountant import Segment
from decor.privacy.plan import NoisePlan

_MANY, _SOME = 64, 16
"""Users up to which each is curious in turn; and how many of more are."""


@dataclass(frozen=True)
class Foe:
    """Some users who pool their secrets (none: an eavesdropper), against one of the others."""

    adversary: str
    coalition: tuple[int, ...]
    victim: int
    leverage: float
    """Of the victim, once the coalition's noise is known: certified, never below the truth; in 1 /
    sigma^2.
    """


def foes(plan: NoisePlan, secrets: bool, victim: int | None = None) -> list[Foe]:
    """An eavesdropper; and where secrets can be known each curious user, the plan's worst
    coalition, and everyone.

    Each against the user whom it exposes most, or all against one victim.
    """
    noise = Segment(plan.topology, plan.exposure, plan.sigma_cdp, plan.sigma_cor).noise
    users = plan.topology.users

    def against(adversary: str, coalition: tuple[int, ...]) -> Foe:
        found = leverages(noise) if not coalition else from_scratch(noise.network(), coalition)
        chosen = int(np.argmax(found)) if victim is None else victim
        return Foe(adversary, coalition, chosen, float(found[chosen]) / plan.sigma_cdp**2)

    listed: list[tuple[str, tuple[int, ...]]] = [("eavesdropper", ())]
    if secrets:
        listed += [("curious", (v,)) for v in _curious(plan)]
        if plan.adversary.colluders is not None and 1 < plan.adversary.colluders < users - 1:
            listed.append((str(plan.adversary), plan.guarantee(0.5).worst_coalition))
        last = 0 if victim is None else victim
        listed.append((str(Adversary.everyone()), tuple(v for v in range(users) if v != last)))
    return [against(name, coalition) for name, coalition in listed if victim not in coalition]


def _curious(plan: NoisePlan) -> list[int]:
    """Everybody, or of many some, and the one who learns most.

    Of two users each is everyone else.
    """
    users = plan.topology.users
    if users <= _MANY:
        return list(range(users)) if users > 2 else []
    worst = plan.guarantee(0.5, Adversary.curious()).worst_coalition
    return sorted({*range(0, users, math.ceil(users / _SOME)), *worst})


def covariance(
    users: int, edges: Array, own: float, shared: Array, without: tuple[int, ...] = ()
) -> Array:
    """Of everybody's noise in one coordinate, as it looks to whoever knows the noise of a
    coalition's edges.
    """
    K = incidence(users, edges)
    hidden = shared * ~np.isin(edges, without).any(axis=1)
    found: Array = own**2 * np.eye(users) + (K * np.square(hidden)) @ K.T
    return found


def incidence(users: int, edges: Array) -> Array:
    """[users, edges]: an edge's noise counts at its lower end, and against at its higher."""
    K = np.zeros((users, len(edges)))
    K[edges[:, 0], np.arange(len(edges))] = 1.0
    K[edges[:, 1], np.arange(len(edges))] = -1.0
    return K
