"""Gossip between cards: as `decor.distributed.border_exchange`, with the kernels of one card."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from decor.arrays import Array
from decor.graph.gossip import Gossip
from decor.learning.gradients.clip import Blocks
from decor.privacy.plan import NoisePlan
from decor.training.cuda.channel import OnCard

from .border_exchange import Part
from .communicator import Team


class OnCards(OnCard):
    """The users of a part on this process's card; in every round models at the borders come from
    other cards.
    """

    def __init__(
        self,
        plans: Sequence[NoisePlan],
        seeds: Sequence[int],
        dtype: torch.dtype,
        device: torch.device,
        part: Part,
        team: Team,
    ) -> None:
        super().__init__(plans, seeds, dtype, device, part.users)
        self.part, self.team = part, team
        self.weights = [
            self._placed(part.W[0]),
            self._placed(part.W[1]),
            self._placed(part.W[2]).to(dtype),
        ]
        self.inner, self.outer = self._placed(part.inner), self._placed(part.outer)
        self.sent = {rank: users.to(device) for rank, users in part.sent.items()}
        self.device = device

    def mix(self, blocks: Blocks, gossip: Gossip, threads: int = 1) -> Blocks:
        if self.averages:
            return super().mix(blocks, gossip)
        for block in blocks:
            flat = self._flat(block)
            rounds = self._rounds(flat, gossip)
            # room for the guests after the users
            now, before = (
                flat.new_empty((len(flat) + len(self.part.guests), *flat.shape[1:]))
                for _ in range(2)
            )
            now[: len(flat)].copy_(flat)
            for k in range(len(rounds)):
                out = flat if k == len(rounds) - 1 else before
                received = [(r, now[len(flat) :][which]) for r, which in self.part.received.items()]
                under_way = self.team.exchanged(
                    [(r, now[users]) for r, users in self.sent.items()], received
                )
                self._round(now, before, out, rounds[k], k > 0, self.inner)
                for work in under_way:
                    work.wait()
                self._round(now, before, out, rounds[k], k > 0, self.outer)
                now, before = before, now
        return blocks

    def noise_and_mix(
        self, blocks: Blocks, alpha: Tensor, step: Any, gossip: Gossip, threads: int = 1
    ) -> Blocks:
        self.noise(blocks, alpha, step)
        return self.mix(blocks, gossip)

    def _average(self, numbers: Tensor) -> Tensor:
        return (self.team.total(numbers.sum(0, dtype=torch.float64)) / self.topology.users).to(
            numbers.dtype
        )

    def _placed(self, numbers: Array) -> Tensor:
        return torch.as_tensor(numbers, device=self.seeds.device)
