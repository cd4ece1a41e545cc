"""Simulation: one grid of runs (seeds x settings), from the first step to the last."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor

from decor import progress
from decor.errors import InputError
from decor.learning.frozen import body_parameters
from decor.learning.gradients.clip import Blocks
from decor.learning.recipe import Recipe
from decor.results.run import Run
from decor.results.stop_reason import StopReason

from .channel import GridChannel
from .descent import Descent
from .engine import Moment, PublicMetrics, Setting, SimulatorOptions
from .manifest import (
    RunManifest,
    engine_summary,
    private_manifest,
    resume_tag,
    simulation_manifest,
)
from .measurement import measure, public_test_metrics
from .resume_state import ResumeState
from .share import Share

_DIVERGED = 1e4
"""A run has diverged if its loss is this many times its first loss."""


class Simulation:
    """Takes steps, measures and calls callbacks until every run has ended."""

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
        seeds = list(dict.fromkeys(setting.seed or 0 for setting in settings))
        # settings come seed by seed, so the first seed's are the grid
        self.grid = settings[: len(settings) // len(seeds)]
        self.steps = settings[0].plan.exposure.steps
        self.descent = Descent(engine, share, self.grid, seeds, recipe)
        self.taken = 0
        self.history: list[dict[str, list[float]]] = [{} for _ in settings]
        self.private_metrics: dict[str, list[float]] = {}
        # of a private run: with the key an unfinished run recognises its data; the name tells runs
        # apart
        resumable = self.private and share.has_all_users
        self.resume_key: bytes | None = os.urandom(32) if resumable else None
        self.name: str | None = os.urandom(8).hex() if self.private else None
        self.stopped: list[StopReason | None] = [None] * len(settings)
        self.saw_private_data = engine.private_metrics
        self.ended: dict[int, Run] = {}
        self.began = time.monotonic()
        self._resume(resume)

    def _resume(self, run: Run | None) -> None:
        if run is not None and self.private:
            # before the manifest is compared: its tag is made with the key
            self.resume_key, self.name = run.resume_key or self.resume_key, run.manifest.get("run")

        def load() -> ResumeState | None:
            if run is None:
                return None
            if self.recipe.adam is not None:
                raise InputError(
                    "a run with Adam cannot be resumed, because its averages are not kept; start "
                    'it again, or say optimizer="sgd"'
                )
            if self.recipe.averaging:
                raise InputError(
                    "a run that averages models cannot be resumed, because only their mean is "
                    "kept; start it again, or drop averaging"
                )
            manifest = self._manifest(0, 0.0, unfinished=True)
            return ResumeState.of(run, self.settings[0].plan, manifest, self.descent.gradients)

        resumed = self.share.resume_state(load, self.descent.models)
        if resumed is None:
            return
        self.taken, self.history[0] = resumed.start, resumed.history
        self.descent.models = resumed.models
        self.descent.velocity = resumed.velocity or self.descent.velocity
        if run is not None:  # only rank 0 is given it
            self.private_metrics = _copy(run.private_metrics)
            # resuming does not undo that a stop was chosen by looking at private data
            stop_saw = bool(run.manifest.get("stop_saw_private_data"))
            self.saw_private_data |= bool(run.private_metrics) or stop_saw

    def run(self) -> list[Run]:
        """Runs to the end; gives one run for every setting."""
        with self.descent.steps() as take:
            evaluated = self.recipe.evaluation_steps(self.steps)
            # a resumed run has measured its start already
            if not self.history[0]:
                self._measure()
            while self.taken < self.steps and not all(self.stopped):
                take(self.taken)
                self.taken += 1
                self.descent.add_to_average(self.taken)
                progress.report(f"training {self.share.task.name}", self.taken, self.steps)
                # before the last measurement, which is of the models that users keep
                if self.taken == self.steps:
                    self.descent.finish()
                if self.taken in evaluated:
                    self._measure()
        # a run that stopped early was kept as it was then
        return [self.ended.get(k) or self._run(k) for k in range(len(self.settings))]

    def _measure(self) -> None:
        """Measures all runs; stops those that diverged and those that a callback stops."""
        moments = self._private_moments() if self.private else self._moments()
        for k, reason in self.share.run_callbacks(moments, self._run).items():
            self._stop(k, reason)

    def _moments(self) -> dict[int, Moment]:
        """What callbacks are given of the runs that go on."""
        table = measure(self.descent, 0 < self.taken < self.steps)
        moments = {}
        for k in range(len(self.settings)):
            if self.stopped[k]:
                continue
            row = {"step": self.taken, **{name: values[k] for name, values in table.items()}}
            _append(self.history[k], row)
            # plus one: the first loss may be zero
            is_hopeless = row["loss"] > _DIVERGED * (1 + abs(self.history[k]["loss"][0]))
            # an own metric may be undefined for a sound model
            ours = [value for name, value in row.items() if name not in self.share.task.metrics]
            if is_hopeless or not all(map(math.isfinite, ours)):
                loss = f"the loss is {row['loss']:.3g}"
                self._stop(k, self._divergence(k, loss))
                continue
            moments[k] = Moment(self.settings[k], self.taken, row, partial(self._run, k))
        return moments

    def _private_moments(self) -> dict[int, Moment]:
        """The same of a private run: public metrics, and private ones only where asked for."""
        own = self.engine.private_metrics
        table = measure(self.descent, 0 < self.taken < self.steps, public=not own)
        every: dict[str, float] = {"step": self.taken}
        every |= {name: values[0] for name, values in table.items()}
        # consensus is a distance between models, which are messages already
        public = ("step", "consensus", *public_test_metrics(self.share.full_task))
        row = PublicMetrics({name: value for name, value in every.items() if name in public})
        _append(self.history[0], row)
        if own:
            _append(self.private_metrics, every)
        # judged on the models, never on a loss: when a run stops must not depend on the data
        if self.descent.has_diverged():
            self._stop(0, self._divergence(0, "a model is not finite, or beyond 1e18,"))
            return {}
        metrics = every if own else row
        return {0: Moment(self.settings[0], self.taken, metrics, partial(self._run, 0), row)}

    def _stop(self, k: int, why: StopReason) -> None:
        """Keeps run k as it is now: the tensor goes on with the other runs."""
        self.stopped[k] = why
        self.ended[k] = self._run(k)

    def _divergence(self, k: int, what: str) -> StopReason:
        s = self.settings[k]
        text = (
            f"diverged: {what} after step {self.taken} (sigma_cdp {s.plan.least_sigma_cdp:.4g}); "
            f"lower the learning rate from {s.learning_rate:g} to {s.learning_rate / 10:g}, or "
            "take a smaller clip, which needs less noise"
        )
        return StopReason(text, "diverged")

    def _run(self, k: int) -> Run:
        """Run k as it is now."""
        gradients = self.descent.gradients
        models = self._state(self.descent.results, k)
        # parameters that share storage are trained once and saved under each name
        models |= {name: models[own].clone() for name, own in gradients.tied.items() if models}
        velocity = self._state(self.descent.velocity, k) if self.descent.velocity else {}
        # the module's own memory: neither a copy of this run nor one from a GPU
        frozen = body_parameters(self.share.full_task.model)
        buffers = {name: part for name, part in gradients.fixed.items() if name not in frozen}
        stopped = self.stopped[k]
        if stopped is None and self.taken < self.steps:
            stopped = StopReason(f"stopped after step {self.taken} of {self.steps}", "unfinished")
        seconds = time.monotonic() - self.began
        manifest = self._manifest(k, seconds, unfinished=stopped is not None)
        # the step that is kept, or at which it stopped, may have been chosen by looking at the data
        if self.saw_private_data and self.taken < self.steps:
            manifest = replace(manifest, stop_saw_private_data=True)
        return Run(
            self.settings[k].plan,
            _copy(self.history[k]),
            models,
            self.taken,
            stopped,
            manifest.to_json(),
            velocity if stopped else {},
            {name: value.cpu() for name, value in buffers.items()},
            _copy(self.private_metrics),
            self.resume_key if stopped else None,
            elsewhere=not models,
            frozen=frozen,
        )

    def _state(self, blocks: Blocks, k: int) -> dict[str, Tensor]:
        """Run k's arrays of all users by parameter name, on the CPU; empty but on rank 0."""
        # k counts settings within seeds
        seed, setting = divmod(k, len(self.grid))
        own = [block[:, seed, setting].to("cpu", copy=True) for block in blocks]
        blocks = self.share.gather_users(own)
        return self.descent.gradients.state(blocks) if blocks else {}

    def _manifest(self, k: int, seconds: float, unfinished: bool) -> RunManifest:
        engine, share, setting, recipe = self.engine, self.share, self.settings[k], self.recipe
        task = share.full_task
        if not self.private:
            return simulation_manifest(
                engine, share.name, task, share.fingerprint, setting, recipe, seconds
            )
        assert isinstance(self.descent.channel, GridChannel)
        distance = self.descent.channel.source.grid.distance
        summary = engine_summary(engine, share.name)
        manifest = private_manifest(summary, task, setting, recipe, distance, self.name)
        if unfinished and self.resume_key is not None:
            tag = resume_tag(self.resume_key, share.fingerprint)
            return replace(manifest, resume_tag=tag)
        return manifest


def _append(history: dict[str, list[float]], row: dict[str, float]) -> None:
    for name, value in row.items():
        history.setdefault(name, []).append(value)


def _copy(history: dict[str, list[float]]) -> dict[str, list[float]]:
    return {name: list(values) for name, values in history.items()}
