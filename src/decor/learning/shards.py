"""Who holds which records: a dataset split over users.

Every way first writes down one owner for every record, so shards are disjoint and cover the data
whatever the way does.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from decor import checks
from decor.arrays import Array, Ints
from decor.errors import InputError

WAYS = ("iid", "dirichlet", "by-label")
TRIES = 100


def iid(labels_or_count: Any, users: int, seed: int = 0) -> tuple[Ints, ...]:
    """Everybody gets a random part of the same size, give or take one record."""
    count = _records(labels_or_count, users)
    return _shards(_generator(seed).permutation(np.arange(count, dtype=np.int64) % users), users)


def by_label(labels: Any, users: int, seed: int = 0) -> tuple[Ints, ...]:
    """Records in order of their label, cut into pieces of the same size, give or take one: most
    users see one label or two.

    The seed decides which records of a label go where.
    """
    labels = _labels(labels)
    count = _records(labels, users)
    shuffled = _generator(seed).permutation(count)
    owner = np.empty(count, dtype=np.int64)
    owner[shuffled[np.argsort(labels[shuffled], kind="stable")]] = np.arange(count) * users // count
    return _shards(owner, users)


def dirichlet(
    labels: Any, users: int, alpha: float, seed: int = 0, least: int = 1
) -> tuple[Ints, ...]:
    """For every label, the users' parts of its records are drawn from Dirichlet(alpha, ..., alpha):
    small alpha, unlike users.

    A user's number of records of a label is its part of them, rounded up or down at random without
    bias. A draw that leaves anybody with fewer than `least` records is drawn again; an error says
    so when that never ends.
    """
    labels, a = _labels(labels), _concentration(alpha)
    least = checks.count("least", least, 0)
    count = _records(labels, users, least)
    rng = _generator(seed)
    members = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    for _ in range(TRIES):
        owner = np.empty(count, dtype=np.int64)
        for records in members:
            owner[rng.permutation(records)] = _parts(len(records), users, a, rng)
        if np.bincount(owner, minlength=users).min() >= least:
            return _shards(owner, users)
    raise InputError(
        f"dirichlet(alpha={a:g}) over {users:,} users leaves somebody with fewer than {least} of "
        f"the {count:,} records, "
        f"{TRIES} times in a row; take a larger alpha, fewer users, or iid shards"
    )


def split(
    way: str, labels: Any, users: int, seed: int = 0, alpha: float | None = None
) -> tuple[Ints, ...]:
    """The shards of the way of that name, one of `WAYS`; `alpha` belongs to "dirichlet" alone."""
    a = check(way, alpha)
    if a is not None:
        return dirichlet(labels, users, a, seed)
    return iid(labels, users, seed) if way == "iid" else by_label(labels, users, seed)


def check(way: str, alpha: float | None) -> float | None:
    """`alpha` as a float where the way needs it.

    Refuses a way that is not there, and an alpha missing, useless or impossible.
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
    """(kept, held out): that fraction of the records of every label is held out, to the nearest
    record.
    """
    labels = _labels(labels)
    if not 0 <= fraction <= 1:
        raise InputError(f"the fraction to hold out must be between 0 and 1, not {fraction!r}")
    # a stream of its own: the same seed also draws the shards of what is kept
    rng = np.random.default_rng([checks.count("seed", seed, 0), 1])
    out = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        records = rng.permutation(np.flatnonzero(labels == label))
        out[records[: round(fraction * len(records))]] = True
    return np.flatnonzero(~out), np.flatnonzero(out)


def _parts(count: int, users: int, alpha: float, rng: np.random.Generator) -> Ints:
    """The owner of each of `count` records, in ascending order, for one draw of everybody's part.

    Evenly spaced points with one random offset fall into intervals as long as the parts. So a
    user's expected number of records is its part exactly, also for a label with fewer records than
    users, where cutting at rounded places is not fair.
    """
    ends = np.cumsum(rng.dirichlet(np.full(users, alpha)))
    return np.searchsorted(
        ends[:-1], (np.arange(count) + rng.random()) / count, side="right"
    ).astype(np.int64)


def _shards(owner: Ints, users: int) -> tuple[Ints, ...]:
    order = np.argsort(owner, kind="stable")
    return tuple(np.split(order, np.cumsum(np.bincount(owner, minlength=users))[:-1]))


def _generator(seed: int) -> np.random.Generator:
    return np.random.default_rng(checks.count("seed", seed, 0))


def _labels(labels: Any) -> Array:
    array = np.asarray(labels)
    if array.ndim != 1:
        raise InputError(
            f"labels must be a flat list, one for every record, not of shape {array.shape}"
        )
    return array


def _records(labels_or_count: Any, users: int, least: int = 1) -> int:
    """How many records there are, where that is enough for everybody."""
    given = isinstance(labels_or_count, int | np.integer)
    count = (
        checks.count("the number of records", labels_or_count, 0)
        if given
        else len(_labels(labels_or_count))
    )
    checks.count("users", users, 1)
    need = max(least, 1)
    if users * need > count:
        raise InputError(
            f"{count:,} records cannot give {users:,} users at least {need} each; take at most "
            f"{count // need:,} users"
        )
    return count


def _concentration(alpha: object) -> float:
    # beyond these, numpy's sampler runs out of floating point numbers
    if 1e-6 <= checks.as_float(alpha) <= 1e12:
        return checks.as_float(alpha)
    raise InputError(
        f"alpha must be a number from 1e-6 to 1e12, not {alpha!r}; 10 makes users alike, 0.1 unlike"
    )
