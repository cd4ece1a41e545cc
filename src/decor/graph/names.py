"""What belongs to users, by their names: nothing is paired with a named user by its place in a
list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from decor.errors import InputError

from .topology import Topology

T = TypeVar("T")


def in_order(given: Mapping[str, T], topology: Topology, what: str) -> list[T]:
    """The values of a mapping from users' names, in the graph's order.

    Users without labels are called "0" to "n-1". `what` is what an error calls the mapping. Raises
    where a user is missing or unknown, and names it.
    """
    names = [topology.name(user) for user in range(topology.users)]
    known = set(names)
    missing = [name for name in names if name not in given]
    unknown = [name for name in given if name not in known]
    if not missing and not unknown:
        return [given[name] for name in names]
    if topology.labels is None and len(unknown) == len(given):
        raise InputError(
            f"{what} names users ({listed(unknown)}), but those of {topology!r} have no names; "
            "give a list for users "
            f"0..{topology.users - 1}, or name them with dataclasses.replace(topology, "
            "labels=[...])"
        )
    wrong = [f"has nothing for {listed(missing)}"] if missing else []
    wrong += [f"names {listed(unknown)}, whom the graph does not have"] if unknown else []
    raise InputError(f"{what} {' and '.join(wrong)}; give one for every user of the graph, by name")


def not_a_list(topology: Topology, what: str, such: str) -> str:
    """The refusal of a list where users have names: why, and what to write instead; `such` is one
    value.
    """
    named = ", ".join(f'"{topology.name(user)}": {such}' for user in range(min(2, topology.users)))
    more = ", ..." if topology.users > 2 else ""
    return (
        f"{what} is a list, but the users of this graph have names "
        f"({listed(topology.labels or ())}), and a list in another "
        f"order would give one user's to another; write {what}={{{named}{more}}}"
    )


def listed(names: Sequence[str]) -> str:
    """Some names, for a sentence."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
