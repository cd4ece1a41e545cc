"""The graph that a federation's file names, with its users, and whether they can reach each
other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from decor.errors import GraphError, InputError
from decor.graph import families
from decor.graph.topology import Topology

from .file import Member, Network, shown


def drawn_out(network: Network, members: Sequence[Member]) -> Network:
    """The network with what follows from the users: the rows of a torus or grid, and edges in one
    order.
    """
    n, number = len(members), {m.name: k for k, m in enumerate(members)}
    if network.topology in ("torus", "grid") and network.rows is None:
        return replace(
            network, rows=next(rows for rows in range(math.isqrt(n), 0, -1) if n % rows == 0)
        )
    if network.edges is None:
        return network
    strangers = [name for pair in network.edges for name in pair if name not in number]
    if strangers:
        raise InputError(
            f"network.edges names {shown(strangers[0])}, who is no user; mend it, or add the user"
        )
    pairs = sorted(tuple(sorted((number[a], number[b]))) for a, b in network.edges)
    return replace(network, edges=tuple((members[i].name, members[j].name) for i, j in pairs))


def topology_of(network: Network, members: Sequence[Member]) -> Topology:
    """The graph, with the users' names."""
    number = {m.name: k for k, m in enumerate(members)}
    if network.edges is None:
        return replace(_family(network, len(members)), labels=tuple(number))
    try:
        return families.from_edges(
            len(members), [(number[a], number[b]) for a, b in network.edges], number
        )
    except GraphError as problem:
        raise InputError(f"network.edges: {problem}") from None


def check_reach(topology: Topology, members: Sequence[Member]) -> None:
    """Everybody hears of everybody in the end, and of two neighbours one can dial the other."""
    if not topology.is_connected:
        raise InputError(
            f"network.edges: the graph has {topology.component_count} parts that never hear of "
            "each other; join them"
        )
    for i, j in topology.edges.tolist():
        a, b = members[i], members[j]
        if not a.address and not b.address:
            raise InputError(
                f"users.address is empty for {a.name!r} and {b.name!r}, who are neighbours: "
                "neither can dial the other; "
                "give one of them an address"
            )


def _family(network: Network, users: int) -> Topology:
    """The graph of that name."""
    try:
        match network.topology:
            case "torus" | "grid":
                rows = network.rows or 1
                if users % rows:
                    raise InputError(
                        f"network.rows {rows} does not divide {users} users; take a divisor"
                    )
                return (families.torus if network.topology == "torus" else families.grid)(
                    rows, users // rows
                )
            case "hypercube":
                if users & (users - 1):
                    raise InputError(
                        f'network.topology "hypercube" takes a power of two of users, not {users}'
                    )
                return families.hypercube(users.bit_length() - 1)
            case "path":
                return families.path(users)
            case "star":
                return families.star(users)
            case "complete":
                return families.complete(users)
            case _:
                return families.ring(users)
    except GraphError as problem:
        raise InputError(
            f'network.topology "{network.topology}" does not fit {users} users: {problem}'
        ) from None
