"""`decor ledger new`, `adopt`, `convert` and `end`: a ledger is made on purpose, bound to keys."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from decor.errors import InputError
from decor.text import amount, epsilon_text, rounded_up

from . import options as opt
from . import values
from .node import require_libraries

_NEW = """example:
  decor ledger new bonn.ledger --identity bonn.key --data "patients 2026" --allow 20"""
_ADOPT = """examples:
  decor ledger adopt bonn.ledger --identity new.key --old-key bonn.key
  decor ledger adopt bonn.ledger --identity new.key --old-key-lost"""
_END = """example:
  decor ledger end bonn.ledger --run 2"""
_CONVERT = """example:
  decor ledger convert bonn.ledger --identity bonn.key"""


def add_to(kinds: Any) -> None:
    identity = "the user's key file, written by decor keygen"
    data = "a name for the data whose spending is recorded"
    new = opt.add_command(
        kinds, "new", run_new, "make the ledger of a data set, once and for all its runs", _NEW
    )
    new.add_argument("file", metavar="FILE", help="the ledger, which does not exist yet")
    new.add_argument("--identity", required=True, metavar="FILE", help=identity)
    new.add_argument("--data", default="", metavar="NAME", help=data)
    allow = (
        "largest epsilon that all runs in the ledger may spend together, kept for each unit and "
        "adversary that any of them was planned for (default: no limit)"
    )
    new.add_argument("--allow", type=values.number, metavar="E", help=allow)
    delta = "failure probability of that limit (default: the smallest delta of its federations)"
    new.add_argument("--allow-delta", type=values.probability, metavar="D", help=delta)

    help = "let another key use a ledger, when a key is replaced"
    adopt = opt.add_command(kinds, "adopt", run_adopt, help, _ADOPT)
    adopt.add_argument("file", metavar="FILE", help="the ledger; it is changed in place")
    adopt.add_argument("--identity", required=True, metavar="FILE", help="the new key file")
    which = adopt.add_mutually_exclusive_group(required=True)
    old_key = "the file of a key that may already use the ledger; it signs the new key"
    which.add_argument("--old-key", metavar="FILE", help=old_key)
    which.add_argument("--old-key-lost", action="store_true", help="no key of the ledger is left")
    give_up = "leave a run unfinished for good; its whole plan stays counted"
    adopt.add_argument("--give-up-run", action="store_true", help=give_up)

    help = "end a run that will never go on, so that what it did not use is free again"
    end = opt.add_command(kinds, "end", run_end, help, _END)
    end.description = (
        "End a run that will never go on, so that what it did not use is free again. At user level "
        "the messages made count; at example level a run with any message counts as a whole. No "
        "node goes on with the run. The ledger must be the newest: messages that it lacks would "
        "not be counted."
    )
    end.add_argument("file", metavar="FILE", help="the ledger; it is changed in place")
    run = "number of the run, as decor ledger show has it"
    end.add_argument("--run", dest="ended", type=values.whole, required=True, metavar="N", help=run)

    help = "bring a ledger of version 0.1 up to date, keeping what it says"
    convert = opt.add_command(kinds, "convert", run_convert, help, _CONVERT)
    convert.add_argument("file", metavar="FILE", help="the ledger; it is changed in place")
    convert.add_argument("--identity", required=True, metavar="FILE", help=identity)
    convert.add_argument("--data", default="", metavar="NAME", help=data)


def check_allow(allow: float) -> None:
    """Refuses a limit that limits nothing, before a ledger is made, which happens once.

    Args:
        allow: The epsilon of --allow.
    """
    # written so that NaN is refused
    if not 0 < allow < float("inf"):
        raise InputError(f"--allow must be a finite number above 0, not {allow!r}")


def run_new(options: argparse.Namespace) -> None:
    require_libraries()
    from decor.net.identity import Identity
    from decor.net.ledger import Ledger

    if options.allow is not None:
        check_allow(options.allow)
    # alone it limits nothing, and the ledger's owner would believe that it does
    if options.allow is None and options.allow_delta is not None:
        raise InputError("--allow-delta belongs to --allow; give both")
    if options.allow_delta is not None and not 0 < options.allow_delta < 1:
        raise InputError(f"--allow-delta must lie between 0 and 1, not {options.allow_delta!r}")
    public = Identity.load(options.identity).public
    Ledger.create(options.file, public, options.data, options.allow, options.allow_delta)
    print(
        f"wrote {options.file}: the only ledger of this data. Keep it with the data; never copy "
        "it, restore an older one, or make a second one"
    )


def run_adopt(options: argparse.Namespace) -> None:
    require_libraries()
    from decor.net.identity import Identity
    from decor.net.ledger import Ledger, adoption_text

    new = Identity.load(options.identity)
    old = None if options.old_key is None else Identity.load(options.old_key)
    # this locks it too: a running node must not see its ledger change keys
    with Ledger(Path(options.file), None if old is None else old.public) as ledger:
        # nothing would change, so that most likely another key was meant
        if new.public in ledger.facts.identities:
            raise InputError(f"{options.file!r} has this key already")
        # with the ledger's id: a signature for one ledger must not open another
        signature = None if old is None else old.key.sign(adoption_text(ledger.id, new.public))
        # without an old key the ledger says that nobody signed, for whoever audits it
        signer = None if old is None else old.public
        ledger.adopt(new.public, signer, signature, options.give_up_run)
    print(f"{options.file} may be used with the key {new.line}")


def run_end(options: argparse.Namespace) -> None:
    require_libraries()
    from decor.federation.spending import epsilon_of_plan, name_of, own_figure
    from decor.net.ledger import Ledger
    from decor.net.ledger_reading import ENDED_EARLY

    # locked, so that no node can be about to make a message of the run
    with Ledger(Path(options.file)) as ledger:
        runs = {entry.run: entry for entry in ledger.entries()}
        entry = runs.get(options.ended)
        if entry is None:
            has = f"runs {', '.join(map(str, runs))}" if runs else "no run"
            raise InputError(f"{options.file!r} has no run {options.ended}; it has {has}")
        if entry.ended is not None:
            raise InputError(
                f"run {entry.run} in {options.file!r} has ended already ({entry.why}); nothing to "
                "do"
            )
        # before anything is written: a run that cannot be accounted for stays as it is
        planned, name = epsilon_text(epsilon_of_plan(entry)), name_of(entry)
        ledger.end(entry.run, ENDED_EARLY)
        (entry,) = [each for each in ledger.entries() if each.run == entry.run]
        spent = own_figure(entry)
    print(
        f"run {entry.run}, {name}, has ended after {amount(entry.steps, 'message')}, and never "
        f"goes on. It counts with epsilon {epsilon_text(spent.promised)} instead of {planned} "
        f"(delta {rounded_up(spent.delta)})"
    )


def run_convert(options: argparse.Namespace) -> None:
    require_libraries()
    from decor.net.identity import Identity
    from decor.net.ledger_conversion import convert_ledger
    from decor.net.ledger_reading import read_entries

    convert_ledger(options.file, Identity.load(options.identity).public, options.data)
    # read from the converted file: what is printed is what nodes will find
    runs = len(read_entries(Path(options.file)))
    print(f"{options.file} is up to date; it holds {runs} {'run' if runs == 1 else 'runs'}")
