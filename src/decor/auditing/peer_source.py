"""Messages of real peers: processes with TLS between them, each of which records what it knows."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from decor.array_types import Array
from decor.choices import Dtype
from decor.errors import DecorError, InputError
from decor.federation import recording
from decor.federation.local_federation import LocalFederation
from decor.federation.peers_engine import Peers, split_by_user
from decor.federation.process_starter import ProcessStarter
from decor.learning.batches import CommonRate, secret_batch
from decor.learning.task import Task
from decor.net.identity import Identity
from decor.noise.grid import Grid
from decor.noise.integer_gaussians import edge_noise
from decor.privacy.plan import NoisePlan
from decor.training.engine import Setting
from decor.training.release_grid import grid_of

from .low_bits import grid_integers
from .sources import RATE, RECIPE, MessageSource, OnStep, RunProblems, StepView, grid_levels

_KEY_BYTES = 32


@dataclass(frozen=True)
class PeerSource(MessageSource):
    """Real processes with TLS between them: the messages received, and the keys users hold."""

    engine: Peers
    name: str = "peers"
    has_secrets: bool = True
    max_canaries: int | None = None
    max_runs: int = 8
    is_private: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.engine, Peers):
            raise InputError(
                f"engine must be Vectorised(), ProcessGroup() or Peers(), not {self.engine!r}"
            )

    @cached_property
    def _starter(self) -> ProcessStarter:
        # one for all runs of an audit: it loads torch once
        return ProcessStarter()

    def close(self) -> None:
        if "_starter" in vars(self):
            self._starter.close()

    def noise_levels(self, plan: NoisePlan, parameters: int) -> tuple[Array, Array]:
        return grid_levels(grid_of(plan, parameters), plan.topology.users)

    def run(
        self, task: Task, plan: NoisePlan, seeds: Sequence[int], on_step: OnStep
    ) -> RunProblems:
        # new ones for each run: no key of an earlier audit is used again
        identities = [Identity.new() for _ in range(task.users)]
        # no user is left behind: being slow is not a fault
        terms = replace(self.engine, quorum=1.0).terms(
            task, Setting(plan, RATE, 0), RECIPE, identities, 0.5
        )
        with tempfile.TemporaryDirectory(prefix="decor-audit-") as folder:
            tasks = partial(split_by_user, task)
            federation = LocalFederation(
                self._starter, terms, identities, tasks, Path(folder), record=True
            )
            try:
                federation.run()
            except DecorError as problem:
                # the message names a log that is deleted with the folder
                raise DecorError(str(problem).rpartition("; see ")[0] or str(problem)) from None
            recordings = _Recordings(plan, task.counts, [u.recording for u in federation.users])
            recordings.replay(on_step, self.engine.dtype, terms.grid)
            return RunProblems(tuple(recordings.problems), tuple(recordings.entropy_problems()))


class _Recordings:
    """The recordings of all users together."""

    def __init__(self, plan: NoisePlan, records: Sequence[int], paths: Sequence[Path]) -> None:
        self.plan, self.records = plan, records
        self.messages: dict[tuple[int, int], bytes] = {}
        """(sender, step) -> message."""
        self.keys: dict[tuple[int, int, int], bytes] = {}
        """(user, neighbour, step) -> the edge's key."""
        self.models: dict[tuple[int, int], bytes] = {}
        """(user, step) -> the model that the step began with."""
        self.random: dict[tuple[int, int], list[bytes]] = {}
        """(user, purpose) -> random bytes that it asked for, in order."""
        self.problems: list[str] = []
        self.foreign: list[str] = []
        for user, path in enumerate(paths):
            for entry in recording.read(path):
                self._add(user, *entry)

    def _add(self, user: int, other: int, step: int, round_: int, content: bytes) -> None:
        if round_ == recording.KEY:
            self.keys[user, other, step] = content
        elif round_ == recording.MODEL:
            self.models[user, step] = content
        elif round_ in (recording.OF_EDGES, recording.OF_STEPS):
            self.random.setdefault((user, round_), []).append(content)
            if not other:
                self.foreign.append(f"user {user} uses random bytes not from the operating system")
        # rounds after the first only gossip what is public already
        elif round_ == 0 and self.messages.setdefault((other, step), content) != content:
            self.problems.append(f"user {other} sent two different messages for step {step}")

    @property
    def steps(self) -> int:
        return 1 + max((step for _, step in self.messages), default=-1)

    def replay(self, on_step: OnStep, dtype: Dtype, grid: Grid) -> None:
        """Calls `on_step` for each step, up to one in which something is missing."""
        users = range(self.plan.topology.users)
        # per-example gradients are clipped, and put on the grid, in double precision
        by_example = self.plan.exposure.unit == "example"
        kind = np.dtype(np.float64 if by_example else dtype)
        for step in range(self.steps):
            for user in users:
                if (user, step) not in self.messages or (user, step) not in self.models:
                    self.problems.append(f"no message of user {user} for step {step} was received")
                    return
            sent, before = (
                np.stack([np.frombuffer(values[user, step], dtype) for user in users])
                for values in (self.messages, self.models)
            )
            resend = partial(_resend, before, grid.unit, kind)
            integers = grid_integers(before, sent, grid.unit, resend)
            messages, edges = sent.astype(np.float64), self._edges(step, sent.shape[1], grid)
            on_step(StepView(step, messages, edges, self._batches(step), integers))

    def _edges(self, step: int, count: int, grid: Grid) -> Array:
        """[edges, columns], the noise of each edge, from the keys that its ends hold."""
        noise = np.zeros((len(grid.multiples), count))
        for e, (low, high) in enumerate(self.plan.topology.edges.tolist()):
            key, other = self.keys.get((low, high, step)), self.keys.get((high, low, step))
            if key != other or key is None:
                self.problems.append(
                    f"users {low} and {high} have no common secret for step {step}"
                )
            # the violation is reported; with one end's key the other checks still run
            if key is not None:
                noise[e] = grid.unit * grid.multiples[e] * edge_noise(key, count)
        return noise

    def _batches(self, step: int) -> Array | None:
        """The examples that users sampled: a user knows its random bytes, so also its batch."""
        exposure = self.plan.exposure
        if exposure.unit == "user":
            return None
        assert exposure.batch_size is not None
        sampling = exposure.sampling or "poisson"
        common = CommonRate.of(exposure.rate, exposure.batch_size)
        is_member = np.zeros((len(self.records), self.records[0]), bool)
        for user, records in enumerate(self.records):
            random = self._batch_bytes(user)
            if step < len(random):
                first = partial(_first, random[step])
                rows = secret_batch(records, exposure.batch_size, sampling, first, common).rows
                is_member[user, rows[rows < records].numpy()] = True
        return is_member

    def _batch_bytes(self, user: int) -> list[bytes]:
        """The random bytes for batches, recognised by their length.

        Poisson sampling takes four bytes for each example; a fixed size eight or more for each
        that is sampled. A key takes exactly 32.
        """
        size, records = self.plan.exposure.batch_size or 0, self.records[user]
        least = 8 * size if self.plan.exposure.sampling == "fixed" else 4 * records
        random = self.random.get((user, recording.OF_STEPS), [])
        return [drawn for drawn in random if len(drawn) >= max(least, _KEY_BYTES + 1)]

    def entropy_problems(self) -> list[str]:
        """Keys with fewer bytes than needed, from another source, or with bytes used before."""
        problems, topology = self.foreign[:1], self.plan.topology
        all_keys: list[bytes] = []
        for user in range(topology.users):
            for_edges = self.random.get((user, recording.OF_EDGES), [])
            for_steps = self.random.get((user, recording.OF_STEPS), [])
            degree = int((topology.edges == user).sum())
            # one key exchange with each neighbour, or more after a lost connection
            if len(for_edges) < degree or any(len(key) < _KEY_BYTES for key in for_edges):
                problems.append(
                    f"user {user} asked for {sum(map(len, for_edges))} random bytes for its keys "
                    f"with {degree} neighbours, not for {_KEY_BYTES} each"
                )
            own = [drawn for drawn in for_steps if len(drawn) == _KEY_BYTES]
            if len(own) < self.steps:
                problems.append(
                    f"user {user} asked for {len(own)} keys of {_KEY_BYTES} bytes for its own "
                    f"noise in {self.steps} steps"
                )
            if self.plan.exposure.unit == "example" and len(self._batch_bytes(user)) < self.steps:
                problems.append(
                    f"user {user} did not ask for enough random bytes to sample a batch in each "
                    f"of {self.steps} steps"
                )
            all_keys += [drawn for drawn in (*for_edges, *for_steps) if len(drawn) >= _KEY_BYTES]
        # 32 random bytes are never equal by chance
        if len(set(all_keys)) < len(all_keys):
            problems.append("the same random bytes were used twice")
        return problems


def _resend(before: Array, unit: float, kind: np.dtype[Any], steps: Array) -> Array:
    """Messages made from integers as a node does it, with the same last bits."""
    # a node takes the step in double precision, from values of the gradient's type, then rounds
    moved: Array = (before.astype(np.float64) - (unit * steps).astype(kind)).astype(before.dtype)
    return moved


def _first(drawn: bytes, count: int) -> bytes:
    return drawn[:count]
