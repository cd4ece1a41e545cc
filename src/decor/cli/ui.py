"""`decor ui`: serves the planner's page to this machine only."""

from __future__ import annotations

import argparse
import os
import sys
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from decor.errors import InputError, LedgerError

from . import options as opt
from . import values
from .interrupts import sigterm_interrupts
from .json_output import write_json
from .node import require_libraries
from .status import read_state

if TYPE_CHECKING:
    from decor.ui.dispatcher import Watch

_EXAMPLE = """examples:
  decor ui                       # opens the page in the browser
  decor ui --watch run           # also shows the progress of decor train --output run
  decor ui --watch trial/run     # also shows the nodes of this machine, as a graph
  decor ui --metrics 127.0.0.1:9464,127.0.0.1:9465     # nodes with --metrics, or tunnels to them
  decor ui --no-browser --port 8000"""

_MAX_NODES = 256
_PRELOAD_AFTER = 1.0
"""Seconds after which slow libraries are loaded: the first page comes first."""


def add_to(commands: Any) -> None:
    help = "plan in the browser, or watch a run or a federation there"
    parser = opt.add_command(commands, "ui", run, help, _EXAMPLE)
    port = "port on 127.0.0.1 (default: any free port)"
    parser.add_argument("--port", type=values.whole, default=0, metavar="N", help=port)
    browser = "only print the address, without opening a browser"
    parser.add_argument("--no-browser", action="store_true", help=browser)
    watched = parser.add_mutually_exclusive_group()
    watch = "output folder of decor train, compare or up, or one with ledgers of nodes, to show"
    watched.add_argument("--watch", metavar="DIR", help=watch)
    metrics = "addresses of nodes started with --metrics, to show them as a graph; can be repeated"
    watched.add_argument("--metrics", action="append", metavar="HOST:PORT,...", help=metrics)
    as_json = "print the address as one JSON object on standard output"
    parser.add_argument("--json", action="store_true", help=as_json)


def run(options: argparse.Namespace) -> None:
    from decor.ui.dispatcher import Dispatcher
    from decor.ui.server import Server

    try:
        with (
            sigterm_interrupts(),
            Server(Dispatcher(_watch(options)), options.port) as server,
        ):
            _announce(server, options)
            _serve(server)
    except KeyboardInterrupt:  # the usual way to end it, and no error
        print("", file=sys.stderr)


def _announce(server: Any, options: argparse.Namespace) -> None:
    if options.json:
        watched = {"watch": options.watch, "metrics": options.metrics}
        write_json({"url": server.url, "port": server.server_port, **watched})
    else:
        print(
            f"The planner is at {server.url}\nOnly this machine can reach it. Press Ctrl-C to end."
        )
    sys.stdout.flush()
    # without a display a text browser would open in this very terminal
    display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if not options.no_browser and (display or sys.platform in ("darwin", "win32")):
        import webbrowser

        # in a thread, because some browsers return only when they are closed
        threading.Thread(target=webbrowser.open, args=(server.url,), daemon=True).start()


def _serve(server: Any) -> None:
    from decor.privacy.threads import one_thread
    from decor.ui.dispatcher import preload

    later = threading.Timer(_PRELOAD_AFTER, preload)
    later.daemon = True  # Ctrl-C in the first second must not wait for it
    later.start()
    # answers are many small products: BLAS threads that wait for each other take a hundred times
    # as long
    with one_thread():
        server.serve_forever()


def _watch(options: argparse.Namespace) -> Watch | None:
    if options.metrics is not None:
        return _metrics_watch(",".join(options.metrics).split(","))
    if options.watch is None:
        return None
    from decor.ui.watch import FolderWatch

    path = Path(options.watch).absolute()
    if path.exists() and not path.is_dir():
        raise InputError(f"--watch {options.watch!r} is a file; name the folder of a run")
    return FolderWatch(path, _read_node)


def _metrics_watch(words: Sequence[str]) -> Watch:
    require_libraries()
    from decor.net.addresses import split_address
    from decor.net.remote_status import query_remote
    from decor.ui.federation_watch import FederationWatch

    addresses = dict.fromkeys(word.strip() for word in words if word.strip())
    if not 0 < len(addresses) <= _MAX_NODES:
        raise InputError(f"--metrics takes 1 to {_MAX_NODES} addresses, not {len(addresses)}")
    for address in addresses:
        # a mistake is one error now, and not a node that never answers
        split_address(address)
    queries = {address: partial(query_remote, address) for address in addresses}
    return FederationWatch(", ".join(queries), lambda: queries)


def _read_node(ledger: Path) -> dict[str, Any]:
    """What `decor status` knows of a node, and from its ledger the federation's file and graph."""
    require_libraries()
    from decor.federation.spending import name_of, plan_of
    from decor.net.ledger_reading import read_entries

    state = read_state(ledger)
    if not state["running"] and not state["finished"] and "in_use" not in state:
        state["problem"] = _last_event(ledger.with_suffix(".log")) or state["problem"]
    try:
        entries = read_entries(ledger)
    except LedgerError:
        # `state` says what is wrong with it
        return state
    # a node may serve the model of an earlier run than the last
    runs = [entry for entry in entries if state.get("federation") in (None, name_of(entry))]
    if not runs:
        return state
    plan = plan_of(runs[-1])
    names = [plan.topology.name(user) for user in range(plan.topology.users)]
    planned = None if plan.budget is None else plan.budget.epsilon
    return (
        {"epsilon_planned": planned}
        | state
        | {
            "digest": runs[-1].federation.hex(),
            "users": names,
            "edges": [[names[a], names[b]] for a, b in plan.topology.edges.tolist()],
        }
    )


def _last_event(log: Path) -> str | None:
    """The last event of a log beside a ledger, where decor up writes it."""
    try:
        with log.open("rb") as file:
            # the last lines are enough: a log may be long
            file.seek(max(0, file.seek(0, os.SEEK_END) - 2000))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return None
    event = lines[-1].partition("event=")[2] if lines else ""
    return f"its last event: {event}" if event else None
