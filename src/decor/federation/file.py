"""The federation's file: its fields, what each may be, and how they are read and written.

Each section of the file is a frozen class here, with the same fields. A field that is left out has
the default given here, so a file that spells it out means the same. A field that has no meaning in
its place is refused, never ignored.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import partial
from importlib import import_module
from typing import Any, TypeVar

from decor import checks
from decor.choices import Dtype, Relation, Sampling, Unit
from decor.errors import InputError, require
from decor.privacy.adversary import Adversary

FORMAT = "decor-federation-1"
FAMILIES = ("ring", "path", "star", "complete", "hypercube", "torus", "grid")
"""Graphs that follow from their name and the number of users; random ones are written as edges."""

# names become names of files: no slash, and no dot at the beginning
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_CODE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
# printable ASCII: addresses are written to logs
_ADDRESS = re.compile(r"[!-~]{0,255}")

Section = TypeVar("Section")


@dataclass(frozen=True)
class Rule:
    """What a field may be: `description` completes "must be ..."."""

    description: str
    accept: Callable[[Any], Any]
    """Returns the value to keep, or None to refuse it."""

    def check(self, name: str, value: Any) -> Any:
        """The value to keep; raises with the field's name."""
        kept = self.accept(value)
        if kept is None:
            raise InputError(f"{name} must be {self.description}, not {abbreviate(value)}")
        return kept


def _keep_if(fits: Callable[[Any], bool]) -> Callable[[Any], Any]:
    return lambda x: x if fits(x) else None


def _number(description: str, fits: Callable[[float], bool]) -> Rule:
    def accept(value: Any) -> float | None:
        number = checks.as_float(value)
        # + 0.0 turns -0.0 into 0.0, which has the same digest everywhere
        return number + 0.0 if abs(number) <= checks.LARGEST and fits(number) else None

    return Rule(description, accept)


def _whole(least: int, most: int = 2**32 - 1) -> Rule:
    fits = partial(checks.is_count, least=least, most=most)
    return Rule(f"a whole number from {least} to {most:,}", _keep_if(fits))


def _choice(*names: str) -> Rule:
    description = ", ".join(f'"{name}"' for name in names[:-1]) + f' or "{names[-1]}"'
    return Rule(description, _keep_if(lambda x: isinstance(x, str) and x in names))


def _text(description: str, pattern: re.Pattern[str]) -> Rule:
    def fits(value: Any) -> bool:
        # the whole text, not only its beginning
        return isinstance(value, str) and pattern.fullmatch(value) is not None

    return Rule(description, _keep_if(fits))


def _adversary(value: Any) -> str | None:
    try:
        adversary = Adversary.parse(value) if isinstance(value, str) else None
    except InputError:
        return None
    # one spelling for each adversary: equal files have equal digests
    return None if adversary is None or adversary.average_only else str(adversary)


def _sizes(value: Any) -> tuple[int, ...] | None:
    if not isinstance(value, list | tuple) or not value:
        return None
    return tuple(value) if all(map(_whole(1).accept, value)) else None


def _pairs(value: Any) -> tuple[tuple[str, str], ...] | None:
    if not isinstance(value, list | tuple) or not value:
        return None
    pairs = []
    for pair in value:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            return None
        if not all(isinstance(name, str) for name in pair):
            return None
        pairs.append((pair[0], pair[1]))
    return tuple(pairs)


def _is_public_key(value: Any) -> bool:
    return isinstance(value, bytes) and len(value) == 32


NAME = _text("a name of letters, digits, dots, dashes and underlines, 64 at most", _NAME)
_POSITIVE = _number("a positive number", lambda x: x > 0)
_SHARE = _number("a number from 0 to less than 1", lambda x: 0 <= x < 1)
_AT_LEAST_0 = _number("a number of at least 0", lambda x: x >= 0)


def _field(rule: Rule, default: Any = MISSING, help: str = "", metavar: str | None = None) -> Any:
    """A field with its rule, and help text and placeholder of its option of `federation new`."""
    shown = {} if metavar is None else {"metavar": metavar}
    return field(default=default, metadata={"rule": rule, "help": help, **shown})


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """[privacy]: the budget, what it protects, and the adversary.

    `ratio` fixes sigma_cor^2 / sigma_cdp^2; left out, it is the one of least predicted error if no
    user ever fails. `sampling` and `relation` belong to unit "example", as in `decor.Exposure`.
    `any_delta` allows a delta above 0.001, or above one over the number of users (or of all
    records).
    """

    epsilon: float = _field(
        _number("a positive number of at most 1e9, such as 3.0", lambda x: 1e-100 <= x <= 1e9),
        help="largest epsilon to spend",
    )
    delta: float = _field(
        _number("a number between 0 and 1, such as 1e-5", lambda x: 1e-100 <= x < 1),
        help="probability that the guarantee fails, such as 1e-6 or 1/1000000",
    )
    adversary: str = _field(
        Rule(
            '"eavesdropper", "curious", "colluding:Q" (such as "colluding:2") or "everyone"',
            _adversary,
        ),
        help="who attacks: eavesdropper for an outsider, curious for any one user, colluding:Q for "
        "any Q users together, everyone for all other users",
        metavar="NAME",
    )
    unit: Unit = _field(
        _choice("user", "example"),
        "user",
        help="what to protect: user for all of a user's data, example for one example",
        metavar="UNIT",
    )
    sampling: Sampling | None = _field(
        _choice("poisson", "fixed"),
        None,
        help="with --unit example, how batches are drawn: poisson or fixed in size (default: "
        "poisson)",
        metavar="NAME",
    )
    relation: Relation | None = _field(
        _choice("add-remove", "replace"),
        None,
        help="with --unit example, how neighbouring data sets differ: add-remove or replace "
        "(default: add-remove with --sampling poisson, replace with fixed)",
        metavar="NAME",
    )
    ratio: float | None = _field(
        _number("a number from 0 to 1e9, such as 100.0", lambda x: 0 <= x <= 1e9),
        None,
        help="sigma_cor^2 / sigma_cdp^2: variance of shared noise relative to independent noise "
        "(default: the one with the least predicted error)",
        metavar="X",
    )
    any_delta: bool = _field(
        Rule("true or false", _keep_if(lambda x: isinstance(x, bool))),
        False,
        help="accept a delta above 0.001, or above 1/N for N users (with --unit example, N "
        "examples in all)",
    )

    def __post_init__(self) -> None:
        _check(self, "privacy")
        if self.unit == "user":
            if self.sampling is not None:
                raise InputError(
                    f"privacy.sampling {self.sampling!r} applies only with privacy.unit = "
                    '"example"; drop it'
                )
            if self.relation == "add-remove":
                raise InputError(
                    'privacy.relation "add-remove" applies only with privacy.unit = "example": at '
                    "user level one user's data is replaced; drop it"
                )
            # written out, so that a file which spells out the default has the same digest
            object.__setattr__(self, "relation", "replace")
            return
        object.__setattr__(self, "sampling", self.sampling or "poisson")
        if self.sampling == "fixed" and self.relation == "add-remove":
            raise InputError(
                'privacy.relation "add-remove" is accounted for only with privacy.sampling = '
                '"poisson"; take that, or "replace"'
            )
        # as in decor.Exposure: for fixed batches only replacement is accounted for
        usual = "add-remove" if self.sampling == "poisson" else "replace"
        object.__setattr__(self, "relation", self.relation or usual)


@dataclass(frozen=True, kw_only=True)
class Training:
    """[training]: how all users train.

    `batch_size` is how many examples a gradient averages; example level needs it.
    """

    steps: int = _field(_whole(1), help="training steps", metavar="T")
    clip: float = _field(
        _number("a positive number, such as 1.0", lambda x: x >= 1e-100),
        help="clip gradients to this norm",
    )
    learning_rate: float = _field(_POSITIVE, help="step size", metavar="R")
    schedule: str = _field(
        _choice("constant", "inverse-time", "cosine"),
        "constant",
        help="how the step size changes: constant, inverse-time or cosine",
        metavar="NAME",
    )
    horizon: float | None = _field(
        _POSITIVE,
        None,
        help="with --schedule inverse-time, steps after which the step size is half (required)",
    )
    final: float | None = _field(
        _number("a number from 0 to 1", lambda x: 0 <= x <= 1),
        None,
        help="with --schedule cosine, last step size as a share of the first (default: 0)",
    )
    momentum: float = _field(_SHARE, 0.0, help="heavy-ball momentum of the noisy gradients")
    weight_decay: float = _field(
        _AT_LEAST_0, 0.0, help="shrink parameters by W times the step size in each step"
    )
    gossip_rounds: int = _field(
        _whole(1, 10_000), 1, help="rounds of averaging with neighbours per step", metavar="K"
    )
    accelerate: str = _field(
        _choice("no", "chebyshev", "designed"),
        "no",
        help="speed up averaging in 2 or more gossip rounds: no, chebyshev for any "
        "graph, designed for weights optimised for this one",
        metavar="HOW",
    )
    final_gossip_rounds: int = _field(
        _whole(0, 10_000),
        0,
        help="rounds of averaging with neighbours after the last step",
        metavar="K",
    )
    batch_size: int | None = _field(
        _whole(1),
        None,
        help="examples per gradient (default: all); required with --unit example, where it affects "
        "epsilon",
    )
    dtype: Dtype = _field(
        _choice("float32", "float64"),
        "float32",
        help="floating-point type: float32 or float64",
        metavar="NAME",
    )

    def __post_init__(self) -> None:
        _check(self, "training")
        if self.schedule == "inverse-time" and self.horizon is None:
            raise InputError(
                'training.schedule "inverse-time" needs training.horizon, in steps, such as 5000.0'
            )
        # written out, so that a file which spells out the default has the same digest
        if self.schedule == "cosine":
            object.__setattr__(self, "final", 0.0 if self.final is None else self.final)
        for name, owner in (("horizon", "inverse-time"), ("final", "cosine")):
            if getattr(self, name) is not None and self.schedule != owner:
                raise InputError(
                    f'training.{name} applies only with training.schedule = "{owner}"; drop it, '
                    "or take that"
                )
        if self.accelerate != "no" and self.gossip_rounds < 2:
            raise InputError(
                f'training.accelerate "{self.accelerate}" changes nothing about one gossip round; '
                "take training.gossip_rounds of 2 or more, or drop it"
            )


@dataclass(frozen=True, kw_only=True)
class Model:
    """[model]: a built-in `kind` with its sizes, or public `code`: a function -> (module, loss).

    Logistic, multinomial and linear models start at fixed weights. The first weights of an MLP, and
    what code draws from torch, follow from the seed. `code_sha256` is the hash of the code's source
    (`model_code.hash_source`); a node does not run other code.
    """

    kind: str | None = _field(
        _choice("logistic", "multinomial", "mlp", "linear"),
        None,
        help="built-in model: logistic, multinomial, mlp or linear",
        metavar="NAME",
    )
    code: str | None = _field(
        _text('"package.module:function"', _CODE),
        None,
        help="instead of --model, a public function that returns (module, loss)",
        metavar="MODULE:FUNCTION",
    )
    code_sha256: str | None = _field(_text("64 hexadecimal digits in lower case", _SHA256), None)
    features: int | None = _field(
        _whole(1),
        None,
        help="number of input features; required without --code and --task",
        metavar="N",
    )
    classes: int | None = _field(
        _whole(2),
        None,
        help="with --model multinomial or mlp, number of classes",
        metavar="N",
    )
    hidden: tuple[int, ...] | None = _field(
        Rule("a list of layers' sizes, such as [128]", _sizes),
        None,
        help="with --model mlp, sizes of the hidden layers, such as 128 or 128,64",
        metavar="N,...",
    )
    activation: str | None = _field(
        _choice("relu", "tanh"),
        None,
        help="with --model mlp, its activation: relu or tanh (default: relu)",
        metavar="NAME",
    )
    # the integers of TOML have 64 bits, with a sign
    seed: int | None = _field(
        _whole(0, 2**63 - 1),
        None,
        help="with --model mlp or --code, seed for the initial weights (default: 0)",
    )

    def __post_init__(self) -> None:
        _check(self, "model")
        # exactly one of the two
        if (self.kind is None) == (self.code is None):
            raise InputError(
                'give either model.kind, such as "logistic", or model.code, such as '
                '"package.module:function"'
            )
        if self.code is None and self.code_sha256 is not None:
            raise InputError("model.code_sha256 applies only with model.code; drop it")
        what = self.kind or "code"
        usual = _DEFAULTS[what]
        for name in ("features", "classes", "hidden", "activation", "seed"):
            given = getattr(self, name)
            if name not in usual and given is not None:
                raise InputError(
                    f"model.{name} {abbreviate(given)} does not apply to model {what!r}; drop it"
                )
            # 0 stands for a field that this kind does not take
            if given is None and usual.get(name, 0) is None:
                needed = self.__dataclass_fields__[name].metadata["rule"].description
                raise InputError(f"model.{name} is missing: model {what!r} needs {needed}")
            if given is None:
                object.__setattr__(self, name, usual.get(name))
        if self.kind == "logistic" and self.classes != 2:
            raise InputError(
                f'model.classes must be 2 for "logistic", not {self.classes}; take '
                '"multinomial" for more'
            )

    @property
    def sizes(self) -> tuple[int, ...] | None:
        """Units of each layer, from features to outputs; None for a model given as code."""
        if self.features is None:
            return None
        # a logistic model has one output for its two classes
        outputs = self.classes if self.kind in ("multinomial", "mlp") else 1
        return (self.features, *(self.hidden or ()), outputs or 1)


_DEFAULTS: dict[str, dict[str, Any]] = {
    "logistic": {"features": None, "classes": 2},
    "multinomial": {"features": None, "classes": None},
    "mlp": {"features": None, "classes": None, "hidden": None, "activation": "relu", "seed": 0},
    "linear": {"features": None},
    "code": {"seed": 0},
}
"""The fields that each kind of model takes, and their defaults (None: the field is required)."""


@dataclass(frozen=True, kw_only=True)
class Network:
    """[network]: the graph, and how long users wait for each other.

    `topology` is a graph that follows from the number of users (`rows` for torus and grid; by
    default the most square one), or `edges` are pairs of users' names. After `timeout` seconds of
    silence a step goes on without a neighbour; with less than the share `quorum` of its neighbours
    a user waits. At the start it waits `patience` seconds for all its neighbours before a quorum of
    them is enough. A user that is behind skips to a later step only if more than `liars` other
    users have signed a message of it.
    """

    topology: str | None = _field(_choice(*FAMILIES), None)
    rows: int | None = _field(_whole(1), None)
    edges: tuple[tuple[str, str], ...] | None = _field(
        Rule('pairs of users, such as [["bonn", "ulm"]]', _pairs), None
    )
    timeout: float = _field(
        _number("a positive number of seconds, a million at most", lambda x: 0 < x <= 1e6),
        30.0,
        help="seconds to wait for a silent neighbour before a step goes on without it",
        metavar="S",
    )
    quorum: float = _field(
        _number("a share above 0 and up to 1", lambda x: 0 < x <= 1),
        0.5,
        help="smallest share of its neighbours with which a user goes on",
    )
    patience: float = _field(
        _number("a number of seconds, a million at most", lambda x: 0 <= x <= 1e6),
        300.0,
        help="seconds to wait for all neighbours at the start, before a quorum is enough",
        metavar="S",
    )
    liars: int = _field(
        _whole(0),
        1,
        help="users that may lie: a user skips steps only if more others have signed them",
    )

    def __post_init__(self) -> None:
        # before the rules: their message would not say what to do instead
        name = str(self.topology).replace("_", "-")
        if name in ("random-regular", "erdos-renyi"):
            raise InputError(
                f"network.topology {self.topology!r} is random, and might differ between machines; "
                "write its edges as network.edges, as decor federation new does"
            )
        _check(self, "network")
        if (self.topology is None) == (self.edges is None):
            raise InputError(
                'give either network.topology, such as "ring", or network.edges, '
                'such as [["bonn", "ulm"]]'
            )
        if self.rows is not None and self.topology not in ("torus", "grid"):
            raise InputError(f"network.rows {self.rows} applies to torus and grid only; drop it")


@dataclass(frozen=True)
class Member:
    """A user: its name, its address ("host:port", or "" if it only dials), and its public key.

    `records` is how many examples it trains on: public at example level, refused at user level.
    """

    name: str = _field(NAME)
    address: str = _field(_text('"host:port", or "" if it cannot be reached', _ADDRESS))
    public: bytes = _field(Rule("the 32 bytes of a public key", _keep_if(_is_public_key)))
    records: int | None = _field(_whole(1, 10**15), None)

    def __post_init__(self) -> None:
        _check(self, "users")
        if self.address:
            with locate_errors(f"users.address of {self.name!r}: "):
                net_module("transport").split_address(self.address)

    @property
    def key(self) -> str:
        """The public key as the line that `decor keygen` prints."""
        return str(net_module("identity").line_of(self.public))


def net_module(module: str) -> Any:
    """A module of decor.net; an error says how to install `cryptography`, which it needs."""
    # not imported at the top: every command loads this module, and cryptography is an extra
    require("cryptography", "peer", "keys")
    return import_module(f"decor.net.{module}")


@contextmanager
def locate_errors(before: str = "", after: str = "") -> Iterator[None]:
    """Adds to an InputError where in the file it arose."""
    try:
        yield
    except InputError as problem:
        raise InputError(f"{before}{problem}{after}") from None


def parse_section(kind: type[Section], table: Any, name: str) -> Section:
    """A section from its table; an error names the field that is unknown or missing."""
    if table is None:
        raise InputError(
            f"the section [{name}] is missing; see the example of decor federation new --help"
        )
    if not isinstance(table, Mapping):
        raise InputError(f"{name} must be a section [{name}], not {abbreviate(table)}")
    members: tuple[Field[Any], ...] = fields(kind)  # type: ignore[arg-type]
    known = {each.name: each for each in members}
    refuse_unknown(table, known, f"{name}.")
    for each in known.values():
        # here, because the constructor's TypeError would not say what to give
        if each.default is MISSING and each.name not in table:
            needed = each.metadata["rule"].description
            raise InputError(f"{name}.{each.name} is missing; give {needed}")
    return kind(**table)


def parse_member(table: Any, number: int) -> Member:
    """A user from one table [[users]]."""
    if not isinstance(table, Mapping):
        raise InputError(f"users must be tables [[users]], not {abbreviate(table)}")
    name = table.get("name")
    # an invalid name is not repeated: it may be anything
    user = f"user {number}" + (f" ({name})" if NAME.accept(name) else "")
    refuse_unknown(table, ("name", "address", "key", "records"), f"users ({user}): ")
    for needed in ("name", "address", "key"):
        if needed not in table:
            raise InputError(
                f"users.{needed} of {user} is missing; every user has a name, an "
                'address (or "") and a key'
            )
    with locate_errors(f"users.key of {user}: "):
        public = net_module("identity").public_of(table["key"])
    with locate_errors(after=f" ({user})"):
        return Member(table["name"], table["address"], public, table.get("records"))


def refuse_unknown(table: Mapping[str, Any], known: Any, prefix: str = "") -> None:
    """Raises for a field that is not among `known`, with the field that may have been meant."""
    for name in table:
        if name not in known:
            # 0.7: a typo or two
            near = difflib.get_close_matches(name, list(known), 1, 0.7)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            raise InputError(f"{prefix}{name} is not a field of a federation's file; {hint}")


def toml_text(tables: Mapping[str, Any]) -> str:
    """TOML of plain values: strings first, then a section per mapping, and tables per list."""
    lines = [f"{name} = {_toml(value)}" for name, value in tables.items() if isinstance(value, str)]
    for name, value in tables.items():
        if isinstance(value, str):
            continue
        is_section = isinstance(value, Mapping)
        for table in [value] if is_section else value:
            lines += ["", f"[{name}]" if is_section else f"[[{name}]]"]
            lines += [f"{key} = {_toml(each)}" for key, each in table.items() if each is not None]
    return "\n".join(lines) + "\n"


def abbreviate(value: object) -> str:
    """A value for a message, at most 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _toml(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, float):
        assert math.isfinite(value)
        # the shortest decimals that are read back as the same number
        return repr(value)
    # strings, integers and booleans of JSON are those of TOML
    return json.dumps(value)


def _check(section: Any, name: str) -> None:
    """Checks each field by its rule, and keeps what the rule returns; None is left as it is."""
    for each in fields(section):
        value = getattr(section, each.name)
        if value is not None or each.default is not None:
            kept = each.metadata["rule"].check(f"{name}.{each.name}", value)
            object.__setattr__(section, each.name, kept)
