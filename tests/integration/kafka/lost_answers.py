"""Stands between a client and its server and loses every k-th answer to Produce.

Bytes pass unchanged in both directions. Instead of such an answer the connection is broken off: the server has stored
the batch, and the producer does not know.
"""

import asyncio
from asyncio import StreamReader, StreamWriter
from contextlib import suppress

from segmentstore.codec.kafka_protocol.api_table import ApiKey
from segmentstore.codec.kafka_protocol.frames import FrameCutter, read_request_header


class AnswerLoser:
    """Serves connections until close(); `losses` counts what it did."""

    def __init__(self, *, server_port: int, every: int) -> None:
        self._server_port = server_port
        self._every = every
        self._answers = 0
        self._tasks: dict[asyncio.Task[object], None] = {}
        self.losses = 0

    async def close(self) -> None:
        """End the connections that are left."""
        left = list(self._tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def serve(self, from_client: StreamReader, to_client: StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "a connection is served in a task"
        self._tasks[task] = None
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                await self._serve(from_client, to_client)
        finally:
            del self._tasks[task]
            to_client.transport.abort()

    async def _serve(self, from_client: StreamReader, to_client: StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._server_port)
        produce_ids: set[int] = set()
        passing = asyncio.ensure_future(self._pass_requests(from_client, to_server, produce_ids))
        try:
            while True:
                length = await from_server.readexactly(4)
                frame = await from_server.readexactly(int.from_bytes(length, "big"))
                if int.from_bytes(frame[:4], "big") in produce_ids:
                    self._answers += 1
                    if self._answers % self._every == 0:
                        self.losses += 1
                        return
                to_client.write(length + frame)
                await to_client.drain()
        finally:
            passing.cancel()
            await asyncio.gather(passing, return_exceptions=True)
            to_server.transport.abort()

    async def _pass_requests(
        self, from_client: StreamReader, to_server: StreamWriter, produce_ids: set[int]
    ) -> None:
        cutter = FrameCutter()
        while content := await from_client.read(1 << 16):
            for frame in cutter.feed(content):
                header = read_request_header(frame)
                if header.api_key == ApiKey.PRODUCE:
                    produce_ids.add(header.correlation_id)
            to_server.write(content)
            await to_server.drain()
        to_server.close()
