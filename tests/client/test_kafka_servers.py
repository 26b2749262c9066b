"""Goal: in a store of several servers each request reaches the one that has what it is about, and is done once.

Method: servers that answer by a script, and note what they are asked.
"""

import asyncio
import socket
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest

from segmentstore.client import kafka_servers
from segmentstore.client.errors import ClosedError, OutcomeUnknownError
from segmentstore.client.kafka_servers import KafkaServers
from segmentstore.client.sync_topics import connect_topics
from segmentstore.client.topics import NewRecord, TopicRequestError, Topics, connected_topics
from segmentstore.codec.kafka_protocol.administration import (
    CreatedTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from segmentstore.codec.kafka_protocol.cluster import (
    ApiVersionsRequest,
    MetadataBroker,
    MetadataPartition,
    MetadataRequest,
    MetadataResponse,
    MetadataTopic,
)
from segmentstore.codec.kafka_protocol.error_codes import ErrorCode
from segmentstore.codec.kafka_protocol.fetch import FetchRequest
from segmentstore.codec.kafka_protocol.frames import (
    LENGTH_BYTES,
    decode_request,
    encode_response,
    read_request_header,
)
from segmentstore.codec.kafka_protocol.groups import (
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from segmentstore.codec.kafka_protocol.produce import (
    ProducedPartition,
    ProducedTopic,
    ProduceRequest,
    ProduceResponse,
)
from segmentstore.codec.kafka_protocol.structure import Structure
from segmentstore.contracts.errors import ErrorKind
from segmentstore.kafka.cluster_requests import SPOKEN_VERSIONS
from segmentstore.runtime.clock import SystemWallClock


@dataclass
class ScriptedStore:
    """Two servers, 1 and 2, and who has what; 0 is none of them."""

    leader: int = 2
    controller: int = 2
    told_leader: int | None = None
    """What Metadata says, if it is not the truth."""
    ports: dict[int, int] = field(default_factory=dict)
    asked: list[tuple[int, type[Structure]]] = field(default_factory=list)
    fetches: "asyncio.Queue[int]" = field(default_factory=asyncio.Queue)
    """The servers that hold one, each until its connection ends."""
    unanswered: dict[type[Structure], int] = field(default_factory=dict)
    """How many more of these requests end their connection instead of being answered."""
    servers: dict[int, asyncio.Server] = field(default_factory=dict)
    writers: list[StreamWriter] = field(default_factory=list)
    """Of all connections."""

    @property
    def addresses(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports.values())

    def answer(self, number: int, request: Structure) -> Structure:
        self.asked.append((number, type(request)))
        match request:
            case MetadataRequest():
                leader = self.leader if self.told_leader is None else self.told_leader
                partitions = tuple(
                    MetadataPartition(
                        error_code=0,
                        partition_index=index,
                        leader_id=leader or -1,
                        replica_nodes=(),
                        isr_nodes=(),
                    )
                    for index in range(5)
                )
                return MetadataResponse(
                    brokers=tuple(
                        MetadataBroker(node_id=each, host="127.0.0.1", port=port)
                        for each, port in self.ports.items()
                    ),
                    controller_id=self.controller,
                    topics=(MetadataTopic(error_code=0, name="logs", partitions=partitions),),
                )
            case ProduceRequest():
                code = ErrorCode.NONE if number == self.leader else ErrorCode.NOT_LEADER_OR_FOLLOWER
                produced = ProducedPartition(index=0, error_code=code, base_offset=number)
                return ProduceResponse(topics=(ProducedTopic(name="logs", partitions=(produced,)),))
            case CreateTopicsRequest():
                code = ErrorCode.NONE if number == self.controller else ErrorCode.NOT_CONTROLLER
                return CreateTopicsResponse(topics=(CreatedTopic(name="logs", error_code=code),))
            case ListGroupsRequest():
                group = ListedGroup(group_id=f"of server {number}", protocol_type="consumer")
                return ListGroupsResponse(error_code=0, groups=(group,))
        raise AssertionError(f"a request without a script {request=}")

    async def end_connections(self) -> None:
        for writer in self.writers:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
        self.writers.clear()

    def requests(self, kind: type[Structure]) -> list[int]:
        """Which servers were asked that, in order."""
        return [number for number, each in self.asked if each is kind]


@asynccontextmanager
async def serving(store: ScriptedStore) -> AsyncIterator[ScriptedStore]:
    def serve_as(number: int) -> Callable[[StreamReader, StreamWriter], Awaitable[None]]:
        async def serve(reader: StreamReader, writer: StreamWriter) -> None:
            store.writers.append(writer)
            try:
                while True:
                    length = int.from_bytes(await reader.readexactly(LENGTH_BYTES))
                    frame = await reader.readexactly(length)
                    header = read_request_header(frame)
                    request = decode_request(header, frame)
                    if isinstance(request, FetchRequest):
                        store.fetches.put_nowait(number)
                        await reader.read()
                        continue
                    if store.unanswered.get(type(request), 0):
                        store.unanswered[type(request)] -= 1
                        raise ConnectionResetError
                    answer = (
                        SPOKEN_VERSIONS
                        if isinstance(request, ApiVersionsRequest)
                        else store.answer(number, request)
                    )
                    writer.writelines(
                        encode_response(header.correlation_id, answer, header.api_version)
                    )
            except (asyncio.IncompleteReadError, ConnectionError):
                writer.close()

        return serve

    for number in (1, 2):
        server = await asyncio.start_server(serve_as(number), "127.0.0.1", 0)
        store.servers[number] = server
        store.ports[number] = server.sockets[0].getsockname()[1]
    try:
        yield store
    finally:
        for server in store.servers.values():
            server.close()
        # Not left to what each of them hears of its client.
        await store.end_connections()


_SECONDS_MAX = 60.0
"""No promise, only an end."""
RECORD = NewRecord(value=b"x")


async def test_a_batch_goes_to_the_leader_and_then_always_there() -> None:
    async with (
        serving(ScriptedStore(leader=2)) as store,
        connected_topics(f"127.0.0.1:{store.ports[1]}") as topics,
    ):
        assert await topics.produce("logs", 0, [RECORD]) == 2
        assert await topics.produce("logs", 0, [RECORD]) == 2
    assert store.requests(ProduceRequest) == [1, 2, 2]


async def test_a_leader_that_moves_is_found_again() -> None:
    async with (
        serving(ScriptedStore(leader=2)) as store,
        connected_topics(store.addresses) as topics,
    ):
        await topics.produce("logs", 0, [RECORD])
        store.leader = 1
        assert await topics.produce("logs", 0, [RECORD]) == 1


async def test_the_places_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was forgotten is found again."""
    monkeypatch.setattr(kafka_servers, "_REMEMBERED_MAX", 3)
    async with serving(ScriptedStore(leader=2)) as store:
        servers = KafkaServers([("127.0.0.1", store.ports[1])])
        topics = Topics(servers, wall_clock=SystemWallClock())
        try:
            await servers.connect()
            for partition in (*range(5), 0):
                assert await topics.produce("logs", partition, [RECORD]) == 2
                assert len(servers._places) <= 3
        finally:
            await servers.close()
    assert store.requests(ProduceRequest) == [1, 2] * 6


async def test_nothing_is_kept_of_servers_that_are_gone() -> None:
    """A store whose servers come with new addresses, as containers do."""
    async with serving(ScriptedStore()) as home:
        servers = KafkaServers([("127.0.0.1", home.ports[1])])
        try:
            await servers.connect()
            for _ in range(5):
                async with serving(ScriptedStore()) as moved:
                    home.ports[2] = moved.ports[2]
                    assert len(await servers.ask_all(ListGroupsRequest(), ListGroupsResponse)) == 2
                    assert len(servers._connections) <= 3
            assert not len(servers._turns)
        finally:
            await servers.close()


@pytest.mark.parametrize("told_leader", [None, 2])
async def test_where_no_server_has_the_partition_a_few_are_asked_and_then_the_caller_is_told(
    told_leader: int | None,
) -> None:
    async with (
        serving(ScriptedStore(leader=0, told_leader=told_leader)) as store,
        connected_topics(store.addresses) as topics,
    ):
        with pytest.raises(TopicRequestError) as refused:
            await topics.produce("logs", 0, [RECORD])
        assert refused.value.kind is ErrorKind.UNAVAILABLE
    assert len(store.requests(ProduceRequest)) == 4


async def test_topics_are_changed_by_the_controller() -> None:
    async with serving(ScriptedStore()) as store, connected_topics(store.addresses) as topics:
        await topics.create("logs", partitions=1)
    assert store.requests(CreateTopicsRequest) == [1, 2]


async def test_a_fetch_whose_caller_leaves_holds_up_no_other_call() -> None:
    """Neither one that waits behind it nor one that comes later. The server holds it while its connection lasts."""
    async with (
        serving(ScriptedStore()) as store,
        connected_topics(f"127.0.0.1:{store.ports[1]}") as topics,
    ):
        fetching = asyncio.ensure_future(topics.fetch("logs", 0, offset=0, wait_ms=600_000))
        assert await store.fetches.get() == 1
        behind = [asyncio.ensure_future(topics.groups()) for _ in range(2)]
        await asyncio.sleep(0)
        fetching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fetching
        async with asyncio.timeout(_SECONDS_MAX):
            for each in [*behind, asyncio.ensure_future(topics.groups())]:
                assert await each == ["of server 1", "of server 2"]


async def test_a_caller_that_leaves_while_it_waits_for_its_turn_ends_no_call_of_another() -> None:
    async with (
        serving(ScriptedStore()) as store,
        connected_topics(f"127.0.0.1:{store.ports[1]}") as topics,
    ):
        first = asyncio.ensure_future(topics.groups())
        leaving = asyncio.ensure_future(topics.groups())
        await asyncio.sleep(0)
        leaving.cancel()
        assert await first == ["of server 1", "of server 2"]
        with pytest.raises(asyncio.CancelledError):
            await leaving
    assert store.requests(ListGroupsRequest) == [1, 2]


async def test_a_server_that_says_nothing_is_left_in_time_and_holds_up_no_other_call() -> None:
    async with (
        serving(ScriptedStore()) as store,
        connected_topics(f"127.0.0.1:{store.ports[1]}", silence_seconds=0.1) as topics,
    ):
        fetching = asyncio.ensure_future(topics.fetch("logs", 0, offset=0))
        assert await store.fetches.get() == 1
        behind = asyncio.ensure_future(topics.groups())
        async with asyncio.timeout(_SECONDS_MAX):
            with pytest.raises(OutcomeUnknownError, match="says nothing"):
                await fetching
            assert await behind == ["of server 1", "of server 2"]


async def test_a_server_may_say_nothing_for_as_long_as_a_fetch_waits() -> None:
    async with (
        serving(ScriptedStore()) as store,
        connected_topics(f"127.0.0.1:{store.ports[1]}", silence_seconds=0.1) as topics,
    ):
        loop = asyncio.get_running_loop()
        begun_at = loop.time()
        async with asyncio.timeout(_SECONDS_MAX):
            with pytest.raises(OutcomeUnknownError):
                await topics.fetch("logs", 0, offset=0, wait_ms=200)
        assert loop.time() - begun_at >= 0.2


async def test_a_request_that_was_refused_is_not_unknown_because_the_leader_was_not_told() -> None:
    async with (
        serving(ScriptedStore(leader=2, unanswered={MetadataRequest: 1})) as store,
        connected_topics(f"127.0.0.1:{store.ports[1]}") as topics,
    ):
        assert await topics.produce("logs", 0, [RECORD]) == 2
    assert store.requests(ProduceRequest) == [1, 1, 2]


async def test_what_is_asked_beside_or_behind_the_end_is_sent_nowhere() -> None:
    async with serving(ScriptedStore()) as store:
        async with connected_topics(f"127.0.0.1:{store.ports[1]}") as topics:
            fetching = asyncio.ensure_future(topics.fetch("logs", 0, offset=0, wait_ms=600_000))
            assert await store.fetches.get() == 1
            behind = asyncio.ensure_future(topics.produce("logs", 0, [RECORD]))
            await asyncio.sleep(0)
        asked = list(store.asked)
        async with asyncio.timeout(_SECONDS_MAX):
            with pytest.raises(OutcomeUnknownError):
                await fetching
            with pytest.raises(ClosedError):
                await behind
            with pytest.raises(ClosedError):
                await topics.groups()
        assert store.asked == asked


async def test_a_connection_that_comes_about_behind_the_end_is_ended() -> None:
    gone = asyncio.Event()
    came: asyncio.Queue[StreamWriter] = asyncio.Queue()

    async def tell_versions_when_told(reader: StreamReader, writer: StreamWriter) -> None:
        await reader.readexactly(int.from_bytes(await reader.readexactly(LENGTH_BYTES)))
        came.put_nowait(writer)
        await reader.read()
        gone.set()
        writer.close()

    async with await asyncio.start_server(tell_versions_when_told, "127.0.0.1", 0) as server:
        servers = KafkaServers([server.sockets[0].getsockname()[:2]])
        asked = asyncio.ensure_future(servers.ask(ListGroupsRequest(), ListGroupsResponse))
        writer = await came.get()
        await servers.close()
        writer.writelines(encode_response(1, SPOKEN_VERSIONS, 0))
        async with asyncio.timeout(_SECONDS_MAX):
            with pytest.raises(ClosedError):
                await asked
            await gone.wait()


async def test_groups_are_those_of_all_servers() -> None:
    async with serving(ScriptedStore()) as store, connected_topics(store.addresses) as topics:
        assert await topics.groups() == ["of server 1", "of server 2"]


async def test_of_the_given_servers_one_has_to_be_there() -> None:
    nowhere = socket.socket()
    nowhere.bind(("127.0.0.1", 0))
    with nowhere:
        async with serving(ScriptedStore()) as store:
            given = f"127.0.0.1:{nowhere.getsockname()[1]},127.0.0.1:{store.ports[2]}"
            async with connected_topics(given) as topics:
                assert await topics.produce("logs", 0, [RECORD]) == 2


async def test_code_without_a_loop_hears_of_an_ended_connection_before_it_asks_again() -> None:
    """As a server ends each that is idle for long. Between two calls nothing reads that."""
    loop = asyncio.get_running_loop()

    def work(store: ScriptedStore) -> None:
        with connect_topics(f"127.0.0.1:{store.ports[1]}") as topics:
            for _ in range(2):
                assert topics.produce("logs", 0, [RECORD]) == 1
                asyncio.run_coroutine_threadsafe(store.end_connections(), loop).result(_SECONDS_MAX)

    async with serving(ScriptedStore(leader=1)) as store:
        await asyncio.to_thread(work, store)
    assert store.requests(ProduceRequest) == [1, 1]


async def test_what_any_server_answers_is_asked_of_another_where_the_first_is_gone() -> None:
    async with serving(ScriptedStore()) as store, connected_topics(store.addresses) as topics:
        assert await topics.groups() == ["of server 1", "of server 2"]
        store.servers.pop(1).close()
        del store.ports[1]
        await store.end_connections()
        assert await topics.partition_counts() == {"logs": 5}
        assert await topics.groups() == ["of server 2"]
    assert store.requests(MetadataRequest) == [1, 2, 2]
