"""Ready-made tasks: `least_squares` is made, `breast_cancer` and `digits` come with scikit-learn,
`a9a` and `mnist` are files.

`users` is how many there are, or their names. `shards` says how records are dealt to them: "iid",
"dirichlet" (with `alpha`, 10 unless told) or "by-label".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from decor import checks
from decor.arrays import Array, Ints
from decor.errors import InputError

from . import losses, models
from . import shards as ways
from .datasets import a9a as a9a_files
from .datasets import embedded
from .datasets import mnist as mnist_files
from .datasets.download import download
from .task import Loss, Shard, Task

__all__ = ["NAMES", "a9a", "breast_cancer", "digits", "download", "least_squares", "make", "mnist"]

NAMES = ("least-squares", "breast-cancer", "digits", "a9a", "mnist")

TEST_PART = 0.2
ALPHA = 10.0

Users = int | Sequence[str]
Arrays = tuple[Array, Ints]


def least_squares(users: Users = 16, dimension: int = 10, seed: int = 0) -> Task:
    """The paper's quadratic: user i = 1 ..

    n holds |A_i x - b_i|^2 / 2 with A_i = (i / sqrt n) I and b_i ~ N(0, I / i^2).

    Everybody's data is one record, so a full gradient is a gradient of one record. Starts at ones;
    the optimum is exact for the float32 numbers in the shards, and is given in float64.
    """
    n, d = _count(users), checks.count("dimension", dimension, 1)
    i = np.arange(1, n + 1)
    scale = (i / math.sqrt(n)).astype(np.float32)
    b = (
        np.random.default_rng(checks.count("seed", seed, 0)).standard_normal((n, d)) / i[:, None]
    ).astype(np.float32)
    a64 = scale.astype(np.float64)
    best = a64 @ b.astype(np.float64) / (a64 @ a64)
    A = torch.from_numpy(scale)[:, None, None] * torch.eye(d, dtype=torch.float32)
    shards = list(
        zip(torch.split(A, 1), torch.split(torch.from_numpy(b)[:, :, None], 1), strict=True)
    )
    facts = {
        "source": "made: A_i = (i / sqrt n) I, b_i ~ N(0, I / i^2)",
        "records": n,
        "split": "one record a user",
        "seed": int(seed),
    }
    return Task(
        models.linear(d),
        losses.squared,
        _held(users, shards),
        name="least-squares",
        optimum=torch.tensor(best),
        facts=facts,
    )


def breast_cancer(
    users: Users = 16, seed: int = 0, shards: str = "iid", alpha: float | None = None
) -> Task:
    """Is a tumour malignant (0) or benign (1), from 30 measurements: 569 records that come with
    scikit-learn.

    A fifth of every class, chosen by the seed, is public test data. Features are standardised with
    the mean and deviation of all the training records, which is treated as public knowledge: the
    guarantee of a run does not cover what they tell.
    """
    deal = _Deal(users, seed, shards, alpha)
    X, y = embedded.breast_cancer()
    kept, out = ways.hold_out(y, TEST_PART, seed)
    X = (X - X[kept].mean(axis=0)) / X[kept].std(axis=0)
    facts = {
        "source": "scikit-learn load_breast_cancer (UCI Breast Cancer Wisconsin, diagnostic)",
        "labels": "0 malignant, 1 benign",
        "public": "mean and deviation of every feature over the training records, used to "
        "standardise; the test records",
    }
    return deal.task(
        "breast-cancer",
        models.logistic(X.shape[1]),
        losses.logistic,
        (X[kept], y[kept]),
        (X[out], y[out]),
        facts,
    )


def digits(
    users: Users = 16,
    seed: int = 0,
    shards: str = "iid",
    alpha: float | None = None,
    hidden: int | None = None,
) -> Task:
    """Which digit an 8x8 image shows: 1,797 records that come with scikit-learn, a fifth of every
    class public test data.

    A linear model, or a network with one hidden layer of that size.
    """
    deal = _Deal(users, seed, shards, alpha)
    X, y = embedded.digits()
    kept, out = ways.hold_out(y, TEST_PART, seed)
    facts = {
        "source": "scikit-learn load_digits (UCI Optical Recognition of Handwritten Digits)",
        "labels": "the digit",
    }
    model = _classifier(X.shape[1], hidden, 10, seed)
    return deal.task(
        "digits", model, losses.cross_entropy, (X[kept], y[kept]), (X[out], y[out]), facts
    )


def a9a(
    users: Users = 16, seed: int = 0, shards: str = "dirichlet", alpha: float | None = None
) -> Task:
    """Is an income above 50,000 dollars, from 123 yes-or-no features: 32,561 training and 16,281
    test records, in files.
    """
    deal = _Deal(users, seed, shards, alpha)
    train, test = a9a_files.load()
    facts = {
        "source": "LIBSVM a9a, test a9a.t (UCI Adult)",
        "labels": "1 for an income above 50,000 dollars a year, 0 else",
    }
    return deal.task(
        "a9a", models.logistic(a9a_files.FEATURES), losses.logistic, train, test, facts
    )


def mnist(
    users: Users = 16,
    seed: int = 0,
    shards: str = "dirichlet",
    alpha: float | None = None,
    hidden: int | None = 128,
) -> Task:
    """Which digit a 28x28 image shows: 60,000 training and 10,000 test records, in files.

    A network with one hidden layer of that size, or a linear model where `hidden` is None. The seed
    also draws its first weights.
    """
    deal = _Deal(users, seed, shards, alpha)
    train, test = mnist_files.load()
    facts = {
        "source": "MNIST",
        "labels": "the digit",
        "public": f"mean {mnist_files.MEAN} and deviation {mnist_files.DEVIATION} of pixels, used "
        "to normalise; the test records",
    }
    model = _classifier(train[0].shape[1], hidden, mnist_files.CLASSES, seed)
    return deal.task("mnist", model, losses.cross_entropy, train, test, facts)


def make(
    name: str,
    users: Users = 16,
    seed: int = 0,
    shards: str | None = None,
    alpha: float | None = None,
) -> Task:
    """The task of that name, one of `NAMES`; an underscore will do for a hyphen.

    Without `shards`, as the task itself chooses.
    """
    known = name.replace("_", "-") if isinstance(name, str) else ""
    if known == "least-squares":
        if shards is not None or alpha is not None:
            raise InputError(
                "least-squares gives every user one record of its own; leave out shards and alpha"
            )
        return least_squares(users, seed=seed)
    build = {"breast-cancer": breast_cancer, "digits": digits, "a9a": a9a, "mnist": mnist}.get(
        known
    )
    if build is None:
        raise InputError(f"there is no task named {name!r}; there are {', '.join(NAMES)}")
    return build(users, seed, alpha=alpha) if shards is None else build(users, seed, shards, alpha)


def _classifier(features: int, hidden: int | None, classes: int, seed: int) -> nn.Module:
    if hidden is None:
        return models.multinomial(features, classes)
    return models.mlp(features, checks.count("hidden", hidden, 1), classes, seed=seed)


@dataclass(frozen=True)
class _Deal:
    """How records are dealt to users.

    Checked when made, so that a slip is met before files are read.
    """

    users: Users
    seed: int
    way: str
    alpha: float | None

    def __post_init__(self) -> None:
        _count(self.users)
        object.__setattr__(self, "seed", checks.count("seed", self.seed, 0))
        if self.alpha is None and self.way == "dirichlet":
            object.__setattr__(self, "alpha", ALPHA)
        object.__setattr__(self, "alpha", ways.check(self.way, self.alpha))

    def task(
        self,
        name: str,
        model: nn.Module,
        loss: Loss,
        train: Arrays,
        test: Arrays,
        facts: dict[str, Any],
    ) -> Task:
        X, y = train
        dealt = ways.split(self.way, y, _count(self.users), self.seed, self.alpha)
        # one copy in the order of the users, cut into views: quick for many users too
        X, y = (part[np.concatenate(dealt)] for part in train)
        sizes = [len(records) for records in dealt]
        pieces = zip(*(torch.split(part, sizes) for part in _tensors(X, y)), strict=True)
        counts = {
            "records": len(y),
            "test_records": len(test[1]),
            "split": self.way,
            "alpha": self.alpha,
            "seed": self.seed,
        }
        held = _held(self.users, list(pieces))
        return Task(
            model,
            loss,
            held,
            test=_tensors(*test),
            name=name,
            facts=facts | counts,
            test_public=True,
        )


def _count(users: Users) -> int:
    """How many users there are."""
    if isinstance(users, list | tuple):
        if (
            not users
            or len(set(users)) < len(users)
            or not all(isinstance(name, str) for name in users)
        ):
            raise InputError(
                f"users must be a whole number, or different names of users, not {users!r}"
            )
        return len(users)
    return checks.count("users", users, 1)


def _held(users: Users, shards: list[Shard]) -> list[Shard] | dict[str, Shard]:
    """The shards, by name where users have names."""
    return dict(zip(users, shards, strict=True)) if isinstance(users, list | tuple) else shards


def _tensors(X: Array, y: Ints) -> Shard:
    return torch.from_numpy(X.astype(np.float32, copy=False)), torch.from_numpy(y)
