"""Ready-made tasks.

`least_squares` is synthetic, `breast_cancer` and `digits` come with scikit-learn, and `a9a`,
`mnist` and `fashion_mnist` are read from files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import torch

from decor import checks, progress
from decor.array_types import Array, Ints
from decor.errors import InputError

from . import features as of_images
from . import shards as ways
from .datasets import a9a as a9a_files
from .datasets import mnist as mnist_files
from .datasets import scikit_learn_files
from .datasets.download import download
from .definition import Definition
from .file_model import Model
from .task import Shard, Task

__all__ = [
    "NAMES",
    "a9a",
    "breast_cancer",
    "digits",
    "download",
    "fashion_mnist",
    "least_squares",
    "make",
    "mnist",
]

NAMES = (
    "least-squares",
    "breast-cancer",
    "digits",
    "a9a",
    "mnist",
    "fashion-mnist",
    "mnist-scattering",
    "fashion-mnist-scattering",
)

TEST_PART = 0.2
ALPHA = 10.0
"""Default concentration of "dirichlet" shards."""

Users = int | Sequence[str]
Arrays = tuple[Array, Ints]
"""(X, y)."""
ImageFeatures = Literal["pixels", "scattering"]
Hidden = int | Literal["auto"] | None


def least_squares(users: Users = 16, dimension: int = 10, seed: int = 0) -> Task:
    """The paper's quadratic: user i = 1 to n holds |A_i x - b_i|^2 / 2.

    A_i = (i / sqrt n) I and b_i ~ N(0, I / i^2). Each user's data is one example, so a full
    gradient is the gradient of one example. The model starts at ones. The optimum is exact for the
    float32 values in the shards, and is given in float64.

    Args:
        users: How many there are, or their names.
        dimension: The number of parameters.
        seed: Selects the b_i.
    """
    n, d = _user_count(users), checks.count("dimension", dimension, 1)
    i = np.arange(1, n + 1)
    scale = (i / math.sqrt(n)).astype(np.float32)
    rng = np.random.default_rng(checks.count("seed", seed, 0))
    b = (rng.standard_normal((n, d)) / i[:, None]).astype(np.float32)
    # the minimum of sum |a_i x - b_i|^2 over users
    # from the rounded float32 values, as the task has them
    a64 = scale.astype(np.float64)
    best = a64 @ b.astype(np.float64) / (a64 @ a64)
    A = torch.from_numpy(scale)[:, None, None] * torch.eye(d, dtype=torch.float32)
    targets = torch.from_numpy(b)[:, :, None]
    shards = list(zip(torch.split(A, 1), torch.split(targets, 1), strict=True))
    facts = {
        "source": "made: A_i = (i / sqrt n) I, b_i ~ N(0, I / i^2)",
        "records": n,
        "split": "one record a user",
        "seed": int(seed),
    }
    definition = Definition(Model(kind="linear", features=d))
    # built from the definition, as whoever loads a saved run builds it
    module, loss = definition.build()
    return Task(
        module,
        loss,
        _by_name(users, shards),
        name="least-squares",
        optimum=torch.tensor(best),
        facts=facts,
        definition=definition,
    )


def breast_cancer(
    users: Users = 16, seed: int = 0, shards: str = "iid", alpha: float | None = None
) -> Task:
    """Tumours, malignant (0) or benign (1), from 30 measurements: 569 examples.

    They come with scikit-learn. A fifth of each class, selected by the seed, is public test data.
    Features are standardised with the mean and deviation of all training examples, which are
    treated as public knowledge: the guarantee of a run does not cover what they reveal.

    Args:
        users: How many there are, or their names.
        seed: Selects the test data and the split.
        shards: How examples are split: "iid", "dirichlet" or "by-label".
        alpha: Only for "dirichlet"; defaults to 10, which gives users similar data.
    """
    splitter = _Splitter(users, seed, shards, alpha)
    X, y = scikit_learn_files.breast_cancer()
    kept, out = ways.hold_out(y, TEST_PART, seed)
    # the test data does not enter the mean, so that it stays unseen
    X = (X - X[kept].mean(axis=0)) / X[kept].std(axis=0)
    facts = {
        "source": "scikit-learn load_breast_cancer (UCI Breast Cancer Wisconsin, diagnostic)",
        "labels": "0 malignant, 1 benign",
        "public": "mean and deviation of every feature over the training records, used to "
        "standardise; the test records",
    }
    train, test = (X[kept], y[kept]), (X[out], y[out])
    model = Model(kind="logistic", features=X.shape[1])
    return splitter.task("breast-cancer", model, train, test, facts)


def digits(
    users: Users = 16,
    seed: int = 0,
    shards: str = "iid",
    alpha: float | None = None,
    hidden: int | None = None,
) -> Task:
    """Handwritten digits in 8x8 images: 1,797 examples that come with scikit-learn.

    A fifth of each class, selected by the seed, is public test data.

    Args:
        users: How many there are, or their names.
        seed: Selects the test data, the split and the initial weights.
        shards: How examples are split: "iid", "dirichlet" or "by-label".
        alpha: Only for "dirichlet"; defaults to 10, which gives users similar data.
        hidden: The size of a hidden layer; None is a linear model.
    """
    splitter = _Splitter(users, seed, shards, alpha)
    X, y = scikit_learn_files.digits()
    kept, out = ways.hold_out(y, TEST_PART, seed)
    facts = {
        "source": "scikit-learn load_digits (UCI Optical Recognition of Handwritten Digits)",
        "labels": "the digit",
    }
    train, test = (X[kept], y[kept]), (X[out], y[out])
    model = _classifier(X.shape[1], hidden, 10, seed)
    return splitter.task("digits", model, train, test, facts)


def a9a(
    users: Users = 16, seed: int = 0, shards: str = "dirichlet", alpha: float | None = None
) -> Task:
    """Incomes above 50,000 dollars from 123 binary features: 32,561 training examples, in files.

    There are 16,281 test examples. `download("a9a")` fetches the files.

    Args:
        users: How many there are, or their names.
        seed: Selects the split.
        shards: How examples are split: "iid", "dirichlet" or "by-label".
        alpha: Only for "dirichlet"; defaults to 10, which gives users similar data.
    """
    splitter = _Splitter(users, seed, shards, alpha)
    train, test = a9a_files.load()
    facts = {
        "source": "LIBSVM a9a, test a9a.t (UCI Adult)",
        "labels": "1 for an income above 50,000 dollars a year, 0 else",
    }
    model = Model(kind="logistic", features=a9a_files.FEATURES)
    return splitter.task("a9a", model, train, test, facts)


def mnist(
    users: Users = 16,
    seed: int = 0,
    shards: str = "dirichlet",
    alpha: float | None = None,
    hidden: Hidden = "auto",
    features: ImageFeatures = "pixels",
) -> Task:
    """Handwritten digits in 28x28 images: 60,000 training and 10,000 test examples, in files.

    `download("mnist")` fetches the files.

    Args:
        users: How many there are, or their names.
        seed: Selects the split and the initial weights.
        shards: How examples are split: "iid", "dirichlet" or "by-label".
        alpha: Only for "dirichlet"; defaults to 10, which gives users similar data.
        hidden: The size of the hidden layer; None is a linear model. "auto" is 128 for pixels, and
            a linear model for features.
        features: "pixels", or "scattering" (`decor.features.scattering`), which cost no privacy;
            half a minute of computing.
    """
    return _images("mnist", users, seed, shards, alpha, hidden, features)


def fashion_mnist(
    users: Users = 16,
    seed: int = 0,
    shards: str = "dirichlet",
    alpha: float | None = None,
    hidden: Hidden = "auto",
    features: ImageFeatures = "pixels",
) -> Task:
    """Pieces of clothing in 28x28 images: 60,000 training and 10,000 test examples, in files.

    `download("fashion-mnist")` fetches the files as they were published. Files of a second split of
    the same images are read as well; the task's facts say which it is.

    Args:
        users: How many there are, or their names.
        seed: Selects the split and the initial weights.
        shards: How examples are split: "iid", "dirichlet" or "by-label".
        alpha: Only for "dirichlet"; defaults to 10, which gives users similar data.
        hidden: The size of the hidden layer; None is a linear model. "auto" is 128 for pixels, and
            a linear model for features.
        features: "pixels", or "scattering" (`decor.features.scattering`), which cost no privacy;
            half a minute of computing.
    """
    return _images("fashion-mnist", users, seed, shards, alpha, hidden, features)


def make(
    name: str,
    users: Users = 16,
    seed: int = 0,
    shards: str | None = None,
    alpha: float | None = None,
) -> Task:
    """A task by name.

    Args:
        name: One of `NAMES`; an underscore is as good as a hyphen.
        users: How many there are, or their names.
        seed: As of the task's own function.
        shards: "iid", "dirichlet" or "by-label"; None is the task's own default.
        alpha: Only for "dirichlet"; defaults to 10, which gives users similar data.
    """
    known = name.replace("_", "-") if isinstance(name, str) else ""
    if known == "least-squares":
        if shards is not None or alpha is not None:
            raise InputError(
                "least-squares gives every user one record of its own; leave out shards and alpha"
            )
        return least_squares(users, seed=seed)
    builders: dict[str, Callable[..., Task]] = {
        "breast-cancer": breast_cancer,
        "digits": digits,
        "a9a": a9a,
        "mnist": mnist,
        "fashion-mnist": fashion_mnist,
        "mnist-scattering": partial(mnist, features="scattering"),
        "fashion-mnist-scattering": partial(fashion_mnist, features="scattering"),
    }
    build = builders.get(known)
    if build is None:
        raise InputError(f"there is no task named {name!r}; there are {', '.join(NAMES)}")
    # each task has its own default for shards
    return build(users, seed, alpha=alpha) if shards is None else build(users, seed, shards, alpha)


def _images(
    dataset: str,
    users: Users,
    seed: int,
    way: str,
    alpha: float | None,
    hidden: Hidden,
    features: str,
) -> Task:
    """MNIST or Fashion-MNIST, which have files of one format."""
    splitter = _Splitter(users, seed, way, alpha)
    checks.one_of("features", features, get_args(ImageFeatures))
    pixels = features == "pixels"
    if hidden == "auto":
        hidden = 128 if pixels else None
    elif hidden is not None:
        checks.count("hidden", hidden, 1, hint='or "auto", or None for a linear model')
    train, test = mnist_files.load(dataset, normalised=pixels)
    is_mnist = dataset == "mnist"
    source = "MNIST" if is_mnist else "Fashion-MNIST"
    if not (is_mnist or mnist_files.is_published_split(dataset)):
        source += ", split anew: 1,000 images of each class, drawn at random, for testing"
    mean, deviation = mnist_files.SCALES[dataset]
    normalised = f"mean {mean} and deviation {deviation} of pixels, used to normalise; "
    facts = {
        "source": source,
        "labels": "the digit" if is_mnist else "the class of the piece of clothing",
        "public": (normalised if pixels else "") + "the test records",
    }
    width = train[0].shape[1]
    if not pixels:
        facts["features"] = "scattering: fixed wavelets, each image by itself"
        # the same for every image
        width = _scatter(test[0][:1]).shape[1]
    model = _classifier(width, hidden, mnist_files.CLASSES, seed)
    name = dataset if pixels else f"{dataset}-scattering"
    return splitter.task(name, model, train, test, facts, None if pixels else _scatter)


def _scatter(X: Array) -> torch.Tensor:
    return of_images.scattering(X.reshape(len(X), mnist_files.SIDE, mnist_files.SIDE))


def _classifier(features: int, hidden: int | None, classes: int, seed: int) -> Model:
    if hidden is None:
        return Model(kind="multinomial", features=features, classes=classes)
    units = (checks.count("hidden", hidden, 1),)
    return Model(kind="mlp", features=features, classes=classes, hidden=units, seed=seed)


@dataclass(frozen=True)
class _Splitter:
    """Splits a dataset over users. Validates its fields first, so before any file is read."""

    users: Users
    seed: int
    way: str
    alpha: float | None

    def __post_init__(self) -> None:
        _user_count(self.users)
        alpha = ALPHA if self.alpha is None and self.way == "dirichlet" else self.alpha
        object.__setattr__(self, "seed", checks.count("seed", self.seed, 0))
        object.__setattr__(self, "alpha", ways.check(self.way, alpha))

    def task(
        self,
        name: str,
        model: Model,
        train: Arrays,
        test: Arrays,
        facts: dict[str, Any],
        features: Callable[[Array], torch.Tensor] | None = None,
    ) -> Task:
        parts = ways.split(self.way, train[1], _user_count(self.users), self.seed, self.alpha)
        # one copy in the order of the users, cut into views: quick for many users too
        order, sizes = np.concatenate(parts), [len(rows) for rows in parts]
        X, y = _tensors(train[0][order], train[1][order])
        test_X, test_y = _tensors(*test)
        if features is not None:
            # after the split: features may be much larger than what they are made of
            share = len(X) / (len(X) + len(test_X))
            with progress.share(0.0, share):
                X = features(X.numpy())
            with progress.share(share, 1.0):
                test_X = features(test_X.numpy())
        shards = list(zip(torch.split(X, sizes), torch.split(y, sizes), strict=True))
        # these keys are in saved manifests, where examples are called records
        split = {
            "records": len(y),
            "test_records": len(test[1]),
            "split": self.way,
            "alpha": self.alpha,
            "seed": self.seed,
        }
        definition = Definition(model)
        module, loss = definition.build()
        return Task(
            module,
            loss,
            _by_name(self.users, shards),
            test=(test_X, test_y),
            name=name,
            facts=facts | split,
            test_public=True,
            definition=definition,
        )


def _user_count(users: Users) -> int:
    if not isinstance(users, list | tuple):
        return checks.count("users", users, 1)
    different = len(set(users)) == len(users) > 0
    if not different or not all(isinstance(name, str) for name in users):
        raise InputError(
            f"users must be a whole number, or different names of users, not {users!r}"
        )
    return len(users)


def _by_name(users: Users, shards: list[Shard]) -> list[Shard] | dict[str, Shard]:
    """The shards, by name if the users have names."""
    return dict(zip(users, shards, strict=True)) if isinstance(users, list | tuple) else shards


def _tensors(X: Array, y: Ints) -> Shard:
    return torch.from_numpy(X.astype(np.float32, copy=False)), torch.from_numpy(y)
