"""The checks of the noise accept what is right, and refuse what is not, on both sides."""

import numpy as np
import pytest

from decor.auditing.noise_law import CoordinateLaw, NoiseLaw

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
    rng, law = np.random.default_rng(seed), NoiseLaw(SIGMA)
    for step in range(STEPS):
        law.add(make(rng, step))
    return {check.name for check in law.checks(LEAST) if not check.passed}


def right(rng, step=0, columns=COLUMNS):
    return S * rng.normal(size=(USERS, columns)) + K @ (C * rng.normal(size=(USERS, columns)))


def test_few_numbers_are_not_called_another_shape_by_chance():
    """With 1,500 numbers a tail of one in 10,000 has none or some, and no chi-square's law."""
    rng, found = np.random.default_rng(3), []
    for _ in range(4000):
        law = NoiseLaw(np.eye(2))
        for _ in range(2):
            law.add(rng.normal(size=(2, 750)))
        found.append(law._shape(LEAST).probability)
    # 4 are expected at most; by chi-square's law alone there are some 40
    assert sum(p < 1e-3 for p in found) <= 12


def test_what_is_not_a_number_never_passes():
    def once(rng, step):
        noise = right(rng)
        noise[0, 7] = np.nan
        return noise

    assert failed(once) >= {
        "covariance",
        "memory",
        "coordinates",
        "all coordinates",
        "sum of users",
    }


@pytest.mark.parametrize("fault", ["no noise", "no noise of their own"])
def test_one_coordinate_without_noise_is_seen_among_many(fault):
    def seen(wrong):
        rng, every = np.random.default_rng(0), CoordinateLaw(SIGMA, S)
        for _ in range(STEPS):
            own, edges = (
                S * rng.normal(size=(USERS, COLUMNS)),
                K @ (C * rng.normal(size=(USERS, COLUMNS))),
            )
            if wrong:
                own[:, -1] = 0
                edges[:, -1] *= fault == "no noise of their own"
            every.add(own + edges)
        return every.check(LEAST).passed

    assert seen(False) and not seen(True)


def test_right_noise_passes_with_every_seed():
    assert [failed(right, seed) for seed in range(20)] == [set()] * 20


@pytest.mark.parametrize("factor", [0.97, 1.03])
def test_noise_of_another_size_is_detected_on_both_sides(factor):
    assert {"covariance", "sum of users"} <= failed(lambda rng, step: factor * right(rng))


@pytest.mark.parametrize("factor", [2 / 3, 3 / 2])
def test_edges_of_another_size_are_detected_although_the_sum_is_right(factor):
    found = failed(
        lambda rng, step: (
            S * rng.normal(size=(USERS, COLUMNS))
            + K @ (factor * C * rng.normal(size=(USERS, COLUMNS)))
        )
    )
    assert "covariance" in found and "sum of users" not in found


def test_edges_that_do_not_cancel_are_detected():
    assert "sum of users" in failed(
        lambda rng, step: (
            S * rng.normal(size=(5, COLUMNS)) + abs(K) @ (C * rng.normal(size=(5, COLUMNS)))
        )
    )


def test_noise_that_is_used_again_is_detected_whenever_it_comes_back():
    kept = right(np.random.default_rng(7))
    assert {"next step", "memory"} <= failed(lambda rng, step: kept + 1e-9 * step)
    first = [right(np.random.default_rng(step)) for step in range(5)]
    found = failed(lambda rng, step: first[step % 5])
    assert "memory" in found and "next step" not in found


def test_coordinates_that_share_noise_are_detected():
    assert "coordinates" in failed(
        lambda rng, step: np.repeat(right(rng, columns=COLUMNS // 2), 2, axis=1)
    )
    assert "all coordinates" in failed(
        lambda rng, step: np.tile(right(rng, columns=COLUMNS // 50), 50)
    )


def test_noise_that_is_not_gaussian_is_detected_although_its_covariance_is_right():
    def uniform(rng, step):
        flat = lambda *shape: np.sqrt(12) * (rng.random(shape) - 0.5)  # noqa: E731
        return S * flat(USERS, COLUMNS) + K @ (C * rng.normal(size=(USERS, COLUMNS)))

    assert failed(uniform) == {"shape"}


def test_noise_that_is_rounded_coarsely_is_detected():
    assert "shape" in failed(lambda rng, step: np.rint(right(rng)))
