"""Datasets that come with scikit-learn, so that nothing is downloaded."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from decor.array_types import Floats, Ints
from decor.errors import InputError

Arrays = tuple[Floats, Ints]


def breast_cancer() -> Arrays:
    """569 tumours with 30 measurements each, as published; label 0 is malignant, 1 benign."""
    return _table("breast_cancer.csv", skiprows=1)


def digits() -> Arrays:
    """1,797 handwritten digits of 8x8 pixels between 0 and 1, and which digit each is."""
    X, y = _table("digits.csv.gz", skiprows=0)
    return X / 16, y


def _table(name: str, skiprows: int) -> Arrays:
    """Features and labels (the last column) of one of scikit-learn's files."""
    # scikit-learn is located but not imported, which would take a second
    try:
        sklearn = find_spec("sklearn")
    # raised if sys.modules holds None, or a module without a spec
    except ValueError:
        sklearn = None
    if sklearn is None or sklearn.origin is None:
        raise InputError(
            "breast_cancer and digits come with scikit-learn, which is not installed: "
            "pip install scikit-learn"
        )
    path = Path(sklearn.origin).parent / "datasets" / "data" / name
    table = np.loadtxt(path, delimiter=",", skiprows=skiprows)
    return table[:, :-1], table[:, -1].astype(np.int64)
