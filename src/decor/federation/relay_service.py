"""A relay as its operator sees it: files of federations, signals, metrics."""

from __future__ import annotations

import asyncio
import platform
import resource
import signal
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from decor.errors import DecorError, InputError
from decor.net.accepting import Log
from decor.net.addresses import RELAY, Address, listen, split_address
from decor.net.metrics import relay_text
from decor.net.relay import Admission, Relay
from decor.net.relay_protocol import relay_id
from decor.net.status import serve_metrics
from decor.version import __version__

from .exit_codes import INTERRUPTED
from .federation import Federation
from .operator import asyncio_messages_to, hangups_to


@dataclass(frozen=True)
class RelayService:
    """Runs a relay until SIGINT or SIGTERM; on SIGHUP it reads its files and opens its log anew.

    Attributes:
        files: Federation files, or folders of them.
        listen: Addresses to accept connections at.
        bytes_per_second: That each user may send.
        log: Receives events.
        metrics: Address of health checks and metrics over HTTP; None: none.
        reopen_log: Called at SIGHUP, before the files are read; None: nothing to reopen.
        addresses: Of this relay in the files; needed where they name several relays.
    """

    files: Sequence[Path]
    listen: Sequence[str]
    bytes_per_second: float
    log: Log
    metrics: str | None = None
    reopen_log: Callable[[], None] | None = None
    addresses: Sequence[str] = ()

    async def run(self) -> int:
        """Returns the exit code."""
        if not self.bytes_per_second > 0:
            raise InputError(f"--bandwidth must be positive, not {self.bytes_per_second / 1e6:g}")
        own = frozenset(
            relay_id(Address(*split_address(each.removeprefix(RELAY)), is_relay=True))
            for each in self.addresses
        )
        # before a port is open: with a wrong file it must end, not refuse every user
        relay = Relay(self._read(), self.log, self.bytes_per_second, own)
        _raise_descriptor_limit()
        # all of them before one accepts: where a port is taken nobody must get connected
        sockets = [each for address in self.listen for each in listen(address)]
        loop, stopped = asyncio.get_running_loop(), asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stopped.set)
        async with AsyncExitStack() as stack:
            stack.enter_context(asyncio_messages_to(self.log))
            if self.metrics is not None:
                await stack.enter_async_context(self._serve_metrics(self.metrics, relay))
            relay.open(sockets)
            stack.enter_context(hangups_to(partial(self._reload, relay)))
            await stopped.wait()
            await relay.close()
        self.log("stopped", why="by its operator")
        return INTERRUPTED

    def _serve_metrics(self, address: str, relay: Relay) -> AbstractAsyncContextManager[None]:
        build = {"version": __version__, "python": platform.python_version()}

        def describe() -> dict[str, Any]:
            return {**relay.status(), "build": build}

        # it waits for nobody: a relay that answers is ready
        return serve_metrics(address, describe, lambda: None, self.log, relay_text)

    def _read(self) -> dict[bytes, Admission]:
        admissions = read_admissions(self.files)
        for each in admissions.values():
            if len(each.relays) > 1 and not self.addresses:
                raise InputError(
                    f"users of the federation {each.name!r} name {len(each.relays)} relays; say "
                    "which one this is: --address HOST:PORT, as the file has it"
                )
        return admissions

    def _reload(self, relay: Relay) -> None:
        if self.reopen_log is not None:
            # first: what is wrong with the files is to be read in the new log
            self.reopen_log()
        try:
            relay.admissions = self._read()
        except DecorError as problem:
            # users of the other files must not suffer from a typing error
            self.log("files not read again", why=str(problem))
        else:
            names = ", ".join(sorted(each.name for each in relay.admissions.values()))
            self.log("admits", federations=names, at=", ".join(self.listen))


def read_admissions(files: Sequence[Path]) -> dict[bytes, Admission]:
    """Who may meet at a relay, by the digests of federations.

    Args:
        files: Federation files, or folders of them; no code that a file names is run.
    """
    found = {}
    for file in files:
        paths = sorted(file.glob("*.toml")) if file.is_dir() else [file]
        if not paths:
            raise InputError(f"the folder {str(file)!r} holds no federation file (*.toml)")
        for path in paths:
            # names and edges suffice, and users' code must not run at their relay's operator
            federation = Federation.read(path, run_code=False)
            found[federation.digest] = _admission(federation)
    return found


def _admission(federation: Federation) -> Admission:
    keys = [member.public for member in federation.members]
    edges = [(keys[i], keys[j]) for i, j in federation.topology.edges.tolist()]
    # either of the two may be the first to call
    pairs = frozenset([*edges, *((b, a) for a, b in edges)])
    users = {m.public: m.name for m in federation.members}
    relays = (each for m in federation.members for each in m.addresses if each.is_relay)
    return Admission(federation.name, users, pairs, frozenset(map(relay_id, relays)))


def _raise_descriptor_limit() -> None:
    """Each user holds a descriptor for each of its neighbours."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    # with fewer descriptors it still serves, only fewer users
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
