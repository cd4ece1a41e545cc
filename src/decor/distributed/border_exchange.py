"""Gossip between ranks: in every round, models of users with neighbours on another rank travel.

Users whose neighbours are all on this rank are averaged while those models are in transit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from decor.array_types import Array
from decor.graph.gossip import Gossip
from decor.graph.topology import Topology
from decor.learning.gradients.clip import Blocks
from decor.training import sparse_kernels

from .communicator import Communicator
from .partition import partition


@dataclass(frozen=True)
class Subgraph:
    """The users of one rank and their neighbours on other ranks (ghosts).

    Attributes:
        users: Numbers of the users on this rank.
        ghosts: Numbers of their neighbours on other ranks, ordered by rank.
        send_rows: For each other rank, the users (as rows here) whose models it needs.
        ghost_slices: For each other rank, the ghosts that come from it.
        W: The users' rows of the mixing matrix (CSR); columns are the users, then the ghosts.
        interior: Rows of users without a ghost among their neighbours.
        border: Rows of the other users.
    """

    users: Array
    ghosts: Array
    send_rows: dict[int, Tensor]
    ghost_slices: dict[int, slice]
    W: tuple[Array, Array, Array]
    interior: Array
    border: Array

    @classmethod
    def of_rank(cls, topology: Topology, part: Array, rank: int) -> Subgraph:
        """The subgraph of `rank`; `part` is the rank of every user."""
        W = topology.mixing
        users = np.flatnonzero(part == rank)
        own = W[users]
        others = np.unique(own.indices[part[own.indices] != rank])
        # ghosts of one rank are contiguous, so that they are received in place
        ghosts = others[np.argsort(part[others], kind="stable")]
        row = np.full(topology.users, -1)
        row[users], row[ghosts] = np.arange(len(users)), len(users) + np.arange(len(ghosts))
        ghost_slices, send_rows = {}, {}
        for other in np.unique(part[ghosts]).tolist():
            first, end = (np.searchsorted(part[ghosts], other, side=s) for s in ("left", "right"))
            ghost_slices[other] = slice(int(first), int(end))
            # the graph is undirected: the ghosts of the other rank are the neighbours of its users
            theirs = W[np.flatnonzero(part == other)]
            needed = np.unique(theirs.indices[part[theirs.indices] == rank])
            send_rows[other] = torch.from_numpy(row[needed])
        columns = row[own.indices]
        # the entry after the last keeps reduceat in range where the last rows are empty
        at_border = np.add.reduceat(np.r_[columns >= len(users), False], own.indptr[:-1]) > 0
        local = (own.indptr.astype(np.int64), columns.astype(np.int64), own.data.astype(np.float64))
        interior, border = np.flatnonzero(~at_border), np.flatnonzero(at_border)
        return cls(users, ghosts, send_rows, ghost_slices, local, interior, border)


class BorderMixer:
    """Gossip of one rank's users on CPUs."""

    def __init__(
        self, topology: Topology, subgraph: Subgraph, comm: Communicator, averages: bool
    ) -> None:
        """`averages`: a round is the mean of all users (a server, or a complete graph)."""
        self.topology, self.subgraph, self.comm = topology, subgraph, comm
        self.averages = averages
        self.spare: Blocks = []
        self.ghosts: Blocks = []

    def mix(self, blocks: Blocks, gossip: Gossip, threads: int = 1) -> Blocks:
        if self.averages and gossip.rounds:
            for block in blocks:
                mean = self.comm.mean_over_users(block, self.topology.users)
                block.copy_(mean.expand_as(block))
            return blocks
        if not self.spare:
            # made at the first round and kept: the shapes never change
            self.spare = [torch.empty_like(block) for block in blocks]
            count = len(self.subgraph.ghosts)
            self.ghosts = [block.new_empty((count, block[0].numel())) for block in blocks]
        for a, b, _ in gossip.steps(self.topology):
            self._round(blocks, self.spare, a, b)
            blocks, self.spare = self.spare, blocks
        return blocks

    def _round(self, now: Blocks, to: Blocks, a: float, b: float) -> None:
        """Writes the next round into `to`, which holds the round before `now`."""
        here, there = ([block.view(len(block), -1) for block in side] for side in (now, to))
        graph = self.subgraph
        sends = [(rank, flat[rows]) for rank, rows in graph.send_rows.items() for flat in here]
        receives = [
            (rank, ghosts[rows])
            for rank, rows in graph.ghost_slices.items()
            for ghosts in self.ghosts
        ]
        pending = self.comm.start_exchange(sends, receives)
        for rows in (graph.interior, graph.border):
            if rows is graph.border:  # only these need the ghosts' models
                for work in pending:
                    work.wait()
            for flat, out, ghosts in zip(here, there, self.ghosts, strict=True):
                to_, now_, ghosts_ = out.numpy(), flat.numpy(), ghosts.numpy()
                sparse_kernels.one_round(to_, now_, to_, ghosts_, *graph.W, a, b, rows)


def split_graph(topology: Topology, comm: Communicator) -> tuple[Subgraph, list[Array]]:
    """This rank's subgraph, and the users of every rank in order of rank."""
    part = partition(topology, comm.size)
    users_by_rank = [np.flatnonzero(part == rank) for rank in range(comm.size)]
    return Subgraph.of_rank(topology, part, comm.rank), users_by_rank
