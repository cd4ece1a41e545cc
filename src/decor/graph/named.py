"""Graphs by name, as on the command line: a family, a number of users, and random parameters."""

from __future__ import annotations

import math

from decor.errors import GraphError

from . import families
from .topology import MAX_USERS, Topology

NAMES = (
    *("ring", "torus", "grid", "complete", "star", "path", "hypercube"),
    *("random-regular", "erdos-renyi"),
)
TAKES = {"random-regular": ("degree", "graph_seed"), "erdos-renyi": ("probability", "graph_seed")}
"""Options that only some graphs take."""

USERS, DEGREE = 16, 4
"""Default number of users, and default degree of a random regular graph."""


def canonical_name(name: str) -> str:
    """A name as it is spelled in NAMES."""
    return name.strip().lower().replace("_", "-")


def from_name(
    name: str,
    users: int | None = None,
    degree: int | None = None,
    probability: float | None = None,
    graph_seed: int | None = None,
) -> Topology:
    """The graph of that name.

    Args:
        name: One of NAMES. A torus or grid is as square as the number of users allows.
        users: The number of users; None takes USERS.
        degree: Of "random-regular" only; None takes DEGREE.
        probability: Of "erdos-renyi" only; None takes twice the least that usually connects it.
        graph_seed: Of the random graphs; None takes 0.
    """
    n = USERS if users is None else users
    seed = graph_seed or 0
    match canonical_name(name):
        case "ring" | "complete" | "star" | "path" as family:
            graph: Topology = getattr(families, family)(n)
            return graph
        case "torus":
            return families.torus(*_sides("torus", n, 2))
        case "grid":
            return families.grid(*_sides("grid", n, 1))
        case "hypercube":
            return families.hypercube(_dimension(n))
        case "random-regular":
            return families.random_regular(n, DEGREE if degree is None else degree, seed)
        case "erdos-renyi":
            # a random graph becomes connected around ln(n) / n
            connected = min(1.0, 2 * math.log(max(n, 2)) / max(n, 1))
            return families.erdos_renyi(n, connected if probability is None else probability, seed)
    raise GraphError(
        f"unknown topology {name!r}; choose one of {', '.join(NAMES)}, or give --graph FILE"
    )


def _sides(name: str, users: int, least: int) -> tuple[int, int]:
    """Rows and columns of the most square rectangle with so many users."""
    if not 1 <= users <= MAX_USERS:
        raise GraphError(f"a {name} needs {max(least, 1) ** 2} to {MAX_USERS:,} users, not {users}")
    # the largest divisor up to the square root
    rows = next(r for r in range(math.isqrt(users), 0, -1) if users % r == 0)
    if rows < least:
        side = max(2, round(math.sqrt(users)))
        raise GraphError(
            f"{users} users do not fill a {name} of two or more rows; take {side * side} "
            f"({side} x {side})"
        )
    return rows, users // rows


def _dimension(users: int) -> int:
    if users < 1 or users & (users - 1):
        # the next power of two
        near = 1 << max(users - 1, 1).bit_length()
        raise GraphError(f"a hypercube has a power of two of users, not {users}; take {near}")
    return users.bit_length() - 1
