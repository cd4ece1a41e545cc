"""The federation's file: which fields it has, what each may be, and how they are read and written.

A section of the file is a frozen class here, a field of it a field there. A field that is left out
has the value written here, so that a file which spells it out says the same. What has no meaning in
its place is refused, never ignored.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from importlib import import_module
from typing import Any, TypeVar

from decor import checks
from decor.choices import Dtype, Relation, Sampling, Unit
from decor.errors import InputError, require
from decor.privacy.adversary import Adversary

FORMAT = "decor-federation-1"
FAMILIES = ("ring", "path", "star", "complete", "hypercube", "torus", "grid")
"""Graphs that follow from their name and the number of users on every machine; a drawn one is
written as its edges.
"""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_CODE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
_ADDRESS = re.compile(r"[!-~]{0,255}")

Section = TypeVar("Section")


@dataclass(frozen=True)
class Rule:
    """What a field may be: in words that end "must be ...", and as what it is kept (None: it cannot
    be meant).
    """

    words: str
    taken: Callable[[Any], Any]


def _number(words: str, fits: Callable[[float], bool]) -> Rule:
    def taken(value: Any) -> float | None:
        number = checks.as_float(value)
        # + 0.0: there is one zero
        return number + 0.0 if abs(number) <= checks.LARGEST and fits(number) else None

    return Rule(words, taken)


def _whole(least: int, most: int = 2**32 - 1) -> Rule:
    def taken(value: Any) -> int | None:
        return value if checks.is_count(value, least, most) else None

    return Rule(f"a whole number from {least} to {most:,}", taken)


def _choice(*names: str) -> Rule:
    words = ", ".join(f'"{name}"' for name in names[:-1]) + f' or "{names[-1]}"'
    return Rule(words, lambda value: value if isinstance(value, str) and value in names else None)


def _text(words: str, pattern: re.Pattern[str]) -> Rule:
    return Rule(
        words, lambda value: value if isinstance(value, str) and pattern.fullmatch(value) else None
    )


def _adversary(value: Any) -> str | None:
    try:
        found = Adversary.parse(value) if isinstance(value, str) else None
    except InputError:
        return None
    return None if found is None or found.average_only else str(found)


def _sizes(value: Any) -> tuple[int, ...] | None:
    each = _whole(1).taken
    return (
        tuple(value)
        if isinstance(value, list | tuple) and value and all(each(size) for size in value)
        else None
    )


def _pairs(value: Any) -> tuple[tuple[str, str], ...] | None:
    if not isinstance(value, list | tuple) or not value:
        return None
    named = all(
        isinstance(p, list | tuple) and len(p) == 2 and all(isinstance(n, str) for n in p)
        for p in value
    )
    return tuple((pair[0], pair[1]) for pair in value) if named else None


NAME = _text("a name of letters, digits, dots, dashes and underlines, 64 at most", _NAME)
_POSITIVE = _number("a positive number", lambda value: value > 0)
_SHARE = _number("a number from 0 to less than 1", lambda value: 0 <= value < 1)
_AT_LEAST_0 = _number("a number of at least 0", lambda value: value >= 0)


def _field(rule: Rule, default: Any = MISSING, help: str = "") -> Any:
    """A field with its rule, and the help text of its option of `decor federation new`."""
    metadata = {"rule": rule, "help": help}
    return (
        field(metadata=metadata)
        if default is MISSING
        else field(default=default, metadata=metadata)
    )


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """[privacy]: what may be spent, on what, against whom.

    `ratio` fixes sigma_cor^2 / sigma_cdp^2; left out, it is the one of least predicted error when
    nobody ever fails. `sampling` and `relation` belong to unit "example", as in `decor.Exposure`.
    `any_delta` allows a delta above 0.001, or above one over the number of users (or of all
    records).
    """

    epsilon: float = _field(
        _number(
            "a positive number of at most 1e9, such as 3.0", lambda value: 1e-100 <= value <= 1e9
        ),
        help="the most that may be spent",
    )
    delta: float = _field(
        _number("a number between 0 and 1, such as 1e-5", lambda value: 1e-100 <= value < 1),
        help="failure probability, such as 1e-6 or 1/1000000",
    )
    adversary: str = _field(
        Rule(
            '"eavesdropper", "curious", "colluding:Q" (such as "colluding:2") or "everyone"',
            _adversary,
        ),
        help="eavesdropper, curious, colluding:Q or everyone",
    )
    unit: Unit = _field(
        _choice("user", "example"), "user", help="user (all data of a user) or example (one record)"
    )
    sampling: Sampling | None = _field(
        _choice("poisson", "fixed"), None, help="example level: poisson (default) or fixed"
    )
    relation: Relation | None = _field(
        _choice("add-remove", "replace"),
        None,
        help="example level: add-remove (default with poisson) or replace",
    )
    ratio: float | None = _field(
        _number("a number from 0 to 1e9, such as 100.0", lambda value: 0 <= value <= 1e9),
        None,
        help="fix sigma_cor^2 / sigma_cdp^2",
    )
    any_delta: bool = _field(
        Rule("true or false", lambda value: value if isinstance(value, bool) else None),
        False,
        help="allow a delta above 0.001, or above one over the number of users (of all records at "
        "example level)",
    )

    def __post_init__(self) -> None:
        _check(self, "privacy")
        if self.unit == "user":
            if self.sampling is not None:
                raise InputError(
                    f"privacy.sampling {self.sampling!r} counts with privacy.unit = "
                    '"example" only; drop it'
                )
            if self.relation == "add-remove":
                raise InputError(
                    'privacy.relation "add-remove" counts with privacy.unit = "example" only: at '
                    "user level one user's data is "
                    "replaced; drop it"
                )
            object.__setattr__(self, "relation", "replace")
            return
        object.__setattr__(self, "sampling", self.sampling or "poisson")
        if self.sampling == "fixed" and self.relation == "add-remove":
            raise InputError(
                'privacy.relation "add-remove" is accounted for privacy.sampling = "poisson" '
                'only; take that, or "replace"'
            )
        object.__setattr__(
            self,
            "relation",
            self.relation or ("add-remove" if self.sampling == "poisson" else "replace"),
        )


@dataclass(frozen=True, kw_only=True)
class Training:
    """[training]: how everybody trains.

    `batch_size` is how many records a gradient averages; at example level it is needed.
    """

    steps: int = _field(_whole(1), help="training steps")
    clip: float = _field(
        _number("a positive number, such as 1.0", lambda value: value >= 1e-100),
        help="norm to which gradients are clipped",
    )
    learning_rate: float = _field(_POSITIVE, help="step size")
    schedule: str = _field(
        _choice("constant", "inverse-time", "cosine"),
        "constant",
        help="constant, inverse-time or cosine",
    )
    horizon: float | None = _field(_POSITIVE, None, help="of inverse-time, in steps")
    final: float | None = _field(
        _number("a number from 0 to 1", lambda value: 0 <= value <= 1),
        None,
        help="of cosine: the last step size, as a share of the first",
    )
    momentum: float = _field(_SHARE, 0.0, help="heavy-ball momentum of noised gradients")
    weight_decay: float = _field(_AT_LEAST_0, 0.0, help="weight decay")
    gossip_rounds: int = _field(_whole(1, 10_000), 1, help="rounds of averaging per step")
    accelerate: str = _field(
        _choice("no", "chebyshev", "designed"),
        "no",
        help="better weights for several rounds: no, chebyshev or designed",
    )
    final_gossip_rounds: int = _field(
        _whole(0, 10_000), 0, help="rounds of averaging after the last step"
    )
    batch_size: int | None = _field(_whole(1), None, help="examples per gradient (default: all)")
    dtype: Dtype = _field(_choice("float32", "float64"), "float32", help="float32 or float64")

    def __post_init__(self) -> None:
        _check(self, "training")
        if self.schedule == "inverse-time" and self.horizon is None:
            raise InputError(
                'training.schedule "inverse-time" needs training.horizon, in steps, such as 5000.0'
            )
        if self.schedule == "cosine":
            object.__setattr__(self, "final", 0.0 if self.final is None else self.final)
        for name, owner in (("horizon", "inverse-time"), ("final", "cosine")):
            if getattr(self, name) is not None and self.schedule != owner:
                raise InputError(
                    f'training.{name} counts with training.schedule = "{owner}" '
                    "only; drop it, or take that"
                )
        if self.accelerate != "no" and self.gossip_rounds < 2:
            raise InputError(
                f'training.accelerate "{self.accelerate}" changes nothing about one gossip round; '
                "take training.gossip_rounds of 2 or more, or drop it"
            )


@dataclass(frozen=True, kw_only=True)
class Model:
    """[model]: a built-in `kind` with its sizes, or `code` that everybody can read: a function that
    gives (module, loss).

    Logistic, multinomial and linear models start at fixed weights; an MLP's, and what code draws
    from torch, follow the seed.
    """

    kind: str | None = _field(
        _choice("logistic", "multinomial", "mlp", "linear"),
        None,
        help="logistic, multinomial, mlp or linear",
    )
    code: str | None = _field(
        _text('"package.module:function"', _CODE),
        None,
        help="public code that gives (module, loss), as MODULE:FUNCTION, instead of --model",
    )
    features: int | None = _field(_whole(1), None, help="inputs of the model")
    classes: int | None = _field(_whole(2), None, help="classes to tell apart")
    hidden: tuple[int, ...] | None = _field(
        Rule("a list of layers' sizes, such as [128]", _sizes),
        None,
        help="sizes of an mlp's hidden layers, with commas",
    )
    activation: str | None = _field(
        _choice("relu", "tanh"), None, help="of an mlp: relu (default) or tanh"
    )
    seed: int | None = _field(_whole(0, 2**63 - 1), None, help="of the first weights (default: 0)")

    def __post_init__(self) -> None:
        _check(self, "model")
        if (self.kind is None) == (self.code is None):
            raise InputError(
                'give either model.kind, such as "logistic", or model.code, such as '
                '"package.module:function"'
            )
        what = self.kind or "code"
        usual = _SIZES[what]
        for name in ("features", "classes", "hidden", "activation", "seed"):
            given = getattr(self, name)
            if name not in usual and given is not None:
                raise InputError(
                    f"model.{name} {shown(given)} does not apply to model {what!r}; drop it"
                )
            if given is None and usual.get(name, 0) is None:
                raise InputError(
                    f"model.{name} is missing: model {what!r} needs {_rules(Model)[name].words}"
                )
            if given is None:
                object.__setattr__(self, name, usual.get(name))
        if self.kind == "logistic" and self.classes != 2:
            raise InputError(
                f'model.classes must be 2 for "logistic", not {self.classes}; take '
                '"multinomial" for more'
            )

    @property
    def sizes(self) -> tuple[int, ...] | None:
        """From features to outputs; None where only the code knows."""
        if self.features is None:
            return None
        outputs = self.classes if self.kind in ("multinomial", "mlp") else 1
        return (self.features, *(self.hidden or ()), outputs or 1)


_SIZES: dict[str, dict[str, Any]] = {
    "logistic": {"features": None, "classes": 2},
    "multinomial": {"features": None, "classes": None},
    "mlp": {"features": None, "classes": None, "hidden": None, "activation": "relu", "seed": 0},
    "linear": {"features": None},
    "code": {"seed": 0},
}
"""What every kind of model takes, and what is left out with which default (None: it has to be
said).
"""


@dataclass(frozen=True, kw_only=True)
class Network:
    """[network]: who talks to whom, and how long one waits.

    `topology` is a graph that follows from the number of users (`rows` for torus and grid; left
    out, the most square), or `edges` are pairs of users' names. After `timeout` seconds of silence
    a step goes on without a neighbour; with less than the share `quorum` of its neighbours a user
    waits. At the start it waits `patience` seconds for all its neighbours before a quorum of them
    is enough.
    """

    topology: str | None = _field(_choice(*FAMILIES), None)
    rows: int | None = _field(_whole(1), None)
    edges: tuple[tuple[str, str], ...] | None = _field(
        Rule('pairs of users, such as [["bonn", "ulm"]]', _pairs), None
    )
    timeout: float = _field(
        _number("a positive number of seconds, a million at most", lambda value: 0 < value <= 1e6),
        30.0,
        help="seconds of silence after which a step goes on without a neighbour",
    )
    quorum: float = _field(
        _number("a share above 0 and up to 1", lambda value: 0 < value <= 1),
        0.5,
        help="least share of neighbours to go on with",
    )
    patience: float = _field(
        _number("a number of seconds, a million at most", lambda value: 0 <= value <= 1e6),
        300.0,
        help="seconds to wait for all neighbours at the start",
    )

    def __post_init__(self) -> None:
        if isinstance(self.topology, str) and self.topology.replace("_", "-") in (
            "random-regular",
            "erdos-renyi",
        ):
            raise InputError(
                f"network.topology {self.topology!r} is drawn, and might be another on another "
                "machine; write its edges "
                "as network.edges, as decor federation new does"
            )
        _check(self, "network")
        if (self.topology is None) == (self.edges is None):
            raise InputError(
                'give either network.topology, such as "ring", or network.edges, '
                'such as [["bonn", "ulm"]]'
            )
        if self.rows is not None and self.topology not in ("torus", "grid"):
            raise InputError(f"network.rows {self.rows} counts for torus and grid only; drop it")


@dataclass(frozen=True)
class Member:
    """A user of the federation: its name, where it listens ("host:port", or "" if it only dials),
    and its public key.

    `records` is how many records it trains on, which is public at example level and has no place at
    user level.
    """

    name: str = _field(NAME)
    address: str = _field(_text('"host:port", or "" for who cannot be reached', _ADDRESS))
    public: bytes = _field(
        Rule(
            "the 32 bytes of a public key",
            lambda v: v if isinstance(v, bytes) and len(v) == 32 else None,
        )
    )
    records: int | None = _field(_whole(1, 10**15), None)

    def __post_init__(self) -> None:
        _check(self, "users")
        if self.address:
            try:
                net_module("transport").split(self.address)
            except InputError as problem:
                raise InputError(f"users.address of {self.name!r}: {problem}") from None

    @property
    def key(self) -> str:
        """The public key as the line that `decor keygen` prints."""
        return str(net_module("identity").line_of(self.public))


def net_module(module: str) -> Any:
    """A module of decor.net, which needs the library `cryptography`; says how to get it."""
    require("cryptography", "peer", "keys")
    return import_module(f"decor.net.{module}")


def section_of(kind: type[Section], table: Any, name: str) -> Section:
    """The section of that name; what is unknown or missing is named."""
    if table is None:
        raise InputError(
            f"the section [{name}] is missing; see the example of decor federation new --help"
        )
    if not isinstance(table, Mapping):
        raise InputError(f"{name} must be a section [{name}], not {shown(table)}")
    known: dict[str, Field[Any]] = {each.name: each for each in fields(kind)}  # type: ignore[arg-type]
    refuse_unknown(table, known, f"{name}.")
    for each in known.values():
        if each.default is MISSING and each.name not in table:
            raise InputError(f"{name}.{each.name} is missing; give {each.metadata['rule'].words}")
    return kind(**table)


def member_of(table: Any, number: int) -> Member:
    """A user as one [[users]] says it."""
    if not isinstance(table, Mapping):
        raise InputError(f"users must be tables [[users]], not {shown(table)}")
    name = table.get("name")
    who = f"user {number}" + (f" ({name})" if NAME.taken(name) else "")
    refuse_unknown(table, ("name", "address", "key", "records"), f"users ({who}): ")
    for needed in ("name", "address", "key"):
        if needed not in table:
            raise InputError(
                f"users.{needed} of {who} is missing; every user has a name, an "
                'address (or "") and a key'
            )
    try:
        public = net_module("identity").public_of(table["key"])
    except InputError as problem:
        raise InputError(f"users.key of {who}: {problem}") from None
    try:
        return Member(table["name"], table["address"], public, table.get("records"))
    except InputError as problem:
        raise InputError(f"{problem} ({who})") from None


def refuse_unknown(table: Mapping[str, Any], known: Any, prefix: str = "") -> None:
    for name in table:
        if name not in known:
            near = difflib.get_close_matches(name, list(known), 1, 0.7)
            meant = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            raise InputError(f"{prefix}{name} is no field of a federation's file; {meant}")


def written(tables: Mapping[str, Any]) -> str:
    """TOML of plain values: what stands alone first, then a section for every mapping, then tables
    for every list of mappings.
    """
    lines = [f"{name} = {_toml(value)}" for name, value in tables.items() if isinstance(value, str)]
    for name, value in tables.items():
        for table in (
            [value] if isinstance(value, Mapping) else value if isinstance(value, list) else []
        ):
            lines += ["", f"[{name}]" if isinstance(value, Mapping) else f"[[{name}]]"]
            lines += [f"{key} = {_toml(each)}" for key, each in table.items() if each is not None]
    return "\n".join(lines) + "\n"


def shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _toml(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, float):
        assert math.isfinite(value)
        return repr(value)
    return json.dumps(value)


def _rules(kind: type) -> dict[str, Rule]:
    return {each.name: each.metadata["rule"] for each in fields(kind)}


def _check(section: Any, name: str) -> None:
    """Every field by its rule; what is left out (None) stays so."""
    for each in fields(section):
        value, rule = getattr(section, each.name), each.metadata["rule"]
        if value is None and each.default is None:
            continue
        kept = rule.taken(value)
        if kept is None:
            raise InputError(f"{name}.{each.name} must be {rule.words}, not {shown(value)}")
        object.__setattr__(section, each.name, kept)
