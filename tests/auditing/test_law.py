"""The checks of the noise accept what is right, and refuse what is not, on both sides."""

import numpy as np
import pytest

from decor.auditing.law import Law

USERS, COLUMNS, STEPS, LEAST = 5, 3000, 12, 1e-5
S, C = 1.0, 4.0


def incidence():
    K = np.zeros((USERS, USERS))
    for e in range(USERS):
        K[e, e], K[(e + 1) % USERS, e] = 1, -1
    return K


K = incidence()
SIGMA = S**2 * np.eye(USERS) + C**2 * K @ K.T


def failed(make, seed=0):
    """Names of the checks that fail for noise `make(rng, step)`."""
    rng, law = np.random.default_rng(seed), Law(SIGMA)
    for step in range(STEPS):
        law.see(make(rng, step))
    return {check.name for check in law.checks(LEAST) if not check.passed}


def right(rng, step=0, columns=COLUMNS):
    return S * rng.normal(size=(USERS, columns)) + K @ (C * rng.normal(size=(USERS, columns)))


def test_right_noise_passes_with_every_seed():
    assert [failed(right, seed) for seed in range(20)] == [set()] * 20


@pytest.mark.parametrize("factor", [0.97, 1.03])
def test_noise_of_another_size_is_noticed_on_both_sides(factor):
    assert {"covariance", "sum of users"} <= failed(lambda rng, step: factor * right(rng))


@pytest.mark.parametrize("factor", [2 / 3, 3 / 2])
def test_edges_of_another_size_are_noticed_although_the_sum_is_right(factor):
    found = failed(lambda rng, step: S * rng.normal(size=(USERS, COLUMNS)) + K @ (factor * C * rng.normal(size=(USERS, COLUMNS))))
    assert "covariance" in found and "sum of users" not in found


def test_edges_that_do_not_cancel_are_noticed():
    assert "sum of users" in failed(
        lambda rng, step: S * rng.normal(size=(5, COLUMNS)) + abs(K) @ (C * rng.normal(size=(5, COLUMNS)))
    )


def test_noise_that_is_used_again_is_noticed_whenever_it_comes_back():
    kept = right(np.random.default_rng(7))
    assert {"next step", "memory"} <= failed(lambda rng, step: kept + 1e-9 * step)
    first = [right(np.random.default_rng(step)) for step in range(5)]
    found = failed(lambda rng, step: first[step % 5])
    assert "memory" in found and "next step" not in found


def test_coordinates_that_share_noise_are_noticed():
    assert "coordinates" in failed(lambda rng, step: np.repeat(right(rng, columns=COLUMNS // 2), 2, axis=1))
    assert "all coordinates" in failed(lambda rng, step: np.tile(right(rng, columns=COLUMNS // 50), 50))


def test_noise_that_is_not_gaussian_is_noticed_although_its_covariance_is_right():
    def uniform(rng, step):
        flat = lambda *shape: np.sqrt(12) * (rng.random(shape) - 0.5)  # noqa: E731
        return S * flat(USERS, COLUMNS) + K @ (C * rng.normal(size=(USERS, COLUMNS)))

    assert failed(uniform) == {"shape"}


def test_noise_that_is_rounded_coarsely_is_noticed():
    assert "shape" in failed(lambda rng, step: np.rint(right(rng)))
