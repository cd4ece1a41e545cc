"""Federation: who trains what together, on what budget; the same at every party, and compared field
by field when they meet.

Noise is never in the file: every party derives it from the budget, and what it derived is part of
what is compared.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from decimal import ROUND_CEILING, Context, Decimal
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from decor.choices import Dtype
from decor.errors import FragileGraphWarning, InputError, require
from decor.graph.gossip import Gossip
from decor.graph.topology import Topology
from decor.learning.recipe import Recipe
from decor.learning.schedule import Constant, Cosine, InverseTime, Schedule
from decor.noise.grid import Grid
from decor.privacy.adversary import Adversary
from decor.privacy.budget import Budget, Exposure
from decor.privacy.calibrate import calibrate
from decor.privacy.guarantee import Guarantee
from decor.privacy.plan import NoisePlan
from decor.training.release_grid import grid_of

from .file import (
    FORMAT,
    NAME,
    Member,
    Model,
    Network,
    Privacy,
    Training,
    member_of,
    refuse_unknown,
    section_of,
    shown,
    written,
)
from .member_graph import check_reach, drawn_out, topology_of
from .model import built, fitting, parameters

if TYPE_CHECKING:
    from decor.learning.task import Task

__all__ = ["Federation", "Member", "Model", "Network", "Privacy", "Training"]

_DIGITS = 6
"""Of a derived sigma, rounded up: another machine's last digits, which differ in linear algebra,
give the same number.
"""
_LARGEST = 2**32 - 1024
"""Bytes of a model that fit in a frame."""


@dataclass(frozen=True, kw_only=True)
class Federation:
    """A federation's file, checked as a whole: made by `read`, by `parse`, or by a program from its
    parts.

    Users are numbered in the order of the file. Guarantee: `plan` meets the budget, or asking for
    it raises.
    """

    name: str
    privacy: Privacy
    training: Training
    model: Model
    network: Network
    members: tuple[Member, ...]

    def __post_init__(self) -> None:
        if NAME.taken(self.name) is None:
            raise InputError(f"name must be {NAME.words}, not {shown(self.name)}")
        object.__setattr__(self, "members", tuple(self.members))
        self._check_members()
        object.__setattr__(self, "network", drawn_out(self.network, self.members))
        check_reach(self.topology, self.members)
        self._check_records()
        try:
            self.adversary.check(len(self.members))
        except InputError as problem:
            raise InputError(f"privacy.adversary: {problem}") from None
        if not self.privacy.any_delta:
            try:
                self.budget.check_delta(self.exposure, self.topology)
            except InputError as problem:
                raise InputError(f"privacy.delta: {problem}") from None
        if self.model.sizes is not None and self.model_bytes > _LARGEST:
            raise InputError(
                f"[model] has {self.parameters:,} numbers, more than the 4 GB that a "
                "message holds; make it smaller"
            )

    @staticmethod
    def read(path: str | Path) -> Federation:
        try:
            text = Path(path).read_text(encoding="utf-8")
        except OSError as problem:
            raise InputError(
                f"the federation {str(path)!r} cannot be read: {problem.strerror}"
            ) from None
        except UnicodeDecodeError:
            raise InputError(
                f"the federation {str(path)!r} is not a text file; give the TOML file"
            ) from None
        try:
            return Federation.parse(text)
        except InputError as problem:
            raise InputError(f"the federation {str(path)!r}: {problem}") from None

    @staticmethod
    def parse(text: str) -> Federation:
        try:
            return Federation.of(tomllib.loads(text))
        except (tomllib.TOMLDecodeError, RecursionError) as problem:
            raise InputError(f"this is no TOML: {problem}") from None

    @staticmethod
    def of(tables: Mapping[str, Any]) -> Federation:
        """From the file's fields as plain values, nested as in the file; `to_tables` gives them
        back.
        """
        refuse_unknown(
            tables, ("format", "name", "privacy", "training", "model", "network", "users")
        )
        if tables.get("format") != FORMAT:
            raise InputError(
                f'format must be "{FORMAT}", not {shown(tables.get("format"))}; '
                "other versions are not read"
            )
        if "name" not in tables:
            raise InputError(f"name is missing; give {NAME.words}")
        users = tables.get("users")
        if not isinstance(users, list):
            raise InputError(
                "users are missing; give a [[users]] with name, address and key for each of them"
            )
        return Federation(
            name=tables["name"],
            privacy=section_of(Privacy, tables.get("privacy"), "privacy"),
            training=section_of(Training, tables.get("training"), "training"),
            model=section_of(Model, tables.get("model"), "model"),
            network=section_of(Network, tables.get("network"), "network"),
            members=tuple(member_of(user, number) for number, user in enumerate(users)),
        )

    def to_tables(self) -> dict[str, Any]:
        """Every field as a plain value, defaults written out, None where a field has no meaning."""
        sections = {
            name: asdict(getattr(self, name))
            for name in ("privacy", "training", "model", "network")
        }
        if not self.privacy.any_delta:  # a file of before this field has the same digest
            del sections["privacy"]["any_delta"]
        users = [
            {"name": m.name, "address": m.address, "key": m.key, "records": m.records}
            for m in self.members
        ]
        return {"format": FORMAT, "name": self.name, **sections, "users": users}

    def to_toml(self) -> str:
        """What `parse` reads."""
        return (
            "# The same at every party. decor federation check FILE says what it promises.\n"
        ) + written(self.to_tables())

    def fields(self) -> dict[str, Any]:
        """Dotted name -> plain value; of the users, the columns."""
        found: dict[str, Any] = {}
        for name, value in self.to_tables().items():
            if name == "users":
                found |= {
                    f"users.{key}": [user[key] for user in value]
                    for key in ("name", "address", "key", "records")
                }
            elif isinstance(value, dict):
                found |= {f"{name}.{key}": each for key, each in value.items()}
            else:
                found[name] = value
        return found

    @cached_property
    def _full_digests(self) -> tuple[tuple[str, bytes], ...]:
        held = self.fields() | {"derived.noise": [self.plan.sigma_cdp, self.plan.sigma_cor]}
        return tuple(
            (name, hashlib.sha256(_canonical(held[name])).digest()) for name in sorted(held)
        )

    @property
    def digests(self) -> tuple[tuple[str, bytes], ...]:
        """Eight bytes for every field, and for the noise derived from them: what two who differ
        compare.
        """
        return tuple((name, digest[:8]) for name, digest in self._full_digests)

    @cached_property
    def digest(self) -> bytes:
        """Of all fields and the derived noise: equal exactly where they are."""
        whole = hashlib.sha256(f"{FORMAT}\n".encode())
        for name, digest in self._full_digests:
            whole.update(f"{name}\n".encode() + digest)
        return whole.digest()

    @property
    def budget(self) -> Budget:
        """What the file allows: all of delta."""
        return Budget(self.privacy.epsilon, self.privacy.delta)

    @cached_property
    def adversary(self) -> Adversary:
        return Adversary.parse(self.privacy.adversary)

    @cached_property
    def exposure(self) -> Exposure:
        training, privacy = self.training, self.privacy
        if privacy.unit == "user":
            return Exposure(training.clip, training.steps)
        records = {m.name: m.records or 0 for m in self.members}
        return Exposure(
            training.clip,
            training.steps,
            "example",
            training.batch_size,
            records,
            privacy.sampling,
            privacy.relation,
        )

    @cached_property
    def topology(self) -> Topology:
        """The graph, with the users' names."""
        return topology_of(self.network, self.members)

    @cached_property
    def gossip(self) -> Gossip:
        """The rounds of every step."""
        return Gossip(
            self.training.gossip_rounds,
            {"no": False, "chebyshev": True}.get(self.training.accelerate, "designed"),
        )

    @cached_property
    def _derived(self) -> tuple[NoisePlan, tuple[str, ...]]:
        budget = self.budget
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", FragileGraphWarning)
            plan = calibrate(
                self.topology,
                self.exposure,
                self.adversary,
                budget,
                ratio=self.privacy.ratio,
                gossip_rounds=self.gossip.rounds,
                accelerate=self.gossip.accelerate,
                any_delta=self.privacy.any_delta,
            )
        assert isinstance(plan.sigma_cor, float)
        plan = replace(plan, sigma_cdp=_up(plan.sigma_cdp), sigma_cor=_up(plan.sigma_cor))
        reached = plan.guarantee(budget.accounted.delta).epsilon
        if not reached <= budget.epsilon:
            raise InputError(
                f"privacy.epsilon {budget.epsilon:g} cannot be met: the derived noise gives "
                f"{reached:g}; raise it, take fewer "
                "steps, or another graph"
            )
        return plan, tuple(
            str(each.message) for each in caught if issubclass(each.category, FragileGraphWarning)
        )

    @property
    def plan(self) -> NoisePlan:
        """The noise that the budget takes, the same numbers on every machine."""
        return self._derived[0]

    @property
    def notes(self) -> tuple[str, ...]:
        """What deriving the plan warned of."""
        return self._derived[1]

    def guarantee(self, adversary: Adversary | None = None) -> Guarantee:
        """What the plan promises at the file's delta; infinity where the tables of the noise take
        more of it than is left.
        """
        return self.plan.guarantee_on_grid(self.grid.distance, self.budget.delta, adversary)

    @cached_property
    def grid(self) -> Grid:
        """Of what leaves every user; loads torch for a model of code only."""
        return grid_of(self.plan, self.parameters)

    @cached_property
    def schedule(self) -> Schedule:
        if self.training.horizon is not None:
            return InverseTime(self.training.horizon)
        return Constant() if self.training.final is None else Cosine(self.training.final)

    @cached_property
    def recipe(self) -> Recipe:
        """How to train, as the file says."""
        training = self.training
        shared = {
            each.name: getattr(training, each.name)
            for each in fields(Recipe)
            if hasattr(training, each.name)
        }
        own = {"schedule": self.schedule, "accelerate": self.gossip.accelerate}
        # at example level the plan says it
        batch_size = training.batch_size if self.privacy.unit == "user" else None
        return Recipe(**shared | own | {"batch_size": batch_size})

    @property
    def learning_rate(self) -> float:
        return self.training.learning_rate

    @property
    def dtype(self) -> Dtype:
        return self.training.dtype

    @property
    def timeout(self) -> float:
        return self.network.timeout

    @property
    def quorum(self) -> float:
        return self.network.quorum

    def number_of(self, public: bytes) -> int:
        """The user with this public key."""
        for number, member in enumerate(self.members):
            if member.public == public:
                return number
        raise InputError(
            f"this key belongs to no user of {self.name!r}; take the key whose public line is in "
            "the file, or have it added"
        )

    @cached_property
    def parameters(self) -> int:
        """How many numbers are trained; loads torch for a model of code only."""
        return parameters(self.model, self.dtype)

    @property
    def model_bytes(self) -> int:
        """Of a model as it travels."""
        return self.parameters * (8 if self.dtype == "float64" else 4)

    def task(
        self,
        shard: tuple[Any, Any],
        test: tuple[Any, Any] | None = None,
        *,
        user: int | None = None,
    ) -> Task:
        """What one user trains: the file's model on its own records, with public test records;
        loads torch.

        With `user`, the number of records must be the file's (example level). No error repeats a
        value of the data.
        """
        require("torch", "train", "federations that train")
        from decor.learning.task import Task

        module, loss = built(self.model, self.dtype)
        own = fitting(self.model, self.dtype, "the data", shard)
        said = self.members[user].records if user is not None else None
        if said is not None and said != len(own[0]):
            raise InputError(
                f"the data has {len(own[0])} records, and users.records says {said}: the epsilon "
                "would not be true; mend the "
                "data, or have everybody take a file with the right number"
            )
        tested = None if test is None else fitting(self.model, self.dtype, "the test data", test)
        return Task(module, loss, [own], test=tested, name=self.name, test_public=True)

    def _check_members(self) -> None:
        if len(self.members) < 2:
            raise InputError(
                f"users: there is {len(self.members) or 'none'}; a federation has two users or more"
            )
        for column, values in (
            ("name", [m.name for m in self.members]),
            ("key", [m.key for m in self.members]),
            ("address", [m.address for m in self.members if m.address]),
        ):
            twice = [value for value in values if values.count(value) > 1]
            if twice:
                raise InputError(
                    f"users.{column} {shown(twice[0])} is there twice; give every user its own"
                )

    def _check_records(self) -> None:
        batch = self.training.batch_size
        if self.privacy.unit == "user":
            for member in self.members:
                if member.records is not None:
                    raise InputError(
                        f"users.records of {member.name!r} counts with privacy.unit "
                        '= "example" only; drop it'
                    )
            return
        if batch is None:
            raise InputError(
                'training.batch_size is missing; privacy.unit = "example" needs it, such as 32'
            )
        for member in self.members:
            if member.records is None:
                raise InputError(
                    f"users.records of {member.name!r} is missing; privacy.unit = "
                    '"example" needs everybody\'s'
                )
            if member.records < batch:
                raise InputError(
                    f"training.batch_size {batch} is larger than users.records of "
                    f"{member.name!r}, {member.records}; lower it"
                )


def _up(sigma: float) -> float:
    """Rounded to _DIGITS digits, never down: more noise of either kind is more privacy."""
    return float(Context(prec=_DIGITS, rounding=ROUND_CEILING).plus(Decimal(sigma)))


def _canonical(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True, allow_nan=False).encode("ascii")
