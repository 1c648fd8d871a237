"""A link between a gateway and an engine whose delay can be set while it runs.

It passes bytes on unchanged, each after the delay, in both directions, as `tc qdisc … netem delay`
does on a real link. A connection that one end closes is closed at the other end too.
"""

import asyncio
import contextlib
from collections.abc import Callable

_CHUNK_BYTES = 65_536


class SlowLink:
    """Listens on a loopback port of its own, and leads to one address."""

    def __init__(self, address: str, port: int) -> None:
        self._to = (address, port)
        self.delay_seconds = 0.0
        self.port = 0
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Begin to listen; `port` says where."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening; open connections end with their clients."""
        if self._server is not None:
            self._server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._to)
        except OSError:
            writer.close()
            return
        directions = (
            asyncio.create_task(self._pass(reader, far_writer)),
            asyncio.create_task(self._pass(far_reader, writer)),
        )
        _, left = await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        for one in left:
            one.cancel()
        await asyncio.gather(*directions, return_exceptions=True)
        writer.close()
        far_writer.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        sent: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def deliver(now: Callable[[], float] = loop.time) -> None:
            while True:
                due, data = await sent.get()
                await asyncio.sleep(max(due - now(), 0.0))
                if not data:
                    return
                writer.write(data)
                with contextlib.suppress(ConnectionError):
                    await writer.drain()

        async with asyncio.TaskGroup() as group:
            group.create_task(deliver())
            data = b"?"
            while data:
                try:
                    data = await reader.read(_CHUNK_BYTES)
                except ConnectionError:
                    data = b""
                sent.put_nowait((loop.time() + self.delay_seconds, data))
