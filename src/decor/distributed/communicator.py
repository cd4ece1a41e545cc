"""Team: the processes of one run, and what they say to each other through torch.distributed."""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import time
import uuid
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from decor.errors import DecorError, InputError

from .world import TORCHRUN, World

_PROCESS = uuid.uuid4().hex
"""Names this process, and not the one that torchrun starts in its place."""
_MEETING_SECONDS = 300.0
"""For which processes wait for each other at the start."""


@dataclass(frozen=True)
class Team:
    """`rank` of `size` processes. A team of one says nothing to anybody."""

    rank: int
    size: int

    @classmethod
    def of_environment(cls, device: str) -> Team:
        """As torchrun (or Slurm's environment, or who has called init_process_group) says; alone if
        nobody does.

        From here on `World.joined()` knows this process's rank.
        """
        if not dist.is_available():
            raise InputError(
                "this torch was built without torch.distributed; install another, or "
                "use Vectorised()"
            )
        if not dist.is_initialized():
            if World.announced() is None:
                _refuse_half()
                return cls(0, 1)
            store, rank, size = next(iter(dist.rendezvous("env://")))  # type: ignore[attr-defined]
            # torchrun keeps its store when it starts all again: addresses of the dead must not be
            # taken for the living
            store = dist.PrefixStore(_met(store, rank, size), store)  # type: ignore[attr-defined]
            # words and sums travel between processors, models at the borders between cards where
            # each process has its own
            own_card = (
                device.startswith("cuda")
                and int(os.environ.get("LOCAL_WORLD_SIZE", "1")) <= torch.cuda.device_count()
            )
            backend = "cpu:gloo,cuda:nccl" if own_card else "gloo"
            dist.init_process_group(backend, store=store, rank=rank, world_size=size)
            atexit.register(_leave)
        return cls(dist.get_rank(), dist.get_world_size())

    def is_restarted(self) -> bool:
        """Whether other processes were here before, and have called this too: torchrun's store
        remembers.

        TORCHELASTIC_RESTART_COUNT counts failures only: torchrun starts all again, and leaves it 0,
        when a machine joins.
        """
        if self.rank or not dist.is_initialized():
            return False
        store = dist.distributed_c10d._get_default_store()
        while isinstance(store, dist.PrefixStore):  # type: ignore[attr-defined]
            store = store.underlying_store
        return bool(store.compare_set("decor private run", "", _PROCESS).decode() != _PROCESS)

    def total(self, value: Tensor) -> Tensor:
        """The sum over all processes, in double precision."""
        if self.size == 1:
            return value
        here = value.double().cpu()
        dist.all_reduce(here)
        return here.to(value.device)

    def agree(self, facts: dict[str, Any]) -> None:
        """Refuses, everywhere alike, what is not the same in all processes, by its name."""
        if self.size == 1:
            return
        own = [
            list(hashlib.sha256(json.dumps(value, default=str).encode()).digest())
            for value in facts.values()
        ]
        first = self.told(torch.tensor(own, dtype=torch.uint8))
        differs = self.total((first != torch.tensor(own, dtype=torch.uint8)).any(1))
        names = [name for name, count in zip(facts, differs.tolist(), strict=True) if count]
        if names:
            raise InputError(
                f"the processes of this run do not have the same {', '.join(names)}; every one "
                "must run the same program, with "
                "the same data and the same versions"
            )

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
        return json.loads(
            bytes(self.told(words if self.rank == 0 else words.new_empty(length)).tolist())
        )

    def everyones(self, value: bytes) -> list[bytes]:
        """Every process's bytes, as many from each, in order of rank."""
        own = torch.tensor(list(value), dtype=torch.uint8)
        if self.size == 1:
            return [value]
        found = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(found, own)
        return [bytes(each.tolist()) for each in found]

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
        """Everybody's rows, in order of rank, at the first process; nothing at the others.

        All in the processors' memory.
        """
        if self.rank:
            dist.send(rows.contiguous(), 0)
            return []
        found = [rows, *(rows.new_empty((count, *rows.shape[1:])) for count in counts[1:])]
        for rank in range(1, self.size):
            dist.recv(found[rank], rank)
        return found

    def exchanged(
        self, sent: list[tuple[int, Tensor]], received: list[tuple[int, Tensor]]
    ) -> list[Any]:
        """Starts to send and to receive [(rank, numbers)]; whoever waits for all that it gives back
        has what it was sent.
        """
        if (
            any(numbers.is_cuda for _, numbers in received)
            and "nccl" not in dist.get_backend_config()
        ):
            return self._through_memory(sent, received)
        operations = [dist.P2POp(dist.isend, numbers, rank) for rank, numbers in sent]
        operations += [dist.P2POp(dist.irecv, numbers, rank) for rank, numbers in received]
        return list(dist.batch_isend_irecv(operations)) if operations else []

    def _through_memory(
        self, sent: list[tuple[int, Tensor]], received: list[tuple[int, Tensor]]
    ) -> list[Any]:
        """For processes that share a card, between which nothing travels directly."""
        come = [
            (rank, torch.empty(numbers.shape, dtype=numbers.dtype)) for rank, numbers in received
        ]
        under_way = self.exchanged([(rank, numbers.cpu()) for rank, numbers in sent], come)
        return [
            _Landing(
                under_way, [(to, here) for (_, to), (_, here) in zip(received, come, strict=True)]
            )
        ]


def _refuse_half() -> None:
    """Several processes that cannot find each other would each train alone, in the name of all."""
    missing = [name for name in TORCHRUN if name not in os.environ]
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        raise InputError(
            f"RANK and WORLD_SIZE are set, and {' and '.join(missing)} not: processes cannot find "
            "each other; start them by "
            "torchrun, or unset both"
        )


def _met(store: Any, rank: int, size: int) -> str:
    """A fresh word that all who are alive now know: the first answers everybody's fresh word with
    its own, and waits for all.
    """
    own, until = uuid.uuid4().hex, time.monotonic() + _MEETING_SECONDS
    if rank:
        store.set(f"hello-{rank}", own)
    while time.monotonic() < until:
        if rank:
            word, *heard = store.get("answer").decode().split() if store.check(["answer"]) else [""]
            if own in heard:
                store.set(f"met-{word}-{rank}", "")
                return str(word)
        else:
            known = [f"hello-{r}" for r in range(1, size) if store.check([f"hello-{r}"])]
            store.set("answer", " ".join([own, *(store.get(name).decode() for name in known)]))
            if all(store.check([f"met-{own}-{r}"]) for r in range(1, size)):
                return own
        time.sleep(0.02)
    raise DecorError(
        f"not all of the {size} processes came within {_MEETING_SECONDS:g} s; look "
        "for one that has failed"
    )


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
