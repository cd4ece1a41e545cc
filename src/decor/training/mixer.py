"""Mixer: gossip rounds on all users' parameters, as a matrix, a sparse matrix or an average."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from decor.graph.gossip import Gossip
from decor.graph.topology import Topology
from decor.learning.gradients.clip import Blocks
from decor.noise.gaussians import GROUP

from . import sparse_kernels

DENSE_LIMIT = 64
"""Users up to which matrices are dense; there dense and sparse products cost about the same."""


class Mixer(Protocol):
    def mix(self, blocks: Blocks, gossip: Gossip, threads: int = 1) -> Blocks:
        """The blocks [users, ...] after the rounds; the given ones may be overwritten."""
        ...


def choose_mixer(topology: Topology, central: bool, dtype: torch.dtype) -> Mixer:
    """The cheapest mixer for a graph; `central`: a server averages."""
    # on a complete graph Metropolis weights are 1 / n: one round is the average
    if central or is_complete(topology):
        return AverageMixer()
    return _DenseMixer(topology, dtype) if topology.users <= DENSE_LIMIT else _SparseMixer(topology)


def is_complete(topology: Topology) -> bool:
    """Whether one round is the average: all users are neighbours, with Metropolis weights."""
    if topology.own_weights is not None:
        return False
    return topology.edge_count == topology.users * (topology.users - 1) // 2 and topology.users > 1


class AverageMixer:
    """A server, or a complete graph, where further rounds change nothing."""

    def mix(self, blocks: Blocks, gossip: Gossip, threads: int = 1) -> Blocks:
        if gossip.rounds:
            for block in blocks:
                block.copy_(block.mean(0, keepdim=True).expand_as(block))
        return blocks


class _DenseMixer:
    """All rounds as one dense matrix."""

    def __init__(self, topology: Topology, dtype: torch.dtype) -> None:
        self.topology, self.dtype = topology, dtype
        self.matrices: dict[Gossip, Tensor] = {}
        self.spare: Blocks = []

    def mix(self, blocks: Blocks, gossip: Gossip, threads: int = 1) -> Blocks:
        if not gossip.rounds:
            return blocks
        if gossip not in self.matrices:
            matrix = torch.from_numpy(gossip.matrix(self.topology))
            # the polynomial is computed in float64: large coefficients would cancel in float32
            self.matrices[gossip] = matrix.to(self.dtype)
        P = self.matrices[gossip]
        if not self.spare:
            self.spare = [torch.empty_like(block) for block in blocks]
        n = len(P)
        for block, other in zip(blocks, self.spare, strict=True):
            torch.mm(P, block.view(n, -1), out=other.view(n, -1))
        # the old models are the workspace of the next call
        blocks, self.spare = self.spare, blocks
        return blocks


class _SparseMixer:
    """Round by round on the sparse matrix, a few columns at a time and in place."""

    def __init__(self, topology: Topology) -> None:
        W = topology.mixing
        # int64 for numba, whatever index type SciPy has chosen
        self.W = (W.indptr.astype(np.int64), W.indices.astype(np.int64), W.data.astype(np.float64))
        self.topology = topology

    def mix(self, blocks: Blocks, gossip: Gossip, threads: int = 1) -> Blocks:
        users = self.topology.users
        if gossip.rounds:
            steps, wide = np.array(gossip.steps(self.topology)), sparse_kernels.width(users)
            for block in blocks:
                flat = block.view(users, -1).numpy()
                mix = partial(sparse_kernels.gossip, flat, *self.W, steps, wide)
                run_on_columns(threads, flat.shape[1], mix)
        return blocks


def run_on_columns(threads: int, columns: int, work: Callable[[int, int], None]) -> None:
    """Calls work(left, right) on parts of the columns, one per thread, each without the GIL."""
    # parts are whole groups of Gaussians, so that the noise does not depend on the threads
    groups = -(-columns // GROUP)
    if threads == 1 or groups < 8 * threads:
        work(0, columns)
        return
    ends = [min(columns, groups * k // threads * GROUP) for k in range(threads + 1)]
    list(pool(threads).map(work, ends[:-1], ends[1:]))


def pool(threads: int) -> ThreadPoolExecutor:
    """Kept while the process lives: starting threads would cost as much as a step's noise."""
    # by process id: a forked child has none of its parent's threads, and would wait for ever
    return _pool(threads, os.getpid())


@cache
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="decor")
