"""Gossip across processes: everybody holds some users, and in every round the models of users with
neighbours elsewhere travel.

Users whose neighbours are all here are averaged while those models are under way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from decor.arrays import Array
from decor.graph.gossip import Gossip
from decor.graph.topology import Topology
from decor.learning.gradients.clip import Blocks
from decor.training import sparse_kernels

from .communicator import Team
from .partition import partition


@dataclass(frozen=True)
class Part:
    """The users of one process: `users` by number, `guests` who are neighbours of some of them and
    live elsewhere.

    `sent` has for every other process the users (by place here) whose models it needs; `received`
    which of the guests, as a slice, come from it. `W` are the rows of the mixing matrix, guests
    counted after the users; `inner` users need no guest.
    """

    users: Array
    guests: Array
    sent: dict[int, Tensor]
    received: dict[int, slice]
    W: tuple[Array, Array, Array]
    inner: Array
    outer: Array

    @classmethod
    def of(cls, topology: Topology, part: Array, rank: int) -> Part:
        W = topology.mixing
        users = np.flatnonzero(part == rank)
        own = W[users]
        others = np.unique(own.indices[part[own.indices] != rank])
        guests = others[np.argsort(part[others], kind="stable")]
        place = np.full(topology.users, -1)
        place[users], place[guests] = np.arange(len(users)), len(users) + np.arange(len(guests))
        homes = part[guests]
        received = {
            int(r): slice(
                int(np.searchsorted(homes, r)), int(np.searchsorted(homes, r, side="right"))
            )
            for r in np.unique(homes)
        }
        # whoever is a guest there has a neighbour there; the graph has no direction
        sent = {}
        for r in received:
            theirs = W[np.flatnonzero(part == r)]
            needed = np.unique(theirs.indices[part[theirs.indices] == rank])
            sent[r] = torch.from_numpy(place[needed])
        columns = place[own.indices]
        outside = np.add.reduceat(np.r_[columns >= len(users), False], own.indptr[:-1]) > 0
        local = (own.indptr.astype(np.int64), columns.astype(np.int64), own.data.astype(np.float64))
        return cls(
            users, guests, sent, received, local, np.flatnonzero(~outside), np.flatnonzero(outside)
        )


class Across:
    """The mixer of a part."""

    def __init__(self, topology: Topology, part: Part, team: Team, averages: bool) -> None:
        self.topology, self.part, self.team, self.averages = topology, part, team, averages
        self.spare: Blocks = []
        self.guests: Blocks = []

    def mix(self, blocks: Blocks, gossip: Gossip, threads: int = 1) -> Blocks:
        if self.averages and gossip.rounds:
            for block in blocks:
                mean = self.team.total(block.sum(0, dtype=torch.float64)) / self.topology.users
                block.copy_(mean.to(block.dtype).expand_as(block))
            return blocks
        if not self.spare:
            self.spare = [torch.empty_like(block) for block in blocks]
            shapes = [(len(self.part.guests), block[0].numel()) for block in blocks]
            self.guests = [
                block.new_empty(shape) for block, shape in zip(blocks, shapes, strict=True)
            ]
        for a, b, _ in gossip.steps(self.topology):
            self._round(blocks, self.spare, a, b)
            blocks, self.spare = self.spare, blocks
        return blocks

    def _round(self, now: Blocks, to: Blocks, a: float, b: float) -> None:
        """to = a round of now, and of what `to` holds from the round before."""
        here, there = ([block.view(len(block), -1) for block in side] for side in (now, to))
        sent = [(r, flat[users]) for r, users in self.part.sent.items() for flat in here]
        received = [
            (r, guests[which]) for r, which in self.part.received.items() for guests in self.guests
        ]
        under_way = self.team.exchanged(sent, received)
        for some in (self.part.inner, self.part.outer):
            if some is self.part.outer:
                for work in under_way:
                    work.wait()
            for flat, out, guests in zip(here, there, self.guests, strict=True):
                sparse_kernels.one_round(
                    out.numpy(), flat.numpy(), out.numpy(), guests.numpy(), *self.part.W, a, b, some
                )


def parts(topology: Topology, team: Team) -> tuple[Part, list[Array]]:
    """This process's part, and everybody's users in order of rank."""
    found = partition(topology, team.size)
    return Part.of(topology, found, team.rank), [
        np.flatnonzero(found == rank) for rank in range(team.size)
    ]
