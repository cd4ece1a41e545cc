"""Canaries: tasks with gradients that the auditor chooses, to attack any engine from outside.

A claim is about one vector of the clip's length. A gradient with a canary of that length in each of
many coordinates is many independent trials of the claim in one run. The run gets a clip that lets
all canaries through; nothing else about it changes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from decor.array_types import Array
from decor.learning import losses
from decor.learning.task import Loss, Task

PATTERNS = ("constant", "alternating", "random")
"""Signs over steps. Noise that is used again in a later step hides a constant canary, but neither
of the others.
"""
PATHS = ("module", "linear", "network")
"""The gradient code of examples: for any module, for linear models, and for dense layers."""
NORMS = (1.2, 2.0, 8.0)
"""Gradients are so many clips long, in turn. An engine that does not clip sends too much, and so
does one that clips too late.
"""
_FAR, _FIRM = 1e4, 100.0
"""Ratio of an example's gradient to the change in it that training causes; and ratio of the weight
that must stay nearly fixed to the distance that models move.
"""
_FIRST = 8
"""One in this many parameters of a network is in its first layer, where noise is seen alone."""
_TICK = 40.0
"""A step moves the clock so many times farther than noise may move it in all steps."""


@dataclass(frozen=True)
class UserCanaries:
    """User level: in each coordinate a canary of each user, with a secret sign.

    The first parameter is a clock. All users' gradients move it by `tick` in each step, far more
    than noise does. So a gradient knows its step from the model alone, on any engine.

    Attributes:
        signs: [users, canaries], 1 or -1: the secrets that attacks guess.
        pattern: [canaries], index into PATTERNS.
        table: [steps, patterns], 1 or -1.
        length: [canaries]: long ones for weak attackers, short ones for strong ones.
        tick: How far one step moves the clock.
    """

    signs: Array
    pattern: Array
    table: Array
    length: Array
    tick: float

    @staticmethod
    def of(
        users: int, count: int, steps: int, lengths: Array, noise: float, rng: np.random.Generator
    ) -> UserCanaries:
        """`noise` bounds the standard deviation of any user's noise in a step."""
        alternating = 1.0 - 2.0 * (np.arange(steps) % 2)
        table = np.stack([np.ones(steps), alternating, rng.choice([-1.0, 1.0], steps)], axis=1)
        signs = rng.choice(np.array([-1.0, 1.0]), (users, count))
        # each length has canaries of all patterns
        length = lengths[np.arange(count) // len(PATTERNS) % len(lengths)]
        tick = _TICK * (noise * math.sqrt(steps) + float(lengths.max()))
        return UserCanaries(signs, np.arange(count) % len(PATTERNS), table, length, tick)

    @property
    def clip(self) -> float:
        """The clip that lets all canaries through, and no more."""
        return math.sqrt(self.tick**2 + float(np.square(self.length).sum()))

    def step_signs(self, step: int) -> Array:
        """The patterns' signs in a step, by coordinate."""
        signs: Array = self.table[step, self.pattern]
        return signs

    def gradients(self, step: int) -> Array:
        """What all users send in a step, without noise and clock: [users, canaries]."""
        gradients: Array = self.signs * (self.length * self.step_signs(step))
        return gradients

    def norm_index(self, step: int) -> Array:
        """[users]: index into NORMS of each user's gradient in a step."""
        # in turn, so that each user has each norm
        index: Array = (step + np.arange(len(self.signs))) % len(NORMS)
        return index

    def task(self) -> Task:
        norm = self.norm_index(0)[:, None]
        X = torch.from_numpy(np.concatenate([self.signs, norm], axis=1)).float()
        model = _ClockedModel(self.table, self.pattern, self.length, self.tick)
        return Task(model, _mean, [(x.unsqueeze(0), torch.zeros(1)) for x in X], name="canaries")


class _ClockedModel(nn.Module):
    """A model whose gradient is a user's canaries, with the signs of the step on the clock."""

    table: Tensor
    pattern: Tensor
    length: Tensor
    norms: Tensor

    def __init__(self, table: Array, pattern: Array, length: Array, tick: float) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(1 + len(pattern)))
        self.register_buffer("table", torch.from_numpy(table).float())
        self.register_buffer("length", torch.from_numpy(length))
        self.register_buffer("pattern", torch.from_numpy(pattern))
        self.register_buffer("norms", torch.tensor(NORMS))
        self.tick = tick

    def forward(self, X: Tensor) -> Tensor:
        # noise moves the clock by less than half a tick, so rounding gives the step
        step = (self.weights[0].detach() / self.tick).round().clamp(0, len(self.table) - 1).long()
        # not `table[step]`: indexing by a scalar tensor calls item(), which torch.func.vmap refuses
        signs = self.table.index_select(0, step.reshape(1))[0][self.pattern]
        norm = self.norms.index_select(0, (step + X[:, -1].long()) % len(NORMS))
        canaries = (X[:, :-1] * signs * self.length * self.weights[1:]).sum(-1)
        return _zero_with_gradient(norm * (canaries - self.tick * self.weights[0]))


@dataclass(frozen=True)
class ExampleCanaries:
    """Example level: for each coordinate one example, which the victim's data hold or not.

    An example's gradient is in one coordinate. Whether a step samples it is the engine's secret,
    and half of the claim. Other users' gradients are zero. Some coordinates are silent: they have
    no example, so noise is seen alone there. The first parameter has no example either: it is the
    large weight that a network needs.

    Attributes:
        path: One of PATHS.
        amplitudes: [canaries]: 1 for a present example; 0, or -1 where it was replaced, for an
            absent one.
        silent: [canaries]: whether a coordinate has no example.
        users: The number of users.
        victim: The user with the examples.
        clip: The clip of one example.
        reach: A bound of how far coordinates move.
    """

    path: str
    amplitudes: Array
    silent: Array
    users: int
    victim: int
    clip: float
    reach: float

    @staticmethod
    def of(
        path: str,
        users: int,
        victim: int,
        count: int,
        clip: float,
        reach: float,
        replaced: bool,
        rng: np.random.Generator,
    ) -> ExampleCanaries:
        silent, first = np.zeros(count, bool), count // _FIRST if path == "network" else 0
        silent[:first] = True
        # a quarter is silent on all paths, spread over all coordinates
        silent[np.linspace(first, count - 1, count // 4 - first).astype(int)] = True
        present = rng.random(count) < 0.5
        amplitudes = np.where(silent, 0.0, np.where(present, 1.0, -1.0 if replaced else 0.0))
        return ExampleCanaries(path, amplitudes, silent, users, victim, clip, reach)

    @property
    def norm_index(self) -> Array:
        """[canaries]: index into NORMS of each example's gradient."""
        index: Array = np.arange(len(self.amplitudes)) % len(NORMS)
        return index

    @property
    def initial(self) -> Array:
        """The model that all users begin with, as it is sent."""
        model = np.zeros(1 + len(self.amplitudes))
        if self.path == "network":
            model[0] = _FIRM * self.reach
        return model

    def task(self) -> Task:
        model, loss, X, y = self._module() if self.path == "module" else self._dense()
        initial = torch.from_numpy(self.initial).float()
        torch.nn.utils.vector_to_parameters(initial, model.parameters())
        own = torch.from_numpy(X).float(), torch.from_numpy(y).float()
        # the same shapes as the victim, so that the engine runs the same code for all
        null = torch.from_numpy(0 * X).float(), torch.from_numpy(0 * y).float()
        shards = [own if user == self.victim else null for user in range(self.users)]
        return Task(model, loss, shards, name="inclusion canaries")

    def _module(self) -> tuple[nn.Module, Loss, Array, Array]:
        places = 1 + np.arange(len(self.amplitudes))
        norms = np.take(NORMS, self.norm_index) * self.amplitudes
        model = _InclusionModel(1 + len(places), self.clip)
        return model, _mean, np.stack([places, norms], 1), 0.0 * places

    def _dense(self) -> tuple[nn.Module, Loss, Array, Array]:
        """Examples with a far residual at one output; a coordinate without example has no input.

        Inputs are so small that a model, wherever it moves, changes a gradient by a small part of
        its clip.
        """
        small = math.sqrt(self.clip / (_FAR * self.reach))
        count, there = len(self.amplitudes), small * np.abs(self.amplitudes)
        far = -self.clip / small * np.take(NORMS, self.norm_index) * self.amplitudes
        if self.path == "linear":
            return nn.Linear(1 + count, 1, bias=False), losses.squared, np.diag(there, 1)[:-1], far
        # the first input makes the hidden unit, by a weight so large that it hardly seems to move;
        # the other inputs are zero, so the first layer shows noise alone
        first = count // _FIRST
        model = nn.Sequential(
            nn.Linear(1 + first, 1, bias=False), nn.ReLU(), nn.Linear(1, count - first, bias=False)
        )
        X = np.zeros((count, 1 + first))
        X[:, 0] = there / (_FIRM * self.reach)
        return model, losses.squared, X, np.diag(far)[:, first:]


class _InclusionModel(nn.Module):
    """A model whose gradient is an example's number (in clips) in its coordinate."""

    def __init__(self, count: int, clip: float) -> None:
        super().__init__()
        # a table, so that examples look up one number each, as they do tokens
        self.weights = nn.Parameter(torch.zeros(count, 1))
        self.clip = clip

    def forward(self, X: Tensor) -> Tensor:
        # engines may probe a module with made-up examples, whose coordinates do not exist
        places = X[:, 0].long().clamp(0, len(self.weights) - 1)
        here = nn.functional.embedding(places, self.weights)[:, 0]
        return _zero_with_gradient(self.clip * X[:, 1] * here)


def _zero_with_gradient(output: Tensor) -> Tensor:
    """Zero, with the gradient of `output`: no engine takes a canary for a diverging loss."""
    return output - output.detach()


def _mean(output: Tensor, _: Tensor) -> Tensor:
    return output.mean()
