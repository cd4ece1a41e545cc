"""RankShare: one rank's users of a run, and how they become all users."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from decor.errors import DecorError, InputError
from decor.graph.topology import Topology
from decor.learning.gradients.clip import Blocks
from decor.learning.task import Task
from decor.noise import root
from decor.noise.private_noise import (
    GridNoise,
    Handshake,
    RemoteEdge,
    Secret,
    own_noise,
    width_for,
)
from decor.privacy.plan import NoisePlan
from decor.results.run import Run
from decor.results.stop_reason import StopReason
from decor.training.channel import Channel, CompleteChannel, GridChannel, SparseChannel
from decor.training.engine import Callback, Moment
from decor.training.manifest import fingerprint
from decor.training.mixer import DENSE_LIMIT, is_complete
from decor.training.resume_state import ResumeState
from decor.training.share import call_callbacks, private_grid

from .border_exchange import BorderMixer, split_graph
from .communicator import Communicator

_DONE, _GATHER, _FAILED = 0, 1, 2
"""What rank 0 broadcasts while its callbacks run: all called, send the models of run k, failed."""
_FRESH, _WITHOUT_VELOCITY, _WITH_VELOCITY, _REFUSED = range(4)
"""What rank 0 broadcasts about the run to resume."""


class RankShare:
    """A share (see `decor.training.share`) with some of the users; rank 0 assembles runs."""

    name = "process-group"

    def __init__(
        self,
        comm: Communicator,
        full_task: Task,
        topology: Topology,
        runs: int,
        callbacks: Sequence[Callback],
        secret: Secret | None = None,
    ) -> None:
        self.comm, self.full_task, self.runs = comm, full_task, runs
        self.callbacks, self.secret = callbacks, secret
        self.subgraph, self.users_by_rank = split_graph(topology, comm)
        self.salt = 2**40 * comm.rank  # ranks draw different dropout masks from one seed
        self.waits_for_ranks, self.has_all_users = comm.size > 1, comm.size == 1
        self.users: list[int] = self.subgraph.users.tolist()
        self.is_first = comm.rank == 0
        # ranks must agree whether to wait for callbacks; only rank 0 may have any
        self.has_callbacks = bool(int(comm.broadcast(torch.tensor(int(bool(callbacks))))))

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint(self.full_task)

    @cached_property
    def task(self) -> Task:
        shards = [self.full_task.shards[int(user)] for user in self.subgraph.users]
        return replace(self.full_task, shards=shards)

    def channel(
        self,
        plans: Sequence[NoisePlan],
        seeds: Sequence[int],
        dtype: torch.dtype,
        device: torch.device,
    ) -> Channel:
        topology, central = plans[0].topology, plans[0].adversary.average_only
        if device.type == "cuda":
            from .cuda_border_exchange import MultiGpuChannel  # Triton needs a GPU

            return MultiGpuChannel(plans, seeds, dtype, device, self.subgraph, self.comm)
        complete, users = is_complete(topology), self.subgraph.users
        mixer = BorderMixer(topology, self.subgraph, self.comm, central or complete)
        if self.secret is not None:
            return GridChannel(mixer, self._private_noise(plans[0], self.secret))
        if complete and not central and topology.users > DENSE_LIMIT:
            return CompleteChannel(mixer, plans, seeds, users)

        def own_rows(count: int, *rest: Any) -> root.SparseRoot:
            return root.by_edges(count, *rest).rows_for(users, count)

        return SparseChannel(mixer, plans, seeds, own_rows, len(users))

    def _private_noise(self, plan: NoisePlan, secret: Secret) -> GridNoise:
        """This rank's noise: inner edges from its own secret, others from keys agreed with a rank.

        Guarantee: ranks exchange public keys only; each edge's key is bound to the edge's users.
        """
        topology, grid, rank = plan.topology, private_grid(plan, self.full_task), self.comm.rank
        home = np.empty(topology.users, np.int64)
        for number, users in enumerate(self.users_by_rank):
            home[users] = number
        row = {int(user): k for k, user in enumerate(self.subgraph.users)}
        # X25519: a listener sees public keys, and learns no edge's noise
        handshake = Handshake(secret)
        public_keys = self.comm.all_gather(handshake.public)
        inside, multiples, crossing = [], [], []
        for (low, high), multiple in zip(topology.edges.tolist(), grid.multiples, strict=True):
            if home[low] == home[high] == rank:
                inside.append((row[low], row[high]))
                multiples.append(multiple)
            elif rank in (home[low], home[high]):
                # the lower end adds the edge's noise, the higher one subtracts it
                is_low = home[low] == rank
                user, sign, other = (low, 1, home[high]) if is_low else (high, -1, home[low])
                key = handshake.agree(public_keys[other], struct.pack("<2Q", low, high))
                crossing.append(RemoteEdge(row[user], sign * multiple, key))
        crossing += own_noise(grid.own_multiples, self.subgraph.users, secret)
        width = width_for(topology.users, topology.edge_count)
        return GridNoise(grid, secret, len(row), np.array(inside), multiples, width, crossing)

    def mean_over_users(self, block: Tensor) -> Tensor:
        return self.comm.mean_over_users(block, self.full_task.users)

    def sum_over_ranks(self, value: Tensor) -> Tensor:
        return self.comm.all_reduce_sum(value)

    def combine_metrics(self, metrics: dict[str, Tensor]) -> dict[str, Tensor]:
        # every user has the same weight; test data are the same on all ranks
        weight = self.task.users / self.full_task.users
        metrics["loss"] = self.comm.all_reduce_sum(metrics["loss"] * weight)
        return metrics

    def gather_users(self, blocks: Blocks) -> Blocks:
        # from the order of ranks back to the order of users
        order = torch.from_numpy(np.argsort(np.concatenate(self.users_by_rank)))
        counts = [len(users) for users in self.users_by_rank]
        gathered = [self.comm.gather(block, counts) for block in blocks]
        return [torch.cat(rows)[order] for rows in gathered] if self.is_first else []

    def resume_state(
        self, load: Callable[[], ResumeState | None], like: Blocks
    ) -> ResumeState | None:
        """Rank 0 loads the run and scatters it."""
        state, problem = None, None
        try:
            state = load()
        except InputError as refused:
            problem = refused  # raised below, after the other ranks know
        if problem is not None:
            status = _REFUSED
        elif state is None:
            status = _FRESH
        else:
            status = _WITH_VELOCITY if state.velocity else _WITHOUT_VELOCITY
        status = int(self.comm.broadcast(torch.tensor(status)))
        if status == _REFUSED:
            raise problem or InputError("the first process cannot resume its run")
        if status == _FRESH:
            return None
        if state is None or not self.is_first:
            # only the shapes count here: values come from rank 0
            state = ResumeState(0, {}, like, like)
        start = int(self.comm.broadcast(torch.tensor(state.start)))
        history = self.comm.broadcast_json(state.history)
        models = self._scatter(state.models)
        velocity = self._scatter(state.velocity) if status == _WITH_VELOCITY else []
        return ResumeState(start, history, models, velocity)

    def _scatter(self, blocks: Blocks) -> Blocks:
        """Rank 0's arrays of all users -> each rank's rows."""
        scattered = []
        for block in blocks:
            own = block.new_empty((len(self.subgraph.users), *block.shape[1:]))
            # other ranks' blocks have their own rows only, and no others to index
            by_rank = [torch.from_numpy(users) for users in self.users_by_rank]
            rows = [block[users] for users in by_rank] if self.is_first else []
            scattered.append(self.comm.scatter(own, rows))
        return scattered

    def run_callbacks(
        self, moments: dict[int, Moment], run: Callable[[int], Run]
    ) -> dict[int, StopReason]:
        """Rank 0 calls the callbacks; if one asks for a run, the other ranks send their models."""
        if not self.has_callbacks:
            return {}
        if self.is_first:
            return self._run_callbacks_here(moments, run)
        message = torch.zeros(2, dtype=torch.int64)
        while (command := int(self.comm.broadcast(message)[0])) == _GATHER:
            run(int(message[1]))
        # rank 0 is leaving: to wait for it would never end
        if command == _FAILED:
            raise DecorError("the first process has failed in a callback")
        is_stopped = self.comm.broadcast(torch.zeros(self.runs, dtype=torch.int64))
        return {
            k: StopReason(f"stopped after step {moments[k].step}", "unfinished")
            for k in torch.nonzero(is_stopped).flatten().tolist()
        }

    def _run_callbacks_here(
        self, moments: dict[int, Moment], run: Callable[[int], Run]
    ) -> dict[int, StopReason]:
        def gather_run(k: int) -> Run:
            # later the other ranks no longer listen, and gathering would hang
            if not calling:
                raise InputError("a run can be asked for while its callback is called, not later")
            self.comm.broadcast(torch.tensor([_GATHER, k]))
            return run(k)

        calling = True
        gathering = {k: replace(m, run_now=partial(gather_run, k)) for k, m in moments.items()}
        try:
            reasons = call_callbacks(gathering, self.callbacks)
        except BaseException:
            self.comm.broadcast(torch.tensor([_FAILED, 0]))
            raise
        finally:
            calling = False
        self.comm.broadcast(torch.tensor([_DONE, 0]))
        self.comm.broadcast(torch.tensor([int(k in reasons) for k in range(self.runs)]))
        return reasons
