"""Requests that meet a container which is recovering at this very server: no other server has it, so they wait.

Pravega's Rust client refuses to go on otherwise. A writer to a new segment that is refused twice in a row, which takes
two round trips, has no connection from then on, and its next event ends the client's thread. One refusal ends a writer
whose event is large, and a reader whose group's table is asked: the client looks there before each read.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest

from segmentstore.codec.wire_protocol.appends import (
    AppendSetup,
    CreateTransientSegment,
    DataAppended,
    SetupAppend,
)
from segmentstore.codec.wire_protocol.command import Command, KeepAlive
from segmentstore.codec.wire_protocol.refusals import WrongHost
from segmentstore.codec.wire_protocol.segments import SegmentCreated, SegmentDeleted
from segmentstore.codec.wire_protocol.tables import (
    CreateTableSegment,
    DeleteTableSegment,
    ReadTable,
    ReadTableEntriesDelta,
    RemoveTableKeys,
    TableEntriesDeltaRead,
    TableEntriesUpdated,
    TableKeysRemoved,
    TableRead,
    UpdateTableEntries,
)
from segmentstore.contracts.containers import SegmentContainer
from segmentstore.contracts.tables import NO_VERSION, NOT_EXISTS, TableEntry, TableKey
from segmentstore.host.container_registry import ContainerRegistry
from segmentstore.host.segment_store import SegmentStore
from segmentstore.wire.server import WireServer
from segmentstore.wire.settings import WireSettings
from tests.containers.node import MemoryTiers, running
from tests.wire.conftest import SEGMENT, WRITER
from tests.wire.protocol_client import PATIENCE_SECONDS, ProtocolClient, event

SET_UP = SetupAppend(3, WRITER, SEGMENT, "")
TABLE = "scope/group_kvtable/0.#epoch.0"
KEY = TableKey(b"key", NO_VERSION)
REQUESTS: list[tuple[Command, type[Command]]] = [
    (CreateTransientSegment(3, WRITER, SEGMENT, ""), SegmentCreated),
    (CreateTableSegment(3, "scope/new_kvtable/0.#epoch.0", ""), SegmentCreated),
    (DeleteTableSegment(3, TABLE, False, ""), SegmentDeleted),
    (
        UpdateTableEntries(3, TABLE, "", (TableEntry(b"key", b"v", NOT_EXISTS),), -1),
        TableEntriesUpdated,
    ),
    (RemoveTableKeys(3, TABLE, "", (KEY,), -1), TableKeysRemoved),
    (ReadTable(3, TABLE, "", (KEY,)), TableRead),
    (ReadTableEntriesDelta(3, TABLE, "", 0, 10), TableEntriesDeltaRead),
]


class Recovering:
    """A server whose only container is told by the test when it has recovered."""

    def __init__(
        self,
        registry: ContainerRegistry,
        container: SegmentContainer,
        server: WireServer,
        client: ProtocolClient,
    ) -> None:
        self.registry = registry
        self.server = server
        self.container = container
        self.client = client

    async def set_up_and_hear_nothing(self) -> None:
        await self.send_and_hear_nothing(SET_UP)

    async def send_and_hear_nothing(self, command: Command) -> None:
        # The answer to what was sent behind it says that it has been looked at.
        self.client.send(command)
        for _ in range(3):
            await self.client.ask(KeepAlive(), KeepAlive)


@asynccontextmanager
async def recovering(*, seconds_max: float = PATIENCE_SECONDS) -> AsyncIterator[Recovering]:
    registry = ContainerRegistry(container_count=1)
    store = SegmentStore(registry=registry)
    server = WireServer(
        segments=store,
        tables=store,
        random=Random(1),
        settings=WireSettings(tick_seconds=0.02, recovery_seconds_max=seconds_max),
        wait_for_recovery=store.wait_for_recovery,
    )
    async with running(MemoryTiers()) as container:
        await container.create(SEGMENT)
        await container.create_table(TABLE)
        registry.set_starting(container)
        await server.start("127.0.0.1", 0)
        client = await ProtocolClient.connect(server.address)
        try:
            yield Recovering(registry, container, server, client)
        finally:
            await client.close()
            await server.close()
        server.check()


async def test_a_set_up_waits_for_a_container_that_recovers_here() -> None:
    async with recovering() as node:
        await node.set_up_and_hear_nothing()
        node.registry.set_running(node.container)
        assert (await node.client.expect(AppendSetup)).request_id == SET_UP.request_id
        node.client.append(WRITER, event(b"x"), 1, request_id=4)
        assert (await node.client.expect(DataAppended)).event_number == 1


async def test_a_set_up_is_refused_when_the_container_has_not_recovered() -> None:
    async with recovering() as node:
        await node.set_up_and_hear_nothing()
        node.registry.set_absent(node.container, reason="failed: the log is gone", failed=True)
        refusal = await node.client.expect(WrongHost)
        assert (refusal.request_id, refusal.correct_host) == (SET_UP.request_id, "")


async def test_a_set_up_waits_for_a_long_recovery_no_longer_than_it_may() -> None:
    async with recovering(seconds_max=0.05) as node:
        node.client.send(SET_UP)
        assert (await node.client.expect(WrongHost)).request_id == SET_UP.request_id
        node.registry.set_running(node.container)
        await node.client.ask(SET_UP, AppendSetup)


async def test_a_set_up_that_waited_long_enough_does_not_wake_all_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    timer_count = 0
    call_at = loop.call_at

    def counted(*given: Any, **named: Any) -> asyncio.TimerHandle:
        nonlocal timer_count
        timer_count += 1
        return call_at(*given, **named)

    set_ups = 60
    async with recovering(seconds_max=0.4) as node:
        monkeypatch.setattr(loop, "call_at", counted)
        for number in range(set_ups):
            node.client.send(SetupAppend(number, number.to_bytes(16), SEGMENT, ""))
            await asyncio.sleep(0.003)
        for _ in range(set_ups):
            await node.client.expect(WrongHost)
        monkeypatch.undo()
    # Its own, the pause before it, the patience with its answer, and ticks: five for each, and more where it all takes
    # seconds. There are 29 more for each if it wakes the others.
    assert timer_count < 20 * set_ups


async def test_a_connection_is_read_on_though_very_many_of_its_requests_wait() -> None:
    # More than may be under way: what comes behind them would not be looked at.
    count = 2 * WireSettings().requests_per_connection_max
    answers: list[Command] = []
    # No wait is over by its own time before the client has lost its patience.
    async with recovering(seconds_max=10 * PATIENCE_SECONDS) as node:
        for number in range(count):
            node.client.send(SetupAppend(number, number.to_bytes(16), SEGMENT, ""))
        node.client.send(KeepAlive())
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not isinstance(answer := await node.client.receive(), KeepAlive):
                answers.append(answer)
        node.registry.set_running(node.container)
        while len(answers) < count:
            answers.append(await node.client.receive())
    # Which of them wait on, and whether any does, is decided by what is under way at the moment.
    assert {type(answer) for answer in answers} <= {AppendSetup, WrongHost}
    assert any(isinstance(answer, WrongHost) for answer in answers)


async def test_requests_behind_one_that_waited_in_vain_do_not_wait_one_after_the_other() -> None:
    update = UpdateTableEntries(3, TABLE, "", (TableEntry(b"key", b"v", NO_VERSION),), -1)
    async with recovering(seconds_max=0.5) as node:
        node.client.send(*[update] * 40)
        # One after the other they would take 20 seconds.
        async with asyncio.timeout(18):
            for _ in range(40):
                await node.client.expect(WrongHost)
        node.registry.set_running(node.container)
        await node.client.ask(update, TableEntriesUpdated)


@pytest.mark.parametrize(("count", "value"), [(300, b"v"), (12, bytes(1_000_000))])
async def test_a_connection_is_read_on_though_very_many_changes_of_a_table_wait(
    count: int, value: bytes
) -> None:
    update = UpdateTableEntries(3, TABLE, "", (TableEntry(b"key", value, NO_VERSION),), -1)
    async with recovering() as node:
        node.client.send(*[update] * count)
        node.client.send(KeepAlive())
        refused = 0
        while not isinstance(await node.client.receive(), KeepAlive):
            refused += 1
        assert refused, "all of them wait"
        node.registry.set_running(node.container)
        for _ in range(count - refused):
            await node.client.receive()
        await node.client.ask(update, TableEntriesUpdated)


async def test_a_client_that_goes_while_its_set_up_waits_leaves_nothing() -> None:
    async with recovering() as node:
        await node.set_up_and_hear_nothing()
        await node.client.close()
        while node.server.statistics().connections:
            await asyncio.sleep(0.001)
        node.registry.set_running(node.container)
        await asyncio.sleep(0.001)
        assert node.server.statistics().pinned_segments == 0


@pytest.mark.parametrize(("command", "reply"), REQUESTS)
async def test_a_request_that_clients_take_no_refusal_of_waits_for_a_container_that_recovers_here(
    command: Command, reply: type[Command]
) -> None:
    async with recovering() as node:
        await node.send_and_hear_nothing(command)
        node.registry.set_running(node.container)
        await node.client.expect(reply)


@pytest.mark.parametrize("command", [command for command, _ in REQUESTS])
async def test_a_request_is_refused_when_the_container_has_not_recovered(command: Command) -> None:
    async with recovering() as node:
        await node.send_and_hear_nothing(command)
        node.registry.set_absent(node.container, reason="failed: the log is gone", failed=True)
        assert (await node.client.expect(WrongHost)).request_id == 3
