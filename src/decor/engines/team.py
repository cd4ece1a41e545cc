"""Team: the processes of one run, and what they say to each other through torch.distributed."""

from __future__ import annotations

import atexit
import json
import os
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from decor.errors import InputError


@dataclass(frozen=True)
class Team:
    """`rank` of `size` processes. A team of one says nothing to anybody."""

    rank: int
    size: int

    @classmethod
    def of_environment(cls, device: str) -> Team:
        """As torchrun (or Slurm's environment, or who has called init_process_group) says; alone if nobody does."""
        if not dist.is_available():
            raise InputError("this torch was built without torch.distributed; install another, or use Vectorised()")
        if not dist.is_initialized():
            if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
                return cls(0, 1)
            store, rank, size = next(iter(dist.rendezvous("env://")))  # type: ignore[attr-defined]
            # torchrun keeps its store when it starts all again: addresses of the dead must not be taken for the living
            attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
            store = dist.PrefixStore(f"attempt-{attempt}", store)  # type: ignore[attr-defined]
            # words and sums travel between processors, models at the borders between cards where each process has its own
            own_card = device.startswith("cuda") and int(os.environ.get("LOCAL_WORLD_SIZE", "1")) <= torch.cuda.device_count()
            backend = "cpu:gloo,cuda:nccl" if own_card else "gloo"
            dist.init_process_group(backend, store=store, rank=rank, world_size=size)
            atexit.register(_leave)
        return cls(dist.get_rank(), dist.get_world_size())

    def total(self, value: Tensor) -> Tensor:
        """The sum over all processes, in double precision."""
        if self.size == 1:
            return value
        here = value.double().cpu()
        dist.all_reduce(here)
        return here.to(value.device)

    def told(self, value: Tensor) -> Tensor:
        """What the first process has."""
        if self.size > 1:
            dist.broadcast(value, 0)
        return value

    def said(self, value: Any) -> Any:
        """The same for what JSON holds."""
        if self.size == 1:
            return value
        words = torch.tensor(list(json.dumps(value).encode()), dtype=torch.uint8)
        length = int(self.told(torch.tensor(len(words))))
        return json.loads(bytes(self.told(words if self.rank == 0 else words.new_empty(length)).tolist()))

    def dealt(self, own: Tensor, rows: list[Tensor]) -> Tensor:
        """Every process's rows, from the first, which has them all in order of rank."""
        if self.rank:
            here = torch.empty(own.shape, dtype=own.dtype)
            dist.recv(here, 0)
            return here.to(own.device)
        for rank in range(1, self.size):
            dist.send(rows[rank].cpu().contiguous(), rank)
        return rows[0]

    def gathered(self, rows: Tensor, counts: list[int]) -> list[Tensor]:
        """Everybody's rows, in order of rank, at the first process; nothing at the others. All in the processors' memory."""
        if self.rank:
            dist.send(rows.contiguous(), 0)
            return []
        found = [rows, *(rows.new_empty((count, *rows.shape[1:])) for count in counts[1:])]
        for rank in range(1, self.size):
            dist.recv(found[rank], rank)
        return found

    def exchanged(self, sent: list[tuple[int, Tensor]], received: list[tuple[int, Tensor]]) -> list[Any]:
        """Starts to send and to receive [(rank, numbers)]; whoever waits for all that it gives back has what it was sent."""
        if any(numbers.is_cuda for _, numbers in received) and "nccl" not in dist.get_backend_config():
            return self._through_memory(sent, received)
        operations = [dist.P2POp(dist.isend, numbers, rank) for rank, numbers in sent]
        operations += [dist.P2POp(dist.irecv, numbers, rank) for rank, numbers in received]
        return list(dist.batch_isend_irecv(operations)) if operations else []

    def _through_memory(self, sent: list[tuple[int, Tensor]], received: list[tuple[int, Tensor]]) -> list[Any]:
        """For processes that share a card, between which nothing travels directly."""
        come = [(rank, torch.empty(numbers.shape, dtype=numbers.dtype)) for rank, numbers in received]
        under_way = self.exchanged([(rank, numbers.cpu()) for rank, numbers in sent], come)
        return [_Landing(under_way, [(to, here) for (_, to), (_, here) in zip(received, come, strict=True)])]


@dataclass(frozen=True)
class _Landing:
    under_way: list[Any]
    pairs: list[tuple[Tensor, Tensor]]

    def wait(self) -> None:
        for work in self.under_way:
            work.wait()
        for to, here in self.pairs:
            to.copy_(here)


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
