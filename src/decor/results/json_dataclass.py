"""JsonRecord: a frozen dataclass that is written to JSON and read back by its type hints."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, Self, Union, get_args, get_origin
from typing import get_type_hints as type_hints

from decor.errors import InputError

Epsilon = Annotated[float, "may be infinite"]
"""In JSON an infinite epsilon is the string "inf"."""

Settings = dict[str, object]
"""Names and JSON values that are shown as they are."""


class JsonRecord:
    """Base of the dataclasses of this package that are stored as JSON objects."""

    optional_keys: ClassVar[frozenset[str]] = frozenset()
    """Keys that are left out of the JSON object where the value is None or False."""

    def to_json(self) -> dict[str, Any]:
        """This record as plain JSON values: infinity is "inf", and NaN is null."""
        return {
            name: _to_json(value)
            for name, value in vars(self).items()
            if not (name in self.optional_keys and (value is None or value is False))
        }

    @classmethod
    def from_json(cls, value: object, where: str = "") -> Self:
        """Reads a JSON object. Unknown keys are ignored, so that newer files can be read.

        Args:
            value: The parsed JSON.
            where: The place of this object in its file, for error messages.

        Raises:
            InputError: If a value is missing or of the wrong type; the message names the place.
        """
        if not isinstance(value, dict):
            raise wrong_value(where, value, "an object")
        known = {}
        for field, hint in _field_hints(cls):  # type: ignore[arg-type]  # a class is hashable
            place = f"{where}.{field.name}" if where else field.name
            optional = field.default is not MISSING or field.default_factory is not MISSING
            # versions before 0.2 wrote null for an empty list: null is as good as absent
            if optional and value.get(field.name) is None:
                continue
            # a key that is needed and absent is refused like null
            known[field.name] = from_json(hint, value.get(field.name), place)
        return cls(**known)


def from_json(hint: Any, value: Any, where: str) -> Any:
    """Reads a JSON value as the type `hint`; raises InputError that names the place."""
    kind, parts = get_origin(hint) or hint, get_args(hint)
    if kind is object:
        return value
    if kind is Annotated:  # Epsilon is the only annotated type
        return math.inf if value == "inf" else from_json(parts[0], value, where)
    if kind in (Union, UnionType):
        return _union_from_json(parts, value, where)
    if kind is Literal:
        if value not in parts:
            raise wrong_value(where, value, " or ".join(map(repr, parts)))
        return value
    if kind is tuple:
        return _tuple_from_json(parts, value, where)
    if kind is dict:
        if not isinstance(value, dict):
            raise wrong_value(where, value, "an object")
        return {key: from_json(parts[1], item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(kind, type) and issubclass(kind, JsonRecord):
        return kind.from_json(value, where)
    return _scalar_from_json(kind, value, where)


def wrong_value(where: str, value: object, wanted: str) -> InputError:
    """The error for one value; a long value is cut."""
    text = repr(value)
    text = text if len(text) <= 80 else text[:77] + "..."
    return InputError(f"report data, {where or 'whole file'}: {text} where {wanted} is needed.")


def _scalar_from_json(kind: type, value: Any, where: str) -> Any:
    # in Python True is an int, and JSON allows NaN here: neither is a number of a report
    wanted, right = {
        float: ("a number", isinstance(value, int | float) and not isinstance(value, bool)),
        int: ("a whole number", isinstance(value, int) and not isinstance(value, bool)),
        bool: ("true or false", isinstance(value, bool)),
        str: ("text", isinstance(value, str)),
    }[kind]
    # compared as numbers: math.isfinite fails for an int that no float can hold
    if not right or (kind is float and not abs(value) <= sys.float_info.max):
        raise wrong_value(where, value, wanted)
    return value


def _tuple_from_json(parts: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    """A list as `tuple[T, ...]`, or a list of known length as `tuple[A, B]`."""
    if not isinstance(value, list):
        raise wrong_value(where, value, "a list")
    if parts[-1] is Ellipsis:
        return tuple(from_json(parts[0], item, f"{where}[{k}]") for k, item in enumerate(value))
    # such as a pair of users
    if len(value) != len(parts):
        raise wrong_value(where, value, f"a list of {len(parts)}")
    return tuple(from_json(part, item, where) for part, item in zip(parts, value, strict=True))


def _union_from_json(parts: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and NoneType in parts:
        return None
    # of two types, such as a number or a range, an object can only be the record
    records = [part for part in parts if is_dataclass(part)]
    others = [part for part in parts if part is not NoneType and part not in records]
    chosen = records if records and (isinstance(value, dict) or not others) else others
    return from_json(chosen[0], value, where)


@cache
def _field_hints(cls: type) -> list[tuple[Any, Any]]:
    # extras: Epsilon is told from other floats by its annotation
    hints = type_hints(cls, include_extras=True)
    return [(field, hints[field.name]) for field in fields(cls)]


def _to_json(value: Any) -> Any:
    if isinstance(value, JsonRecord):
        return value.to_json()
    if isinstance(value, list | tuple):
        return [_to_json(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _to_json(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value
