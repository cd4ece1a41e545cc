"""Vectorised: all users of all runs in one tensor, on one machine."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from decor import progress
from decor.errors import InputError
from decor.learning.batches import Batch, Batches
from decor.learning.clip import Blocks, add_clipped, over
from decor.learning.layers import Layers
from decor.learning.linear import Linear
from decor.learning.modules import Modules
from decor.learning.quadratic import Quadratic
from decor.learning.stack import Stack
from decor.learning.task import Task
from decor.results.run import Run

from .channel import Channel, NoiseSource, channel
from .cuda.steps import UNIT
from .engine import Callback, Moment, Recipe, Setting
from .manifest import described, fingerprint
from .threads import Threads

_HOPELESS = 1e4
"""Times its first loss at which a run is called diverged."""
_ROOM = 1_000_000
"""Numbers that users worked on together may take: what stays in a processor's cache."""
_GENERAL_ROOM = 4_000_000
"""The same for torch.func, whose calls cost more than what leaves the cache."""
_CARD_ROOM = 1 << 30
"""The same on a card, which is idle if it has little to do."""
_TF32 = 1.01 * 2.0**-9
"""By how much products of operands cut to eleven bits may exceed what they should be, relatively, entry by entry."""


class Gradients(Protocol):
    """Gradients of all models of a task: `Linear`, `Layers`, `Quadratic` or `Modules`."""

    fixed: dict[str, Tensor]
    """What the module holds beside what is trained."""
    tied: dict[str, str]
    """Further names of what is trained."""

    def initial(self) -> Blocks: ...
    def state(self, blocks: Blocks) -> dict[str, Tensor]: ...
    def blocks(self, state: dict[str, Tensor]) -> Blocks: ...
    def mean(self, models: Blocks, batch: Batch, users: slice) -> Blocks: ...
    def add_means(self, to: Blocks, models: Blocks, batch: Batch, users: slice, clip: Tensor, alpha: Tensor) -> None: ...
    def add_records(self, to: Blocks, models: Blocks, batch: Batch, users: slice, clip: Tensor, alpha: Tensor) -> None: ...
    def evaluate(self, blocks: Blocks) -> dict[str, Tensor]: ...


@dataclass(frozen=True)
class Vectorised:
    """The simulator: exact Algorithm 1 for all users at once, without a loop over them.

    `seed` decides all that is random (a sweep names its own seeds), and whoever knows it can take the noise away again: a model
    of real data that is to be released takes `seed=None`, one from the operating system that is kept nowhere.
    `threads` None takes as many cores as help.
    `path` "auto" takes the fast path for linear models and MLPs, "generic" torch.func for everything; both give the same numbers.
    `device` "cuda" is an NVIDIA card (or "cuda:1", ...): the same records, and noise of the same law. There `tf32` lets products
    take their operands to eleven bits, several times as fast; single records' clips are taken shorter by as much, so that what
    is added is never longer than the plan says.
    `noise` "edges" draws one Gaussian for every edge and one for every user, on every device and engine the same ones; a
    `NoiseSource` puts somebody else's noise on the gradients, and has to have the plan's law. `on_messages(step, messages)`
    sees every step's noised models as they are first sent, [users, seeds, settings, parameters].
    """

    seed: int | None = 0
    device: str = "cpu"
    dtype: str = "float32"
    threads: int | None = None
    path: str = "auto"
    tf32: bool = False
    noise: NoiseSource | str | None = field(default=None, repr=False)
    on_messages: Callable[[int, Tensor], object] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_device(self.device)
        if self.tf32 and (self.device == "cpu" or self.dtype != "float32"):
            raise InputError('tf32 is a way to multiply float32 numbers on a card; say device="cuda", or drop it')
        if isinstance(self.noise, str) and self.noise != "edges":
            raise InputError(f'noise must be "edges", a source of noise or None, not {self.noise!r}')
        if self.dtype not in ("float32", "float64"):
            raise InputError(f'dtype must be "float32" or "float64", not {self.dtype!r}')
        if self.path not in ("auto", "generic"):
            raise InputError(f'path must be "auto" or "generic", not {self.path!r}')
        if self.threads is not None and (not isinstance(self.threads, int) or self.threads < 1):
            raise InputError(f"threads must be a positive whole number, or None for automatic, not {self.threads!r}")

    def run(
        self,
        task: Task,
        settings: Sequence[Setting],
        recipe: Recipe,
        callbacks: Sequence[Callback] = (),
        resume: Run | None = None,
    ) -> list[Run]:
        """Settings must be a grid: the same plans and step sizes for every seed, seeds in the outer order."""
        return Simulation(self, task, settings, recipe, callbacks, resume).finished()

    @property
    def room(self) -> int | None:
        """Numbers of all models that a sweep trains together at most; None where a processor does."""
        return None if self.device == "cpu" else torch.cuda.mem_get_info(self.device)[0] // 32

    def gradients(self, task: Task, recipe: Recipe, unit: str) -> Gradients:
        dtype, device = torch.float64 if self.dtype == "float64" else torch.float32, torch.device(self.device)
        if self.path == "auto":
            if unit == "user" and Quadratic.takes(task, recipe.batch_size):
                return Quadratic(task, dtype, device)
            stack = Stack.of(task.model, task.loss, task.shards[0][0].shape[1:])
            # classes as probabilities are rare enough to go the general way
            if stack is not None and not (stack.loss == "classes" and task.shards[0][1].is_floating_point()):
                return Linear(task, stack, dtype, device) if Linear.takes(stack) else Layers(task, stack, dtype, device)
        return Modules(task, dtype, device)


def check_device(device: str) -> None:
    """Refuses what this machine does not have."""
    kind, _, number = device.partition(":")
    if device == "cpu":
        return
    if kind != "cuda" or (number and not number.isdecimal()):
        raise InputError(f'device must be "cpu", "cuda" or "cuda:1", ..., not {device!r}')
    if not torch.cuda.is_available():
        raise InputError(f'device {device!r} needs an NVIDIA card and a torch built for it, and there is none here; use "cpu"')
    if int(number or 0) >= torch.cuda.device_count():
        raise InputError(f"there is no {device!r} here, only {torch.cuda.device_count()} of them; the first is cuda:0")


class Simulation:
    """One grid of runs under way."""

    name = "vectorised"
    salt = 0
    """Of what modules draw themselves, such as dropout."""
    asks: bool | None = None
    """Whether callbacks are asked, here or by another process."""

    def __init__(
        self,
        engine: Vectorised,
        task: Task,
        settings: Sequence[Setting],
        recipe: Recipe,
        callbacks: Sequence[Callback],
        resume: Run | None,
    ) -> None:
        self.engine, self.task, self.settings, self.recipe, self.callbacks = engine, task, settings, recipe, callbacks
        self.asks = bool(callbacks) if self.asks is None else self.asks
        self.seeds = list(dict.fromkeys(setting.seed for setting in settings))
        self.grid = settings[: len(settings) // len(self.seeds)]
        self.exposure = settings[0].plan.exposure
        self.device = torch.device(engine.device)
        self.threads = Threads(engine.threads or (1 if self.on_card else None), len(settings) * task.users * task.parameters)
        self.steps = self.exposure.steps
        self.dtype = torch.float64 if engine.dtype == "float64" else torch.float32
        self.gradients = engine.gradients(task, recipe, self.exposure.unit)
        example = self.exposure.unit == "example"
        size, sampling = (self.exposure.batch_size, self.exposure.sampling) if example else (recipe.batch_size, "fixed")
        self.batches = self._batches(size, str(sampling))
        self.channel = self._channel()
        shape = (len(self.seeds), len(self.grid))
        on: dict[str, Any] = {"dtype": self.dtype, "device": self.device}
        shorter = 1 - _TF32 if engine.tf32 and example else 1.0
        self.clip = torch.tensor([s.plan.exposure.clip * shorter for s in self.grid], **on).expand(shape)
        tables = [recipe.schedule.rates(s.learning_rate, self.steps) for s in self.grid]
        self.rates = torch.stack([torch.from_numpy(table) for table in tables], 1).to(**on).unsqueeze(1).expand(-1, *shape)
        least = float(self.clip.min())
        if self.dtype is torch.float32 and least < 1e-12:
            raise InputError(f'clip {least:g} is too small for float32, whose squares vanish; say Vectorised(dtype="float64")')
        fastest = float(self.rates.max())
        if recipe.weight_decay * fastest >= 1:
            raise InputError(
                f"weight_decay {recipe.weight_decay:g} times the learning rate {fastest:g} leaves nothing of a model in one "
                "step; lower one of them"
            )
        self.start = 0
        self.history: list[dict[str, list[float]]] = [{} for _ in settings]
        self.models = [b.expand(task.users, *shape, *b.shape).clone() for b in self.gradients.initial()]
        self.velocity = [torch.zeros_like(b) for b in self.models] if recipe.momentum else []
        self.stopped: list[str | None] = [None] * len(settings)
        self.ended: dict[int, Run] = {}
        self.began = time.monotonic()
        self.fingerprint = self._fingerprint()
        self._resume(resume)
        self.taken = self.start

    @property
    def on_card(self) -> bool:
        return self.device.type == "cuda"

    @property
    def recordable(self) -> bool:
        """Whether a step on a card can be replayed. What a module draws itself would be the same in every replay."""
        return not isinstance(self.gradients, Modules) and self.engine.on_messages is None

    # what is different where this process has some of the users only

    @property
    def whole(self) -> Task:
        """The task of all users."""
        return self.task

    def _batches(self, size: int | None, sampling: str) -> Batches:
        return Batches(self.task.records, size, sampling, self.seeds, UNIT if self.on_card else 1)

    def _channel(self) -> Channel:
        plans = [setting.plan for setting in self.grid]
        return channel(plans, self.seeds, self.dtype, self.engine.noise, self.task.parameters, self.device)

    def _fingerprint(self) -> str:
        return fingerprint(self.task)

    def _mean(self, block: Tensor) -> Tensor:
        """Of everybody's models."""
        return block.mean(0)

    def _total(self, value: Tensor) -> Tensor:
        """What users here have in sum, over everybody."""
        return value

    def _of_all(self, found: dict[str, Tensor]) -> dict[str, Tensor]:
        """Metrics over the users here -> over everybody."""
        return found

    def _everybodys(self, blocks: Blocks) -> Blocks:
        """The numbers of the users here -> everybody's."""
        return blocks

    def _tell(self, step: int, messages: Tensor) -> None:
        assert self.engine.on_messages is not None
        self.engine.on_messages(step, messages)

    def finished(self) -> list[Run]:
        with torch.no_grad(), self.threads.limited(), self._steps() as take:
            measured = self.recipe.evaluated(self.steps)
            if not self.history[0]:
                self._measure()
            for step in range(self.start, self.steps):
                if all(self.stopped):
                    break
                with self._dropout(step):
                    take(step)
                self.taken = step + 1
                progress.report(f"training {self.task.name}", self.taken, self.steps)
                if self.taken == self.steps:
                    self.models = self.channel.mix(self.models, self.recipe.final_gossip)
                if self.taken in measured:
                    self._measure()
        return [self.ended.get(k) or self._run(k) for k in range(len(self.settings))]

    @contextmanager
    def _dropout(self, step: int) -> Iterator[None]:
        """What a module draws itself, such as dropout, is a function of (seed, step) as well."""
        if not isinstance(self.gradients, Modules):
            yield
            return
        with torch.random.fork_rng(devices=[self.device] if self.on_card else []):
            torch.manual_seed((self.seeds[0] * 1_000_003 + step + self.salt) % 2**63)
            yield

    @contextmanager
    def _steps(self) -> Iterator[Callable[[int], None]]:
        """What takes a step: here and now, or kernels that a card is told to run."""
        count = self.recipe.local_steps
        if not self.on_card:

            def take(step: int) -> None:
                with self.threads.step() as threads:
                    drawn = (self.batches.draw(step * count + k) for k in range(count))
                    self._step(step, self.rates[step], drawn, threads)

            yield take
            return
        from .cuda.steps import Steps

        steps = Steps(self._step, self.batches, count, self.rates, self.recordable)
        products: list[Any] = [torch.backends.cuda.matmul, torch.backends.cudnn.conv]  # type: ignore[attr-defined]
        before = [each.fp32_precision for each in products]
        try:
            for each in products:
                each.fp32_precision = "tf32" if self.engine.tf32 else "ieee"
            with torch.cuda.device(self.device):
                yield lambda step: steps.take(step, self.steps - 1)
        finally:
            for each, precision in zip(products, before, strict=True):
                each.fp32_precision = precision
            steps.close()

    def _step(self, step: int | Tensor, rate: Tensor, batches: Iterable[Batch], threads: int = 1) -> None:
        """Algorithm 1: clip, fresh noise, local step, gossip. On a card models stay where they are, and `step` is there too."""
        decay = self.recipe.weight_decay
        if self.recipe.momentum or self.outside:
            for x, v in zip(self.models, self._moved(step, rate, batches, threads), strict=True):
                if decay:
                    x.mul_(over(1 - rate * decay, x))
                x.addcmul_(v, over(-rate, x))
        else:
            if decay:
                # what is added is shrunk too, so it is added larger: x (1 - rate decay) - rate gradient
                shrink = 1 - rate * decay
                self._add_clipped(self.models, -rate / shrink, rate, batches)
                for x in self.models:
                    x.mul_(over(shrink, x))
            else:
                self._add_clipped(self.models, -rate, rate, batches)
            if self.engine.on_messages is None:
                self.models = self.channel.noise_and_mix(self.models, -rate, step, self.recipe.gossip, threads)
                return
            self.channel.noise(self.models, -rate, step, threads)
        if self.engine.on_messages is not None:
            self._tell(int(step), torch.cat([x.flatten(3) for x in self.models], -1))
        self.models = self.channel.mix(self.models, self.recipe.gossip, threads)

    @property
    def outside(self) -> bool:
        """Whether noise comes from somebody else."""
        return self.engine.noise is not None and not isinstance(self.engine.noise, str)

    def _moved(self, step: int | Tensor, rate: Tensor, batches: Iterable[Batch], threads: int) -> Blocks:
        """Noised gradients, with momentum's memory of earlier ones; noise from outside sees the gradients alone."""
        one = torch.ones_like(rate)
        for v in self.velocity:
            v.mul_(self.recipe.momentum)
        to = [torch.zeros_like(block) for block in self.models] if self.outside else self.velocity
        self._add_clipped(to, one, rate, batches)
        self.channel.noise(to, one, step, threads)
        if not (self.outside and self.velocity):
            return to
        return [v.add_(noised) for v, noised in zip(self.velocity, to, strict=True)]

    def _add_clipped(self, to: Blocks, alpha: Tensor, rate: Tensor, batches: Iterable[Batch]) -> None:
        """to += alpha * clipped gradient, some users at a time."""
        if self.recipe.local_steps > 1:
            add_clipped(to, self._walked(rate, batches), self.clip, alpha)
            return
        (batch,) = batches
        add = self.gradients.add_records if self.exposure.unit == "example" else self.gradients.add_means
        for users in self._parts:
            add(to, self.models, batch, users, self.clip, alpha)

    def _walked(self, rate: Tensor, batches: Iterable[Batch]) -> Blocks:
        """The sum of gradients along `local_steps` steps that everybody takes alone; clipped as one, it costs as much as one."""
        models = [block.clone() for block in self.models]
        total = [torch.zeros_like(block) for block in models]
        for batch in batches:
            for users in self._parts:
                for x, sum_, g in zip(models, total, self.gradients.mean(models, batch, users), strict=True):
                    sum_[users].add_(g)
                    x[users].addcmul_(g, over(-rate, g))
        return total

    @cached_property
    def _parts(self) -> tuple[slice, ...]:
        """Users whose gradients are taken together."""
        size = self.batches.size or int(max(self.task.records))
        taken = size * (1 if self.batches.size is None else len(self.seeds)) * int(self.task.shards[0][0][0].numel())
        room = _CARD_ROOM if self.on_card else _GENERAL_ROOM if isinstance(self.gradients, Modules) else _ROOM
        some = max(1, room // (sum(b[0].numel() for b in self.models) + taken))
        return tuple(slice(first, min(first + some, self.task.users)) for first in range(0, self.task.users, some))

    def _measure(self) -> None:
        """Metrics of all runs; notes which diverged and which a callback stops."""
        mean = [self._mean(block) for block in self.models]
        found = self._of_all(self.gradients.evaluate([m.flatten(0, 1) for m in mean]))
        models = self.models
        if self.recipe.final_gossip.rounds and 0 < self.taken < self.steps:
            # what everybody would hold if the run ended here
            models = self.channel.mix([block.clone() for block in models], self.recipe.final_gossip)
        found["consensus"] = self._distance(models, mean)
        if self.task.optimum is not None:
            best = self.gradients.blocks(_named_optimum(self.task))
            found["distance"] = self._distance(models, [x.expand_as(m) for x, m in zip(best, mean, strict=True)])
        table = {name: values.double().tolist() for name, values in found.items()}
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
            moments[k] = Moment(self.settings[k], self.taken, row, lambda k=k: self._run(k))  # type: ignore[misc]
        if self.asks:
            for k, reason in self._ask(moments).items():
                self._stop(k, reason)

    def _ask(self, moments: dict[int, Moment]) -> dict[int, str]:
        """Which runs their callbacks stop, and why."""
        reasons = {}
        for k, moment in moments.items():
            for callback in self.callbacks:
                reason = callback(moment)
                if reason and self.taken < self.steps:
                    reasons[k] = reason if isinstance(reason, str) else f"stopped by a callback after step {self.taken}"
        return reasons

    def _stop(self, k: int, why: str) -> None:
        """This run is over: what others in the tensor still do is no longer its own."""
        self.stopped[k] = why
        self.ended[k] = self._run(k)

    def _distance(self, models: Blocks, point: Blocks) -> Tensor:
        """Everybody's mean squared distance to a model, [seeds * settings]."""
        total = torch.zeros(len(self.settings), dtype=torch.float64, device=self.device)
        for users in self._parts:
            for block, x in zip(models, point, strict=True):
                total += (block[users] - x).square_().flatten(3).sum((0, 3)).flatten()
        return self._total(total) / self.whole.users

    def _diverged(self, k: int) -> str:
        s = self.settings[k]
        noise = f"sigma_cdp {s.plan.sigma_cdp:.4g}"
        way = f"lower the learning rate from {s.learning_rate:g} to {s.learning_rate / 10:g}"
        return (
            f"diverged: the loss is {self.history[k]['loss'][-1]:.3g} after step {self.taken} ({noise}); {way}, "
            "or take a smaller clip, which needs less noise"
        )

    def _run(self, k: int) -> Run:
        seed, setting = divmod(k, len(self.grid))
        models = self._named(self.models, seed, setting)
        models |= {name: models[own].clone() for name, own in self.gradients.tied.items() if models}
        velocity = self._named(self.velocity, seed, setting) if self.velocity else {}
        seconds = time.monotonic() - self.began
        manifest = described(self.engine, self.name, self.whole, self.fingerprint, self.settings[k], self.recipe, seconds)
        stopped = self.stopped[k]
        if stopped is None and self.taken < self.steps:
            stopped = f"stopped after step {self.taken} of {self.steps}"
        history = {name: list(values) for name, values in self.history[k].items()}
        plan, fixed = self.settings[k].plan, {name: value.cpu() for name, value in self.gradients.fixed.items()}
        return Run(plan, history, models, self.taken, stopped, manifest, velocity if stopped else {}, fixed)

    def _named(self, blocks: Blocks, seed: int, setting: int) -> dict[str, Tensor]:
        """One run's numbers of all users by the names of the parameters, away from the card."""
        return self.gradients.state(self._everybodys(self._picked(blocks, seed, setting)))

    def _picked(self, blocks: Blocks, seed: int, setting: int) -> Blocks:
        return [block[:, seed, setting].to("cpu", copy=True) for block in blocks]

    def _resume(self, run: Run | None) -> None:
        if run is None:
            return
        if not isinstance(run, Run):
            raise InputError(f"resume must be a Run, not {run!r}; load one with decor.Run.load(path)")
        if run.stopped is not None and run.stopped.startswith("diverged"):
            raise InputError(f"the run to resume has {run.stopped}; start a new one")
        manifest: dict[str, Any] = described(
            self.engine, self.name, self.whole, self.fingerprint, self.settings[0], self.recipe, 0.0
        )
        for name in ("task", "recipe", "seed", "learning_rate", "engine"):
            if run.manifest.get(name) != manifest[name]:
                raise InputError(
                    f"the run to resume had another {name} ({run.manifest.get(name)!r}, now {manifest[name]!r}); "
                    "resume with what it was started with, or start a new run"
                )
        if not run.models:
            raise InputError("the run to resume has no models; keep them with sweep(..., keep_models=True)")
        if run.plan.to_json() != self.settings[0].plan.to_json():
            raise InputError("the run to resume had another plan; resume with the plan it was started with, or start a new run")
        self.start = run.steps_taken
        self.history = [{name: list(values) for name, values in run.history.items()}]
        self.models = [b[:, None, None].clone() for b in self.gradients.blocks(run.models)]
        if self.velocity and run.velocity:
            self.velocity = [b[:, None, None].clone() for b in self.gradients.blocks(run.velocity)]


def _named_optimum(task: Task) -> dict[str, Tensor]:
    assert task.optimum is not None
    trained = {name: p for name, p in task.model.named_parameters() if p.requires_grad}
    parts = torch.split(task.optimum.reshape(-1), [p.numel() for p in trained.values()])
    return {name: part.view(p.shape) for (name, p), part in zip(trained.items(), parts, strict=True)}
