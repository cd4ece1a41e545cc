"""A crowd at a relay: a thousand users that do nothing, and hosts that do all that they can.

    python crowd.py FOLDER PORT --hostile 200

FOLDER is made by `write_crowd`, and the relay at 127.0.0.1:PORT has its federation file. Says
`ready` when all idle connections are there; at the end of its input what has happened, as JSON.
"""

import argparse
import asyncio
import json
import os
import resource
import socket
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

from decor.errors import RemoteProtocolError
from decor.federation.federation import Federation, Member, Model, Network, Privacy, Training
from decor.net.addresses import Address
from decor.net.identity import Identity
from decor.net.reach import Reach
from decor.net.relay_protocol import GREETING, NONCE_BYTES, Call

USERS, CALLED_BACK, HOSTILE_USERS = 610, 400, 10
"""Idle are 600, each of which calls the next; 400 are called back: 400 pairs, and 200 that wait."""
IDLE = USERS - HOSTILE_USERS + CALLED_BACK
NAME = "crowd.toml"


def write_crowd(folder, port):
    """The crowd's own federation, which its relay admits; returns the file."""
    keys = [Identity.new() for _ in range(USERS)]
    for k, key in enumerate(keys):
        key.save(folder / f"{k}.key")
    address = f"relay://127.0.0.1:{port}"
    federation = Federation(
        name="crowd",
        privacy=Privacy(epsilon=10.0, delta=1e-5, adversary="eavesdropper"),
        training=Training(steps=30, clip=1.0, learning_rate=0.1),
        model=Model(kind="logistic", features=4),
        network=Network(topology="ring"),
        members=tuple(Member(f"m{k}", address, key.public) for k, key in enumerate(keys)),
    )
    file = folder / NAME
    file.write_text(federation.to_toml())
    return file


class Crowd:
    """All connections of one process; `pause` are seconds between two attempts of a hostile one."""

    def __init__(self, folder, port, pause):
        self.place, self.pause, self.counts = ("127.0.0.1", port), pause, Counter()
        self.digest = Federation.read(folder / NAME).digest
        self.keys = [Identity.load(folder / f"{k}.key") for k in range(USERS)]
        self.relay = Address(*self.place, is_relay=True)
        self.tasks = set()
        self.loop = asyncio.get_running_loop()

    def spawn(self, work):
        self.tasks.add(task := asyncio.create_task(work))
        task.add_done_callback(self.tasks.discard)
        return task

    # idle

    async def idle(self):
        """Returns when all pairs are joined and all others wait."""
        last = USERS - HOSTILE_USERS
        ready = [asyncio.Event() for _ in range(IDLE)]
        ends = [(k, k + 1) for k in range(last)] + [(k + 1, k) for k in range(CALLED_BACK)]
        for (own, other), event in zip(ends, ready, strict=True):
            self.spawn(self.stay(own, other, event))
        for event in ready:
            await event.wait()

    async def stay(self, own, other, ready):
        # a thousand that call at once are too many for a moment
        while not ready.is_set():
            with suppress(OSError, RemoteProtocolError):
                with await self.meet(own, other, ready.set) as made:
                    ready.set()
                    # nothing is ever sent, so this is the end
                    await self.loop.sock_recv(made, 1)
            await asyncio.sleep(self.pause)
        self.counts["idle_lost"] += 1

    async def meet(self, own, other, on_wait=lambda: None):
        a, b = self.keys[own], self.keys[other]
        return await Reach(self.digest).meet(self.relay, a.key, b.public, None, on_wait)

    # hostile: each is one attempt, and lasts until the relay ends it

    async def say(self, *pieces, every=0.0):
        with socket.socket() as made:
            made.setblocking(False)
            await self.loop.sock_connect(made, self.place)
            greeting = b""
            while len(greeting) < len(GREETING) + NONCE_BYTES:
                greeting += await self.received(made)
            nonce = greeting[-NONCE_BYTES:]
            for piece in pieces:
                data = piece(nonce) if callable(piece) else piece
                await self.loop.sock_sendall(made, data)
                await asyncio.sleep(every)
            while await self.received(made):
                pass

    async def received(self, made):
        if not (data := await self.loop.sock_recv(made, 1 << 16)):
            raise ConnectionResetError
        return data

    def call_of(self, own, other, nonce):
        return Call.make(
            self.keys[own].key, self.digest, self.relay, self.keys[other].public, nonce
        )

    def call(self, nonce, own=USERS - 1):
        return self.call_of(own, own - 1, nonce)

    async def silent(self):
        await self.say()

    async def slow(self):
        data = self.call(bytes(NONCE_BYTES)).to_bytes()
        await self.say(*(data[k : k + 1] for k in range(len(data))), every=1.0)

    async def babble(self):
        await self.say(os.urandom(10_000))

    async def forge(self):
        """In the name of a user that is idle: all of its call but the signature is known."""
        known = self.call_of(1, 0, bytes(NONCE_BYTES)).to_bytes()[:-64]
        await self.say(known + os.urandom(64))

    async def replay(self):
        old = self.call_of(1, 0, bytes(NONCE_BYTES))
        await self.say(old.to_bytes())

    async def call_again(self):
        await self.say(lambda nonce: self.call(nonce).to_bytes())

    async def speak_early(self):
        await self.say(lambda nonce: self.call(nonce, USERS - 3).to_bytes(), bytes(100_000))

    async def hurry(self):
        with socket.socket() as made:
            made.setblocking(False)
            await self.loop.sock_connect(made, self.place)

    async def flood(self):
        """Two users that send as fast as they can, and never read."""
        a, b = USERS - 6, USERS - 5
        one, two = await asyncio.gather(self.meet(a, b), self.meet(b, a))
        with one, two:
            # far more than systems and the relay hold
            sends = [self.spawn(self.pour(end)) for end in (one, two)]
            await asyncio.wait(sends, timeout=5.0)
            for send in sends:
                send.cancel()
            await asyncio.wait(sends)

    async def pour(self, end):
        with suppress(OSError):
            await self.loop.sock_sendall(end, bytes(1 << 26))

    async def again(self, attack):
        while True:
            self.counts[attack.__name__] += 1
            with suppress(OSError, RemoteProtocolError):
                await attack()
            await asyncio.sleep(self.pause)

    def attack(self, hosts):
        attacks = [self.silent, self.slow, self.babble, self.forge, self.replay]
        attacks += [self.call_again, self.speak_early, self.hurry]
        self.spawn(self.again(self.flood))
        for k in range(hosts - 1):
            self.spawn(self.again(attacks[k % len(attacks)]))


async def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("port", type=int)
    parser.add_argument("--hostile", type=int, default=200)
    parser.add_argument("--pause", type=float, default=0.1)
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    crowd = Crowd(options.folder, options.port, options.pause)
    await crowd.idle()
    crowd.attack(options.hostile)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    print(json.dumps(crowd.counts), flush=True)
    ending = list(crowd.tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main())
