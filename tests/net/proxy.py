"""A proxy in the middle of an edge, with the keys of both ends: it records, cuts, holds, loses and
adds frames, and leaves handshakes half-open.

To the user that dials it is the listener, to the listener it is the user that dials: two TLS
connections, and between them every frame in the clear. The secret of the edge stays the two ends'
own, for offers are signed for identities, not for connections; so what is recorded here is what
left a peer, and nothing else of it. The proxy runs in a thread of its own:

    with Proxy(aachen, bonn, "127.0.0.1:7400", model_bytes=320, names=("aachen", "bonn")) as proxy:
        ...  # aachen dials proxy.address
        proxy.cut()
        proxy.heal()
        assert second_messages(proxy.messages()) == []
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from decor.errors import RemoteProtocolError
from decor.net import transport
from decor.net.accepting import Acceptor
from decor.net.identity import Identity
from decor.net.messages import HEADER, Confirmation, Decoder, Message, Model, encode, limits

SECONDS = 120.0
"""The longest that anything asked of the proxy's thread may take."""
MOST = 1000
"""Connections at a time: no test comes near."""


class Record(NamedTuple):
    """A frame that the proxy has heard whole."""

    time: float
    """`time.monotonic()`, the same clock for all processes of a machine."""
    sender: str
    receiver: str
    connection: int
    """0, 1, ...: the how-manieth that was dialled."""
    message: Message
    delivered: bool
    """False for what was lost in a black hole: it has left its sender all the same."""


def second_messages(records: Iterable[Record]) -> list[tuple[str, int]]:
    """Every (sender, step) of which two different messages have been seen, whatever the edge or the
    connection.

    Round 0 only: this is the message that is paid for. Records of several proxies may be chained.
    """
    first: dict[tuple[str, int], bytes] = {}
    twice = []
    for record in records:
        message = record.message
        if isinstance(message, Model) and message.round == 0:
            at = record.sender, message.step
            if first.setdefault(at, bytes(message.values)) != message.values and at not in twice:
                twice.append(at)
    return twice


def _unlogged(*_: object, **__: object) -> None:
    pass


@dataclass
class _Way:
    """One direction of a connection: frames whole, in order, and each at its time."""

    sender: str
    receiver: str
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    queue: asyncio.Queue[tuple[float, bytes]] = field(default_factory=lambda: asyncio.Queue(64))
    held: bytearray = field(default_factory=bytearray)
    is_clear: bool = True
    """False once something came that is no frame: from there on bytes pass unread."""
    is_deaf: bool = False
    """Everything from here on is lost, though the other direction passes."""


@dataclass
class _Connection:
    number: int
    ways: list[_Way]
    has_lost: bool = False
    is_cut: asyncio.Event = field(default_factory=asyncio.Event)

    def cut(self) -> None:
        self.is_cut.set()
        for way in self.ways:
            way.writer.transport.abort()


class Proxy:
    """Listens for `dialler` as `listener` would, and dials `address`, where `listener` is, as
    `dialler` would.
    """

    def __init__(
        self,
        dialler: Identity,
        listener: Identity,
        address: str,
        model_bytes: int,
        names: tuple[str, str] = ("dialler", "listener"),
        port: int = 0,
    ) -> None:
        self._to, self._names, self._limits = address, names, limits(model_bytes)
        self._server_tls = transport.tls_context(listener, [dialler.public], server=True)
        self._client_tls = transport.tls_context(dialler, [listener.public], server=False)
        self._socket = socket.create_server(("127.0.0.1", port))
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self._records: list[Record] = []
        self._connections: dict[int, _Connection] = {}
        self._count, self._refuses, self._loses, self._delay = 0, False, False, 0.0
        self._deaf_to: str | None = None
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._run()), name=f"proxy {self.port}", daemon=True
        )
        self._running = threading.Event()

    def __enter__(self) -> Proxy:
        self._thread.start()
        if not self._running.wait(SECONDS):
            raise TimeoutError("the proxy does not start")
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(SECONDS)
        if self._thread.is_alive():
            raise TimeoutError("the proxy does not stop")

    def messages(self) -> list[Record]:
        """All that was heard until now, in the order in which it was heard."""
        return list(self._records)

    @property
    def connections(self) -> list[int]:
        """The numbers of those that are open in both directions now."""
        return list(self._connections)

    @property
    def dialled(self) -> int:
        """How many connections there have been."""
        return self._count

    def until(self, condition: Callable[[], Any], seconds: float = SECONDS) -> Any:
        """Waits for a condition, and gives what made it true."""
        end = time.monotonic() + seconds
        while not (found := condition()):
            if time.monotonic() > end:
                raise TimeoutError(
                    f"still not after {seconds} s; {len(self._records)} frames were heard"
                )
            time.sleep(0.01)
        return found

    def cut(self) -> None:
        """Ends every connection at once, without a word; new ones are let in."""
        self._ask(self._cut())

    def refuse(self) -> None:
        """Cuts, and ends every new connection before its handshake, until `heal`."""
        self._ask(self._set(refuses=True))
        self.cut()

    def hold(self) -> None:
        """A cable is out: what is said waits, nothing is lost, and new connections get no answer,
        until `heal`.
        """
        self._ask(self._set(holds=True))

    def lose(self) -> None:
        """A black hole: everything said, old connections or new, is swallowed without a sign, until
        `heal`.
        """
        self._ask(self._set(loses=True))

    def half_open(self, sender: str) -> None:
        """Cuts; then one end's proofs of the common secret, and all it sends after them, are lost.

        Until `heal` that end takes each new connection for open, and the other one does not.
        """
        self._ask(self._set(deaf_to=sender))
        self.cut()

    def delay(self, seconds: float) -> None:
        """Everything arrives this much later than it would, in order; 0 for at once."""
        self._ask(self._set(delay=seconds))

    def heal(self) -> None:
        """Everything passes again, at once.

        A connection that has lost something is cut: its stream cannot go on.
        """
        self._ask(self._set(refuses=False, holds=False, loses=False, delay=0.0, deaf_to=None))

    def inject(self, receiver: str, *what: Message | bytes, connection: int | None = None) -> None:
        """Messages or bytes of the test's own to one end, between two frames of the other's; newest
        connection unless given.
        """
        self._ask(
            self._inject(
                receiver,
                b"".join(w if isinstance(w, bytes) else encode(w) for w in what),
                connection,
            )
        )

    def _ask(self, what: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(what, self._loop).result(SECONDS)

    async def _run(self) -> None:
        self._loop, self._stop, self._flows = (
            asyncio.get_running_loop(),
            asyncio.Event(),
            asyncio.Event(),
        )
        self._flows.set()
        tasks: set[asyncio.Task[None]] = set()

        def spawn(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
            tasks.add(task := asyncio.create_task(work))
            task.add_done_callback(tasks.discard)
            return task

        # not loop.sock_accept, which loses a connection that comes as it is cancelled
        acceptor = Acceptor(self._socket, MOST, self._serve, spawn, _unlogged, "the proxy")
        spawn(acceptor.run())
        self._running.set()
        try:
            await self._stop.wait()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._socket.close()

    async def _serve(self, taken: socket.socket) -> None:
        """One connection from its beginning to its end."""
        if self._refuses:
            # a reset, not an end
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            taken.close()
            return
        writers: list[asyncio.StreamWriter] = []
        number = None
        try:
            while self._loses or not self._flows.is_set():
                await asyncio.sleep(0.01)
            there, to_there = await transport.dial(self._to, self._client_tls)
            writers.append(to_there)
            here = asyncio.StreamReader(1 << 20)
            protocol = asyncio.StreamReaderProtocol(here)
            channel, _ = await self._loop.connect_accepted_socket(
                lambda: protocol, taken, ssl=self._server_tls
            )
            to_here = asyncio.StreamWriter(channel, protocol, here, self._loop)
            writers.append(to_here)
            if self._refuses:
                return
            number, self._count = self._count, self._count + 1
            dialler, listener = self._names
            ways = [
                _Way(dialler, listener, here, to_there),
                _Way(listener, dialler, there, to_here),
            ]
            self._connections[number] = connection = _Connection(number, ways)
            await self._join(connection)
        except (OSError, TimeoutError):
            # a handshake that failed, or one end that is away: the other hears of it by the end of
            # its connection
            pass
        finally:
            if number is not None:
                del self._connections[number]
            for writer in writers:
                writer.close()
            # before the first wait, which may be cancelled
            if len(writers) < 2:
                taken.close()
            for writer in writers:
                try:
                    await asyncio.wait_for(writer.wait_closed(), 1.0)
                except (OSError, TimeoutError):
                    writer.transport.abort()

    async def _join(self, connection: _Connection) -> None:
        """Until one end has gone and the other was given all that it had said, or until the
        connection is cut.
        """
        ways = connection.ways
        heard = [asyncio.create_task(self._hear(connection, way)) for way in ways]
        passed = [asyncio.create_task(self._pass(way)) for way in ways]

        async def ended() -> None:
            await asyncio.wait(heard, return_when=asyncio.FIRST_COMPLETED)
            while self._loses:  # nor is the end of a connection seen through a black hole
                await asyncio.sleep(0.01)
            await asyncio.gather(
                *(way.queue.join() for way, task in zip(ways, heard, strict=True) if task.done())
            )
            await self._flows.wait()

        over = [asyncio.create_task(ended()), asyncio.create_task(connection.is_cut.wait())]
        try:
            await asyncio.wait(over, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in heard + passed + over:
                task.cancel()
            await asyncio.gather(*heard, *passed, *over, return_exceptions=True)

    async def _hear(self, connection: _Connection, way: _Way) -> None:
        """Until the sender ends: every frame is recorded when it is whole, and then sent on."""
        try:
            while data := await way.reader.read(1 << 16):
                way.held += data
                for frame in self._frames(connection, way):
                    if self._loses or way.is_deaf:
                        connection.has_lost = True
                    else:
                        await way.queue.put((self._loop.time() + self._delay, frame))
        except OSError:
            pass

    def _frames(self, connection: _Connection, way: _Way) -> Iterable[bytes]:
        while way.held:
            end = len(way.held)
            if way.is_clear:
                if len(way.held) < HEADER.size:
                    return
                kind, length = HEADER.unpack_from(way.held)
                way.is_clear = length <= self._limits.get(kind, -1)
            if way.is_clear:
                end = HEADER.size + length
                if len(way.held) < end:
                    return
                way.is_clear = self._record(connection, way, bytes(way.held[:end]))
            frame = bytes(way.held[:end])
            del way.held[:end]
            yield frame

    def _record(self, connection: _Connection, way: _Way, frame: bytes) -> bool:
        try:
            (message,) = Decoder(self._limits).feed(frame)
        except RemoteProtocolError:
            return False
        if isinstance(message, Confirmation) and way.sender == self._deaf_to:
            way.is_deaf = True
        self._records.append(
            Record(
                time.monotonic(),
                way.sender,
                way.receiver,
                connection.number,
                message,
                not (self._loses or way.is_deaf),
            )
        )
        return True

    async def _pass(self, way: _Way) -> None:
        """What is in the queue, when its time has come."""
        while True:
            due, frame = await way.queue.get()
            try:
                while (wait := due - self._loop.time()) > 0 and self._delay:
                    await asyncio.sleep(min(wait, 0.02))
                await self._flows.wait()
                if not way.writer.transport.is_closing():
                    way.writer.write(frame)
                    await way.writer.drain()
            except OSError:
                pass
            finally:
                way.queue.task_done()

    async def _cut(self) -> None:
        for connection in list(self._connections.values()):
            connection.cut()
        while self._connections:
            await asyncio.sleep(0.001)

    async def _set(self, **what: Any) -> None:
        self._refuses = what.get("refuses", self._refuses)
        self._loses = what.get("loses", self._loses)
        self._delay = what.get("delay", self._delay)
        self._deaf_to = what.get("deaf_to", self._deaf_to)
        if "holds" in what:
            (self._flows.clear if what["holds"] else self._flows.set)()
        if not self._loses and self._deaf_to is None:
            for connection in list(self._connections.values()):
                if connection.has_lost:
                    connection.cut()

    async def _inject(self, receiver: str, what: bytes, number: int | None) -> None:
        if not self._connections:
            raise ValueError("nobody is connected")
        connection = self._connections[max(self._connections) if number is None else number]
        (way,) = (w for w in connection.ways if w.receiver == receiver)
        await way.queue.put((self._loop.time(), what))
