"""Connections to all neighbours: dialling, accepting, reading, closing. Knows nothing of steps.

A neighbour is reached directly or at a relay, as the addresses in the federation's file say.

The owner makes the session of each new connection, gets its events by a callback, and waits with
`wait_for_change`. `Link.conn` is written here and nowhere else (see `Link`).
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from decor.errors import RemoteProtocolError

from . import transport
from .accepting import READ_BYTES, Acceptor, Streams, Throttle
from .accepting import Log as Log
from .addresses import Address, listen
from .identity import Identity
from .messages import Alive
from .neighbour import CLOSING_SECONDS, Connection, Link, Neighbour
from .rate_limit import RateLimit
from .reach import Reach
from .session import Ended, Event, Opened, Session

CALLS, CALLS_PER_SECOND = 10, 0.5
"""Connections of one neighbour that come as far as a greeting, at once and per second."""
LONGEST_QUARANTINE = 300.0
"""Seconds for which a neighbour that broke the rules is not talked to, at most; it grows."""
OPENING_SECONDS = 15.0
"""From the TLS handshake to a common secret; a connection that takes longer is closed."""
UNIDENTIFIED = 32
"""Incoming connections at a time that have not shown a neighbour's certificate yet."""
FIRST_WAIT, LONGEST_WAIT = 0.1, 5.0
"""Seconds between attempts to reach a neighbour."""
RELAY_SECONDS = 10.0
"""For which a neighbour that also has a direct address is waited for at a relay."""
STRANGERS_SECONDS = 10.0
"""Between two lines of the log about refused connections."""
REPEAT_SECONDS = 600.0
"""Between two lines about one problem of a neighbour: those of several addresses take turns."""

_FAILURES = (OSError, TimeoutError, RemoteProtocolError)
"""How the network or a neighbour can fail; anything else is a bug on this side."""


class Connections:
    """Call `open`, then `wait_for_change` repeatedly, `disconnect_all` at the end, and `close`.

    `close` has to be called in any case; `drop` ends one connection at any time.

    Args:
        identity: This user's key.
        links: Neighbours by number.
        reach: Where to listen, and how to reach others.
        timeout: Seconds of silence that neighbours tolerate; Alive is sent three times as often.
        log: Receives events of connections.
        new_session: Makes the session of a new connection.
        on_event: Receives a session's events; a RemoteProtocolError raised there ends the
            connection.
        on_lost: Called when a connection to a neighbour has ended, open or not.
    """

    def __init__(
        self,
        identity: Identity,
        links: Mapping[int, Link],
        reach: Reach,
        timeout: float,
        log: Log,
        new_session: Callable[[Neighbour], Session],
        on_event: Callable[[Link, Event], None],
        on_lost: Callable[[Link], None],
    ) -> None:
        self._identity, self._links, self._reach = identity, links, reach
        self._timeout, self._log = timeout, log
        self._new_session, self._on_event, self._on_lost = new_session, on_event, on_lost
        # a certificate leads to a public key, and that to a neighbour
        self._numbers = {link.neighbour.public: number for number, link in links.items()}
        self._listeners: list[socket.socket] = []
        self._acceptors: list[Acceptor] = []
        self._changed, self._serving = asyncio.Event(), asyncio.Event()
        self._failure: BaseException | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._connections: set[Connection] = set()
        # strangers must not fill the log
        self._log_refusal = Throttle(log, STRANGERS_SECONDS)
        self._refused = dict.fromkeys(("protocol_error", "rate_limited", "quarantined"), 0)

    def open(self) -> None:
        """Starts to dial and to accept."""
        self._server_tls = transport.tls_context(self._identity, self._numbers, server=True)
        self._client_tls = transport.tls_context(self._identity, self._numbers, server=False)
        for address in self._reach.listen:
            self._listeners += listen(address)
        now = time.monotonic()
        for link in self._links.values():
            link.conn.down_since = now
            link.conn.calls = RateLimit(CALLS, CALLS_PER_SECOND)
            if link.neighbour.dials:
                self._spawn(self._keep_connected(link, self._dial))
                continue
            for relay in self._reach.relays:
                self._spawn(self._keep_connected(link, partial(self._accept_at, relay)))
        for listener in self._listeners:
            acceptor = Acceptor(
                listener,
                UNIDENTIFIED,
                self._serve,
                self._spawn,
                self._log_refusal,
                "the peers' port",
            )
            self._acceptors.append(acceptor)
            self._spawn(acceptor.run())
        self._spawn(self._send_alive())

    async def close(self) -> None:
        """Ends everything that is still going on."""
        for link in self._links.values():
            if link.conn.connection is not None:
                link.conn.connection.close("stopped")
        for task in self._tasks:
            task.cancel()
        # errors do not matter any more: the owner is leaving
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for listener in self._listeners:
            listener.close()

    def raise_failure(self) -> None:
        """Raises the error of one of this side's own tasks, if there was one."""
        if self._failure is not None:
            raise self._failure

    async def wait_for_change(self, seconds: float | None) -> None:
        """Waits for an event, at most so many seconds; raises errors of this side's own tasks."""
        self.raise_failure()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        # after the wait, so that no event between two calls is missed
        self._changed.clear()
        self.raise_failure()

    def drop(self, link: Link, reason: str) -> None:
        """Ends the connection to a neighbour, or takes note that it has ended."""
        conn = link.conn
        was_open, connection = conn.is_open, conn.connection
        conn.connection, conn.is_open, conn.down_since = None, False, time.monotonic()
        link.inbox.release_reader()
        if connection is not None:
            connection.close(reason)
            self._on_lost(link)
        if not was_open:
            self._log_problem(link, reason)
        # the connection of a neighbour that is done has to end some time: nothing to report
        elif not link.done:
            conn.problem = reason
            self._log("lost", neighbour=link.neighbour.name, why=reason)
        self._changed.set()

    def serve(self) -> None:
        """Dials neighbours that are done too: one may fetch the final model, and cannot dial."""
        self._serving.set()

    async def disconnect_all(self, reason: str) -> None:
        """Ends all connections in good order: what is queued has a moment to be sent."""
        for link in self._links.values():
            if link.conn.connection is not None:
                link.conn.connection.close(reason)
                link.conn.connection, link.conn.is_open = None, False
        until = time.monotonic() + CLOSING_SECONDS
        while self._connections and (left := until - time.monotonic()) > 0:
            await self.wait_for_change(left)

    @property
    def refusals(self) -> dict[str, int]:
        """How many connections were refused, by kind."""
        counts = self._log_refusal.counts
        return {
            "stranger": counts["stranger refused"],
            "unidentified": counts["connection closed"],
            "wrong_clock": counts["wrong clock"],
            **self._refused,
        }

    # incoming connections

    async def _serve(self, accepted: socket.socket) -> None:
        try:
            reader, writer = await transport.accept_tls(accepted, self._server_tls)
            link = self._links[transport.identify(writer, self._numbers)]
            for acceptor in self._acceptors:
                acceptor.release(asyncio.current_task())
            await self._run_connection(link, reader, writer)
        except _FAILURES as problem:
            event, why = transport.refusal(problem)
            self._log_refusal(event, why=why)

    # outgoing connections

    async def _keep_connected(
        self, link: Link, connect: Callable[[Link], Awaitable[tuple[Streams, str] | None]]
    ) -> None:
        """Connects, and connects again when a connection has ended."""
        wait, dials = FIRST_WAIT, link.neighbour.dials
        while True:
            # a neighbour that is done comes back to fetch the final model, if at all: one that this
            # side does not dial may do so at any time
            if dials and link.done:
                await self._serving.wait()
            opened = link.conn.opened
            if (left := link.conn.quarantined_until - time.monotonic()) > 0:
                await asyncio.sleep(left)
            if (connected := await connect(link)) is not None:
                streams, way = connected
                await self._run_connection(link, *streams, way)
            # double the wait, unless this attempt came as far as a common secret
            longer = min(2 * wait, LONGEST_WAIT, self._timeout / 4)
            wait = FIRST_WAIT if link.conn.opened > opened else longer
            await asyncio.sleep(wait)

    async def _dial(self, link: Link) -> tuple[Streams, str] | None:
        """Tries the addresses of a neighbour in turn."""
        neighbour = link.neighbour
        for address in neighbour.addresses:
            try:
                streams = await self._dial_at(link, address)
                transport.identify(streams[1], {neighbour.public: neighbour.number})
                return streams, "relay" if address.is_relay else "direct"
            except _FAILURES as problem:
                reason = transport.reason(problem)
                self._log_problem(link, f"cannot be reached at {address}: {reason}")
        return None

    async def _dial_at(self, link: Link, address: Address) -> Streams:
        if not address.is_relay:
            return await transport.dial(str(address), self._client_tls, self._reach.proxy)
        is_only = len(link.neighbour.addresses) == 1
        made = await self._meet(link, address, None if is_only else RELAY_SECONDS)
        return await transport.connect_tls(made, self._client_tls)

    async def _accept_at(self, relay: Address, link: Link) -> tuple[Streams, str] | None:
        """Waits at a relay of this user for a neighbour that dials."""
        neighbour = link.neighbour
        try:
            made = await self._meet(link, relay, None)
            streams = await transport.accept_tls(made, self._server_tls)
            transport.identify(streams[1], {neighbour.public: neighbour.number})
        except _FAILURES as problem:
            self._log_problem(link, f"cannot be met at {relay}: {transport.reason(problem)}")
            return None
        return streams, "relay"

    async def _meet(self, link: Link, relay: Address, seconds: float | None) -> socket.socket:
        def tell() -> None:
            # it may be connected directly meanwhile
            if link.conn.connection is None:
                self._log_problem(link, f"is not at {relay} yet")

        key = self._identity.key
        return await self._reach.meet(relay, key, link.neighbour.public, seconds, tell)

    # one connection

    async def _run_connection(
        self,
        link: Link,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        way: str = "direct",
    ) -> None:
        """Reads and writes one connection from its first byte to its last."""
        conn = link.conn
        is_quarantined = time.monotonic() < conn.quarantined_until
        if is_quarantined or not conn.calls.allow():
            self._refused["quarantined" if is_quarantined else "rate_limited"] += 1
            why = "it broke the rules" if is_quarantined else "it connects too often"
            self._log_problem(link, f"is not answered for a while: {why}")
            transport.abort(writer)
            return
        # the newer one wins: it is the same neighbour, by its certificate
        if link.conn.connection is not None:
            self.drop(link, "connected anew")
        connection = Connection(self._new_session(link.neighbour), writer, conn.traffic)
        link.conn.connection, link.conn.way = connection, way
        self._connections.add(connection)
        connection.flush()
        sender = asyncio.create_task(connection.write_all())

        def is_current() -> bool:
            return link.conn.connection is connection

        def wake_reader(_: object) -> None:
            if is_current():
                link.inbox.release_reader()

        # a neighbour that has hung up is noticed by what is written, if nothing is read
        sender.add_done_callback(wake_reader)
        reason = "hung up"
        try:
            async with asyncio.timeout(OPENING_SECONDS) as opening:
                while data := await reader.read(READ_BYTES):
                    conn.traffic.received += len(data)
                    for event in connection.session.receive(data):
                        # each event may end this connection, or a newer one may replace it
                        if is_current():
                            self._handle_event(link, event)
                    connection.flush()
                    if is_current() and link.is_open:
                        opening.reschedule(None)
                    while (
                        is_current()
                        and link.is_open
                        and link.inbox
                        and not (link.is_awaited or sender.done())
                    ):
                        # more is read when this has been used: it may wait at the sender
                        await link.inbox.wait_until_empty()
        except RemoteProtocolError as problem:
            self._refused["protocol_error"] += 1
            reason = str(problem).removeprefix(f"{link.neighbour.name} ")
            # a user that takes part and breaks the rules would cost a timeout each time it is back
            if is_current() and link.is_open:
                seconds = min(conn.quarantine, LONGEST_QUARANTINE)
                conn.quarantined_until = time.monotonic() + seconds
                conn.quarantine = 2 * seconds
        except TimeoutError:
            reason = f"did not agree on a secret within {OPENING_SECONDS:g} s"
        except OSError as problem:
            reason = transport.reason(problem)
        finally:
            if is_current():
                self.drop(link, reason)
            connection.close(reason)
            try:
                await asyncio.wait([sender], timeout=CLOSING_SECONDS)
            finally:
                # also if `close` ends this task meanwhile
                sender.cancel()
                transport.abort(writer)
                self._connections.discard(connection)
                self._changed.set()

    def _handle_event(self, link: Link, event: Event) -> None:
        match event:
            case Ended(reason):
                # nothing can be sent any more, though the socket is still open
                self.drop(link, f"said goodbye: {reason}")
                return
            case Opened():
                link.conn.is_open = True
                link.conn.opened += 1
                # when it is lost again, what keeps it away is news
                link.conn.logged.clear()
        self._on_event(link, event)
        self._changed.set()

    async def _send_alive(self) -> None:
        while True:
            await asyncio.sleep(self._timeout / 3)
            for link in self._links.values():
                link.send(Alive())

    def _log_problem(self, link: Link, problem: str) -> None:
        conn, now = link.conn, time.monotonic()
        # a neighbour that is done has left in good order
        if conn.problem == problem or link.done:
            return
        conn.problem = problem
        conn.logged = {text: at for text, at in conn.logged.items() if now - at < REPEAT_SECONDS}
        if problem not in conn.logged:
            conn.logged[problem] = now
            self._log("not connected", neighbour=link.neighbour.name, why=problem)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            # failures of neighbours were handled where they arose: this is a bug of ours, and
            # the owner's loop has to raise it
            self._failure = task.exception()
            self._changed.set()
