"""The attackers of an audit: coalitions, their most exposed victims, and what the plan allows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from decor.array_types import Array
from decor.privacy.adversary import Adversary
from decor.privacy.leverage.deletion import from_scratch
from decor.privacy.leverage.solve import leverages
from decor.privacy.loss.accountant import Segment
from decor.privacy.plan import NoisePlan

_ALL_CURIOUS, _SOME_CURIOUS = 64, 16
"""Up to so many users each is curious in turn; of more, so many are."""


@dataclass(frozen=True)
class Attacker:
    """Users who pool their secrets (none: an eavesdropper), against one of the others.

    Attributes:
        adversary: The adversary that the plan accounts for, such as "curious".
        coalition: The users who collude.
        victim: The user under attack.
        leverage: The victim's, given the coalition's noise, in 1 / sigma^2: certified, so never
            below the true one.
    """

    adversary: str
    coalition: tuple[int, ...]
    victim: int
    leverage: float


def list_attackers(plan: NoisePlan, secrets: bool, victim: int | None = None) -> list[Attacker]:
    """The eavesdropper and, where users know edge noise, coalitions of several sizes.

    Args:
        plan: The plan under audit.
        secrets: Whether users know the noise of their edges. Then each curious user, the plan's
            worst coalition, and everyone but the victim attack as well.
        victim: Attacked by all; None lets each attack the user that it exposes most.
    """
    noise = Segment(plan.topology, plan.exposure, plan.sigma_cdp, plan.sigma_cor).noise
    users = plan.topology.users

    def against(adversary: str, coalition: tuple[int, ...]) -> Attacker:
        leverage = leverages(noise) if not coalition else from_scratch(noise.network(), coalition)
        chosen = int(np.argmax(leverage)) if victim is None else victim
        # leverages are in units of 1 / the least sigma_cdp^2
        true = float(leverage[chosen]) / plan.least_sigma_cdp**2
        return Attacker(adversary, coalition, chosen, true)

    coalitions: list[tuple[str, tuple[int, ...]]] = [("eavesdropper", ())]
    if secrets:
        coalitions += [("curious", (v,)) for v in _curious(plan)]
        # one colluder is a curious user, and all but one are everyone
        if plan.adversary.colluders is not None and 1 < plan.adversary.colluders < users - 1:
            coalitions.append((str(plan.adversary), plan.guarantee(0.5).worst_coalition))
        # against everyone each user has its own noise alone, so who has the least will do
        last = int(np.argmin(plan.sigma_cdp_per_user)) if victim is None else victim
        coalitions.append((str(Adversary.everyone()), tuple(v for v in range(users) if v != last)))
    return [against(name, coalition) for name, coalition in coalitions if victim not in coalition]


def _curious(plan: NoisePlan) -> list[int]:
    """All users, or a sample of many together with the one that learns most."""
    users = plan.topology.users
    if users <= _ALL_CURIOUS:
        # of two users, one curious user is everyone but the victim
        return list(range(users)) if users > 2 else []
    worst = plan.guarantee(0.5, Adversary.curious()).worst_coalition
    return sorted({*range(0, users, math.ceil(users / _SOME_CURIOUS)), *worst})


def covariance(
    users: int, edges: Array, own: float | Array, shared: Array, coalition: tuple[int, ...] = ()
) -> Array:
    """Covariance of all users' noise in one coordinate, given the noise of a coalition's edges."""
    K = incidence(users, edges)
    # edges with an end in the coalition are known: their noise hides nothing
    hidden = shared * ~np.isin(edges, coalition).any(axis=1)
    sigma: Array = np.diag(np.broadcast_to(np.square(own), users)) + (K * np.square(hidden)) @ K.T
    return sigma


def plan_covariance(plan: NoisePlan) -> Array:
    """Covariance of all users' noise in one coordinate, with the plan's noise levels."""
    edges = plan.topology.edges
    shared = np.broadcast_to(plan.sigma_cor, len(edges))
    return covariance(plan.topology.users, edges, plan.sigma_cdp_per_user, shared)


def incidence(users: int, edges: Array) -> Array:
    """[users, edges]: an edge's noise is added at its lower end and subtracted at its higher."""
    K = np.zeros((users, len(edges)))
    K[edges[:, 0], np.arange(len(edges))] = 1.0
    K[edges[:, 1], np.arange(len(edges))] = -1.0
    return K
