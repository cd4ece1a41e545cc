"""The two ends between which DECOR lies: local DP, and central DP with a curator who is trusted."""

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

    Arguments as of `calibrate`.
    """
    return calibrate(
        topology,
        exposure,
        Adversary.everyone(),
        budget,
        ratio=0.0,
        method=method,
        any_delta=any_delta,
    )


def central(
    topology: Topology,
    exposure: Exposure,
    budget: Budget,
    method: Method = "exact",
    *,
    any_delta: bool = False,
) -> NoisePlan:
    """CDP: the noise of n users together protects the average of their messages, and nothing else.

    The guarantee holds against somebody who sees that average alone; it is not SecLDP and never
    says so. Asked about any adversary of the paper (`plan.guarantee(adversary=...)`), the plan
    answers with local DP's large epsilon. Arguments as of `calibrate`.
    """
    curator = Adversary(0, average_only=True)
    return calibrate(
        topology, exposure, curator, budget, ratio=0.0, method=method, any_delta=any_delta
    )
