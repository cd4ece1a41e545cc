"""Datasets that come with scikit-learn: no file, no download."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from decor.arrays import Floats, Ints
from decor.errors import InputError

Arrays = tuple[Floats, Ints]


def breast_cancer() -> Arrays:
    """569 tumours, 30 measurements each as published; label 0 is malignant, 1 benign."""
    return _table("breast_cancer.csv", skiprows=1)


def digits() -> Arrays:
    """1,797 written digits of 8x8 pixels between 0 and 1, and which digit each is."""
    X, y = _table("digits.csv.gz", skiprows=0)
    return X / 16, y


def _table(name: str, skiprows: int) -> Arrays:
    """Features and labels (the last column) of a file of scikit-learn's, which is not imported:
    that takes a second.
    """
    try:
        found = find_spec("sklearn")
    except ValueError:
        found = None
    if found is None or found.origin is None:
        raise InputError(
            "breast_cancer and digits come with scikit-learn, which is not "
            "installed: pip install scikit-learn"
        )
    table = np.loadtxt(
        Path(found.origin).parent / "datasets" / "data" / name, delimiter=",", skiprows=skiprows
    )
    return table[:, :-1], table[:, -1].astype(np.int64)
