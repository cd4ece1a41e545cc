"""The grid of a plan is made for the shift of one protected unit, and for no more."""

import math
from fractions import Fraction

import pytest

import decor
from decor.noise.integer_gaussians import COARSE, FINE
from decor.training.release_grid import grid_of

CLIP, BATCH, WIDE = 0.7, 10, 50_000
SHIFTS = {
    ("user", None, None): 2 * CLIP,
    ("example", "poisson", "add-remove"): CLIP / BATCH,
    ("example", "poisson", "replace"): CLIP / BATCH,
    ("example", "fixed", "replace"): 2 * CLIP / BATCH,
}


def plan_of(unit, sampling, relation):
    example = {
        "unit": unit,
        "batch_size": BATCH,
        "records": 400,
        "sampling": sampling,
        "relation": relation,
    }
    exposure = decor.Exposure(CLIP, 50, **(example if unit == "example" else {}))
    return decor.NoisePlan(
        decor.ring(5),
        exposure,
        decor.Adversary.curious(),
        0.4 * SHIFTS[unit, sampling, relation],
        0.3,
    )


@pytest.mark.parametrize("kind", SHIFTS, ids=str)
def test_the_noise_hides_a_shift_with_its_rounding_as_well_as_the_plans_hides_the_shift(kind):
    """Rounding moves a gradient by less than one grid step per coordinate.

    So (shift + sqrt(d) unit) / own = shift / sigma, to six digits. A grid made for twice the shift
    has a finer step, and hides rounding half as well as it says.
    """
    plan, shift = plan_of(*kind), SHIFTS[kind]
    unit = Fraction(grid_of(plan, WIDE).unit)
    own = unit * Fraction(math.sqrt(FINE**2 * (1 + COARSE**2 + COARSE**4)))
    moved = Fraction(shift) + unit * Fraction(math.sqrt(WIDE))
    planned, found = Fraction(plan.sigma_cdp) / Fraction(shift), own / moved
    assert found >= planned * (1 - Fraction(1, 10**12)), "less noise than planned"
    # the step is rounded up to 24 bits, and roundings are taken a part in 2^14 larger than they are
    share = float(unit * Fraction(math.sqrt(WIDE)) / Fraction(shift))
    assert share > 1e-4 and float(found / planned) - 1 < 2.0**-13 * share + 2.0**-22
