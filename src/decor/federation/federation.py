"""Federation: users, model, recipe and budget; the same for all, and compared when users connect.

Noise is never in the file: every user derives it from the budget, and the derived noise is part of
what is compared.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from decimal import ROUND_CEILING, Context, Decimal
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from decor.choices import Acceleration, Dtype
from decor.errors import FragileGraphWarning, InputError, require
from decor.graph.gossip import Gossip
from decor.graph.topology import Topology
from decor.learning.build_model import build, convert_data, parameters
from decor.learning.columns import Preparation
from decor.learning.definition import Definition
from decor.learning.file_model import Model
from decor.learning.file_rules import abbreviate, locate_errors, section_table
from decor.learning.file_toml import parse_section, refuse_unknown, toml_text
from decor.learning.recipe import Recipe
from decor.learning.schedule import Constant, Cosine, InverseTime, Schedule
from decor.noise.grid import Grid
from decor.privacy.adversary import Adversary
from decor.privacy.budget import Budget, Exposure
from decor.privacy.calibrate import calibrate
from decor.privacy.guarantee import Guarantee
from decor.privacy.plan import NoisePlan
from decor.training.release_grid import grid_of

from .file import FORMAT, Network, Privacy, Training
from .file_member import NAME, Member, parse_member
from .member_graph import check_reach, normalise, topology_of
from .start_model import StartModel

if TYPE_CHECKING:
    from decor.learning.task import Task

__all__ = ["Federation", "Member", "Model", "Network", "Privacy", "Training"]

_DIGITS = 6
"""Of a derived sigma, rounded up: linear algebra differs in its last digits between machines."""
_LARGEST = 2**32 - 1024
"""Bytes of a model that fit in a frame."""
_SIZE_UNKNOWN = "the size of the model is unknown because its code is not run"
_USER_FIELDS = ("name", "address", "key", "records")
_SECTIONS: dict[str, type[Privacy | Training | Model | Network]] = {
    "privacy": Privacy,
    "training": Training,
    "model": Model,
    "network": Network,
}


@dataclass(frozen=True, kw_only=True)
class Federation:
    """A federation's file, checked as a whole; from `read`, `parse`, or made from its parts.

    Users are numbered in the order of the file. `data` has the columns by which each user prepares
    its own table; without it users bring numbers, prepared as they have agreed. With `run_code`
    False nothing of `model.code` is ever imported, and what needs the size of such a model raises;
    this is no field of the file.

    Guarantee: `plan` meets the budget, or reading it raises.
    """

    name: str
    privacy: Privacy
    training: Training
    model: Model
    network: Network
    members: tuple[Member, ...]
    data: Preparation | None = None
    run_code: bool = field(default=True, compare=False)

    def __post_init__(self) -> None:
        NAME.check("name", self.name)
        self._check_columns()
        object.__setattr__(self, "members", tuple(self.members))
        # names, keys and addresses first: the graph below refers to users by their names
        self._check_members()
        object.__setattr__(self, "network", normalise(self.network, self.members))
        check_reach(self.topology, self.members)
        self._check_records()
        with locate_errors("privacy.adversary: "):
            self.adversary.check(len(self.members))
        if not self.privacy.any_delta:
            with locate_errors("privacy.delta: "):
                self.budget.check_delta(self.exposure, self.topology)
        # a model given as code is measured later: here torch must not be loaded
        if self.model.sizes is not None:
            self._check_size(parameters(self.model, self.dtype))

    @staticmethod
    def read(path: str | Path, *, run_code: bool = True) -> Federation:
        """Reads a federation's file.

        Args:
            path: The file.
            run_code: Whether a model's code may be imported and called, later, when it is needed.
        """
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
        with locate_errors(f"the federation {str(path)!r}: "):
            return replace(Federation.parse(text), run_code=run_code)

    @staticmethod
    def parse(text: str) -> Federation:
        """Reads the text of a federation's file."""
        try:
            return Federation.of(tomllib.loads(text))
        # RecursionError: tomllib parses nested arrays recursively
        except (tomllib.TOMLDecodeError, RecursionError) as problem:
            raise InputError(f"this is not TOML: {problem}") from None

    @staticmethod
    def of(tables: Mapping[str, Any]) -> Federation:
        """From the file's fields as plain values, nested as in the file; inverse of `to_tables`."""
        # a misspelt field would leave its default in force, and nobody would notice
        refuse_unknown(tables, ("format", "name", "data", *_SECTIONS, "users"))
        # before any field: in another format the same name may mean something else
        if tables.get("format") != FORMAT:
            raise InputError(
                f'format must be "{FORMAT}", not {abbreviate(tables.get("format"))}; '
                "other versions are not read"
            )
        if "name" not in tables:
            raise InputError(f"name is missing; give {NAME.description}")
        users = tables.get("users")
        if not isinstance(users, list):
            raise InputError(
                "users are missing; give a [[users]] with name, address and key for each of them"
            )
        sections: dict[str, Any] = {
            name: parse_section(kind, tables.get(name), name)
            for name, kind in _SECTIONS.items()
            if kind is not Model
        }
        definition = Definition.of(tables.get("data"), tables.get("model"))
        sections |= {"model": definition.model, "data": definition.preparation}
        members = tuple(parse_member(user, number) for number, user in enumerate(users))
        return Federation(name=tables["name"], members=members, **sections)

    def to_tables(self) -> dict[str, Any]:
        """Every field as a plain value, defaults included; None where a field has no meaning."""
        sections = {name: section_table(getattr(self, name)) for name in _SECTIONS}
        if self.data is not None:
            sections["data"] = self.data.to_json()
        users = [{key: getattr(m, key) for key in _USER_FIELDS} for m in self.members]
        return {"format": FORMAT, "name": self.name, **sections, "users": users}

    def to_toml(self) -> str:
        """The text of the file, as `parse` reads it."""
        head = "# The same at every party. decor federation check FILE says what it promises.\n"
        return head + toml_text(self.to_tables())

    def fields(self) -> dict[str, Any]:
        """Dotted name -> plain value; for each field of the users a list."""
        flat: dict[str, Any] = {}
        for name, value in self.to_tables().items():
            if name == "users":
                # columns, not rows: a Hello has room for 64 fields, however many users there are
                flat |= {f"users.{key}": [user[key] for user in value] for key in _USER_FIELDS}
            elif isinstance(value, dict):
                flat |= {f"{name}.{key}": each for key, each in value.items()}
            else:
                flat[name] = value
        return flat

    @cached_property
    def _full_digests(self) -> tuple[tuple[str, bytes], ...]:
        # users whose machines derive different noise must notice: it would not cancel
        values = self.fields() | {"derived.noise": [self.plan.sigma_cdp, self.plan.sigma_cor]}
        names = sorted(values)
        return tuple((name, hashlib.sha256(_canonical(values[name])).digest()) for name in names)

    @property
    def digests(self) -> tuple[tuple[str, bytes], ...]:
        """Eight bytes for each field and the derived noise: they show where two files differ."""
        # eight bytes suffice to tell where files differ; `digest` decides whether they do
        return tuple((name, digest[:8]) for name, digest in self._full_digests)

    @cached_property
    def digest(self) -> bytes:
        """The digest of all fields and the derived noise: equal only if all of them are."""
        # names cannot hold a line break, so different fields never give the same bytes
        whole = hashlib.sha256(f"{FORMAT}\n".encode())
        for name, digest in self._full_digests:
            whole.update(f"{name}\n".encode() + digest)
        return whole.digest()

    @property
    def budget(self) -> Budget:
        """What the file allows, with all of delta."""
        return Budget(self.privacy.epsilon, self.privacy.delta)

    @cached_property
    def adversary(self) -> Adversary:
        return Adversary.parse(self.privacy.adversary)

    @cached_property
    def definition(self) -> Definition:
        """What is learnt: the sections [data] and [model]."""
        return Definition(self.model, self.data)

    @cached_property
    def exposure(self) -> Exposure:
        training, privacy = self.training, self.privacy
        if privacy.unit == "user":
            return Exposure(training.clip, training.steps)
        return Exposure(
            training.clip,
            training.steps,
            "example",
            training.batch_size,
            None if privacy.rate else {m.name: m.records or 0 for m in self.members},
            privacy.sampling,
            privacy.relation,
            privacy.rate,
        )

    @cached_property
    def topology(self) -> Topology:
        """The graph, with the users' names."""
        return topology_of(self.network, self.members)

    @cached_property
    def gossip(self) -> Gossip:
        """The gossip rounds of a step."""
        accelerate: dict[str, Acceleration] = {"no": False, "chebyshev": True}
        name = self.training.accelerate
        return Gossip(self.training.gossip_rounds, accelerate.get(name, "designed"))

    @cached_property
    def _derived(self) -> tuple[NoisePlan, tuple[str, ...]]:
        """The plan, and the warnings of its calibration."""
        budget = self.budget
        # warnings become `notes`: the command prints them with the plan
        with warnings.catch_warnings(record=True) as caught:
            # also if the same warning was shown before
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
        own = plan.uniform_sigma_cdp("a federation file")
        # the rounded values are in the digest: every machine has to come to the same
        plan = replace(plan, sigma_cdp=_up(own), sigma_cor=_up(plan.sigma_cor))
        # checked again after the rounding, whatever calibrate did
        reached = plan.guarantee(budget.accounted.delta).epsilon
        if not reached <= budget.epsilon:
            raise InputError(
                f"privacy.epsilon {budget.epsilon:g} cannot be met: the derived noise gives "
                f"{reached:g}; raise it, take fewer steps, or another graph"
            )
        fragile = [each for each in caught if issubclass(each.category, FragileGraphWarning)]
        return plan, tuple(str(each.message) for each in fragile)

    @property
    def plan(self) -> NoisePlan:
        """The noise that the budget needs; the same values on every machine."""
        return self._derived[0]

    @property
    def notes(self) -> tuple[str, ...]:
        """Warnings of the plan's calibration."""
        return self._derived[1]

    def guarantee(self, adversary: Adversary | None = None) -> Guarantee:
        """What the plan promises at the file's delta.

        Its epsilon is infinite if the tables of the noise take more of delta than is left.

        Args:
            adversary: Against whom; by default the file's.

        Raises:
            InputError: Without `run_code`, against an adversary whose epsilon needs the size of the
                model's code.
        """
        if not self.is_size_known:
            # nodes refuse a model for which the tables take more than is left of delta at the
            # budget's epsilon (grid_of); up to there they change no epsilon
            bound = self.plan.guarantee_on_grid(0.0, self.budget.delta, adversary)
            if not bound.epsilon <= self.budget.epsilon:
                raise InputError(f"epsilon against {bound.adversary} is unknown: {_SIZE_UNKNOWN}")
            return bound
        return self.plan.guarantee_on_grid(self.grid.distance, self.budget.delta, adversary)

    @cached_property
    def grid(self) -> Grid:
        """The grid on which messages are noised; loads torch only for a model given as code."""
        return grid_of(self.plan, self.parameters)

    @cached_property
    def schedule(self) -> Schedule:
        # Training allows each of them with its own schedule only
        if self.training.horizon is not None:
            return InverseTime(self.training.horizon)
        return Constant() if self.training.final is None else Cosine(self.training.final)

    @cached_property
    def recipe(self) -> Recipe:
        """How to train, as the file says."""
        training = self.training
        names = [each.name for each in fields(Recipe) if hasattr(training, each.name)]
        values = {name: getattr(training, name) for name in names}
        values |= {"schedule": self.schedule, "accelerate": self.gossip.accelerate}
        if self.privacy.unit == "example":
            values["batch_size"] = None  # it is in the plan's exposure
        return Recipe(**values)

    @property
    def learning_rate(self) -> float:
        return self.training.learning_rate

    @property
    def dtype(self) -> Dtype:
        return self.training.dtype

    def number_of(self, public: bytes) -> int:
        """The number of the user with this public key."""
        for number, member in enumerate(self.members):
            if member.public == public:
                return number
        raise InputError(
            f"this key belongs to no user of {self.name!r}; use the key whose public line is in "
            "the file, or have it added"
        )

    @property
    def is_size_known(self) -> bool:
        """Whether `parameters` can be computed."""
        return self.run_code or self.model.code is None

    @cached_property
    def parameters(self) -> int:
        """How many parameters are trained; loads torch only for a model given as code."""
        if not self.is_size_known:
            raise InputError(_SIZE_UNKNOWN)
        count = parameters(self.model, self.dtype)
        self._check_size(count)
        return count

    @property
    def model_bytes(self) -> int:
        """The size of a model as it is sent."""
        # messages carry the parameters in the model's dtype, without a header of their own
        return self.parameters * self._parameter_bytes

    @property
    def _parameter_bytes(self) -> int:
        return 8 if self.dtype == "float64" else 4

    def task(
        self,
        shard: tuple[Any, Any],
        test: tuple[Any, Any] | None = None,
        *,
        user: int | None = None,
        start: StartModel | None = None,
    ) -> Task:
        """What one user trains: the file's model on its own examples; loads torch.

        No error repeats a value of the data.

        Args:
            shard: The user's (X, y).
            test: Public test examples.
            user: The number of a user who trains; at example level its number of examples must be
                the file's. None: only to load a model.
            start: The model that training begins with, where the file has its hash.

        Guarantee: a user trains from the model that the file names, or this raises.
        """
        if user is not None:
            module, loss = self.load_module(start)
        else:
            module, loss = self._module(start)
        # here, not above: a file is checked without torch
        from decor.learning.task import Task

        own = convert_data(self.model, self.dtype, "the data", shard)
        if user is not None:
            self.check_records(user, len(own[0]))
        if test is not None:
            test = convert_data(self.model, self.dtype, "the test data", test)
        return Task(module, loss, [own], test=test, name=self.name, test_public=True)

    def check_records(self, user: int, count: int) -> None:
        """Refuses another number of records than the file declares, at example level.

        Args:
            user: The number of the user.
            count: How many records it has, with or without a label.
        """
        declared = self.members[user].records
        # the sampling rate, and so the epsilon, follows from the number in the file
        if declared is not None and declared != count:
            raise InputError(
                f"the data has {count} records, and users.records says {declared}: the epsilon "
                "would not be true; correct the data, or have all users take a file with the right "
                "number"
            )

    def _check_columns(self) -> None:
        _ = self.definition  # the model fits the columns
        columns = () if self.data is None else (*self.data.columns, self.data.label)
        for column in columns:
            # neighbours would see the refusal of a value
            if column.kind == "plain":
                raise InputError(
                    f'[data] has column {column.name!r} of kind "plain", whose values can be '
                    'refused; give it kind = "number" with low and high'
                )

    def load_module(self, start: StartModel | None = None) -> tuple[Any, Any]:
        """The module that all users start from, and its loss; loads torch.

        Args:
            start: The model that training begins with, where the file has its hash.

        Guarantee: it is the model that the file names, or this raises.
        """
        begins_with = None if start is None else start.sha256
        if begins_with != self.model.start_sha256:
            raise InputError(
                f"{self.name} begins with the model of model.start_sha256 "
                f"{self.model.start_sha256}, not {begins_with}; read it with find_start"
            )
        return self._module(start)

    def _module(self, start: StartModel | None) -> tuple[Any, Any]:
        # the last gate before code of whoever wrote the file runs in this process
        if not self.is_size_known:
            raise InputError(f"model.code {self.model.code!r} may not be run; read it first")
        require("torch", "train", "federations that train")
        module, loss = build(self.model, self.dtype)
        if start is not None:
            start.load_into(module)
        return module, loss

    def _check_size(self, count: int) -> None:
        if count * self._parameter_bytes > _LARGEST:
            raise InputError(
                f"[model] has {count:,} parameters, more than the 4 GB that a message holds; make "
                "it smaller"
            )

    def _check_members(self) -> None:
        if len(self.members) < 2:
            raise InputError(
                f"users: the file lists {len(self.members) or 'none'}; a federation needs at least "
                "two"
            )
        # users may share a relay
        direct = [str(each) for m in self.members for each in m.addresses if not each.is_relay]
        names, keys = [m.name for m in self.members], [m.key for m in self.members]
        for column, values in (("name", names), ("key", keys), ("address", direct)):
            twice = [value for value in values if values.count(value) > 1]
            if twice:
                raise InputError(
                    f"users.{column} {abbreviate(twice[0])} appears more than once; each user "
                    "needs its own"
                )

    def _check_records(self) -> None:
        batch = self.training.batch_size
        if self.privacy.unit == "user":
            for member in self.members:
                if member.records is not None:
                    raise InputError(
                        f"users.records of {member.name!r} applies only with privacy.unit = "
                        '"example"; drop it'
                    )
            return
        if batch is None:
            raise InputError(
                'training.batch_size is missing; privacy.unit = "example" needs it, such as 32'
            )
        for member in self.members:
            if self.privacy.rate is not None:
                if member.records is not None:
                    raise InputError(
                        f"users.records of {member.name!r} stays private with privacy.rate; drop it"
                    )
                continue
            if member.records is None:
                raise InputError(
                    f"users.records of {member.name!r} is missing; privacy.unit = "
                    '"example" needs it for all users, or privacy.rate'
                )
            # a sampling rate above 1 would not be a probability
            if member.records < batch:
                raise InputError(
                    f"training.batch_size {batch} is larger than users.records of "
                    f"{member.name!r}, {member.records}; lower it"
                )


def build_tasks(
    federation: Federation,
    shards: Sequence[tuple[Any, Any]],
    test: tuple[Any, Any] | None,
    start: StartModel | None = None,
) -> list[Task]:
    """What every user trains, where one machine has the data of all; loads torch.

    Args:
        federation: The file.
        shards: (X, y) of each user, in the order of the file.
        test: Public test examples, or None.
        start: The model that training begins with, where the file has its hash.
    """
    users = enumerate(shards)
    return [federation.task(shard, test, user=k, start=start) for k, shard in users]


def _up(sigma: float) -> float:
    """Rounds to _DIGITS digits, never down: more noise of either kind is more privacy."""
    return float(Context(prec=_DIGITS, rounding=ROUND_CEILING).plus(Decimal(sigma)))


def _canonical(value: Any) -> bytes:
    """The same bytes on every machine: no spaces, sorted keys, shortest decimals of floats."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True, allow_nan=False).encode("ascii")
