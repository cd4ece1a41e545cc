"""Steps whose shift is the size of a Poisson batch: against sums over all sizes, and simulation."""

import math

import mpmath
import numpy as np
import pytest
from oracles import true_delta
from scipy.stats import binom

from decor.privacy.loss import batch_sizes, gaussian
from decor.privacy.loss.batch_sizes import SizedSteps

CASES = [
    # mu^2 of other steps, weight, b, m, steps; how far above the truth epsilon may be
    (0.0, 0.01, 1, 10, 1, 1.25),
    (0.2, 0.02, 2, 50, 10, 1.06),
    (0.0, 0.01, 4, 8, 1, 1.06),
    (0.0, 0.001, 8, 100, 20, 1.02),
    (1.0, 0.0005, 8, 9, 20, 1.01),
    (0.0, 4.0, 1, 10, 3, 1.2),
]


def law(b, m, steps):
    """The distribution of the sum of squared sizes by convolution, but for what is below 1e-28."""
    pmf = binom.pmf(np.arange(m + 1), m, b / m)
    largest = int(np.flatnonzero(pmf > 1e-30)[-1])
    one = np.zeros(largest**2 + 1)
    one[np.arange(largest + 1) ** 2] = pmf[: largest + 1]
    total = np.ones(1)
    for _ in range(steps):
        total = np.convolve(total, one)
        total = total[: np.flatnonzero(total > 1e-28)[-1] + 1]
    return total


def exact_delta(epsilon, mu_squared, weight, probability):
    occurs = np.flatnonzero(probability > 1e-25)
    values = []
    for squares in occurs.tolist():
        mu = math.sqrt(mu_squared + weight * squares)
        if mu == 0:
            continue
        x = epsilon / mu - mu / 2
        log = gaussian.log_delta(epsilon, mu) if x > -8 else 0.0
        values.append(probability[squares] * math.exp(log))
    return math.fsum(values)


def exact_epsilon(delta, *case):
    low, high = 0.0, 1e4
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if exact_delta(middle, *case) > delta else (low, middle)
    return low


@pytest.mark.parametrize(("other", "weight", "b", "m", "steps", "most"), CASES)
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-9])
def test_epsilon_is_not_below_the_sum_over_all_sizes(other, weight, b, m, steps, most, delta):
    probability = law(b, m, steps)
    phases = [SizedSteps(weight, b, (m,), steps)]
    ours = batch_sizes.epsilon(phases, other, delta)
    truth = exact_epsilon(delta, other, weight, probability)
    assert truth <= ours
    assert delta > 1e-4 or ours <= most * truth
    at = batch_sizes.delta(phases, other, truth)
    assert delta * (1 - 1e-4) <= at <= 30 * delta


def test_one_step_against_arbitrary_precision():
    b, m, weight, epsilon = 2, 7, 0.09, 1.5
    truth = mpmath.mpf(0)
    for size in range(1, m + 1):
        p = mpmath.binomial(m, size) * mpmath.mpf(b) ** size * mpmath.mpf(m - b) ** (m - size)
        truth += p / mpmath.mpf(m) ** m * true_delta(epsilon, math.sqrt(weight) * size)
    ours = batch_sizes.delta([SizedSteps(weight, b, (m,), 1)], 0.0, epsilon)
    assert truth <= ours <= 4 * truth


def test_a_large_run_against_simulation():
    b, m, steps, weight = 64, 3750, 200, 2e-6
    sizes = np.random.default_rng(0).binomial(m, b / m, size=(20_000, steps)).astype(float)
    squares = (sizes**2).sum(axis=1)
    ours = batch_sizes.epsilon([SizedSteps(weight, b, (m,), steps)], 0.0, 1e-5)
    deltas = np.exp(gaussian.log_delta(ours, np.sqrt(weight * squares)))
    error = deltas.std() / math.sqrt(len(deltas))
    # the sizes cost about one percent, and the bound next to nothing of that
    assert deltas.mean() - 4 * error <= 1e-5 <= 1.05 * deltas.mean()
    fixed = float(gaussian.epsilon(math.sqrt(weight * steps) * b, 1e-5))
    assert 1.003 * fixed < ours < 1.03 * fixed


def test_the_mean_size_alone_would_understate():
    phases, delta = [SizedSteps(0.02, 2, (50,), 10)], 1e-5
    mean = float(gaussian.epsilon(math.sqrt(phases[0].mean), delta))
    truth = exact_epsilon(delta, 0.0, 0.02, law(2, 50, 10))
    assert mean < 0.9 * truth < truth <= batch_sizes.epsilon(phases, 0.0, delta)


def test_without_sampling_it_is_the_gaussian():
    ours = batch_sizes.epsilon([SizedSteps(1e-3, 5, (5,), 12)], 0.1, 1e-5)
    truth = float(gaussian.epsilon(math.sqrt(0.1 + 12 * 25e-3), 1e-5))
    assert truth <= ours <= truth * (1 + 1e-5)


def test_phases_add_up_and_the_worst_number_of_examples_counts():
    one, two = SizedSteps(1e-3, 4, (30,), 10), SizedSteps(1e-3, 4, (30,), 20)
    assert batch_sizes.epsilon([one, one], 0.0, 1e-5) == pytest.approx(
        batch_sizes.epsilon([two], 0.0, 1e-5), rel=1e-5
    )
    apart = [batch_sizes.epsilon([SizedSteps(1e-3, 4, (m,), 10)], 0.0, 1e-5) for m in (5, 9, 400)]
    unknown = batch_sizes.epsilon([SizedSteps(1e-3, 4, (5, 9, 400), 10)], 0.0, 1e-5)
    assert max(apart) * (1 - 1e-6) <= unknown <= max(apart) * 1.001


@pytest.mark.parametrize("weight", [1e-14, 1e-8, 1.0, 1e4])
def test_extremes_stay_bounds(weight):
    phases = [SizedSteps(weight, 3, (40,), 7)]
    value = batch_sizes.epsilon(phases, 0.0, 1e-6)
    least = float(gaussian.epsilon(math.sqrt(weight * 7 * 9), 1e-6))
    assert least <= value < math.inf
    assert batch_sizes.delta(phases, 0.0, value) <= 1.001e-6
