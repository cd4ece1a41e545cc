"""Simulation: one grid of runs under way."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import Tensor

from decor import progress
from decor.learning.gradients.clip import Blocks
from decor.learning.recipe import Recipe
from decor.results.run import Run
from decor.results.stop_reason import StopReason

from .channel import Private
from .descent import Descent
from .engine import Moment, PublicMetrics, Setting, SimulatorOptions
from .manifest import described, described_privately, keyed
from .measurement import PUBLIC, measured
from .resumption import Resumed
from .share import Share

_HOPELESS = 1e4
"""Times its first loss at which a run is called diverged."""


class Simulation:
    """Steps, measurements and what callbacks say, until every run has ended."""

    def __init__(
        self,
        engine: SimulatorOptions,
        share: Share,
        settings: Sequence[Setting],
        recipe: Recipe,
        resume: Run | None,
    ) -> None:
        self.engine, self.share, self.settings, self.recipe = engine, share, settings, recipe
        self.private = share.secret is not None
        seeds = list(
            dict.fromkeys(0 if setting.seed is None else setting.seed for setting in settings)
        )
        self.grid = settings[: len(settings) // len(seeds)]
        self.steps = settings[0].plan.exposure.steps
        self.descent = Descent(engine, share, self.grid, seeds, recipe)
        self.taken = 0
        self.history: list[dict[str, list[float]]] = [{} for _ in settings]
        self.private_metrics: dict[str, list[float]] = {}
        # of a private run: the key under which an unfinished run knows its data again, and a name
        # that tells runs apart
        self.resume_key: bytes | None = os.urandom(32) if self.private and share.is_alone else None
        self.name: str | None = os.urandom(8).hex() if self.private else None
        self.stopped: list[StopReason | None] = [None] * len(settings)
        self.saw_private_data = engine.private_metrics
        self.ended: dict[int, Run] = {}
        self.began = time.monotonic()
        self._resume(resume)

    def _resume(self, run: Run | None) -> None:
        if run is not None and self.private:
            self.resume_key, self.name = run.resume_key or self.resume_key, run.manifest.get("run")

        def found() -> Resumed | None:
            if run is None:
                return None
            return Resumed.of(
                run,
                self.settings[0].plan,
                self._described(0, 0.0, unfinished=True),
                self.descent.gradients,
            )

        resumed = self.share.resumed(found, self.descent.models)
        if resumed is None:
            return
        self.taken, self.history[0] = resumed.start, resumed.history
        self.descent.models = resumed.models
        self.descent.velocity = resumed.velocity or self.descent.velocity
        if run is not None:  # of several processes the first has it
            self.private_metrics = {
                name: list(values) for name, values in run.private_metrics.items()
            }
            self.saw_private_data |= bool(run.private_metrics) or bool(
                run.manifest.get("stop_saw_private_data")
            )

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
        if self.private:
            self._measure_privately()
            return
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

    def _measure_privately(self) -> None:
        """Of a private run: public metrics, divergence judged on the models, and what was asked for
        beside the promise.
        """
        own = self.engine.private_metrics
        table = measured(self.descent, 0 < self.taken < self.steps, public=not own)
        every: dict[str, float] = {
            "step": self.taken,
            **{name: values[0] for name, values in table.items()},
        }
        public = ("step", "consensus", *(PUBLIC if self.share.whole.test_public else ()))
        row = {name: value for name, value in every.items() if name in public}
        for history, values in (
            (self.history[0], row),
            (self.private_metrics, every if own else {}),
        ):
            for name, value in values.items():
                history.setdefault(name, []).append(value)
        if self.descent.diverged():
            self._stop(0, self._diverged(0))
            return
        public_row = PublicMetrics(row)
        moment = Moment(
            self.settings[0],
            self.taken,
            every if own else public_row,
            partial(self._run, 0),
            public_row,
        )
        for k, reason in self.share.asked({0: moment}, self._run).items():
            self._stop(k, reason)

    def _stop(self, k: int, why: StopReason) -> None:
        """This run is over: what others in the tensor still do is no longer its own."""
        self.stopped[k] = why
        self.ended[k] = self._run(k)

    def _diverged(self, k: int) -> StopReason:
        s = self.settings[k]
        noise = f"sigma_cdp {s.plan.sigma_cdp:.4g}"
        what = (
            "a model is not finite, or beyond 1e18,"
            if self.private
            else f"the loss is {self.history[k]['loss'][-1]:.3g}"
        )
        way = f"lower the learning rate from {s.learning_rate:g} to {s.learning_rate / 10:g}"
        text = (
            f"diverged: {what} after step {self.taken} ({noise}); {way}, or take a smaller "
            "clip, which needs less noise"
        )
        return StopReason(text, "diverged")

    def _run(self, k: int) -> Run:
        """Run k as it is now."""
        gradients = self.descent.gradients
        models = self._named(self.descent.models, k)
        models |= {name: models[own].clone() for name, own in gradients.tied.items() if models}
        velocity = self._named(self.descent.velocity, k) if self.descent.velocity else {}
        stopped = self.stopped[k]
        if stopped is None and self.taken < self.steps:
            stopped = StopReason(f"stopped after step {self.taken} of {self.steps}", "unfinished")
        manifest = self._described(k, time.monotonic() - self.began, unfinished=stopped is not None)
        # which of its steps is kept, or when it was stopped, may have been chosen by looking at
        # them
        if self.saw_private_data and self.taken < self.steps:
            manifest["stop_saw_private_data"] = True
        history = {name: list(values) for name, values in self.history[k].items()}
        plan, fixed = (
            self.settings[k].plan,
            {name: value.cpu() for name, value in gradients.fixed.items()},
        )
        velocity, key = (velocity, self.resume_key) if stopped else ({}, None)
        private = {name: list(values) for name, values in self.private_metrics.items()}
        return Run(
            plan,
            history,
            models,
            self.taken,
            stopped,
            manifest,
            velocity,
            fixed,
            private,
            key,
            elsewhere=not models,
        )

    def _named(self, blocks: Blocks, k: int) -> dict[str, Tensor]:
        """One run's numbers of all users by the names of the parameters, away from the card."""
        seed, setting = divmod(k, len(self.grid))
        whole = self.share.everybodys(
            [block[:, seed, setting].to("cpu", copy=True) for block in blocks]
        )
        return self.descent.gradients.state(whole) if whole else {}

    def _described(self, k: int, seconds: float, unfinished: bool = False) -> dict[str, Any]:
        share = self.share
        if not self.private:
            return described(
                self.engine,
                share.name,
                share.whole,
                share.fingerprint,
                self.settings[k],
                self.recipe,
                seconds,
            )
        channel = self.descent.channel
        assert isinstance(channel, Private)
        distance = channel.source.grid.distance
        found = described_privately(
            self.engine, share.name, share.whole, self.settings[k], self.recipe, distance
        )
        found["run"] = self.name
        if unfinished and self.resume_key is not None:
            found["resume_tag"] = keyed(self.resume_key, share.fingerprint)
        return found
