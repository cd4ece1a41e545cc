"""An HTTP proxy that knows nothing but CONNECT, and remembers where it has connected."""

import asyncio

SOURCE = "127.0.0.3"
"""Where its outgoing connections come from: who is behind it has another address."""


async def serve_tunnels():
    """A server of asyncio, and the ports to which it has connected, as they come."""
    tunnels = []

    async def copy(reader, writer):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def serve(reader, writer):
        words = (await reader.readuntil(b"\r\n\r\n")).split()
        host, _, port = words[1].decode().rpartition(":")
        there = await asyncio.open_connection(host, int(port), local_addr=(SOURCE, 0))
        tunnels.append(int(port))
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        both = copy(reader, there[1]), copy(there[0], writer)
        await asyncio.gather(*both, return_exceptions=True)

    return await asyncio.start_server(serve, "127.0.0.1", 0), tunnels
