"""A segment whose container moves between two servers under load: nothing is lost, repeated or reordered."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from random import Random

import pytest

from containers.segment_container import StreamSegmentContainer
from segmentstore.client.byte_segment import ByteSegment
from segmentstore.client.connection import ConnectionPool, ServerAddress
from segmentstore.client.errors import OutcomeUnknownError
from segmentstore.client.event_writer import EventWriter
from segmentstore.client.segment_calls import RememberingLocator, SegmentCalls
from segmentstore.client.settings import ClientSettings
from segmentstore.client.stream_segments import SegmentRange, Successor
from segmentstore.codec.event_frame import EVENT_HEADER_BYTES
from segmentstore.codec.stream_names import segment_name
from segmentstore.codec.wire_protocol.command import Command
from segmentstore.codec.wire_protocol.segments import CreateSegment, SegmentCreated
from segmentstore.codec.wire_protocol.tables import (
    CreateTableSegment,
    TableEntriesUpdated,
    UpdateTableEntries,
)
from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.contracts.tables import NOT_EXISTS, TableEntry
from segmentstore.host.container_registry import ContainerRegistry
from segmentstore.host.segment_store import SegmentStore
from segmentstore.wire.server import WireServer
from segmentstore.wire.settings import WireSettings
from tests.containers.node import MemoryTiers, make_container

EVENTS = segment_name("scope", "stream", 0)
BYTES = segment_name("scope", "bytes", 0)
TABLE = "scope/table_kvtable/0.#epoch.0"
LONG_PAUSE = ClientSettings(
    retry_seconds_first=600.0,
    retry_seconds_max=600.0,
    connect_seconds=60.0,
    silence_seconds=60.0,
)
"""A client that pauses once is too late; one whose process stands still for a while is not."""


class MovingContainer:
    """One container and two servers, of which one has it. Also the controller that says which."""

    def __init__(self) -> None:
        self.tiers = MemoryTiers()
        self.registries = [ContainerRegistry(container_count=1) for _ in range(2)]
        self.servers: list[WireServer] = []
        self.owner = 0
        self.questions = 0
        self.seeds = 0
        self._container: StreamSegmentContainer | None = None
        self._life: asyncio.Task[None] | None = None

    async def segment_endpoint(self, scope: str, stream: str, segment_id: int) -> ServerAddress:
        """As a controller answers."""
        self.questions += 1
        return ServerAddress(*self.servers[self.owner].address)

    async def start(self) -> None:
        for registry in self.registries:
            store = SegmentStore(registry=registry)
            server = WireServer(
                segments=store, tables=store, random=Random(7), settings=WireSettings()
            )
            await server.start("127.0.0.1", 0)
            self.servers.append(server)
            # As the process does that has both.
            registry.watch(partial(_forget, server))
        await self._give_to(0)

    async def move(self) -> None:
        """In order: taken from the one, closed, given to the other."""
        await self._take_away()
        await self._give_to(1 - self.owner)

    async def close(self) -> None:
        for server in self.servers:
            await server.close()
        await self._take_away()

    async def _take_away(self) -> None:
        container, life = self._container, self._life
        assert container is not None
        assert life is not None
        self.registries[self.owner].set_absent(container, reason="moved", failed=False)
        await container.close()
        await asyncio.wait([life])

    async def _give_to(self, owner: int) -> None:
        self.seeds += 2
        container = self._container = make_container(self.tiers, seed=self.seeds)
        self.registries[owner].set_starting(container)
        await container.start()
        self._life = asyncio.ensure_future(container.run())
        self.registries[owner].set_running(container)
        self.owner = owner


def _forget(server: WireServer, container_id: ContainerId, *, runs: bool) -> None:
    if not runs:
        server.forget_container(container_id, container_count=1)


class OneSegment:
    """A stream of one segment, as its writers see it."""

    name = "scope/stream"

    async def ranges(self) -> Sequence[SegmentRange]:
        return [SegmentRange(0, 0.0, 1.0)]

    def segment_name(self, segment_id: int) -> str:
        return segment_name("scope", "stream", segment_id)

    async def successors(self, segment_id: int, error: SegmentStoreError) -> Sequence[Successor]:
        raise error


@asynccontextmanager
async def moving() -> AsyncIterator[MovingContainer]:
    container = MovingContainer()
    await container.start()
    try:
        yield container
    finally:
        await container.close()


def calls_of(container: MovingContainer, settings: ClientSettings) -> SegmentCalls:
    return SegmentCalls(
        locator=RememberingLocator(container),
        pool=ConnectionPool(settings),
        settings=settings,
        random=Random(1),
    )


def create(name: str) -> Callable[[int], Command]:
    return lambda request_id: CreateSegment(request_id, name, 0, 0, "")


def insert(entry: TableEntry) -> Callable[[int], Command]:
    return lambda request_id: UpdateTableEntries(request_id, TABLE, "", (entry,), -1)


async def created(calls: SegmentCalls, *names: str) -> None:
    for name in names:
        await calls.ask(name, create(name), SegmentCreated)


async def test_a_client_is_at_the_new_server_without_a_pause() -> None:
    async with moving() as container, asyncio.timeout(60):
        calls = calls_of(container, LONG_PAUSE)
        await created(calls, EVENTS, BYTES)
        writer = EventWriter(target=OneSegment(), calls=calls.with_own_connections())
        await writer.open()
        segment = ByteSegment(BYTES, calls)
        for number in range(4):
            await writer.write(b"event", key="k")
            await segment.append(b"bytes")
            assert (await segment.info()).length == 5 * (number + 1)
            await container.move()
        await writer.close()
        assert container.questions <= 3 * 5
        await calls.close()


async def test_h86_a_conditional_change_of_a_table_is_made_at_the_new_server_once() -> None:
    async with moving() as container, asyncio.timeout(60):
        calls = calls_of(container, LONG_PAUSE)
        await calls.ask(
            EVENTS,
            lambda request_id: CreateTableSegment(request_id, TABLE, ""),
            SegmentCreated,
        )
        for number in range(4):
            entry = TableEntry(b"k%d" % number, b"v", NOT_EXISTS)
            await calls.ask(EVENTS, insert(entry), TableEntriesUpdated, repeatable=False)
            await container.move()
        await calls.close()


@pytest.mark.parametrize("seed", range(3))
async def test_h86_nothing_is_lost_repeated_or_reordered_while_the_container_moves(
    seed: int,
) -> None:
    random = Random(seed)
    settings = ClientSettings(retry_seconds_first=0.001, retry_seconds_max=0.02)
    async with moving() as container, asyncio.timeout(300):
        calls = calls_of(container, settings)
        await created(calls, EVENTS, BYTES)
        writer = EventWriter(target=OneSegment(), calls=calls.with_own_connections())
        await writer.open()
        read = bytearray()

        async def write_events() -> None:
            acknowledged = []
            for number in range(400):
                acknowledged.append(writer.write_nowait(b"%06d" % number, key="k"))
                if random.random() < 0.3:
                    await asyncio.sleep(random.random() / 100)
            for each in acknowledged:
                await each

        async def append_bytes() -> None:
            segment = ByteSegment(BYTES, calls)
            length = 0
            for number in range(100):
                try:
                    length = await segment.append(b"%06d" % number)
                except OutcomeUnknownError:
                    length = (await segment.info()).length
                assert length == 6 * (number + 1)
                await asyncio.sleep(random.random() / 100)
            await segment.seal()

        async def read_bytes() -> None:
            async with aclosing(ByteSegment(BYTES, calls).tail(0)) as pieces:
                async for piece in pieces:
                    read.extend(piece)

        async def moves() -> None:
            for _ in range(6):
                await asyncio.sleep(random.random() / 5)
                await container.move()

        async with asyncio.TaskGroup() as tasks:
            for work in (write_events(), append_bytes(), read_bytes(), moves()):
                tasks.create_task(work)
        await writer.close()
        assert bytes(read) == b"".join(b"%06d" % number for number in range(100))
        stored = await ByteSegment(EVENTS, calls).read(0, 1 << 20)
        step = EVENT_HEADER_BYTES + 6
        events = [stored[at + EVENT_HEADER_BYTES : at + step] for at in range(0, len(stored), step)]
        assert events == [b"%06d" % number for number in range(400)]
        await calls.close()
