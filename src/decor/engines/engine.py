"""What every engine is given, and what it gives back."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from decor.errors import InputError
from decor.graph.gossip import Gossip
from decor.learning.schedule import Constant, Schedule
from decor.learning.task import Task
from decor.privacy.guarantee import Guarantee
from decor.privacy.plan import NoisePlan
from decor.results.run import Run


@dataclass(frozen=True)
class Recipe:
    """How to train, apart from noise and data. Everything here is public and applied to noised messages: it costs no privacy."""

    schedule: Schedule = field(default_factory=Constant)
    momentum: float = 0.0
    weight_decay: float = 0.0
    gossip: Gossip = field(default_factory=Gossip)
    final_gossip: Gossip = field(default_factory=lambda: Gossip(0))
    local_steps: int = 1
    batch_size: int | None = None
    evaluate_every: int | Sequence[int] | None = None

    def __post_init__(self) -> None:
        if not hasattr(self.schedule, "rates"):
            raise InputError(f"schedule must be one of decor.schedule, such as Cosine(), not {self.schedule!r}")
        for name in ("momentum", "weight_decay"):
            if isinstance(getattr(self, name), bool) or not isinstance(getattr(self, name), int | float | np.number):
                raise InputError(f"{name} must be a number, not {getattr(self, name)!r}")
        if not (0 <= self.momentum < 1):
            raise InputError(f"momentum must be a number from 0 to less than 1, not {self.momentum!r}")
        if not (0 <= self.weight_decay < math.inf):
            raise InputError(f"weight_decay must be a number of at least 0, not {self.weight_decay!r}")
        for name in ("local_steps", "batch_size"):
            value = getattr(self, name)
            if value is not None and not _counts(value):
                raise InputError(f"{name} must be a positive whole number, not {value!r}")
        every = self.evaluate_every
        if isinstance(every, Sequence | range) and not isinstance(every, str) and all(map(_counts, every)):
            object.__setattr__(self, "evaluate_every", tuple(int(step) for step in every))
        elif every is not None and not _counts(every):
            raise InputError(f"evaluate_every must be a positive whole number, or the steps to measure after, not {every!r}")

    def described(self) -> dict[str, Any]:
        """As plain values, for the manifest of a run."""
        return asdict(self) | {"schedule": {"name": type(self.schedule).__name__, **vars(self.schedule)}}

    def evaluated(self, steps: int) -> frozenset[int]:
        """After which steps metrics are taken: about fifty times unless told otherwise, at the start and at the end."""
        if isinstance(self.evaluate_every, tuple):
            return frozenset(step for step in self.evaluate_every if step <= steps) | {0, steps}
        every = int(self.evaluate_every or max(1, steps // 50))  # type: ignore[arg-type]
        return frozenset(range(0, steps, every)) | {steps}


def _counts(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= 1)


@dataclass(frozen=True)
class Setting:
    """One run: the noise, the step size, and the seed of all that is random (None: a private run, with a secret of its own)."""

    plan: NoisePlan
    learning_rate: float
    seed: int | None

    def __post_init__(self) -> None:
        rate = self.learning_rate
        if isinstance(rate, bool) or not isinstance(rate, int | float | np.number) or not (rate > 0 and math.isfinite(rate)):
            raise InputError(f"learning_rate must be a positive finite number, not {rate!r}")
        object.__setattr__(self, "learning_rate", float(rate))
        if self.seed is None:
            return
        if isinstance(self.seed, bool) or not isinstance(self.seed, int | np.integer) or not 0 <= self.seed < 2**63:
            raise InputError(f"seed must be a whole number from 0 to 2^63 - 1, or None for a private run, not {self.seed!r}")
        object.__setattr__(self, "seed", int(self.seed))


@dataclass(frozen=True)
class Moment:
    """What a callback sees when metrics have been taken: in a private run, models and public metrics alone."""

    setting: Setting
    step: int
    metrics: dict[str, float]
    run_now: Callable[[], Run] = field(repr=False)
    own_public: dict[str, float] | None = field(default=None, repr=False)

    @property
    def public(self) -> dict[str, float]:
        """The metrics that may be shown to others: of a simulation all of them."""
        return self.metrics if self.own_public is None else self.own_public

    @property
    def guarantee(self) -> Guarantee:
        """What the steps so far cost, if their number was fixed in advance."""
        found = self.setting.plan.guarantee_on_grid(0.0, steps=self.step)
        return replace(found, simulated=self.setting.seed is not None)

    def run(self) -> Run:
        """The run as it would be if it stopped here: to save a checkpoint."""
        return self.run_now()


class PublicMetrics(dict[str, float]):
    """What a callback of a private run may read."""

    def __missing__(self, name: str) -> float:
        raise InputError(
            f"{name!r} is not measured on public data, so a callback of a private run cannot have it: a run that stops by "
            "looking at private data has no guarantee. Use the models (moment.run()), or public test data "
            "(Task(..., test_public=True)); for your own eyes there is Vectorised(seed=None, private_metrics=True)"
        )


Callback = Callable[[Moment], object]
"""Called when metrics have been taken. True, or a sentence that says why, stops the run."""


class Engine(Protocol):
    """Runs settings of one task; the plans differ in noise, clip and adversary alone."""

    def run(
        self, task: Task, settings: Sequence[Setting], recipe: Recipe, callbacks: Sequence[Callback], resume: Run | None
    ) -> list[Run]:
        """One finished (or stopped) run for every setting, in their order."""
        ...
