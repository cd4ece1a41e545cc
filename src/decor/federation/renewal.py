"""Renewal: the next federation of the same members, more or less, on the same kind of data.

What data may be used for stays: the model, what is protected, and the clip. Members, keys,
addresses, the budget and the length of training may change; all of it is checked as in every file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from decor.errors import InputError
from decor.learning.build_model import build
from decor.learning.file_rules import locate_errors
from decor.results.run import Run

from .federation import Federation
from .file import Network
from .file_member import Member
from .start_model import StartModel

Edges = tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Changes:
    """What is different in the next federation; the rest is as before.

    Attributes:
        name: Its name; None: the old one with the next number.
        remove: Names of members who leave.
        add: Members who join.
        members: Name -> changed fields of a member who stays.
        edges: Edges to add to a graph that is given by its edges, as pairs of names.
        topology: A graph by its name, in place of the old one.
        privacy: Changed fields of the section [privacy].
        training: Changed fields of [training].
        network: Changed fields of [network], other than the graph.
    """

    name: str | None = None
    remove: Sequence[str] = ()
    add: Sequence[Member] = ()
    members: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    edges: Edges = ()
    topology: str | None = None
    privacy: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    network: Mapping[str, Any] = field(default_factory=dict)


def renew(
    old: Federation, changes: Changes, start: StartModel | None = None
) -> tuple[Federation, Edges]:
    """The next federation, and the edges that it was given because no one named any.

    Args:
        old: The federation so far.
        changes: What is different.
        start: The model that training begins with, for which torch is loaded; None: new weights.

    Raises:
        InputError: A change names no member, or the result is no federation that can be run.
    """
    members = _members(old, changes)
    network, attached = _network(old, members, changes)
    way_out = (
        ". Change that with options of decor federation renew, such as --edge, --topology, "
        "--adversary, --records or --epsilon"
    )
    with locate_errors("the next federation: ", way_out):
        new = replace(
            old,
            name=next_name(old.name) if changes.name is None else changes.name,
            privacy=replace(old.privacy, **changes.privacy),
            training=replace(old.training, **changes.training),
            model=replace(old.model, start_sha256=None if start is None else start.sha256),
            network=replace(network, **changes.network),
            members=members,
        )
        if new.name == old.name:
            raise InputError(
                f"the name {new.name!r} is that of the old one; take another with --name"
            )
        # before anything is written: the budget must be one that noise can meet
        new.guarantee()
    if start is not None:
        # once here: a model that does not fit would otherwise fail at every party
        start.load_into(build(new.model, new.dtype)[0])
    return new, attached


def next_name(name: str) -> str:
    """heart -> heart-2 -> heart-3."""
    numbered = re.fullmatch(r"(.+)-(\d+)", name)
    return f"{name}-2" if numbered is None else f"{numbered[1]}-{int(numbered[2]) + 1}"


def last_model(old: Federation, path: str | Path) -> StartModel:
    """The model of a run of the old federation, or the one that this began with itself.

    Args:
        old: The federation so far.
        path: The folder of a run, or the file of a model.

    Raises:
        InputError: The model is of something else, so that nothing says what it has cost.

    Guarantee: the model is a function of messages that the ledgers of their senders account for.
    """
    if not Path(path).is_dir():
        start = StartModel.read(path)
        if start.sha256 != old.model.start_sha256:
            raise InputError(
                f"{str(path)!r} is not the model that {old.name} began with, and a file does not "
                "say what its model has cost; give --start the folder of a run of that federation"
            )
        return start
    run = Run.load(path)
    if run.manifest.get("federation") != old.digest.hex() or run.simulated:
        raise InputError(
            f"{str(path)!r} is not a run of {old.name} as its file is now: nothing says that its "
            "model is covered by the members' ledgers; give --start the folder that decor node or "
            "decor fetch has written for that federation"
        )
    return StartModel.of_run(run)


def _members(old: Federation, changes: Changes) -> tuple[Member, ...]:
    """Those who stay, in their order, and then those who join."""
    known = {member.name for member in old.members}
    for name in (*changes.remove, *changes.members):
        if name not in known:
            raise InputError(
                f"{name!r} is no member of {old.name}; its members are {', '.join(sorted(known))}"
            )
    for name in changes.members:
        if name in changes.remove:
            raise InputError(f"{name!r} is removed, and cannot change; drop one of the two options")
    staying = [member for member in old.members if member.name not in changes.remove]
    changed = [replace(each, **changes.members.get(each.name, {})) for each in staying]
    return (*changed, *changes.add)


def _network(old: Federation, members: Sequence[Member], changes: Changes) -> tuple[Network, Edges]:
    """The graph of the next federation, and the edges that it was given by `_attach`."""
    network, names = old.network, [member.name for member in members]
    if changes.topology is not None:
        network = replace(network, topology=changes.topology, rows=None, edges=None)
    if network.edges is None:
        if changes.edges:
            raise InputError(
                f"--edge is for a graph that is given by its edges, and this one is a "
                f"{network.topology}; drop it"
            )
        # rows that no longer fit are chosen anew: as square as possible
        fits = network.rows is None or len(names) % network.rows == 0
        return (network if fits else replace(network, rows=None)), ()
    kept = [pair for pair in network.edges if not {*pair} & {*changes.remove}]
    given = [*kept, *changes.edges]
    attached = _attach(members, given, [each.name for each in changes.add])
    return replace(network, edges=(*given, *attached)), attached


def _attach(
    members: Sequence[Member], edges: Sequence[tuple[str, str]], joining: Sequence[str]
) -> Edges:
    """Edges for members who join and have none.

    As many as the member with the fewest has, so that no one who joins is more exposed than others
    were; to members with the fewest, the first in the file of those, one of the two reachable.
    """
    member = {each.name: each for each in members}
    degree = {name: sum(name in pair for pair in edges) for name in member}
    settled = [name for name in member if name not in joining or degree[name]]
    attached: list[tuple[str, str]] = []
    for name in joining:
        if name in settled:
            continue
        wanted = max(1, min((degree[each] for each in settled), default=1))
        near = [each for each in settled if member[each].address or member[name].address]
        for other in sorted(near, key=degree.__getitem__)[:wanted]:
            attached.append((other, name))
            degree[other] += 1
            degree[name] += 1
        # the next one that joins may be attached to it
        settled.append(name)
    return tuple(attached)
