"""Descent: Algorithm 1 on the models of all users, seeds and settings at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cached_property

import torch
from torch import Tensor

from decor.choices import Sampling
from decor.errors import InputError
from decor.learning.batches import Batch
from decor.learning.gradients.choose import choose_gradients
from decor.learning.gradients.clip import Blocks, add_clipped, broadcastable
from decor.learning.gradients.module_randomness import STATE_WORDS, torch_generator_from
from decor.learning.gradients.modules import Modules
from decor.learning.gradients.quadratic import Quadratic
from decor.learning.recipe import Recipe

from .cuda.steps import BATCH_MULTIPLE, StepRunner, matmul_precision
from .engine import Setting, SimulatorOptions
from .share import Share, batches_of
from .threads import Threads

_CPU_VALUES = 1_000_000
"""Values that users processed together may take, so that they stay in a CPU's cache."""
_MODULE_VALUES = 4_000_000
"""The same for torch.func, whose calls cost more than leaving the cache does."""
_GPU_VALUES = 1 << 30
"""The same on a GPU, which is idle if it has little to do."""
LARGEST_PARAMETER = 1e18
"""A private run has diverged if a parameter is beyond this; peers refuse such models as well."""
_TF32_ERROR = 1.01 * 2.0**-9
"""Largest relative error of an entry of a product whose operands are cut to eleven bits."""


class Descent:
    """The models of a grid of runs, and the steps that change them.

    Blocks are [users, seeds, settings, ...]. `models` and, with momentum, `velocity` are the
    current ones of this process's users; `average`, with averaging, the mean of the last ones.
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
        # on a GPU the CPU only launches kernels
        threads = engine.threads or (1 if self.on_gpu else None)
        values = len(seeds) * len(grid) * task.users * task.parameters
        self.threads = Threads(threads, values, timed=share.secret is None)
        self.gradients = choose_gradients(
            task,
            exposure.unit,
            recipe.batch_size,
            self.dtype,
            self.device,
            generic=engine.path == "generic",
            exact=share.secret is not None,
            bf16=engine.bf16,
        )
        self.by_example = exposure.unit == "example"
        size = exposure.batch_size if self.by_example else recipe.batch_size
        # at user level sampling does not amplify privacy: batches are drawn without replacement
        sampling: Sampling = exposure.sampling or "poisson" if self.by_example else "fixed"
        plans = [setting.plan for setting in grid]
        multiple = BATCH_MULTIPLE if self.on_gpu else 1
        self.batches = batches_of(share, plans[0], size, sampling, seeds, multiple)
        self.channel = share.channel(plans, seeds, self.dtype, self.device)
        # with TF32 an example's clipped gradient could come out longer than the clip by this much
        shorter = 1 - _TF32_ERROR if engine.tf32 and self.by_example else 1.0
        clips = [plan.exposure.clip * shorter for plan in plans]
        self.clip = torch.tensor(clips, dtype=self.dtype, device=self.device).expand(shape)
        tables = [recipe.rates(s.learning_rate, exposure.steps) for s in grid]
        rates = torch.stack([torch.from_numpy(table) for table in tables], 1)  # [steps, settings]
        self.rates = rates.to(self.device, self.dtype).unsqueeze(1).expand(-1, *shape)
        self._check()
        # every run starts from the task's model: all users, seeds and settings alike
        self.models = [
            b.expand(task.users, *shape, *b.shape).clone() for b in self.gradients.initial()
        ]
        self.velocity = [torch.zeros_like(b) for b in self.models] if recipe.momentum else []
        self.average: Blocks = []
        self.adam = [] if recipe.adam is None else recipe.adam.start(self.models)
        # gradients with noise, where they are needed apart from models and momentum
        apart = self.noise_on_gradients or self.adam
        self.noised = [torch.zeros_like(b) for b in self.models] if apart else []

    def _check(self) -> None:
        """Refuses values that floating point cannot represent."""
        least = float(self.clip.min())
        if self.dtype is torch.float32 and least < 1e-12:
            raise InputError(
                f"clip {least:g} is too small for float32, whose squares vanish; say "
                'Vectorised(dtype="float64")'
            )
        if self.recipe.adam is not None and self.on_gpu:
            raise InputError('Adam is computed on the CPU; say device="cpu", or optimizer="sgd"')
        decay, fastest = self.recipe.weight_decay, float(self.rates.max())
        if decay * fastest >= 1:
            raise InputError(
                f"weight_decay {decay:g} times the learning rate {fastest:g} leaves nothing of a "
                "model in one step; lower one of them"
            )

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def recordable(self) -> bool:
        """Whether a GPU can replay a recorded step."""
        # every replay would repeat a module's own draws, and cannot call Python or wait for a rank
        draws = isinstance(self.gradients, Modules) and not self.gradients.recordable
        return not draws and self.engine.on_messages is None and not self.share.waits_for_ranks

    @property
    def noise_on_gradients(self) -> bool:
        """Whether noise is added to gradients alone, before momentum and step size.

        Private runs and custom sources need this: they round gradient and noise together.
        """
        source = self.engine.noise
        is_custom = source is not None and not isinstance(source, str)
        return self.share.secret is not None or is_custom

    @contextmanager
    def steps(self) -> Iterator[Callable[[int], None]]:
        """Gives the function that takes step k: on the CPU at once, or by a GPU's kernels."""
        # the clip allows for the roundings of this precision
        precision = matmul_precision(self.engine.tf32)
        with torch.no_grad(), self.threads.limit_torch(), precision:
            if not self.on_gpu:
                yield self._take
                return
            count = self.recipe.local_steps
            runner = StepRunner(self._step, self.batches, count, self.rates, self.recordable)
            with closing(runner), torch.cuda.device(self.device):
                yield lambda step: self._take_on_gpu(runner, step)

    def _take(self, step: int) -> None:
        count = self.recipe.local_steps
        with self._module_randomness(step), self.threads.step() as threads:
            batches = (self.batches.draw(step * count + k) for k in range(count))
            self._step(step, self.rates[step], batches, threads)

    def _take_on_gpu(self, runner: StepRunner, step: int) -> None:
        with self._module_randomness(step):
            runner.take(step, self.last)

    @contextmanager
    def _module_randomness(self, step: int) -> Iterator[None]:
        """Makes what modules draw themselves, such as dropout, a function of (seed, step)."""
        if not isinstance(self.gradients, Modules):
            yield
            return
        if self.share.secret is not None:
            with torch_generator_from(self.share.secret.local_words(step, STATE_WORDS)):
                yield
            return
        with torch.random.fork_rng(devices=[self.device] if self.on_gpu else []):
            # a large factor, so that runs of neighbouring seeds do not share steps
            torch.manual_seed((self.seeds[0] * 1_000_003 + step + self.share.salt) % 2**63)
            yield

    def has_diverged(self) -> bool:
        """Whether a model of any user is not finite, or beyond what a peer would accept.

        Guarantee: depends on the models only, which are private already.
        """
        # written so that NaN counts as far
        far = sum((~(block.abs() <= LARGEST_PARAMETER)).sum() for block in self.models)
        return bool(self.share.sum_over_ranks(torch.as_tensor(far, dtype=torch.float64)) > 0)

    @property
    def results(self) -> Blocks:
        """What users would keep if the run ended here, before final gossip."""
        return self.average or self.models

    def add_to_average(self, taken: int) -> None:
        """Averages the models as they are now, if they are among the last ones.

        Args:
            taken: The number of steps so far.
        """
        steps = self.last + 1
        count = taken - (steps - self.recipe.models_to_average(steps))
        if count == 1:
            self.average = [block.clone() for block in self.models]
        elif count > 1:
            for mean, block in zip(self.average, self.models, strict=True):
                mean.lerp_(block, 1 / count)

    def finish(self) -> None:
        """Takes the gossip rounds after the last step."""
        mixed = self.channel.mix(self.results, self.recipe.final_gossip)
        if self.average:
            self.average = mixed
        else:
            self.models = mixed

    def after_final_gossip(self) -> Blocks:
        """The models that users would hold if the run ended here."""
        return self.channel.mix([block.clone() for block in self.results], self.recipe.final_gossip)

    def _step(
        self, step: int | Tensor, rate: Tensor, batches: Iterable[Batch], threads: int = 1
    ) -> None:
        """Algorithm 1: clip, fresh noise, local step, gossip.

        On a GPU the models are changed in place, and `step` is a tensor on the GPU.
        """
        decay, listener = self.recipe.weight_decay, self.engine.on_messages
        if self.recipe.momentum or self.noised:
            for x, v in zip(
                self.models, self._direction(step, rate, batches, threads), strict=True
            ):
                if decay:
                    x.mul_(broadcastable(1 - rate * decay, x))
                x.addcmul_(v, broadcastable(-rate, x))
        else:
            if decay:
                # what is added is shrunk too, so more is added: x (1 - rate decay) - rate gradient
                shrink = 1 - rate * decay
                self._add_clipped(self.models, -rate / shrink, rate, batches)
                for x in self.models:
                    x.mul_(broadcastable(shrink, x))
            else:
                self._add_clipped(self.models, -rate, rate, batches)
            if listener is None:
                self.models = self.channel.noise_and_mix(
                    self.models, -rate, step, self.recipe.gossip, threads
                )
                return
            self.channel.noise(self.models, -rate, step, threads)
        if listener is not None:
            messages = torch.cat([x.flatten(3) for x in self.models], -1).cpu()
            gathered = self.share.gather_users([messages])
            if gathered:  # only rank 0 has them
                listener(int(step), gathered[0])
        self.models = self.channel.mix(self.models, self.recipe.gossip, threads)

    def _direction(
        self, step: int | Tensor, rate: Tensor, batches: Iterable[Batch], threads: int
    ) -> Blocks:
        """Clipped gradients with noise, or what momentum or Adam makes of them."""
        one = torch.ones_like(rate)
        for v in self.velocity:
            v.mul_(self.recipe.momentum)
        to = self.noised or self.velocity
        # the channel adds to what is there
        for block in self.noised:
            block.zero_()
        self._add_clipped(to, one, rate, batches)
        # velocity is a sum of noised gradients: momentum comes after the noise and costs nothing
        self.channel.noise(to, one, step, threads)
        if self.recipe.adam is not None:
            return self.recipe.adam.direction(to, self.adam, int(step))
        if not (self.noised and self.velocity):
            return to
        return [v.add_(noised) for v, noised in zip(self.velocity, to, strict=True)]

    def _add_clipped(
        self, to: Blocks, alpha: Tensor, rate: Tensor, batches: Iterable[Batch]
    ) -> None:
        """to += alpha * clipped gradient, some users at a time."""
        if self.recipe.local_steps > 1:
            add_clipped(to, self._local_gradients(rate, batches), self.clip, alpha)
            return
        (batch,) = batches
        gradients = self.gradients
        add = gradients.add_clipped_examples if self.by_example else gradients.add_clipped_means
        for users in self.user_slices:
            add(to, self.models, batch, users, self.clip, alpha)

    def _local_gradients(self, rate: Tensor, batches: Iterable[Batch]) -> Blocks:
        """Each user's sum of gradients along `local_steps` steps taken without the others.

        The sum is clipped as one gradient, so it costs as much privacy as one.
        """
        models = [block.clone() for block in self.models]
        total = [torch.zeros_like(block) for block in models]
        for batch in batches:
            for users in self.user_slices:
                gradients = self.gradients.mean(models, batch, users)
                for x, sum_, g in zip(models, total, gradients, strict=True):
                    sum_[users].add_(g)
                    x[users].addcmul_(g, broadcastable(-rate, g))
        return total

    @cached_property
    def user_slices(self) -> tuple[slice, ...]:
        """Users whose gradients are computed together: as many as fit the cache, or the GPU.

        Guarantee: in a private run it is a function of public numbers. What is computed together
        decides the shapes of products, and so may decide every user's last bits.
        """
        task = self.share.task
        # `Quadratic` has no examples to add up, but their moments
        if self.batches.alone and not isinstance(self.gradients, Quadratic):
            return tuple(slice(user, user + 1) for user in range(task.users))
        if self.share.secret is None:
            examples = math.ceil(self.batches.expected or max(task.counts))
        else:
            examples = self.batches.size or 0
        # full batches are the same for all seeds, sampled ones are not
        seeds = 1 if self.batches.size is None else len(self.seeds)
        inputs = examples * seeds * int(task.shards[0][0][0].numel())
        if self.on_gpu:
            most = _GPU_VALUES
        else:
            most = _MODULE_VALUES if isinstance(self.gradients, Modules) else _CPU_VALUES
        some = max(1, most // (sum(b[0].numel() for b in self.models) + inputs))
        firsts = range(0, task.users, some)
        return tuple(slice(first, min(first + some, task.users)) for first in firsts)
