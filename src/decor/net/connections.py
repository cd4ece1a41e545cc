"""Calls: the connections to neighbours, which come and go: dialling, answering, greeting, reading,
hanging up.

Nothing here knows what a step is. The owner makes the session of every new connection, is told what
happens over it, and waits with `change` until something has. Of a `Link` the line is written here,
whether it is open, and since when it is not and why. The rest is the owner's; two things of it are
looked at: who is `done` is not called again, and nothing more is read from somebody whose `inbox`
is not empty.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any

from decor.errors import RemoteProtocolError

from . import transport
from .identity import Identity
from .link import LAST_WORD_SECONDS, Line, Link, Neighbour
from .messages import Alive
from .session import Agreed, Ended, Event, Session

Log = Callable[..., None]
"""log(event, **facts): one line for people and programs; never a secret, never data."""

OPENING_SECONDS = 15.0
"""From a connection to a secret; who takes longer is hung up on."""
GREETINGS = 32
"""Connections of strangers, or of neighbours not yet known as such, at a time."""
FIRST_WAIT, LONGEST_WAIT = 0.1, 5.0
"""Seconds between attempts to reach a neighbour."""
STRANGERS_SECONDS = 10.0
"""Between two lines of the log about them."""


class Calls:
    """`open`, then `change` again and again, `lose` whoever does not behave, `hang_up` at the end,
    and `close` in any case.
    """

    def __init__(
        self,
        identity: Identity,
        links: Mapping[int, Link],
        listen: str,
        timeout: float,
        log: Log,
        session: Callable[[Neighbour], Session],
        happened: Callable[[Link, Event], None],
    ) -> None:
        """`session`: of a connection that begins.

        `happened`: an event of it; a RemoteProtocolError raised there ends it.
        """
        self._identity, self._links, self._listen, self._timeout, self._log = (
            identity,
            links,
            listen,
            timeout,
            log,
        )
        self._session, self._happened = session, happened
        self._numbers = {link.neighbour.public: number for number, link in links.items()}
        self._listening: socket.socket | None = None
        self._changed = asyncio.Event()
        self._failure: BaseException | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._lines: set[Line] = set()
        self._greeting: dict[asyncio.Task[None], None] = {}
        self._strangers = 0
        self._quiet_until = 0.0

    def open(self) -> None:
        """Calls those who are to be called, and answers the others."""
        self._callers = transport.context(self._identity, self._numbers, server=True)
        self._called = transport.context(self._identity, self._numbers, server=False)
        self._listening = transport.listening(self._listen) if self._listen else None
        now = time.monotonic()
        for link in self._links.values():
            link.down_since = now
            if link.neighbour.dials:
                self._spawn(self._keep_calling(link))
        if self._listening is not None:
            self._spawn(self._accept(self._listening))
        self._spawn(self._stay_in_touch())

    async def close(self) -> None:
        """Whatever is still going on ends now."""
        for link in self._links.values():
            if link.line is not None:
                link.line.close("stopped")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._listening is not None:
            self._listening.close()

    async def change(self, seconds: float | None) -> None:
        """Waits until something has happened, or for so many seconds; raises what went wrong here,
        and not at a neighbour's.
        """
        if self._failure is not None:
            raise self._failure
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        self._changed.clear()
        if self._failure is not None:
            raise self._failure

    def lose(self, link: Link, why: str) -> None:
        """The connection is over, whatever the reason."""
        was_open, line = link.is_open, link.line
        link.line, link.is_open, link.down_since = None, False, time.monotonic()
        link.leave()
        if line is not None:
            line.close(why)
        if link.done:
            pass
        elif was_open:
            link.problem = why
            self._log("lost", neighbour=link.neighbour.name, why=why)
        else:
            self._note(link, why)
        self._changed.set()

    async def hang_up(self, why: str) -> None:
        """Ends all connections in good order: what has been said has a moment to arrive."""
        for link in self._links.values():
            if link.line is not None:
                link.line.close(why)
                link.line, link.is_open = None, False
        until = time.monotonic() + LAST_WORD_SECONDS
        while self._lines and (left := until - time.monotonic()) > 0:
            await self.change(left)

    # who calls, and who is called

    async def _accept(self, listening: socket.socket) -> None:
        # not loop.sock_accept, which fails with a traceback where somebody calls at the moment in
        # which it is cancelled
        loop, place, called = asyncio.get_running_loop(), listening.fileno(), asyncio.Event()
        loop.add_reader(place, called.set)
        try:
            while True:
                await called.wait()
                called.clear()
                await self._accept_one(listening)
        finally:
            loop.remove_reader(place)

    async def _accept_one(self, listening: socket.socket) -> None:
        try:
            connection, _ = listening.accept()
        except (BlockingIOError, InterruptedError):  # whoever called has gone again
            return
        except OSError as problem:  # too many files are open, say: those who are here go on
            self._refuse(transport.reason(problem))
            await asyncio.sleep(FIRST_WAIT)
            return
        connection.setblocking(False)
        # whoever has been at it for longest: a neighbour takes a moment
        if len(self._greeting) >= GREETINGS:
            slowest = next(iter(self._greeting))
            del self._greeting[slowest]
            slowest.cancel()
            self._refuse("too many at a time")
        self._greeting[self._spawn(self._welcome(connection))] = None
        await asyncio.sleep(0)

    async def _welcome(self, connection: socket.socket) -> None:
        own = asyncio.current_task()
        assert own is not None
        try:
            reader, writer = await transport.welcomed(connection, self._callers)
            link = self._links[transport.who(writer, self._numbers)]
            self._greeting.pop(own, None)
            await self._converse(link, reader, writer)
        except (OSError, TimeoutError, RemoteProtocolError) as problem:
            self._refuse(transport.reason(problem))
        finally:
            self._greeting.pop(own, None)

    def _refuse(self, why: str) -> None:
        """One line for many strangers: they must not fill the log."""
        self._strangers += 1
        if time.monotonic() >= self._quiet_until:
            self._log("stranger refused", why=why, so_far=self._strangers)
            self._quiet_until = time.monotonic() + STRANGERS_SECONDS

    async def _keep_calling(self, link: Link) -> None:
        wait = FIRST_WAIT
        while not link.done:
            opened = link.opened
            try:
                reader, writer = await transport.dial(link.neighbour.address, self._called)
                transport.who(writer, {link.neighbour.public: link.neighbour.number})
            except (OSError, TimeoutError, RemoteProtocolError) as problem:
                self._note(
                    link,
                    f"cannot be reached at {link.neighbour.address}: {transport.reason(problem)}",
                )
            else:
                await self._converse(link, reader, writer)
            wait = (
                FIRST_WAIT
                if link.opened > opened
                else min(2 * wait, LONGEST_WAIT, self._timeout / 4)
            )
            await asyncio.sleep(wait)

    # one connection

    async def _converse(
        self, link: Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """One connection from its first byte to its last."""
        if link.line is not None:  # the same neighbour: it has shown its certificate
            self.lose(link, "connected anew")
        line = link.line = Line(self._session(link.neighbour), writer)
        self._lines.add(line)
        line.flush()
        sender = asyncio.create_task(line.sent())
        why = "hung up"
        try:
            async with asyncio.timeout(OPENING_SECONDS) as opening:
                while data := await reader.read(transport.READ):
                    for event in line.session.receive(data):
                        if link.line is line:  # else a newer connection has taken its place
                            self._heard(link, event)
                    line.flush()
                    if link.line is line and link.is_open:
                        opening.reschedule(None)
                    while link.line is line and link.is_open and link.inbox:
                        # more is read when this has been used: it may wait at the sender's
                        await link.room.wait()
        except RemoteProtocolError as problem:
            why = str(problem).removeprefix(f"{link.neighbour.name} ")
        except TimeoutError:
            why = f"did not agree on a secret within {OPENING_SECONDS:g} s"
        except OSError as problem:
            why = transport.reason(problem)
        finally:
            if link.line is line:
                self.lose(link, why)
            line.close(why)
            await asyncio.wait([sender], timeout=LAST_WORD_SECONDS)
            sender.cancel()
            transport.cut(writer)
            self._lines.discard(line)
            self._changed.set()

    def _heard(self, link: Link, event: Event) -> None:
        match event:
            case Ended(reason):
                # nothing can be sent any more, though the socket is still open
                self.lose(link, f"said goodbye: {reason}")
                return
            case Agreed():
                link.is_open = True
                link.opened += 1
        self._happened(link, event)
        self._changed.set()

    async def _stay_in_touch(self) -> None:
        while True:
            await asyncio.sleep(self._timeout / 3)
            for link in self._links.values():
                link.say(Alive())

    def _note(self, link: Link, problem: str) -> None:
        if link.problem != problem:
            link.problem = problem
            self._log("not connected", neighbour=link.neighbour.name, why=problem)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            # ours, not a neighbour's (those are dealt with where they arise): the user's loop must
            # hear of it
            self._failure = task.exception()
            self._changed.set()
