"""Channel: adds each step's noise to the users' messages, then takes the rounds of gossip.

A channel works on blocks [users, seeds, settings, ...] of all users' parameters. `noise` adds alpha
times a step's noise, which takes n Gaussians per coordinate; settings of one seed share those
Gaussians, each scaled by its own plan. `mix` takes the gossip rounds. Small graphs use dense
matrices, large ones sparse matrices, and complete ones (and central DP's server) averages.
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

from decor.array_types import Array
from decor.errors import InputError
from decor.graph.gossip import Gossip
from decor.learning.gradients.clip import Blocks
from decor.noise import root
from decor.noise.gaussians import GROUP, SHORT, fill_rows
from decor.noise.private_noise import GridNoise
from decor.privacy.plan import NoisePlan

from . import sparse_kernels
from .mixer import Mixer, pool, run_on_columns

_LARGE_MODEL = 10_000
"""Parameters from which coordinates cost more time than calls."""


class NoiseSource(Protocol):
    """A custom noise source for `Vectorised(noise=...)`, such as the peers' edge streams."""

    def noised(self, plan: NoisePlan, seed: int, step: int, gradients: Any) -> Any:
        """One step's clipped gradients [users, parameters], with noise of the plan's law added."""
        ...


class Channel(ABC):
    """Noise and gossip of one grid of runs. `step` is a number, or on a GPU a tensor with it."""

    mixer: Mixer

    @abstractmethod
    def noise(self, to: Blocks, alpha: Tensor, step: Any, threads: int = 1) -> None:
        """to += alpha * noise; alpha is [seeds, settings]."""

    def mix(self, blocks: Blocks, gossip: Gossip, threads: int = 1) -> Blocks:
        """The blocks after the gossip rounds; the given ones may be overwritten."""
        return self.mixer.mix(blocks, gossip, threads)

    def noise_and_mix(
        self, blocks: Blocks, alpha: Tensor, step: Any, gossip: Gossip, threads: int = 1
    ) -> Blocks:
        """`noise`, then `mix`, for callers that do not read the messages in between."""
        self.noise(blocks, alpha, step, threads)
        return self.mix(blocks, gossip, threads)


def uses_band(plan: NoisePlan, parameters: int) -> bool:
    """Whether the noise comes from a banded root: few rows, which pays off for large models."""
    edges = plan.topology.edges
    return parameters >= _LARGE_MODEL and root.is_banded(
        plan.topology.users, edges, plan.sigma_cdp_per_user, edge_sigmas(plan)
    )


def edge_sigmas(plan: NoisePlan) -> Array:
    """sigma_cor of every edge."""
    return np.broadcast_to(np.asarray(plan.sigma_cor, dtype=np.float64), plan.topology.edge_count)


def beyond_least(plan: NoisePlan) -> Array:
    """What each user's own noise has beyond the least: like an edge to nobody, its own alone."""
    own = plan.sigma_cdp_per_user
    return np.sqrt(np.maximum(own**2 - plan.least_sigma_cdp**2, 0.0))


def uniform_sigma_cor(plan: NoisePlan) -> float:
    """The plan's single sigma_cor: the closed form for complete graphs holds for no other noise."""
    if not isinstance(plan.sigma_cor, float):
        raise InputError(
            "noise that differs by edge is not offered on complete graphs of this size; "
            "use one sigma_cor"
        )
    return plan.sigma_cor


def sharing_key(plan: NoisePlan, parameters: int) -> tuple[Any, ...]:
    """Plans with equal keys can share a tensor: same graph, same noise code, same gossip."""
    c = np.asarray(plan.sigma_cor)
    if isinstance(plan.sigma_cdp, tuple):
        c = np.concatenate([edge_sigmas(plan), beyond_least(plan)])
    # levels may differ by one factor between plans: eigenvectors do not depend on it
    pattern = () if c.ndim == 0 else tuple((c / max(c.max(initial=0.0), 1e-300)).tolist())
    return (plan.topology.digest, plan.adversary.average_only, pattern, uses_band(plan, parameters))


@dataclass(frozen=True)
class NoiselessChannel(Channel):
    """Gossip without noise."""

    mixer: Mixer

    def noise(self, to: Blocks, alpha: Tensor, step: int, threads: int = 1) -> None:
        pass


class DenseChannel(Channel):
    """Eigenvectors of the Laplacian: Sigma^(1/2) = U diag(scale), where settings share U.

    Own noise beyond the least of all users joins the Laplacian, as edges to nobody.
    """

    def __init__(
        self, mixer: Mixer, plans: Sequence[NoisePlan], seeds: Sequence[int], dtype: torch.dtype
    ) -> None:
        self.mixer, self.dtype = mixer, dtype
        self.seeds = np.array(seeds, dtype=np.uint64)
        topology = plans[0].topology
        edges, users = topology.edges, topology.users
        levels = np.stack([np.concatenate([edge_sigmas(p), beyond_least(p)]) for p in plans])
        tops = levels.max(axis=1, initial=0.0)
        # without edge noise any eigenvectors would do; the graph's are those that other plans on it
        # have, so that a run is the same alone and beside them
        alike = np.concatenate([np.ones(len(edges)), np.zeros(users)])
        pattern = levels[tops.argmax()] / tops.max() if tops.any() else alike
        weights, ground = np.split(pattern**2, [len(edges)])
        values, vectors = root.eigenvectors(users, edges, weights, ground)
        s = np.array([plan.least_sigma_cdp for plan in plans])
        # Sigma = sigma_cdp^2 I + sigma_cor^2 L (docs/noise.md), in the basis of L
        scale = np.sqrt(s**2 + tops**2 * values[:, None])  # [users, settings]
        self.U = torch.from_numpy(vectors).to(dtype)
        self.scale = torch.from_numpy(scale).to(dtype).unsqueeze(1)  # [users, 1, settings]
        self.gaussians: list[Tensor] = []

    def noise(self, to: Blocks, alpha: Tensor, step: int, threads: int = 1) -> None:
        scale = (self.scale * alpha).unsqueeze(-1)  # [users, seeds, settings, 1]
        n, seeds, settings, _ = scale.shape
        if not self.gaussians:
            self.gaussians = [torch.empty(n, seeds, block[0, 0, 0].numel()) for block in to]
        for k, (block, Z) in enumerate(zip(to, self.gaussians, strict=True)):
            _fill(Z.numpy(), self.seeds, k, step, threads)
            flat = block.view(n, -1)
            if seeds * settings == 1:  # scaling U is cheaper than scaling the Gaussians
                flat.addmm_(self.U * scale.view(1, n), Z.view(n, -1).to(self.dtype))
            else:
                flat.addmm_(self.U, (Z.unsqueeze(2).to(self.dtype) * scale).view(n, -1))


def _fill(Z: Array, seeds: Array, stream: int, step: int, threads: int) -> None:
    """Fills Z with standard Gaussians; threads take rows, and each runs without the GIL."""
    if threads == 1 or Z.shape[2] < SHORT:
        fill_rows(Z, seeds, stream, step, 0)
        return

    def fill(first: int, last: int) -> None:
        fill_rows(Z[first:last], seeds, stream, step, first)

    ends = np.linspace(0, len(Z), threads + 1, dtype=int).tolist()
    list(pool(threads).map(fill, ends[:-1], ends[1:]))


class SparseChannel(Channel):
    """A sparse root of Sigma, one row of Gaussians at a time; settings of a seed share the row."""

    def __init__(
        self,
        mixer: Mixer,
        plans: Sequence[NoisePlan],
        seeds: Sequence[int],
        make_root: Callable[..., root.SparseRoot],
        users: int,
    ) -> None:
        self.mixer, self.seeds = mixer, [np.uint64(seed) for seed in seeds]
        self.users = users
        # settings whose roots have nonzeros at the same places take one pass over the Gaussians
        groups: dict[bytes, tuple[list[int], root.SparseRoot, list[Array]]] = {}
        for r, plan in enumerate(plans):
            topology = plan.topology
            sigmas = plan.sigma_cdp_per_user, edge_sigmas(plan)
            columns = make_root(topology.users, topology.edges, *sigmas)
            key = columns.start.tobytes() + columns.rows.tobytes() + columns.places.tobytes()
            settings, _, values = groups.setdefault(key, ([], columns, []))
            settings.append(r)
            values.append(columns.values)
        self.roots = [
            (some, columns, np.stack(values)) for some, columns, values in groups.values()
        ]

    def noise(self, to: Blocks, alpha: Tensor, step: int, threads: int = 1) -> None:
        # whole groups of Gaussians, also where few columns would fit the cache
        wide = max(GROUP, sparse_kernels.width(self.users) // GROUP * GROUP)
        for k, block in enumerate(to):
            flat = block.view(*block.shape[:3], -1).numpy()
            for s, seed in enumerate(self.seeds):
                for settings, columns, values in self.roots:
                    # numba takes one array: all settings in place, or a copy of some of them
                    is_all = len(settings) == flat.shape[2]
                    part = flat[:, s] if is_all else flat[:, s, settings]
                    factor = (columns.start, columns.rows, values, columns.places)
                    rate = alpha[s, settings].double().numpy()
                    add = partial(
                        sparse_kernels.add_columns, part, *factor, rate, seed, k, step, wide
                    )
                    run_on_columns(threads, flat.shape[3], add)
                    if not is_all:
                        flat[:, s, settings] = part


class CompleteChannel(Channel):
    """A complete graph of any size, or `members` of it: Sigma^(1/2) in closed form."""

    def __init__(
        self,
        mixer: Mixer,
        plans: Sequence[NoisePlan],
        seeds: Sequence[int],
        members: Array | None = None,
    ) -> None:
        self.mixer, self.seeds = mixer, [np.uint64(seed) for seed in seeds]
        self.users = users = plans[0].topology.users
        self.members = np.arange(users) if members is None else members
        # Sigma has two eigenvalues: sigma_cdp^2 + n sigma_cor^2 on differences between users, and
        # sigma_cdp^2 on their mean
        own = [p.uniform_sigma_cdp("a complete graph of this size") for p in plans]
        apart = [math.sqrt(users) * uniform_sigma_cor(p) for p in plans]
        self.scales = [(math.hypot(s, c), s) for s, c in zip(own, apart, strict=True)]

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
class GridChannel(Channel):
    """A private run's noise: gradients become messages on the integer grid, in place."""

    mixer: Mixer
    source: GridNoise

    def noise(self, to: Blocks, alpha: Tensor, step: int, threads: int = 1) -> None:
        """`to` is the clipped gradients and alpha is one: gradient and noise round together."""
        offset = 0
        for block in to:
            flat = block.view(len(block), -1).numpy()
            chunks = self.source.chunks(flat.shape[1])
            add = partial(self.source.add, step, flat, offset)
            apply = pool(threads).map if threads > 1 and len(chunks) > 1 else map
            list(apply(add, chunks))
            offset += flat.shape[1]


@dataclass(frozen=True)
class CustomChannel(Channel):
    """Noise from a custom source."""

    mixer: Mixer
    source: NoiseSource
    plans: tuple[NoisePlan, ...]
    seeds: tuple[int, ...]

    def noise(self, to: Blocks, alpha: Tensor, step: int, threads: int = 1) -> None:
        """`to` is the gradients and alpha is one: the source may round gradient and noise."""
        sizes = [block[0, 0, 0].numel() for block in to]
        for s, seed in enumerate(self.seeds):
            for r, plan in enumerate(self.plans):
                gradients = torch.cat([block[:, s, r].flatten(1) for block in to], 1)
                noised = self.source.noised(plan, seed, step, gradients.double().numpy())
                parts = torch.split(torch.as_tensor(np.asarray(noised)), sizes, dim=1)
                for block, part in zip(to, parts, strict=True):
                    block[:, s, r].copy_(part.view(block[:, s, r].shape))
