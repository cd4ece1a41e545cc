"""Reach: where a user can be reached, and how it reaches others."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from .addresses import Address
from .http_proxy import HttpProxy, connect_by
from .relay_protocol import ANSWER_SECONDS, meet


@dataclass(frozen=True)
class Reach:
    """How one user takes part in the network.

    Attributes:
        federation: The digest of the federation's file, by which relays know it.
        listen: Addresses to accept connections at, each `host:port` or `:port`.
        relays: Where neighbours that cannot connect to this user meet it.
        proxy: For all outgoing connections; None: none.
    """

    federation: bytes
    listen: tuple[str, ...] = ()
    relays: tuple[Address, ...] = ()
    proxy: HttpProxy | None = None

    async def meet(
        self,
        relay: Address,
        key: Ed25519PrivateKey,
        neighbour: bytes,
        seconds: float | None,
        on_wait: Callable[[], object],
    ) -> socket.socket:
        """A connection to a neighbour, joined by a relay; TLS begins after that.

        Args:
            relay: Where.
            key: This user's.
            neighbour: The public key of the user to meet.
            seconds: To wait for the neighbour; None: as long as it takes.
            on_wait: Called each time the relay says that the neighbour is not there yet.
        """
        made = await connect_by(self.proxy, relay, ANSWER_SECONDS)
        try:
            async with asyncio.timeout(seconds):
                await meet(made, key, self.federation, relay, neighbour, on_wait)
        except BaseException:
            made.close()
            raise
        return made
