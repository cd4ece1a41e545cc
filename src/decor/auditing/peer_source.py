"""Real peers: processes with TLS between them, and what each of them hears and knows."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from decor.arrays import Array
from decor.choices import Dtype
from decor.errors import DecorError, InputError
from decor.federation import recording
from decor.federation.local_federation import Together
from decor.federation.peers import Peers, alone
from decor.learning.batches import secretly
from decor.learning.task import Task
from decor.net.identity import Identity
from decor.noise.stream import EDGE_SIGMA, OWN_SIGMA, shared
from decor.privacy.plan import NoisePlan
from decor.training.engine import Setting
from decor.training.release_grid import grid_of

from .low_bits import integers
from .sources import RATE, RECIPE, Hear, Outcome, Seen

_KEY = 32
"""Bytes of a key, of whatever kind."""


@dataclass(frozen=True)
class OfPeers:
    """Real processes with TLS between them: what arrives, and the keys that users hold."""

    engine: Peers
    name: str = "peers"
    secrets: bool = True
    widest: int | None = None
    repeated: int = 8
    is_private: bool = True
    hears: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.engine, Peers):
            raise InputError(
                f"engine must be Vectorised(), ProcessGroup() or Peers(), not {self.engine!r}"
            )

    def deviations(self, plan: NoisePlan, parameters: int) -> tuple[float, Array]:
        """The grid's, which are those planned or a little more."""
        grid = grid_of(plan, parameters)
        return grid.unit * OWN_SIGMA, grid.unit * EDGE_SIGMA * np.array(grid.multiples, dtype=float)

    def run(self, task: Task, plan: NoisePlan, seeds: Sequence[int], hear: Hear) -> Outcome:
        identities = [Identity.new() for _ in range(task.users)]
        # nobody is left behind: who is slow is no fault
        terms = replace(self.engine, quorum=1.0).terms(
            task, Setting(plan, RATE, 0), RECIPE, identities, 0.5
        )
        with tempfile.TemporaryDirectory(prefix="decor-audit-") as folder:
            together = Together(terms, identities, alone(task), Path(folder), witnessed=True)
            try:
                together.trained()
            except DecorError as problem:  # whose log is gone with the folder
                raise DecorError(str(problem).rpartition("; see ")[0] or str(problem)) from None
            written = _Written(plan, task.counts, [seat.witness for seat in together.seats])
            problems = written.told(hear, self.engine.dtype, terms.grid.unit, terms.grid.multiples)
            return Outcome(tuple(problems), tuple(written.entropy()))


class _Written:
    """What all witnesses have written down together."""

    def __init__(self, plan: NoisePlan, records: Sequence[int], paths: Sequence[Path]) -> None:
        self.plan, self.records = plan, records
        self.messages: dict[tuple[int, int], bytes] = {}
        self.keys: dict[tuple[int, int, int], bytes] = {}
        self.models: dict[tuple[int, int], bytes] = {}
        self.drawn: dict[tuple[int, int], list[bytes]] = {}
        """(user, what for) -> bytes that it has drawn, in order."""
        self.problems: list[str] = []
        self.foreign: list[str] = []
        for user, path in enumerate(paths):
            for other, step, round_, said in recording.read(path):
                if round_ == recording.KEY:
                    self.keys[user, other, step] = said
                elif round_ == recording.MODEL:
                    self.models[user, step] = said
                elif round_ in (recording.OF_EDGES, recording.OF_STEPS):
                    self.drawn.setdefault((user, round_), []).append(said)
                    if not other:
                        self.foreign.append(
                            f"user {user} draws bytes that are not the operating system's"
                        )
                elif round_ == 0 and self.messages.setdefault((other, step), said) != said:
                    self.problems.append(
                        f"user {other} has sent two different messages for step {step}"
                    )

    @property
    def steps(self) -> int:
        return 1 + max((step for _, step in self.messages), default=-1)

    def told(self, hear: Hear, dtype: Dtype, unit: float, multiples: Sequence[int]) -> list[str]:
        users, by_record = range(self.plan.topology.users), self.plan.exposure.unit == "example"
        for step in range(self.steps):
            missing = [
                user
                for user in users
                if (user, step) not in self.messages or (user, step) not in self.models
            ]
            if missing:
                return [
                    *self.problems,
                    f"nobody has heard a message of user {missing[0]} for step {step}",
                ]
            sent, before = (
                np.stack([np.frombuffer(held[user, step], dtype) for user in users])
                for held in (self.messages, self.models)
            )
            found = integers(
                before,
                sent,
                unit,
                partial(_sent, before, unit, np.dtype(np.float64 if by_record else dtype)),
            )
            models = sent.astype(np.float64)
            hear(
                Seen(
                    step,
                    models,
                    self._shared(step, models.shape[1], unit, multiples),
                    self._batches(step),
                    found,
                )
            )
        return self.problems

    def _shared(self, step: int, count: int, unit: float, multiples: Sequence[int]) -> Array:
        found = np.zeros((len(multiples), count))
        for e, ((low, high), multiple) in enumerate(
            zip(self.plan.topology.edges.tolist(), multiples, strict=True)
        ):
            keys = self.keys.get((low, high, step)), self.keys.get((high, low, step))
            if keys[0] != keys[1] or keys[0] is None:
                self.problems.append(
                    f"users {low} and {high} have no common secret for step {step}"
                )
            if keys[0] is not None:
                found[e] = unit * multiple * shared(keys[0], count)
        return found

    def _batches(self, step: int) -> Array | None:
        """The records that everybody has taken: a user who knows its own random bytes knows its own
        batch.
        """
        exposure = self.plan.exposure
        if exposure.unit == "user":
            return None
        assert exposure.batch_size is not None
        found = np.zeros((len(self.records), self.records[0]), bool)
        for user, records in enumerate(self.records):
            drawn = self._for_batches(user)
            if step < len(drawn):
                rows = secretly(
                    records,
                    exposure.batch_size,
                    exposure.sampling or "poisson",
                    partial(_first, drawn[step]),
                ).rows
                found[user, rows[rows < records].numpy()] = True
        return found

    def _for_batches(self, user: int) -> list[bytes]:
        """What was drawn for batches, told by its length: four bytes a record, or eight and more
        for each that is taken.
        """
        size, records = self.plan.exposure.batch_size or 0, self.records[user]
        least = 8 * size if self.plan.exposure.sampling == "fixed" else 4 * records
        return [
            drawn
            for drawn in self.drawn.get((user, recording.OF_STEPS), [])
            if len(drawn) >= max(least, _KEY + 1)
        ]

    def entropy(self) -> list[str]:
        """What is wrong with the keys: everybody asks the operating system for all bytes of each,
        and no two are alike.
        """
        found, topology = self.foreign[:1], self.plan.topology
        every: list[bytes] = []
        for user in range(topology.users):
            of_edges, of_steps = (
                self.drawn.get((user, kind), [])
                for kind in (recording.OF_EDGES, recording.OF_STEPS)
            )
            degree = int((topology.edges == user).sum())
            if len(of_edges) < degree or any(len(key) < _KEY for key in of_edges):
                asked = sum(map(len, of_edges))
                found.append(
                    f"user {user} has asked for {asked} bytes for its keys with {degree} "
                    f"neighbours, not {_KEY} for each"
                )
            own = [drawn for drawn in of_steps if len(drawn) == _KEY]
            if len(own) < self.steps:
                found.append(
                    f"user {user} has asked for {len(own)} keys of {_KEY} bytes for its "
                    f"own noise in {self.steps} steps"
                )
            if self.plan.exposure.unit == "example" and len(self._for_batches(user)) < self.steps:
                found.append(
                    f"user {user} has not asked for enough random bytes to draw a batch "
                    f"in each of {self.steps} steps"
                )
            every += [drawn for drawn in (*of_edges, *of_steps) if len(drawn) >= _KEY]
        if len(set(every)) < len(every):
            found.append("the same random bytes were drawn twice")
        return found


def _sent(before: Array, unit: float, kind: np.dtype[Any], steps: Array) -> Array:
    """What is on the grid has the gradient's type; the local step is taken in double precision, and
    rounded to the model's.
    """
    found: Array = (before.astype(np.float64) - (unit * steps).astype(kind)).astype(before.dtype)
    return found


def _first(drawn: bytes, count: int) -> bytes:
    return drawn[:count]
