"""`decor status`: the state of running nodes, and the last state of those that have ended."""

from __future__ import annotations

import argparse
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from decor.errors import InputError, LedgerError
from decor.federation.user_files import socket_of
from decor.results.safe_files import json_or_empty
from decor.text import amount, rounded_up

from . import options as opt
from .json_output import write_json
from .node import require_libraries

if TYPE_CHECKING:
    from decor.federation.spending import Figure
    from decor.net.ledger_reading import Entry

_EXAMPLE = """examples:
  decor status bonn.ledger
  decor status trial/run         # all users that decor up has started"""


def add_to(commands: Any) -> None:
    help = "show the state of nodes, running or finished"
    parser = opt.add_command(commands, "status", run, help, _EXAMPLE)
    parser.add_argument("path", metavar="PATH", help="a node's ledger, or a folder of ledgers")
    opt.add_json(parser)


def run(options: argparse.Namespace) -> None:
    path = Path(options.path)
    nodes = [read_state(ledger) for ledger in _ledgers(path)]
    finished = all(node["finished"] for node in nodes)
    if not finished and not any(node["running"] for node in nodes):
        left = [node for node in nodes if not node["finished"]]
        idle = "; ".join(f"{each['user']} {_why_idle(each)}" for each in left)
        # a run that has ended cannot be continued
        restart = "; restart it with decor node or decor up"
        way_out = "" if all(each["ended"] for each in left) else restart
        raise InputError(f"no node is running in {str(path)!r}: {idle}{way_out}")
    if options.json:
        write_json({"nodes": nodes})
        return
    for node in nodes:
        print("\n".join(_lines(node)))
    if finished:
        users = "this user is" if len(nodes) == 1 else f"all {len(nodes)} users are"
        print(f"\nFinished: {users} done, and nothing is running.")


def _ledgers(path: Path) -> list[Path]:
    """The ledgers that a path names."""
    if not path.is_dir():
        # the socket of bonn.ledger is bonn.ledger.socket
        return [path.with_suffix("") if path.suffix == ".socket" else path]
    # a node that is just starting has a socket, and no ledger yet
    starting = {socket.with_suffix("") for socket in path.glob("*.ledger.socket")}
    ledgers = sorted({*path.glob("*.ledger")} | starting)
    if not ledgers:
        nearby = sorted(path.glob("*/*.ledger"))
        folder = f"name the folder {str(nearby[0].parent)!r}" if nearby else ""
        raise InputError(
            f"no node is running in {str(path)!r}, and there is no ledger; "
            + (folder or "start one with decor node or decor up")
        )
    return ledgers


def read_state(ledger: Path) -> dict[str, Any]:
    """The answer of a running node, or what the ledger says about the last run.

    Args:
        ledger: Of the node.

    Raises:
        InputError: If no node answers, and there is no ledger.
    """
    from decor.net import status
    from decor.net.ledger_reading import is_in_use, read_entries

    try:
        running = {"running": True, "finished": False, "ended": None}
        return running | status.query(socket_of(ledger))
    except InputError:
        # no node answers, so that the ledger is all there is to read
        if not ledger.is_file():
            raise
    idle = {"running": False, "finished": False, "ended": None, "user": ledger.stem}
    idle |= {"problem": None, "result": None, "noise_left": None}
    try:
        if is_in_use(ledger):
            return idle | {"problem": "does not answer: it is starting or ending", "in_use": True}
        entries = read_entries(ledger)
    except LedgerError as problem:
        return idle | {"problem": str(problem)}
    return idle | (_last_run(ledger, entries[-1]) if entries else {"problem": "has never begun"})


def _last_run(ledger: Path, last: Entry) -> dict[str, Any]:
    require_libraries()
    from decor.federation.spending import name_of, plan_of
    from decor.net.ledger_reading import FINISHED

    own, epsilon = _costs(last)
    steps = plan_of(last).exposure.steps
    finished = last.why == FINISHED
    return {
        "federation": name_of(last),
        "finished": finished,
        # before its end: why
        "ended": None if finished else last.why,
        "step": steps if finished else (last.last_step or 0),
        "steps": steps,
        "messages": last.steps,
        "missed": steps - last.steps if finished else None,
        # without a message nothing is spent; with one, only the whole plan's guarantee holds
        # whatever made the run stop
        "epsilon": epsilon if last.steps else 0.0,
        "epsilon_if_fixed": own.so_far,
        "delta": own.delta,
        **(_result(ledger, last.federation.hex()) if finished else {}),
    }


@lru_cache(maxsize=256)
def _costs(entry: Entry) -> tuple[Figure, float]:
    """What a run costs, and epsilon of its plan; `decor ui` asks every second."""
    from decor.federation.spending import epsilon_of_plan, own_figure

    return own_figure(entry), epsilon_of_plan(entry)


def _result(ledger: Path, federation: str) -> dict[str, Any]:
    """The folder of the run and its noise, if it is where decor up or node puts it by default."""
    name = f"run-{ledger.stem}"
    for folder in (ledger.with_suffix(""), ledger.with_name(name), Path(name)):
        manifest = json_or_empty(folder / "manifest.json")
        if manifest.get("federation") == federation:
            return {"result": str(folder), "noise_left": manifest.get("noise_left")}
    return {}


def _why_idle(node: dict[str, Any]) -> str:
    ended = "has ended" if node["ended"] else "stopped"
    why = f": {node['ended']}" if node["ended"] else ""
    return node["problem"] or f"{ended} at step {node['step']} of {node['steps']}{why}"


def _lines(node: dict[str, Any]) -> list[str]:
    if node.get("problem"):
        return [f"{node['user']}: {node['problem']}"]
    if node["running"]:
        state = f"paused: {node['paused']}" if node.get("paused") else "running"
    elif node["ended"]:
        state = f"ended: {node['ended']}"
    else:
        state = "finished" if node["finished"] else "not running; restart it to go on"
    missed = "" if node["missed"] is None else f", {amount(node['missed'], 'step')} missed"
    epsilon, delta, fixed = (
        rounded_up(node[name]) for name in ("epsilon", "delta", "epsilon_if_fixed")
    )
    if node["epsilon"]:
        spent = f"for the whole plan; {node['messages']} messages{missed}"
        spent += f" (for information: epsilon {fixed} if their number was fixed in advance)"
    else:
        spent = f"so far: no message has been made{missed}"
    lines = [
        f"{node['user']} in {node['federation']}: step {node['step']} of {node['steps']}, {state}",
        f"  guarantee: epsilon {epsilon} (delta {delta}) {spent}",
    ]
    # unknown where no node answers and its folder is elsewhere, or of version 0.1
    if (left := node.get("noise_left") or 1.0) > 1:
        lines.append(f"  noise left: {rounded_up(left)} x planned, which did not cancel")
    for other in node.get("neighbours", ()):
        answer = "here" if other["here"] else "done" if other["done"] else other["problem"]
        lines.append(f"  {other['name']}: {answer}")
    if node["finished"]:
        folder = node["result"] or "in the folder given to decor node as --output"
        lines.append(f"  model and run: {folder}")
    return lines
