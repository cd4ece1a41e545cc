"""The graph of a federation's file, with its users, and whether they can reach each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from decor.errors import InputError
from decor.graph import families
from decor.graph.topology import Topology
from decor.learning.file_rules import abbreviate, locate_errors
from decor.net.http_proxy import HttpProxy
from decor.net.neighbour import Neighbour
from decor.net.reach import Reach

from .file import Network
from .file_member import Member


def normalise(network: Network, members: Sequence[Member]) -> Network:
    """Fills in the rows of a torus or grid, and sorts edges: equal graphs have equal digests."""
    n, number = len(members), {m.name: k for k, m in enumerate(members)}
    if network.topology in ("torus", "grid") and network.rows is None:
        most_square = next(rows for rows in range(math.isqrt(n), 0, -1) if n % rows == 0)
        return replace(network, rows=most_square)
    if network.edges is None:
        return network
    unknown = [name for pair in network.edges for name in pair if name not in number]
    if unknown:
        raise InputError(
            f"network.edges names {abbreviate(unknown[0])}, which is not a user; correct it, or "
            "add the user"
        )
    # the order of the file's users, whatever order and direction the edges have
    pairs = sorted(tuple(sorted((number[a], number[b]))) for a, b in network.edges)
    return replace(network, edges=tuple((members[i].name, members[j].name) for i, j in pairs))


def topology_of(network: Network, members: Sequence[Member]) -> Topology:
    """The graph, with the users' names."""
    number = {m.name: k for k, m in enumerate(members)}
    if network.edges is None:
        # names in messages to people
        return replace(_family(network, len(members)), labels=tuple(number))
    pairs = [(number[a], number[b]) for a, b in network.edges]
    with locate_errors("network.edges: "):
        return families.from_edges(len(members), pairs, number)


def check_reach(topology: Topology, members: Sequence[Member]) -> None:
    """Raises unless the graph is connected, and of two neighbours one can dial the other."""
    # families are connected: only edges can be wrong here
    if not topology.is_connected:
        raise InputError(
            f"network.edges: the graph has {topology.component_count} parts that are not "
            "connected; add edges between them"
        )
    for i, j in topology.edges.tolist():
        a, b = members[i], members[j]
        if not a.address and not b.address:
            raise InputError(
                f"users.address is empty for {a.name!r} and {b.name!r}, who are neighbours: "
                "neither can dial the other; give one of them an address, or relay://host:port"
            )


def _family(network: Network, users: int) -> Topology:
    """The graph of that name."""
    name, rows = network.topology, network.rows or 1
    if name in ("torus", "grid") and users % rows:
        raise InputError(f"network.rows {rows} does not divide {users} users; take a divisor")
    if name == "hypercube" and users & (users - 1):
        raise InputError(f'network.topology "hypercube" takes a power of two of users, not {users}')
    with locate_errors(f'network.topology "{name}" does not fit {users} users: '):
        match name:
            case "torus":
                return families.torus(rows, users // rows)
            case "grid":
                return families.grid(rows, users // rows)
            case "hypercube":
                return families.hypercube(users.bit_length() - 1)
            case "path":
                return families.path(users)
            case "star":
                return families.star(users)
            case "complete":
                return families.complete(users)
            # "ring", the only name left (FAMILIES)
            case _:
                return families.ring(users)


def neighbours_of(
    topology: Topology, members: Sequence[Member], number: int
) -> tuple[Neighbour, ...]:
    """The neighbours of a user, and which of them it dials.

    Args:
        topology: The graph.
        members: All users.
        number: The user.
    """
    own = members[number]
    neighbours = []
    for j in topology.neighbours(number):
        other = members[j]
        # exactly one of two dials: the one that is harder to reach, else the higher number
        ease = own.ease, other.ease
        dials = number > j if ease[0] == ease[1] else ease[0] < ease[1]
        neighbours.append(
            Neighbour(int(j), other.name, other.public, other.address, dials, bool(number < j))
        )
    return tuple(neighbours)


def reach_of(
    digest: bytes, member: Member, listen: Sequence[str] | None, proxy: HttpProxy | None
) -> Reach:
    """Where a user can be reached, and how it reaches others.

    Args:
        digest: Of the federation's file.
        member: The user.
        listen: Addresses to accept connections at; None: those in the file.
        proxy: For all its outgoing connections.
    """
    direct = [str(each) for each in member.addresses if not each.is_relay]
    relays = tuple(each for each in member.addresses if each.is_relay)
    return Reach(digest, tuple(direct if listen is None else listen), relays, proxy)
