"""Which user holds which examples: a dataset split over users.

Every split first assigns one owner to each example, so shards are disjoint and cover the data.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from decor import checks
from decor.array_types import Array, Ints
from decor.errors import InputError

WAYS = ("iid", "dirichlet", "by-label")
TRIES = 100
"""Draws of `dirichlet` before it gives up."""


def iid(labels_or_count: Any, users: int, seed: int = 0) -> tuple[Ints, ...]:
    """A random part of the same size for each user, give or take one example.

    Args:
        labels_or_count: The labels, or just the number of examples.
        users: The number of users.
        seed: Selects the split.

    Returns:
        The rows of each user's examples, in ascending order.
    """
    count = _example_count(labels_or_count, users)
    return _shards(_generator(seed).permutation(np.arange(count, dtype=np.int64) % users), users)


def by_label(labels: Any, users: int, seed: int = 0) -> tuple[Ints, ...]:
    """Sorts examples by label and cuts them into equal pieces: most users see one or two labels.

    Args:
        labels: One per example.
        users: The number of users.
        seed: Selects which examples of a label go to which user.

    Returns:
        As `iid`; sizes differ by one at most.
    """
    labels = _labels(labels)
    count = _example_count(labels, users)
    shuffled = _generator(seed).permutation(count)
    owner = np.empty(count, dtype=np.int64)
    # a stable sort keeps the random order within a label
    owner[shuffled[np.argsort(labels[shuffled], kind="stable")]] = np.arange(count) * users // count
    return _shards(owner, users)


def dirichlet(
    labels: Any, users: int, alpha: float, seed: int = 0, least: int = 1
) -> tuple[Ints, ...]:
    """Draws each label's split over the users from Dirichlet(alpha, ..., alpha).

    A user's number of examples of a label is its share, rounded up or down at random without bias.

    Args:
        labels: One per example.
        users: The number of users.
        alpha: The smaller, the less alike the users: 10 makes them alike, 0.1 unlike.
        seed: Selects the split.
        least: A draw that leaves a user with fewer examples is repeated.

    Returns:
        As `iid`.

    Raises:
        InputError: If no draw in 100 gives each user at least `least` examples.
    """
    labels, a = _labels(labels), _concentration(alpha)
    least = checks.count("least", least, 0)
    count = _example_count(labels, users, least)
    rng = _generator(seed)
    members = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    for _ in range(TRIES):
        owner = np.empty(count, dtype=np.int64)
        for rows in members:
            owner[rng.permutation(rows)] = _owners(len(rows), users, a, rng)
        if np.bincount(owner, minlength=users).min() >= least:
            return _shards(owner, users)
    raise InputError(
        f"dirichlet(alpha={a:g}) over {users:,} users leaves a user with fewer than {least} of the "
        f"{count:,} examples, {TRIES} times in a row; take a larger alpha, fewer users, or iid "
        "shards"
    )


def split(
    way: str, labels: Any, users: int, seed: int = 0, alpha: float | None = None
) -> tuple[Ints, ...]:
    """The shards of a split by name.

    Args:
        way: One of `WAYS`.
        labels: One per example.
        users: The number of users.
        seed: Selects the split.
        alpha: Of "dirichlet" only, which needs it.

    Returns:
        As `iid`.
    """
    a = check(way, alpha)
    if a is not None:
        return dirichlet(labels, users, a, seed)
    return iid(labels, users, seed) if way == "iid" else by_label(labels, users, seed)


def check(way: str, alpha: float | None) -> float | None:
    """Validates the arguments of `split` before any data is read.

    Args:
        way: One of `WAYS`.
        alpha: Needed for "dirichlet", refused for the others.

    Returns:
        `alpha` as a float, or None if the split takes none.
    """
    if way not in WAYS:
        raise InputError(f"shards must be one of {', '.join(WAYS)}, not {way!r}")
    if way == "dirichlet":
        return _concentration(alpha)
    if alpha is not None:
        raise InputError(
            f"alpha={alpha!r} changes nothing for {way} shards; leave it out, or use "
            'shards="dirichlet"'
        )
    return None


def hold_out(labels: Any, fraction: float, seed: int = 0) -> tuple[Ints, Ints]:
    """Holds out examples for testing, in the same proportion for every label.

    Args:
        labels: One per example.
        fraction: The share of each label's examples to hold out, to the nearest example.
        seed: Selects them.

    Returns:
        (kept, held out), as rows in ascending order.
    """
    labels = _labels(labels)
    if not 0 <= fraction <= 1:
        raise InputError(f"the fraction to hold out must be between 0 and 1, not {fraction!r}")
    # a separate stream: the same seed also draws the shards of what is kept
    rng = np.random.default_rng([checks.count("seed", seed, 0), 1])
    out = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        out[rows[: round(fraction * len(rows))]] = True
    return np.flatnonzero(~out), np.flatnonzero(out)


def _owners(count: int, users: int, alpha: float, rng: np.random.Generator) -> Ints:
    """The owners of `count` examples, in ascending order, for one draw of the users' shares."""
    # Evenly spaced points with one random offset fall into intervals as long as the shares. So a
    # user's expected count is exactly its share, also if a label has fewer examples than users,
    # where cutting at rounded places is not fair.
    ends = np.cumsum(rng.dirichlet(np.full(users, alpha)))
    points = (np.arange(count) + rng.random()) / count
    return np.searchsorted(ends[:-1], points, side="right").astype(np.int64)


def _shards(owner: Ints, users: int) -> tuple[Ints, ...]:
    # stable: rows stay in ascending order within a user
    order = np.argsort(owner, kind="stable")
    return tuple(np.split(order, np.cumsum(np.bincount(owner, minlength=users))[:-1]))


def _generator(seed: int) -> np.random.Generator:
    return np.random.default_rng(checks.count("seed", seed, 0))


def _labels(labels: Any) -> Array:
    array = np.asarray(labels)
    if array.ndim != 1:
        raise InputError(f"labels must be a flat list, one per example, not of shape {array.shape}")
    return array


def _example_count(labels_or_count: Any, users: int, least: int = 1) -> int:
    """How many examples there are; refuses too few for all users."""
    if isinstance(labels_or_count, int | np.integer):
        count = checks.count("the number of examples", labels_or_count, 0)
    else:
        count = len(_labels(labels_or_count))
    checks.count("users", users, 1)
    # a user without examples has no gradient
    need = max(least, 1)
    if users * need > count:
        raise InputError(
            f"{count:,} examples cannot give {users:,} users at least {need} each; take at most "
            f"{count // need:,} users"
        )
    return count


def _concentration(alpha: object) -> float:
    # beyond these limits numpy's sampler under- or overflows
    if 1e-6 <= checks.as_float(alpha) <= 1e12:
        return checks.as_float(alpha)
    raise InputError(
        f"alpha must be a number from 1e-6 to 1e12, not {alpha!r}; 10 makes users alike, 0.1 unlike"
    )
