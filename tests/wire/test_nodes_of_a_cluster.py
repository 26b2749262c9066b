"""A server that is a node of a cluster: it names the node that has a container, and needs its lease to answer."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from random import Random

import pytest

from segmentstore.codec.wire_protocol.appends import AppendSetup, SetupAppend
from segmentstore.codec.wire_protocol.command import Command, KeepAlive
from segmentstore.codec.wire_protocol.reads import (
    GetStreamSegmentInfo,
    ReadSegment,
    StreamSegmentInfo,
)
from segmentstore.codec.wire_protocol.refusals import WrongHost
from segmentstore.codec.wire_protocol.segments import CreateSegment, SealSegment, SegmentCreated
from segmentstore.codec.wire_protocol.store_calls import (
    AnswerDone,
    AnswerRefused,
    CallInfo,
    OpenStoreCalls,
)
from segmentstore.codec.wire_protocol.tables import ReadTable, UpdateTableEntries
from segmentstore.contracts.cluster import ClusterNode, NodeInCluster
from segmentstore.contracts.containers import HostId
from segmentstore.contracts.errors import ContainerNotFoundError
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.contracts.tables import NOT_EXISTS, TableEntry, TableKey
from segmentstore.host.container_registry import ContainerRegistry
from segmentstore.host.segment_store import SegmentStore
from segmentstore.wire.server import WireServer
from segmentstore.wire.settings import WireSettings
from segmentstore.wire.store_calls import StoreCallAccess
from tests.containers.node import MemoryTiers, running
from tests.wire.conftest import SEGMENT, WRITER
from tests.wire.protocol_client import ProtocolClient

TABLE = "scope/table_kvtable/0.#epoch.0"
QUESTIONS: list[Command] = [
    GetStreamSegmentInfo(9, SEGMENT, ""),
    CreateSegment(9, "scope/stream/1.#epoch.0", 0, 0, ""),
    SetupAppend(9, WRITER, SEGMENT, ""),
    ReadSegment(SEGMENT, 0, 100, "", 9),
    UpdateTableEntries(9, TABLE, "", (TableEntry(b"k", b"v", NOT_EXISTS),), -1),
    ReadTable(9, TABLE, "", (TableKey(b"k"),)),
]


class OtherOwner:
    """Implements ContainerLocations: everything is at one node."""

    container_count = 1

    def __init__(self, owner: ClusterNode | None) -> None:
        self.owner = owner

    def owner_of(self, container_id: ContainerId) -> ClusterNode | None:
        return self.owner

    def node_to_ask(self, container_id: ContainerId) -> ClusterNode | None:
        return self.owner_of(container_id)

    def nodes(self) -> Sequence[ClusterNode]:
        return [] if self.owner is None else [self.owner]

    async def refresh(self) -> None:
        """It never changes."""


class OneNode:
    """What a test turns."""

    def __init__(self) -> None:
        self.registry = ContainerRegistry(container_count=1)
        self.locations = OtherOwner(None)
        self.is_lease_valid = True

    @asynccontextmanager
    async def client(self) -> AsyncIterator[ProtocolClient]:
        store = SegmentStore(registry=self.registry)
        server = WireServer(
            segments=store,
            tables=store,
            random=Random(1),
            settings=WireSettings(tick_seconds=0.02, long_poll_seconds=30.0),
            wait_for_recovery=store.wait_for_recovery,
            cluster=NodeInCluster(
                locations=self.locations,
                node_id=lambda: HostId("this"),
                is_lease_valid=lambda: self.is_lease_valid,
                serves=self.registry.serves,
            ),
            store_calls=StoreCallAccess(
                token="token", containers=lambda number: self.registry.get(ContainerId(number))
            ),
        )
        await server.start("127.0.0.1", 0)
        client = await ProtocolClient.connect(server.address)
        try:
            yield client
        finally:
            await client.close()
            await server.close()


OTHER = ClusterNode(HostId("other"), "10.0.0.2:9091", "10.0.0.2:12345", 0, "test")
THIS = ClusterNode(HostId("this"), "10.0.0.1:9091", "10.0.0.1:12345", 0, "test")


@pytest.mark.parametrize("command", QUESTIONS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize(("owner", "named"), [(OTHER, "10.0.0.2:12345"), (THIS, ""), (None, "")])
async def test_h86_a_wrong_host_names_the_node_that_has_the_container_if_that_is_another(
    command: Command, owner: ClusterNode | None, named: str
) -> None:
    node = OneNode()
    node.locations.owner = owner
    async with node.client() as client:
        refusal = await client.ask(command, WrongHost)
        assert (refusal.request_id, refusal.correct_host) == (9, named)


@pytest.mark.parametrize("command", QUESTIONS, ids=lambda each: type(each).__name__)
async def test_h83_a_node_without_its_lease_answers_nothing_though_the_container_runs(
    command: Command,
) -> None:
    node = OneNode()
    async with running(MemoryTiers()) as container, node.client() as client:
        node.registry.set_starting(container)
        node.registry.set_running(container)
        await client.ask(CreateSegment(1, SEGMENT, 0, 0, ""), SegmentCreated)
        node.is_lease_valid = False
        assert (await client.ask(command, WrongHost)).request_id == 9
        node.is_lease_valid = True
        await client.ask(GetStreamSegmentInfo(2, SEGMENT, ""), StreamSegmentInfo)


async def test_h83_what_waited_for_a_recovery_is_sent_away_if_the_lease_has_ended_meanwhile() -> (
    None
):
    node = OneNode()
    async with running(MemoryTiers()) as container, node.client() as client:
        await container.create_table(TABLE)
        node.registry.set_starting(container)
        client.send(ReadTable(9, TABLE, "", (TableKey(b"k"),)))
        client.send(SealSegment(10, TABLE, ""))
        for _ in range(3):
            await client.ask(KeepAlive(), KeepAlive)
        node.is_lease_valid = False
        node.registry.set_running(container)
        refused = {(await client.expect(WrongHost)).request_id for _ in range(2)}
        assert refused == {9, 10}


async def test_an_append_to_a_container_that_stops_is_sent_away_and_the_connection_stays() -> None:
    node = OneNode()
    node.locations.owner = OTHER
    async with running(MemoryTiers()) as container, node.client() as client:
        node.registry.set_starting(container)
        node.registry.set_running(container)
        await client.ask(CreateSegment(1, SEGMENT, 0, 0, ""), SegmentCreated)
        await client.ask(SetupAppend(2, WRITER, SEGMENT, ""), AppendSetup)
        # What the server has open of it is not let go of: the append meets the container itself.
        await container.close()
        client.append(WRITER, b"x", 1, request_id=7)
        refusal = await client.expect(WrongHost)
        assert (refusal.request_id, refusal.correct_host) == (7, OTHER.wire)
        client.append(WRITER, b"x", 2, request_id=7)
        assert (await client.ask(GetStreamSegmentInfo(9, SEGMENT, ""), WrongHost)).request_id == 9


async def test_h83_a_reader_that_waits_is_sent_away_when_the_lease_ends() -> None:
    node = OneNode()
    async with running(MemoryTiers()) as container, node.client() as client:
        node.registry.set_starting(container)
        node.registry.set_running(container)
        await client.ask(CreateSegment(1, SEGMENT, 0, 0, ""), SegmentCreated)
        client.send(ReadSegment(SEGMENT, 0, 100, "", 5))
        await client.ask(GetStreamSegmentInfo(2, SEGMENT, ""), StreamSegmentInfo)
        node.is_lease_valid = False
        assert (await client.expect(WrongHost)).request_id == 5


async def test_h83_a_node_without_its_lease_does_nothing_for_a_controller() -> None:
    node = OneNode()
    async with running(MemoryTiers()) as container, node.client() as client:
        node.registry.set_starting(container)
        node.registry.set_running(container)
        await client.ask(OpenStoreCalls(1, "token", 1), AnswerDone)
        node.is_lease_valid = False
        refusal = await client.ask(CallInfo(2, SEGMENT), AnswerRefused)
        assert isinstance(refusal.error.error(), ContainerNotFoundError)
