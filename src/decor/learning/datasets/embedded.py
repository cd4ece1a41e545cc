"""Datasets that come with scikit-learn: no file, no download."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from decor.errors import InputError

Arrays = tuple[NDArray[np.float64], NDArray[np.int64]]


def breast_cancer() -> Arrays:
    """569 tumours, 30 measurements each as published; label 0 is malignant, 1 benign."""
    X, y = _sklearn().load_breast_cancer(return_X_y=True)
    return X.astype(np.float64), y.astype(np.int64)


def digits() -> Arrays:
    """1,797 written digits of 8x8 pixels between 0 and 1, and which digit each is."""
    X, y = _sklearn().load_digits(return_X_y=True)
    return X.astype(np.float64) / 16, y.astype(np.int64)


def _sklearn() -> Any:
    # here, because it takes a second to import and most of the room does without it
    try:
        from sklearn import datasets
    except ImportError:
        raise InputError(
            "breast_cancer and digits come with scikit-learn, which is not installed: pip install scikit-learn"
        ) from None
    return datasets
