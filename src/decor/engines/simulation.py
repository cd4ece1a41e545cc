"""Simulation: one grid of runs under way."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from decor import progress
from decor.learning.clip import Blocks
from decor.results.run import Run

from .descent import Descent
from .engine import Moment, Recipe, Setting
from .manifest import described
from .measurement import measured
from .resumption import Resumed
from .share import Share

if TYPE_CHECKING:
    from .vectorised import Vectorised

_HOPELESS = 1e4
"""Times its first loss at which a run is called diverged."""


class Simulation:
    """Steps, measurements and what callbacks say, until every run has ended."""

    def __init__(self, engine: Vectorised, share: Share, settings: Sequence[Setting], recipe: Recipe, resume: Run | None) -> None:
        self.engine, self.share, self.settings, self.recipe = engine, share, settings, recipe
        seeds = list(dict.fromkeys(setting.seed for setting in settings))
        self.grid = settings[: len(settings) // len(seeds)]
        self.steps = settings[0].plan.exposure.steps
        self.descent = Descent(engine, share, self.grid, seeds, recipe)
        self.taken = 0
        self.history: list[dict[str, list[float]]] = [{} for _ in settings]
        self.stopped: list[str | None] = [None] * len(settings)
        self.ended: dict[int, Run] = {}
        self.began = time.monotonic()
        self._resume(resume)

    def _resume(self, run: Run | None) -> None:
        def found() -> Resumed | None:
            if run is None:
                return None
            return Resumed.of(run, self.settings[0].plan, self._described(0, 0.0), self.descent.gradients)

        resumed = self.share.resumed(found, self.descent.models)
        if resumed is not None:
            self.taken, self.history[0] = resumed.start, resumed.history
            self.descent.models = resumed.models
            self.descent.velocity = resumed.velocity or self.descent.velocity

    def finished(self) -> list[Run]:
        with self.descent.steps() as take:
            moments = self.recipe.evaluated(self.steps)
            if not self.history[0]:
                self._measure()
            while self.taken < self.steps and not all(self.stopped):
                take(self.taken)
                self.taken += 1
                progress.report(f"training {self.share.task.name}", self.taken, self.steps)
                if self.taken == self.steps:
                    self.descent.finish()
                if self.taken in moments:
                    self._measure()
        return [self.ended.get(k) or self._run(k) for k in range(len(self.settings))]

    def _measure(self) -> None:
        """Metrics of all runs; notes which diverged and which a callback stops."""
        table = measured(self.descent, 0 < self.taken < self.steps)
        moments = {}
        for k in range(len(self.settings)):
            if self.stopped[k]:
                continue
            row = {"step": self.taken, **{name: values[k] for name, values in table.items()}}
            for name, value in row.items():
                self.history[k].setdefault(name, []).append(value)
            hopeless = row["loss"] > _HOPELESS * (1 + abs(self.history[k]["loss"][0]))
            if hopeless or not all(math.isfinite(value) for value in row.values()):
                self._stop(k, self._diverged(k))
                continue
            moments[k] = Moment(self.settings[k], self.taken, row, partial(self._run, k))
        for k, reason in self.share.asked(moments, self._run).items():
            self._stop(k, reason)

    def _stop(self, k: int, why: str) -> None:
        """This run is over: what others in the tensor still do is no longer its own."""
        self.stopped[k] = why
        self.ended[k] = self._run(k)

    def _diverged(self, k: int) -> str:
        s = self.settings[k]
        noise = f"sigma_cdp {s.plan.sigma_cdp:.4g}"
        way = f"lower the learning rate from {s.learning_rate:g} to {s.learning_rate / 10:g}"
        return (
            f"diverged: the loss is {self.history[k]['loss'][-1]:.3g} after step {self.taken} ({noise}); {way}, "
            "or take a smaller clip, which needs less noise"
        )

    def _run(self, k: int) -> Run:
        """Run k as it is now."""
        gradients = self.descent.gradients
        models = self._named(self.descent.models, k)
        models |= {name: models[own].clone() for name, own in gradients.tied.items() if models}
        velocity = self._named(self.descent.velocity, k) if self.descent.velocity else {}
        manifest = self._described(k, time.monotonic() - self.began)
        stopped = self.stopped[k]
        if stopped is None and self.taken < self.steps:
            stopped = f"stopped after step {self.taken} of {self.steps}"
        history = {name: list(values) for name, values in self.history[k].items()}
        plan, fixed = self.settings[k].plan, {name: value.cpu() for name, value in gradients.fixed.items()}
        velocity = velocity if stopped else {}
        return Run(plan, history, models, self.taken, stopped, manifest, velocity, fixed, elsewhere=not models)

    def _named(self, blocks: Blocks, k: int) -> dict[str, Tensor]:
        """One run's numbers of all users by the names of the parameters, away from the card."""
        seed, setting = divmod(k, len(self.grid))
        whole = self.share.everybodys([block[:, seed, setting].to("cpu", copy=True) for block in blocks])
        return self.descent.gradients.state(whole) if whole else {}

    def _described(self, k: int, seconds: float) -> dict[str, Any]:
        share = self.share
        return described(self.engine, share.name, share.whole, share.fingerprint, self.settings[k], self.recipe, seconds)
