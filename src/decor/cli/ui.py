"""`decor ui`: the planner's page, on this machine alone."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from decor.errors import InputError

from . import options as opt
from .terminal import write_json

_UI = """examples:
  decor ui                       # opens the page in the browser
  decor ui --watch run           # and shows what decor train --output run has measured so far
  decor ui --no-browser --port 8000"""


_WARM = 1.0
"""Seconds after which what is needed later is loaded: the first page comes first."""


def add_commands(commands: Any) -> None:
    raw = argparse.RawDescriptionHelpFormatter
    ui = commands.add_parser(
        "ui", help="plan in the browser, and watch a run", epilog=_UI, formatter_class=raw
    )
    ui.set_defaults(run=run_ui)
    ui.add_argument(
        "--port",
        type=opt.whole,
        default=0,
        metavar="N",
        help="on 127.0.0.1 (default: any that is free)",
    )
    ui.add_argument("--no-browser", action="store_true", help="print the address, and open nothing")
    ui.add_argument(
        "--watch",
        metavar="FOLDER",
        help="a folder of decor train, compare or up, to be shown as it is written",
    )
    ui.add_argument(
        "--json",
        action="store_true",
        help="one JSON object with the address on standard output, and go on",
    )


def run_ui(options: argparse.Namespace) -> None:
    from decor.ui.desk import Desk
    from decor.ui.server import Server

    signal.signal(signal.SIGTERM, _ended)
    try:
        with Server(Desk(_watch(options.watch)), options.port) as server:
            _tell(server, options)
            _serve(server)
    except KeyboardInterrupt:  # how one ends it
        print("", file=sys.stderr)


def _ended(*_: object) -> None:
    raise KeyboardInterrupt


def _tell(server: Any, options: argparse.Namespace) -> None:
    if options.json:
        write_json({"url": server.url, "port": server.server_port, "watch": options.watch})
    else:
        print(
            f"The planner is at {server.url}\nIt is for this machine alone. Press Ctrl-C to end it."
        )
    sys.stdout.flush()
    if not options.no_browser and _has_display():
        threading.Thread(target=_open, args=(server.url,), daemon=True).start()


def _serve(server: Any) -> None:
    """One BLAS thread: answers are many small products, and threads that wait for each other take a
    hundred times as long.
    """
    from decor.privacy.threads import one_thread
    from decor.ui.desk import warm

    later = threading.Timer(_WARM, warm)
    later.daemon = True
    later.start()
    with one_thread():
        server.serve_forever()


def _watch(folder: str | None) -> Any:
    if folder is None:
        return None
    from decor.net import status
    from decor.ui.watch import Watch

    path = Path(folder).absolute()
    if path.exists() and not path.is_dir():
        raise InputError(f"--watch {folder!r} is a file; name the folder of a run")
    return Watch(path, status.asked)


def _has_display() -> bool:
    """Without one, what would open is a browser of letters, in this very terminal."""
    return sys.platform in ("darwin", "win32") or bool(
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    )


def _open(url: str) -> None:
    import webbrowser

    webbrowser.open(url)
