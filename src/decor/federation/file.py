"""The federation's file: its sections and their fields.

Each section of the file is a frozen class, with the same fields; [model] is in
`learning/file_model`, and [[users]] in `file_member`. A field that is left out has the default
given here, so a file that spells it out means the same. A field that has no meaning in its place is
refused, never ignored.
"""

from __future__ import annotations

from dataclasses import dataclass

from decor.choices import Dtype, Relation, Sampling, Unit
from decor.errors import InputError
from decor.learning.file_rules import (
    Rule,
    check_fields,
    choice,
    file_field,
    keep_if,
    number,
    whole,
)

from .file_rules import accept_adversary, accept_pairs

FORMAT = "decor-federation-1"
FAMILIES = ("ring", "path", "star", "complete", "hypercube", "torus", "grid")
"""Graphs that follow from their name and the number of users; random ones are written as edges."""

_POSITIVE = number("a positive number", lambda x: x > 0)
_SHARE = number("a number from 0 to less than 1", lambda x: 0 <= x < 1)
_AT_LEAST_0 = number("a number of at least 0", lambda x: x >= 0)


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """[privacy]: the budget, what it protects, and the adversary.

    `ratio` fixes sigma_cor^2 / sigma_cdp^2; left out, it is the one of least predicted error if no
    user ever fails. `sampling`, `relation` and `rate` belong to unit "example", as in
    `decor.Exposure`: with `rate`, sums are divided by training.batch_size, and nobody's number of
    examples is in the file.
    `any_delta` allows a delta above 0.001, or above one over the number of users (or of all
    records).
    """

    epsilon: float = file_field(
        number("a positive number of at most 1e9, such as 3.0", lambda x: 1e-100 <= x <= 1e9),
        help="largest epsilon to spend",
    )
    delta: float = file_field(
        number("a number between 0 and 1, such as 1e-5", lambda x: 1e-100 <= x < 1),
        help="probability that the guarantee fails, such as 1e-6 or 1/1000000",
    )
    adversary: str = file_field(
        Rule(
            '"eavesdropper", "curious", "colluding:Q" (such as "colluding:2") or "everyone"',
            accept_adversary,
        ),
        help="who attacks: eavesdropper for an outsider, curious for any one user, colluding:Q for "
        "any Q users together, everyone for all other users",
        metavar="NAME",
    )
    unit: Unit = file_field(
        choice("user", "example"),
        "user",
        help="what to protect: user for all of a user's data, example for one example",
        metavar="UNIT",
    )
    sampling: Sampling | None = file_field(
        choice("poisson", "fixed"),
        None,
        help="with --unit example, how batches are drawn: poisson or fixed in size (default: "
        "poisson)",
        metavar="NAME",
    )
    relation: Relation | None = file_field(
        choice("add-remove", "replace"),
        None,
        help="with --unit example, how neighbouring data sets differ: add-remove or replace "
        "(default: add-remove with --sampling poisson, replace with fixed)",
        metavar="NAME",
    )
    rate: float | None = file_field(
        number("a probability above 0 and up to 1, such as 0.01", lambda x: 0 < x <= 1),
        None,
        help="with --unit example, draw each example of every user with this probability; sums are "
        "divided by --batch-size, and numbers of examples stay private",
        metavar="Q",
        newer=True,
    )
    ratio: float | None = file_field(
        number("a number from 0 to 1e9, such as 100.0", lambda x: 0 <= x <= 1e9),
        None,
        help="sigma_cor^2 / sigma_cdp^2: variance of shared noise relative to independent noise "
        "(default of decor federation new: at most users x steps / 4, so that a node that fails "
        "costs little accuracy; a file without a ratio takes the one with the least predicted "
        "error, which assumes that no node fails)",
        metavar="X",
    )
    any_delta: bool = file_field(
        Rule("true or false", keep_if(lambda x: isinstance(x, bool))),
        False,
        help="accept a delta above 0.001, or above 1/N for N users (with --unit example, N "
        "examples in all)",
        newer=True,
    )

    def __post_init__(self) -> None:
        check_fields(self, "privacy")
        if self.unit == "user":
            # refused, not ignored: its writer would believe that sampling lowers epsilon
            if self.rate is not None:
                raise InputError(
                    f"privacy.rate {self.rate:g} applies only with privacy.unit = "
                    '"example"; drop it'
                )
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
        if self.sampling == "fixed" and self.rate is not None:
            raise InputError(
                "privacy.rate draws every example independently; drop it, or take "
                'privacy.sampling = "poisson"'
            )
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

    `batch_size` is how many examples a gradient averages; example level needs it. With privacy.rate
    it is what all users' sums are divided by, about rate x mean number of examples.
    """

    steps: int = file_field(whole(1), help="training steps", metavar="T")
    clip: float = file_field(
        number("a positive number, such as 1.0", lambda x: x >= 1e-100),
        help="clip gradients to this norm",
    )
    learning_rate: float = file_field(_POSITIVE, help="step size", metavar="R")
    schedule: str = file_field(
        choice("constant", "inverse-time", "cosine"),
        "constant",
        help="how the step size changes: constant, cosine (or cosine:FINAL), or "
        "inverse-time:HORIZON for half after HORIZON steps",
        metavar="NAME",
    )
    horizon: float | None = file_field(
        _POSITIVE,
        None,
        help="the HORIZON of --schedule inverse-time:HORIZON: steps until the step size is half",
    )
    final: float | None = file_field(
        number("a number from 0 to 1", lambda x: 0 <= x <= 1),
        None,
        help="the FINAL of --schedule cosine:FINAL: last step size as a share of the first "
        "(default: 0)",
    )
    momentum: float = file_field(_SHARE, 0.0, help="heavy-ball momentum of the noisy gradients")
    weight_decay: float = file_field(
        _AT_LEAST_0, 0.0, help="shrink parameters by W times the step size in each step"
    )
    gossip_rounds: int = file_field(
        whole(1, 10_000), 1, help="rounds of averaging with neighbours per step", metavar="K"
    )
    accelerate: str = file_field(
        choice("no", "chebyshev", "designed"),
        "no",
        help="speed up averaging in 2 or more gossip rounds: no, chebyshev for any "
        "graph, designed for weights optimised for this one",
        metavar="HOW",
    )
    final_gossip_rounds: int = file_field(
        whole(0, 10_000),
        0,
        help="rounds of averaging with neighbours after the last step",
        metavar="K",
    )
    batch_size: int | None = file_field(
        whole(1),
        None,
        help="examples per gradient (default: all); required with --unit example, where it affects "
        "epsilon",
    )
    dtype: Dtype = file_field(
        choice("float32", "float64"),
        "float32",
        help="floating-point type: float32 or float64",
        metavar="NAME",
    )

    def __post_init__(self) -> None:
        check_fields(self, "training")
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
class Network:
    """[network]: the graph, and how long users wait for each other.

    `topology` is a graph that follows from the number of users (`rows` for torus and grid; by
    default the most square one), or `edges` are pairs of users' names. After `timeout` seconds of
    silence a step goes on without a neighbour; with less than the share `quorum` of its neighbours
    a user waits. At the start it waits `patience` seconds for all its neighbours before a quorum of
    them is enough. A user that is behind skips to a later step only if more than `liars` other
    users have signed a message of it.
    """

    topology: str | None = file_field(choice(*FAMILIES), None)
    rows: int | None = file_field(whole(1), None)
    edges: tuple[tuple[str, str], ...] | None = file_field(
        Rule('pairs of users, such as [["bonn", "ulm"]]', accept_pairs), None
    )
    timeout: float = file_field(
        number("a positive number of seconds, a million at most", lambda x: 0 < x <= 1e6),
        30.0,
        help="seconds to wait for a silent neighbour before a step goes on without it",
        metavar="S",
    )
    quorum: float = file_field(
        number("a share above 0 and up to 1", lambda x: 0 < x <= 1),
        0.5,
        help="smallest share of its neighbours with which a user goes on",
    )
    patience: float = file_field(
        number("a number of seconds, a million at most", lambda x: 0 <= x <= 1e6),
        300.0,
        help="seconds to wait for all neighbours at the start, before a quorum is enough",
        metavar="S",
    )
    liars: int = file_field(
        whole(0),
        1,
        help="number of lying users to tolerate: a user skips steps only if more others than this "
        "have signed them",
        newer=True,
    )

    def __post_init__(self) -> None:
        # before the rules: their message would not say what to do instead
        name = str(self.topology).replace("_", "-")
        if name in ("random-regular", "erdos-renyi"):
            raise InputError(
                f"network.topology {self.topology!r} is random, and might differ between machines; "
                "write its edges as network.edges, as decor federation new does"
            )
        check_fields(self, "network")
        # given both, nobody could tell which of the graphs the noise is planned for
        if (self.topology is None) == (self.edges is None):
            raise InputError(
                'give either network.topology, such as "ring", or network.edges, '
                'such as [["bonn", "ulm"]]'
            )
        if self.rows is not None and self.topology not in ("torus", "grid"):
            raise InputError(f"network.rows {self.rows} applies to torus and grid only; drop it")
