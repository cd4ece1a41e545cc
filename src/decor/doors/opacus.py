"""Accountants for Opacus: tight epsilons of Poisson batches, and of batches of fixed size.

    from decor.doors import opacus as door

    door.register()
    engine = opacus.PrivacyEngine(accountant="decor")

Opacus tells an accountant the noise multiplier and the sampling rate of each step, and nothing
else. `PoissonAccountant` ("decor") answers for Poisson batches, the default of `make_private`, and
`FixedSizeAccountant` ("decor-fixed") for batches that `FixedSizeBatches` draws, with
`poisson_sampling=False`. Both account for the Gaussian mechanism that Opacus means to run: not for
its floating-point noise, and not for anything else that is published.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

from decor import checks
from decor.choices import Relation, Sampling
from decor.errors import InputError, require
from decor.privacy.budget import validate_delta
from decor.privacy.loss.example_losses import ExampleLosses
from decor.privacy.loss.subsampled import SubsampledStep

require("opacus", "doors", "accountants for Opacus")

import torch  # noqa: E402
from opacus.accountants import IAccountant, register_accountant  # noqa: E402
from opacus.optimizers import AdaClipDPOptimizer  # noqa: E402

_LEAST, _MOST = 1e-12, 1e12
"""Noise multipliers are rounded down to the second, and count as no noise below the first."""
_NEVER = 1e-12
"""A chance that is taken for none."""


def register() -> None:
    """Makes "decor" and "decor-fixed" names of accountants, as in `PrivacyEngine(accountant=...)`.

    It may be called more than once.
    """
    for accountant in (PoissonAccountant, FixedSizeAccountant):
        register_accountant(accountant.mechanism(), accountant, force=True)


class _Accountant(IAccountant):
    """History and epsilon; subclasses say how batches are drawn.

    Attributes:
        history: (noise multiplier, sampling rate, steps) of consecutive steps that are alike, as in
            the accountants of Opacus, which set it when they search for noise.
    """

    _name: ClassVar[str]
    _sampling: ClassVar[Sampling]
    relation: ClassVar[Relation]
    """In what two data sets differ that epsilon is about."""

    def __init__(self) -> None:
        super().__init__()
        self.history: list[tuple[float, float, int]] = []

    @classmethod
    def mechanism(cls) -> str:
        """The name of the accountant."""
        return cls._name

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Counts one step.

        Args:
            noise_multiplier: Deviation of the noise of a sum, in units of the clip.
            sample_rate: Probability of an example to be in the batch.
        """
        z, rate, _ = _entry((noise_multiplier, sample_rate, 1))
        if self.history and tuple(self.history[-1][:2]) == (z, rate):
            self.history[-1] = (z, rate, self.history[-1][2] + 1)
        else:
            self.history.append((z, rate, 1))

    def get_epsilon(self, delta: float, *args: Any, **kwargs: Any) -> float:
        """Epsilon of all steps so far.

        Args:
            delta: Failure probability.
            args: Not used.
            kwargs: Not used: Opacus passes those of its other accountants, such as `alphas`.

        Returns:
            Epsilon; infinite if a step had no noise.

        Raises:
            CannotBound: If no finite bound was found within double precision.

        Guarantee: never below the truth, if batches are drawn as the class says, and if the number
        of steps was fixed in advance.
        """
        delta = validate_delta(delta)
        squares, sampled = [], Counter[SubsampledStep]()
        for z, rate, steps in map(_entry, self.history):
            if z < _LEAST:
                squares.append(math.inf)
            elif rate == 1:
                shift = (1 if self.relation == "add-remove" else 2) / z
                squares.append(steps * shift * shift)
            else:
                sampled[SubsampledStep(z, rate, self._sampling, self.relation, 1)] += steps
        return ExampleLosses.of(math.fsum(squares), sampled, self.relation).epsilon(delta)

    def __len__(self) -> int:
        return sum(steps for _, _, steps in self.history)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Takes over the history in what `state_dict` of an accountant of this name returned.

        Args:
            state_dict: The state.
        """
        super().load_state_dict(state_dict)
        # a copy: steps from now on are not steps of the checkpoint
        self.history = [_entry(entry) for entry in self.history]

    def get_optimizer_hook_fn(self, sample_rate: float) -> Callable[[Any], None]:
        """What Opacus calls in each step of its optimiser.

        Args:
            sample_rate: Of one batch, by Opacus 1 / len(data_loader).
        """

        def count_step(optimizer: Any) -> None:
            # its count of unclipped examples moves by 1 and is divided by the batch's true size;
            # its noise is accounted for as if the count moved by 1/2 (arXiv:1905.03871, theorem 1)
            if isinstance(optimizer, AdaClipDPOptimizer):
                raise InputError(
                    "Opacus' adaptive clipping publishes more than its noise multiplier says, and "
                    'has no accountant here; take clipping="flat" or "per_layer"'
                )
            if optimizer.accumulated_iterations != 1:
                # an example may be in several of them: neither rate nor clip is that of one batch
                raise InputError(
                    f"{optimizer.accumulated_iterations} batches were added up for one step, which "
                    "has no accountant here; take larger batches, in parts with Opacus' "
                    "BatchMemoryManager if they do not fit into memory"
                )
            self._check_batch(optimizer, sample_rate)
            self.step(noise_multiplier=optimizer.noise_multiplier, sample_rate=sample_rate)

        return count_step

    def _check_batch(self, optimizer: Any, sample_rate: float) -> None:
        raise NotImplementedError


class PoissonAccountant(_Accountant):
    """The accountant "decor": each example is in each batch with the sampling rate, independently.

    That is how `make_private` draws batches by default. Epsilon is the tight one of the sampled
    Gaussian, as of `decor.Exposure(unit="example")`; that of Opacus' "rdp" is larger.

    Neighbours: an example is added or removed, as in Opacus' own accountants. Opacus computes rate
    and divisor from the number of examples, and so treats that number as public: strictly, the
    example is replaced by an empty one.

    With `poisson_sampling=False` batches are not Poisson, whatever the accountant. This one stops
    with an error once a run of batches of one size shows it.
    """

    _name, _sampling, relation = "decor", "poisson", "add-remove"

    def __init__(self) -> None:
        super().__init__()
        self._size, self._alike = -1, 0

    def _check_batch(self, optimizer: Any, sample_rate: float) -> None:
        size, mean = _batch_size(optimizer), optimizer.expected_batch_size
        if size is None or mean is None:
            return
        self._alike = self._alike + 1 if size == self._size else 0
        self._size = size
        # no size of a Poisson batch has a probability above 1 / sqrt(2 e mean (1 - rate))
        most = 2 * math.e * mean * (1 - sample_rate)
        if most > 1 and self._alike * math.log(most) > -2 * math.log(_NEVER):
            raise InputError(
                f"{self._alike + 1} batches in a row had {size} examples, which Poisson sampling "
                "does not do: leave poisson_sampling=True, or take the accountant "
                f'"{FixedSizeAccountant.mechanism()}" with decor.doors.opacus.FixedSizeBatches'
            )


class FixedSizeAccountant(_Accountant):
    """The accountant "decor-fixed": each batch is a fresh sample of fixed size, none twice in it.

    Only `FixedSizeBatches` draws so; a `DataLoader` that shuffles does not, because its batches of
    one epoch share no example, and no theorem is known that would cover them. The accountant stops
    with an error if fewer batches were drawn than there were steps, if a batch is larger than its
    rate says, and in one process of several.

    Neighbours: an example is replaced by any other. Numbers of examples are public.
    """

    _name, _sampling, relation = "decor-fixed", "fixed", "replace"
    _steps: ClassVar[int] = 0
    """Of all accountants of this process, beside the batches that were drawn."""

    def _check_batch(self, optimizer: Any, sample_rate: float) -> None:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            raise InputError(
                "batches of fixed size that several processes draw have no accountant here; use "
                f'one process, or poisson_sampling=True and "{PoissonAccountant.mechanism()}"'
            )
        if FixedSizeAccountant._steps >= FixedSizeBatches.drawn:
            raise InputError(
                f'"{self.mechanism()}" is for batches of decor.doors.opacus.FixedSizeBatches: give '
                "DataLoader(batch_sampler=FixedSizeBatches(...)) to make_private"
            )
        size, mean = _batch_size(optimizer), optimizer.expected_batch_size
        # Opacus' mean is rate x examples, rounded down
        if size is not None and mean is not None and size > mean:
            raise InputError(
                f"a batch had {size} examples where the sampling rate {sample_rate:g} is that of "
                f"{mean}; give DataLoader(batch_sampler=FixedSizeBatches(...)) to make_private"
            )
        FixedSizeAccountant._steps += 1


class FixedSizeBatches:
    """Batches of a fixed size, each drawn anew without replacement: a `batch_sampler`.

    An epoch is a number of batches, and an example may be in several of them, or in none.

    Args:
        examples: Number of examples in the data set.
        batch_size: Number of examples in each batch.
        generator: Source of randomness, by default torch's. Who knows the batches has no
            amplification by sampling to overcome.
    """

    drawn: ClassVar[int] = 0
    """Batches of all samplers of this process."""

    def __init__(
        self, examples: int, batch_size: int, generator: torch.Generator | None = None
    ) -> None:
        self.examples = checks.count("examples", examples)
        self.batch_size = checks.count("batch_size", batch_size, most=self.examples)
        self.generator = generator

    def __len__(self) -> int:
        # down: Opacus takes 1 / len for the rate, which must not be below batch_size / examples
        return self.examples // self.batch_size

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(len(self)):
            FixedSizeBatches.drawn += 1
            order = torch.randperm(self.examples, generator=self.generator)
            yield order[: self.batch_size].tolist()


def _entry(entry: Any) -> tuple[float, float, int]:
    """An entry of a history, with noise rounded down to what can be computed."""
    noise, sample_rate, steps = entry
    z, rate = checks.as_float(noise), checks.as_float(sample_rate)
    if not z >= 0:
        raise InputError(f"noise_multiplier must be 0 or more, not {noise!r}")
    if not _LEAST <= rate <= 1:
        raise InputError(f"sample_rate must be a probability, not {sample_rate!r}")
    return min(z, _MOST), rate, checks.count("steps", steps)


def _batch_size(optimizer: Any) -> int | None:
    """How many examples the last batch had, if that can be seen.

    It cannot where examples have no gradients of their own (ghost clipping), nor where a batch came
    in parts.
    """
    gradients = getattr(optimizer.params[0], "grad_sample", None)
    if isinstance(gradients, list):
        gradients = gradients[0]
    # the attribute is Opacus' own: without it nothing is known of parts
    if gradients is None or getattr(optimizer, "_is_last_step_skipped", True):
        return None
    return len(gradients)
