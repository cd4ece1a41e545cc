"""The data sets that come with scikit-learn."""

import numpy as np
import pytest

from decor.errors import InputError
from decor.learning.datasets import scikit_learn_files


def test_they_hold_what_they_are_known_to_hold():
    X, y = scikit_learn_files.breast_cancer()
    assert X.shape == (569, 30) and np.bincount(y).tolist() == [212, 357], (
        "212 malignant, 357 benign"
    )
    X, y = scikit_learn_files.digits()
    assert X.shape == (1797, 64) and X.min() == 0 and X.max() == 1 and set(y) == set(range(10))


def test_without_scikit_learn_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sklearn", None)
    with pytest.raises(InputError, match="pip install scikit-learn"):
        scikit_learn_files.digits()
