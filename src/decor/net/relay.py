"""Relay: joins two outgoing connections of users that cannot connect to each other.

It sees ciphertext, sizes and times only. It keeps nothing: whom it admits comes from federation
files, and a restart costs users a reconnection. `relay_protocol` describes what is said before two
connections are joined.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from .accepting import Acceptor, Log, Throttle
from .rate_limit import RateLimit
from .relay_protocol import ANSWER_SECONDS, SENTENCES, WAIT, WAIT_SECONDS, Call, Refusal
from .relay_side import Pair, Side

UNIDENTIFIED = 256
"""Connections at a time that have not made a valid call yet; beyond it one is closed, of the
address that has most."""
KEEPALIVE = (
    (socket.TCP_KEEPIDLE, 60),
    (socket.TCP_KEEPINTVL, 20),
    (socket.TCP_KEEPCNT, 3),
)
"""After two minutes without an answer a machine has vanished; the system's own is two hours."""
CALLS, CALLS_PER_SECOND = 10, 0.5
"""Valid calls of one user to one neighbour, at once and per second."""


@dataclass(frozen=True)
class Admission:
    """Users that may meet: the neighbours of one federation."""

    name: str
    users: Mapping[bytes, str]
    """Public key -> name."""
    pairs: frozenset[tuple[bytes, bytes]]
    """Public keys of neighbours, in both orders."""
    relays: frozenset[bytes] = frozenset()
    """`relay_id` of every relay that its users name."""


class Relay:
    """Call `open`, and `close` at the end; `admissions` may be replaced at any time.

    Args:
        admissions: By the digest of the federation's file.
        log: Receives events.
        bytes_per_second: That each user may send, in all federations together.
        own: `relay_id` of this relay's addresses; empty: whatever relays a federation names.
    """

    def __init__(
        self,
        admissions: Mapping[bytes, Admission],
        log: Log,
        bytes_per_second: float,
        own: frozenset[bytes] = frozenset(),
    ) -> None:
        self._admissions, self._log, self._own = admissions, log, own
        self._bytes_per_second = bytes_per_second
        self._sides: dict[Pair, Side] = {}
        self._calls: dict[Pair, RateLimit] = {}
        self._bandwidth: dict[bytes, RateLimit] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._listeners: list[socket.socket] = []
        self._log_refusal = Throttle(log)
        self.connections = 0
        """Open now, whatever their state."""
        self.passed_bytes = self.joins = self.accepted = 0
        """Bytes, pairs and connections, since the start."""
        self._refused: dict[str, int] = dict.fromkeys(get_args(Refusal), 0)

    def open(self, listeners: list[socket.socket]) -> None:
        """Starts to accept connections.

        Args:
            listeners: Listening sockets that do not block; closed by `close`.
        """
        self._listeners = listeners
        for listener in listeners:
            acceptor = Acceptor(
                listener, UNIDENTIFIED, self._serve, self._spawn, self._log_refusal, "the relay"
            )
            self._spawn(acceptor.run())
        self._spawn(self._keep_waiting_users())

    async def close(self) -> None:
        """Ends everything."""
        for side in list(self._sides.values()):
            side.transport.abort()
        ending = list(self._tasks)
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        for listener in self._listeners:
            listener.close()

    @property
    def admissions(self) -> Mapping[bytes, Admission]:
        """Who may meet; connections of users that may not any more are closed."""
        return self._admissions

    @admissions.setter
    def admissions(self, new: Mapping[bytes, Admission]) -> None:
        self._admissions = new
        # what former users have left would add up over the years
        self._calls = {p: n for p, n in self._calls.items() if self._objection(p) is None}
        users = {key for admission in new.values() for key in admission.users}
        self._bandwidth = {key: n for key, n in self._bandwidth.items() if key in users}
        for pair, side in list(self._sides.items()):
            if self._objection(pair) is not None:
                side.refuse("this federation is not admitted any more")

    @property
    def joined(self) -> int:
        """Pairs of connections that are joined now."""
        return sum(side.other is not None for side in self._sides.values()) // 2

    @property
    def waiting(self) -> int:
        """Users that wait for a neighbour now; a user counts once for each neighbour."""
        sides = self._sides.values()
        return sum(side.other is None and not side.transport.is_closing() for side in sides)

    @property
    def refusals(self) -> dict[str, int]:
        """How many connections were refused since the start, by kind."""
        # those beyond UNIDENTIFIED are closed by the acceptors
        return {**self._refused, "too_many": self._log_refusal.counts["connection closed"]}

    def status(self) -> dict[str, Any]:
        """For monitoring: numbers only, nothing of who meets whom."""
        return {
            "federations": len(self._admissions),
            "connections": self.connections,
            "waiting": self.waiting,
            "joined_pairs": self.joined,
            "accepted": self.accepted,
            "joins": self.joins,
            "passed_bytes": self.passed_bytes,
            "refusals": self.refusals,
        }

    # called by connections

    def receive_call(self, side: Side, call: Call) -> None:
        """Admits a caller, and joins it with its neighbour if that waits already."""
        # first the signature: nobody else is told who is a user, or uses up what a user may do
        if not call.is_signed(side.nonce):
            self.refuse(side, "wrong_signature")
            return
        pair = call.federation, call.own, call.neighbour
        problem = self._objection(pair)
        # another relay could hand on its callers' signatures, and push them out here
        if problem is None and call.relay not in (self._own or self._relays_of(pair)):
            problem = "wrong_relay"
        elif problem is None and not self._limit_of(pair).allow():
            problem = "rate_limited"
        if problem is not None:
            self.refuse(side, problem)
            return
        # the newer one wins: it is the same user, by its signature
        if (old := self._sides.get(pair)) is not None:
            old.refuse("called again")
        self._sides[pair] = side
        side.identify(pair, self._bandwidth_of(call.own))
        partner = self._sides.get((call.federation, call.neighbour, call.own))
        # one that was joined with the older connection ends with it, and calls again
        if partner is None or partner.other is not None or partner.transport.is_closing():
            side.transport.write(WAIT)
            return
        self.joins += 1
        side.join(partner)
        partner.join(side)
        admission = self._admissions[call.federation]
        names = sorted(admission.users[key] for key in (call.own, call.neighbour))
        self._log("joined", federation=admission.name, users=" and ".join(names))

    def refuse(self, side: Side, problem: Refusal) -> None:
        """Tells a caller why it is not admitted, and closes its connection."""
        self._refused[problem] += 1
        self._log_refusal("refused", why=SENTENCES[problem])
        side.refuse(SENTENCES[problem])

    def forget(self, side: Side) -> None:
        """A connection has ended."""
        if side.pair is not None and self._sides.get(side.pair) is side:
            del self._sides[side.pair]

    # own tasks

    async def _serve(self, accepted: socket.socket) -> None:
        """Waits until a connection has made a valid call, or has ended."""
        # so that connections whose other end has vanished end
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in KEEPALIVE:
            accepted.setsockopt(socket.IPPROTO_TCP, option, value)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        side = Side(self)
        self.accepted += 1
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: side, accepted)
        except BaseException:
            accepted.close()
            raise
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await side.settled.wait()
        except TimeoutError:
            # a call may have come in the same moment
            if side.pair is None:
                self.refuse(side, "no_call")
        except asyncio.CancelledError:  # one of too many, or the relay closes
            if side.pair is None:
                side.transport.abort()
            raise

    async def _keep_waiting_users(self) -> None:
        while True:
            await asyncio.sleep(WAIT_SECONDS)
            for side in self._sides.values():
                if side.other is None:
                    side.transport.write(WAIT)

    def _objection(self, pair: Pair) -> Refusal | None:
        federation, own, neighbour = pair
        admission = self._admissions.get(federation)
        if admission is None:
            return "unknown_federation"
        if own not in admission.users:
            return "unknown_key"
        if (own, neighbour) not in admission.pairs:
            return "not_neighbours"
        return None

    def _relays_of(self, pair: Pair) -> frozenset[bytes]:
        return self._admissions[pair[0]].relays

    def _limit_of(self, pair: Pair) -> RateLimit:
        return self._calls.setdefault(pair, RateLimit(CALLS, CALLS_PER_SECOND))

    def _bandwidth_of(self, key: bytes) -> RateLimit:
        # a second's worth at once
        rate = self._bytes_per_second
        return self._bandwidth.setdefault(key, RateLimit(rate, rate))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
