"""The Rényi bound that the paper cites: the same as dp-accounting's, and never below the truth."""

import dp_accounting
import numpy as np
import pytest
from dp_accounting import rdp
from mpmath import mp
from scipy.optimize import brentq

import decor
from decor.reproductions import renyi

RATE, STEPS, DELTA = 64 / 3750, 1000, 1e-5


def accounted(multiplier, sampling):
    exposure = decor.Exposure(
        clip=1.0, steps=STEPS, unit="example", batch_size=64, records=3750, sampling=sampling
    )
    alone = decor.NoisePlan(
        decor.complete(2), exposure, decor.Adversary.everyone(), multiplier / 64, 0.0
    )
    return alone.guarantee(DELTA).epsilon


@pytest.mark.parametrize("multiplier", [0.3, 1.3, 4.0, 9.0, 30.0])
def test_the_renyi_bound_is_that_of_dp_accounting(multiplier):
    # they count noise in units of the shift, which is two clips
    event = dp_accounting.GaussianDpEvent(multiplier / 2)
    divergence = renyi.step_divergence(multiplier, RATE)
    for order in (2, 3, 4, 9, 30, 127, 128):
        theirs = rdp.RdpAccountant([order], dp_accounting.NeighboringRelation.REPLACE_ONE)
        theirs.compose(dp_accounting.SampledWithoutReplacementDpEvent(3750, 64, event), STEPS)
        ours = rdp.compute_epsilon([order], STEPS * divergence[renyi.ORDERS == order], DELTA)[0]
        assert ours == pytest.approx(theirs.get_epsilon(DELTA), rel=1e-9)


def test_even_moments_keep_their_digits_when_there_is_much_noise():
    """Against the alternating sum in high precision, which in double precision would be all
    rounding.
    """
    shift, count = 2 / 50, 20
    with mp.workdps(120):
        exact = [
            mp.log(
                mp.fsum(
                    (-1) ** i
                    * mp.binomial(k, i)
                    * mp.exp(mp.mpf(i * (i - 1)) * mp.mpf(shift) ** 2 / 2)
                    for i in range(k + 1)
                )
            )
            for k in range(2, 2 * count + 1, 2)
        ]
    np.testing.assert_allclose(
        renyi._even_moments(shift, count), [float(e) for e in exact], rtol=1e-10
    )


def test_orders_never_overflow():
    assert np.isfinite(renyi.step_divergence(0.01, RATE)).all()
    assert np.isfinite(renyi.step_divergence(1e6, RATE)).all()


def test_the_renyi_bound_needs_the_known_noise():
    """9.0 at epsilon 1 with today's conversion from Rényi divergence, and 10.9 with the paper's."""

    def today(z):
        return rdp.compute_epsilon(renyi.ORDERS, STEPS * renyi.step_divergence(z, RATE), DELTA)[0]

    assert brentq(lambda z: today(z) - 1, 2, 40) == pytest.approx(9.0, abs=0.01)
    assert brentq(lambda z: renyi.epsilon(z, RATE, STEPS, DELTA)[0] - 1, 2, 40) == pytest.approx(
        10.88, abs=0.01
    )


def test_the_renyi_bound_is_never_below_what_it_bounds():
    for multiplier in np.geomspace(0.3, 40, 15):
        assert renyi.epsilon(multiplier, RATE, STEPS, DELTA)[0] >= accounted(multiplier, "fixed")
