import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import true_delta

from decor.errors import BudgetError
from decor.privacy.loss import gaussian

EPSILONS = [1e-4, 1e-2, 0.1, 1.0, 3.0, 10.0, 100.0, 1e3, 1e4]
DELTAS = [1e-30, 1e-15, 1e-5, 1e-2, 0.5, 0.9, 0.999]


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_epsilon_is_never_below_the_truth_and_mu_never_above(epsilon, delta):
    mu = gaussian.mu(epsilon, delta)
    again = float(gaussian.epsilon(mu, delta))
    assert again <= epsilon
    assert true_delta(again, mu) <= delta, "what is reported suffices"
    assert true_delta(again * (1 - 1e-10) - 1e-11, mu) > delta, "and nothing smaller does"
    assert true_delta(epsilon, mu * (1 + 1e-9 + 1e-12 / epsilon)) > delta, (
        "a larger mu would break the budget"
    )


def test_log_delta_is_the_definition():
    for epsilon, mu in [(0.1, 0.05), (1.0, 0.3), (3.0, 1.0), (50.0, 6.0), (1e4, 120.0)]:
        expected = mpmath.log(true_delta(epsilon, mu))
        assert float(gaussian.log_delta(epsilon, mu)) == pytest.approx(float(expected), abs=1e-8)


@given(st.floats(1e-7, 50), st.sampled_from(DELTAS))
def test_arrays_and_numbers_are_converted_alike(mu, delta):
    alone = float(gaussian.epsilon(mu, delta))
    among = gaussian.epsilon(np.array([mu, 1.0, mu]), delta)
    assert among[0] == among[2] == pytest.approx(alone, rel=1e-11, abs=1e-12)


@given(st.floats(1e-6, 20), st.floats(1e-6, 20), st.sampled_from(DELTAS))
def test_epsilon_grows_with_mu(a, b, delta):
    low, high = sorted((a, b))
    assert gaussian.epsilon(low, delta) <= gaussian.epsilon(high, delta) * (1 + 1e-10) + 1e-11


def test_the_ends_of_the_range():
    assert gaussian.epsilon(0.0, 1e-5) == 0.0
    assert np.isinf(gaussian.epsilon(np.inf, 1e-5))
    assert gaussian.epsilon([0.0, 1e-300, np.inf], 1e-30).tolist()[::2] == [0.0, np.inf]
    assert 0 < float(gaussian.epsilon(1e-20, 1e-30)) < 2e-6
    with pytest.raises(BudgetError):
        gaussian.epsilon(-1.0, 1e-5)
    with pytest.raises(BudgetError):
        gaussian.epsilon(float("nan"), 1e-5)
    with pytest.raises(BudgetError, match="beyond what can be computed"):
        gaussian.mu(1e-9, 1e-30)


def test_the_exact_noise_is_this_much_less_than_the_papers():
    """Values of the specification: exact over the paper's noise at equal epsilon, delta 1e-5."""
    ratios = [gaussian.paper_mu(e, 1e-5) / gaussian.mu(e, 1e-5) for e in (1, 3, 5, 10, 20, 40)]
    assert [round(r, 3) for r in ratios] == [0.761, 0.819, 0.846, 0.880, 0.911, 0.936]


@given(st.floats(1e-3, 30), st.sampled_from(DELTAS))
def test_the_papers_conversion_is_never_below_exact_and_inverts_itself(mu, delta):
    paper = float(gaussian.paper_epsilon(mu, delta))
    assert paper >= float(gaussian.epsilon(mu, delta)) * (1 - 1e-10) - 2e-6
    assert gaussian.paper_mu(paper, delta) == pytest.approx(mu, rel=1e-9)


def test_dp_accounting_agrees():
    from dp_accounting.pld import privacy_loss_distribution

    for mu, delta in [(0.3, 1e-5), (1.0, 1e-5), (2.0, 1e-3)]:
        oracle = privacy_loss_distribution.from_gaussian_mechanism(
            1 / mu, value_discretization_interval=1e-4
        )
        assert float(gaussian.epsilon(mu, delta)) == pytest.approx(
            oracle.get_epsilon_for_delta(delta), abs=2e-4
        )


@pytest.mark.parametrize("delta", [6e-29, 1e-11, 1.8e-8, 1e-5, 1e-2])
def test_small_mu_is_never_below_the_truth(delta):
    """Found by review: near zero an absolute error of 1e-16 is larger than any relative slack."""
    for mu in np.geomspace(1.1e-7, 1e-3, 40).tolist():
        assert true_delta(float(gaussian.epsilon(mu, delta)), mu) <= delta


def test_large_mu_is_bounded_and_never_nan():
    for mu in (9e5, 1.1e6, 1e16, 1e40, 1e77):
        value = float(gaussian.epsilon(mu, 1e-5))
        assert mu**2 / 2 < value <= mu**2 / 2 * (1 + 1e-4) == pytest.approx(value, rel=1e-4)
        assert gaussian.epsilon(np.array([mu, 1.0]), 1e-5)[0] == pytest.approx(value, rel=1e-12)
    assert gaussian.epsilon(1e200, 1e-5) == np.inf


def test_only_a_mu_that_delta_covers_is_free():
    for delta in (1e-8, 1e-3, 0.1):
        threshold = float(
            mpmath.findroot(lambda m, d=delta: 2 * mpmath.ncdf(m / 2) - 1 - d, delta * 2.5066)
        )
        assert gaussian.epsilon(threshold * 1.0005, delta) > 0
        assert gaussian.epsilon(threshold * 0.9, delta) < 1e-3 * delta + 1e-12


@pytest.mark.parametrize("mu", [1e-9, 1e-6, 1e-3, 0.05, 0.3, 1.0, 6.0, 120.0, 1e5])
@pytest.mark.parametrize("epsilon", [0.0, 1e-4, 0.1, 1.0, 3.0, 50.0, 1e4])
def test_delta_is_never_below_the_truth(epsilon, mu):
    truth, ours = true_delta(epsilon, mu), gaussian.delta(epsilon, mu)
    assert truth <= ours <= 1
    if mu >= 1e-6 and truth > 1e-290:
        assert ours <= truth * (1 + 1e-5)
    assert gaussian.delta(epsilon, 0.0) == 0.0 and gaussian.delta(epsilon, math.inf) == 1.0


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 10.0, 300.0])
def test_tangents_of_log_delta_in_mu_squared_lie_above_it(epsilon):
    points = [0.02, 0.1, 0.5, 2.0, 9.0, 25.0, 600.0]
    for x in points:
        value, slope = gaussian.log_delta_tangent(epsilon, math.sqrt(x))
        for other in [*points, 0.99 * x, 1.01 * x]:
            truth = mpmath.log(true_delta(epsilon, math.sqrt(other)))
            assert truth <= value + slope * (other - x) + 1e-11 * abs(value)
