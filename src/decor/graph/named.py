"""Graphs by the names that people type: a family and a number of users, and what the random ones
take beside.
"""

from __future__ import annotations

import math

from decor.errors import GraphError

from . import families
from .topology import MAX_USERS, Topology

NAMES = (
    "ring",
    "torus",
    "grid",
    "complete",
    "star",
    "path",
    "hypercube",
    "random-regular",
    "erdos-renyi",
)

TAKES = {"random-regular": ("degree", "graph_seed"), "erdos-renyi": ("probability", "graph_seed")}
"""What only some graphs take."""

USERS, DEGREE = 16, 4


def plain(name: str) -> str:
    """A name as it stands in NAMES."""
    return name.strip().lower().replace("_", "-")


def usual_probability(users: int) -> float:
    """Of an edge: twice what makes a random graph connected."""
    return min(1.0, 2 * math.log(max(users, 2)) / max(users, 1))


def named(
    name: str,
    users: int | None = None,
    degree: int | None = None,
    probability: float | None = None,
    graph_seed: int | None = None,
) -> Topology:
    """The graph of that name; a torus and a grid are as square as the number of users allows."""
    n = USERS if users is None else users
    match plain(name):
        case "ring" | "complete" | "star" | "path" as family:
            built: Topology = getattr(families, family)(n)
            return built
        case "torus":
            return families.torus(*_sides("torus", n, 2))
        case "grid":
            return families.grid(*_sides("grid", n, 1))
        case "hypercube":
            return families.hypercube(_dimension(n))
        case "random-regular":
            return families.random_regular(
                n, DEGREE if degree is None else degree, seed=graph_seed or 0
            )
        case "erdos-renyi":
            return families.erdos_renyi(
                n,
                usual_probability(n) if probability is None else probability,
                seed=graph_seed or 0,
            )
    raise GraphError(
        f"unknown topology {name!r}; choose one of {', '.join(NAMES)}, or give --graph FILE"
    )


def _sides(name: str, users: int, least: int) -> tuple[int, int]:
    """The most square rectangle of so many users."""
    if not 1 <= users <= MAX_USERS:
        raise GraphError(f"a {name} needs {max(least, 1) ** 2} to {MAX_USERS:,} users, not {users}")
    rows = next(r for r in range(math.isqrt(users), 0, -1) if users % r == 0)
    if rows < least:
        side = max(2, round(math.sqrt(users)))
        raise GraphError(
            f"{users} users do not fill a {name} of two or more rows; take "
            f"{side * side} ({side} x {side})"
        )
    return rows, users // rows


def _dimension(users: int) -> int:
    if users < 1 or users & (users - 1):
        near = 1 << max(users - 1, 1).bit_length()
        raise GraphError(f"a hypercube has a power of two of users, not {users}; take {near}")
    return users.bit_length() - 1
