"""Communicator: the ranks of one run and their collective operations, over torch.distributed."""

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
"""Identifies this process; the one that torchrun starts in its place has another."""
_RENDEZVOUS_SECONDS = 300.0
"""How long ranks wait for each other at the start."""


@dataclass(frozen=True)
class Communicator:
    """This process's `rank` among `size` processes. With one process nothing is sent."""

    rank: int
    size: int

    @classmethod
    def from_environment(cls, device: str) -> Communicator:
        """Joins the process group that torchrun's variables describe; size 1 if they are not set.

        A group that the caller has initialised is used as it is. From here on `World.current()`
        knows this process's rank.
        """
        if not dist.is_available():
            raise InputError(
                "this torch was built without torch.distributed; install another, or use "
                "Vectorised()"
            )
        if not dist.is_initialized():
            if World.from_environment() is None:
                _check_environment()
                return cls(0, 1)
            store, rank, size = next(iter(dist.rendezvous("env://")))  # type: ignore[attr-defined]
            # torchrun keeps its store over restarts: without the prefix a rank could read the
            # address of a process that has died
            nonce = _rendezvous_nonce(store, rank, size)
            store = dist.PrefixStore(nonce, store)  # type: ignore[attr-defined]
            # control messages and sums travel between CPUs (gloo); models at the borders travel
            # between GPUs (NCCL), which needs one GPU per process
            processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
            own_gpu = device.startswith("cuda") and processes <= torch.cuda.device_count()
            backend = "cpu:gloo,cuda:nccl" if own_gpu else "gloo"
            dist.init_process_group(backend, store=store, rank=rank, world_size=size)
            atexit.register(_leave)
        return cls(dist.get_rank(), dist.get_world_size())

    def is_restarted(self) -> bool:
        """Whether an earlier process of rank 0 has called this; torchrun's store remembers.

        TORCHELASTIC_RESTART_COUNT counts failures only: when a machine joins, torchrun restarts all
        processes and leaves it at 0.
        """
        if self.rank or not dist.is_initialized():
            return False
        store = dist.distributed_c10d._get_default_store()
        # the prefix is new at every start, so the mark goes into torchrun's own store below it
        while isinstance(store, dist.PrefixStore):  # type: ignore[attr-defined]
            store = store.underlying_store
        return bool(store.compare_set("decor private run", "", _PROCESS).decode() != _PROCESS)

    def all_reduce_sum(self, value: Tensor) -> Tensor:
        """The sum over all ranks, in double precision."""
        if self.size == 1:
            return value
        # double on the CPU: the sum hardly depends on the order, and gloo has every type
        total = value.double().cpu()
        dist.all_reduce(total)
        return total.to(value.device)

    def mean_over_users(self, block: Tensor, users: int) -> Tensor:
        """The mean over the `users` of all ranks; `block` is [users of this rank, ...]."""
        # summed in double precision, so that the mean hardly depends on the number of ranks
        total = self.all_reduce_sum(block.sum(0, dtype=torch.float64))
        return (total / users).to(block.dtype)

    def assert_equal(self, facts: dict[str, Any]) -> None:
        """Raises InputError on every rank if a value differs between ranks, and names it."""
        if self.size == 1:
            return
        hashes = [
            list(hashlib.sha256(json.dumps(value, default=str).encode()).digest())
            for value in facts.values()
        ]
        first = self.broadcast(torch.tensor(hashes, dtype=torch.uint8))
        differs = self.all_reduce_sum((first != torch.tensor(hashes, dtype=torch.uint8)).any(1))
        names = [name for name, count in zip(facts, differs.tolist(), strict=True) if count]
        if names:
            raise InputError(
                f"the processes of this run do not have the same {', '.join(names)}; run the same "
                "program in each, with the same data and the same versions"
            )

    def broadcast(self, value: Tensor) -> Tensor:
        """Rank 0's value; the other ranks' tensors, of the same shape, are overwritten."""
        if self.size > 1:
            dist.broadcast(value, 0)
        return value

    def broadcast_json(self, value: Any) -> Any:
        """Rank 0's value, of types that JSON holds."""
        if self.size == 1:
            return value
        text = torch.tensor(list(json.dumps(value).encode()), dtype=torch.uint8)
        # the receivers have to know the length first
        length = int(self.broadcast(torch.tensor(len(text))))
        text = self.broadcast(text if self.rank == 0 else text.new_empty(length))
        return json.loads(bytes(text.tolist()))

    def all_gather(self, value: bytes) -> list[bytes]:
        """All ranks' bytes, in order of rank; each rank gives the same number of bytes."""
        if self.size == 1:
            return [value]
        own = torch.tensor(list(value), dtype=torch.uint8)
        values = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(values, own)
        return [bytes(each.tolist()) for each in values]

    def scatter(self, own: Tensor, rows: list[Tensor]) -> Tensor:
        """This rank's rows, shaped like `own`; rank 0 has all `rows`, in order of rank."""
        if self.rank:
            received = torch.empty(own.shape, dtype=own.dtype)
            dist.recv(received, 0)
            return received.to(own.device)
        for rank in range(1, self.size):
            dist.send(rows[rank].cpu().contiguous(), rank)
        return rows[0]

    def gather(self, rows: Tensor, counts: list[int]) -> list[Tensor]:
        """At rank 0 all ranks' rows, in order of rank; at the others nothing. CPU tensors only."""
        if self.rank:
            dist.send(rows.contiguous(), 0)
            return []
        gathered = [rows, *(rows.new_empty((count, *rows.shape[1:])) for count in counts[1:])]
        for rank in range(1, self.size):
            dist.recv(gathered[rank], rank)
        return gathered

    def start_exchange(
        self, sends: list[tuple[int, Tensor]], receives: list[tuple[int, Tensor]]
    ) -> list[Any]:
        """Starts to send and receive [(rank, tensor)]; `wait()` on all results completes it."""
        on_gpu = any(tensor.is_cuda for _, tensor in receives)
        # gloo sends CPU tensors only
        if on_gpu and "nccl" not in dist.get_backend_config():
            return self._exchange_through_cpu(sends, receives)
        operations = [dist.P2POp(dist.isend, tensor, rank) for rank, tensor in sends]
        operations += [dist.P2POp(dist.irecv, tensor, rank) for rank, tensor in receives]
        return list(dist.batch_isend_irecv(operations)) if operations else []

    def _exchange_through_cpu(
        self, sends: list[tuple[int, Tensor]], receives: list[tuple[int, Tensor]]
    ) -> list[Any]:
        """For processes that share a GPU: NCCL needs one GPU per process, gloo CPU tensors."""
        arriving = [(rank, torch.empty(to.shape, dtype=to.dtype)) for rank, to in receives]
        pending = self.start_exchange([(rank, tensor.cpu()) for rank, tensor in sends], arriving)
        copies = [(to, here) for (_, to), (_, here) in zip(receives, arriving, strict=True)]
        return [_CopyToGpu(pending, copies)]


@dataclass(frozen=True)
class _CopyToGpu:
    """Transfers between CPU tensors, to be followed by copies (GPU tensor, CPU tensor)."""

    pending: list[Any]
    copies: list[tuple[Tensor, Tensor]]

    def wait(self) -> None:
        for work in self.pending:
            work.wait()
        for to, here in self.copies:
            to.copy_(here)


def _check_environment() -> None:
    """Refuses RANK and WORLD_SIZE without an address: each process would train all users alone."""
    missing = [name for name in TORCHRUN if name not in os.environ]
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        raise InputError(
            f"RANK and WORLD_SIZE are set, and {' and '.join(missing)} not: processes cannot find "
            "each other; start them by torchrun, or unset both"
        )


def _rendezvous_nonce(store: Any, rank: int, size: int) -> str:
    """A nonce that only live ranks share, so that none reads the address of a dead process.

    Each rank announces a fresh nonce of its own. Rank 0 answers with its nonce and all that it has
    read, and returns when every rank has confirmed that answer.
    """
    own, until = uuid.uuid4().hex, time.monotonic() + _RENDEZVOUS_SECONDS
    if rank:
        store.set(f"hello-{rank}", own)
    while time.monotonic() < until:
        if rank:
            answer = store.get("answer").decode() if store.check(["answer"]) else ""
            nonce, *known = answer.split() or [""]
            if own in known:  # an answer without it was meant for the process before this one
                store.set(f"met-{nonce}-{rank}", "")
                return str(nonce)
        else:
            names = [f"hello-{r}" for r in range(1, size) if store.check([f"hello-{r}"])]
            store.set("answer", " ".join([own, *(store.get(name).decode() for name in names)]))
            if all(store.check([f"met-{own}-{r}"]) for r in range(1, size)):
                return own
        time.sleep(0.02)
    raise DecorError(
        f"not all of the {size} processes came within {_RENDEZVOUS_SECONDS:g} s; look for one that "
        "has failed"
    )


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
