"""Kernels on whole models against the same in NumPy."""

import numpy as np
import pytest

from decor.federation.vector_kernels import LARGEST, descend, is_bounded, pull_towards

DTYPES = [np.float32, np.float64]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_step_is_that_of_numpy_in_the_models_dtype(dtype):
    rng = np.random.default_rng(0)
    model, direction = rng.normal(size=50).astype(dtype), rng.normal(size=50)
    moved, fine = descend(model, direction, 0.1, 0.9)
    assert moved.dtype == dtype and fine
    np.testing.assert_allclose(
        moved, (0.9 * model.astype(np.float64) - 0.1 * direction).astype(dtype)
    )


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1.1 * LARGEST, -1.1 * LARGEST])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_model_with_one_parameter_out_of_bounds_is_refused(dtype, value):
    model = np.zeros(9, dtype)
    assert is_bounded(model) and descend(model, model, 1.0, 1.0)[1]
    model[7] = value
    assert not is_bounded(model) and not descend(model, np.zeros(9), 1.0, 1.0)[1]


@pytest.mark.parametrize("dtype", DTYPES)
def test_equal_models_stay_as_they_are_whatever_the_weight(dtype):
    now = np.array([0.1, 1e17, -3.7], dtype)
    mixed = now.copy()
    pull_towards(mixed, now, now.copy(), 0.3)
    assert np.array_equal(mixed, now)
    pull_towards(mixed, now, np.zeros(3, dtype), 0.5)
    np.testing.assert_allclose(mixed, 0.5 * now, rtol=1e-6)
