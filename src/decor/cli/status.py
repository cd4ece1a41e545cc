"""`decor status`: what running nodes say of themselves, and what those who do not run any more have
left behind.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from decor.errors import InputError, LedgerError
from decor.text import rounded_up

from . import node
from . import options as opt
from .terminal import write_json

if TYPE_CHECKING:
    from decor.net.ledger import Entry

_STATUS = """examples:
  decor status bonn.ledger
  decor status trial/run         # everybody whom decor up has started"""


def add_commands(commands: Any) -> None:
    said = "ask a running node, or what a finished one has left"
    status = commands.add_parser(
        "status", help=said, epilog=_STATUS, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    status.set_defaults(run=run_status)
    status.add_argument("path", metavar="PATH", help="a node's ledger, or a folder of them")
    opt.add_json(status)


def run_status(options: argparse.Namespace) -> None:
    path = Path(options.path)
    said = [_of(ledger) for ledger in _ledgers(path)]
    if not any(each["running"] for each in said) and not all(each["finished"] for each in said):
        idle = "; ".join(f"{each['user']} {_why(each)}" for each in said if not each["finished"])
        raise InputError(
            f"no node is running in {str(path)!r}: {idle}; start it again with decor "
            "node or decor up to go on"
        )
    if options.json:
        write_json({"nodes": said})
        return
    for each in said:
        print("\n".join(_lines(each)))
    if all(each["finished"] for each in said):
        print(
            f"\nFinished: {'this user is' if len(said) == 1 else f'all {len(said)} users are'} "
            "done, and nothing is running."
        )


def _ledgers(path: Path) -> list[Path]:
    """The ledgers that a path names; those whose node is starting may be there as a socket
    alone.
    """
    if not path.is_dir():
        return [path.with_suffix("") if path.suffix == ".socket" else path]
    found = sorted(
        {
            *path.glob("*.ledger"),
            *(socket.with_suffix("") for socket in path.glob("*.ledger.socket")),
        }
    )
    if not found:
        nearby = sorted(path.glob("*/*.ledger"))
        hint = (
            f"; name the folder {str(nearby[0].parent)!r}"
            if nearby
            else "; start one with decor node or decor up"
        )
        raise InputError(
            f"no node is running in {str(path)!r}, and none has left a ledger there{hint}"
        )
    return found


def _of(ledger: Path) -> dict[str, Any]:
    """What a node says of itself, or its ledger of the last run."""
    from decor.net import status
    from decor.net.ledger import left_behind

    try:
        return {"running": True, "finished": False} | status.asked(node.socket_of(ledger))
    except InputError:
        if not ledger.is_file():
            raise
    blank: dict[str, Any] = {
        "running": False,
        "finished": False,
        "user": ledger.stem,
        "problem": None,
        "result": None,
    }
    try:
        entries = left_behind(ledger)
    except LedgerError as problem:
        return blank | {"problem": str(problem)}
    if entries is None:
        return blank | {"problem": "does not answer: it is starting or ending, or was killed"}
    return blank | (_left(ledger, entries[-1]) if entries else {"problem": "has never begun"})


def _left(ledger: Path, last: Entry) -> dict[str, Any]:
    node.installed()
    from decor.federation.spending import name_of, paid, planned, promise

    guarantee, promised, steps = paid(last), promise(last), planned(last).exposure.steps
    finished = last.ended is not None
    return {
        "federation": name_of(last),
        "finished": finished,
        "step": steps if finished else (last.last_step or 0),
        "steps": steps,
        "messages": last.steps,
        "missed": steps - last.steps if finished else None,
        "epsilon": (promised if last.steps else guarantee).epsilon,
        "epsilon_if_fixed": guarantee.epsilon,
        "delta": guarantee.delta,
        "result": _result(ledger, last.federation.hex()) if finished else None,
    }


def _result(ledger: Path, federation: str) -> str | None:
    """The folder of the run, where decor up and decor node put it by default."""
    for folder in (
        ledger.with_suffix(""),
        ledger.with_name(f"run-{ledger.stem}"),
        Path(f"run-{ledger.stem}"),
    ):
        try:
            held = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(held, dict) and held.get("federation") == federation:
            return str(folder)
    return None


def _why(each: dict[str, Any]) -> str:
    return each["problem"] or f"stopped at step {each['step']} of {each['steps']}"


def _lines(each: dict[str, Any]) -> list[str]:
    if each.get("problem"):
        return [f"{each['user']}: {each['problem']}"]
    state = f"paused: {each['paused']}" if each.get("paused") else "at work"
    where = (
        state
        if each["running"]
        else "finished"
        if each["finished"]
        else "not running; start it again to go on"
    )
    missed = "" if each["missed"] is None else f", {each['missed']} steps missed"
    lines = [
        f"{each['user']} in {each['federation']}: step {each['step']} of {each['steps']}, {where}",
        f"  promised: epsilon {rounded_up(each['epsilon'])} (delta {rounded_up(each['delta'])}), "
        f"the whole plan's; {each['messages']} "
        f"messages{missed}: epsilon {rounded_up(each['epsilon_if_fixed'])} if that was fixed in "
        "advance",
    ]
    for other in each.get("neighbours", ()):
        lines.append(
            f"  {other['name']}: "
            f"{'here' if other['here'] else 'done' if other['done'] else other['problem']}"
        )
    if each["finished"]:
        lines.append(
            "  its model and run: "
            f"{each['result'] or 'in the folder that decor node was given as --output'}"
        )
    return lines
