"""Values that belong to users are matched by user name, never by position in a list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from decor.errors import InputError

from .topology import Topology

T = TypeVar("T")


def in_order(given: Mapping[str, T], topology: Topology, what: str) -> list[T]:
    """The values of a mapping from user names, in the graph's order.

    Args:
        given: One value per user, by name. Users without labels are called "0" to "n-1".
        topology: The graph.
        what: What an error calls the mapping.

    Raises:
        InputError: If a user is missing or unknown; the message names it.
    """
    names = [topology.name(user) for user in range(topology.users)]
    known = set(names)
    missing = [name for name in names if name not in given]
    unknown = [name for name in given if name not in known]
    if not missing and not unknown:
        return [given[name] for name in names]
    # no name is known, so the caller expects a graph with labels, and renaming is the way out
    if topology.labels is None and len(unknown) == len(given):
        raise InputError(
            f"{what} names users ({_join(unknown)}), but those of {topology!r} have no names; "
            f"give a list for users 0..{topology.users - 1}, or name them with "
            "dataclasses.replace(topology, labels=[...])"
        )
    wrong = [f"has nothing for {_join(missing)}"] if missing else []
    wrong += [f"names {_join(unknown)}, whom the graph does not have"] if unknown else []
    raise InputError(f"{what} {' and '.join(wrong)}; give one for every user of the graph, by name")


def list_refusal(topology: Topology, what: str, such: str) -> str:
    """Why a list is refused for users with names, and what to write instead.

    Args:
        topology: The graph, whose users have names.
        what: The argument that is a list.
        such: One value, as it would be typed.
    """
    # two users are enough to show the form
    pairs = ", ".join(f'"{topology.name(user)}": {such}' for user in range(min(2, topology.users)))
    more = ", ..." if topology.users > 2 else ""
    return (
        f"{what} is a list, but the users of this graph have names "
        f"({_join(topology.labels or ())}), and a list in another order would give one user's "
        f"to another; write {what}={{{pairs}{more}}}"
    )


def _join(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
