"""After the messages: rounds of gossip on everybody's numbers, as a matrix, a sparse matrix or an
average.
"""

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

DENSE = 64
"""Users up to which matrices are dense: about where a dense product costs what a sparse one and its
Gaussians do.
"""


class Mixer(Protocol):
    def mix(self, blocks: Blocks, gossip: Gossip, threads: int = 1) -> Blocks: ...


def mixer(topology: Topology, central: bool, dtype: torch.dtype) -> Mixer:
    if central or is_complete(topology):
        return Average()
    return _Matrix(topology, dtype) if topology.users <= DENSE else _Rounds(topology)


def is_complete(topology: Topology) -> bool:
    return topology.edge_count == topology.users * (topology.users - 1) // 2 and topology.users > 1


class Average:
    """A server, or a complete graph, in any number of rounds."""

    def mix(self, blocks: Blocks, gossip: Gossip, threads: int = 1) -> Blocks:
        if gossip.rounds:
            for block in blocks:
                block.copy_(block.mean(0, keepdim=True).expand_as(block))
        return blocks


class _Matrix:
    """All rounds as one dense matrix."""

    def __init__(self, topology: Topology, dtype: torch.dtype) -> None:
        self.topology, self.dtype = topology, dtype
        self.matrices: dict[Gossip, Tensor] = {}
        self.spare: Blocks = []

    def mix(self, blocks: Blocks, gossip: Gossip, threads: int = 1) -> Blocks:
        if not gossip.rounds:
            return blocks
        P = self.matrices.get(gossip)
        if P is None:
            P = self.matrices[gossip] = torch.from_numpy(gossip.matrix(self.topology)).to(
                self.dtype
            )
        if not self.spare:
            self.spare = [torch.empty_like(block) for block in blocks]
        n = len(P)
        for block, other in zip(blocks, self.spare, strict=True):
            torch.mm(P, block.view(n, -1), out=other.view(n, -1))
        blocks, self.spare = self.spare, blocks
        return blocks


class _Rounds:
    """Round by round on the sparse matrix, a few columns at a time and in place."""

    def __init__(self, topology: Topology) -> None:
        W = topology.mixing
        self.W = (W.indptr.astype(np.int64), W.indices.astype(np.int64), W.data.astype(np.float64))
        self.topology = topology

    def mix(self, blocks: Blocks, gossip: Gossip, threads: int = 1) -> Blocks:
        users = self.topology.users
        if gossip.rounds:
            steps, wide = np.array(gossip.steps(self.topology)), sparse_kernels.width(users)
            for block in blocks:
                flat = block.view(users, -1).numpy()
                mix = partial(sparse_kernels.gossip, flat, *self.W, steps, wide)
                shared(threads, flat.shape[1], mix)
        return blocks


def shared(threads: int, columns: int, work: Callable[[int, int], None]) -> None:
    """Columns dealt out in whole groups, each thread without Python's lock."""
    groups = -(-columns // GROUP)
    if threads == 1 or groups < 8 * threads:
        work(0, columns)
        return
    ends = [min(columns, groups * k // threads * GROUP) for k in range(threads + 1)]
    list(pool(threads).map(work, ends[:-1], ends[1:]))


def pool(threads: int) -> ThreadPoolExecutor:
    """Kept for the life of the process: starting threads would cost as much as a step's noise.

    A fork has none of them.
    """
    return _pool(threads, os.getpid())


@cache
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="decor")
