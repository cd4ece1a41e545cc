import math

import pytest

import decor
from decor import Adversary, Budget, Exposure, baselines, calibrate
from decor.privacy.loss import gaussian

BUDGET, EXPOSURE = Budget(3.0, 1e-5), Exposure(1.0, 1000)
EAVESDROPPER = Adversary.eavesdropper()


def test_baselines_are_the_two_ends_and_central_dp_never_passes_for_secldp():
    topology = decor.ring(16)
    local, central = (
        baselines.local(topology, EXPOSURE, BUDGET),
        baselines.central(topology, EXPOSURE, BUDGET),
    )
    assert local.sigma_cdp == pytest.approx(
        2 * math.sqrt(1000) / gaussian.mu(3.0, BUDGET.accounted.delta)
    )
    assert central.sigma_cdp == pytest.approx(local.sigma_cdp / 4)
    assert local.guarantee().epsilon <= 3.0 and central.guarantee().epsilon <= 3.0
    for adversary in ("eavesdropper", "curious", "everyone"):
        assert local.guarantee(adversary=Adversary.parse(adversary)).epsilon <= 3.0
        assert central.guarantee(adversary=Adversary.parse(adversary)).epsilon > 10
    said = str(central.guarantee())
    assert (
        "central DP, not SecLDP" in said
        and "nothing but the average" in said
        and "says nothing about the messages" in said
    )
    for x in (0.0, 1.0, 1e3, 1e9):
        s = calibrate(topology, EXPOSURE, EAVESDROPPER, BUDGET, ratio=x).sigma_cdp
        assert central.sigma_cdp * (1 - 1e-9) <= s <= local.sigma_cdp * (1 + 1e-9)


def test_central_dp_spends_its_whole_budget_on_the_average():
    for topology in (decor.ring(16), decor.star(5)):
        central = baselines.central(topology, EXPOSURE, BUDGET)
        assert 3.0 * (1 - 1e-6) < central.guarantee(BUDGET.accounted.delta).epsilon <= 3.0
