"""Teammate: one process's share of a run, whose other users are at other processes of a team."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from decor.choices import Sampling
from decor.errors import DecorError, InputError
from decor.graph.topology import Topology
from decor.learning.batches import Batches
from decor.learning.gradients.clip import Blocks
from decor.learning.task import Task
from decor.noise import root
from decor.noise.secret import Crossing, GridNoise, Handshake, Secret, width_for
from decor.privacy.plan import NoisePlan
from decor.results.run import Run
from decor.results.stop_reason import StopReason
from decor.training.channel import Channel, Complete, Private, Sparse
from decor.training.engine import Callback, Moment
from decor.training.manifest import fingerprint
from decor.training.mixer import DENSE, is_complete
from decor.training.resumption import Resumed
from decor.training.share import private_grid, stopped

from .border_exchange import Across, parts
from .communicator import Team

_GIVE, _FAILED = 1, 2
"""What the first process says to the others while its callbacks are called: give your models for
run k, or: all is lost.
"""


class Teammate:
    """The first process has everybody's models when a run is made of them, the run to resume, and
    the callbacks.
    """

    name = "process-group"

    def __init__(
        self,
        team: Team,
        whole: Task,
        topology: Topology,
        runs: int,
        callbacks: Sequence[Callback],
        secret: Secret | None = None,
    ) -> None:
        self.team, self.whole, self.runs, self.callbacks, self.secret = (
            team,
            whole,
            runs,
            callbacks,
            secret,
        )
        self.part, self.members = parts(topology, team)
        self.salt = 2**40 * team.rank
        self.waits, self.is_alone = team.size > 1, team.size == 1
        self.is_first = team.rank == 0
        self.asks = bool(int(team.told(torch.tensor(int(bool(callbacks))))))

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint(self.whole)

    @cached_property
    def task(self) -> Task:
        return replace(
            self.whole, shards=[self.whole.shards[int(user)] for user in self.part.users]
        )

    def batches(
        self, size: int | None, sampling: Sampling, seeds: Sequence[int], unit: int
    ) -> Batches:
        words = None if self.secret is None else self.secret.batch_words
        return Batches(
            self.task.counts, size, sampling, seeds, unit, self.part.users.tolist(), words
        )

    def channel(
        self,
        plans: Sequence[NoisePlan],
        seeds: Sequence[int],
        dtype: torch.dtype,
        device: torch.device,
    ) -> Channel:
        topology, central = plans[0].topology, plans[0].adversary.average_only
        if device.type == "cuda":
            from .cuda_border_exchange import OnCards

            return OnCards(plans, seeds, dtype, device, self.part, self.team)
        complete = is_complete(topology)
        mixing = Across(topology, self.part, self.team, central or complete)
        if self.secret is not None:
            return Private(mixing, self._private_noise(plans[0], self.secret))
        if complete and not central and topology.users > DENSE:
            return Complete(mixing, plans, seeds, self.part.users)

        def of(users: int, *rest: Any) -> root.Columns:
            return root.by_edges(users, *rest).within(self.part.users, users)

        return Sparse(mixing, plans, seeds, of, len(self.part.users))

    def _private_noise(self, plan: NoisePlan, secret: Secret) -> GridNoise:
        """Of the users here: edges between them from this process's secret, edges to others' users
        from one that both hold.
        """
        topology, grid = plan.topology, private_grid(plan, self.whole)
        home = np.empty(topology.users, np.int64)
        for rank, users in enumerate(self.members):
            home[users] = rank
        place = {int(user): k for k, user in enumerate(self.part.users)}
        handshake = Handshake(secret)
        others = self.team.everyones(handshake.public)
        inside, multiples, crossing = [], [], []
        for (low, high), multiple in zip(topology.edges.tolist(), grid.multiples, strict=True):
            if home[low] == home[high] == self.team.rank:
                inside.append((place[low], place[high]))
                multiples.append(multiple)
            elif self.team.rank in (home[low], home[high]):
                user, sign, other = (
                    (low, 1, home[high]) if home[low] == self.team.rank else (high, -1, home[low])
                )
                shared = handshake.agree(others[other], struct.pack("<2Q", low, high))
                crossing.append(Crossing(place[user], sign * multiple, shared))
        width = width_for(topology.users, topology.edge_count)
        return GridNoise(grid, secret, len(place), np.array(inside), multiples, width, crossing)

    def mean(self, block: Tensor) -> Tensor:
        return (self.team.total(block.sum(0, dtype=torch.float64)) / self.whole.users).to(
            block.dtype
        )

    def total(self, value: Tensor) -> Tensor:
        return self.team.total(value)

    def metrics(self, found: dict[str, Tensor]) -> dict[str, Tensor]:
        # every user counts the same; public test data are the same everywhere
        found["loss"] = self.team.total(found["loss"] * (self.task.users / self.whole.users))
        return found

    def everybodys(self, blocks: Blocks) -> Blocks:
        order = torch.from_numpy(np.argsort(np.concatenate(self.members)))
        gathered = [
            self.team.gathered(block, [len(users) for users in self.members]) for block in blocks
        ]
        return [torch.cat(every)[order] for every in gathered] if self.is_first else []

    def resumed(self, find: Callable[[], Resumed | None], like: Blocks) -> Resumed | None:
        """The first process has the run, and deals it out."""
        found, problem = None, None
        try:
            found = find()
        except InputError as refused:
            problem = refused
        # 0: nothing to resume; 1: a run, 2: with its velocity; 3: one that cannot be resumed
        word = 3 if problem else 0 if found is None else 2 if found.velocity else 1
        word = int(self.team.told(torch.tensor(word)))
        if word == 3:
            raise problem or InputError("the first process cannot resume its run")
        if not word:
            return None
        if found is None or not self.is_first:
            found = Resumed(0, {}, like, like)
        start, history = (
            int(self.team.told(torch.tensor(found.start))),
            self.team.said(found.history),
        )
        return Resumed(
            start,
            history,
            self._dealt(found.models),
            self._dealt(found.velocity) if word == 2 else [],
        )

    def _dealt(self, blocks: Blocks) -> Blocks:
        """Everybody's numbers at the first process -> those of the users of each."""
        found = []
        for block in blocks:
            own = block.new_empty((len(self.part.users), *block.shape[1:]))
            rows = (
                [block[torch.from_numpy(users)] for users in self.members] if self.is_first else []
            )
            found.append(self.team.dealt(own, rows))
        return found

    def asked(self, moments: dict[int, Moment], run: Callable[[int], Run]) -> dict[int, StopReason]:
        """The first process asks its callbacks.

        When one wants a run, the others give their models; then they hear the end.
        """
        if not self.asks:
            return {}
        if self.is_first:
            return self._asked_here(moments, run)
        word = torch.zeros(2, dtype=torch.int64)
        while (said := int(self.team.told(word)[0])) == _GIVE:
            run(int(word[1]))
        if said == _FAILED:
            raise DecorError("the first process has failed in a callback")
        ended = self.team.told(torch.zeros(self.runs, dtype=torch.int64))
        return {
            k: StopReason(f"stopped after step {moments[k].step}", "unfinished")
            for k in torch.nonzero(ended).flatten().tolist()
        }

    def _asked_here(
        self, moments: dict[int, Moment], run: Callable[[int], Run]
    ) -> dict[int, StopReason]:
        def gathered(k: int) -> Run:
            if not asking:
                raise InputError("a run can be asked for while its callback is called, not later")
            self.team.told(torch.tensor([_GIVE, k]))
            return run(k)

        asking = True
        try:
            reasons = stopped(
                {k: replace(moment, run_now=partial(gathered, k)) for k, moment in moments.items()},
                self.callbacks,
            )
        except BaseException:
            self.team.told(torch.tensor([_FAILED, 0]))
            raise
        finally:
            asking = False
        self.team.told(torch.zeros(2, dtype=torch.int64))
        self.team.told(torch.tensor([int(k in reasons) for k in range(self.runs)]))
        return reasons
