"""Recipe: how to train, apart from the data, the noise and the learning rate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from decor import checks
from decor.array_types import Floats
from decor.choices import Acceleration, Rounds
from decor.errors import InputError
from decor.graph.gossip import Gossip

from .optimizer import Adam, optimizer_of
from .schedule import Constant, Function, Schedule, schedule_of


def _option(default: Any, help: str, metavar: str) -> Any:
    """A field of the recipe, with the help text and placeholder of its command-line option."""
    return field(default=default, metadata={"help": help, "metavar": metavar})


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How to train. Everything here is public and acts on noised messages, so it costs no privacy.

    Args:
        schedule: How the learning rate changes over the steps; one of `decor.schedule`, the name of
            one, or a function that gives a share of the learning rate for each step from 0.
        optimizer: "sgd", which takes `momentum`, or "adam" (or `decor.optimizer.Adam(...)`), which
            each user runs on its own noised gradients.
        momentum: Heavy-ball momentum of the noised gradients, from 0 to less than 1.
        weight_decay: Shrinks parameters by this share of the learning rate in every step.
        averaging: Each user ends with the mean of its own models after the last steps, this share
            of all, instead of the last one: from 0 (the last model) to 1 (all of them). Simulators
            and process groups do so; peers refuse it.
        gossip_rounds: Rounds of averaging with neighbours in every step; 0 trains each user alone.
            By default "auto": what `decor.gossip_for(plan)` says, the fewest designed rounds that
            are nearly as good as perfect averaging.
        accelerate: Better weights for several rounds: "chebyshev" (or True), or "designed" for the
            graph.
        final_gossip_rounds: Chebyshev rounds after the last step, so that all users end with nearly
            the same model.
        local_steps: User level: gradient steps each user takes alone; their sum is clipped as one
            gradient.
        batch_size: User level: examples that a gradient averages; None takes all. At example level
            the plan sets it.
        evaluate_every: Steps between measurements, or the steps to measure after; None measures
            about fifty times.

    Raises:
        InputError: If a value is out of its range.
    """

    schedule: Schedule = _option(
        Constant(),
        "how the step size changes: constant, cosine (or cosine:FINAL), inverse-time:HORIZON for "
        "half after HORIZON steps, or pl:MU:SMOOTHNESS for Polyak-Lojasiewicz losses",
        "NAME",
    )
    optimizer: Adam | str = _option(
        "sgd", "sgd, or adam: each user's own, on its noisy gradients", "NAME"
    )
    momentum: float = _option(0.0, "heavy-ball momentum of the noisy gradients", "M")
    weight_decay: float = _option(
        0.0, "shrink parameters by W times the step size in each step", "W"
    )
    averaging: float = _option(
        0.0, "end with the mean of the models after the last A of all steps, from 0 to 1", "A"
    )
    gossip_rounds: Rounds = _option(
        "auto",
        "rounds of averaging with neighbours per step, or auto for the fewest designed rounds that "
        "are nearly as good as perfect averaging",
        "K",
    )
    accelerate: Acceleration = _option(
        False,
        "speed up averaging in 2 or more gossip rounds: chebyshev for any graph, "
        "designed for weights optimised for this one",
        "HOW",
    )
    final_gossip_rounds: int = _option(
        0, "rounds of averaging with neighbours after the last step", "K"
    )
    local_steps: int = _option(
        1, "with --unit user, local steps of each user per training step, clipped as one", "K"
    )
    batch_size: int | None = _option(None, "examples per gradient", "B")
    evaluate_every: int | Sequence[int] | None = _option(
        None, "steps between measurements (default: a fiftieth of all steps)", "K"
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "schedule", schedule_of(self.schedule))
        # no checks.not_negative here: 1e-200 and 1e200 are accepted
        for name, limit, wanted in (
            ("momentum", 1, "a number from 0 to less than 1"),
            ("weight_decay", math.inf, "a number of at least 0"),
        ):
            value = getattr(self, name)
            is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
            if not is_number or not 0 <= value < limit:
                raise InputError(f"{name} must be {wanted}, not {value!r}")
        share = checks.as_float(self.averaging)
        if not 0 <= share <= 1:
            raise InputError(
                "averaging must be the share of the steps whose models are averaged, from 0 to 1, "
                f"not {self.averaging!r}"
            )
        object.__setattr__(self, "averaging", share)
        if self.adam is not None and self.momentum:
            raise InputError(
                f"momentum {self.momentum:g} is of SGD; with Adam say "
                "decor.optimizer.Adam(beta1=...)"
            )
        if self.gossip_rounds != "auto":
            _ = self.gossip  # Gossip validates rounds and acceleration
        elif Gossip(2, self.accelerate).accelerate not in (False, "designed"):
            raise InputError(
                'gossip_rounds="auto" takes designed rounds; drop accelerate, or give the number '
                "of rounds too"
            )
        _ = self.final_gossip
        for name in ("local_steps", "batch_size"):
            if getattr(self, name) is not None:
                checks.count(name, getattr(self, name))
        every = self.evaluate_every
        if (
            isinstance(every, Sequence)
            and not isinstance(every, str)
            and all(map(checks.is_count, every))
        ):
            # a tuple, so that the recipe stays hashable and the caller cannot change it
            object.__setattr__(self, "evaluate_every", tuple(int(step) for step in every))
        elif every is not None and not checks.is_count(every):
            raise InputError(
                "evaluate_every must be a positive whole number, or the steps to measure after, "
                f"not {every!r}"
            )

    @cached_property
    def adam(self) -> Adam | None:
        """The optimizer, unless it is SGD."""
        return optimizer_of(self.optimizer)

    def rates(self, learning_rate: float, steps: int) -> Floats:
        """The step size of every step.

        Args:
            learning_rate: As given to `decor.train`.
            steps: The length of the run.
        """
        return self.schedule.rates(learning_rate, steps)

    @cached_property
    def gossip(self) -> Gossip:
        """The rounds of every step."""
        if self.gossip_rounds == "auto":
            raise InputError(
                'gossip_rounds="auto" depends on a plan; train with decor.train, or take '
                "decor.gossip_for(plan).rounds"
            )
        return Gossip(self.gossip_rounds, self.accelerate)

    @cached_property
    def final_gossip(self) -> Gossip:
        """The rounds after the last step."""
        return Gossip(self.final_gossip_rounds, accelerate=True)

    def to_json(self) -> dict[str, Any]:
        """The recipe as plain values, for the manifest of a run."""
        # the keys of version 0.1, so that its runs can be resumed
        own: dict[str, Any] = {}
        if self.adam is not None:
            own["optimizer"] = {"name": "Adam", **vars(self.adam)}
        if self.averaging:
            own["averaging"] = self.averaging
        return own | {
            "schedule": {"name": type(self.schedule).__name__, **self._schedule_facts},
            "momentum": self.momentum,
            "weight_decay": self.weight_decay,
            "gossip": asdict(self.gossip),
            "final_gossip": asdict(self.final_gossip),
            "local_steps": self.local_steps,
            "batch_size": self.batch_size,
            "evaluate_every": self.evaluate_every,
        }

    @property
    def _schedule_facts(self) -> dict[str, Any]:
        schedule = self.schedule
        return schedule.facts if isinstance(schedule, Function) else vars(schedule)

    def models_to_average(self, steps: int) -> int:
        """How many of each user's last models its result is the mean of; 0 without averaging.

        Args:
            steps: The length of the run.
        """
        return math.ceil(self.averaging * steps)

    def evaluation_steps(self, steps: int) -> frozenset[int]:
        """After which steps to measure: always at the start and at the end.

        Args:
            steps: The length of the run.
        """
        if isinstance(self.evaluate_every, tuple):
            return frozenset(step for step in self.evaluate_every if step <= steps) | {0, steps}
        # about fifty measurements cost little beside training
        every = int(self.evaluate_every or max(1, steps // 50))  # type: ignore[arg-type]
        return frozenset(range(0, steps, every)) | {steps}


def with_gossip(recipe: Recipe, gossip: Gossip) -> Recipe:
    """The recipe with these rounds, where its own are "auto".

    Args:
        recipe: How to train.
        gossip: What "auto" means for the plan.
    """
    if recipe.gossip_rounds != "auto":
        return recipe
    return replace(recipe, gossip_rounds=gossip.rounds, accelerate=gossip.accelerate)


def recipe_with(recipe: Recipe | None, fields: Mapping[str, Any]) -> Recipe:
    """The recipe with these fields changed, as in `train(..., momentum=0.9)`.

    Args:
        recipe: None is the default recipe.
        fields: New values by field name.
    """
    return replace(recipe or Recipe(), **fields)
