"""GpuChannel: noise and gossip on a GPU, in place on a few columns of all models at a time.

Noise is one Gaussian for every edge and one for every user. Both ends of an edge compute the edge's
Gaussian again: nothing is stored, and no two threads add to the same place, so that a run gives the
same values every time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from decor.array_types import Array
from decor.graph.gossip import Gossip
from decor.graph.topology import Topology
from decor.learning.gradients.clip import Blocks
from decor.noise import root
from decor.privacy.plan import NoisePlan
from decor.training.channel import Channel, edge_sigmas, uniform_sigma_cor
from decor.training.mixer import DENSE_LIMIT, is_complete

from . import kernels

_WORKSPACE = 48_000_000
"""Values in a workspace: enough to fill a GPU, and part stays in its cache for the next round."""
_LANES, _LANES_PER_WARP, _BLOCK = 256, 64, 1024
"""Lanes of a noise program (four Gaussians each), lanes per warp, and values of a gossip program.

Small models take fewer.
"""
_PROGRAMS = 1024
"""Programs that fill a GPU."""


class GpuChannel(Channel):
    """Noise and gossip for plans on one graph; plan r is the noise of setting r."""

    def __init__(
        self,
        plans: Sequence[NoisePlan],
        seeds: Sequence[int],
        dtype: torch.dtype,
        device: torch.device,
        here: Array | None = None,
    ) -> None:
        """`here` are the users on this GPU; None: all."""
        topology = plans[0].topology
        here = np.arange(topology.users) if here is None else here
        self.topology, self.users = topology, len(here)
        self.all_users = torch.arange(len(here), device=device)
        central = plans[0].adversary.average_only
        self.averages = central or is_complete(topology)
        # torch has no uint64 arithmetic: the kernels read the same bits
        self.seeds = torch.tensor(np.array(seeds, dtype=np.uint64).view(np.int64), device=device)
        cors = np.stack([edge_sigmas(plan) for plan in plans])
        tops = cors.max(axis=1, initial=0.0)
        own = [plan.uniform_sigma_cdp("a GPU") for plan in plans]
        self.own = torch.tensor(own, dtype=dtype, device=device)
        self.cor = torch.tensor(tops, dtype=dtype, device=device)
        self.noisy = bool(tops.any()) or any(own)
        pattern = cors[tops.argmax()] / tops.max() if tops.any() else np.zeros(topology.edge_count)
        self.apart = None
        # on a large complete graph, a closed form instead of one Gaussian for every edge
        if self.averages and not central and topology.users > DENSE_LIMIT:
            for plan in plans:
                uniform_sigma_cor(plan)  # refuses noise that differs by edge
            self.apart = (self.own**2 + topology.users * self.cor**2).sqrt()
            pattern = 0 * pattern
        edge_count = int((pattern > 0).sum()) if self.apart is None else 0
        quads = _quads(topology, pattern, here)
        self.edges = [torch.as_tensor(part, device=device) for part in quads]
        # Gaussians are numbered: edges first, then users
        self.places = torch.as_tensor(edge_count + here, device=device)
        W = topology.mixing
        self.weights = [
            torch.as_tensor(part.astype(np.int64), device=device) for part in (W.indptr, W.indices)
        ]
        self.weights.append(torch.tensor(W.data, dtype=dtype, device=device))
        self.rounds: dict[Gossip, Tensor] = {}
        self.spare: dict[tuple[int, ...], Tensor] = {}

    def noise(self, to: Blocks, alpha: Tensor, step: Any, threads: int = 1) -> None:
        """to += alpha * noise, in place; `step` is on the GPU, so that a replay can change it."""
        for k, block in enumerate(to if self.noisy else []):
            flat = self._flat(block)
            for left, wide in self._strips(flat):
                self._add_noise(flat, flat[:, :, left:], alpha, step, k, left, wide)

    def mix(self, blocks: Blocks, gossip: Gossip, threads: int = 1) -> Blocks:
        """Takes the gossip rounds, in place."""
        if self.averages and gossip.rounds:
            for block in blocks:
                block.copy_(self._average(block).expand_as(block))
        elif gossip.rounds:
            for block in blocks:
                flat = self._flat(block)
                for left, wide in self._strips(flat):
                    strip = flat[:, :, left : left + wide]
                    self._workspace(strip).copy_(strip)
                    self._mix(strip, gossip)
        return blocks

    def noise_and_mix(
        self, blocks: Blocks, alpha: Tensor, step: Any, gossip: Gossip, threads: int = 1
    ) -> Blocks:
        """`noise`, then `mix`, in one pass over the models where possible."""
        if self.averages or not gossip.rounds or not self.noisy:
            self.noise(blocks, alpha, step)
            return self.mix(blocks, gossip)
        for k, block in enumerate(blocks):
            flat = self._flat(block)
            for left, wide in self._strips(flat):
                strip = flat[:, :, left : left + wide]
                self._add_noise(flat, self._workspace(strip), alpha, step, k, left, wide)
                self._mix(strip, gossip)
        return blocks

    def _add_noise(
        self, x: Tensor, out: Tensor, alpha: Tensor, step: Tensor, stream: int, left: int, wide: int
    ) -> None:
        """out = `wide` columns of x from `left` on, with noise."""
        if self.apart is not None:
            self._add_complete_noise(x, out[:, :, :wide], alpha, step, stream, left, wide)
            return
        self._launch_noise(x, out, alpha, self.own, step, stream, left, wide)

    def _launch_noise(
        self,
        x: Tensor,
        out: Tensor,
        alpha: Tensor,
        own: Tensor,
        step: Tensor,
        stream: int,
        left: int,
        wide: int,
    ) -> None:
        # the power of two that covers the columns, at least one group of 32 lanes
        lanes = min(_LANES, 32 << (-(-wide // 128) - 1).bit_length())
        blocks, settings = -(-wide // (4 * lanes)), len(own)
        # settings of a program share its Gaussians: as many as still leave programs for all of the
        # GPU
        quads = len(self.edges[0]) // 4
        some = max(1, min(settings, settings * quads * blocks * len(self.seeds) // _PROGRAMS))
        grid = (quads, blocks, len(self.seeds) * -(-settings // some))
        kernels.add_noise[grid](
            x, out, alpha.contiguous(), own, self.cor, self.seeds, step, *self.edges, self.places,
            x.shape[2], left, wide, stream, settings, some, *x.stride()[:2], *out.stride()[:2],
            LANES=lanes, num_warps=max(1, lanes // _LANES_PER_WARP),
        )  # fmt: skip

    def _add_complete_noise(
        self, x: Tensor, out: Tensor, alpha: Tensor, step: Tensor, stream: int, left: int, wide: int
    ) -> None:
        """On a large complete graph noise is apart (Z - mean of Z) + together mean of Z."""
        assert self.apart is not None
        Z, one = torch.zeros_like(x), torch.ones_like(alpha)
        # unit Gaussians first: their mean over users is needed before they are scaled
        unit = torch.ones_like(self.own)
        self._launch_noise(Z, Z[:, :, left:], one, unit, step, stream, left, wide)
        Z = Z[:, :, left : left + wide]
        apart, together = ((alpha * scale).reshape(-1, 1) for scale in (self.apart, self.own))
        noise = apart * Z + (together - apart) * self._average(Z)
        torch.add(x[:, :, left : left + wide], noise, out=out)

    def _mix(self, strip: Tensor, gossip: Gossip) -> None:
        """Rounds between two workspaces, from the first; the last round goes into the strip."""
        now = self._workspace(strip)
        before = self._workspace(strip, 1) if gossip.rounds > 1 else strip
        rounds = self._rounds(strip, gossip)
        for k in range(len(rounds)):
            out = strip if k == len(rounds) - 1 else before
            self._round(now, before, out, rounds[k], k > 0, self.all_users)
            now, before = before, now

    def _rounds(self, values: Tensor, gossip: Gossip) -> Tensor:
        """(a, b) of every round, on the GPU, where the kernels read them."""
        if gossip not in self.rounds:
            steps = [(a, b) for a, b, _ in gossip.steps(self.topology)]
            self.rounds[gossip] = torch.tensor(steps, dtype=values.dtype, device=values.device)
        return self.rounds[gossip]

    def _round(
        self, now: Tensor, before: Tensor, out: Tensor, ab: Tensor, back: bool, members: Tensor
    ) -> None:
        """One gossip round of `members`; `back`: the round before counts too (acceleration)."""
        wide = out.shape[2]
        block = min(_BLOCK, max(32, 1 << (wide - 1).bit_length()))
        grid = (len(members), -(-wide // block), out.shape[1])
        if len(members):  # a kernel on an empty grid is an error
            kernels.mix_round[grid](
                now, before, out, members, *self.weights, ab, ab[1:], wide,
                *now.stride()[:2], *before.stride()[:2], *out.stride()[:2],
                BACK=back, BLOCK=block, num_warps=max(1, block // 256),
            )  # fmt: skip

    def _average(self, values: Tensor) -> Tensor:
        """The mean over all users."""
        return values.mean(0)

    def _flat(self, block: Tensor) -> Tensor:
        """[users, seeds * settings, columns]."""
        return block.view(self.users, block.shape[1] * block.shape[2], -1)

    def _strips(self, flat: Tensor) -> list[tuple[int, int]]:
        """(first column, columns) of parts that fit the cache."""
        # a strip is a whole number of noise programs, each of which makes 4 * _LANES Gaussians
        unit, columns = 4 * _LANES, flat.shape[2]
        wide = max(1, _WORKSPACE // (flat.shape[0] * flat.shape[1]) // unit) * unit
        return [(left, min(wide, columns - left)) for left in range(0, columns, wide)]

    def _workspace(self, strip: Tensor, which: int = 0) -> Tensor:
        key = (which, *strip.shape)
        if key not in self.spare:
            self.spare[key] = strip.new_empty(strip.shape)
        return self.spare[key]


def _quads(topology: Topology, pattern: Array, here: Array) -> tuple[Array, ...]:
    """Users in groups of four that are close to each other, and the edges of each group.

    Gives (members, start, edge, plus, minus, value). For an edge of a group, `plus` is the place of
    its first user in the group and `minus` that of its second; -1 if that user is elsewhere.
    """
    kept = pattern > 0
    place = np.full(topology.users, -1)
    place[here] = np.arange(len(here))
    ends = place[topology.edges[kept]]
    values, number = pattern[kept].astype(np.float32), np.arange(int(kept.sum()))
    inside = (ends >= 0).all(axis=1)

    def edges_within(order: Array) -> int:
        """Edges within a group: each is drawn once for both ends."""
        return int(np.equal(*(np.argsort(order)[ends[inside]] // 4).T).sum())

    orders = [np.arange(len(here)), root.bandwidth_order(len(here), ends[inside])[1]]
    order = max(orders, key=edges_within)
    # -4 // 4 = -1: users on another GPU are in no group here
    quad, within = np.divmod(np.where(ends >= 0, np.argsort(order)[ends], -4), 4)
    within[ends < 0] = -1
    same = inside & (quad[:, 0] == quad[:, 1])
    # an edge is in the group of its first user, and in that of its second unless it is the same
    first, second = ends[:, 0] >= 0, (ends[:, 1] >= 0) & ~same
    homes = np.concatenate([quad[first, 0], quad[second, 1]])
    plus = np.concatenate([within[first, 0], np.full(int(second.sum()), -1)])
    minus = np.concatenate([np.where(same, within[:, 1], -1)[first], within[second, 1]])
    numbers, weights = (np.concatenate([part[first], part[second]]) for part in (number, values))
    members = np.concatenate([order, np.full(-len(order) % 4, -1)])
    by_quad = np.argsort(homes, kind="stable")
    start = np.concatenate([[0], np.cumsum(np.bincount(homes, minlength=len(members) // 4))])
    return members, start, *(part[by_quad] for part in (numbers, plus, minus, weights))
