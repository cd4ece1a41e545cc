"""`decor ui`: serves the planner's page to this machine only."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any, NoReturn

from decor.errors import InputError

from . import options as opt
from . import values
from .terminal import write_json

_EXAMPLE = """examples:
  decor ui                       # opens the page in the browser
  decor ui --watch run           # also shows the progress of decor train --output run
  decor ui --no-browser --port 8000"""

_PRELOAD_AFTER = 1.0
"""Seconds after which slow libraries are loaded: the first page comes first."""


def add_to(commands: Any) -> None:
    help = "plan in the browser, or watch a run there"
    parser = opt.add_command(commands, "ui", run, help, _EXAMPLE)
    port = "port on 127.0.0.1 (default: any free port)"
    parser.add_argument("--port", type=values.whole, default=0, metavar="N", help=port)
    browser = "only print the address, without opening a browser"
    parser.add_argument("--no-browser", action="store_true", help=browser)
    watch = "output folder of decor train, compare or up, to show its progress"
    parser.add_argument("--watch", metavar="DIR", help=watch)
    as_json = "print the address as one JSON object on standard output"
    parser.add_argument("--json", action="store_true", help=as_json)


def run(options: argparse.Namespace) -> None:
    from decor.ui.dispatcher import Dispatcher
    from decor.ui.server import Server

    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with Server(Dispatcher(_folder_watch(options.watch)), options.port) as server:
            _announce(server, options)
            _serve(server)
    except KeyboardInterrupt:  # the usual way to end it, and no error
        print("", file=sys.stderr)


def _interrupt(*_: object) -> NoReturn:
    """SIGTERM ends the command like Ctrl-C: the server is closed, and the exit status is 0."""
    raise KeyboardInterrupt


def _announce(server: Any, options: argparse.Namespace) -> None:
    if options.json:
        write_json({"url": server.url, "port": server.server_port, "watch": options.watch})
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


def _folder_watch(folder: str | None) -> Any:
    if folder is None:
        return None
    from decor.net import status
    from decor.ui.watch import FolderWatch

    path = Path(folder).absolute()
    if path.exists() and not path.is_dir():
        raise InputError(f"--watch {folder!r} is a file; name the folder of a run")
    return FolderWatch(path, status.query)
