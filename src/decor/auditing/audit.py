"""audit: runs canaries on an engine, attacks its messages, and compares with the claim."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from decor import progress
from decor.distributed.process_group import ProcessGroup
from decor.errors import InputError
from decor.privacy.plan import NoisePlan
from decor.training.channel import sharing_key
from decor.training.mixer import DENSE_LIMIT, is_complete
from decor.training.vectorised import Vectorised

from .example_level import audit_examples
from .findings import Audit
from .sources import LARGE_MODEL, SMALL_MODEL, MessageSource, SimulatedSource
from .user_level import audit_users

if TYPE_CHECKING:
    from decor.federation.peers_engine import Peers

_LEAST_CANARIES, _DEFAULT_CANARIES = 3_000, {"user": 120_000, "example": 80_000}
_MAX_VALUES = 12_000_000
"""Values of all users and edges: 100 megabytes, of which an audit holds about ten at a time."""
_MAX_SENT = 30_000_000
"""Values in all messages that take about ten seconds: as many steps are run as fit."""
_MAX_RATIO = 1e6
"""Edge noise over own noise at most: limited by single precision, and by plain inverses."""
_MAX_KEPT_STEPS = {"user": 16, "example": 32}
"""Steps of real peers, whose messages are all kept until the end, and of private runs, each of
which has one seed.
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
    """Attacks the messages of an engine under this plan's noise, as each adversary.

    Canaries have the length that measures best, over some of the plan's steps. What attacks prove
    is compared with what the accountant claims for exactly that. The claim is linear in the length
    of canaries, and composes over steps without loss.

    Args:
        plan: The plan under audit.
        engine: Whose messages; None takes `Vectorised()`. `Vectorised()` and `ProcessGroup()` with
            a seed are simulations: only the distribution of their noise is attacked.
            `Vectorised(seed=None)` and `Peers()` are private: their keys, and the last bits of
            their messages, are tested too.
        delta: Where epsilons are compared; None takes the plan's, or 1e-5.
        canaries: More bring the proof closer to the truth; None takes 120,000, or 80,000 examples,
            or as many as fit in memory.
        steps: How many of the plan's steps to run; None takes as many as run in some seconds.
        confidence: Probability with which a correct engine passes.
        seed: Of the canaries, and of simulated noise.

    Returns:
        What was claimed and what was measured. Of the processes of a group the first has the audit;
        the others measured nothing, so theirs has not passed.

    Raises:
        InputError: If the plan makes no claim that can be measured, or an argument is out of range.

    Guarantee: if noise and clipping are as planned, the audit fails with a probability of at most 1
    - confidence.
    """
    began = time.monotonic()
    _check(plan, steps, confidence)
    canaries = _canary_count(plan, canaries)
    if delta is None:
        delta = 1e-5 if plan.budget is None else plan.budget.delta
    sources, unit = message_sources(engine or Vectorised(), plan), plan.exposure.unit
    if steps is None:
        fitting = max(8, _MAX_SENT // (plan.topology.users * canaries))
        steps = 64 if unit == "example" else fitting
        # all messages of such a source are kept until the end of a run
        if sources[0].max_canaries is None:
            steps = min(steps, _MAX_KEPT_STEPS[unit])
    steps = min(steps, plan.exposure.steps)
    audit_source = audit_users if unit == "user" else audit_examples
    # sources share the error
    error, findings = (1 - confidence) / len(sources), []
    for k, source in enumerate(sources):
        with closing(source), progress.share(k / len(sources), (k + 1) / len(sources)):
            findings.append(audit_source(source, plan, canaries, steps, error, seed))
    seconds = round(time.monotonic() - began, 2)
    return Audit(plan, delta, steps, canaries, confidence, tuple(findings), seconds)


def message_sources(
    engine: Vectorised | ProcessGroup | Peers, plan: NoisePlan
) -> list[MessageSource]:
    """All ways in which an engine makes this plan's noise.

    Vectorised draws noise by a root of its covariance: one for small models and, on some graphs,
    another for large ones. On demand, and always on a GPU, it draws edge by edge. A private run
    draws on the grid.
    """
    # complete graphs beyond the limit are never drawn edge by edge
    complete = is_complete(plan.topology) and plan.topology.users > DENSE_LIMIT
    by_edges = plan.topology.edge_count > 0 and not complete
    if isinstance(engine, ProcessGroup):
        if engine.seed is None:
            raise InputError(
                "a private run of several processes cannot be audited: no process knows the noise "
                "of all; audit Vectorised(seed=None), which draws the same noise, or Peers()"
            )
        return [SimulatedSource(engine, "process-group", by_edges)]
    if not isinstance(engine, Vectorised):
        from .peer_source import PeerSource  # the simulator needs no TLS

        return [PeerSource(engine)]
    if engine.seed is None:
        from .private_run_source import PrivateSource  # simulations need no cipher

        return [PrivateSource(engine)]
    if engine.noise is not None and not isinstance(engine.noise, str):
        raise InputError("a custom noise source cannot be audited; audit the engine without it")
    edges = SimulatedSource(replace(engine, noise="edges"), "vectorised, edge by edge", True)
    if by_edges and (engine.noise is not None or engine.device != "cpu"):
        return [edges]
    plain = replace(engine, noise=None)
    sources: list[MessageSource] = [SimulatedSource(plain, "vectorised", False, SMALL_MODEL)]
    # large models may take another root, and need to be audited on their own
    differs = sharing_key(plan, SMALL_MODEL) != sharing_key(plan, LARGE_MODEL)
    if plan.exposure.unit == "user" and differs:
        sources.append(SimulatedSource(plain, "vectorised, large models", False))
    return [*sources, edges] if by_edges else sources


def _canary_count(plan: NoisePlan, count: int | None) -> int:
    """The count that the caller gave, or the default; an error if it does not fit in memory."""
    users, edges = plan.topology.users, plan.topology.edge_count
    fit = _MAX_VALUES // (users + edges)
    if fit < _LEAST_CANARIES:
        raise InputError(
            f"a graph of {users:,} users and {edges:,} edges is too large to audit; audit a "
            "smaller one of its kind, whose noise is made in the same way"
        )
    if count is None:
        return min(_DEFAULT_CANARIES[plan.exposure.unit], fit)
    if not _LEAST_CANARIES <= count <= fit:
        raise InputError(
            f"an audit of this graph takes {_LEAST_CANARIES:,} to {fit:,} canaries, not {count:,}"
        )
    return count


def _check(plan: NoisePlan, steps: int | None, confidence: float) -> None:
    if not isinstance(plan, NoisePlan):
        raise InputError(f"plan must be a NoisePlan, such as decor.calibrate() makes, not {plan!r}")
    if plan.adversary.average_only:
        raise InputError(
            "central DP trusts a server with the messages, so there is nothing to attack; audit a "
            "plan of DECOR"
        )
    # nan is refused too
    if not plan.least_sigma_cdp > 0:
        raise InputError(
            "a plan without sigma_cdp claims nothing: the sum of all messages has no noise"
        )
    largest = max(np.max(plan.sigma_cor, initial=0.0), np.max(plan.sigma_cdp))
    if largest > _MAX_RATIO * plan.least_sigma_cdp:
        raise InputError(
            f"an edge or a user has more than {_MAX_RATIO:,.0f} times the noise of another user, "
            "too much for the digits of a message; plan with a smaller ratio"
        )
    if not 0.5 <= confidence < 1:
        raise InputError(
            f"confidence must be from 0.5 to less than 1, such as 0.9999, not {confidence!r}"
        )
    if steps is not None and steps < 2:
        raise InputError(
            f"an audit takes at least 2 steps, not {steps!r}: noise may be reused in the second"
        )
