import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import pairwise
from random import Random

import pytest

from segmentstore.client import segment_appender
from segmentstore.client.connection import ConnectionPool, ServerAddress
from segmentstore.client.errors import (
    ClientError,
    OutcomeUnknownError,
    StreamSealedError,
    WriterFullError,
)
from segmentstore.client.event_writer import AppendWindow, EventWriter
from segmentstore.client.segment_calls import FixedLocator, SegmentCalls
from segmentstore.client.settings import ClientSettings
from segmentstore.client.stream_segments import SegmentRange, Successor
from segmentstore.codec.event_frame import frame_event
from segmentstore.codec.stream_names import segment_name
from segmentstore.codec.wire_protocol.appends import (
    AppendBlockEnd,
    CreateTransientSegment,
    DataAppended,
    SetupAppend,
)
from segmentstore.codec.wire_protocol.command import Command
from segmentstore.codec.wire_protocol.refusals import SegmentIsSealed, WrongHost
from segmentstore.codec.wire_protocol.segments import MergeSegments
from segmentstore.contracts.errors import InvalidRequestError, SegmentStoreError
from tests.client.fake_store import FakeStore
from tests.wire.node import running_node


class Stream:
    """A stream in a fake store, and how it scales."""

    def __init__(self, store: FakeStore, segments: int) -> None:
        self.store = store
        self.ranges = [
            SegmentRange(number, number / segments, (number + 1) / segments)
            for number in range(segments)
        ]
        self.following: dict[int, Sequence[Successor]] = {}
        for each in self.ranges:
            store.create(self.name(each.segment_id))

    @staticmethod
    def name(segment_id: int) -> str:
        return segment_name("scope", "stream", segment_id)

    def writer(self, settings: ClientSettings | None = None) -> EventWriter:
        settings = settings or ClientSettings(retry_seconds_max=0.02)
        calls = SegmentCalls(
            locator=FixedLocator(self.store.endpoint),
            pool=ConnectionPool(settings),
            settings=settings,
            random=Random(1),
        )

        return EventWriter(target=Target(self), calls=calls)

    def replace(self, sealed: Sequence[int], bounds: Sequence[float]) -> None:
        """One scale: `sealed` segments, neighbours, are replaced by the ranges between `bounds`."""
        epoch = max(each.segment_id >> 32 for each in self.ranges) + 1
        number = max(each.segment_id & 0xFFFFFFFF for each in self.ranges) + 1
        new = [
            SegmentRange(epoch << 32 | number + index, low, high)
            for index, (low, high) in enumerate(pairwise(bounds))
        ]
        for each in new:
            self.store.create(self.name(each.segment_id))
        for segment_id in sealed:
            self.following[segment_id] = [Successor(each, tuple(sealed)) for each in new]
            self.store.seal(self.name(segment_id))
        kept = [each for each in self.ranges if each.segment_id not in sealed]
        self.ranges = [*kept, *new]

    def events(self) -> list[bytes]:
        """Everything, segments in the order of their ids: predecessors come first."""
        ids = sorted({each.segment_id for each in self.ranges} | set(self.following))
        return [event for segment in ids for event in self.store.events(self.name(segment))]


class Target:
    """A stream as its writers see it."""

    name = "scope/stream"

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    async def ranges(self) -> Sequence[SegmentRange]:
        return self._stream.ranges

    def segment_name(self, segment_id: int) -> str:
        return self._stream.name(segment_id)

    async def successors(
        self,
        segment_id: int,
        error: SegmentStoreError,  # the signature of WriteTarget
    ) -> Sequence[Successor]:
        await asyncio.sleep(0)
        return self._stream.following.get(segment_id, ())


class LostAcknowledgements:
    """From `begin` to `end` blocks for one segment are stored, and no answer and no set-up tells of it."""

    def __init__(self, store: FakeStore, segment: str) -> None:
        self._store = store
        self._segment = segment
        self._is_on = False
        store.on_append = lambda _: "drop after" if self._is_on else "store and answer"
        store.on_request = self._request

    def begin(self) -> None:
        self._is_on = True

    def end(self) -> None:
        self._is_on = False

    def _request(self, command: Command) -> Command | None:
        if self._is_on and isinstance(command, SetupAppend) and command.segment == self._segment:
            return WrongHost(command.request_id, command.segment, "")
        return None


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


@pytest.fixture
async def store() -> AsyncIterator[FakeStore]:
    async with FakeStore().serving() as store:
        yield store
        assert store.complaints == []


def numbered(key: int, number: int) -> bytes:
    return f"{key}:{number}".encode()


def assert_each_key_in_order(events: Sequence[bytes], *, keys: int, count: int) -> None:
    found = defaultdict(list)
    for event in events:
        key, number = event.decode().split(":")
        found[int(key)].append(int(number))
    assert dict(found) == {key: list(range(count)) for key in range(keys)}


async def test_what_is_written_is_stored_when_the_writer_closes(store: FakeStore) -> None:
    stream = Stream(store, 1)
    async with stream.writer() as writer:
        await writer.write(b"one")
        await writer.write(b"")
        await writer.write(b"three", key="k")
    assert stream.events() == [b"one", b"", b"three"]


async def test_events_of_one_turn_travel_in_one_block(store: FakeStore) -> None:
    stream = Stream(store, 1)
    async with stream.writer() as writer:
        await writer.write_and_wait(b"connects")
        for number in range(100):
            await writer.write(numbered(0, number))
        await writer.flush()
        writer.check()
    assert store.blocks == [1, 100]


async def test_an_acknowledgement_arrives_when_the_event_is_stored(store: FakeStore) -> None:
    stream = Stream(store, 1)
    async with stream.writer() as writer:
        acknowledged = writer.write_nowait(b"event")
        assert not acknowledged.done()
        await acknowledged
        assert stream.events() == [b"event"]


async def test_a_key_always_goes_to_the_segment_of_its_range(store: FakeStore) -> None:
    stream = Stream(store, 2)
    async with stream.writer() as writer:
        for number in range(3):
            await writer.write(b"low %d" % number, key="abcd")  # 0.0089
            await writer.write(b"high %d" % number, key="hello")  # 0.6587
    assert store.events(stream.name(0)) == [b"low 0", b"low 1", b"low 2"]
    assert store.events(stream.name(1)) == [b"high 0", b"high 1", b"high 2"]


@pytest.mark.parametrize("what", ["drop before", "drop after"])
async def test_h25_every_event_is_stored_once_though_connections_break(
    store: FakeStore, what: str
) -> None:
    """Every fifth block ends its connection, just before or just after it is stored, and before the answer."""
    stream = Stream(store, 3)
    seen = 0

    def breaking(_: AppendBlockEnd) -> str:
        nonlocal seen
        seen += 1
        return what if seen % 5 == 0 else "store and answer"

    store.on_append = breaking
    settings = ClientSettings(retry_seconds_max=0.02, block_bytes_max=150)
    async with stream.writer(settings) as writer:
        for number in range(200):
            for key in range(5):
                await writer.write(numbered(key, number), key=str(key))
            if number % 3 == 0:
                await asyncio.sleep(0)
            writer.check()
    assert store.connections > 10
    assert_each_key_in_order(stream.events(), keys=5, count=200)


async def test_h75_order_of_a_key_survives_scales_and_broken_connections(store: FakeStore) -> None:
    """Splits and merges happen under a writer whose connections break as well."""
    stream = Stream(store, 2)
    seen = 0

    def breaking(_: AppendBlockEnd) -> str:
        nonlocal seen
        seen += 1
        return "drop after" if seen % 7 == 0 else "store and answer"

    store.on_append = breaking
    async with stream.writer() as writer:
        for number in range(300):
            for key in range(8):
                await writer.write(numbered(key, number), key=f"key {key}")
            if number == 50:
                stream.replace([0], [0.0, 0.25, 0.5])
            if number == 100:
                stream.replace([each.segment_id for each in stream.ranges], [0.0, 1.0])
            if number == 200:
                stream.replace([stream.ranges[0].segment_id], [0.0, 0.1, 0.2, 1.0])
            if number % 2 == 0:
                await asyncio.sleep(0.001)
            writer.check()
    assert len(stream.following) == 5
    assert_each_key_in_order(stream.events(), keys=8, count=300)


async def test_writing_to_a_sealed_stream_fails(store: FakeStore) -> None:
    stream = Stream(store, 1)
    store.seal(stream.name(0))
    with pytest.raises(StreamSealedError):
        async with stream.writer() as writer:
            await writer.write(b"event")


async def test_a_failed_writer_fails_every_later_call_and_every_acknowledgement(
    store: FakeStore,
) -> None:
    stream = Stream(store, 1)
    writer = stream.writer()
    await writer.open()
    store.seal(stream.name(0))
    acknowledged = writer.write_nowait(b"event")
    with pytest.raises(StreamSealedError):
        await acknowledged
    with pytest.raises(StreamSealedError):
        await writer.write(b"event")
    with pytest.raises(StreamSealedError):
        await writer.flush()
    await writer.close()


async def test_what_is_outstanding_is_bounded(store: FakeStore) -> None:
    stream = Stream(store, 1)
    settings = ClientSettings(unacknowledged_events_max=10)
    async with stream.writer(settings) as writer:
        for _ in range(10):
            _ = writer.write_nowait(b"event")
        with pytest.raises(WriterFullError):
            _ = writer.write_nowait(b"event")
        await writer.write(b"waits for room")
    assert len(stream.events()) == 11


async def test_events_gather_while_enough_blocks_are_under_way(store: FakeStore) -> None:
    stream = Stream(store, 1)
    async with stream.writer(ClientSettings(blocks_in_flight_max=1)) as writer:
        await writer.write_and_wait(b"connects")
        for number in range(50):
            await writer.write(numbered(0, number))
            await asyncio.sleep(0)
    assert sum(store.blocks) == 51
    assert len(store.blocks) < 40


async def test_an_error_in_the_body_is_not_hidden_and_does_not_wait(store: FakeStore) -> None:
    stream = Stream(store, 1)
    store.on_append = lambda _: "ignore"
    with pytest.raises(ZeroDivisionError):
        async with stream.writer() as writer:
            await writer.write(b"%d" % (1 // 0))


async def test_a_store_that_does_not_serve_the_segment_yet_is_asked_again(store: FakeStore) -> None:
    stream = Stream(store, 1)
    refused = 0

    def not_yet(command: Command) -> Command | None:
        nonlocal refused
        if isinstance(command, SetupAppend) and refused < 3:
            refused += 1
            return WrongHost(command.request_id, command.segment, "")
        return None

    store.on_request = not_yet
    async with stream.writer() as writer:
        await writer.write(b"event")
    assert refused == 3
    assert stream.events() == [b"event"]


async def test_a_writer_that_finds_events_of_another_under_its_id_fails(store: FakeStore) -> None:
    stream = Stream(store, 1)
    async with stream.writer() as writer:
        await writer.write(b"first")
    with pytest.raises(ClientError, match="same id"):
        async with stream.writer() as twin:
            await twin.write(b"second")
    assert stream.events() == [b"first"]


async def test_a_silent_store_makes_the_writer_reconnect(store: FakeStore) -> None:
    stream = Stream(store, 1)
    answers = iter(["ignore"])
    store.on_append = lambda _: next(answers, "store and answer")
    async with stream.writer(ClientSettings(acknowledge_seconds=0.05)) as writer:
        await writer.write(b"event")
    # More than once, if the acknowledgement of the second one took as long.
    assert store.connections >= 2
    assert stream.events() == [b"event"]


async def test_without_any_progress_the_writer_gives_up_and_says_so(store: FakeStore) -> None:
    stream = Stream(store, 1)
    store.on_append = lambda _: "drop before"
    settings = ClientSettings(append_seconds=0.05, retry_seconds_max=0.01)
    with pytest.raises(OutcomeUnknownError):
        async with stream.writer(settings) as writer:
            await writer.write(b"event")


async def test_a_large_event_is_merged_in_between_its_neighbours(store: FakeStore) -> None:
    stream = Stream(store, 1)
    large = bytes(range(256)) * 40_000
    async with stream.writer() as writer:
        await writer.write(b"before", key="k")
        await writer.write(large, key="k")
        await writer.write(b"behind", key="k")
        with pytest.raises(InvalidRequestError):
            _ = writer.write_nowait(large)
    assert stream.events() == [b"before", large, b"behind"]
    assert list(store.segments) == [stream.name(0)]


async def test_a_large_event_survives_broken_connections_and_a_scale(store: FakeStore) -> None:
    """Each request of a large event breaks once, before or after it is carried out; then the segment is sealed."""
    stream = Stream(store, 1)
    large = b"x" * (9 << 20)
    broken: list[str] = []
    whats = iter(["drop before", "drop after"] * 10)

    def breaking(command: Command) -> str | None:
        kind = type(command).__name__
        breakable = {"CreateTransientSegment", "ConditionalBlockEnd", "MergeSegments"}
        if kind not in breakable or kind in broken:
            return None
        broken.append(kind)
        return next(whats)

    store.on_request = breaking
    async with stream.writer() as writer:
        await writer.write(large, key="k")
        stream.replace([0], [0.0, 1.0])
        await writer.write(large[1:], key="k")
    assert len(broken) == 3
    assert [len(event) for event in stream.events()] == [9 << 20, (9 << 20) - 1]


async def test_a_large_event_that_meets_a_seal_takes_nothing_along_that_may_be_stored(
    store: FakeStore,
) -> None:
    """Other tasks' events were stored, their acknowledgements lost, when the large one is sent to the successor."""
    stream = Stream(store, 1)
    lost = LostAcknowledgements(store, stream.name(0))
    async with stream.writer() as writer:
        await writer.write_and_wait(b"first", key="k")
        large = asyncio.create_task(writer.write(bytes(9 << 20), key="k"))
        await until(lambda: any(isinstance(r, CreateTransientSegment) for r in store.requests))
        lost.begin()
        small = [writer.write_nowait(b"%d" % number, key="k") for number in range(20)]
        await until(lambda: len(store.events(stream.name(0))) == 21)
        stream.replace([0], [0.0, 1.0])
        await until(lambda: any(isinstance(r, MergeSegments) for r in store.requests))
        await asyncio.sleep(0.05)
        writer.check()
        lost.end()
        await asyncio.gather(large, *small)
    assert max(Counter(stream.events()).values()) == 1
    assert len(stream.events()) == 22


async def test_what_may_be_stored_in_a_segment_that_is_gone_is_not_sent_to_another(
    store: FakeStore,
) -> None:
    """A reader had the events before retention took the segment away; its writer never heard of them."""
    stream = Stream(store, 1)
    lost = LostAcknowledgements(store, stream.name(0))
    writer = stream.writer()
    await writer.open()
    await writer.write_and_wait(b"first", key="k")
    lost.begin()
    written = [writer.write_nowait(b"%d" % number, key="k") for number in range(3)]
    await until(lambda: len(store.events(stream.name(0))) == 4)
    stream.replace([0], [0.0, 1.0])
    del store.segments[stream.name(0)]
    lost.end()
    for each in written:
        with pytest.raises(OutcomeUnknownError):
            await each
    with pytest.raises(OutcomeUnknownError):
        await writer.flush()
    await writer.close()
    assert store.events(stream.name(stream.ranges[0].segment_id)) == []


async def test_an_idle_writer_follows_a_segment_that_is_gone(store: FakeStore) -> None:
    stream = Stream(store, 1)
    async with stream.writer() as writer:
        await writer.write_and_wait(b"first", key="k")
        stream.replace([0], [0.0, 1.0])
        del store.segments[stream.name(0)]
        await writer.write_and_wait(b"second", key="k")
    assert store.events(stream.name(stream.ranges[0].segment_id)) == [b"second"]


async def test_the_failure_of_one_segment_says_nothing_certain_of_what_others_may_have_stored(
    store: FakeStore,
) -> None:
    stream = Stream(store, 2)
    lost = LostAcknowledgements(store, stream.name(0))
    writer = stream.writer()
    await writer.open()
    await writer.write_and_wait(b"first", key="abcd")
    lost.begin()
    stored = writer.write_nowait(b"stored", key="abcd")  # to segment 0
    await until(lambda: len(store.events(stream.name(0))) == 2)
    # Until it has heard that the connection ended, it sends the next one as well.
    await until(lambda: writer._appenders[0]._session is None)
    store.seal(stream.name(1))
    unsent = writer.write_nowait(b"unsent", key="abcd")
    refused = writer.write_nowait(b"refused", key="hello")  # to segment 1
    with pytest.raises(OutcomeUnknownError) as told:
        await stored
    assert isinstance(told.value.__cause__, StreamSealedError)
    for each in (unsent, refused):
        with pytest.raises(StreamSealedError):
            await each
    with pytest.raises(OutcomeUnknownError):
        await writer.flush()
    await writer.close()


@pytest.mark.parametrize("is_told", [True, False])
async def test_what_an_older_connection_stored_in_front_of_a_seal_goes_to_no_successor(
    store: FakeStore, is_told: bool
) -> None:
    """It was on its way while the new connection was set up: the refusal of a sealed segment says nothing of it."""
    stream = Stream(store, 1)
    sent: list[AppendBlockEnd] = []

    def breaking(block: AppendBlockEnd) -> str:
        sent.append(block)
        if len(sent) == 1:
            return "drop before"
        if len(sent) == 2:
            segment = store.segments[stream.name(0)]
            segment.content += sent[0].data
            segment.last_numbers[sent[0].writer_id] = sent[0].last_event_number
            stream.replace([0], [0.0, 1.0])
            if not is_told:
                store.on_request = refusing
        return "store and answer"

    def refusing(command: Command) -> Command | None:
        if isinstance(command, SetupAppend) and command.segment == stream.name(0):
            return SegmentIsSealed(command.request_id, command.segment)
        return None

    store.on_append = breaking
    writer = stream.writer()
    await writer.open()
    await writer.write(b"one")
    await until(lambda: len(sent) == 1)
    await writer.write(b"two")
    if is_told:
        await writer.flush()
        assert stream.events() == [b"one", b"two"]
    else:
        with pytest.raises(OutcomeUnknownError):
            await writer.flush()
        assert stream.events() == [b"one"]
    await writer.close()


async def test_what_an_older_connection_stores_in_front_of_a_seal_is_found_in_a_real_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    send = segment_appender._AppendSession.send
    sent: list[int] = []

    def sending(
        session: segment_appender._AppendSession,
        writer_id: bytes,
        data: bytes,
        *,
        events: int,
        last_number: int,
    ) -> None:
        async def behind_the_older_one() -> None:
            older.append(writer_id, data, last_number)
            await older.expect(DataAppended)
            await node.container.seal(stream.name(0))
            send(session, writer_id, data, events=events, last_number=last_number)

        sent.append(last_number)
        if len(sent) == 2:
            session.connection.abort()
        elif len(sent) == 3:
            tasks.create_task(behind_the_older_one())
        else:
            send(session, writer_id, data, events=events, last_number=last_number)

    monkeypatch.setattr(segment_appender._AppendSession, "send", sending)
    async with running_node() as node, asyncio.TaskGroup() as tasks:
        fake = FakeStore()
        fake.endpoint = ServerAddress(*node.server.address)
        stream = Stream(fake, 1)
        await node.container.create(stream.name(0))
        writer = stream.writer()
        await writer.open()
        await writer.write_and_wait(b"first")
        older = await node.client()
        await older.set_up(writer._appenders[0]._writer_id, stream.name(0))
        await writer.write_and_wait(b"second")
        assert await node.content(stream.name(0)) == frame_event(b"first") + frame_event(b"second")
        await writer.close()


async def test_what_is_on_its_way_when_the_writer_closes_has_an_unknown_outcome(
    store: FakeStore,
) -> None:
    stream = Stream(store, 1)
    writer = stream.writer()
    await writer.open()
    await writer.write_and_wait(b"first")
    store.on_append = lambda _: "ignore"
    sent = writer.write_nowait(b"sent")
    await asyncio.sleep(0)
    unsent = writer.write_nowait(b"unsent")
    await writer.close()
    with pytest.raises(OutcomeUnknownError):
        await sent
    with pytest.raises(ClientError, match="closed"):
        await unsent


async def test_a_closed_writer_takes_nothing(store: FakeStore) -> None:
    stream = Stream(store, 1)
    async with stream.writer() as writer:
        await writer.write(b"inside")
    with pytest.raises(ClientError, match="closed"):
        await writer.write(b"behind")
    with pytest.raises(ClientError, match="closed"):
        _ = writer.write_nowait(b"behind")
    with pytest.raises(ClientError, match="closed"):
        await writer.flush()
    assert stream.events() == [b"inside"]


async def test_flush_and_large_events_wait_for_nobody_who_writes_on_and_on(
    store: FakeStore,
) -> None:
    stream = Stream(store, 1)
    async with stream.writer() as writer:

        async def write_on() -> None:
            while True:
                await writer.write(b"x" * 100, key="other")
                await asyncio.sleep(0)

        busy = asyncio.create_task(write_on())
        async with asyncio.timeout(60):
            await writer.write(b"mine", key="mine")
            await writer.flush()
            assert b"mine" in stream.events()
            await writer.write(b"large" * 2_000_000, key="mine")
        busy.cancel()
        await asyncio.gather(busy, return_exceptions=True)
    assert b"large" * 2_000_000 in stream.events()


async def test_a_wait_for_room_that_is_given_up_leaves_nothing_behind() -> None:
    """Also where nothing is acknowledged meanwhile, which would clear it away."""
    window = AppendWindow(ClientSettings(unacknowledged_events_max=1))
    window.admit(1)
    stays = asyncio.create_task(window.room(1))
    for _ in range(3):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(window.room(1), 0.001)
    assert len(window._waiters) == 1
    before, behind = (asyncio.create_task(window.room(1)) for _ in range(2))
    await asyncio.sleep(0)
    # In the turn of the loop in which there is room.
    before.cancel()
    window.release(1, 1)
    behind.cancel()
    await stays
    for each in (before, behind):
        with pytest.raises(asyncio.CancelledError):
            await each
    assert not window._waiters


async def test_an_acknowledgement_costs_by_what_it_makes_room_for_and_not_by_what_waits() -> None:
    looks = 0

    class Watched(AppendWindow):
        def has_room(self, length: int) -> bool:
            nonlocal looks
            looks += 1
            return super().has_room(length)

    window = Watched(ClientSettings(unacknowledged_events_max=1))
    window.admit(1)
    order: list[int] = []

    async def enter(number: int) -> None:
        await window.room(1)
        window.admit(1)
        order.append(number)

    waiting = [asyncio.create_task(enter(number)) for number in range(200)]
    await asyncio.sleep(0)
    for each in waiting:
        window.release(1, 1)
        await each
    assert order == list(range(200))
    assert looks < 10 * 200


async def test_room_that_is_not_used_goes_to_those_behind() -> None:
    window = AppendWindow(ClientSettings(unacknowledged_events_max=2, unacknowledged_bytes_max=10))
    window.admit(5)
    large, small, late = (asyncio.create_task(window.room(length)) for length in (9, 5, 5))
    await asyncio.sleep(0)
    large.cancel()  # alone, as there is room for the others already
    for each in (small, late):
        await each
    window.admit(5)
    unused, last = (asyncio.create_task(window.room(1)) for _ in range(2))
    await asyncio.sleep(0)
    window.release(1, 5)  # the last that is told of the window
    async with asyncio.timeout(60):
        await unused
        await last
    assert not window._waiters


async def test_an_event_that_needs_much_room_is_not_overtaken_for_ever() -> None:
    window = AppendWindow(ClientSettings(unacknowledged_bytes_max=10))
    window.admit(5)
    large, small = (asyncio.create_task(window.room(length)) for length in (9, 5))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not small.done()
    window.admit(5)  # without waiting, which may be tried at any time
    window.release(1, 5)
    await asyncio.sleep(0)
    assert not large.done()
    window.release(1, 5)
    await large
    window.admit(9)
    await asyncio.sleep(0)
    assert not small.done()
    window.release(1, 9)
    await small


@pytest.mark.parametrize("seed", range(60))
async def test_every_task_gets_room_whatever_others_do_with_theirs(seed: int) -> None:
    """They let events in or not, are cancelled, or write without waiting."""
    random = Random(seed)
    window = AppendWindow(
        ClientSettings(
            unacknowledged_events_max=random.choice((1, 2, 5)), unacknowledged_bytes_max=10
        )
    )
    held: list[int] = []

    async def turns(count_max: int) -> None:
        for _ in range(random.randrange(count_max)):
            await asyncio.sleep(0)

    async def enter(length: int) -> None:
        for _ in range(random.randrange(1, 4)):
            await window.room(length)
            if random.random() < 0.8:
                window.admit(length)
                held.append(length)

    async def write_without_waiting() -> None:
        for _ in range(20):
            if window.has_room(2):
                window.admit(2)
                held.append(2)
            await turns(3)

    async def cancel_some() -> None:
        for _ in range(8):
            await turns(4)
            random.choice(entering).cancel()

    async def acknowledge() -> None:
        while True:
            await turns(4)
            if held:
                count = random.randrange(1, len(held) + 1)
                window.release(count, sum(held[:count]))
                del held[:count]
            await asyncio.sleep(0)

    acknowledging = asyncio.create_task(acknowledge())
    entering = [asyncio.create_task(enter(random.choice((1, 3, 5, 9, 30)))) for _ in range(30)]
    async with asyncio.timeout(60):
        await asyncio.gather(write_without_waiting(), cancel_some())
        await asyncio.wait(entering)
    acknowledging.cancel()
    assert all(each.cancelled() or each.exception() is None for each in entering)
    assert not window._waiters


async def test_a_block_that_cannot_be_sent_fails_the_writer_instead_of_waiting_for_ever(
    store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send(*_arguments: object) -> None:
        raise RuntimeError("a bug")

    writer = Stream(store, 1).writer()
    await writer.open()
    await writer.write(b"first")
    await writer.flush()
    monkeypatch.setattr(segment_appender._AppendSession, "send", send)
    acknowledged = writer.write_nowait(b"second")
    async with asyncio.timeout(60):
        with pytest.raises(OutcomeUnknownError):
            await writer.flush()
        with pytest.raises(OutcomeUnknownError):
            await acknowledged
        await writer.close()


async def test_a_writer_that_is_closed_follows_no_segment(store: FakeStore) -> None:
    """A large event has met a seal, and asks for the successors while the writer is closed."""
    stream = Stream(store, 1)
    writer = stream.writer()
    await writer.open()
    stream.replace([0], [0.0, 1.0])
    answer = stream.following.pop(0)
    asked, closed = asyncio.Event(), asyncio.Event()

    class SlowTarget(Target):
        async def successors(
            self, segment_id: int, error: SegmentStoreError
        ) -> Sequence[Successor]:
            asked.set()
            await closed.wait()
            return answer

    writer._target = SlowTarget(stream)
    large = asyncio.create_task(writer.write(bytes(9 << 20), key="k"))
    await asked.wait()
    await writer.close()
    closed.set()
    with pytest.raises(ClientError, match="closed"):
        await large
