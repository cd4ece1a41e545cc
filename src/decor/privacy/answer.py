"""What is told of a plan: the same answer to whoever asks, by `decor plan` or on the planner's
page.
"""

from __future__ import annotations

import warnings
from typing import Any

from decor.errors import FragileGraphWarning
from decor.graph.gossip import Gossip
from decor.graph.topology import Topology

from . import baselines, theory
from .adversary import Adversary
from .budget import Budget, Exposure
from .calibrate import calibrate
from .guarantee import Guarantee
from .plan import NoisePlan


def calibrated(
    topology: Topology, exposure: Exposure, adversary: Adversary, budget: Budget, **couple: Any
) -> tuple[NoisePlan, list[str]]:
    """`calibrate`, with what it warned of as sentences."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FragileGraphWarning)
        plan = calibrate(topology, exposure, adversary, budget, **couple)
    return plan, [str(warning.message) for warning in caught]


def described(plan: NoisePlan, guarantee: Guarantee, notes: list[str]) -> dict[str, Any]:
    """The plan and its promise as plain values: what `decor plan --json` prints."""
    per_edge = isinstance(plan.sigma_cor, tuple)
    return {
        "sigma_cdp": plan.sigma_cdp,
        "sigma_cor": plan.sigma_cor,
        **({"edges": plan.topology.edges.tolist()} if per_edge else {}),
        "epsilon": guarantee.epsilon,
        "delta": guarantee.delta,
        "expected_failures": guarantee.delta * plan.exposure.units(plan.topology),
        "adversary": str(guarantee.adversary),
        "worst_user": guarantee.worst_user,
        "worst_coalition": list(guarantee.worst_coalition),
        "per_user": _each(plan, guarantee),
        "per_user_epsilon": guarantee.per_user.tolist(),
        "exact": guarantee.exact,
        "users": plan.topology.users,
        **({"labels": list(plan.topology.labels)} if plan.topology.labels is not None else {}),
        "unit": plan.exposure.unit,
        "steps": plan.exposure.steps,
        "clip": plan.exposure.clip,
        "statement": str(guarantee),
        "warnings": notes,
    }


def _each(plan: NoisePlan, guarantee: Guarantee) -> list[dict[str, Any]]:
    """Every user's name, records (example level) and epsilon, in the graph's order."""
    counts = plan.exposure.records_of(plan.topology) if plan.exposure.unit == "example" else None
    found = []
    for user, epsilon in enumerate(guarantee.per_user.tolist()):
        records = {} if counts is None else {"records": counts[user]}
        found.append({"user": plan.topology.name(user), **records, "epsilon": epsilon})
    return found


def relative_error(plan: NoisePlan, gossip: Gossip) -> float:
    """The plan's predicted error over that of central DP with the same budget, from the noise
    alone.
    """
    assert plan.budget is not None
    central = baselines.central(plan.topology, plan.exposure, plan.budget, any_delta=True)
    return theory.predicted_error(plan, gossip) / theory.average_error(central)


def parts(topology: Topology) -> str:
    """What it means that a graph is not connected."""
    return (
        f"The graph has {topology.component_count} parts that never hear of each other: noise "
        "cancels, and models agree, "
        "only within a part. Adding one edge between parts helps everybody in them."
    )


def advice(topology: Topology, vertex: int | None) -> str:
    """Who can isolate somebody; `vertex` is the vertex connectivity, where it is known."""
    if not topology.is_connected:
        return parts(topology)
    least = int(topology.degrees.argmin())
    few = int(topology.degrees[least])
    if topology.users == 1:
        return "One user alone has nobody to share noise with."
    them, together = (
        ("only neighbour", "isolates") if few == 1 else (f"{few} neighbours", "together isolate")
    )
    text = (
        f"The {them} of user {topology.name(least)} {together} it: against "
        f"{Adversary(few).sentence} this is local DP."
    )
    if vertex is not None and vertex < few:
        text += f" Already {vertex} can cut the graph in parts, which weakens it."
    return text
