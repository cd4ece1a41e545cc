"""Budget and Exposure: what may be spent, and what the training exposes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from decor import checks
from decor.choices import Relation, Sampling, Unit
from decor.errors import BudgetError
from decor.graph.names import in_order, not_a_list
from decor.graph.topology import Topology

ACCOUNTED = 0.999
"""The part of delta for which `calibrate` finds noise; the rest covers that noise drawn from tables
is not quite Gaussian.
"""


def checked_delta(delta: object) -> float:
    value = checks.as_float(delta)
    if not 0.0 < value < 1.0:
        raise BudgetError(
            f"delta must lie strictly between 0 and 1, not {delta!r}; 1e-5 is usual "
            "for thousands of records"
        )
    return value


LARGEST_DELTA = 1e-3
"""That a plan is made for unasked, however few the users."""


@dataclass(frozen=True)
class Budget:
    """The most that may be spent: (epsilon, delta)."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        object.__setattr__(
            self,
            "epsilon",
            checks.positive(
                "epsilon", self.epsilon, most=1e9, hint="1 to 10 is usual", error=BudgetError
            ),
        )
        object.__setattr__(self, "delta", checked_delta(self.delta))

    @property
    def accounted(self) -> Budget:
        """What Gaussian noise may spend of it."""
        return Budget(self.epsilon, ACCOUNTED * self.delta)

    def check_delta(self, exposure: Exposure, topology: Topology) -> None:
        """Refuses a delta with which publishing somebody's data outright would be within the
        budget.
        """
        units, what = exposure.units(topology), "users" if exposure.unit == "user" else "records"
        limit = min(LARGEST_DELTA, 1 / units)
        if self.delta <= limit:
            return
        better = min(1e-5, 10.0 ** math.floor(math.log10(0.1 / units)))
        raise BudgetError(
            f"delta {self.delta:g} is too large for {units:,} {what}: at most {limit:.4g} is "
            "taken (0.001, or one over their "
            "number where that is less). The promise may fail with probability delta for each of "
            "them, so for "
            f"{self.delta * units:.2g} of them on average. Take {better:g}; or say any_delta=True "
            "(--any-delta; any_delta = true "
            "in a federation's file)"
        )


class Counts(Mapping[str, int]):
    """How many records each user holds, by name: a mapping that does not change."""

    def __init__(self, counts: Mapping[Any, Any]) -> None:
        self._counts = {
            str(name): _count(f"records of {name!r}", count) for name, count in counts.items()
        }
        if len(self._counts) < len(counts):
            raise BudgetError(f"records names a user twice: {', '.join(map(repr, counts))}")

    def __getitem__(self, name: str) -> int:
        return self._counts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._counts)

    def __len__(self) -> int:
        return len(self._counts)

    def __hash__(self) -> int:
        return hash(frozenset(self._counts.items()))

    def __repr__(self) -> str:
        return repr(self._counts)


@dataclass(frozen=True)
class Exposure:
    """What one run does with private data: `steps` gradients, each clipped to `clip`.

    unit "user": a user's whole dataset is protected; its gradient may be replaced by any other
    (shift 2 clip). unit "example": one record is protected; a user averages `batch_size` clipped
    gradients out of its `records`, drawn by `sampling` "poisson" (each record independently;
    divided by the expected, never the realised, size) or "fixed" (without replacement); neighbours
    differ by `relation` "add-remove" or "replace".

    `records` is one number for everybody, or a mapping from every user's name to its number, such
    as {"bonn": 152, "ulm": 80}. A list has a number for each of the users 0..n-1: on a graph whose
    users have names it is refused, because the order of the names is that of the graph's file,
    which nobody knows by heart, and a wrong order understates epsilon.
    """

    clip: float
    steps: int
    unit: Unit = "user"
    batch_size: int | None = None
    records: int | Sequence[int] | Mapping[str, int] | None = None
    sampling: Sampling | None = None
    relation: Relation | None = None

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "clip", checks.positive("clip", self.clip, hint="1 is usual", error=BudgetError))
        put(self, "steps", _count("steps", self.steps))
        if self.unit not in ("user", "example"):
            raise BudgetError(f'unit must be "user" or "example", not {self.unit!r}')
        if self.unit == "user":
            self._check_user()
        else:
            self._check_example()

    def _check_user(self) -> None:
        if self.sampling is not None or self.batch_size is not None or self.records is not None:
            raise BudgetError(
                "at user level sampling records earns nothing, so batch_size, records and "
                "sampling do not apply; "
                'drop them, or choose unit="example"'
            )
        if self.relation not in (None, "replace"):
            raise BudgetError(
                "at user level neighbours replace one user's data; relation "
                f"{self.relation!r} is not offered"
            )
        object.__setattr__(self, "relation", "replace")

    def _check_example(self) -> None:
        put = object.__setattr__
        sampling = self.sampling or "poisson"
        if sampling not in ("poisson", "fixed"):
            raise BudgetError(
                f'sampling must be "poisson" or "fixed", not {sampling!r}; shuffled epochs have '
                "no amplification theorem"
            )
        relation = self.relation or ("add-remove" if sampling == "poisson" else "replace")
        if relation not in ("add-remove", "replace"):
            raise BudgetError(f'relation must be "add-remove" or "replace", not {relation!r}')
        if sampling == "fixed" and relation == "add-remove":
            raise BudgetError(
                'fixed-size sampling is accounted for relation="replace" only; '
                'choose that, or sampling="poisson"'
            )
        if self.batch_size is None or self.records is None:
            raise BudgetError(
                'unit="example" needs batch_size and records, such as batch_size=64, records=3750'
            )
        put(self, "sampling", sampling)
        put(self, "relation", relation)
        put(self, "batch_size", _count("batch_size", self.batch_size))
        put(self, "records", _records(self.records))
        counts = [self.records] if isinstance(self.records, int) else list(self._several())
        if self.batch_size > min(counts):
            raise BudgetError(
                f"batch_size {self.batch_size} is larger than the smallest shard, "
                f"{min(counts)} records; lower it"
            )

    def _several(self) -> Iterable[int]:
        return self.records.values() if isinstance(self.records, Mapping) else self.records  # type: ignore[return-value]

    def records_of(self, topology: Topology) -> tuple[int, ...]:
        """How many records every user of this graph holds, in the graph's order; example level.

        Raises where names do not match, and for a list where users have names.
        """
        given, users = self.records, topology.users
        assert given is not None
        if isinstance(given, int):
            return (given,) * users
        if isinstance(given, Mapping):
            return tuple(in_order(given, topology, "records"))
        if topology.labels is not None:
            raise BudgetError(not_a_list(topology, "records", "152"))
        if len(given) != users:
            raise BudgetError(
                f"records has {len(given)} numbers for {users} users; give one "
                "number, or one for every user"
            )
        return tuple(given)

    def rates(self, topology: Topology) -> tuple[float, ...]:
        """Every user's sampling rate at example level, in the graph's order."""
        assert self.batch_size is not None
        return tuple(self.batch_size / m for m in self.records_of(topology))

    def units(self, topology: Topology) -> int:
        """How many are protected: the users, or all records together."""
        return topology.users if self.unit == "user" else sum(self.records_of(topology))

    def check(self, topology: Topology) -> None:
        """Raises unless `records` is for the users of this graph."""
        if self.unit == "example":
            self.records_of(topology)

    @property
    def shift(self) -> float:
        """How far one protected unit moves a user's message when its data is not sampled."""
        if self.unit == "user":
            return 2 * self.clip
        assert self.batch_size is not None
        return (2.0 if self.relation == "replace" else 1.0) * self.clip / self.batch_size


def _records(given: Any) -> int | tuple[int, ...] | Counts:
    if isinstance(given, Mapping):
        found: tuple[int, ...] | Counts = Counts(given)
    elif checks.is_count(given, 0):
        return _count("records", given)
    else:
        found = tuple(_count("records", m) for m in np.ravel(np.asarray(given)).tolist())
    if not found:
        raise BudgetError("records is empty; give one number, or one for every user")
    return found


def _count(name: str, value: object) -> int:
    return checks.count(name, value, 1, 10**15, error=BudgetError)
