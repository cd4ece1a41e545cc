"""The channel on a card: noise and gossip on a few columns of everybody's models at a time, in
place.

Noise is one Gaussian for every edge and one for every user, both ends of an edge making theirs
anew: nothing is kept and nothing is added twice at the same place, so that a run is the same every
time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from decor.arrays import Array
from decor.graph.gossip import Gossip
from decor.graph.topology import Topology
from decor.learning.gradients.clip import Blocks
from decor.noise import root
from decor.privacy.plan import NoisePlan
from decor.training.channel import Channel, by_edge, uniform_sigma_cor
from decor.training.mixer import DENSE, is_complete

from . import kernels

_WORKSPACE = 48_000_000
"""Numbers of a workspace: enough for a card to do at a time, and some are still in its cache in the
round that follows.
"""
_LANES, _LANES_OF_A_WARP, _BLOCK = 256, 64, 1024
"""Of a program: lanes that make four Gaussians each, and numbers of a round; fewer where models are
small.
"""
_PROGRAMS = 1024
"""How many fill a card."""


class OnCard(Channel):
    """Noise and gossip for plans on one graph; plan r is the noise of setting r."""

    def __init__(
        self,
        plans: Sequence[NoisePlan],
        seeds: Sequence[int],
        dtype: torch.dtype,
        device: torch.device,
        here: Array | None = None,
    ) -> None:
        """`here` are the users on this card, where they are not all."""
        topology = plans[0].topology
        on: dict[str, Any] = {"dtype": dtype, "device": device}
        here = np.arange(topology.users) if here is None else here
        self.topology, self.users, self.everybody = (
            topology,
            len(here),
            torch.arange(len(here), device=device),
        )
        central = plans[0].adversary.average_only
        self.averages = central or is_complete(topology)
        self.seeds = torch.tensor(np.array(seeds, dtype=np.uint64).view(np.int64), device=device)
        cors = np.stack([by_edge(plan) for plan in plans])
        tops = cors.max(axis=1, initial=0.0)
        self.own, self.cor = (
            torch.tensor([plan.sigma_cdp for plan in plans], **on),
            torch.tensor(tops, **on),
        )
        self.noisy = bool(tops.any()) or any(plan.sigma_cdp for plan in plans)
        pattern = cors[tops.argmax()] / tops.max() if tops.any() else np.zeros(topology.edge_count)
        self.apart = None
        if self.averages and not central and topology.users > DENSE:
            for plan in plans:
                uniform_sigma_cor(plan)  # refuses noise that differs by edge
            self.apart = (self.own**2 + topology.users * self.cor**2).sqrt()
            pattern = 0 * pattern
        self.kept = int((pattern > 0).sum()) if self.apart is None else 0
        self.edges = [
            torch.as_tensor(part, device=device) for part in _fours(topology, pattern, here)
        ]
        self.places = torch.as_tensor(self.kept + here, device=device)
        W = topology.mixing
        self.weights = [
            torch.as_tensor(part.astype(np.int64), device=device) for part in (W.indptr, W.indices)
        ]
        self.weights.append(torch.tensor(W.data, **on))
        self.rounds: dict[Gossip, Tensor] = {}
        self.spare: dict[tuple[int, ...], Tensor] = {}

    def noise(self, to: Blocks, alpha: Tensor, step: Any, threads: int = 1) -> None:
        """to += alpha * noise, in place; `step` is on the card, so that what is replayed can have
        another.
        """
        for k, block in enumerate(to if self.noisy else []):
            flat = self._flat(block)
            for left, wide in self._strips(flat):
                self._noised(flat, flat[:, :, left:], alpha, step, k, left, wide)

    def mix(self, blocks: Blocks, gossip: Gossip, threads: int = 1) -> Blocks:
        """The rounds, in place."""
        if self.averages and gossip.rounds:
            for block in blocks:
                block.copy_(self._average(block).expand_as(block))
        elif gossip.rounds:
            for block in blocks:
                flat = self._flat(block)
                for left, wide in self._strips(flat):
                    strip = flat[:, :, left : left + wide]
                    self._workspace(strip).copy_(strip)
                    self._mixed(strip, gossip)
        return blocks

    def noise_and_mix(
        self, blocks: Blocks, alpha: Tensor, step: Any, gossip: Gossip, threads: int = 1
    ) -> Blocks:
        """One after the other, in one pass over the models where that can be."""
        if self.averages or not gossip.rounds or not self.noisy:
            self.noise(blocks, alpha, step)
            return self.mix(blocks, gossip)
        for k, block in enumerate(blocks):
            flat = self._flat(block)
            for left, wide in self._strips(flat):
                strip = flat[:, :, left : left + wide]
                self._noised(flat, self._workspace(strip), alpha, step, k, left, wide)
                self._mixed(strip, gossip)
        return blocks

    def _noised(
        self, x: Tensor, out: Tensor, alpha: Tensor, step: Tensor, stream: int, left: int, wide: int
    ) -> None:
        """out = columns of x from `left` on, with noise."""
        if self.apart is not None:
            self._noised_completely(x, out[:, :, :wide], alpha, step, stream, left, wide)
            return
        self._drawn(x, out, alpha, self.own, step, stream, left, wide)

    def _drawn(
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
        lanes = min(_LANES, 32 << (-(-wide // 128) - 1).bit_length())
        blocks, settings = -(-wide // (4 * lanes)), len(own)
        # settings share their Gaussians, as many as leave enough for the whole card to do
        fours = len(self.edges[0]) // 4
        some = max(1, min(settings, settings * fours * blocks * len(self.seeds) // _PROGRAMS))
        grid = (fours, blocks, len(self.seeds) * -(-settings // some))
        kernels.noised[grid](
            x, out, alpha.contiguous(), own, self.cor, self.seeds, step, *self.edges, self.places,
            x.shape[2], left, wide, stream, settings, some, *x.stride()[:2], *out.stride()[:2],
            LANES=lanes, num_warps=max(1, lanes // _LANES_OF_A_WARP),
        )  # fmt: skip

    def _noised_completely(
        self, x: Tensor, out: Tensor, alpha: Tensor, step: Tensor, stream: int, left: int, wide: int
    ) -> None:
        """On a complete graph of many users noise is apart (Z - mean of Z) + together mean of Z."""
        assert self.apart is not None
        Z, one = torch.zeros_like(x), torch.ones_like(alpha)
        self._drawn(Z, Z[:, :, left:], one, torch.ones_like(self.own), step, stream, left, wide)
        Z = Z[:, :, left : left + wide]
        apart, together = ((alpha * scale).reshape(-1, 1) for scale in (self.apart, self.own))
        torch.add(
            x[:, :, left : left + wide], apart * Z + (together - apart) * self._average(Z), out=out
        )

    def _mixed(self, strip: Tensor, gossip: Gossip) -> None:
        """Rounds from the workspace's first half back and forth to the second, the last one into
        the strip.
        """
        now, before = (
            self._workspace(strip),
            self._workspace(strip, 1) if gossip.rounds > 1 else strip,
        )
        rounds = self._rounds(strip, gossip)
        for k in range(len(rounds)):
            self._round(
                now,
                before,
                strip if k == len(rounds) - 1 else before,
                rounds[k],
                k > 0,
                self.everybody,
            )
            now, before = before, now

    def _rounds(self, numbers: Tensor, gossip: Gossip) -> Tensor:
        """(a, b) of every round, where the kernels read them."""
        if gossip not in self.rounds:
            steps = [(a, b) for a, b, _ in gossip.steps(self.topology)]
            self.rounds[gossip] = torch.tensor(steps, dtype=numbers.dtype, device=numbers.device)
        return self.rounds[gossip]

    def _round(
        self, now: Tensor, before: Tensor, out: Tensor, ab: Tensor, back: bool, members: Tensor
    ) -> None:
        wide = out.shape[2]
        block = min(_BLOCK, max(32, 1 << (wide - 1).bit_length()))
        grid = (len(members), -(-wide // block), out.shape[1])
        if len(members):
            kernels.mixed[grid](
                now, before, out, members, *self.weights, ab, ab[1:], wide,
                *now.stride()[:2], *before.stride()[:2], *out.stride()[:2],
                BACK=back, BLOCK=block, num_warps=max(1, block // 256),
            )  # fmt: skip

    def _average(self, numbers: Tensor) -> Tensor:
        """Over everybody."""
        return numbers.mean(0)

    def _flat(self, block: Tensor) -> Tensor:
        """[users, seeds * settings, columns]."""
        return block.view(self.users, block.shape[1] * block.shape[2], -1)

    def _strips(self, flat: Tensor) -> list[tuple[int, int]]:
        """(first column, columns) of parts that fit into the cache, whole programs' worth of
        Gaussians each.
        """
        unit, columns = 4 * _LANES, flat.shape[2]
        wide = max(1, _WORKSPACE // (flat.shape[0] * flat.shape[1]) // unit) * unit
        return [(left, min(wide, columns - left)) for left in range(0, columns, wide)]

    def _workspace(self, strip: Tensor, which: int = 0) -> Tensor:
        key = (which, *strip.shape)
        if key not in self.spare:
            self.spare[key] = strip.new_empty(strip.shape)
        return self.spare[key]


def _fours(topology: Topology, pattern: Array, here: Array) -> tuple[Array, ...]:
    """Users in fours that are close to each other, and the edges of each four: (members, start,
    edge, plus, minus, value).

    Of edge e `plus` is the place of its first user in the four, `minus` that of its second, or -1
    for one who is elsewhere.
    """
    kept = pattern > 0
    place = np.full(topology.users, -1)
    place[here] = np.arange(len(here))
    ends, values, number = (
        place[topology.edges[kept]],
        pattern[kept].astype(np.float32),
        np.arange(int(kept.sum())),
    )
    inside = (ends >= 0).all(axis=1)
    orders = [np.arange(len(here)), root.nearby(len(here), ends[inside])[1]]
    order = max(
        orders, key=lambda order: int(np.equal(*(np.argsort(order)[ends[inside]] // 4).T).sum())
    )
    four, within = np.divmod(np.where(ends >= 0, np.argsort(order)[ends], -4), 4)
    within[ends < 0] = -1
    same = inside & (four[:, 0] == four[:, 1])
    # an edge is in the four of its first user, and in that of its second unless it is the same
    first, second = ends[:, 0] >= 0, (ends[:, 1] >= 0) & ~same
    homes = np.concatenate([four[first, 0], four[second, 1]])
    plus = np.concatenate([within[first, 0], np.full(int(second.sum()), -1)])
    minus = np.concatenate([np.where(same, within[:, 1], -1)[first], within[second, 1]])
    numbers, weights = (np.concatenate([part[first], part[second]]) for part in (number, values))
    members = np.concatenate([order, np.full(-len(order) % 4, -1)])
    by_four = np.argsort(homes, kind="stable")
    start = np.concatenate([[0], np.cumsum(np.bincount(homes, minlength=len(members) // 4))])
    return members, start, *(part[by_four] for part in (numbers, plus, minus, weights))
