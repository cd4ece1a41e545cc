"""audit: runs canaries over an engine, attacks what is sent, and says how much of the claim was
reached.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from decor import progress
from decor.distributed.process_group import ProcessGroup
from decor.errors import InputError
from decor.privacy.plan import NoisePlan
from decor.training.channel import alike
from decor.training.mixer import DENSE, is_complete
from decor.training.vectorised import Vectorised

from . import example_level, user_level
from .findings import Audit
from .sources import LARGE_MODEL, SMALL_MODEL, Simulated, Wire

if TYPE_CHECKING:
    from decor.federation.peers import Peers

_LEAST, _USUAL = 3_000, {"user": 120_000, "example": 80_000}
_ROOM = 12_000_000
"""Numbers of all users and edges: 100 megabytes, of which an audit holds some ten at a time."""
_WORK = 30_000_000
"""Numbers on the wire that take some ten seconds: steps are as many as fit."""
_WIDEST = 1e6
"""Times everybody's own noise that an edge's may be, for single precision and for plain
inverses.
"""
_KEPT_STEPS = {"user": 16, "example": 32}
"""Of real peers, whose messages are all kept until the end, and of private runs, each of which has
one seed.
"""


def audit(
    plan: NoisePlan,
    *,
    engine: Vectorised | ProcessGroup | Peers | None = None,
    delta: float | None = None,
    canaries: int | None = None,
    steps: int | None = None,
    confidence: float = 0.9999,
    seed: int = 0,
) -> Audit:
    """Attacks what the engine's users send under this plan's noise, as every adversary.

    Canaries are as loud as makes them measurable, over `steps` of the plan's steps (None: as many
    as take some seconds). What the attacks prove is compared with what the accountant claims for
    just that; the claim itself is linear in their length, and composes over steps exactly. More
    `canaries` (None: 120,000, or 80,000 records) bring the proof closer to the truth.

    `engine` is whose messages: `Vectorised()` (the default) and `ProcessGroup()` with a seed are
    simulations, of which only the law of the noise is attacked; `Vectorised(seed=None)` and
    `Peers()` are private, and owe secret keys and the last bits too. `delta` is where epsilons are
    compared (None: the plan's, or 1e-5); `seed` that of canaries, and of simulated noise. Of the
    processes of a group the first has the audit; the others' have measured nothing, and have not
    passed.

    Guarantee: if noise and clipping are as planned, the audit fails with a probability of at most 1
    - confidence.
    """
    began = time.monotonic()
    _check(plan, steps, confidence)
    canaries = _canaries(plan, canaries)
    if delta is None:
        delta = 1e-5 if plan.budget is None else plan.budget.delta
    listed = wires(engine or Vectorised(), plan)
    if steps is None:
        steps = _fitting(plan, canaries)
        if listed[0].widest is None:
            steps = min(steps, _KEPT_STEPS[plan.exposure.unit])
    steps = min(steps, plan.exposure.steps)
    attacked = user_level.attacked if plan.exposure.unit == "user" else example_level.attacked
    found = []
    for k, wire in enumerate(listed):
        with progress.share(k / len(listed), (k + 1) / len(listed)):
            found.append(
                attacked(wire, plan, canaries, steps, (1 - confidence) / len(listed), seed)
            )
    return Audit(
        plan, delta, steps, canaries, confidence, tuple(found), round(time.monotonic() - began, 2)
    )


def wires(engine: Vectorised | ProcessGroup | Peers, plan: NoisePlan) -> list[Wire]:
    """Vectorised draws noise by a root of its covariance, of which edges are no part: one for small
    models, and for large ones on some graphs another. On demand, and on a card always, it draws
    edge by edge. A private run is drawn on the grid.
    """
    name = "vectorised" if isinstance(engine, Vectorised) else "process-group"
    by_edges = plan.topology.edge_count > 0 and not (
        is_complete(plan.topology) and plan.topology.users > DENSE
    )
    if isinstance(engine, ProcessGroup) and engine.seed is None:
        raise InputError(
            "a private run of several processes is not audited: no process knows the noise of "
            "all; audit Vectorised(seed=None), "
            "which draws the same noise, or Peers()"
        )
    if isinstance(engine, ProcessGroup):
        return [Simulated(engine, name, by_edges)]
    if isinstance(engine, Vectorised) and engine.seed is None:
        from .private_source import Private  # what simulates needs no cipher

        return [Private(engine)]
    if isinstance(engine, Vectorised):
        if engine.noise is not None and not isinstance(engine.noise, str):
            raise InputError(
                "noise from outside is not the engine's own; audit Vectorised() as "
                "you train with it"
            )
        edges = Simulated(replace(engine, noise="edges"), f"{name}, edge by edge", True)
        if by_edges and (engine.noise is not None or engine.device != "cpu"):
            return [edges]
        plain = replace(engine, noise=None)
        found: list[Wire] = [Simulated(plain, name, False, SMALL_MODEL)]
        if plan.exposure.unit == "user" and alike(plan, SMALL_MODEL) != alike(plan, LARGE_MODEL):
            found.append(Simulated(plain, f"{name}, large models", False))
        return [*found, edges] if by_edges else found
    from .peer_source import OfPeers  # what trains alone needs no TLS

    return [OfPeers(engine)]


def _canaries(plan: NoisePlan, asked: int | None) -> int:
    """Those asked for, or as many as is usual; never more numbers than fit into memory."""
    users, edges = plan.topology.users, plan.topology.edge_count
    fit = _ROOM // (users + edges)
    if fit < _LEAST:
        raise InputError(
            f"a graph of {users:,} users and {edges:,} edges is too large to audit; audit a "
            "smaller one of its kind, whose noise "
            "is made in the same way"
        )
    if asked is None:
        return min(_USUAL[plan.exposure.unit], fit)
    if not _LEAST <= asked <= fit:
        raise InputError(
            f"an audit of this graph takes {_LEAST:,} to {fit:,} canaries, not {asked:,}"
        )
    return asked


def _check(plan: NoisePlan, steps: int | None, confidence: float) -> None:
    if not isinstance(plan, NoisePlan):
        raise InputError(f"plan must be a NoisePlan, such as decor.calibrate() makes, not {plan!r}")
    if plan.adversary.average_only:
        raise InputError(
            "central DP trusts a server with the messages, so there is nothing to "
            "attack; audit a plan of DECOR"
        )
    if not plan.sigma_cdp > 0:
        raise InputError(
            "a plan without sigma_cdp promises nothing: the sum of all messages has no noise"
        )
    if np.max(plan.sigma_cor, initial=0.0) > _WIDEST * plan.sigma_cdp:
        raise InputError(
            f"the noise of an edge is more than {_WIDEST:,.0f} times everybody's own, which no "
            "message holds to enough digits to "
            "be measured; plan with a smaller ratio"
        )
    if not 0.5 <= confidence < 1:
        raise InputError(
            f"confidence must be from 0.5 to less than 1, such as 0.9999, not {confidence!r}"
        )
    if steps is not None and steps < 2:
        raise InputError(
            f"an audit takes 2 steps at least, not {steps!r}: noise may be used again in the second"
        )


def _fitting(plan: NoisePlan, canaries: int) -> int:
    if plan.exposure.unit == "example":
        return 64
    return max(8, _WORK // (plan.topology.users * canaries))
