"""A running server over topics and groups in memory, and a client that speaks one frame at a time."""

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Self, TypeVar
from uuid import UUID

from segmentstore.codec.kafka_protocol.api_table import APIS
from segmentstore.codec.kafka_protocol.fetch import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from segmentstore.codec.kafka_protocol.frames import api_of, decode_response, encode_request
from segmentstore.codec.kafka_protocol.produce import (
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
)
from segmentstore.codec.kafka_protocol.structure import Structure
from segmentstore.codec.record_batch import Compression, Record, encode_batch
from segmentstore.kafka.server import KafkaServer
from segmentstore.kafka.settings import KafkaSettings
from segmentstore.runtime.clock import SystemWallClock
from segmentstore.topics.groups.groups import Groups
from segmentstore.topics.groups.settings import GroupSettings
from segmentstore.topics.producer_ids import ProducerIds
from segmentstore.topics.settings import TopicSettings
from segmentstore.topics.topics import Topics
from tests.http.memory_segments import MemorySegments
from tests.reference.memory_tables import MemoryTables

_Response = TypeVar("_Response", bound=Structure)


class Client:
    """One connection. Requests and answers are apart, so that a test may send many before it reads."""

    def __init__(self, reader: StreamReader, writer: StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._next_id = 1

    @classmethod
    async def connect(cls, host: str, port: int) -> Self:
        return cls(*await asyncio.open_connection(host, port))

    def send(self, request: Structure, version: int | None = None) -> int:
        """The number of the request."""
        number = self._next_id
        self._next_id += 1
        chosen = api_of(request).asked_in if version is None else version
        self.send_bytes(
            b"".join(encode_request(request, chosen, correlation_id=number, client_id="test"))
        )
        return number

    def send_bytes(self, content: bytes) -> None:
        self._writer.write(content)

    async def frame(self) -> bytes:
        """The next answer, whatever it answers. Raises IncompleteReadError at the end."""
        length = int.from_bytes(await self._reader.readexactly(4), "big")
        return await self._reader.readexactly(length)

    async def answer(
        self, number: int, kind: type[_Response], version: int | None = None
    ) -> _Response:
        chosen = _asked_in(kind) if version is None else version
        return decode_response(kind, await self.frame(), chosen, correlation_id=number)

    async def ask(
        self, request: Structure, kind: type[_Response], version: int | None = None
    ) -> _Response:
        return await self.answer(self.send(request, version), kind, version)

    async def is_closed(self) -> bool:
        """By the other side, without a further answer. Waits for it."""
        try:
            return await self._reader.read(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self._writer.close()


def _asked_in(kind: type[Structure]) -> int:
    return next(api.asked_in for api in APIS.values() if api.response is kind)


@dataclass(slots=True)
class Node:
    """Everything there is."""

    server: KafkaServer
    topics: Topics
    groups: Groups
    segments: MemorySegments
    tables: MemoryTables
    clients: list[Client]

    async def client(self) -> Client:
        client = await Client.connect(*self.server.address)
        self.clients.append(client)
        return client

    async def until(self, condition: Callable[["Node"], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition(self):
                await asyncio.sleep(0.001)

    def ready(self) -> Self:
        self.server.set_ready(True)
        return self


@asynccontextmanager
async def running(
    settings: KafkaSettings | None = None, *, ready: bool = True
) -> AsyncGenerator[Node, None]:
    """A server with one topic "t" of two partitions."""
    segments, tables = MemorySegments(), MemoryTables()
    clock, random = SystemWallClock(), Random(7)
    topics = Topics(
        segments=segments, tables=tables, wall_clock=clock, random=random, settings=TopicSettings()
    )

    def topic_id_of(name: str) -> UUID | None:
        found = topics.describe(name)
        return None if found is None else found.topic_id

    groups = Groups(
        tables=tables,
        wall_clock=clock,
        random=random,
        topic_id_of=topic_id_of,
        settings=GroupSettings(initial_rebalance_delay_seconds=0),
    )
    producer_ids = ProducerIds(tables=tables, wall_clock=clock)
    server = KafkaServer(
        topics=topics,
        groups=groups,
        producer_ids=producer_ids,
        cluster_id="test",
        settings=settings or KafkaSettings(),
    )
    await topics.start()
    await groups.start()
    await producer_ids.start()
    await topics.create("t", 2, {})
    for index in range(2):
        # Recovered here, so that a test that holds the log back holds appends alone.
        await topics.own_partition("t", index)
    await server.start("127.0.0.1", 0)
    node = Node(server, topics, groups, segments, tables, [])
    if ready:
        node.ready()
    try:
        yield node
        server.check()
        groups.check()
    finally:
        await server.close()
        await groups.close()
        await topics.close()
        for client in node.clients:
            client.close()


def batch(*values: bytes | None, compression: Compression = Compression.NONE) -> bytes:
    """One batch, as a producer sends it."""
    now = SystemWallClock().now_ms()
    return encode_batch(
        [Record(at, now, None, value, ()) for at, value in enumerate(values)],
        compression=compression,
    )


def produce(*batches: tuple[int, bytes | None], topic: str = "t", acks: int = -1) -> ProduceRequest:
    """One batch for each named partition."""
    return ProduceRequest(
        acks=acks,
        timeout_ms=10_000,
        topics=(
            ProduceTopic(
                name=topic,
                partitions=tuple(
                    ProducePartition(index=index, records=records) for index, records in batches
                ),
            ),
        ),
    )


def produced(response: ProduceResponse, at: int = 0) -> ProducedPartition:
    return response.topics[0].partitions[at]


def fetch(
    *places: tuple[int, int],
    topic: str = "t",
    wait_ms: int = 0,
    bytes_min: int = 1,
    bytes_max: int = 1 << 20,
    partition_bytes_max: int = 1 << 20,
) -> FetchRequest:
    """From an offset of each named partition."""
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=bytes_min,
        max_bytes=bytes_max,
        topics=(
            FetchTopic(
                topic=topic,
                partitions=tuple(
                    FetchPartition(
                        partition=index,
                        fetch_offset=offset,
                        partition_max_bytes=partition_bytes_max,
                    )
                    for index, offset in places
                ),
            ),
        ),
    )


def fetched(response: FetchResponse, at: int = 0) -> FetchedPartition:
    return response.topics[0].partitions[at]
