import numpy as np
import pytest

import decor
from decor import Adversary, Budget, Exposure, calibrate, couples
from decor.errors import InputError

BUDGET, EXPOSURE = Budget(3.0, 1e-5), Exposure(1.0, 1000)
EAVESDROPPER, CURIOUS = Adversary.eavesdropper(), Adversary.curious()


def test_every_noise_pair_of_the_curve_spends_the_whole_budget_and_no_more():
    for topology in (
        decor.ring(10),
        decor.grid(2, 5),
        decor.from_edges(6, [(0, 1), (1, 2), (0, 2), (3, 4), (4, 5), (3, 5)]),
    ):
        for adversary in (EAVESDROPPER, CURIOUS):
            curve = couples(topology, EXPOSURE, adversary, BUDGET)
            assert (np.diff(curve.sigma_cdp) <= 0).all() and (np.diff(curve.sigma_cor) > 0).all()
            for s, c in zip(curve.sigma_cdp[::4], curve.sigma_cor[::4], strict=True):
                epsilon = (
                    decor.NoisePlan(topology, EXPOSURE, adversary, s, c)
                    .guarantee(BUDGET.accounted.delta)
                    .epsilon
                )
                assert 3.0 * (1 - 1e-7) <= epsilon <= 3.0 * (1 + 1e-11)
    plan = calibrate(decor.ring(10), EXPOSURE, CURIOUS, BUDGET)
    assert np.allclose(
        plan.couples([7.0]).sigma_cdp,
        couples(decor.ring(10), EXPOSURE, CURIOUS, BUDGET, [7.0]).sigma_cdp,
    )
    with pytest.raises(InputError, match="numbers from 0"):
        plan.couples([-1.0])


def test_ten_thousand_noise_pairs_are_the_single_ones():
    for topology in (decor.ring(16), decor.random_regular(16, 4), decor.star(9)):
        many = couples(topology, EXPOSURE, EAVESDROPPER, BUDGET, np.geomspace(1e-2, 1e6, 10_000))
        for k in (0, 5000, 9999):
            one = calibrate(topology, EXPOSURE, EAVESDROPPER, BUDGET, ratio=float(many.ratio[k]))
            assert many.sigma_cdp[k] == pytest.approx(one.sigma_cdp, rel=1e-8)
            assert many.sigma_cdp[k] >= one.sigma_cdp * (1 - 2e-12)
