"""The two baselines of DECOR: local DP, and central DP with a trusted curator."""

from __future__ import annotations

from decor.choices import Method
from decor.graph.topology import Topology

from .adversary import Adversary
from .budget import Budget, Exposure
from .calibrate import calibrate
from .plan import NoisePlan


def local(
    topology: Topology,
    exposure: Exposure,
    budget: Budget,
    method: Method = "exact",
    *,
    any_delta: bool = False,
) -> NoisePlan:
    """LDP: independent noise alone, enough even if every secret is known.

    Args:
        topology: The graph of the users; its edges do not matter here.
        exposure: What one run does with private data.
        budget: The (epsilon, delta) to spend.
        method: "exact", or "paper" for the paper's looser conversion.
        any_delta: Accepts a delta that `calibrate` refuses as too large.
    """
    everyone = Adversary.everyone()
    return calibrate(
        topology, exposure, everyone, budget, ratio=0.0, method=method, any_delta=any_delta
    )


def central(
    topology: Topology,
    exposure: Exposure,
    budget: Budget,
    method: Method = "exact",
    *,
    any_delta: bool = False,
) -> NoisePlan:
    """CDP: the noise of all users together protects the average of their messages, nothing else.

    Args:
        topology: The graph of the users; its edges do not matter here.
        exposure: What one run does with private data.
        budget: The (epsilon, delta) to spend.
        method: "exact", or "paper" for the paper's looser conversion.
        any_delta: Accepts a delta that `calibrate` refuses as too large.

    Guarantee: holds against an observer of the average alone. It is not SecLDP and never says so:
    against an adversary of the paper (`plan.guarantee(adversary=...)`) the plan reports the large
    epsilon of local DP.
    """
    curator = Adversary(0, average_only=True)
    return calibrate(
        topology, exposure, curator, budget, ratio=0.0, method=method, any_delta=any_delta
    )
