"""Rounds of gossip designed for a graph: the polynomial of W that leaves least of the noise its
edges put in.

Several rounds in a row, each x <- (W - r) x / (1 - r), are the polynomial P with those roots and
P(1) = 1. Repeated in every step, P leaves the share q / (1 - q) of what noise puts into a mode, q
being P^2 at its eigenvalue. With as many rounds as W has other eigenvalues nothing is left:
everybody holds the average (16 users: 8 rounds on a ring, 4 on a torus or a hypercube).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from decor.arrays import Floats
from decor.errors import InputError

from .modes import modes_of, second_eigenvalue
from .spectrum import DENSE_LIMIT
from .topology import Topology

_OWN_NOISE = 0.01
"""Weight of users' own noise beside the edges', whose variance is 10 to 1000 times larger in the
plans that gossip is for.
"""


@lru_cache(maxsize=64)
def designed_roots(topology: Topology, rounds: int) -> tuple[float, ...]:
    """One root for every round, in an order that keeps what is in between small; never worse than
    plain or Chebyshev's rounds.
    """
    modes = modes_of(topology)
    if not modes.exact:
        raise InputError(
            "rounds designed for a graph need all its eigenvalues, which are found for up to "
            f"{DENSE_LIMIT:,} users of an "
            f"irregular graph, not for {topology.users:,}; use accelerate=True, Chebyshev's rounds"
        )
    w, noise = modes.eigenvalues, modes.edges + _OWN_NOISE * modes.users
    l = second_eigenvalue(topology)  # noqa: E741
    candidates = [np.zeros(rounds), l * np.cos(np.pi * (np.arange(rounds) + 0.5) / max(rounds, 1))]
    best = min(candidates, key=lambda roots: _left(_squared(roots, w), noise))
    if len(w) and rounds > 1:
        q, least = _squared(best, w), np.inf
        for _ in range(60):
            # least squares with the weights at which its solution is the minimum of what is left;
            # half a step at a time, as a whole one can overshoot and come to a P that lets some
            # mode grow
            roots = _least_squares(w, noise / (1 - np.minimum(q, 0.999)) ** 2, rounds)
            reached = _squared(roots, w)
            q = (q + np.minimum(reached, 1.0)) / 2
            candidates.append(roots)
            left = _left(reached, noise)
            if np.isfinite(least) and abs(left - least) <= 1e-4 * least:
                break
            least = left
        best = min(candidates, key=lambda roots: _left(_squared(roots, w), noise))
    return tuple(_ordered(best).tolist())


def _least_squares(w: Floats, weights: Floats, rounds: int) -> Floats:
    """Roots of the P with P(1) = 1 and the least sum of weights P(w)^2: Gauss and Radau's nodes
    beside 1, by Lanczos.
    """
    basis = np.empty((rounds + 1, len(w)))
    basis[0] = np.sqrt(weights / weights.sum())
    diagonal: list[float] = []
    beside: list[float] = []
    for k in range(rounds):
        u = w * basis[k]
        diagonal.append(float(u @ basis[k]))
        for _ in range(2):  # twice is enough
            u = u - (basis[: k + 1] @ u) @ basis[: k + 1]
        size = float(np.linalg.norm(u))
        if size < 1e-12:  # all eigenvalues are met
            return np.concatenate(
                [
                    np.linalg.eigvalsh(_tridiagonal(diagonal, beside)),
                    np.zeros(rounds - len(diagonal)),
                ]
            )
        beside.append(size)
        basis[k + 1] = u / size
    last = np.linalg.solve(
        _tridiagonal(diagonal, beside[:-1]) - np.eye(rounds), beside[-1] ** 2 * np.eye(rounds)[-1]
    )[-1]
    return np.sort(np.linalg.eigvalsh(_tridiagonal([*diagonal, 1.0 + last], beside)))[:-1]


def _tridiagonal(diagonal: list[float], beside: list[float]) -> Floats:
    return np.asarray(
        np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1), dtype=np.float64
    )


def _squared(roots: Floats, w: Floats) -> Floats:
    """P^2 at eigenvalues."""
    with np.errstate(over="ignore"):  # infinite is no worse than large
        return np.asarray(np.prod((w[:, None] - roots) / (1 - roots), axis=1) ** 2)


def _left(q: Floats, noise: Floats) -> float:
    """What is left of the noise when steps follow each other without end; infinite if a mode does
    not shrink.
    """
    return float(noise @ (q / (1 - q))) if (q < 1).all() else np.inf


def _ordered(roots: Floats) -> Floats:
    """Leja's order: each root as far as can be from those before, so that no mode grows much on the
    way.
    """
    left, taken = roots.copy(), []
    far = np.log(np.abs(left) + 1e-300)
    while len(left):
        k = int(np.argmax(far))
        taken.append(left[k])
        left, far = np.delete(left, k), np.delete(far, k)
        far = (far if len(taken) > 1 else 0.0) + np.log(np.abs(left - taken[-1]) + 1e-300)
    return np.array(taken)
