"""Engine: the interface of engines, and the types that they are given and give back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from torch import Tensor

from decor import checks
from decor.choices import Dtype, GradientPath
from decor.errors import InputError
from decor.learning.recipe import Recipe
from decor.learning.task import Task
from decor.privacy.guarantee import Guarantee
from decor.privacy.plan import NoisePlan
from decor.results.run import Run

from .channel import NoiseSource


@dataclass(frozen=True)
class Setting:
    """One run: its plan, learning rate, and seed (None: a private run, which draws a secret)."""

    plan: NoisePlan
    learning_rate: float
    seed: int | None

    def __post_init__(self) -> None:
        # the checked values replace the given ones: NumPy scalars become plain numbers for JSON
        rate = checks.positive("learning_rate", self.learning_rate)
        object.__setattr__(self, "learning_rate", rate)
        if self.seed is not None:
            seed = checks.count("seed", self.seed, 0, hint="or None for a private run")
            object.__setattr__(self, "seed", seed)


@dataclass(frozen=True)
class Moment:
    """What a callback is given after a measurement.

    Attributes:
        setting: The run's plan, learning rate and seed.
        step: Steps taken so far.
        metrics: The latest metrics; of a private run, public ones only (unless `private_metrics`).
        run_now: Makes the run as it is now.
        own_public: The public metrics, where `metrics` has others too.
    """

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
        # without what the grid takes of delta, which the run's own guarantee counts
        guarantee = self.setting.plan.guarantee_on_grid(0.0, steps=self.step)
        return replace(guarantee, simulated=self.setting.seed is not None)

    def run(self) -> Run:
        """The run as it would be if it stopped here, for example to save a checkpoint."""
        return self.run_now()


class PublicMetrics(dict[str, float]):
    """The metrics that a callback of a private run may read."""

    # not a KeyError: the message has to say which ways of stopping keep the guarantee
    def __missing__(self, name: str) -> float:
        raise InputError(
            f"{name!r} is not measured on public data, so a callback of a private run cannot read "
            "it: a run that stops by looking at private data has no guarantee. Use the models "
            "(moment.run()), or public test data (Task(..., test_public=True)); to see it yourself "
            "use Vectorised(seed=None, private_metrics=True)"
        )


Callback = Callable[[Moment], object]
"""Called after each measurement. True, or a sentence that says why, stops the run."""


class SimulatorOptions(Protocol):
    """The options that the simulator's parts read; `Vectorised` documents each."""

    @property
    def device(self) -> str: ...
    @property
    def dtype(self) -> Dtype: ...
    @property
    def threads(self) -> int | None: ...
    @property
    def path(self) -> GradientPath: ...
    @property
    def tf32(self) -> bool: ...
    @property
    def bf16(self) -> bool: ...
    @property
    def noise(self) -> NoiseSource | str | None: ...
    @property
    def private_metrics(self) -> bool: ...
    @property
    def on_messages(self) -> Callable[[int, Tensor], object] | None: ...


@dataclass(frozen=True)
class Capabilities:
    """What an engine can do beyond one run from its first step to its last."""

    several_settings: bool = True
    """Runs many settings in one call: sweeps."""
    callbacks: bool = True
    """Calls callbacks, which can stop a run."""
    resuming: bool = True
    """Continues a run that stopped early."""
    measurements: bool = True
    """Measures every `evaluate_every` steps, not only at the end."""

    def check(
        self,
        engine: object,
        settings: Sequence[Setting],
        recipe: Recipe,
        callbacks: Sequence[Callback],
        resume: Run | None,
    ) -> None:
        """Refuses what the engine cannot do, before anything is computed."""
        unsupported = {
            "several settings": len(settings) > 1 and not self.several_settings,
            "callbacks": bool(callbacks) and not self.callbacks,
            "resume": resume is not None and not self.resuming,
            "evaluate_every": recipe.evaluate_every is not None and not self.measurements,
        }
        # in the caller's own words, so that it is clear which argument to drop
        names = " or ".join(name for name, is_asked in unsupported.items() if is_asked)
        if names:
            raise InputError(
                f"{type(engine).__name__} does not support {names}; drop it, or use Vectorised()"
            )


class Engine(Protocol):
    """Runs settings of one task, whose plans differ only in noise, clip and adversary."""

    @property
    def seed(self) -> int | None:
        """The seed of a simulation; None if the noise is secret (private runs, real peers)."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """What this engine supports; `train` and `sweep` refuse the rest."""
        ...

    @property
    def parameters_at_once(self) -> int:
        """How many parameters, of all models together, one sweep trains at once."""
        ...

    def run(
        self,
        task: Task,
        settings: Sequence[Setting],
        recipe: Recipe,
        callbacks: Sequence[Callback] = (),
        resume: Run | None = None,
    ) -> list[Run]:
        """One finished (or stopped) run for every setting, in their order."""
        ...


IN_MEMORY = 100_000_000
"""Parameters of all models trained together on a CPU: 400 MB, and as much again to work with."""
