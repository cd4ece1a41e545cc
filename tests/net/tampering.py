"""A machine between users and their relay that does to bytes what it likes."""

import asyncio
import random
import threading

from decor.net.addresses import free_ports


class Tampering:
    """Passes connections on to `port`, in a thread of its own; `how` says what happens to bytes.

    None: nothing. "drop", "delay", "reorder", "replay" and "corrupt" are what is done to about one
    piece in four, in both directions.
    """

    def __init__(self, port):
        self.to, self.how, self.pieces = port, None, 0
        (self.port,) = free_ports(1)
        self._dice, self._ready = random.Random(1), threading.Event()

    def __enter__(self):
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(self, *_):
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)

    async def _run(self):
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._pass_on, "127.0.0.1", self.port)
        self._ready.set()
        await self._stop.wait()
        server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    async def _pass_on(self, reader, writer):
        try:
            there, to_there = await asyncio.open_connection("127.0.0.1", self.to)
        except OSError:
            writer.close()
            return
        await asyncio.gather(self._copy(reader, to_there), self._copy(there, writer))

    async def _copy(self, reader, writer):
        held = b""
        try:
            while data := await reader.read(4096):
                how = self.how if self._dice.random() < 0.25 else None
                self.pieces += how is not None
                if how == "delay":
                    await asyncio.sleep(0.05)
                elif how == "corrupt":
                    at = self._dice.randrange(len(data))
                    data = data[:at] + bytes([data[at] ^ 16]) + data[at + 1 :]
                elif how == "replay":
                    data += data
                if how == "reorder" and not held:
                    held = data
                elif how != "drop":
                    writer.write(data + held)
                    held = b""
                    await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()
