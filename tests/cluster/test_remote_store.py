"""What a controller sees of nodes that move containers, break connections, fall silent, or know a newer leader."""

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from random import Random

import pytest

from segmentstore.client.connection import ServerAddress, open_connection
from segmentstore.client.errors import ConnectionLostError
from segmentstore.codec.wire_protocol.reads import GetStreamSegmentInfo
from segmentstore.codec.wire_protocol.refusals import ErrorMessage
from segmentstore.codec.wire_protocol.store_calls import CallInfo
from segmentstore.contracts.errors import (
    BadOffsetError,
    ContainerNotFoundError,
    ContainerStoppedError,
    LeaderReplacedError,
    MergeRefusedError,
    SegmentExistsError,
    SegmentNotFoundError,
    SegmentStoreError,
    SegmentTruncatedError,
    TableVersionError,
)
from segmentstore.contracts.identifiers import EVENT_COUNT, ContainerId
from segmentstore.contracts.segments import AttributeUpdate, AttributeUpdateType, read_available
from segmentstore.contracts.tables import NOT_EXISTS, TableEntry
from tests.cluster.remote_nodes import (
    IMPATIENT,
    PATIENT,
    SilentNode,
    call_into_silence,
    remote_nodes,
    silent_node,
)

TABLE = "_system/_tables/t"


# --- what the interfaces promise ------------------------------------------------------------------


async def test_segments_are_made_filled_read_and_deleted_at_their_nodes() -> None:
    async with remote_nodes() as nodes:
        store = nodes.store
        for number in range(nodes.container_count):
            name = nodes.name_in(number)
            update = AttributeUpdate(EVENT_COUNT, 7)
            created = await store.create(name, [update])
            assert (created.container_id, created.core_attributes[EVENT_COUNT]) == (number, 7)
            with pytest.raises(SegmentExistsError):
                await store.create(name)
            async with store.open_segment(name) as segment:
                first, second = segment.append(b"abc", offset=0), segment.append(b"def")
                refused = segment.append(b"x", offset=1)
                assert (await first, await second, await segment.barrier()) == (3, 6, 6)
                with pytest.raises(BadOffsetError) as raised:
                    await refused
                assert (raised.value.expected, raised.value.given) == (6, 1)
                assert segment.info().length == 6
                progress = segment.publishing()
                assert not progress.has_published(progress.committed), "that is not known here"
                assert await read_available(segment, 2, 100) == b"cdef"
            await store.update_attributes(
                name, [AttributeUpdate(EVENT_COUNT, 2, AttributeUpdateType.ACCUMULATE)]
            )
            assert await store.attributes(name, [EVENT_COUNT]) == {EVENT_COUNT: 9}
            await store.truncate(name, 2)
            async with store.open_segment(name) as segment:
                with pytest.raises(SegmentTruncatedError) as truncated:
                    await read_available(segment, 0, 100)
                assert truncated.value.start_offset == 2
            assert await store.seal(name) == 6
            await store.flush(name)
            assert (await store.info(name)).sealed
            await store.delete(name)
            with pytest.raises(SegmentNotFoundError) as gone:
                await store.info(name)
            assert gone.value.name == name
        await store.flush()


async def test_a_listing_has_the_segments_of_all_nodes_or_fails() -> None:
    async with remote_nodes() as nodes:
        names = sorted(f"x/{number:03d}" for number in range(60))
        for name in names:
            await nodes.store.create(name)
        assert [each.name for each in await nodes.store.list_segments("x/")] == names
        page = await nodes.store.list_segments("x/", start_after=names[9], limit=20)
        assert [each.name for each in page] == names[10:30]
        assert [each.name for each in await nodes.store.list_segments("x/00", limit=1)] == ["x/000"]
        assert [each.name for each in await nodes.store.list_segments("x/030", limit=1)] == [
            "x/030"
        ]
        await nodes.take_away(ContainerId(2))
        with pytest.raises(ContainerNotFoundError) as raised:
            await nodes.store.list_segments("x/")
        assert raised.value.container_id == 2


async def test_segments_of_two_containers_are_not_merged() -> None:
    async with remote_nodes() as nodes:
        target, source = nodes.name_in(0), nodes.name_in(1)
        for name in (target, source):
            await nodes.store.create(name)
        with pytest.raises(MergeRefusedError):
            await nodes.store.merge(target, source)


async def test_a_read_at_the_end_waits_for_the_next_bytes() -> None:
    async with remote_nodes() as nodes:
        name = nodes.name_in(1)
        await nodes.store.create(name)
        async with nodes.store.open_segment(name) as segment:
            entries = segment.read(0, 10)
            entry = await anext(entries)
            waits = asyncio.create_task(entry.content())
            await asyncio.sleep(0.05)
            assert not waits.done()
            await segment.append(b"late")
            assert await waits == b"late"
            await entries.aclose()


async def test_changes_of_a_table_are_made_in_the_order_in_which_they_are_submitted() -> None:
    async with remote_nodes() as nodes:
        await nodes.store.create_table(TABLE)
        async with AsyncExitStack() as opened:
            # Several handles, as several calls of the controller have; what they submit in turn stays in order.
            tables = [
                await opened.enter_async_context(nodes.store.open_table(TABLE)) for _ in range(4)
            ]
            futures = [
                tables[number % 4].update([TableEntry(b"k", b"%d" % number)])
                for number in range(100)
            ]
            versions = [(await future)[0] for future in futures]
            assert versions == sorted(set(versions))
            (found,) = await tables[0].get([b"k"])
            assert found is not None
            assert found.value == b"99"
            assert tables[0].get_nowait([b"k"]) is None


# --- where containers are -------------------------------------------------------------------------


async def test_h86_a_container_that_has_moved_is_found_and_nothing_is_done_twice() -> None:
    async with remote_nodes() as nodes:
        await nodes.store.create_table(TABLE)
        async with nodes.store.open_table(TABLE) as table:
            (version,) = await table.update([TableEntry(b"k", b"before", NOT_EXISTS)])
        for number in range(nodes.container_count):
            await nodes.move(ContainerId(number))
        async with nodes.store.open_table(TABLE) as table:
            (found,) = await table.get([b"k"])
            assert found == TableEntry(b"k", b"before", version)
            await table.update([TableEntry(b"k", b"behind", version)])
            with pytest.raises(TableVersionError) as raised:
                await table.update([TableEntry(b"k", b"late", version)])
            assert (raised.value.key, raised.value.expected) == (b"k", version)


async def test_h86_an_open_table_whose_container_has_moved_refuses_and_nothing_was_done() -> None:
    async with remote_nodes() as nodes:
        await nodes.store.create_table(TABLE)
        async with nodes.store.open_table(TABLE) as table:
            for number in range(nodes.container_count):
                await nodes.move(ContainerId(number))
            with pytest.raises(ContainerNotFoundError):
                await table.update([TableEntry(b"k", b"v")])
            assert await table.get([b"k"]) == [None]


async def test_a_container_without_a_node_holds_no_other_up() -> None:
    async with remote_nodes() as nodes:
        lost, there = nodes.name_in(0), nodes.name_in(1)
        await nodes.store.create(there)
        await nodes.take_away(ContainerId(0))
        with pytest.raises(ContainerNotFoundError) as raised:
            await nodes.store.create(lost)
        assert raised.value.container_id == 0
        assert (await nodes.store.info(there)).name == there
        await nodes.place(ContainerId(0), nodes.nodes[1])
        await nodes.store.create(lost)


async def test_h86_a_node_that_does_not_listen_got_nothing() -> None:
    async with remote_nodes() as nodes:
        name = nodes.name_in(0)
        await nodes.nodes[0].stop()
        with pytest.raises(ContainerNotFoundError):
            await nodes.store.create(name)
        await nodes.nodes[0].start()
        await nodes.store.create(name)


# --- connections that end -------------------------------------------------------------------------


async def test_h86_a_change_whose_connection_ends_is_unknown_and_not_sent_again() -> None:
    async with remote_nodes() as nodes:
        name = nodes.name_in(0)
        await nodes.store.create_table(nodes.name_in(2, "warm"))
        server = nodes.nodes[0].server
        creating = asyncio.create_task(nodes.store.create(name))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for connection in list(server._connections):
            connection.abort()
        outcome = (await asyncio.gather(creating, return_exceptions=True))[0]
        if isinstance(outcome, BaseException):
            assert isinstance(outcome, ContainerStoppedError | ContainerNotFoundError)
        # Whatever became of it, it happened at most once and can be found out.
        try:
            await nodes.store.create(name)
        except SegmentExistsError:
            assert not isinstance(outcome, ContainerNotFoundError)
        else:
            assert isinstance(outcome, SegmentStoreError)


async def test_a_question_is_asked_again_over_a_new_connection() -> None:
    async with remote_nodes() as nodes:
        name = nodes.name_in(0)
        await nodes.store.create(name)
        asking = asyncio.create_task(nodes.store.info(name))
        await asyncio.sleep(0)
        for connection in list(nodes.nodes[0].server._connections):
            connection.abort()
        assert (await asking).name == name


async def test_calls_to_a_node_that_is_gone_end_though_its_connection_is_open() -> None:
    async with remote_nodes() as nodes, silent_node() as silent:
        waits = await call_into_silence(nodes, silent)
        del nodes.locations.registered[nodes.nodes[0].node_id]
        with pytest.raises(ContainerStoppedError):
            # Silence would end it later than that.
            async with asyncio.timeout(PATIENT.silence_seconds / 2):
                await waits


async def test_calls_to_a_node_that_says_nothing_end() -> None:
    async with remote_nodes(settings=IMPATIENT) as nodes, silent_node() as silent:
        waits = await call_into_silence(nodes, silent)
        with pytest.raises(ContainerStoppedError):
            await waits
        await until_pinged(silent)


async def test_a_node_is_asked_before_it_is_given_up_also_by_a_process_that_stood_still() -> None:
    async with remote_nodes(settings=IMPATIENT) as nodes, silent_node() as silent:
        waits = await call_into_silence(nodes, silent)
        # Nothing is looked at meanwhile, and no answer would be heard.
        time.sleep(1.5 * IMPATIENT.silence_seconds)
        await until_pinged(silent)
        with pytest.raises(ContainerStoppedError):
            await waits


async def test_a_node_is_not_given_up_because_the_controller_stood_still() -> None:
    """Its answer may be here by then, and nothing of it is read."""
    async with remote_nodes(settings=IMPATIENT) as nodes:
        name = nodes.name_in(0)
        await nodes.store.create(name)
        sealing = asyncio.create_task(nodes.store.seal(name))
        await asyncio.sleep(0)
        time.sleep(2 * IMPATIENT.silence_seconds)
        await sealing
        assert (await nodes.store.info(name)).sealed


async def test_nor_because_of_that_in_the_middle_of_a_long_call() -> None:
    settings = replace(IMPATIENT, silence_seconds=0.4)
    async with (
        remote_nodes(settings=settings) as nodes,
        silent_node(answers_pings=True) as slow,
    ):
        waits = await call_into_silence(nodes, slow)
        await until_pinged(slow, times=5)
        stood_still = 2 * settings.silence_seconds
        time.sleep(stood_still)
        # uvloop's timers are due before it reads what has arrived.
        nodes.store._nodes.look(asyncio.get_running_loop().time(), stood_still_seconds=stood_still)
        await asyncio.sleep(0.1)
        assert not waits.done()
        del nodes.locations.registered[nodes.nodes[0].node_id]
        with pytest.raises(ContainerStoppedError):
            await waits


async def until_pinged(silent: SilentNode, *, times: int = 1) -> None:
    async with asyncio.timeout(60):
        while len(silent.pings) < times:
            await asyncio.sleep(0.01)


# --- one leader -----------------------------------------------------------------------------------


async def test_h84_a_node_refuses_a_leader_that_was_replaced() -> None:
    async with remote_nodes() as nodes:
        name = nodes.name_in(0)
        await nodes.store.create(name)
        newer = nodes.new_store(leader_epoch=2)
        assert (await newer.info(name)).name == name
        with pytest.raises(LeaderReplacedError):
            await nodes.store.seal(name)
        again = nodes.new_store(leader_epoch=1)
        with pytest.raises(LeaderReplacedError):
            await again.info(name)
        assert not (await newer.info(name)).sealed
        # The other node has not heard of it by the controllers, but by the assignment that it follows.
        other = nodes.name_in(1)
        await nodes.store.create(other)
        nodes.nodes[1].newest_epoch = 2
        with pytest.raises(LeaderReplacedError):
            await nodes.store.delete(other)
        for store in (newer, again):
            await store.close()


async def test_h84_a_new_leader_reads_behind_what_the_one_before_has_under_way() -> None:
    async with remote_nodes(container_count=1) as nodes:
        await nodes.store.create_table(TABLE)
        newer = nodes.new_store(leader_epoch=2)
        async with nodes.store.open_table(TABLE) as table:
            futures = [table.update([TableEntry(b"%d" % n, b"v")]) for n in range(20)]
            # They have arrived, and nothing is committed yet: it takes more turns of the loop.
            await nodes.store.info(TABLE)
            async with newer.open_table(TABLE) as seen:
                found = await seen.get([b"%d" % n for n in range(20)])
            written = [
                isinstance(outcome, list)
                for outcome in await asyncio.gather(*futures, return_exceptions=True)
            ]
            assert [each is not None for each in found] == written
        await newer.close()


async def test_without_the_token_nothing_is_called() -> None:
    async with remote_nodes() as nodes:
        stranger = nodes.new_store(leader_epoch=9, token="guessed")
        with pytest.raises(ContainerNotFoundError):
            await stranger.create(nodes.name_in(0))
        await stranger.close()
        await nodes.store.create(nodes.name_in(0))
        host, port = nodes.nodes[0].server.address
        wire = await open_connection(ServerAddress(host, port))
        with pytest.raises(ConnectionLostError):
            await wire.request(lambda number: CallInfo(number, nodes.name_in(0)))


async def test_clients_do_not_reach_the_records_of_the_controller() -> None:
    async with remote_nodes(container_count=1) as nodes:
        await nodes.store.create_table(TABLE)
        host, port = nodes.nodes[0].server.address
        wire = await open_connection(ServerAddress(host, port))
        answer = await wire.request(lambda number: GetStreamSegmentInfo(number, TABLE, ""))
        assert isinstance(answer, ErrorMessage)
        await wire.close()


# --- random lives ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
async def test_h86_counters_live_through_moves_and_broken_connections(seed: int) -> None:
    """Conditional updates of counters: an increment that was told is there, an unknown one at most once."""
    random = Random(seed)
    async with remote_nodes(container_count=2) as nodes:
        tables = [f"_system/_tables/{number}" for number in range(4)]
        for name in tables:
            await nodes.store.create_table(name)
        told = dict.fromkeys(tables, 0)
        unknown = dict.fromkeys(tables, 0)

        async def count(name: str) -> None:
            for _ in range(60):
                try:
                    async with nodes.store.open_table(name) as table:
                        (found,) = await table.get([b"k"])
                        value = int(found.value) if found else 0
                        version = found.version if found else NOT_EXISTS
                        future = table.update([TableEntry(b"k", b"%d" % (value + 1), version)])
                        if random.random() < 0.1:
                            # Its caller leaves: it may take place all the same.
                            unknown[name] += 1
                            continue
                        await future
                        told[name] += 1
                except ContainerStoppedError:
                    unknown[name] += 1
                except (ContainerNotFoundError, TableVersionError):
                    await asyncio.sleep(0.01)

        are_counted = asyncio.Event()

        async def disturb() -> None:
            # It is not cancelled: a container in the middle of a move is nowhere.
            while not are_counted.is_set():
                await asyncio.sleep(random.uniform(0.01, 0.08))
                if random.random() < 0.5:
                    await nodes.move(ContainerId(random.randrange(2)))
                    continue
                for connection in list(random.choice(nodes.nodes).server._connections):
                    connection.abort()

        async with asyncio.TaskGroup() as disturbing:
            disturbing.create_task(disturb())
            async with asyncio.TaskGroup() as group:
                for name in tables:
                    group.create_task(count(name))
            are_counted.set()
        for name in tables:
            async with nodes.store.open_table(name) as table:
                (found,) = await table.get([b"k"])
                reached = int(found.value) if found else 0
                assert told[name] <= reached <= told[name] + unknown[name]
        assert sum(told.values()) > 0


@pytest.mark.slow
async def test_a_call_that_is_cancelled_at_any_moment_leaves_the_store_at_work() -> None:
    async with remote_nodes(container_count=2) as nodes:
        for steps in range(25):
            name = nodes.name_in(steps % 2, f"c{steps}")
            for work in (
                nodes.store.create(name),
                nodes.store.list_segments(),
                nodes.store.create_table(f"{name}/t"),
                nodes.store.delete(name),
            ):
                task = asyncio.create_task(work)
                for _ in range(steps):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        assert await nodes.store.list_segments() is not None
