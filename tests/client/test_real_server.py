"""The client against the real store and the real controller, in a process of their own that may be killed."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from pathlib import Path

import pytest

from segmentstore.cli.server_process import ServerProcess
from segmentstore.client import (
    ClientSettings,
    ScalingPolicy,
    StartAt,
    Store,
    Stream,
    StreamConfig,
    TransactionState,
    Update,
    connect,
)
from segmentstore.client.errors import (
    AlreadyExistsError,
    NotEmptyError,
    NotFoundError,
    StateConflictError,
    StreamSealedError,
    TableConditionError,
    TransactionClosedError,
)
from segmentstore.contracts.errors import (
    BadOffsetError,
    InvalidRequestError,
    SegmentNotFoundError,
    SegmentSealedError,
    SegmentTruncatedError,
)
from tests.client.real_server import controller_address
from tests.integration.pravega_clients.store_process import StoreProcess

pytestmark = [pytest.mark.integration, pytest.mark.slow]

FAST = ClientSettings(
    commit_seconds=0.05,
    reader_timeout_seconds=60.0,
    silence_seconds=60.0,
    request_seconds=120.0,
    transaction_lease_seconds=120.0,
)
"""No reader dies here: one that a busy machine holds up is not to be taken for dead, or its events come twice. Nor is a
server, or what may not be sent twice has an unknown outcome; nor does a transaction end for want of time."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("client") / "data") as server:
        yield server


@pytest.fixture
async def store(server: ServerProcess, request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    async with connect(controller_address(server), settings=FAST) as store:
        yield store


@pytest.fixture
async def scope(store: Store, request: pytest.FixtureRequest) -> str:
    """A scope of the test's own."""
    name = f"s{abs(hash_of(request.node.name))}"
    await store.scope(name).create()
    return name


def hash_of(text: str) -> int:
    return int.from_bytes(text.encode(), "big") % 1_000_000_007


@pytest.fixture
async def stream(store: Store, scope: str) -> Stream:
    stream = store.stream(f"{scope}/t")
    await stream.create(StreamConfig(ScalingPolicy.fixed(2)))
    return stream


async def write(stream: Stream, numbers: Sequence[int], *, keys: int = 8, pause: float = 0) -> None:
    async with stream.writer() as writer:
        for number in numbers:
            for key in range(keys):
                await writer.write(b"%d:%d" % (key, number), key=f"key {key}")
            if pause:
                await asyncio.sleep(pause)


def assert_each_key_in_order(events: Sequence[bytes], count: int, *, keys: int = 8) -> None:
    found = defaultdict(list)
    for event in events:
        key, number = event.decode().split(":")
        found[key].append(int(number))
    assert dict(found) == {str(key): list(range(count)) for key in range(keys)}


async def test_scopes_and_streams_live_and_die(store: Store, scope: str, stream: Stream) -> None:
    assert scope in await store.scopes()
    assert await store.scope(scope).streams() == ["t"]
    with pytest.raises(AlreadyExistsError):
        await stream.create()
    with pytest.raises(NotEmptyError):
        await store.scope(scope).delete()
    with pytest.raises(StateConflictError):
        await stream.delete()
    changed = StreamConfig(ScalingPolicy.by_event_rate(1000, segments_min=2), tags=("x", "y"))
    await stream.update(changed)
    assert await stream.config() == changed
    assert await store.scope(scope).streams(tag="y") == ["t"]
    await stream.seal()
    assert (await stream.info()).is_sealed
    await stream.delete()
    await store.scope(scope).delete()
    with pytest.raises(NotFoundError):
        await stream.info()
    with pytest.raises(InvalidRequestError):
        await store.scope("under_score").create()


async def test_what_is_written_is_read(stream: Stream) -> None:
    await write(stream, range(500))
    async with stream.read(stop_at=await stream.tail()) as reader:
        assert_each_key_in_order([event.data async for event in reader], 500)


async def test_a_reader_waits_at_the_tail(stream: Stream) -> None:
    async with stream.read() as reader:
        waiting = asyncio.ensure_future(anext(reader))
        await asyncio.sleep(0.05)
        await write(stream, range(1), keys=1)
        assert (await waiting).data == b"0:0"


async def test_h75_scales_under_a_writer_and_a_reader_keep_every_key_in_order(
    stream: Stream,
) -> None:
    seen: list[bytes] = []

    async def read() -> None:
        async with stream.read() as reader:
            async for event in reader:
                seen.append(event.data)  # noqa: PERF401  # what was seen so far is looked at

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(read())
        writing = tasks.create_task(write(stream, range(400), pause=0.001))
        for segments in (4, 1, 3):
            await asyncio.sleep(0.1)
            await stream.scale_to(segments)
        await writing
        await stream.seal()
    assert_each_key_in_order(seen, 400)
    with pytest.raises(StreamSealedError):
        await write(stream, [1])


async def test_a_large_event_arrives_whole(stream: Stream) -> None:
    large = bytes(range(256)) * 40_000
    async with stream.writer() as writer:
        await writer.write(b"before", key="k")
        await writer.write(large, key="k")
        await writer.write(b"behind", key="k")
    async with stream.read() as reader:
        found = [(await anext(reader)).data for _ in range(3)]
    assert found == [b"before", large, b"behind"]


async def test_a_truncated_stream_begins_at_the_cut(stream: Stream) -> None:
    await write(stream, range(10))
    cut = await stream.tail()
    await write(stream, range(10, 20))
    await stream.truncate(cut)
    assert await stream.head() == cut
    async with stream.read(stop_at=await stream.tail()) as reader:
        numbers = {int(event.data.split(b":")[1]) async for event in reader}
    assert numbers == set(range(10, 20))


async def test_transactions_commit_abort_and_resume(stream: Stream) -> None:
    async with stream.transaction() as first:
        await first.write(b"committed", key="k")
    async with stream.transaction() as second:
        await second.write(b"aborted", key="k")
        await second.flush()
        await second.abort()
    async with stream.transaction() as third:
        await third.write(b"resumed", key="k")
        await third.flush()
        await third.detach()
    async with await stream.resume_transaction(third.id) as fourth:
        await fourth.write(b"and ended", key="k")
    assert await stream.transaction_state(first.id) is TransactionState.COMMITTED
    assert await stream.transaction_state(second.id) in {
        TransactionState.ABORTING,
        TransactionState.ABORTED,
    }
    with pytest.raises(TransactionClosedError):
        await stream.resume_transaction(first.id)
    async with stream.read(stop_at=await stream.tail()) as reader:
        found = [event.data async for event in reader]
    assert found == [b"committed", b"resumed", b"and ended"]


async def test_a_transaction_survives_a_scale(stream: Stream) -> None:
    async with stream.transaction() as transaction:
        await transaction.write(b"in the old segments", key="k")
        await transaction.flush()
        await stream.scale_to(3)
        await write(stream, range(1), keys=1)
    await stream.seal()
    async with stream.read() as reader:
        assert sorted([event.data async for event in reader]) == [b"0:0", b"in the old segments"]


async def test_a_segment_is_a_file_that_grows(store: Store, stream: Stream, scope: str) -> None:
    segment = store.segment(f"{scope}/t/0.#epoch.0")
    assert await segment.append(b"hello ") == 6
    assert await segment.append(b"world", offset=6) == 11
    with pytest.raises(BadOffsetError):
        await segment.append(b"x", offset=6)
    assert await segment.append(b"!") == 12
    assert await segment.read(0, 100) == b"hello world!"
    await segment.truncate(6)
    with pytest.raises(SegmentTruncatedError):
        await segment.read(0, 1)
    await segment.seal()
    await segment.seal()
    with pytest.raises(SegmentSealedError):
        await segment.append(b"x")
    async with aclosing(segment.tail(6)) as pieces:
        assert b"".join([piece async for piece in pieces]) == b"world!"
    info = await segment.info()
    assert (info.start_offset, info.length, info.is_sealed) == (6, 12, True)
    with pytest.raises(SegmentNotFoundError):
        await store.segment(f"{scope}/t/7.#epoch.0").info()


async def test_tables_keep_entries_versions_and_order(store: Store, scope: str) -> None:
    table = store.table(f"{scope}/prices")
    await table.create(key_length=4, secondary_key_length=2, partitions=3)
    assert await store.scope(scope).tables() == ["prices"]
    version = await table.insert(b"aaaa00", b"1")
    with pytest.raises(TableConditionError):
        await table.insert(b"aaaa00", b"2")
    newer = await table.replace(b"aaaa00", b"2", version=version)
    assert newer > version
    with pytest.raises(TableConditionError):
        await table.replace(b"aaaa00", b"3", version=version)
    with pytest.raises(TableConditionError):
        await table.replace(b"none00", b"3", version=version)
    await table.update([Update(b"aaaa%02d" % number, b"%d" % number) for number in range(1, 50)])
    for number in range(20):
        await table.put(b"%04dxx" % number, b"other")
    found = await table.get_all([b"aaaa07", b"none00", b"0003xx"])
    assert [entry.value if entry else None for entry in found] == [b"7", None, b"other"]
    async with aclosing(table.entries(b"aaaa00", b"aaaa99")) as entries:
        values = [entry.value async for entry in entries]
    assert values == [b"2", *(b"%d" % number for number in range(1, 50))]
    async with aclosing(table.entries()) as entries:
        assert len([entry async for entry in entries]) == 70
    await table.remove(b"aaaa07", version=found[0].version if found[0] else 0)
    await table.remove(b"aaaa07")
    assert await table.get(b"aaaa07") is None
    await table.delete()
    assert await store.scope(scope).tables() == []


async def test_readers_of_a_group_share_a_stream_that_scales(
    store: Store, stream: Stream, scope: str
) -> None:
    group = store.reader_group(f"{scope}/g")
    await group.create(["t"])
    assert await store.scope(scope).reader_groups() == ["g"]
    seen: list[bytes] = []

    async def read(reader_id: str) -> None:
        async with group.reader(reader_id) as reader:
            async for event in reader:
                seen.append(event.data)  # noqa: PERF401  # three tasks share it

    async with asyncio.TaskGroup() as tasks:
        for reader_id in "abc":
            tasks.create_task(read(reader_id))
        await write(stream, range(100), pause=0.001)
        await stream.scale_to(5)
        await write(stream, range(100, 200), pause=0.001)
        await stream.scale_to(2)
        await write(stream, range(200, 300), pause=0.001)
        await stream.seal()
    assert_each_key_in_order(seen, 300)
    assert (await group.info()).readers == {}
    await group.delete()
    assert await store.scope(scope).reader_groups() == []


async def test_a_group_may_start_at_the_tail(store: Store, stream: Stream, scope: str) -> None:
    await write(stream, range(1))
    group = store.reader_group(f"{scope}/g")
    await group.create(["t"], start=StartAt.TAIL)
    await write(stream, range(1, 2))
    async with group.reader("r") as reader:
        found = sorted([(await anext(reader)).data for _ in range(8)])
        await reader.checkpoint()
    assert found == sorted(b"%d:1" % key for key in range(8))
    assert await group.stream_cut() == await stream.tail()


async def test_h25_nothing_is_lost_or_doubled_when_the_server_is_killed(tmp_path: Path) -> None:
    """kill -9 three times under a writer and a group's reader; the ports stay, so that both find it again."""
    # Its ports are held while it is down, so that no client of another test is given one of them.
    server = StoreProcess(tmp_path / "data")
    with server:
        async with connect(server.uri, settings=FAST) as store:
            await store.scope("s").create()
            stream = store.stream("s/t")
            await stream.create(StreamConfig(ScalingPolicy.fixed(2)))

            async def kill() -> None:
                for _ in range(3):
                    await asyncio.sleep(0.4)
                    await asyncio.to_thread(server.kill)
                    await asyncio.to_thread(server.start)

            async with asyncio.TaskGroup() as tasks:
                killing = tasks.create_task(kill())
                async with stream.writer() as writer:
                    number = 0
                    while not killing.done() or number < 100:
                        for key in range(8):
                            await writer.write(b"%d:%d" % (key, number), key=f"key {key}")
                        number += 1
                        await asyncio.sleep(0.002)
            await stream.seal()
            async with stream.read() as reader:
                assert_each_key_in_order([event.data async for event in reader], number)
