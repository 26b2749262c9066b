import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace

import pytest

from segmentstore.client import (
    Event,
    RetentionPolicy,
    ScalingPolicy,
    Store,
    Stream,
    StreamConfig,
    StreamCut,
    StreamReader,
    connect,
)
from segmentstore.client.errors import (
    AlreadyExistsError,
    ClientError,
    NotEmptyError,
    NotFoundError,
    OutcomeUnknownError,
    PlaceUnknownError,
    StateConflictError,
    StreamSealedError,
)
from segmentstore.client.stream_config import ScaleType
from segmentstore.codec.controller_api import controller_pb2 as messages
from segmentstore.codec.event_frame import frame_event
from segmentstore.codec.wire_protocol.appends import (
    AppendBlockEnd,
    ConditionalBlockEnd,
    SetupAppend,
)
from segmentstore.codec.wire_protocol.command import Command
from segmentstore.codec.wire_protocol.reads import ReadSegment
from segmentstore.codec.wire_protocol.refusals import NoSuchSegment, SegmentIsSealed
from segmentstore.contracts.errors import CorruptedDataError, InvalidRequestError
from tests.client.conftest import SETTINGS
from tests.client.fake_controller import FakeController
from tests.client.fake_store import FakeStore


@pytest.fixture
async def stream(store: Store) -> Stream:
    stream = store.stream("s/t")
    await stream.create(StreamConfig(ScalingPolicy.fixed(2)))
    return stream


async def take(reader: StreamReader, count: int) -> list[Event]:
    return [await anext(reader) for _ in range(count)]


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.001)


async def write(stream: Stream, events: list[bytes], key: str | None = None) -> None:
    async with stream.writer() as writer:
        for event in events:
            await writer.write(event, key=key)


async def test_scopes_are_made_listed_and_deleted(store: Store) -> None:
    for name in ("c", "a", "b"):
        await store.scope(name).create()
    assert await store.scopes() == ["a", "b", "c", "s"]
    with pytest.raises(AlreadyExistsError):
        await store.scope("a").create()
    await store.scope("a").delete()
    assert await store.scopes() == ["b", "c", "s"]
    with pytest.raises(NotFoundError):
        await store.scope("a").delete()


async def test_a_scope_with_streams_is_not_deleted(store: Store, stream: Stream) -> None:
    with pytest.raises(NotEmptyError):
        await store.scope("s").delete()


async def test_a_stream_keeps_its_configuration(store: Store) -> None:
    stream = store.stream("s/configured")
    config = StreamConfig(
        ScalingPolicy.by_event_rate(100, factor=3, segments_min=2),
        RetentionPolicy.by_time(3600),
        ("red", "blue"),
    )
    await stream.create(config)
    assert await stream.config() == config
    changed = StreamConfig(ScalingPolicy.by_data_rate(5), RetentionPolicy.by_size(1 << 30))
    await stream.update(changed)
    assert await stream.config() == changed
    with pytest.raises(AlreadyExistsError):
        await stream.create()


async def test_a_stream_scales_as_the_client_said_that_made_it(
    store: Store, controller: FakeController
) -> None:
    """Java's client takes a factor of 1, by which servers split a segment in two."""
    stream = store.stream("s/of-another-client")
    await stream.create()
    policy = controller.scopes["s"]["of-another-client"].config.scalingPolicy
    policy.scaleType = messages.ScalingPolicy.BY_RATE_IN_EVENTS_PER_SEC
    policy.targetRate, policy.scaleFactor = 100, 1
    config = (await stream.info()).config
    assert config.scaling == ScalingPolicy(ScaleType.EVENTS_PER_SECOND, 100, 1)
    await stream.update(replace(config, tags=("red",)))
    assert await stream.config() == replace(config, tags=("red",))


@pytest.mark.parametrize("numbers", [(0, 2), (100, 1)])
def test_a_policy_by_rate_that_scales_nothing_is_not_made(numbers: tuple[int, int]) -> None:
    rate, factor = numbers
    for make in (ScalingPolicy.by_event_rate, ScalingPolicy.by_data_rate):
        with pytest.raises(InvalidRequestError, match="at least"):
            make(rate, factor=factor)


async def test_streams_are_listed_by_tag_and_without_internal_ones(
    store: Store, controller: FakeController
) -> None:
    for name in ("one", "two", "three"):
        await store.stream(f"s/{name}").create(StreamConfig(tags=(name[0],)))
    controller.scopes["s"]["_MARKone"] = controller.scopes["s"]["one"]
    assert await store.scope("s").streams() == ["one", "three", "two"]
    assert await store.scope("s").streams(tag="t") == ["three", "two"]


async def test_a_stream_is_sealed_before_it_is_deleted(stream: Stream) -> None:
    with pytest.raises(StateConflictError):
        await stream.delete()
    await stream.seal()
    assert (await stream.info()).is_sealed
    await stream.delete()
    with pytest.raises(NotFoundError):
        await stream.info()


async def test_what_the_state_of_a_stream_forbids_is_a_conflict_and_not_to_be_tried_again(
    stream: Stream,
) -> None:
    """The controller says FAILURE of both, which was told as that it cannot now."""
    with pytest.raises(StateConflictError, match="past its end"):
        await stream.truncate(StreamCut("s/t", {0: 5, 1: 0}))
    await stream.seal()
    with pytest.raises(StreamSealedError):
        await stream.update(StreamConfig())
    with pytest.raises(StreamSealedError):
        await stream.truncate(StreamCut("s/t", {0: 0, 1: 0}))


@pytest.mark.parametrize("name", ["", "s", "s/", "/t", "s/t/u"])
async def test_a_name_without_two_parts_is_refused(store: Store, name: str) -> None:
    with pytest.raises(InvalidRequestError):
        store.stream(name)


@pytest.mark.parametrize("address", ["", "http://h:1", "tcp://h", "tcp://h:x"])
def test_an_address_has_host_and_port(address: str) -> None:
    with pytest.raises(InvalidRequestError):
        connect(address)


async def test_a_controller_that_recovers_is_asked_again(
    controller: FakeController, stream: Stream
) -> None:
    controller.unavailable = 3
    assert len(await stream.segments()) == 2


async def test_a_call_that_may_not_be_repeated_is_not(
    controller: FakeController, store: Store
) -> None:
    controller.unavailable = 1
    with pytest.raises(OutcomeUnknownError):
        await store.scope("new").create()
    assert controller.calls.count("createScope") == 2  # the fixture's, and one of ours


async def test_a_reader_gets_what_was_written_and_what_is_written_later(stream: Stream) -> None:
    await write(stream, [b"one", b"two"], key="k")
    async with stream.read() as reader:
        assert [event.data for event in await take(reader, 2)] == [b"one", b"two"]
        later = asyncio.ensure_future(anext(reader))
        await write(stream, [b"three"], key="k")
        event = await later
    assert (event.data, event.stream, event.offset, event.next_offset) == (b"three", "s/t", 22, 35)


async def test_a_reader_goes_on_where_another_stopped(stream: Stream) -> None:
    await write(stream, [b"%d" % number for number in range(20)])
    async with stream.read() as reader:
        first = await take(reader, 7)
        cut = reader.cut()
    async with stream.read(StreamCut.parse(str(cut))) as reader:
        rest = await take(reader, 13)
    numbers = [int(event.data) for event in first + rest]
    assert sorted(numbers) == list(range(20))


async def test_a_closed_reader_does_not_say_that_the_stream_has_ended(stream: Stream) -> None:
    await write(stream, [b"one", b"two"], key="k")
    async with stream.read() as reader:
        await anext(reader)
        waiting = asyncio.ensure_future(take(reader, 2))
        await asyncio.sleep(0)
    for each in (waiting, anext(reader)):
        with pytest.raises(ClientError, match="closed"):
            await each


async def test_a_segment_that_fails_leaves_no_gap_in_the_events_of_another(
    controller: FakeController, fake_store: FakeStore, stream: Stream
) -> None:
    """The user is slow: read ahead is as much as there may be, when the other segment turns out to be damaged."""
    await stream.segment(0).append(b"".join(frame_event(b"%02d" % number) for number in range(40)))
    reads: Counter[str] = Counter()

    def count(command: Command) -> str | None:
        if isinstance(command, ReadSegment):
            reads[command.segment] += 1
        return None

    fake_store.on_request = count
    slow = replace(SETTINGS, read_bytes=50, pieces_ahead_max=2)
    found: list[int] = []

    async def read_on(reader: StreamReader) -> None:
        async for event in reader:
            found.append(int(event.data))  # noqa: PERF401  (until it fails)

    async with (
        connect(controller.address, settings=slow) as store,
        store.stream("s/t").read() as reader,
    ):
        found.append(int((await anext(reader)).data))
        # One piece in the user's hands, two in the queue, one that waits for room.
        await until(lambda: reads["s/t/0.#epoch.0"] == 4)
        await stream.segment(1).append(b"no event")
        await until(lambda: all(each.get_name() != "read s/t/1" for each in asyncio.all_tasks()))
        with pytest.raises(CorruptedDataError):
            await read_on(reader)
        assert found == list(range(len(found)))
        assert reader.cut().offsets == {0: 10 * len(found), 1: 0}


async def test_h75_a_reader_keeps_the_order_of_keys_through_scales(stream: Stream) -> None:
    """Scales of both kinds, boundaries that do not match, and a reader that starts again after every event."""
    number = 0

    async def some() -> None:
        nonlocal number
        async with stream.writer() as writer:
            for _ in range(10):
                for key in range(4):
                    await writer.write(b"%d:%d" % (key, number), key=f"key {key}")
                number += 1

    await some()
    await stream.scale_to(3)
    await some()
    active = await stream.segments()
    await stream.scale([active[0].segment_id, active[1].segment_id], [(0.0, 0.2), (0.2, 2 / 3)])
    await some()
    await stream.scale_to(1)
    await some()
    await stream.seal()

    async with stream.read() as reader:
        whole = [event.data async for event in reader]
    restarted: list[bytes] = []
    cut: StreamCut | None = None
    while True:
        async with stream.read(cut) as reader:
            try:
                restarted.append((await anext(reader)).data)
            except StopAsyncIteration:
                break
            cut = reader.cut()
    for events in (whole, restarted):
        found: dict[str, list[int]] = {}
        for event in events:
            key, at = event.decode().split(":")
            found.setdefault(key, []).append(int(at))
        assert found == {str(key): list(range(40)) for key in range(4)}


async def test_a_stream_is_not_scaled_to_nothing(stream: Stream) -> None:
    with pytest.raises(InvalidRequestError, match="at least one segment"):
        await stream.scale_to(0)
    assert len(await stream.segments()) == 2


async def test_reading_stops_at_a_cut(stream: Stream) -> None:
    await write(stream, [b"%d" % number for number in range(10)])
    tail = await stream.tail()
    await write(stream, [b"later"] * 10)
    async with stream.read(stop_at=tail) as reader:
        numbers = sorted([int(event.data) async for event in reader])
    assert numbers == list(range(10))
    async with stream.read(tail, stop_at=tail) as reader:
        assert [event async for event in reader] == []


async def all_of(reader: StreamReader) -> list[bytes]:
    async with asyncio.timeout(60), reader:
        return [event.data async for event in reader]


async def test_a_cut_to_stop_at_ends_what_was_truncated_behind_it(stream: Stream) -> None:
    await write(stream, [b"a", b"b"], key="k")
    head, end = await stream.head(), await stream.tail()
    await write(stream, [b"c"], key="k")
    await stream.truncate(await stream.tail())
    assert await all_of(stream.read(head, stop_at=end)) == []


async def test_a_cut_to_stop_at_ends_what_was_scaled_and_truncated_away(
    stream: Stream, fake_store: FakeStore
) -> None:
    """With a start that was taken before the head moved past the cut, and with the head of today."""
    await write(stream, [b"a", b"b"], key="k")
    head, end = await stream.head(), await stream.tail()
    await stream.scale_to(3)
    await stream.scale_to(1)
    await stream.truncate(await stream.tail())
    for segment_id in end.offsets:
        del fake_store.segments[stream.segment(segment_id).name]
    await write(stream, [b"LATER 1", b"LATER 2"], key="k")
    assert await all_of(stream.read(head, stop_at=end)) == []
    assert await all_of(stream.read(stop_at=end)) == []


async def test_reading_goes_up_to_a_cut_over_scales_before_it_and_not_over_those_behind(
    stream: Stream,
) -> None:
    await write(stream, [b"a", b"b"])
    active = await stream.segments()
    await stream.scale([active[0].segment_id], [(0.0, 0.2), (0.2, 0.5)])
    await write(stream, [b"c", b"d"])
    end = await stream.tail()
    await write(stream, [b"LATER 1", b"LATER 2"])
    await stream.scale_to(1)
    await write(stream, [b"LATER 3"])
    assert sorted(await all_of(stream.read(stop_at=end))) == [b"a", b"b", b"c", b"d"]


async def test_reading_goes_up_to_the_tail_over_a_scale_before_it(stream: Stream) -> None:
    """The cut has open segments, of which nobody can say what follows."""
    await write(stream, [b"a", b"b"])
    active = await stream.segments()
    await stream.scale([active[0].segment_id], [(0.0, 0.2), (0.2, 0.5)])
    await write(stream, [b"c", b"d"])
    found = await all_of(stream.read(stop_at=await stream.tail()))
    assert sorted(found) == [b"a", b"b", b"c", b"d"]


async def test_a_cut_between_two_events_boundaries_gives_only_whole_events_before_it(
    stream: Stream,
) -> None:
    await write(stream, [b"one", b"two"], key="k")
    (segment_id,) = [s for s, length in (await stream.tail()).offsets.items() if length]
    end = StreamCut("s/t", {0: 0, 1: 0} | {segment_id: 15})
    assert await all_of(stream.read(stop_at=end)) == [b"one"]


async def test_a_truncated_stream_begins_at_its_new_head(stream: Stream) -> None:
    await write(stream, [b"old"] * 3, key="k")
    tail = await stream.tail()
    await write(stream, [b"new"], key="k")
    await stream.truncate(tail)
    assert await stream.head() == tail
    async with stream.read() as reader:
        assert (await anext(reader)).data == b"new"
    async with stream.read(StreamCut("s/t", dict.fromkeys(tail.offsets, 0))) as reader:
        assert (await anext(reader)).data == b"new"


async def test_a_cut_of_another_stream_is_refused(stream: Stream) -> None:
    with pytest.raises(InvalidRequestError):
        stream.read(StreamCut("s/other", {0: 0}))


async def test_reads_survive_broken_connections(stream: Stream, fake_store: FakeStore) -> None:
    seen = 0

    def breaking(command: Command) -> str | None:
        nonlocal seen
        if not isinstance(command, ReadSegment):
            return None
        seen += 1
        return "drop before" if seen % 2 else None

    await write(stream, [b"%d" % number for number in range(100)], key="k")
    fake_store.on_request = breaking
    async with stream.read() as reader:
        numbers = [int(event.data) for event in await take(reader, 100)]
    assert numbers == list(range(100))


async def test_a_wait_may_be_cancelled_and_repeated(stream: Stream) -> None:
    async with stream.read() as reader:
        for number in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await anext(reader)
            await write(stream, [b"%d" % number], key="k")
            assert (await anext(reader)).data == b"%d" % number


async def test_a_second_task_is_refused_while_another_waits_for_the_next_event(
    stream: Stream,
) -> None:
    written = {each: [b"%d:%d" % (each, number) for number in range(5)] for each in (0, 1)}
    for each, events in written.items():
        await stream.segment(each).append(b"".join(map(frame_event, events)))
    await stream.seal()
    found: dict[int, list[bytes]] = {0: [], 1: []}

    async def read_on() -> None:
        async for event in reader:
            found[event.segment_id].append(event.data)

    async with stream.read() as reader:
        ends = await asyncio.gather(*(read_on() for _ in range(3)), return_exceptions=True)
        assert reader.cut().offsets == {0: 55, 1: 55}
    assert [type(end) for end in ends] == [type(None), RuntimeError, RuntimeError]
    assert found == written


async def test_a_segment_is_a_file_that_grows(store: Store, stream: Stream) -> None:
    segment = stream.segment(0)
    assert await segment.append(b"hello ") == 6
    assert await segment.append(b"world", offset=6) == 11
    assert await segment.read(0, 100) == b"hello world"
    assert await segment.read(6, 3) == b"wor"
    await segment.truncate(6)
    await segment.seal()
    info = await store.segment("s/t/0.#epoch.0").info()
    assert (info.start_offset, info.length, info.is_sealed) == (6, 11, True)
    async with aclosing(segment.tail(6)) as pieces:
        assert [piece async for piece in pieces] == [b"world"]


@pytest.mark.parametrize("others", [b"", b"theirs"])
async def test_an_append_never_returns_the_end_of_other_bytes(
    store: Store, stream: Stream, fake_store: FakeStore, others: bytes
) -> None:
    """The answer is lost; others may have appended before it is known that the bytes are stored."""
    segment = stream.segment(0)
    assert await segment.append(b"start") == 5
    whats = iter(["drop after"])
    fake_store.on_append = lambda _: next(whats, "store and answer")

    def between(command: Command) -> None:
        if (
            isinstance(command, SetupAppend)
            and b"MINE" in fake_store.segments[segment.name].content
        ):
            fake_store.segments[segment.name].content += others

    fake_store.on_request = between
    if others:
        with pytest.raises(PlaceUnknownError):
            await segment.append(b"MINE")
    else:
        assert await segment.append(b"MINE") == 9
    fake_store.on_request = lambda _: None
    assert await segment.append(b"end") == 12 + len(others)
    assert await segment.read(0, 100) == b"startMINE" + others + b"end"


@pytest.mark.parametrize("refusal", [SegmentIsSealed, NoSuchSegment])
async def test_what_ends_a_segment_says_nothing_of_bytes_that_may_be_in_it(
    stream: Stream, fake_store: FakeStore, refusal: type[SegmentIsSealed | NoSuchSegment]
) -> None:
    segment = stream.segment(0)
    was_sent = False

    def lose(_: AppendBlockEnd) -> str:
        nonlocal was_sent
        was_sent = True
        return "drop after"

    fake_store.on_append = lose
    fake_store.on_request = lambda command: (
        refusal(command.request_id, command.segment)
        if was_sent and isinstance(command, SetupAppend)
        else None
    )
    with pytest.raises(OutcomeUnknownError):
        await segment.append(b"stored")
    assert fake_store.segments[segment.name].content == b"stored"


@pytest.mark.parametrize(("offset", "is_sealed"), [(None, True), (5, True), (5, False)])
async def test_what_an_older_connection_stored_in_front_of_a_refusal_is_found(
    stream: Stream, fake_store: FakeStore, offset: int | None, is_sealed: bool
) -> None:
    """It was on its way while the new connection was set up."""
    segment = stream.segment(0)
    assert await segment.append(b"start") == 5
    stored = fake_store.segments[segment.name]
    sent: list[Command] = []

    def breaking(command: Command) -> str | None:
        if not isinstance(command, AppendBlockEnd | ConditionalBlockEnd):
            return None
        sent.append(command)
        if len(sent) == 1:
            return "drop before"
        if len(sent) == 2:
            stored.content += command.data
            stored.last_numbers[command.writer_id] = 2
            stored.is_sealed = is_sealed
        return None

    fake_store.on_request = breaking
    fake_store.on_append = lambda block: breaking(block) or "store and answer"
    assert await segment.append(b"MINE", offset=offset) == 9
    assert stored.content == b"startMINE"
