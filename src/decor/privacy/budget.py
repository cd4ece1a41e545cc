"""Budget and Exposure: what may be spent, and what the training exposes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from decor.errors import BudgetError

ACCOUNTED = 0.999
"""The part of delta for which `calibrate` finds noise; the rest covers that noise drawn from tables is not quite Gaussian."""


def checked_delta(delta: object) -> float:
    value = _number(delta)
    if not 0.0 < value < 1.0:
        raise BudgetError(f"delta must lie strictly between 0 and 1, not {delta!r}; 1e-5 is usual for thousands of records")
    return value


@dataclass(frozen=True)
class Budget:
    """The most that may be spent: (epsilon, delta)."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", _positive("epsilon", self.epsilon, "1 to 10 is usual", most=1e9))
        object.__setattr__(self, "delta", checked_delta(self.delta))


@dataclass(frozen=True)
class Exposure:
    """What one run does with private data: `steps` gradients, each clipped to `clip`.

    unit "user": a user's whole dataset is protected; its gradient may be replaced by any other (shift 2 clip).
    unit "example": one record is protected; a user averages `batch_size` clipped gradients out of its `records`
    (one number, or one for every user), drawn by `sampling` "poisson" (each record independently; divided by the expected,
    never the realised, size) or "fixed" (without replacement); neighbours differ by `relation` "add-remove" or "replace".
    """

    clip: float
    steps: int
    unit: str = "user"
    batch_size: int | None = None
    records: int | tuple[int, ...] | None = None
    sampling: str | None = None
    relation: str | None = None

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "clip", _positive("clip", self.clip, "1 is usual"))
        put(self, "steps", _whole("steps", self.steps))
        if self.unit not in ("user", "example"):
            raise BudgetError(f'unit must be "user" or "example", not {self.unit!r}')
        if self.unit == "user":
            self._check_user()
        else:
            self._check_example()

    def _check_user(self) -> None:
        if self.sampling is not None or self.batch_size is not None or self.records is not None:
            raise BudgetError(
                "at user level sampling records earns nothing, so batch_size, records and sampling do not apply; "
                'drop them, or choose unit="example"'
            )
        if self.relation not in (None, "replace"):
            raise BudgetError(f"at user level neighbours replace one user's data; relation {self.relation!r} is not offered")
        object.__setattr__(self, "relation", "replace")

    def _check_example(self) -> None:
        put = object.__setattr__
        sampling = self.sampling or "poisson"
        if sampling not in ("poisson", "fixed"):
            raise BudgetError(
                f'sampling must be "poisson" or "fixed", not {sampling!r}; shuffled epochs have no amplification theorem'
            )
        relation = self.relation or ("add-remove" if sampling == "poisson" else "replace")
        if relation not in ("add-remove", "replace"):
            raise BudgetError(f'relation must be "add-remove" or "replace", not {relation!r}')
        if sampling == "fixed" and relation == "add-remove":
            raise BudgetError('fixed-size sampling is accounted for relation="replace" only; choose that, or sampling="poisson"')
        if self.batch_size is None or self.records is None:
            raise BudgetError('unit="example" needs batch_size and records, such as batch_size=64, records=3750')
        put(self, "sampling", sampling)
        put(self, "relation", relation)
        put(self, "batch_size", _whole("batch_size", self.batch_size))
        several = not isinstance(self.records, int | np.integer)
        records = tuple(_whole("records", m) for m in np.ravel(np.asarray(self.records)).tolist())
        if not records:
            raise BudgetError("records is empty; give one number, or one for every user")
        if self.batch_size > min(records):
            raise BudgetError(f"batch_size {self.batch_size} is larger than the smallest shard, {min(records)} records; lower it")
        put(self, "records", records if several else records[0])

    def rates(self, users: int) -> tuple[float, ...]:
        """Every user's sampling rate at example level."""
        assert self.batch_size is not None and self.records is not None
        if isinstance(self.records, int):
            return (self.batch_size / self.records,) * users
        self.check(users)
        return tuple(self.batch_size / m for m in self.records)

    def check(self, users: int) -> None:
        if isinstance(self.records, tuple) and len(self.records) != users:
            raise BudgetError(
                f"records has {len(self.records)} numbers for {users} users; give one number, or one for every user"
            )

    @property
    def shift(self) -> float:
        """How far one protected unit moves a user's message when its data is not sampled."""
        if self.unit == "user":
            return 2 * self.clip
        assert self.batch_size is not None
        return (2.0 if self.relation == "replace" else 1.0) * self.clip / self.batch_size


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _positive(name: str, value: object, hint: str, most: float = 1e100) -> float:
    """Far outside what anybody means numbers would overflow on the way."""
    number = _number(value)
    if not (number > 0 and math.isfinite(number)):
        raise BudgetError(f"{name} must be a positive finite number, not {value!r}; {hint}")
    if not 1e-100 <= number <= most:
        raise BudgetError(f"{name} must lie between 1e-100 and {most:g}, not {value!r}; {hint}")
    return number


def _whole(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 1 <= value <= 10**15:
        raise BudgetError(f"{name} must be a positive whole number of at most 10^15, not {value!r}")
    return int(value)
