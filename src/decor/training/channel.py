"""Between users: the noise that goes into their messages, and the gossip that comes after.

A channel works on blocks [users, seeds, settings, ...] of all users' numbers. `noise` adds alpha
times a step's noise, made by n Gaussians a coordinate; settings of one seed share those Gaussians,
each scaled by its own plan. `mix` takes the rounds of gossip. Small graphs are dense matrices,
large ones are sparse, and complete ones (and central DP's server) are averages.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from decor.errors import InputError
from decor.graph.gossip import Gossip
from decor.learning.gradients.clip import Blocks
from decor.noise import root
from decor.noise.gaussians import GROUP, SHORT, fill_rows
from decor.noise.secret import GridNoise
from decor.privacy.plan import NoisePlan

from . import sparse_kernels
from .mixer import Mixer, pool, shared

_LARGE = 10_000
"""Parameters from which the time goes into coordinates, and not into calls."""


class NoiseSource(Protocol):
    """Somebody else's noise, such as the peers' edge streams on their grid."""

    def noised(self, plan: NoisePlan, seed: int, step: int, gradients: Any) -> Any:
        """Everybody's clipped gradients of one step, [users, parameters], with noise on them."""
        ...


class Channel(ABC):
    """`step` is a number, or on a card a tensor that holds it."""

    mixing: Mixer

    @abstractmethod
    def noise(self, to: Blocks, alpha: Tensor, step: Any, threads: int = 1) -> None:
        """to += alpha * noise; alpha is [seeds, settings]."""

    def mix(self, blocks: Blocks, gossip: Gossip, threads: int = 1) -> Blocks:
        """The blocks after the rounds; the old ones may have been overwritten."""
        return self.mixing.mix(blocks, gossip, threads)

    def noise_and_mix(
        self, blocks: Blocks, alpha: Tensor, step: Any, gossip: Gossip, threads: int = 1
    ) -> Blocks:
        """One after the other, for those who need not see what is in between."""
        self.noise(blocks, alpha, step, threads)
        return self.mix(blocks, gossip, threads)


def banded(plan: NoisePlan, parameters: int) -> bool:
    """A band of a few rows beats the eigenvectors of a few users where there are many
    coordinates.
    """
    topology = plan.topology
    return parameters >= _LARGE and root.banded(
        topology.users, topology.edges, plan.sigma_cdp, by_edge(plan)
    )


def by_edge(plan: NoisePlan) -> Any:
    return np.broadcast_to(np.asarray(plan.sigma_cor, dtype=np.float64), plan.topology.edge_count)


def uniform_sigma_cor(plan: NoisePlan) -> float:
    """The plan's one sigma_cor: the closed form of complete graphs knows no other noise."""
    if not isinstance(plan.sigma_cor, float):
        raise InputError(
            "noise that differs by edge is not offered on complete graphs of this size; "
            "use one sigma_cor"
        )
    return plan.sigma_cor


def alike(plan: NoisePlan, parameters: int) -> tuple[Any, ...]:
    """Plans with equal keys can share a tensor: same graph, same way to draw the noise, same way to
    gossip.
    """
    c = np.asarray(plan.sigma_cor)
    pattern = () if c.ndim == 0 else tuple((c / max(c.max(initial=0.0), 1e-300)).tolist())
    return (plan.topology.digest, plan.adversary.average_only, pattern, banded(plan, parameters))


@dataclass(frozen=True)
class Silent(Channel):
    """No noise at all."""

    mixing: Mixer

    def noise(self, to: Blocks, alpha: Tensor, step: int, threads: int = 1) -> None:
        pass


class Dense(Channel):
    """Eigenvectors of the Laplacian: Sigma^(1/2) = U diag(scale), with everything but the scale
    shared by all settings.
    """

    def __init__(
        self, mixing: Mixer, plans: Sequence[NoisePlan], seeds: Sequence[int], dtype: torch.dtype
    ) -> None:
        self.mixing, self.dtype = mixing, dtype
        self.seeds = np.array(seeds, dtype=np.uint64)
        topology = plans[0].topology
        cors = np.stack([by_edge(plan) for plan in plans])
        tops = cors.max(axis=1, initial=0.0)
        # without edges' noise any eigenvectors would do; those of the graph are what other plans on
        # it have
        pattern = cors[tops.argmax()] / tops.max() if tops.any() else np.ones(topology.edge_count)
        values, vectors = root.eigenvectors(topology.users, topology.edges, pattern**2)
        s = np.array([plan.sigma_cdp for plan in plans])
        scale = np.sqrt(s**2 + tops**2 * values[:, None])  # [users, settings]
        self.U = torch.from_numpy(vectors).to(dtype)
        self.scale = torch.from_numpy(scale).to(dtype).unsqueeze(1)  # [users, 1, settings]
        self.drawn: list[Tensor] = []

    def noise(self, to: Blocks, alpha: Tensor, step: int, threads: int = 1) -> None:
        scale = (self.scale * alpha).unsqueeze(-1)  # [users, seeds, settings, 1]
        n, seeds, settings, _ = scale.shape
        if not self.drawn:
            self.drawn = [torch.empty(n, seeds, block[0, 0, 0].numel()) for block in to]
        for k, (block, Z) in enumerate(zip(to, self.drawn, strict=True)):
            _fill(Z.numpy(), self.seeds, k, step, threads)
            flat = block.view(n, -1)
            if seeds * settings == 1:
                flat.addmm_(self.U * scale.view(1, n), Z.view(n, -1).to(self.dtype))
            else:
                flat.addmm_(self.U, (Z.unsqueeze(2).to(self.dtype) * scale).view(n, -1))


def _fill(Z: Any, seeds: Any, stream: int, step: int, threads: int) -> None:
    """Rows on several threads, each without Python's lock."""
    if threads == 1 or Z.shape[2] < SHORT:
        fill_rows(Z, seeds, stream, step, 0)
        return
    ends = np.linspace(0, len(Z), threads + 1, dtype=int).tolist()
    fill = lambda first, last: fill_rows(Z[first:last], seeds, stream, step, first)  # noqa: E731
    list(pool(threads).map(fill, ends[:-1], ends[1:]))


class Sparse(Channel):
    """Sparse roots, and one row of Gaussians at a time, which all settings of a seed share."""

    def __init__(
        self,
        mixing: Mixer,
        plans: Sequence[NoisePlan],
        seeds: Sequence[int],
        of: Callable[..., root.Columns],
        users: int,
    ) -> None:
        self.mixing, self.seeds = mixing, [np.uint64(seed) for seed in seeds]
        self.users = users
        # settings whose roots have the same shape: [(settings, root with one row of values for
        # each)]
        alike: dict[bytes, tuple[list[int], root.Columns, list[Any]]] = {}
        for r, plan in enumerate(plans):
            found = of(plan.topology.users, plan.topology.edges, plan.sigma_cdp, by_edge(plan))
            key = found.start.tobytes() + found.rows.tobytes() + found.places.tobytes()
            alike.setdefault(key, ([], found, []))[0].append(r)
            alike[key][2].append(found.values)
        self.roots = [(which, first, np.stack(values)) for which, first, values in alike.values()]

    def noise(self, to: Blocks, alpha: Tensor, step: int, threads: int = 1) -> None:
        wide = sparse_kernels.width(self.users)
        wide = max(GROUP, wide // GROUP * GROUP)
        for k, block in enumerate(to):
            flat = block.view(*block.shape[:3], -1).numpy()
            for s, seed in enumerate(self.seeds):
                for which, found, values in self.roots:
                    # all settings, or copies of some of them, which numba takes as one array
                    whole = len(which) == flat.shape[2]
                    part = flat[:, s] if whole else flat[:, s, which]
                    rate = alpha[s, which].double().numpy()
                    arguments = (
                        part,
                        found.start,
                        found.rows,
                        values,
                        found.places,
                        rate,
                        seed,
                        k,
                        step,
                        wide,
                    )
                    shared(threads, flat.shape[3], partial(sparse_kernels.add_columns, *arguments))
                    if not whole:
                        flat[:, s, which] = part


class Complete(Channel):
    """A complete graph of any size, or some of its users: Sigma^(1/2) in closed form."""

    def __init__(
        self, mixing: Mixer, plans: Sequence[NoisePlan], seeds: Sequence[int], members: Any = None
    ) -> None:
        self.mixing, self.seeds = mixing, [np.uint64(seed) for seed in seeds]
        self.users = users = plans[0].topology.users
        self.members = np.arange(users) if members is None else members
        self.scales = [
            (math.hypot(p.sigma_cdp, math.sqrt(users) * uniform_sigma_cor(p)), p.sigma_cdp)
            for p in plans
        ]

    def noise(self, to: Blocks, alpha: Tensor, step: int, threads: int = 1) -> None:
        for k, block in enumerate(to):
            for s, seed in enumerate(self.seeds):
                for r, (apart, together) in enumerate(self.scales):
                    rate = float(alpha[s, r])
                    flat = block[:, s, r].flatten(1).numpy()
                    sparse_kernels.add_complete(
                        flat, self.members, self.users, rate * apart, rate * together, seed, k, step
                    )


@dataclass(frozen=True)
class Private(Channel):
    """A private run's noise: gradients become messages on the integer grid, in place."""

    mixing: Mixer
    source: GridNoise

    def noise(self, to: Blocks, alpha: Tensor, step: int, threads: int = 1) -> None:
        """`to` is the clipped gradients themselves, and alpha is one: gradient and noise are
        rounded together.
        """
        offset = 0
        for block in to:
            flat = block.view(len(block), -1).numpy()
            chunks = self.source.chunks(flat.shape[1])
            add = partial(self.source.add, step, flat, offset)
            list(
                pool(threads).map(add, chunks)
                if threads > 1 and len(chunks) > 1
                else map(add, chunks)
            )
            offset += flat.shape[1]


@dataclass(frozen=True)
class Outside(Channel):
    """Noise from somebody else."""

    mixing: Mixer
    source: NoiseSource
    plans: tuple[NoisePlan, ...]
    seeds: tuple[int, ...]

    def noise(self, to: Blocks, alpha: Tensor, step: int, threads: int = 1) -> None:
        """`to` is the gradients themselves, and alpha is one: others round gradient and noise
        together.
        """
        sizes = [block[0, 0, 0].numel() for block in to]
        for s, seed in enumerate(self.seeds):
            for r, plan in enumerate(self.plans):
                gradients = (
                    torch.cat([block[:, s, r].flatten(1) for block in to], 1).double().numpy()
                )
                found = torch.as_tensor(np.asarray(self.source.noised(plan, seed, step, gradients)))
                for block, part in zip(to, torch.split(found, sizes, dim=1), strict=True):
                    block[:, s, r].copy_(part.view(block[:, s, r].shape))
