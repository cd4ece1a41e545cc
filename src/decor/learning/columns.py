"""Preparation: the columns of a table, described publicly, and made into a model's inputs.

Every record is prepared on its own, with public constants: nothing here computes a mean, a range
or a set of categories from the data. At example level a statistic of the other records would carry
a record past the noise.

Columns that are wrong are refused, because their names are public. Values never are: neighbours
would see the refusal, which depends on the data. They are clamped, become "other", or the record is
dropped, and `Counts` tells the owner, and no one else, how often.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from decor import checks
from decor.array_types import Array
from decor.errors import InputError

from .frames import Table, names_text, refuse_twice, table_of

OTHER = "other"
"""The category of every value that is not listed."""
Extra = Literal["refuse", "ignore"]

# ASCII, because \d alone also takes digits of other scripts
_WHOLE = re.compile(r"([+-]?\d+)\.0+", re.ASCII)
_MISSING_TYPES = ("NAType", "NaTType")
"""How pandas says that a value is missing, by the name of the type."""


class _Described:
    """A column or a label."""

    name: str
    kind: ClassVar[str]

    def to_json(self) -> dict[str, Any]:
        """The description as plain values."""
        fields = {key: list(v) if isinstance(v, tuple) else v for key, v in vars(self).items()}
        # name and kind first, as people write them
        return {"name": self.name, "kind": self.kind} | fields


@dataclass(frozen=True)
class NumberColumn(_Described):
    """A column of numbers with a public range, scaled to -1 to 1.

    Attributes:
        name: The column's name in the header.
        low: The value that becomes -1; smaller ones count as `low`.
        high: The value that becomes 1; larger ones count as `high`.
        missing: What an empty cell, or one that is no number, counts as; by default the middle
            of the range.

    Raises:
        InputError: If the range is empty or not finite, or `missing` lies outside it.
    """

    name: str
    low: float
    high: float
    missing: float | None = None
    kind: ClassVar[str] = "number"

    def __post_init__(self) -> None:
        _check_name(self.name)
        where = f"of column {self.name!r}"
        low, high = _finite(f"low {where}", self.low), _finite(f"high {where}", self.high)
        if not low < high:
            raise InputError(
                f"column {self.name!r} has the range {low:g} to {high:g}, which holds no values; "
                "give low below high"
            )
        middle = low / 2 + high / 2
        missing = middle if self.missing is None else _finite(f"missing {where}", self.missing)
        if not low <= missing <= high:
            raise InputError(
                f"missing {where} must lie in its range {low:g} to {high:g}, not {missing:g}"
            )
        _set(self, low=low, high=high, missing=missing)

    @property
    def features(self) -> tuple[str, ...]:
        """The name of each input that the column becomes."""
        return (self.name,)

    def scale(self, values: Array) -> tuple[Array, ColumnCounts]:
        """One input per record, between -1 and 1, and how many values had to be changed."""
        numbers = _numbers(values)
        missing = np.isnan(numbers)
        numbers[missing] = self.missing
        # what is missing is within the range by now, and not counted twice
        outside = (numbers < self.low) | (numbers > self.high)
        inside = np.clip(numbers, self.low, self.high)
        # halved first: the width of a very large range would overflow
        half = self.high / 2 - self.low / 2
        # clipped again: a rounding may lead past the ends
        scaled = np.clip((inside / 2 - self.low / 2) / half * 2 - 1, -1, 1)
        counts = ColumnCounts(missing=int(missing.sum()), clamped=int(outside.sum()))
        return scaled[:, None], counts

    @property
    def description(self) -> str:
        """What the column holds, in words."""
        return f"a number from {self.low:g} to {self.high:g}"


@dataclass(frozen=True)
class CategoryColumn(_Described):
    """A column of categories with public values: one input for each value, and one for "other".

    Attributes:
        name: The column's name in the header.
        values: The categories. A whole number is the same category as its text: 1, 1.0 and "1".
        missing: The category that an empty cell counts as: one of `values`, or "other".

    Raises:
        InputError: If a value is named twice, or is "other", which is always there.
    """

    name: str
    values: tuple[str, ...]
    missing: str = OTHER
    kind: ClassVar[str] = "category"

    def __init__(self, name: str, values: Iterable[object], missing: object = OTHER) -> None:
        _check_name(name)
        texts = _texts(f"values of column {name!r}", values, least=1)
        if OTHER in texts:
            raise InputError(
                f'values of column {name!r} must not have "other", which is always added; drop it'
            )
        default = category_text(missing)
        if default not in (*texts, OTHER):
            raise InputError(
                f'missing of column {name!r} must be one of its values or "other", not {missing!r}'
            )
        _set(self, name=name, values=texts, missing=default)

    @property
    def features(self) -> tuple[str, ...]:
        """The name of each input that the column becomes."""
        return tuple(f"{self.name}={value}" for value in (*self.values, OTHER))

    def scale(self, values: Array) -> tuple[Array, ColumnCounts]:
        """1 in the input of each record's category, else 0, and how many values were changed."""
        other = len(self.values)
        codes = _codes(values, self.values)
        missing, unknown = codes == _EMPTY, codes == _UNKNOWN
        default = other if self.missing == OTHER else self.values.index(self.missing)
        codes[missing], codes[unknown] = default, other
        one_hot = np.zeros((len(codes), other + 1))
        one_hot[np.arange(len(codes)), codes] = 1
        return one_hot, ColumnCounts(missing=int(missing.sum()), other=int(unknown.sum()))

    @property
    def description(self) -> str:
        """What the column holds, in words."""
        return f"one of {', '.join(self.values)}, or other"


@dataclass(frozen=True)
class PlainColumn(_Described):
    """A column of numbers that are taken as they are, for data that are prepared already.

    Not for federations: a value that is missing or no number is refused, which others would see.

    Attributes:
        name: The column's name in the header.
    """

    name: str
    kind: ClassVar[str] = "plain"

    def __post_init__(self) -> None:
        _check_name(self.name)

    @property
    def features(self) -> tuple[str, ...]:
        """The name of the input."""
        return (self.name,)

    def scale(self, values: Array) -> tuple[Array, ColumnCounts]:
        """The values as one input per record."""
        return plain_numbers(self.name, values)[:, None], ColumnCounts()

    @property
    def description(self) -> str:
        """What the column holds, in words."""
        return "a number, taken as it is"


@dataclass(frozen=True)
class Label(_Described):
    """The column to predict, with its public classes: class k of the model is `classes[k]`.

    A record whose label is missing or none of the classes is dropped.

    Attributes:
        name: The column's name in the header.
        classes: At least two. A whole number is the same class as its text: 1, 1.0 and "1".
    """

    name: str
    classes: tuple[str, ...]
    kind: ClassVar[str] = "classes"

    def __init__(self, name: str, classes: Iterable[object]) -> None:
        _check_name(name)
        _set(self, name=name, classes=_texts(f"classes of label {name!r}", classes, least=2))

    def targets(self, values: Array) -> tuple[Array, NDArray[np.bool_]]:
        """The class of each record as int64, and which records have one.

        Args:
            values: The column of the label, one value for each record.
        """
        codes = _codes(values, self.classes)
        # _EMPTY and _UNKNOWN are both negative
        return codes, codes >= 0

    @property
    def description(self) -> str:
        """What the column holds, in words."""
        return f"one of {', '.join(self.classes)}"


Column = NumberColumn | CategoryColumn | PlainColumn
AnyLabel = Label | NumberColumn | PlainColumn
"""A number with a public range is a label too (regression), clamped and scaled to -1 to 1.

A record in which it is missing is dropped.
"""
_KINDS: dict[str, type[Column] | type[Label]] = {
    each.kind: each for each in (NumberColumn, CategoryColumn, PlainColumn, Label)
}


@dataclass(frozen=True)
class ColumnCounts:
    """How many values of a column had to be changed.

    Attributes:
        missing: Empty, or no number in a column of numbers.
        clamped: Numbers outside the public range.
        other: Categories that are not listed.
    """

    missing: int = 0
    clamped: int = 0
    other: int = 0


@dataclass(frozen=True)
class Counts:
    """What preparation changed. Private: it is for the owner of the data and never leaves.

    Attributes:
        records: Records in the table.
        dropped: Records without a known label, which are not used.
        columns: Column names with their counts.
        classes: Class names with the number of records that are used; empty if the label is a
            number.
    """

    records: int
    dropped: int
    columns: dict[str, ColumnCounts]
    classes: dict[str, int]

    @property
    def used(self) -> int:
        """Records that are used."""
        return self.records - self.dropped

    @property
    def base_rate(self) -> float | None:
        """The share of the most frequent class: the accuracy of always guessing it.

        None if the label is a number, or no record is used.
        """
        total = sum(self.classes.values())
        return max(self.classes.values()) / total if total else None

    def lines(self) -> list[str]:
        """Sentences for the owner's terminal, one per thing that was found."""
        lines = [f"{self.used:,} of {self.records:,} records are used"]
        if self.dropped:
            were = "record without a known label was", "records without a known label were"
            lines.append(f"{_count_values(self.dropped, *were)} dropped")
        for name, counts in self.columns.items():
            for number, end in (
                (counts.missing, "missing"),
                (counts.clamped, "outside the range, clamped"),
                (counts.other, 'not listed, taken as "other"'),
            ):
                if number:
                    lines.append(
                        f"column {name!r}: {_count_values(number, 'value', 'values')} {end}"
                    )
        if self.base_rate is not None:
            most = max(self.classes, key=self.classes.__getitem__)
            lines.append(f"always guessing {most!r} is right for {100 * self.base_rate:.1f} %")
            absent = [name for name, number in self.classes.items() if not number]
            if absent:
                lines.append(f"no record is of class {', '.join(map(repr, absent))}")
        return lines


@dataclass(frozen=True)
class Prepared:
    """A table made into a model's inputs.

    Attributes:
        features: float32 [records, width].
        targets: int64 [records], the number of the class; float32 [records, 1] if the label is a
            number. None if the table was prepared without its label.
        counts: What was changed, for the owner only.
    """

    features: NDArray[np.float32]
    targets: Array | None
    counts: Counts


@dataclass(frozen=True)
class Preparation:
    """The columns that a model takes and its label, all public. The order is that of the inputs.

    Attributes:
        columns: Which columns, in the order of the inputs.
        label: The column to predict.

    Raises:
        InputError: If there is no column, or one is named twice.
    """

    columns: tuple[Column, ...]
    label: AnyLabel

    def __init__(self, columns: Iterable[Column], label: AnyLabel) -> None:
        columns = tuple(columns)
        for column in columns:
            if not isinstance(column, Column):
                raise InputError(
                    "columns must be NumberColumn, CategoryColumn or PlainColumn, not "
                    f"{column!r}; describe each column"
                )
        if not isinstance(label, AnyLabel):
            raise InputError(
                f"label must be a Label, NumberColumn or PlainColumn, not {label!r}; give "
                "Label(name, classes=[...])"
            )
        if not columns:
            raise InputError("there are no columns beside the label; name at least one")
        refuse_twice("the description", [column.name for column in columns] + [label.name])
        _set(self, columns=columns, label=label)

    @property
    def width(self) -> int:
        """How many inputs the model takes."""
        return len(self.features)

    @cached_property
    def features(self) -> tuple[str, ...]:
        """The name of each input, such as "age" and "sex=f"."""
        return tuple(name for column in self.columns for name in column.features)

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The names of the classes; None if the label is a number."""
        return self.label.classes if isinstance(self.label, Label) else None

    def check_names(
        self, names: Sequence[str], where: str = "the table", *, extra: Extra = "refuse"
    ) -> None:
        """Refuses a header that does not name the columns and the label once each, in any order.

        Args:
            names: The header.
            where: What messages call the table, such as "bonn.csv".
            extra: Whether columns that are not described are refused or ignored.

        Raises:
            InputError: Naming the columns that are missing, extra or named twice.
        """
        self._check_names([str(name).strip() for name in names], where, extra, labelled=True)

    def apply(
        self,
        table: object,
        where: str = "the table",
        *,
        labelled: bool = True,
        extra: Extra = "refuse",
    ) -> Prepared:
        """Prepares a table, record by record.

        Args:
            table: A DataFrame of any library that narwhals knows (pandas, polars, pyarrow), or a
                mapping from column names to equally long lists or arrays, of numbers or texts.
                Columns are found by name; their order does not matter.
            where: What messages call the table, such as "bonn.csv".
            labelled: False for records to predict: a label is not needed, and not looked at.
            extra: Whether columns that are not described are refused or ignored.

        Returns:
            Features, targets and counts. The order of the records is kept; those without a known
            label are left out.

        Raises:
            InputError: If columns are missing, extra, named twice or of different length. Values
                are never refused, except by PlainColumn.
        """
        content = table_of(table, where)
        self._check_names(content.names, where, extra, labelled)
        records = content.records
        used = np.ones(records, dtype=bool)
        targets: Array | None = None
        counts: dict[str, ColumnCounts] = {}
        if labelled:
            targets, used, counts = self._targets(content)
            targets = targets[used]
        blocks = []
        for column in self.columns:
            # dropped records are left out here, so that counts are of what is trained on
            block, counts[column.name] = column.scale(content.column(column.name)[used])
            blocks.append(block.astype(np.float32))
        classes = self._class_counts(targets)
        return Prepared(
            features=np.concatenate(blocks, axis=1),
            targets=targets,
            counts=Counts(records, records - int(used.sum()), counts, classes),
        )

    def _targets(self, content: Table) -> tuple[Array, NDArray[np.bool_], dict[str, ColumnCounts]]:
        """The targets, which records have one, and what was changed in the label."""
        label, values = self.label, content.column(self.label.name)
        if isinstance(label, Label):
            return *label.targets(values), {}
        if isinstance(label, PlainColumn):
            return plain_targets(label.name, values), np.ones(len(values), dtype=bool), {}
        used = ~np.isnan(_numbers(values))
        scaled, _ = label.scale(values)
        # records without a label are counted as dropped, and not as missing
        return scaled.astype(np.float32), used, {label.name: label.scale(values[used])[1]}

    def _class_counts(self, targets: Array | None) -> dict[str, int]:
        if targets is None or self.classes is None:
            return {}
        numbers = np.bincount(targets, minlength=len(self.classes)).tolist()
        return dict(zip(self.classes, numbers, strict=True))

    def _check_names(self, names: Sequence[str], where: str, extra: Extra, labelled: bool) -> None:
        wanted = [column.name for column in self.columns]
        if labelled:
            wanted.append(self.label.name)
        # records to predict may have a label; it is allowed, and not looked at
        known = {*wanted, self.label.name}
        refuse_twice(where, names)
        absent = [name for name in wanted if name not in names]
        unknown = [name for name in names if name not in known] if extra == "refuse" else []
        if absent and unknown:
            raise InputError(
                f"{where} has no column {names_text(absent)}, but has {names_text(unknown)}, "
                "which the description does not name; rename or drop columns"
            )
        if absent:
            raise InputError(
                f"{where} has no column {names_text(absent)}; its header has {names_text(names)}; "
                "add it"
            )
        if unknown:
            raise InputError(
                f"{where} has column {names_text(unknown)}, which the description does not name; "
                "drop it from the file"
            )

    def to_json(self) -> dict[str, Any]:
        """The description as plain values; `from_json` is the inverse."""
        return {
            "columns": [column.to_json() for column in self.columns],
            "label": self.label.to_json(),
        }

    @classmethod
    def from_json(cls, value: object, where: str = "the description") -> Preparation:
        """Reads what `to_json` gives, or the same from TOML. Unknown keys are refused.

        Args:
            value: {"columns": [{"name": "age", "kind": "number", "low": 0, "high": 100}, ...],
                "label": {"name": "ill", "classes": ["no", "yes"]}}. `missing` may be left out, and
                the kind of a label with classes.
            where: What messages call it.
        """
        if not isinstance(value, Mapping) or set(value) != {"columns", "label"}:
            raise InputError(f"{where} must have columns and label, and nothing else")
        columns, label = value["columns"], value["label"]
        if not isinstance(columns, list | tuple):
            raise InputError(f"{where}: columns must be a list of columns, not {columns!r}")
        made = [
            _column_from_json(column, f"{where}: column {k}")
            for k, column in enumerate(columns, start=1)
        ]
        if isinstance(label, Mapping) and "kind" not in label:
            label = {**label, "kind": Label.kind}
        return cls(made, _column_from_json(label, f"{where}: label"))  # type: ignore[arg-type]

    def digest(self) -> str:
        """SHA-256 of the description, in hexadecimal digits: equal ones prepare alike."""
        # the first entry keeps this hash apart from hashes of other things
        text = json.dumps(["decor-preparation-1", self.to_json()], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def plain_numbers(name: str, values: Array) -> Array:
    """The values of a column as float64; refuses the column if one of them is no number.

    Args:
        name: The column, for messages. They repeat no value.
        values: The column's values.
    """
    numbers = _numbers(values)
    wrong = ~np.isfinite(numbers)
    if not wrong.any():
        return numbers
    number = f'NumberColumn("{name}", low, high, missing)'
    category = f'CategoryColumn("{name}", values=[...])'
    count = int(wrong.sum())
    others = [cell for cell in values[wrong].tolist() if _is_no_number(cell)]
    if others and wrong.all():
        what = "text" if isinstance(others[0], str) else type(others[0]).__name__
        raise InputError(
            f"column {name!r} holds {what}, not numbers; describe it as {category}, or convert it "
            f"to numbers and describe it as {number}"
        )
    if np.isnan(numbers).all():
        raise InputError(
            f"column {name!r} has no value in any record; leave it out, or describe it as {number}"
        )
    which = "value that is" if count == 1 else "values that are"
    # texts among numbers: nobody but the caller knows which of the two the column means
    or_category = f", or as {category} if its numbers are names" if others else ""
    raise InputError(
        f"column {name!r} has {count:,} {which} missing or no number; fill "
        f"{'it' if count == 1 else 'them'} in, or describe the column as {number}{or_category}"
    )


def _is_no_number(cell: object) -> bool:
    """Whether a cell holds something else than a number; one that is missing holds nothing."""
    return not isinstance(cell, int | float) and category_text(cell) != ""


def plain_targets(name: str, values: Array) -> Array:
    """The values of a label as they are: int64 if all are whole, else float32 [records, 1]."""
    try:
        numbers = plain_numbers(name, values)
    except InputError:
        raise InputError(
            f"label {name!r} has values that are missing or no number; give "
            f'label=Label("{name}", classes=[...])'
        ) from None
    # beyond 2^53 a float64 label may already be rounded
    if bool(((numbers == np.floor(numbers)) & (np.abs(numbers) < 2**53)).all()):
        return numbers.astype(np.int64)
    return numbers.astype(np.float32)[:, None]


def _set(target: object, **fields: object) -> None:
    for name, value in fields.items():
        object.__setattr__(target, name, value)


def _count_values(number: int, one: str, several: str) -> str:
    return f"{number:,} {one if number == 1 else several}"


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name or name != name.strip():
        raise InputError(
            f"the name of a column must be a text without blanks at its ends, not {name!r}"
        )


def _finite(what: str, value: object) -> float:
    number = checks.as_float(value)
    if not math.isfinite(number) or abs(number) > checks.LARGEST:
        raise InputError(f"{what} must be a finite number, not {value!r}")
    return number


def _texts(what: str, values: Iterable[object], least: int) -> tuple[str, ...]:
    """Categories as texts: at least some, all different."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InputError(f"{what} must be a list of texts or whole numbers, not {values!r}")
    texts = tuple(map(category_text, values))
    if len(texts) < least or "" in texts:
        raise InputError(f"{what} must be at least {least}, none of them empty, not {texts!r}")
    refuse_twice(what, texts, "value")
    return texts


def _numbers(values: Array) -> Array:
    """A fresh float64 array; NaN where a value is missing or no number."""
    if values.dtype.kind in "fiub":
        return values.astype(np.float64)
    # astype would make dates counts of ticks, and drop imaginary parts
    if values.dtype.kind in "mMc":  # dates and complex numbers
        return np.full(len(values), np.nan)
    cells = values.tolist()
    try:  # five times as fast, and the same values: float() reads each cell on its own
        if "_" not in "".join(cells):
            return np.fromiter(map(float, cells), dtype=np.float64, count=len(cells))
    except (TypeError, ValueError):
        pass
    # one cell that is no number must not spoil the others: each is read alone
    return np.fromiter(map(_number, cells), dtype=np.float64, count=len(cells))


def _number(cell: object) -> float:
    try:
        # float() takes "1_0", which no table means as ten
        if isinstance(cell, str) and "_" in cell:
            return math.nan
        return float(cell)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return math.nan


_EMPTY, _UNKNOWN = -2, -1


def _codes(values: Array, known: Sequence[str]) -> Array:
    """The place of each value among the known ones, or _EMPTY or _UNKNOWN."""
    places = {value: k for k, value in enumerate(known)}
    # takes no category's place: none may be empty
    places[""] = _EMPTY
    cells = values.tolist()
    codes = (places.get(category_text(cell), _UNKNOWN) for cell in cells)
    return np.fromiter(codes, dtype=np.int64, count=len(cells))


def category_text(cell: object) -> str:
    """A category as text: stripped, whole numbers without a point, and "" where it is missing.

    Args:
        cell: A value of a column.
    """
    if isinstance(cell, str):
        text = cell.strip()
    # by the type's name, because pandas need not be installed
    elif cell is None or type(cell).__name__ in _MISSING_TYPES:
        return ""
    elif isinstance(cell, float | np.floating):
        # a float of Python first: NumPy's own repr may name its type
        text = "" if math.isnan(cell) else repr(float(cell))
    else:
        text = str(cell).strip()
    whole = _WHOLE.fullmatch(text)
    return whole[1] if whole else text


def _column_from_json(value: object, where: str) -> Column | Label:
    kinds = ", ".join(f'"{kind}"' for kind in _KINDS)
    if not isinstance(value, Mapping) or value.get("kind") not in _KINDS:
        raise InputError(f"{where} must have a name and a kind, one of {kinds}, not {value!r}")
    fields = {name: part for name, part in value.items() if name != "kind"}
    try:
        return _KINDS[value["kind"]](**fields)
    except TypeError as problem:  # a key too many, or one that is missing
        reason = str(problem).partition("() ")[2]
        raise InputError(f"{where} of kind {value['kind']!r}: {reason}") from None
