"""Budget and Exposure: what may be spent, and what the training exposes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from decor import checks
from decor.choices import Method, Relation, Sampling, Unit, Weighting
from decor.errors import BudgetError
from decor.graph.topology import Topology
from decor.graph.user_values import in_order, list_refusal
from decor.text import html_table

ACCOUNTED = 0.999
"""Share of delta for which `calibrate` finds noise; noise from tables is not quite Gaussian."""

LARGEST_DELTA = 1e-3
"""Largest delta of a plan without `any_delta`, however few the users."""


def validate_delta(delta: object) -> float:
    """`delta` as a float strictly between 0 and 1; raises BudgetError otherwise."""
    value = checks.as_float(delta)
    # written so that NaN is refused as well
    if not 0.0 < value < 1.0:
        raise BudgetError(
            f"delta must lie strictly between 0 and 1, not {delta!r}; 1e-5 is usual for thousands "
            "of examples"
        )
    return value


@dataclass(frozen=True)
class Budget:
    """The most that may be spent: (epsilon, delta).

    Attributes:
        epsilon: Bound on the privacy loss, up to 1e9; 1 to 10 is usual.
        delta: Failure probability; far below one over the number of protected users or examples.
    """

    epsilon: float = field(metadata={"help": "largest epsilon to spend", "metavar": "E"})
    delta: float = field(
        metadata={
            "help": "probability that the guarantee fails, such as 1e-6 or 1/1000000",
            "metavar": "D",
        }
    )

    def __post_init__(self) -> None:
        hint = "1 to 10 is usual"
        epsilon = checks.positive("epsilon", self.epsilon, most=1e9, hint=hint, error=BudgetError)
        object.__setattr__(self, "epsilon", epsilon)
        object.__setattr__(self, "delta", validate_delta(self.delta))

    @property
    def accounted(self) -> Budget:
        """The part of the budget that Gaussian noise may spend."""
        # the rest of delta pays for `Grid.slack`: what tables and cipher lack (docs/noise.md)
        return Budget(self.epsilon, ACCOUNTED * self.delta)

    def check_delta(self, exposure: Exposure, topology: Topology) -> None:
        """Refuses a delta so large that publishing one user's data would be within the budget.

        Args:
            exposure: Says whether users or examples are protected.
            topology: The graph, for the number of users.

        Raises:
            BudgetError: If delta exceeds 0.001, or one over the number of protected units.
        """
        units, what = exposure.units(topology), "users" if exposure.unit == "user" else "examples"
        # publishing one unit, drawn at random, is (0, 1 / units)-private: it must not be allowed
        limit = min(LARGEST_DELTA, 1 / units)
        if self.delta <= limit:
            return
        # a power of ten, with at most a tenth of a failure expected
        better = min(1e-5, 10.0 ** math.floor(math.log10(0.1 / units)))
        raise BudgetError(
            f"delta {self.delta:g} is too large for {units:,} {what}: at most {limit:.4g} is "
            "accepted (0.001, or one over their number if that is less). The guarantee may fail "
            f"with probability delta for each of them: {self.delta * units:.2g} of them on "
            f"average. Take {better:g}; or set any_delta (the option --any-delta; any_delta = true "
            "in a federation's file)"
        )


class Counts(Mapping[str, int]):
    """Number of examples of each user, by name: an immutable, hashable mapping."""

    def __init__(self, counts: Mapping[Any, Any]) -> None:
        self._counts = {
            str(name): _count(f"records of {name!r}", count) for name, count in counts.items()
        }
        if len(self._counts) < len(counts):
            # 1 and "1" are two keys and one name
            raise BudgetError(f"records names a user twice: {', '.join(map(repr, counts))}")

    def __getitem__(self, name: str) -> int:
        return self._counts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._counts)

    def __len__(self) -> int:
        return len(self._counts)

    def __hash__(self) -> int:
        # mappings are equal in any order, and equal ones need equal hashes
        return hash(frozenset(self._counts.items()))

    def __repr__(self) -> str:
        return repr(self._counts)


@dataclass(frozen=True)
class Exposure:
    """What one run does with private data: `steps` gradients, each clipped to `clip`.

    Attributes:
        clip: Norm to which gradients are clipped.
        steps: Number of training steps.
        unit: What is protected. "user": all data of a user; its gradient may be replaced by any
            other (shift 2 clip). "example": one example; a user averages the clipped gradients of
            a batch.
        batch_size: Example level: examples per gradient. With Poisson sampling the expected number;
            the sum is divided by that, never by the size of the actual batch. With `rate` it is
            only the public number that sums are divided by.
        records: Example level: number of examples of each user. One number for all users, or a
            mapping from names, such as {"bonn": 152, "ulm": 80}. A list is for the users 0..n-1. It
            is refused on a graph whose users have names: their order is that of the graph's file,
            and a wrong order would understate epsilon.
        sampling: Example level: "poisson" (default; each example independently) or "fixed"
            (without replacement).
        relation: How neighbouring data sets differ. User level: always "replace". Example level:
            "add-remove" (default with Poisson sampling) or "replace".
        rate: Example level: each example of every user is drawn with this probability,
            independently, instead of `batch_size` examples of each user. All sums are divided by
            `batch_size`, about rate x mean number of examples. So the average over the users is
            that over all their examples, every user has the same shift and the same rate, and
            nobody's number of examples need be public: `records` is refused, and nothing here
            depends on it.
        weighting: "records" computes that `batch_size` from `records`, which are then forgotten;
            the total number of examples becomes public.
    """

    # the metadata is the help text of the command-line option (decor.cli.options.add_field)
    clip: float = field(metadata={"help": "clip gradients to this norm", "metavar": "C"})
    steps: int = field(metadata={"help": "training steps", "metavar": "T"})
    unit: Unit = field(
        default="user",
        metadata={
            "help": "what to protect: user for all of a user's data, example for one example",
            "metavar": "UNIT",
        },
    )
    batch_size: int | None = field(
        default=None,
        metadata={
            "help": "examples per gradient (default: all); required with --unit example, where it "
            "affects epsilon",
            "metavar": "B",
        },
    )
    records: int | Sequence[int] | Mapping[str, int] | None = field(
        default=None,
        metadata={"help": "with --unit example, number of examples of each user", "metavar": "M"},
    )
    sampling: Sampling | None = field(
        default=None,
        metadata={
            "help": "with --unit example, how batches are drawn: poisson or fixed in size "
            "(default: poisson)",
            "metavar": "NAME",
        },
    )
    relation: Relation | None = field(
        default=None,
        metadata={
            "help": "with --unit example, how neighbouring data sets differ: add-remove or replace "
            "(default: add-remove with --sampling poisson, replace with fixed)",
            "metavar": "NAME",
        },
    )

    rate: float | None = field(
        default=None,
        metadata={
            "help": "with --unit example, draw each example of every user with this probability; "
            "sums are divided by --batch-size, and numbers of examples stay private",
            "metavar": "Q",
        },
    )
    weighting: Weighting | None = field(
        default=None,
        metadata={
            "help": 'with --rate: "records" computes --batch-size from --records. This makes the '
            "total number of records public",
            "metavar": "NAME",
        },
    )

    def __repr__(self) -> str:
        known = {each.name: getattr(self, each.name) for each in fields(self)}
        shown = [f"{name}={value!r}" for name, value in known.items() if value is not None]
        # a number for each of many users would fill the screen
        if isinstance(self.records, Sequence | Mapping) and len(self.records) > 4:
            of_many = f"records of {len(self.records):,} users"
            shown = [of_many if text.startswith("records=") else text for text in shown]
        return f"Exposure({', '.join(shown)})"

    def rows(self) -> list[tuple[str, str]]:
        """Each field that is set, by its name in words, for tables."""
        rows = []
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, Mapping):
                value = tuple(value.values())
            if isinstance(value, tuple):  # a row of its own for each of many users is too much
                low, high = min(value), max(value)
                value = low if low == high else f"{low:,} to {high:,}"
            if isinstance(value, int | float):
                value = f"{value:,}" if isinstance(value, int) else f"{value:g}"
            if value is not None:
                rows.append((each.name.replace("_", " "), value))
        return rows

    def _repr_html_(self) -> str:
        """What a run exposes, as a notebook shows it."""
        return html_table((), self.rows())

    def __post_init__(self) -> None:
        put = object.__setattr__
        # frozen: the checked values replace those that were given
        put(self, "clip", checks.positive("clip", self.clip, hint="1 is usual", error=BudgetError))
        put(self, "steps", _count("steps", self.steps))
        checks.one_of("unit", self.unit, ("user", "example"), error=BudgetError)
        if self.unit == "user":
            self._check_user()
        else:
            self._check_example()

    def _check_user(self) -> None:
        of_examples = (self.sampling, self.batch_size, self.records, self.rate, self.weighting)
        if any(given is not None for given in of_examples):
            raise BudgetError(
                "at user level sampling examples gains no privacy, so batch_size, records, "
                'sampling, rate and weighting do not apply; drop them, or choose unit="example"'
            )
        if self.relation not in (None, "replace"):
            raise BudgetError(
                f"at user level neighbours replace one user's data; relation {self.relation!r} is "
                "not offered"
            )
        object.__setattr__(self, "relation", "replace")

    def _check_example(self) -> None:
        put = object.__setattr__
        sampling = self.sampling or "poisson"
        hint = "shuffled epochs have no amplification theorem"
        checks.one_of("sampling", sampling, ("poisson", "fixed"), hint=hint, error=BudgetError)
        relation = self.relation or ("add-remove" if sampling == "poisson" else "replace")
        checks.one_of("relation", relation, ("add-remove", "replace"), error=BudgetError)
        # a batch of fixed size is always full: an example that is gone makes room for another
        if sampling == "fixed" and relation == "add-remove":
            raise BudgetError(
                'fixed-size sampling is accounted for relation="replace" only; '
                'choose that, or sampling="poisson"'
            )
        # the defaults are written out, so that equal exposures compare equal
        put(self, "sampling", sampling)
        put(self, "relation", relation)
        if self.rate is not None or self.weighting is not None:
            self._check_common_rate()
            return
        if self.batch_size is None or self.records is None:
            raise BudgetError(
                'unit="example" needs batch_size and records, such as batch_size=64, records=3750'
            )
        put(self, "batch_size", _count("batch_size", self.batch_size))
        put(self, "records", _records(self.records))
        given = self.records
        counts = given.values() if isinstance(given, Mapping) else np.atleast_1d(given).tolist()
        # batch_size / records is a probability, which cannot be above one
        if self.batch_size > min(counts):
            raise BudgetError(
                f"batch_size {self.batch_size} is larger than the smallest shard, {min(counts)} "
                "examples; lower it"
            )

    def _check_common_rate(self) -> None:
        put, rate = object.__setattr__, checks.as_float(self.rate)
        if not 0.0 < rate <= 1.0:
            raise BudgetError(
                f"rate must be a probability above 0 and up to 1, not {self.rate!r}; 0.01 is usual"
            )
        put(self, "rate", rate)
        # a fixed size over the number of examples is a rate that depends on a private number
        if self.sampling != "poisson":
            raise BudgetError(
                'rate draws every example independently; drop it, or take sampling="poisson"'
            )
        if self.weighting is not None:
            checks.one_of("weighting", self.weighting, ("records",), error=BudgetError)
        if self.weighting is not None and self.records is not None:
            if self.batch_size is not None:
                raise BudgetError(
                    'weighting="records" computes the batch size from records; drop batch_size, or '
                    "weighting and records"
                )
            put(self, "batch_size", _mean_batch(rate, _records(self.records)))
            # from here on only their total is known
            put(self, "records", None)
        if self.records is not None:
            raise BudgetError(
                "with rate nobody's number of examples need be known; drop records, or compute "
                'the batch size from them with weighting="records"'
            )
        if self.batch_size is None:
            raise BudgetError(
                "rate needs a public batch_size that sums are divided by, about rate x mean "
                'number of examples; or weighting="records" and records'
            )
        put(self, "batch_size", _count("batch_size", self.batch_size))

    def records_of(self, topology: Topology) -> tuple[int, ...]:
        """Number of examples of each user, in the graph's order; example level without `rate`.

        Args:
            topology: The graph.

        Raises:
            BudgetError: If names do not match, or for a list where users have names.
        """
        if self.rate is not None:
            raise BudgetError("with rate nobody's number of examples is known")
        given, users = self.records, topology.users
        assert given is not None
        if isinstance(given, int):
            return (given,) * users
        if isinstance(given, Mapping):
            return tuple(in_order(given, topology, "records"))
        if topology.labels is not None:
            raise BudgetError(list_refusal(topology, "records", "152"))
        if len(given) != users:
            raise BudgetError(
                f"records has {len(given)} numbers for {users} users; give one number, or one for "
                "each user"
            )
        return tuple(given)

    def rates(self, topology: Topology) -> tuple[float, ...]:
        """Each user's sampling rate at example level, in the order of the graph `topology`."""
        if self.rate is not None:
            return (self.rate,) * topology.users
        assert self.batch_size is not None
        return tuple(self.batch_size / m for m in self.records_of(topology))

    def units(self, topology: Topology) -> int:
        """Number of protected units in the graph `topology`: its users, or all examples.

        With `rate` it is the number of examples that `batch_size` declares.
        """
        if self.unit == "user":
            return topology.users
        if self.rate is not None:
            assert self.batch_size is not None
            # batch_size is about rate x mean number of examples; this solves for the total
            return max(1, round(topology.users * self.batch_size / self.rate))
        return sum(self.records_of(topology))

    def check(self, topology: Topology) -> None:
        """Raises unless `records` suits the users of the graph `topology`."""
        if self.counts_are_public:
            self.records_of(topology)

    @property
    def counts_are_public(self) -> bool:
        """Whether the plan holds each user's number of examples."""
        return self.unit == "example" and self.rate is None

    def local_step(self, records: int) -> float:
        """The largest local gradient of a user in an expected batch, in clips; with `rate` only.

        Args:
            records: The user's number of examples.
        """
        assert self.rate is not None and self.batch_size is not None
        # each of rate x records examples is clipped to one before the sum is divided
        return self.rate * records / self.batch_size

    def to_json(self) -> dict[str, Any]:
        """Plain values, by the names of the fields; newer fields only where they are set.

        So texts and digests of earlier plans stay what they were.
        """
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        if isinstance(self.records, Mapping):
            values["records"] = dict(self.records)
        for name in ("rate", "weighting"):
            if values[name] is None:
                del values[name]
        return values

    @property
    def shift(self) -> float:
        """How far one protected unit can move a user's message, without gain from sampling."""
        if self.unit == "user":  # from one gradient of norm C to the opposite one
            return 2 * self.clip
        assert self.batch_size is not None
        # one example enters an average over the batch; to replace it moves it twice as far
        return (2.0 if self.relation == "replace" else 1.0) * self.clip / self.batch_size


def _records(given: Any) -> int | tuple[int, ...] | Counts:
    if checks.is_count(given, 0):
        return _count("records", given)
    counts: tuple[int, ...] | Counts
    if isinstance(given, Mapping):
        counts = Counts(given)
    else:
        counts = tuple(_count("records", m) for m in np.ravel(np.asarray(given)).tolist())
    if not counts:
        raise BudgetError("records is empty; give one number, or one for each user")
    return counts


def _mean_batch(rate: float, records: int | tuple[int, ...] | Counts) -> int:
    """rate x mean number of examples: the average over users is then that over all examples."""
    counts = list(records.values()) if isinstance(records, Counts) else np.atleast_1d(records)
    # a whole number: what it is rounded by scales all steps and all noise alike
    return max(1, round(rate * float(np.mean(counts))))


def check_method(method: Method, exposure: Exposure) -> None:
    """Raises unless the method is known, and can account for this exposure."""
    checks.one_of("method", method, ("exact", "paper"))
    if method == "paper" and exposure.unit == "example":
        raise BudgetError(
            'method "paper" is for unit "user"; the paper has no accountant for examples that '
            "composes"
        )


def _count(name: str, value: object) -> int:
    return checks.count(name, value, 1, 10**15, error=BudgetError)
