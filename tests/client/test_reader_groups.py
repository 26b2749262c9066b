import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

import pytest

from segmentstore.client import (
    GroupReader,
    ReaderGroup,
    ScalingPolicy,
    StartAt,
    Store,
    Stream,
    StreamConfig,
    StreamCut,
    connect,
)
from segmentstore.client.errors import (
    AlreadyExistsError,
    ClientError,
    NotFoundError,
    OutcomeUnknownError,
    ReaderOfflineError,
    RefusedError,
)
from segmentstore.client.reader_group_state import STATE_KEY
from segmentstore.client.silent_readers import SeenReader
from segmentstore.codec.event_frame import frame_event
from segmentstore.codec.stream_names import table_segment
from segmentstore.codec.wire_protocol.command import Command
from segmentstore.codec.wire_protocol.reads import ReadSegment
from segmentstore.codec.wire_protocol.refusals import AuthTokenCheckFailed
from segmentstore.codec.wire_protocol.tables import ReadTable, UpdateTableEntries
from segmentstore.contracts.errors import CorruptedDataError, InvalidRequestError
from tests.client.conftest import SETTINGS
from tests.client.fake_controller import FakeController
from tests.client.fake_store import FakeStore

FAST = replace(SETTINGS, commit_seconds=0.005, reader_timeout_seconds=600.0)
"""No reader is taken for dead because this process stood still for a while."""
MORTAL = replace(FAST, reader_timeout_seconds=0.15)


@pytest.fixture
async def stream(store: Store) -> Stream:
    stream = store.stream("s/t")
    await stream.create(StreamConfig(ScalingPolicy.fixed(4)))
    return stream


@pytest.fixture
async def group(store: Store, stream: Stream) -> ReaderGroup:
    group = store.reader_group("s/g")
    await group.create(["t"])
    return group


async def write(stream: Stream, numbers: Sequence[int]) -> None:
    async with stream.writer() as writer:
        for number in numbers:
            for key in range(8):
                await writer.write(b"%d:%d" % (key, number), key=f"key {key}")


def assert_each_key_in_order(events: Sequence[bytes], count: int) -> None:
    found = defaultdict(list)
    for event in events:
        key, number = event.decode().split(":")
        found[key].append(int(number))
    assert dict(found) == {str(key): list(range(count)) for key in range(8)}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


async def read_all(reader: GroupReader) -> list[bytes]:
    async with reader:
        return [event.data async for event in reader]


async def test_one_reader_reads_everything_and_ends_with_a_sealed_stream(
    group: ReaderGroup, stream: Stream
) -> None:
    await write(stream, range(10))
    await stream.scale_to(2)
    await write(stream, range(10, 20))
    await stream.seal()
    assert_each_key_in_order(await read_all(group.reader("r")), 20)


async def test_the_end_of_a_finished_group_is_met_again_and_again(
    group: ReaderGroup, stream: Stream
) -> None:
    await write(stream, range(2))
    await stream.seal()
    async with group.reader("r") as reader:
        assert_each_key_in_order([event.data async for event in reader], 2)
        for _ in range(3):
            with pytest.raises(StopAsyncIteration):
                await anext(reader)


async def test_a_second_task_is_refused_while_another_waits_for_the_next_event(
    group: ReaderGroup, stream: Stream
) -> None:
    """It acknowledges nothing either."""
    async with group.reader("r") as reader:
        await write(stream, range(1))
        event = await anext(reader)
        waiting = asyncio.ensure_future(_collect(reader))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="another task"):
            await anext(reader)
        await write(stream, range(1, 10))
        await stream.seal()
        assert_each_key_in_order([event.data, *await waiting], 10)


@pytest.mark.parametrize("name", ["s/", "/t", "s/t/u", ""])
async def test_a_group_reads_no_stream_whose_name_cannot_be(store: Store, name: str) -> None:
    with pytest.raises(InvalidRequestError):
        await store.reader_group("s/g").create([name])


async def test_readers_share_segments_and_events(
    controller: FakeController, group: ReaderGroup, stream: Stream
) -> None:
    await write(stream, range(100))
    await stream.seal()
    async with connect(controller.address, settings=FAST, random=Random(1)) as store:
        fast = store.reader_group("s/g")
        async with fast.reader("a") as first, fast.reader("b") as second:
            while sorted(map(len, (await fast.info()).readers.values())) != [2, 2]:
                await asyncio.sleep(0.005)
            async with asyncio.TaskGroup() as tasks:
                one = tasks.create_task(_collect(first))
                two = tasks.create_task(_collect(second))
    assert one.result()
    assert two.result()
    assert_each_key_in_order(one.result() + two.result(), 100)


async def _collect(reader: GroupReader) -> list[bytes]:
    return [event.data async for event in reader]


async def test_what_was_acknowledged_is_not_read_again(group: ReaderGroup, stream: Stream) -> None:
    await write(stream, range(10))
    await stream.seal()
    events: list[bytes] = []
    for _ in range(4):
        async with group.reader("r") as reader:
            for _ in range(17):
                events.append((await anext(reader)).data)  # noqa: PERF401
    events += await read_all(group.reader("other"))
    assert_each_key_in_order(events, 10)


async def test_what_was_not_acknowledged_is_read_again(group: ReaderGroup, stream: Stream) -> None:
    await write(stream, range(1))
    with pytest.raises(ZeroDivisionError):
        async with group.reader("r") as reader:
            raise ZeroDivisionError((await anext(reader)).data)
    async with group.reader("r") as reader:
        found = [(await anext(reader)).data for _ in range(8)]
    assert sorted(found) == sorted(b"%d:0" % key for key in range(8))


async def test_a_checkpoint_is_where_the_next_reader_starts(
    group: ReaderGroup, stream: Stream
) -> None:
    await write(stream, range(1))
    async with group.reader("r") as reader:
        first = await anext(reader)
        await reader.checkpoint()
        cut = await group.stream_cut()
    assert cut.offsets[first.segment_id] == first.next_offset
    assert sum(cut.offsets.values()) == first.next_offset


async def test_a_segment_that_fails_takes_no_event_of_another_from_the_group(
    controller: FakeController, fake_store: FakeStore, group: ReaderGroup, stream: Stream
) -> None:
    """The user is slow: read ahead is as much as there may be, when one segment turns out to be damaged."""
    await stream.segment(0).append(b"".join(frame_event(b"%02d" % number) for number in range(40)))
    reads: Counter[str] = Counter()

    def count(command: Command) -> str | None:
        if isinstance(command, ReadSegment):
            reads[command.segment] += 1
        return None

    fake_store.on_request = count
    slow = replace(SETTINGS, read_bytes=50, pieces_ahead_max=2)
    found: list[int] = []

    async def read() -> None:
        async with store.reader_group("s/g").reader("r") as reader:
            found.append(int((await anext(reader)).data))
            # One piece in the user's hands, two in the queue, one that waits for room.
            await until(lambda: reads["s/t/0.#epoch.0"] == 4)
            await stream.segment(1).append(b"no event")
            await until(
                lambda: all(each.get_name() != "read s/t/1" for each in asyncio.all_tasks())
            )
            async for event in reader:
                found.append(int(event.data))  # noqa: PERF401  (until it fails)

    async with connect(controller.address, settings=slow) as store:
        with pytest.raises(CorruptedDataError):
            await read()
    assert found == list(range(len(found)))
    assert (await group.stream_cut()).offsets[0] == 10 * len(found)


async def test_a_dead_readers_segments_go_to_the_living(
    controller: FakeController, group: ReaderGroup, stream: Stream
) -> None:
    """A reader whose loop no longer turns for it is one whose tasks are gone."""
    await write(stream, range(5))
    await stream.seal()
    async with connect(controller.address, settings=MORTAL, random=Random(1)) as store:
        fast = store.reader_group("s/g")
        async with fast.reader("dead") as dead:
            await anext(dead)
            await dead._tasks.close()
            events = await read_all(fast.reader("living"))
            with pytest.raises(ReaderOfflineError):
                await dead.checkpoint()
    assert_each_key_in_order(events, 5)


async def test_a_reader_whose_beat_moves_before_it_is_removed_stays(
    group: ReaderGroup, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with group.reader("one") as one, group.reader("other") as other:
        for each in (one, other):
            await each._tasks.close()  # beats come from the calls below alone
        state, _ = await group._table.load()
        record = state.readers["other"]
        seen = SeenReader("other", record.incarnation, record.beat)
        monkeypatch.setattr(one._silent, "look", lambda others, now: [seen])

        await other.checkpoint()
        await one.checkpoint()
        assert set((await group.info()).readers) == {"one", "other"}

        seen = SeenReader("other", record.incarnation, record.beat + 1)
        await one.checkpoint()
        assert set((await group.info()).readers) == {"one"}


async def test_a_reader_that_is_said_to_be_gone_leaves_its_segments_at_once(
    group: ReaderGroup, stream: Stream
) -> None:
    await write(stream, range(1))
    async with group.reader("gone") as gone:
        await gone._tasks.close()  # nothing of it runs any more
        assert len((await group.info()).readers["gone"]) == 4
        await group.reader_offline("gone")
        info = await group.info()
        assert not info.readers
        assert len(info.unassigned) == 4
        with pytest.raises(ReaderOfflineError):
            await gone.checkpoint()


async def test_a_reader_that_has_heard_that_it_is_offline_gives_out_nothing_more(
    controller: FakeController, group: ReaderGroup, stream: Stream
) -> None:
    """Also of what it has read already: another reader gives out the same."""
    await stream.segment(0).append(b"".join(frame_event(b"%02d" % number) for number in range(40)))

    async def read() -> None:
        async with store.reader_group("s/g").reader("r") as reader:
            await anext(reader)
            await group.reader_offline("r")
            await until(lambda: all(each.get_name() != "reader r" for each in asyncio.all_tasks()))
            await anext(reader)

    async with connect(controller.address, settings=FAST) as store:
        with pytest.raises(ReaderOfflineError):
            await read()


async def test_a_reader_that_leaves_without_an_error_has_stored_what_it_acknowledged(
    controller: FakeController, group: ReaderGroup, stream: Stream
) -> None:
    """Or it says that it could not: one whose tasks found out, and whose user asked for no event since."""
    await stream.segment(0).append(frame_event(b"0") + frame_event(b"1"))

    async def read(reader: GroupReader) -> None:
        async with reader:
            await anext(reader)
            await group.reader_offline("r")
            await until(lambda: all(each.get_name() != "reader r" for each in asyncio.all_tasks()))

    async with connect(controller.address, settings=FAST) as store:
        with pytest.raises(ReaderOfflineError):
            await read(store.reader_group("s/g").reader("r"))
    assert (await group.stream_cut()).offsets[0] == 0


async def test_a_reader_that_was_put_offline_with_nothing_to_store_leaves_without_an_error(
    group: ReaderGroup, stream: Stream
) -> None:
    await stream.segment(0).append(frame_event(b"0") + frame_event(b"1"))
    async with group.reader("r") as reader:
        await anext(reader)
        await reader.checkpoint()
        await group.reader_offline("r")


async def test_a_reader_leaves_without_an_error_though_the_answers_are_lost(
    group: ReaderGroup, stream: Stream, fake_store: FakeStore
) -> None:
    """What is sent again meets a state that it is in no more."""
    await stream.segment(0).append(frame_event(b"0") + frame_event(b"1"))
    lost: list[Command] = []

    def losing(command: Command) -> str | None:
        if isinstance(command, UpdateTableEntries) and len(lost) < 4:
            lost.append(command)
            return "drop after" if len(lost) % 2 else None
        return None

    async with group.reader("r") as reader:
        await anext(reader)
        await reader._tasks.close()
        fake_store.on_request = losing
    assert lost
    assert not (await group.info()).readers
    assert (await group.stream_cut()).offsets[0] == len(frame_event(b"0"))


async def test_a_second_reader_of_one_id_takes_the_place_of_the_first(
    group: ReaderGroup, stream: Stream
) -> None:
    async with group.reader("r") as first, group.reader("r") as second:
        await write(stream, range(1))
        found = [(await anext(second)).data for _ in range(8)]
        assert_each_key_in_order(found, 1)
        with pytest.raises(ReaderOfflineError):
            await first.checkpoint()


async def test_readers_come_and_go_while_the_stream_scales(
    controller: FakeController, group: ReaderGroup, stream: Stream
) -> None:
    """Every event is read at least once; where no reader fails, exactly once, keys in order per reader."""
    async with connect(controller.address, settings=FAST, random=Random(1)) as store:
        fast = store.reader_group("s/g")
        seen: list[bytes] = []

        async def read(reader_id: str, pause: float) -> None:
            async with fast.reader(reader_id) as reader:
                async for event in reader:
                    seen.append(event.data)
                    if pause:
                        await asyncio.sleep(pause)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(read("a", 0))
            tasks.create_task(read("b", 0.0001))
            await write(stream, range(30))
            await stream.scale_to(6)
            await write(stream, range(30, 60))
            tasks.create_task(read("c", 0))
            await asyncio.sleep(0.02)
            await stream.scale_to(1)
            await write(stream, range(60, 90))
            await stream.seal()
    assert Counter(seen) == Counter({b"%d:%d" % (k, n): 1 for k in range(8) for n in range(90)})
    assert_each_key_in_order(seen, 90)


async def test_a_group_may_start_at_the_tail_or_at_a_cut(store: Store, stream: Stream) -> None:
    await write(stream, range(1))
    cut = await stream.tail()
    tail = store.reader_group("s/tail")
    await tail.create(["t"], start=StartAt.TAIL)
    await write(stream, range(1, 2))
    from_cut = store.reader_group("s/cut")
    await from_cut.create(["s/t"], start=[cut])
    for group in (tail, from_cut):
        async with group.reader("r") as reader:
            found = sorted([(await anext(reader)).data for _ in range(8)])
        assert found == sorted(b"%d:1" % key for key in range(8))


async def test_groups_are_made_once_listed_and_deleted(store: Store, group: ReaderGroup) -> None:
    with pytest.raises(AlreadyExistsError):
        await group.create(["t"])
    with pytest.raises(InvalidRequestError):
        await store.reader_group("s/none").create([])
    await group.delete()
    with pytest.raises(NotFoundError):
        await group.info()
    with pytest.raises(NotFoundError):
        await group.delete()


async def test_a_group_that_was_deleted_in_part_is_deleted_again(
    controller: FakeController, group: ReaderGroup
) -> None:
    controller.unavailable = 1
    with pytest.raises(OutcomeUnknownError):
        await group.delete()
    assert controller.groups
    await group.delete()
    assert not controller.groups
    with pytest.raises(NotFoundError):
        await group.delete()


def entries_of(store: FakeStore, group: str) -> dict[bytes, tuple[bytes, int]]:
    entries = store.segments[table_segment("s", group)].entries
    assert entries is not None
    return entries


async def test_a_reader_of_a_deleted_group_changes_nothing_in_one_created_again(
    store: Store, group: ReaderGroup, stream: Stream, fake_store: FakeStore
) -> None:
    """Versions of the new state begin anew: they may be those of the old one."""
    await write(stream, range(1))
    another = store.reader_group("s/h")
    await another.create(["t"])
    new: dict[bytes, tuple[bytes, int]] = {}

    def created_again(command: Command) -> None:
        if isinstance(command, UpdateTableEntries) and not new:
            new.update(entries_of(fake_store, "h"))
            old = entries_of(fake_store, "g")
            assert sorted(at for _, at in old.values()) == sorted(at for _, at in new.values())
            old.clear()
            old.update(new)

    async with another.reader("r") as theirs, group.reader("r") as mine:
        for reader in (theirs, mine):
            await anext(reader)
        fake_store.on_request = created_again
        with pytest.raises(ReaderOfflineError):
            await mine.checkpoint()
        assert entries_of(fake_store, "g") == new
        with pytest.raises(ReaderOfflineError):
            await mine.checkpoint()
        assert entries_of(fake_store, "g") == new


async def test_the_state_of_a_group_without_an_id_is_read_and_changed_where_it_is(
    group: ReaderGroup, stream: Stream, fake_store: FakeStore
) -> None:
    """Earlier versions wrote it under the key of the id."""
    await write(stream, range(1))
    await stream.seal()
    entries = entries_of(fake_store, "g")
    (state,) = [entries.pop(key) for key in list(entries) if key != STATE_KEY]
    entries[STATE_KEY] = state
    assert_each_key_in_order(await read_all(group.reader("r")), 1)
    assert list(entries) == [STATE_KEY]


async def test_a_group_takes_no_cut_of_another_stream(store: Store, stream: Stream) -> None:
    """It would begin at the head of the one, or in the middle of an event of the other."""
    other = store.stream("s/other")
    await other.create()
    group = store.reader_group("s/cut")
    cut = await other.tail()
    with pytest.raises(InvalidRequestError, match="s/other"):
        await group.create(["t"], start=[cut])
    with pytest.raises(InvalidRequestError, match="two cuts"):
        await group.create(["other"], start=[cut, cut])
    foreign = StreamCut("s/t", {each << 32: 0 for each in range(4)})
    with pytest.raises(InvalidRequestError):
        await group.create(["t"], start=[foreign])
    with pytest.raises(NotFoundError):
        await group.info()
    await group.create(["t", "other"], start=[cut])
    assert (await group.info()).cuts["s/other"] == cut


async def test_a_closed_reader_gives_out_nothing(group: ReaderGroup, stream: Stream) -> None:
    """What it still had in hand is for the others."""
    await write(stream, range(2))
    async with group.reader("r") as reader:
        await anext(reader)
    with pytest.raises(ClientError, match="closed"):
        async with asyncio.timeout(60):
            await anext(reader)


async def test_a_checkpoint_that_is_given_up_leaves_no_segment_unread(
    group: ReaderGroup, stream: Stream, fake_store: FakeStore
) -> None:
    """It stopped a segment to give it away to a reader that has gone again since."""
    await write(stream, range(3))
    await stream.seal()
    async with group.reader("a") as reader:
        table = reader._table
        await table.change(lambda state: state.join("b", 1))
        fake_store.on_request = lambda command: (
            "ignore" if isinstance(command, UpdateTableEntries) else None
        )
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await reader.checkpoint()
        fake_store.on_request = lambda _: None
        await table.change(lambda state: state.leave("b"))
        await reader.checkpoint()
        async with asyncio.timeout(60):
            assert_each_key_in_order([event.data async for event in reader], 3)


async def test_a_reader_that_fails_to_enter_leaves_nothing_behind(
    group: ReaderGroup, fake_store: FakeStore
) -> None:
    """It has joined, and is refused when it wants segments."""
    joined = 0

    def refusing(command: Command) -> Command | None:
        nonlocal joined
        joined += isinstance(command, UpdateTableEntries)
        if isinstance(command, ReadTable) and joined == 1:
            joined += 1
            return AuthTokenCheckFailed(command.request_id, "")
        return None

    fake_store.on_request = refusing
    connections, tasks = fake_store.open_connections, asyncio.all_tasks()
    with pytest.raises(RefusedError):
        async with group.reader("r"):
            raise AssertionError("entered")
    assert "r" not in (await group.info()).readers
    # Tasks of servers that were about to end before may have ended: nothing new is left.
    await until(lambda: fake_store.open_connections == connections and asyncio.all_tasks() <= tasks)


async def test_a_wait_may_be_cancelled_and_repeated(group: ReaderGroup, stream: Stream) -> None:
    async with group.reader("r") as reader:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await anext(reader)
        await write(stream, range(1))
        assert_each_key_in_order([(await anext(reader)).data for _ in range(8)], 1)
