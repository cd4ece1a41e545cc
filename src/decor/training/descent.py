"""Descent: Algorithm 1 on the models of all users, seeds and settings at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from decor.choices import Sampling
from decor.errors import InputError
from decor.learning.batches import Batch
from decor.learning.gradients.choose import choose_gradients
from decor.learning.gradients.clip import Blocks, add_clipped, over
from decor.learning.gradients.module_randomness import WORDS, secret_coins
from decor.learning.gradients.modules import Modules
from decor.learning.recipe import Recipe

from .cuda.steps import UNIT, Steps, products
from .engine import Setting, SimulatorOptions
from .share import Share
from .threads import Threads

_ROOM = 1_000_000
"""Numbers that users worked on together may take: what stays in a processor's cache."""
_GENERAL_ROOM = 4_000_000
"""The same for torch.func, whose calls cost more than what leaves the cache."""
_CARD_ROOM = 1 << 30
"""The same on a card, which is idle if it has little to do."""
FARTHEST = 1e18
"""Entries of a model beyond which a private run has diverged; peers refuse such models as well."""
_TF32 = 1.01 * 2.0**-9
"""By how much products of operands cut to eleven bits may exceed what they should be, relatively,
entry by entry.
"""


class Descent:
    """Blocks are [users, seeds, settings, ...].

    `models` and, with momentum, `velocity` are those of the users here, now.
    """

    def __init__(
        self,
        engine: SimulatorOptions,
        share: Share,
        grid: Sequence[Setting],
        seeds: Sequence[int],
        recipe: Recipe,
    ) -> None:
        self.engine, self.share, self.seeds, self.recipe = engine, share, seeds, recipe
        exposure, task = grid[0].plan.exposure, share.task
        self.last = exposure.steps - 1
        self.device = torch.device(engine.device)
        self.dtype = torch.float64 if engine.dtype == "float64" else torch.float32
        shape = (len(seeds), len(grid))
        models = len(seeds) * len(grid) * task.users
        self.threads = Threads(
            engine.threads or (1 if self.on_card else None), models * task.parameters
        )
        self.gradients = choose_gradients(
            task,
            exposure.unit,
            recipe.batch_size,
            self.dtype,
            self.device,
            generic=engine.path == "generic",
            exact=share.secret is not None,
        )
        self.by_record = exposure.unit == "example"
        size = exposure.batch_size if self.by_record else recipe.batch_size
        # at user level sampling earns nothing; batches are drawn without replacement
        sampling: Sampling = exposure.sampling or "poisson" if self.by_record else "fixed"
        self.batches = share.batches(size, sampling, seeds, UNIT if self.on_card else 1)
        self.channel = share.channel(
            [setting.plan for setting in grid], seeds, self.dtype, self.device
        )
        on: dict[str, Any] = {"dtype": self.dtype, "device": self.device}
        shorter = 1 - _TF32 if engine.tf32 and self.by_record else 1.0
        self.clip = torch.tensor([s.plan.exposure.clip * shorter for s in grid], **on).expand(shape)
        tables = [recipe.schedule.rates(s.learning_rate, exposure.steps) for s in grid]
        self.rates = (
            torch.stack([torch.from_numpy(table) for table in tables], 1)
            .to(**on)
            .unsqueeze(1)
            .expand(-1, *shape)
        )
        self._check()
        self.models = [
            b.expand(task.users, *shape, *b.shape).clone() for b in self.gradients.initial()
        ]
        self.velocity = [torch.zeros_like(b) for b in self.models] if recipe.momentum else []
        self.sent = [torch.zeros_like(b) for b in self.models] if self.apart else []

    def _check(self) -> None:
        """Refuses what numbers cannot do."""
        least = float(self.clip.min())
        if self.dtype is torch.float32 and least < 1e-12:
            raise InputError(
                f"clip {least:g} is too small for float32, whose squares vanish; say "
                'Vectorised(dtype="float64")'
            )
        decay, fastest = self.recipe.weight_decay, float(self.rates.max())
        if decay * fastest >= 1:
            raise InputError(
                f"weight_decay {decay:g} times the learning rate {fastest:g} leaves nothing of a "
                "model in one "
                "step; lower one of them"
            )

    @property
    def on_card(self) -> bool:
        return self.device.type == "cuda"

    @property
    def recordable(self) -> bool:
        """Whether a step on a card can be replayed.

        What a module draws itself would be the same in every replay.
        """
        drawn = isinstance(self.gradients, Modules)
        return not drawn and self.engine.on_messages is None and not self.share.waits

    @property
    def apart(self) -> bool:
        """Whether noise is put on the gradients themselves, before momentum and step size: private
        runs, and other sources.
        """
        source = self.engine.noise
        return self.share.secret is not None or (source is not None and not isinstance(source, str))

    @contextmanager
    def steps(self) -> Iterator[Callable[[int], None]]:
        """What takes a step: here and now, or kernels that a card is told to run."""
        with torch.no_grad(), self.threads.limited():
            if not self.on_card:
                yield self._take
                return
            steps = Steps(
                self._step, self.batches, self.recipe.local_steps, self.rates, self.recordable
            )
            with closing(steps), products(self.engine.tf32), torch.cuda.device(self.device):
                yield lambda step: self._take_on_card(steps, step)

    def _take(self, step: int) -> None:
        count = self.recipe.local_steps
        with self._dropout(step), self.threads.step() as threads:
            drawn = (self.batches.draw(step * count + k) for k in range(count))
            self._step(step, self.rates[step], drawn, threads)

    def _take_on_card(self, steps: Steps, step: int) -> None:
        with self._dropout(step):
            steps.take(step, self.last)

    @contextmanager
    def _dropout(self, step: int) -> Iterator[None]:
        """What a module draws itself, such as dropout, is a function of (seed, step) as well."""
        if not isinstance(self.gradients, Modules):
            yield
            return
        if self.share.secret is not None:
            with secret_coins(self.share.secret.local_words(step, WORDS)):
                yield
            return
        with torch.random.fork_rng(devices=[self.device] if self.on_card else []):
            torch.manual_seed((self.seeds[0] * 1_000_003 + step + self.share.salt) % 2**63)
            yield

    def diverged(self) -> bool:
        """Whether any model, of any user, is not finite or beyond what a user would accept: judged
        on what is private already.
        """
        far = sum((~(block.abs() <= FARTHEST)).sum() for block in self.models)
        return bool(self.share.total(torch.as_tensor(far, dtype=torch.float64)) > 0)

    def finish(self) -> None:
        """The gossip after the last step."""
        self.models = self.channel.mix(self.models, self.recipe.final_gossip)

    def if_finished(self) -> Blocks:
        """What everybody would hold if the run ended here."""
        return self.channel.mix([block.clone() for block in self.models], self.recipe.final_gossip)

    def _step(
        self, step: int | Tensor, rate: Tensor, batches: Iterable[Batch], threads: int = 1
    ) -> None:
        """Algorithm 1: clip, fresh noise, local step, gossip.

        On a card models stay where they are, and `step` is there too.
        """
        decay = self.recipe.weight_decay
        if self.recipe.momentum or self.apart:
            for x, v in zip(self.models, self._moved(step, rate, batches, threads), strict=True):
                if decay:
                    x.mul_(over(1 - rate * decay, x))
                x.addcmul_(v, over(-rate, x))
        else:
            if decay:
                # what is added is shrunk too, so it is added larger: x (1 - rate decay) - rate
                # gradient
                shrink = 1 - rate * decay
                self._add_clipped(self.models, -rate / shrink, rate, batches)
                for x in self.models:
                    x.mul_(over(shrink, x))
            else:
                self._add_clipped(self.models, -rate, rate, batches)
            if self.engine.on_messages is None:
                self.models = self.channel.noise_and_mix(
                    self.models, -rate, step, self.recipe.gossip, threads
                )
                return
            self.channel.noise(self.models, -rate, step, threads)
        if self.engine.on_messages is not None:
            everybodys = self.share.everybodys(
                [torch.cat([x.flatten(3) for x in self.models], -1).cpu()]
            )
            if everybodys:  # of several processes the first has them
                self.engine.on_messages(int(step), everybodys[0])
        self.models = self.channel.mix(self.models, self.recipe.gossip, threads)

    def _moved(
        self, step: int | Tensor, rate: Tensor, batches: Iterable[Batch], threads: int
    ) -> Blocks:
        """Noised gradients, with momentum's memory of earlier ones; where noise is put on
        gradients, it sees those alone.
        """
        one = torch.ones_like(rate)
        for v in self.velocity:
            v.mul_(self.recipe.momentum)
        to = self.sent if self.apart else self.velocity
        for block in self.sent:
            block.zero_()
        self._add_clipped(to, one, rate, batches)
        self.channel.noise(to, one, step, threads)
        if not (self.apart and self.velocity):
            return to
        return [v.add_(noised) for v, noised in zip(self.velocity, to, strict=True)]

    def _add_clipped(
        self, to: Blocks, alpha: Tensor, rate: Tensor, batches: Iterable[Batch]
    ) -> None:
        """to += alpha * clipped gradient, some users at a time."""
        if self.recipe.local_steps > 1:
            add_clipped(to, self._walked(rate, batches), self.clip, alpha)
            return
        (batch,) = batches
        add = self.gradients.add_records if self.by_record else self.gradients.add_means
        for users in self.parts:
            add(to, self.models, batch, users, self.clip, alpha)

    def _walked(self, rate: Tensor, batches: Iterable[Batch]) -> Blocks:
        """The sum of gradients along `local_steps` steps that everybody takes alone; clipped as
        one, it costs as much as one.
        """
        models = [block.clone() for block in self.models]
        total = [torch.zeros_like(block) for block in models]
        for batch in batches:
            for users in self.parts:
                for x, sum_, g in zip(
                    models, total, self.gradients.mean(models, batch, users), strict=True
                ):
                    sum_[users].add_(g)
                    x[users].addcmul_(g, over(-rate, g))
        return total

    @cached_property
    def parts(self) -> tuple[slice, ...]:
        """Users whose gradients are taken together."""
        size = self.batches.size or int(max(self.share.task.counts))
        taken = (
            size
            * (1 if self.batches.size is None else len(self.seeds))
            * int(self.share.task.shards[0][0][0].numel())
        )
        room = (
            _CARD_ROOM
            if self.on_card
            else _GENERAL_ROOM
            if isinstance(self.gradients, Modules)
            else _ROOM
        )
        some = max(1, room // (sum(b[0].numel() for b in self.models) + taken))
        return tuple(
            slice(first, min(first + some, self.share.task.users))
            for first in range(0, self.share.task.users, some)
        )
