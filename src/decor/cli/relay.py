"""`decor relay`: joins users that cannot connect to each other."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Any

from decor.errors import require

from . import options as opt
from . import values
from .interrupts import sigterm_interrupts

_EXAMPLE = """example:
  decor relay heart.toml --listen :7500 --metrics 9465"""


def add_to(commands: Any) -> None:
    help = "join users that cannot connect to each other"
    parser = opt.add_command(commands, "relay", run, help, _EXAMPLE)
    parser.description = (
        "Join users that cannot connect to each other. Users whose address in the federation file "
        "is relay://HOST:PORT meet here. The relay passes on bytes that it cannot read, and admits "
        "only neighbours of the federation files that it is given. It reads them again on SIGHUP."
    )
    files = "federation files, or folders of them (*.toml)"
    parser.add_argument("files", nargs="+", metavar="FILE", help=files)
    listen = "address to listen on, such as :7500 for all interfaces; may be repeated"
    parser.add_argument(
        "--listen", action="append", required=True, metavar="HOST:PORT", help=listen
    )
    address = (
        "this relay's address in the federation files, needed if they name several relays; may be "
        "repeated"
    )
    parser.add_argument("--address", action="append", default=[], metavar="HOST:PORT", help=address)
    bandwidth = "megabytes per second that each user may send (default: 100)"
    parser.add_argument(
        "--bandwidth", type=values.number, default=100.0, metavar="MB", help=bandwidth
    )
    opt.add_metrics(parser)
    opt.add_log(parser)


def run(options: argparse.Namespace) -> int:
    with sigterm_interrupts():
        return _run(options)


def _run(options: argparse.Namespace) -> int:
    require("cryptography", "peer", "a relay")
    from decor.federation.operator import EventLog
    from decor.federation.relay_service import RelayService
    from decor.net.status import metrics_address

    from .node import hangups_ignored, open_log

    metrics = None if options.metrics is None else metrics_address(options.metrics)
    # files that change while it starts are read again once it runs
    with hangups_ignored():
        to = sys.stderr if options.log is None else open_log(Path(options.log))
        log = EventLog("relay", to, options.log_format)
        reopen = None if options.log is None else log.reopen
        files, rate = [Path(each) for each in options.files], 1e6 * options.bandwidth
        service = RelayService(files, options.listen, rate, log, metrics, reopen, options.address)
        return asyncio.run(service.run())
