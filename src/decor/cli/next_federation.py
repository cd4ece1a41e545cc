"""`decor federation renew`: the next federation, which starts from the last model."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from decor.errors import InputError, write_errors
from decor.federation.file import FAMILIES, Network, Privacy, Training

from . import options as opt
from . import values
from .federation_check import report, start_facts
from .federation_files import write_federation
from .user_options import SHAPE, pair, record_count, user_table

if TYPE_CHECKING:
    from decor.federation.federation import Federation
    from decor.federation.renewal import Changes
    from decor.federation.start_model import StartModel

_EXAMPLE = """examples:
  decor federation renew heart.toml --output heart-2.toml --start run-bonn
  # one hospital leaves, one joins, one has a new key
  decor federation renew heart-2.toml --output heart-3.toml --start run-bonn-2 --remove kiel \\
      --add jena,jena.example.org:7400,"decor-ed25519 ..." --replace-key ulm="decor-ed25519 ...\""""
_CHANGES: dict[type, tuple[str, ...]] = {
    Privacy: ("epsilon", "delta", "adversary", "ratio", "any_delta"),
    Training: ("steps", "learning_rate", "batch_size"),
    Network: ("timeout", "quorum", "patience"),
}
"""Fields that may change; what the data may be used for, such as clip and model, stays."""


def add_to(kinds: Any) -> None:
    help = "write the next federation, with changed members, which starts from the last model"
    parser = opt.add_command(kinds, "renew", run, help, _EXAMPLE)
    parser.add_argument("old", metavar="OLD", help="the present federation file")
    output = (
        "file to write; the model to start from is written beside it, as NAME.start.safetensors"
    )
    parser.add_argument("--output", required=True, metavar="FILE", help=output)
    overwrite = "replace the federation at FILE, if it has never run"
    parser.add_argument("--overwrite", action="store_true", help=overwrite)
    start = (
        "folder of a run of OLD, written by decor node or decor fetch, whose model training starts "
        "from; without it training starts from new weights"
    )
    parser.add_argument("--start", metavar="DIR", help=start)
    name = "name of the next federation (default: the old one with the next number)"
    parser.add_argument("--name", metavar="NAME", help=name)
    _add_members(parser.add_argument_group("members; each option can be repeated"))
    group = parser.add_argument_group("changes (default: as in OLD)")
    for kind, names in _CHANGES.items():
        for each in names:
            field = opt.field_of(kind, each)
            # the defaults of a new file are not those of its successor
            help = re.sub(r" \(default: [^)]*\)", "", field.metadata["help"])
            read = values.probability if each == "delta" else None
            opt.add_field(group, field, help=help, default=None, read=read)
    opt.add_json(parser)


def _add_members(group: argparse._ArgumentGroup) -> None:
    for flag, metavar, help in (
        ("--add", SHAPE, "a user who joins, as with decor federation new --user"),
        ("--remove", "NAME", "a user who leaves"),
        ("--replace-key", "NAME=KEY", "a user's new key: the line that decor keygen prints"),
        ("--address", "NAME=HOST:PORT", "a user's new address; empty if it only connects"),
        ("--records", "NAME=N", "a user's new number of examples, with --unit example"),
        (
            "--edge",
            "A:B",
            "an edge to add, if the file lists edges one by one (default: each new user gets as "
            "many edges as the least-connected user has, to the least-connected users)",
        ),
    ):
        group.add_argument(flag, action="append", default=[], metavar=metavar, help=help)
    names = f"{', '.join(FAMILIES[:-1])} or {FAMILIES[-1]}"
    topology = f"another graph, by its name: {names}"
    group.add_argument("--topology", metavar="NAME", help=topology)


def run(options: argparse.Namespace) -> None:
    from decor.federation.federation import Federation
    from decor.federation.renewal import last_model, renew

    old = Federation.read(options.old)
    changes = _changes(options, len(old.members))
    # of a run of the old file alone: of other models nobody knows what they have spent
    start = None if options.start is None else last_model(old, options.start)
    federation, attached = renew(old, changes, start)
    file = Path(options.output)
    # after `renew` has checked the whole: a change that is refused leaves no file
    written = {"file": str(file)} | _write(file, federation, start, options.overwrite)
    todo = list(_todo(changes, written, federation, Path(options.old).name))
    edges = [":".join(each) for each in attached]
    more = written | {"edges_added": edges, "todo": todo, **start_facts(federation, file)}
    report(federation, options.json, more, f"wrote {', '.join(written.values())}\n")
    if options.json:
        return
    # nobody asked for these: members may prefer other neighbours
    if edges:
        print(f"\nEdges added for those who join: {', '.join(edges)}. --edge A:B names others.")
    print("\nTo do:\n" + "\n".join(f"  - {each}" for each in todo))


def _changes(options: argparse.Namespace, count: int) -> Changes:
    from decor.federation.file_member import parse_member
    from decor.federation.file_rules import net_module
    from decor.federation.renewal import Changes

    members: dict[str, dict[str, Any]] = {}

    def change(flag: str, field: str, read: Any) -> None:
        for text in getattr(options, flag[2:].replace("-", "_")):
            name, value = pair(text, flag, "=", "NAME=VALUE")
            members.setdefault(name, {})[field] = read(value, f"{flag} {text!r}")

    def key(line: str, where: str) -> bytes:
        try:
            return bytes(net_module("identity").public_of(line))
        except InputError as problem:
            # several keys may be replaced at once: the message says which one is wrong
            raise InputError(f"{where}: {problem}") from None

    change("--replace-key", "public", key)
    change("--address", "address", lambda value, where: value)
    change("--records", "records", record_count)
    joining = [user_table(text, "--add") for text in options.add]
    given = {kind: opt.field_values(options, kind) for kind in _CHANGES}
    # the graph is no plain field: see `renewal`
    given[Network].pop("topology", None)
    return Changes(
        name=options.name,
        remove=options.remove,
        add=[parse_member(table, count + k) for k, table in enumerate(joining)],
        members=members,
        edges=tuple(pair(text, "--edge", ":", "A:B") for text in options.edge),
        topology=options.topology,
        privacy=given[Privacy],
        training=given[Training],
        network=given[Network],
    )


def _write(
    file: Path, federation: Federation, start: StartModel | None, overwrite: bool
) -> dict[str, str]:
    """Writes the federation file, and the model beside it; returns the model's path."""
    from decor.federation.start_model import path_beside

    # before any file is written, because it needs a library that may be missing
    content = None if start is None else start.file_bytes
    # refuses to replace a federation that has run, before its model is touched
    write_federation(file, federation.to_toml(), overwrite)
    if content is None:
        return {}
    path = path_beside(file)
    new = path.with_name(path.name + ".new")
    with write_errors(path, after="; make room, and run this again with --overwrite"):
        new.write_bytes(content)
        # in one move: half a file has another hash, and nodes would refuse to start
        os.replace(new, path)
    return {"start": str(path)}


def _todo(
    changes: Changes, written: dict[str, str], federation: Federation, old: str
) -> Iterator[str]:
    """What people have to do before the next run, as sentences."""
    files = " and ".join(Path(each).name for each in written.values())
    both = "Both are" if len(written) > 1 else "It is"
    yield f"Send {files} to all members. {both} public, and the same for everyone."
    places = (each for member in federation.members for each in member.addresses)
    relays = dict.fromkeys(str(each) for each in places if each.is_relay)
    if relays:
        # a relay knows federations by their digest: it would refuse all users of the new one
        yield (
            f"Send {Path(written['file']).name} to the operator of {' and of '.join(relays)} too: "
            f"into the relay's folder of files, beside {old} until that run has ended at all "
            "members, and then SIGHUP to the relay"
        )
    if "start" not in written:
        yield "Training starts from new weights; --start DIR takes the model of a run."
    # in advance, because the ledger would refuse a key that it does not know
    for name, changed in changes.members.items():
        if "public" in changed:
            yield (
                f"{name} has a new key: before its node starts there, decor ledger adopt LEDGER "
                "--identity NEW.key --old-key OLD.key"
            )
    # not always a new ledger: data that took part before keep what they have spent
    for member in changes.add:
        yield (
            f"{member.name} joins: decor ledger new LEDGER --identity KEY there, unless its data "
            "has a ledger already"
        )
    yield (
        "Members who took part before keep their ledger, which composes what their data has spent "
        "(decor ledger show LEDGER). A node starts only if all runs together are within the "
        "ledger's limit, or --allow"
    )
