"""A stage: blocks of events into the segments of a transaction, each event once whatever connections do."""

from collections.abc import AsyncIterator
from random import Random

import pytest

from segmentstore.client.connection import ConnectionPool, ServerAddress
from segmentstore.client.controller import (
    BegunTransaction,
    ControllerClient,
    StreamName,
    TransactionState,
)
from segmentstore.client.controller_channel import ControllerChannel
from segmentstore.client.errors import ClientError, TransactionClosedError
from segmentstore.client.segment_calls import FixedLocator, SegmentCalls
from segmentstore.client.settings import ClientSettings
from segmentstore.client.stream import Stream
from segmentstore.client.stream_config import StreamConfig
from segmentstore.client.stream_segments import SegmentRange
from segmentstore.client.transaction import Stage, StagedTransactions
from segmentstore.codec.event_frame import frame_event
from segmentstore.codec.stream_names import segment_name, transaction_segment
from segmentstore.codec.wire_protocol.appends import AppendBlockEnd
from segmentstore.contracts.errors import ErrorKind, InvalidRequestError
from tests.client.fake_controller import FakeController
from tests.client.fake_store import FakeStore

NOT_LISTENING = "127.0.0.1:1"
TRANSACTION = (3 << 96) | 17
RANGES = [SegmentRange(1, 0.5, 1.0), SegmentRange(0, 0.0, 0.5)]


def name_of(segment_id: int) -> str:
    return transaction_segment(segment_name("s", "a", segment_id), TRANSACTION)


def stage_in(
    store: FakeStore,
    settings: ClientSettings | None = None,
    *,
    controller: ControllerClient | None = None,
) -> Stage:
    """Without a controller it must not be asked."""
    settings = settings or ClientSettings(retry_seconds_max=0.02)
    return Stage(
        stream=StreamName("s", "a"),
        begun=BegunTransaction(TRANSACTION, RANGES),
        controller=controller or controller_at(NOT_LISTENING),
        calls=SegmentCalls(
            locator=FixedLocator(store.endpoint),
            pool=ConnectionPool(settings),
            settings=settings,
            random=Random(1),
        ),
    )


def controller_at(address: str) -> ControllerClient:
    settings = ClientSettings(request_seconds=60.0)
    return ControllerClient(ControllerChannel([address], settings=settings, random=Random(2)))


def staged_in(store: FakeStore, controller: ControllerClient) -> StagedTransactions:
    settings = ClientSettings()
    return StagedTransactions(
        StreamName("s", "a"),
        controller=controller,
        calls=SegmentCalls(
            locator=FixedLocator(store.endpoint),
            pool=ConnectionPool(settings),
            settings=settings,
            random=Random(1),
        ),
    )


def block_of(start: int, count: int) -> bytes:
    return b"".join(frame_event(b"%d" % number) for number in range(start, start + count))


@pytest.fixture
async def fake() -> AsyncIterator[FakeStore]:
    async with FakeStore().serving() as store:
        for each in RANGES:
            store.create(name_of(each.segment_id))
        yield store
        assert store.complaints == []


async def test_blocks_of_events_stand_in_their_order(fake: FakeStore) -> None:
    async with stage_in(fake) as stage:
        assert [each.segment_id for each in stage.ranges] == [0, 1]
        await stage.write(0, block_of(0, 5), events=5)
        await stage.write(1, block_of(0, 1), events=1)
        await stage.write(0, block_of(5, 3), events=3)
        stage.check()
    assert fake.events(name_of(0)) == [b"%d" % number for number in range(8)]
    assert fake.events(name_of(1)) == [b"0"]
    assert sum(fake.blocks) == 9


@pytest.mark.parametrize("what", ["drop before", "drop after"])
async def test_every_block_is_stored_once_though_connections_break(
    fake: FakeStore, what: str
) -> None:
    seen = 0

    def breaking(_: AppendBlockEnd) -> str:
        nonlocal seen
        seen += 1
        return what if seen % 3 == 0 else "store and answer"

    fake.on_append = breaking
    settings = ClientSettings(retry_seconds_max=0.02, block_bytes_max=100, blocks_in_flight_max=4)
    async with stage_in(fake, settings) as stage:
        for number in range(60):
            await stage.write(number % 2, block_of(number * 10, 10), events=10)
            stage.check()
    for half in range(2):
        expected = [
            b"%d" % n for block in range(half, 60, 2) for n in range(block * 10, block * 10 + 10)
        ]
        assert fake.events(name_of(half)) == expected
    assert fake.connections > 5


async def test_a_single_event_may_have_any_length(fake: FakeStore) -> None:
    settings = ClientSettings(retry_seconds_max=0.02, event_bytes_max=1000)
    large = b"x" * 5000
    async with stage_in(fake, settings) as stage:
        await stage.write(0, block_of(0, 1), events=1)
        await stage.write(0, frame_event(large), events=1)
        await stage.write(0, block_of(1, 1), events=1)
    assert fake.events(name_of(0)) == [b"0", large, b"1"]


async def test_a_stage_that_was_ended_by_others_says_so(fake: FakeStore) -> None:
    fake.seal(name_of(0))
    async with FakeController(fake).serving() as serving:
        controller = controller_at(serving.address.removeprefix("tcp://"))
        await controller.create_scope("s")
        await controller.create_stream(StreamName("s", "a"), StreamConfig())
        with pytest.raises(TransactionClosedError, match="state=unknown"):
            async with stage_in(fake, controller=controller) as stage:
                await stage.write(0, block_of(0, 5), events=5)
        await controller.close()


async def test_an_abort_that_reaches_no_controller_is_told_as_such(fake: FakeStore) -> None:
    """Else the stage holds a place among the open ones until its lease ends, and its owner does not know."""
    settings = ClientSettings(request_seconds=0.2, retry_seconds_max=0.02)
    controller = ControllerClient(
        ControllerChannel([NOT_LISTENING], settings=settings, random=Random(2))
    )
    with pytest.raises(ClientError) as told:
        await staged_in(fake, controller).abort(f"{TRANSACTION:032x}")
    assert told.value.kind is ErrorKind.UNAVAILABLE
    await controller.close()


async def test_of_a_stage_that_is_over_an_abort_changes_nothing(fake: FakeStore) -> None:
    async with FakeController(fake).serving() as serving:
        controller = controller_at(serving.address.removeprefix("tcp://"))
        await controller.create_scope("s")
        stream = StreamName("s", "a")
        await controller.create_stream(stream, StreamConfig())
        begun = await controller.begin_transaction(stream, 30.0)
        await controller.commit_transaction(stream, begun.transaction_id)
        staged = staged_in(fake, controller)
        await staged.abort(f"{begun.transaction_id:032x}")
        await staged.abort(f"{TRANSACTION:032x}")
        state = await controller.transaction_state(stream, begun.transaction_id)
        assert state is TransactionState.COMMITTED
        await controller.close()


async def test_a_closed_stage_takes_nothing(fake: FakeStore) -> None:
    """A commit would lack what it took, without a word."""
    async with stage_in(fake) as stage:
        await stage.write(0, block_of(0, 1), events=1)
    with pytest.raises(ClientError, match="closed"):
        await stage.write(0, block_of(1, 1), events=1)
    with pytest.raises(ClientError, match="closed"):
        await stage.flush()


@pytest.mark.parametrize("stage_id", ["", "stage", "-1", f"{1 << 128:x}"])
async def test_what_is_no_id_of_a_stage_is_refused(stage_id: str) -> None:
    """Before a controller is asked."""
    settings = ClientSettings()
    calls = SegmentCalls(
        locator=FixedLocator(ServerAddress("127.0.0.1", 1)),
        pool=ConnectionPool(settings),
        settings=settings,
        random=Random(1),
    )
    stream = Stream(StreamName("s", "a"), controller=controller_at(NOT_LISTENING), calls=calls)
    with pytest.raises(InvalidRequestError, match="32 hex digits"):
        await stream.staged().commit("application", 1, [stage_id])
    with pytest.raises(InvalidRequestError, match="32 hex digits"):
        await stream.staged().abort(stage_id)
    with pytest.raises(InvalidRequestError, match="32 hex digits"):
        await stream.abort_transaction(stage_id)


async def test_ranges_that_leave_a_gap_are_refused(fake: FakeStore) -> None:
    with pytest.raises(ClientError):
        Stage(
            stream=StreamName("s", "a"),
            begun=BegunTransaction(TRANSACTION, RANGES[:1]),
            controller=controller_at(NOT_LISTENING),
            calls=SegmentCalls(
                locator=FixedLocator(fake.endpoint),
                pool=ConnectionPool(ClientSettings()),
                settings=ClientSettings(),
                random=Random(1),
            ),
        )
