"""Canaries: tasks whose gradients the auditor has chosen, so that every engine can be attacked from
outside.

Claims are about one vector of the clip's length. A vector of many canaries, each as long, in as
many coordinates, is many independent trials of that claim in one run: the run is told of a clip
that lets them all through, and of nothing else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from decor.arrays import Array
from decor.learning import losses
from decor.learning.task import Loss, Task

RHYTHMS = ("constant", "alternating", "random")
"""Signs over steps.

Noise that is used again in another step hides a constant canary, and none of the others.
"""
PATHS = ("module", "linear", "network")
"""How engines take records' gradients: of any module, or written out by hand for linear models and
for dense layers.
"""
OVER = (1.2, 2.0, 8.0)
"""Gradients are so many times longer than the clip: an engine that does not clip is loud, and so is
one that clips too late.
"""
_FAR, _FIRM = 1e4, 100.0
"""Clips that a record's gradient is longer than what models change of it; and times as far as
models come, the one weight that must hardly change.
"""
_FIRST = 8
"""One of so many numbers of a network is in its first layer, where noise is seen alone."""
_BEAT = 40.0
"""The clock moves so many times as far in a step as noise may move it in all of them."""


@dataclass(frozen=True)
class Signals:
    """User level: everybody's canary in every coordinate, with a secret sign, a length, and a
    rhythm over the steps.

    The first parameter is a clock: everybody's gradient moves it by `beat` a step, far more than
    noise does, so that a gradient knows its step from the model alone, on any engine.
    """

    signs: Array
    """[users, canaries], 1 or -1: what the attacks have to find out."""
    rhythm: Array
    """[canaries], of RHYTHMS."""
    table: Array
    """[steps, rhythms], 1 or -1."""
    length: Array
    """[canaries]: for weak adversaries long ones, for strong ones short ones."""
    beat: float

    @staticmethod
    def of(
        users: int, count: int, steps: int, lengths: Array, noise: float, rng: np.random.Generator
    ) -> Signals:
        """`noise` bounds the deviation of anybody's noise in a step."""
        t = np.arange(steps)
        table = np.stack(
            [np.ones(steps), 1.0 - 2.0 * (t % 2), rng.choice([-1.0, 1.0], steps)], axis=1
        )
        signs = rng.choice(np.array([-1.0, 1.0]), (users, count))
        length = lengths[np.arange(count) // len(RHYTHMS) % len(lengths)]
        beat = _BEAT * (noise * math.sqrt(steps) + float(lengths.max()))
        return Signals(signs, np.arange(count) % len(RHYTHMS), table, length, beat)

    @property
    def clip(self) -> float:
        """What lets all canaries through, and no more."""
        return math.sqrt(self.beat**2 + float(np.square(self.length).sum()))

    def beats(self, step: int) -> Array:
        """Signs of a step, by coordinate."""
        found: Array = self.table[step, self.rhythm]
        return found

    def gradients(self, step: int) -> Array:
        """What everybody sends in a step but for noise, and the clock: [users, canaries]."""
        found: Array = self.signs * (self.length * self.beats(step))
        return found

    def over(self, step: int) -> Array:
        """Of OVER, how much longer than the clip everybody's gradient is in a step: [users]."""
        found: Array = (step + np.arange(len(self.signs))) % len(OVER)
        return found

    def task(self) -> Task:
        X = torch.from_numpy(np.concatenate([self.signs, self.over(0)[:, None]], axis=1)).float()
        model = _Clocked(self.table, self.rhythm, self.length, self.beat)
        return Task(model, _mean, [(x.unsqueeze(0), torch.zeros(1)) for x in X], name="canaries")


class _Clocked(nn.Module):
    """Output whose gradient is a record's canaries, with the signs of the step that the clock
    shows.
    """

    def __init__(self, table: Array, rhythm: Array, length: Array, beat: float) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(1 + len(rhythm)))
        self.table: Tensor
        self.rhythm: Tensor
        self.length: Tensor
        self.register_buffer("table", torch.from_numpy(table).float())
        self.register_buffer("length", torch.from_numpy(length))
        self.register_buffer("rhythm", torch.from_numpy(rhythm))
        self.over: Tensor
        self.register_buffer("over", torch.tensor(OVER))
        self.beat = beat

    def forward(self, X: Tensor) -> Tensor:
        step = (self.weights[0].detach() / self.beat).round().clamp(0, len(self.table) - 1).long()
        signs = self.table.index_select(0, step.reshape(1))[0][self.rhythm]
        over = self.over.index_select(0, (step + X[:, -1].long()) % len(OVER))
        return _flat(
            over
            * (
                (X[:, :-1] * signs * self.length * self.weights[1:]).sum(-1)
                - self.beat * self.weights[0]
            )
        )


@dataclass(frozen=True)
class Inclusions:
    """Example level: one record for every coordinate at one victim, which is in the data or not;
    everybody else has none.

    A record's gradient is one coordinate's; whether it was drawn in a step is the engine's secret,
    and half of the claim. Some coordinates are silent: nobody's gradient is there, and noise is
    seen alone. The first parameter of all is none of them, but the large weight that a network
    needs.
    """

    path: str
    """Of PATHS."""
    amplitudes: Array
    """[canaries]: 1 for a record that is there; one that is not has 0, or -1 where it was replaced
    by its contrary.
    """
    silent: Array
    users: int
    victim: int
    clip: float
    reach: float
    """Coordinates stay within."""

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
    ) -> Inclusions:
        silent, first = np.zeros(count, bool), count // _FIRST if path == "network" else 0
        silent[:first] = True
        # everywhere as many
        silent[np.linspace(first, count - 1, count // 4 - first).astype(int)] = True
        present = rng.random(count) < 0.5
        amplitudes = np.where(silent, 0.0, np.where(present, 1.0, -1.0 if replaced else 0.0))
        return Inclusions(path, amplitudes, silent, users, victim, clip, reach)

    @property
    def over(self) -> Array:
        """Of OVER, how much longer than the clip every record's gradient is."""
        found: Array = np.arange(len(self.amplitudes)) % len(OVER)
        return found

    @property
    def initial(self) -> Array:
        """The model that everybody begins with, as it is sent."""
        found = np.zeros(1 + len(self.amplitudes))
        if self.path == "network":
            found[0] = _FIRM * self.reach
        return found

    def task(self) -> Task:
        model, loss, X, y = self._module() if self.path == "module" else self._dense()
        torch.nn.utils.vector_to_parameters(
            torch.from_numpy(self.initial).float(), model.parameters()
        )
        own, null = (
            (torch.from_numpy(X).float(), torch.from_numpy(y).float())
            for X, y in ((X, y), (0 * X, 0 * y))
        )
        shards = [own if user == self.victim else null for user in range(self.users)]
        return Task(model, loss, shards, name="inclusion canaries")

    def _module(self) -> tuple[nn.Module, Loss, Array, Array]:
        places = 1 + np.arange(len(self.amplitudes))
        loud = np.take(OVER, self.over) * self.amplitudes
        return (
            _Inclusion(1 + len(places), self.clip),
            _mean,
            np.stack([places, loud], 1),
            0.0 * places,
        )

    def _dense(self) -> tuple[nn.Module, Loss, Array, Array]:
        """A record's residual is far, at one output; what has no record has no input.

        Inputs are so small that a model, wherever it comes, changes a gradient by a small part of
        its clip.
        """
        small = math.sqrt(self.clip / (_FAR * self.reach))
        count, there = len(self.amplitudes), small * np.abs(self.amplitudes)
        far = -self.clip / small * np.take(OVER, self.over) * self.amplitudes
        if self.path == "linear":
            return nn.Linear(1 + count, 1, bias=False), losses.squared, np.diag(there, 1)[:-1], far
        # the first input, through a weight so large that it seems not to move, makes the hidden
        # unit; the others are silent
        first = count // _FIRST
        model = nn.Sequential(
            nn.Linear(1 + first, 1, bias=False), nn.ReLU(), nn.Linear(1, count - first, bias=False)
        )
        X = np.zeros((count, 1 + first))
        X[:, 0] = there / (_FIRM * self.reach)
        return model, losses.squared, X, np.diag(far)[:, first:]


class _Inclusion(nn.Module):
    """Output whose gradient is a record's number (in clips) in one coordinate (its place)."""

    def __init__(self, count: int, clip: float) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(count))
        self.clip = clip

    def forward(self, X: Tensor) -> Tensor:
        # engines may try a module on records of no one's, whose places are nowhere
        places = X[:, 0].long().clamp(0, len(self.weights) - 1)
        here = nn.functional.embedding(places, self.weights.unsqueeze(-1))[:, 0]
        return _flat(self.clip * X[:, 1] * here)


def _flat(output: Tensor) -> Tensor:
    """Zero, with the gradient of what is given: no engine takes a canary for a loss that
    diverges.
    """
    return output - output.detach()


def _mean(output: Tensor, _: Tensor) -> Tensor:
    return output.mean()
