"""What error counts prove, and the attack that fits its own weights."""

import numpy as np
import pytest
from scipy import stats

from decor.auditing.mu_bound import clopper_pearson, count_errors, fit_linear, measure_mu


def test_the_upper_bound_of_an_error_rate_is_clopper_and_pearsons():
    for wrong, held in ((0, 50), (3, 1000), (999, 1000), (50, 50)):
        exact = stats.binomtest(wrong, held).proportion_ci(1 - 2 * 1e-3, "exact").high
        assert clopper_pearson(wrong, held, 1e-3) == pytest.approx(exact, rel=1e-9)


def test_what_is_proven_is_below_the_truth_and_close_to_it():
    rng = np.random.default_rng(0)
    for mu in (0.5, 3.0, 5.0):
        reached = []
        for _ in range(200):
            present = rng.random(10_000) < 0.5
            score = rng.normal(size=10_000) + mu * (present - 0.5)
            measured, estimated = measure_mu(count_errors(score, present, 0.0), 0.01)
            assert estimated == pytest.approx(mu, rel=0.25)
            reached.append(measured / mu)
        # 2 are expected; 9 or more would be one chance in a thousand
        assert sum(share > 1 for share in reached) <= 8
        assert np.median(reached) > (0.8 if mu < 1 else 0.93)


def test_a_bound_that_is_not_clopper_and_pearsons_would_be_above_the_truth_too_often():
    """The test above sees a bound that forgets chance."""
    rng = np.random.default_rng(1)
    above = 0
    for _ in range(200):
        present = rng.random(10_000) < 0.5
        score = rng.normal(size=10_000) + 3.0 * (present - 0.5)
        above += measure_mu(count_errors(score, present, 0.0), 0.01)[1] > 3.0  # the estimate
    assert above > 50


def test_a_perfect_attack_proves_much_and_a_blind_one_nothing():
    present = np.arange(2000) % 2 == 0
    assert measure_mu(count_errors(present.astype(float), present, 0.5), 1e-3)[0] > 4
    assert measure_mu(count_errors(np.zeros(2000), present, 0.5), 1e-3)[0] == 0
    assert measure_mu(count_errors(-present.astype(float), present, -0.5), 1e-3)[0] == 0


def test_the_fitted_attack_finds_the_best_direction_by_itself():
    rng = np.random.default_rng(2)
    root = rng.normal(size=(5, 5))
    covariance, shift = root @ root.T + 0.1 * np.eye(5), rng.normal(size=5)
    present, trained = rng.random(60_000) < 0.5, rng.random(60_000) < 0.5
    seen = np.linalg.cholesky(covariance) @ rng.normal(size=(5, 60_000)) + shift[
        :, None
    ] * np.where(present, 0.5, -0.5)
    score, threshold = fit_linear(seen, present, trained)
    best = np.sqrt(shift @ np.linalg.solve(covariance, shift))
    measured, _ = measure_mu(count_errors(score[~trained], present[~trained], threshold), 1e-3)
    assert 0.9 * best < measured <= best
