"""The asyncio client: events written by an EventWriter and read by a StreamReader, beside the bare wire protocol.

The limit is a program that does nothing but the protocol: it sends appends of blocks that were framed before and waits
for their acknowledgements, and it reads a segment without looking at what comes. Blocks, bytes under way and reads are
as large as the client's. The server is a process of its own with its log in memory, so that no disk is measured; client
and bare protocol alternate on it, and figures are medians of the rounds. Both share the machine's processors with the
server, so the ratio says what a program loses by using the client; what an event costs the client's processor is a row
of its own.

    python -m benchmarks.client [--seconds 2] [--rounds 3]
"""

import argparse
import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks.workbench import Row, median, print_rows, row
from segmentstore.cli.server_process import ServerProcess
from segmentstore.client import ClientSettings, ScalingPolicy, Store, Stream, StreamConfig, connect
from segmentstore.client.connection import ConnectionPool, ServerAddress, WireConnection
from segmentstore.client.errors import ConnectionLostError
from segmentstore.codec.event_frame import EVENT_HEADER_BYTES, frame_event
from segmentstore.codec.stream_names import segment_name
from segmentstore.codec.wire_protocol.appends import (
    AppendBlockEnd,
    AppendSetup,
    DataAppended,
    SetupAppend,
)
from segmentstore.codec.wire_protocol.command import Command
from segmentstore.codec.wire_protocol.reads import ReadSegment, SegmentRead

SCOPE: Final = "benchmark"
SETTINGS: Final = ClientSettings()
KEYS: Final = 64
READ_BYTES_TOTAL: Final = 100 << 20
LONE_EVENTS: Final = 1_000


class Pace:
    """What one round did: events a second, and CPU time of this process for each."""

    def __init__(self) -> None:
        self._begin, self._begin_cpu = time.perf_counter(), time.process_time()
        self.events_per_second = 0.0
        self.cpu_us = 0.0

    def ended(self, events: float) -> "Pace":
        self.events_per_second = events / (time.perf_counter() - self._begin)
        self.cpu_us = (time.process_time() - self._begin_cpu) / events * 1e6
        return self


Work = Callable[[], Coroutine[None, None, Pace]]


class BareProtocol:
    """Appends and reads of one segment over one connection, without a client around it."""

    def __init__(self, connection: WireConnection, stream: str, event: bytes) -> None:
        self._connection = connection
        self._segment = segment_name(SCOPE, stream, 0)
        self._framed = frame_event(event)

    async def write(self, seconds: float) -> Pace:
        """Blocks, as many under way as an EventWriter has."""
        events = max(1, SETTINGS.block_bytes_max // len(self._framed))
        block = self._framed * events
        blocks_max = SETTINGS.unacknowledged_bytes_max // len(block)
        under_way_max = events * min(SETTINGS.blocks_in_flight_max, blocks_max)
        appends = await Appends.set_up(self._connection, self._segment)
        pace, end = Pace(), time.perf_counter() + seconds
        while time.perf_counter() < end:
            appends.send(block, events)
            await appends.stored(appends.sent - under_way_max)
        await appends.stored(appends.sent)
        return pace.ended(appends.sent)

    async def write_one_at_a_time(self) -> Pace:
        """A round trip for each event."""
        appends = await Appends.set_up(self._connection, self._segment)
        pace = Pace()
        for _ in range(LONE_EVENTS):
            appends.send(self._framed, 1)
            await appends.stored(appends.sent)
        return pace.ended(LONE_EVENTS)

    async def read(self, length: int) -> Pace:
        """The segment from its beginning."""
        offset = 0
        pace = Pace()
        while offset < length:
            command = partial(ReadSegment, self._segment, offset, SETTINGS.read_bytes, "")
            found = await self._connection.request(command)
            assert isinstance(found, SegmentRead), f"not read {found!r}"
            offset += len(found.data)
        return pace.ended(offset / len(self._framed))


class Appends:
    """One writer id on a connection: how much of what it sent is stored."""

    def __init__(self, connection: WireConnection, request_id: int, writer_id: bytes) -> None:
        self._connection = connection
        self._request_id = request_id
        self._writer_id = writer_id
        self._stored = 0
        self._lost: ConnectionLostError | None = None
        self._acknowledged = asyncio.Event()
        self.sent = 0

    @classmethod
    async def set_up(cls, connection: WireConnection, segment: str) -> "Appends":
        """Ready to send."""
        request_id, writer_id = connection.next_request_id(), Random().randbytes(16)
        appends = cls(connection, request_id, writer_id)
        connection.subscribe(request_id, appends)
        connection.send(SetupAppend(request_id, writer_id, segment, ""))
        await appends._acknowledged.wait()
        return appends

    def send(self, block: bytes, events: int) -> None:
        self.sent += events
        self._connection.send(
            AppendBlockEnd(self._writer_id, len(block), block, events, self.sent, self._request_id)
        )

    async def stored(self, number: int) -> None:
        """Wait until the events up to a number are acknowledged."""
        while self._stored < number:
            if self._lost is not None:
                raise self._lost
            self._acknowledged.clear()
            await self._acknowledged.wait()

    def received(self, reply: Command) -> None:
        """An acknowledgement."""
        if isinstance(reply, DataAppended):
            self._stored = reply.event_number
        else:
            assert isinstance(reply, AppendSetup), f"refused {reply!r}"
        self._acknowledged.set()

    def lost(self, error: ConnectionLostError) -> None:
        """The connection ended."""
        self._lost = error
        self._acknowledged.set()


class Bench:
    """A store to measure, and how long."""

    def __init__(self, store: Store, wire: WireConnection, *, seconds: float, rounds: int) -> None:
        self._store = store
        self._wire = wire
        self._seconds = seconds
        self._rounds = rounds
        self._streams = 0

    async def rows(self) -> list[Row]:
        rows: list[Row] = []
        for size in (100, 1_000, 10_000):
            rows += await self._writing(f"write {size:,} B", b"x" * size, keys=0)
        rows += await self._writing("write 100 B, 64 keys, 4 segments", b"x" * 100, keys=KEYS)
        rows += await self._one_at_a_time(b"x" * 100)
        for size in (100, 1_000):
            rows += await self._reading(f"read {size:,} B", b"x" * size)
        return rows

    async def _writing(self, what: str, event: bytes, *, keys: int) -> list[Row]:
        stream, bare = await self._stream(event, segments=4 if keys else 1)
        names: list[str | None] = [f"key {number}" for number in range(keys)] or [None]

        async def write() -> Pace:
            events = 0
            pace, end = Pace(), time.perf_counter() + self._seconds
            async with stream.writer() as writer:
                while time.perf_counter() < end:
                    for name in names:
                        await writer.write(event, key=name)
                    events += len(names)
                await writer.flush()
                return pace.ended(events)

        return await self._compared(what, write, lambda: bare.write(self._seconds))

    async def _one_at_a_time(self, event: bytes) -> list[Row]:
        stream, bare = await self._stream(event, segments=1)

        async def write() -> Pace:
            async with stream.writer() as writer:
                pace = Pace()
                for _ in range(LONE_EVENTS):
                    await writer.write_and_wait(event)
                return pace.ended(LONE_EVENTS)

        return await self._compared("write one event at a time", write, bare.write_one_at_a_time)

    async def _reading(self, what: str, event: bytes) -> list[Row]:
        stream, bare = await self._stream(event, segments=1)
        count = READ_BYTES_TOTAL // (len(event) + EVENT_HEADER_BYTES)
        async with stream.writer() as writer:
            for _ in range(count):
                await writer.write(event)

        async def read() -> Pace:
            pace = Pace()
            async with stream.read() as events:
                for _ in range(count):
                    await anext(events)
                return pace.ended(count)

        length = count * (len(event) + EVENT_HEADER_BYTES)
        return await self._compared(what, read, lambda: bare.read(length))

    async def _stream(self, event: bytes, *, segments: int) -> tuple[Stream, BareProtocol]:
        self._streams += 1
        name = f"stream{self._streams}"
        stream = self._store.stream(f"{SCOPE}/{name}")
        await stream.create(StreamConfig(ScalingPolicy.fixed(segments)))
        return stream, BareProtocol(self._wire, name, event)

    async def _compared(self, what: str, client: Work, bare: Work) -> list[Row]:
        ours: list[Pace] = []
        limits: list[Pace] = []
        for _ in range(self._rounds):
            ours.append(await client())
            limits.append(await bare())
        rows = [
            row(
                f"{what}, beside the bare protocol",
                median([each.events_per_second for each in ours]),
                "events/s",
                median([each.events_per_second for each in limits]),
            ),
            row(
                f"{what}, CPU of the client",
                median([each.cpu_us for each in ours]),
                "us/event",
                median([each.cpu_us for each in limits]),
            ),
        ]
        print_rows(rows)
        return rows


@asynccontextmanager
async def bare_connection(server: ServerProcess) -> AsyncIterator[WireConnection]:
    host, _, port = _address(server, "wire").rpartition(":")
    pool = ConnectionPool(SETTINGS)
    try:
        yield await pool.connection(ServerAddress(host, int(port)))
    finally:
        await pool.close()


def _address(server: ServerProcess, name: str) -> str:
    """HOST:PORT of one of its listeners."""
    words = dict(word.partition("=")[::2] for word in server.ready_line.split())
    return words[name]


async def measure(server: ServerProcess, *, seconds: float, rounds: int) -> list[Row]:
    async with (
        connect(f"tcp://{_address(server, 'controller')}", settings=SETTINGS) as store,
        bare_connection(server) as wire,
    ):
        await store.scope(SCOPE).create()
        return await Bench(store, wire, seconds=seconds, rounds=rounds).rows()


def main(*, seconds: float = 2.0, rounds: int = 3) -> list[Row]:
    """Measure, print and return the rows."""
    with (
        TemporaryDirectory(prefix="segmentstore-bench-") as directory,
        ServerProcess(Path(directory) / "data", ["--tier1", "memory"]) as server,
    ):
        return asyncio.run(measure(server, seconds=seconds, rounds=rounds))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    main(seconds=arguments.seconds, rounds=arguments.rounds)
