"""Gossip between GPUs: as `border_exchange`, with the kernels of one GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from decor.array_types import Array
from decor.graph.gossip import Gossip
from decor.learning.gradients.clip import Blocks
from decor.privacy.plan import NoisePlan
from decor.training.cuda.channel import GpuChannel

from .border_exchange import Subgraph
from .communicator import Communicator


class MultiGpuChannel(GpuChannel):
    """The users of one rank on its GPU; in every round, border models come from other GPUs."""

    def __init__(
        self,
        plans: Sequence[NoisePlan],
        seeds: Sequence[int],
        dtype: torch.dtype,
        device: torch.device,
        subgraph: Subgraph,
        comm: Communicator,
    ) -> None:
        super().__init__(plans, seeds, dtype, device, subgraph.users)
        self.subgraph, self.comm = subgraph, comm
        start, columns, weights = (self._to_device(part) for part in subgraph.W)
        self.weights = [start, columns, weights.to(dtype)]
        self.interior = self._to_device(subgraph.interior)
        self.border = self._to_device(subgraph.border)
        self.send_rows = {rank: rows.to(device) for rank, rows in subgraph.send_rows.items()}
        self.device = device

    def mix(self, blocks: Blocks, gossip: Gossip, threads: int = 1) -> Blocks:
        if self.averages:
            return super().mix(blocks, gossip)
        for block in blocks:
            flat = self._flat(block)
            users, rounds = len(flat), self._rounds(flat, gossip)
            # the ghosts' models follow the users', as in the columns of the mixing matrix
            shape = (users + len(self.subgraph.ghosts), *flat.shape[1:])
            now, before = (flat.new_empty(shape) for _ in range(2))
            now[:users].copy_(flat)
            for k in range(len(rounds)):
                out = flat if k == len(rounds) - 1 else before
                slices = self.subgraph.ghost_slices.items()
                receives = [(rank, now[users:][ghosts]) for rank, ghosts in slices]
                sends = [(rank, now[rows]) for rank, rows in self.send_rows.items()]
                pending = self.comm.start_exchange(sends, receives)
                self._round(now, before, out, rounds[k], k > 0, self.interior)
                # NCCL: waits on the GPU's stream, the CPU goes on
                for work in pending:
                    work.wait()
                self._round(now, before, out, rounds[k], k > 0, self.border)
                now, before = before, now
        return blocks

    def noise_and_mix(
        self, blocks: Blocks, alpha: Tensor, step: Any, gossip: Gossip, threads: int = 1
    ) -> Blocks:
        # not in one pass over strips of columns, as on one GPU: a round sends whole models
        self.noise(blocks, alpha, step)
        return self.mix(blocks, gossip)

    def _average(self, values: Tensor) -> Tensor:
        return self.comm.mean_over_users(values, self.topology.users)

    def _to_device(self, values: Array) -> Tensor:
        return torch.as_tensor(values, device=self.seeds.device)
