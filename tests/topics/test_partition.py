"""One partition over segments in memory: offsets, durability, producers, fetches, trims, failures."""

import asyncio
import math
from asyncio import Future
from random import Random

import pytest

from segmentstore.codec.record_batch import (
    BatchProblem,
    Compression,
    Record,
    check_batch,
    encode_batch,
)
from segmentstore.codec.topic_files import LOG_START
from segmentstore.contracts.errors import (
    ContainerStoppedError,
    CorruptedDataError,
    LogFullError,
    SegmentStoreError,
)
from segmentstore.contracts.segments import AttributeUpdate
from segmentstore.topics.errors import (
    InvalidConfigError,
    InvalidRecordError,
    InvalidTimestampError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    PartitionUnavailableError,
    ProducerFencedError,
    RecordBatchTooLargeError,
    UnknownPartitionError,
)
from segmentstore.topics.partition import Partition
from segmentstore.topics.partition_log import Appended
from segmentstore.topics.settings import TopicSettings
from segmentstore.topics.topic_config import make_config
from tests.http.memory_segments import MemorySegments
from tests.topics.batches import (
    NOW,
    SEGMENT,
    SMALL,
    Clock,
    batch_of,
    open_partition,
    read_all,
    records_in,
)


async def reopened(segments: MemorySegments, **more: object) -> tuple[MemorySegments, Partition]:
    after = segments.restarted()
    return after, await open_partition(after, **more)  # type: ignore[arg-type] # by name


async def test_offsets_follow_one_another_in_the_order_of_the_calls() -> None:
    partition = await open_partition(MemorySegments())
    answers = [partition.produce(batch_of(*[b"v%d" % n] * (n + 1))) for n in range(20)]
    assert partition.high_watermark == 0, "nothing is durable yet"
    appended = [await answer for answer in answers]
    assert [each.base_offset for each in appended] == [n * (n + 1) // 2 for n in range(20)]
    assert partition.high_watermark == 210
    records = await read_all(partition)
    assert [record.offset for record in records] == list(range(210))
    assert {each.append_time_ms for each in appended} == {-1}
    partition.check()


async def test_nothing_is_visible_before_it_is_durable() -> None:
    segments = MemorySegments()
    partition = await open_partition(segments)
    await partition.produce(batch_of(b"a"))
    segments.hold()
    answer = partition.produce(batch_of(b"b", b"c"))
    await asyncio.sleep(0)
    assert not answer.done()
    assert partition.high_watermark == 1
    assert await partition.fetch(1, 1000) == b""
    assert await partition.fetch(3, 1000) == b"", "up to the end of what is under way"
    with pytest.raises(OffsetOutOfRangeError):
        await partition.fetch(4, 1000)
    assert len(records_in(await partition.fetch(0, 100_000))) == 1
    segments.let_go()
    assert (await answer).base_offset == 1
    assert len(records_in(await partition.fetch(0, 100_000))) == 3


async def test_a_batch_is_stored_as_it_was_sent_but_for_its_place() -> None:
    segments = MemorySegments()
    partition = await open_partition(segments)
    sent = bytearray(batch_of(b"x" * 100, None, compression=Compression.ZSTD))
    await partition.produce(memoryview(sent))
    await partition.produce(memoryview(sent))
    stored = segments.content(SEGMENT)[len(sent) :]
    assert check_batch(stored).base_offset == 2
    assert stored[8:12] == sent[8:12]
    assert stored[16:] == sent[16:]


async def test_the_batch_is_copied_before_produce_returns() -> None:
    partition = await open_partition(MemorySegments())
    buffer = bytearray(batch_of(b"value"))
    answer = partition.produce(memoryview(buffer))
    buffer[:] = bytes(len(buffer))
    await answer
    assert [r.value for r in await read_all(partition)] == [b"value"]


async def test_a_fetch_gives_whole_batches_of_which_the_first_has_the_offset() -> None:
    partition = await open_partition(MemorySegments())
    for n in range(30):
        await partition.produce(batch_of(*[b"%03d" % n] * 4))
    size = len(batch_of(*[b"000"] * 4))
    for offset in range(120):
        for max_bytes, count in (
            (0, 1),
            (size - 1, 1),
            (size, 1),
            (2 * size, 2),
            (3 * size - 1, 2),
        ):
            content = await partition.fetch(offset, max_bytes)
            expected = min(count, 30 - offset // 4)
            assert len(content) == expected * size, (offset, max_bytes)
            assert check_batch(content[:size]).base_offset == offset // 4 * 4


async def test_a_batch_of_megabytes_is_fetched_whole() -> None:
    partition = await open_partition(
        MemorySegments(), config={"max.message.bytes": "10000000"}, settings=TopicSettings()
    )
    await partition.produce(batch_of(b"small"))
    await partition.produce(batch_of(b"x" * 5_000_000))
    await partition.produce(batch_of(b"small"))
    content = await partition.fetch(1, 1000)
    assert records_in(content)[0].value == b"x" * 5_000_000
    assert len(records_in(await partition.fetch(0, 6_000_000))) == 3


async def test_a_restart_goes_on_behind_the_last_record() -> None:
    segments = MemorySegments()
    partition = await open_partition(segments)
    for n in range(100):
        await partition.produce(batch_of(b"%d" % n, b"y" * 50, producer=(n % 30, 0, 0)))
    before = await read_all(partition)
    for _ in range(3):
        segments, partition = await reopened(segments)
        assert partition.high_watermark == len(before)
        assert (await partition.produce(batch_of(b"next"))).base_offset == len(before)
        assert (await read_all(partition))[: len(before)] == before
        before = await read_all(partition)
        partition.check()


async def test_a_restart_walks_no_further_than_from_the_last_mark() -> None:
    segments = MemorySegments()
    partition = await open_partition(segments)
    for _ in range(200):
        await partition.produce(batch_of(b"v" * 100))
    length = len(segments.content(SEGMENT))
    after = segments.restarted()
    partition = await open_partition(after)
    first = partition._log.positions.at_or_before_position(length)
    assert first is not None
    assert first.position >= length - 2 * SMALL.mark_bytes
    assert len(await read_all(partition)) == 200, "older ones are found by the marks"


async def test_every_offset_is_found_after_a_restart() -> None:
    segments = MemorySegments()
    partition = await open_partition(segments)
    random = Random(3)
    for _ in range(150):
        await partition.produce(batch_of(*[b"v" * random.randrange(200)] * random.randint(1, 5)))
    end = partition.high_watermark
    segments, partition = await reopened(segments)
    for offset in random.sample(range(end), end):
        records = records_in(await partition.fetch(offset, 1))
        assert records[0].offset <= offset <= records[-1].offset


# --- producers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("restart", [False, True], ids=["", "restart"])
async def test_a_batch_that_is_sent_again_is_stored_once(*, restart: bool) -> None:
    segments = MemorySegments()
    partition = await open_partition(segments)
    sent = [batch_of(b"a", b"b", b"%d" % n, producer=(7, 0, 3 * n)) for n in range(8)]
    first = [await partition.produce(each) for each in sent]
    if restart:
        segments, partition = await reopened(segments)
    for n in range(3, 8):
        again = await partition.produce(sent[n])
        assert again == Appended(first[n].base_offset, -1, 0, duplicate=True)
    with pytest.raises(OutOfOrderSequenceError):
        await partition.produce(sent[2])
    assert partition.high_watermark == 24
    assert (await partition.produce(batch_of(b"c", producer=(7, 0, 24)))).base_offset == 24


@pytest.mark.parametrize("restart", [False, True], ids=["", "restart"])
async def test_sequences_and_epochs_are_judged(*, restart: bool) -> None:
    segments = MemorySegments()
    partition = await open_partition(segments)
    assert (await partition.produce(batch_of(b"a", producer=(7, 2, 100)))).base_offset == 0
    for n in range(60):  # other producers, marks behind it
        await partition.produce(batch_of(b"x" * 100, producer=(8, 0, n)))
    if restart:
        segments, partition = await reopened(segments)
    with pytest.raises(OutOfOrderSequenceError) as refused:
        await partition.produce(batch_of(b"c", producer=(7, 2, 102)))
    assert (refused.value.expected, refused.value.given) == (101, 102)
    with pytest.raises(ProducerFencedError):
        await partition.produce(batch_of(b"c", producer=(7, 1, 0)))
    with pytest.raises(OutOfOrderSequenceError):
        await partition.produce(batch_of(b"c", producer=(7, 3, 1)))
    await partition.produce(batch_of(b"b", producer=(7, 2, 101)))
    await partition.produce(batch_of(b"c", producer=(7, 3, 0)))
    with pytest.raises(ProducerFencedError):
        await partition.produce(batch_of(b"c", producer=(7, 2, 102)))


async def test_sequences_go_on_at_zero() -> None:
    partition = await open_partition(MemorySegments())
    last = (1 << 31) - 2
    await partition.produce(batch_of(b"a", b"b", b"c", producer=(7, 0, last)))
    await partition.produce(batch_of(b"d", producer=(7, 0, 1)))
    assert (await partition.produce(batch_of(b"a", b"b", b"c", producer=(7, 0, last)))).duplicate


async def test_a_duplicate_is_told_of_when_the_first_is_durable() -> None:
    segments = MemorySegments()
    partition = await open_partition(segments)
    segments.hold()
    sent = batch_of(b"a", producer=(7, 0, 0))
    answers = [partition.produce(sent) for _ in range(3)]
    await asyncio.sleep(0.01)
    assert not any(answer.done() for answer in answers)
    segments.let_go()
    assert [(await a).duplicate for a in answers] == [False, True, True]
    assert partition.high_watermark == 1


async def test_what_was_judged_by_a_batch_that_failed_is_not_told_as_a_refusal() -> None:
    segments = MemorySegments()
    partition = await open_partition(segments)
    segments.hold()
    first = partition.produce(batch_of(b"a", producer=(7, 0, 0)))
    again = partition.produce(batch_of(b"a", producer=(7, 0, 0)))
    gap = partition.produce(batch_of(b"a", producer=(7, 0, 5)))
    segments.fail(ContainerStoppedError("stopped"))
    with pytest.raises(PartitionUnavailableError) as lost:
        await first
    assert lost.value.stored is None
    with pytest.raises(PartitionUnavailableError) as lost:
        await again
    assert lost.value.stored is None
    with pytest.raises(PartitionUnavailableError) as lost:
        await gap
    assert lost.value.stored is False


async def test_producers_are_bounded_and_survive_in_the_order_of_their_appends() -> None:
    segments = MemorySegments()
    partition = await open_partition(segments)
    for n in range(50):
        await partition.produce(batch_of(b"x" * 90, producer=(n, 0, 0)))
    known = [producer_id for producer_id, _, _ in partition.producers()]
    assert known == list(range(30, 50))
    partition.check()
    before = partition.producers()
    segments, partition = await reopened(segments)
    after = partition.producers()
    assert after == before
    assert (await partition.produce(batch_of(b"x", producer=(3, 0, 77)))).base_offset == 50


async def test_a_producer_that_was_silent_for_a_day_is_forgotten() -> None:
    clock = Clock()
    partition = await open_partition(MemorySegments(), clock=clock)
    await partition.produce(batch_of(b"a", producer=(1, 0, 0)))
    clock.now += 86_400_001
    await partition.produce(batch_of(b"a", producer=(2, 0, 0)))
    assert [each for each, _, _ in partition.producers()] == [2]


# --- refusals ----------------------------------------------------------------------------------


async def test_what_is_no_batch_is_refused_and_nothing_is_stored() -> None:
    segments = MemorySegments()
    partition = await open_partition(segments, config={"max.message.bytes": "1000"})
    good = batch_of(b"v")
    flipped = bytearray(good)
    flipped[-1] ^= 1
    cases: list[tuple[bytes, BatchProblem]] = [
        (bytes(flipped), BatchProblem.CORRUPT),
        (good[:-1], BatchProblem.INVALID),
        (good + good, BatchProblem.INVALID),
        (b"", BatchProblem.INVALID),
        (good[:16] + b"\x01" + good[17:], BatchProblem.OLD_FORMAT),
    ]
    for content, problem in cases:
        with pytest.raises(InvalidRecordError) as refused:
            await partition.produce(content)
        assert refused.value.problem is problem
    with pytest.raises(RecordBatchTooLargeError):
        await partition.produce(batch_of(b"x" * 1000))
    assert segments.content(SEGMENT) == b""
    assert (await partition.produce(good)).base_offset == 0


async def test_batches_of_transactions_are_refused() -> None:
    partition = await open_partition(MemorySegments())
    for control, transactional in ((True, False), (False, True)):
        batch = encode_batch(
            [Record(0, NOW, b"k", b"v")], is_control=control, is_transactional=transactional
        )
        with pytest.raises(InvalidRecordError):
            await partition.produce(batch)


async def test_times_too_far_from_now_are_refused() -> None:
    partition = await open_partition(
        MemorySegments(), config={"message.timestamp.before.max.ms": "5000"}
    )
    for time in (NOW + 3_600_001, NOW - 5001):
        with pytest.raises(InvalidTimestampError):
            await partition.produce(batch_of(b"v", time=time))
    for time in (NOW + 3_600_000, NOW - 5000):
        await partition.produce(batch_of(b"v", time=time))


async def test_records_without_a_time_are_not_too_old() -> None:
    """As Kafka takes them, whatever the bound."""
    config = {"message.timestamp.before.max.ms": "5000", "message.timestamp.after.max.ms": "0"}
    partition = await open_partition(MemorySegments(), config=config)
    await partition.produce(batch_of(b"v", time=-1))
    with pytest.raises(InvalidTimestampError, match="too old"):
        await partition.produce(batch_of(b"v", time=-2))
    with pytest.raises(InvalidConfigError):
        make_config({"message.timestamp.before.max.ms": "-1"}, bytes_max=1_000)


async def test_the_time_of_the_append_is_stamped_and_told() -> None:
    clock = Clock()
    segments = MemorySegments()
    config = {"message.timestamp.type": "LogAppendTime"}
    partition = await open_partition(segments, clock=clock, config=config)
    clock.now += 77
    sent = batch_of(b"a", b"b", time=5, producer=(1, 0, 0))
    assert (await partition.produce(sent)).append_time_ms == NOW + 77
    assert [r.timestamp_ms for r in await read_all(partition)] == [NOW + 77] * 2
    segments, partition = await reopened(segments, config=config)
    again = await partition.produce(sent)
    assert (again.append_time_ms, again.duplicate) == (NOW + 77, True)


# --- failures ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "stored"), [(ContainerStoppedError("stopped"), None), (LogFullError("full"), False)]
)
async def test_what_fails_is_void_and_the_partition_comes_back(
    error: SegmentStoreError, stored: bool | None
) -> None:
    segments = MemorySegments()
    partition = await open_partition(segments)
    await partition.produce(batch_of(b"first", producer=(7, 0, 0)))
    segments.hold()
    answers = [partition.produce(batch_of(b"lost", producer=(7, 0, n))) for n in range(1, 4)]
    called: list[bool] = []
    partition.watch(lambda: called.append(partition.is_open))
    segments.fail(error)
    for answer in answers:
        with pytest.raises(PartitionUnavailableError) as lost:
            await answer
        assert lost.value.stored is stored
    assert not partition.is_open
    assert called[0] is False
    with pytest.raises(PartitionUnavailableError) as refused:
        await partition.produce(batch_of(b"too early"))
    assert refused.value.stored is False
    await partition.recover()
    appended = [
        await partition.produce(batch_of(b"again", producer=(7, 0, n))) for n in range(1, 4)
    ]
    assert [(each.base_offset, each.duplicate) for each in appended] == [
        (1, False),
        (2, False),
        (3, False),
    ]
    assert [r.value for r in await read_all(partition)] == [b"first"] + [b"again"] * 3
    partition.check()
    assert segments.pin_count(SEGMENT) == 1


async def test_of_two_owners_only_one_gives_out_an_offset() -> None:
    segments = MemorySegments()
    first, second = await open_partition(segments), await open_partition(segments)
    await first.produce(batch_of(b"a", producer=(1, 0, 0)))
    with pytest.raises(PartitionUnavailableError) as refused:
        await second.produce(batch_of(b"b", producer=(2, 0, 0)))
    assert refused.value.stored is False
    await second.recover()
    assert (await second.produce(batch_of(b"b", producer=(2, 0, 0)))).base_offset == 1
    with pytest.raises(PartitionUnavailableError):
        await first.fetch(1, 100)
    await first.recover()
    assert [r.value for r in await read_all(first)] == [b"a", b"b"]
    assert (await first.produce(batch_of(b"b", producer=(2, 0, 0)))).duplicate


async def test_another_owner_that_appends_as_many_bytes_opens_no_gap() -> None:
    """The second batch would be in place behind it, if its length were all that is compared."""
    segments = MemorySegments()
    first, second = await open_partition(segments), await open_partition(segments)
    other = second.produce(batch_of(b"other", producer=(2, 0, 0)))
    answers = [first.produce(batch_of(b"%05d" % n, producer=(1, 0, n))) for n in range(3)]
    assert (await other).base_offset == 0
    for answer in answers:
        with pytest.raises(PartitionUnavailableError) as refused:
            await answer
        assert refused.value.stored is False
    await first.recover()
    again = [await first.produce(batch_of(b"%05d" % n, producer=(1, 0, n))) for n in range(3)]
    assert [each.base_offset for each in again] == [1, 2, 3]


async def test_a_caller_that_leaves_takes_nothing_back() -> None:
    segments = MemorySegments()
    partition = await open_partition(segments)
    partition.produce(batch_of(b"a")).cancel()
    assert (await partition.produce(batch_of(b"b"))).base_offset == 1
    assert [r.value for r in await read_all(partition)] == [b"a", b"b"]
    assert segments.cancelled_count == 0


async def test_batches_that_wait_are_bounded() -> None:
    segments = MemorySegments()
    partition = await open_partition(segments, settings=TopicSettings(waiting_appends_max=3))
    segments.hold()
    answers = [partition.produce(batch_of(b"a")) for _ in range(3)]
    with pytest.raises(PartitionUnavailableError) as refused:
        await partition.produce(batch_of(b"a"))
    assert refused.value.stored is False
    segments.let_go()
    for answer in answers:
        await answer
    assert partition.is_open


async def test_bytes_that_are_no_batches_are_never_served() -> None:
    segments = MemorySegments()
    partition = await open_partition(segments)
    await partition.produce(batch_of(b"a"))
    async with segments.open_segment(SEGMENT) as segment:
        await segment.append(b"something else, of some other program, that is no batch" * 3)
    other = await reopened_fails(segments)
    assert isinstance(other.__cause__, CorruptedDataError)


async def reopened_fails(segments: MemorySegments) -> PartitionUnavailableError:
    with pytest.raises(PartitionUnavailableError) as refused:
        await open_partition(segments.restarted())
    return refused.value


async def test_a_deleted_partition_says_so() -> None:
    segments = MemorySegments()
    partition = await open_partition(segments)
    await partition.produce(batch_of(b"a"))
    await segments.delete(SEGMENT)
    with pytest.raises(UnknownPartitionError):
        await partition.produce(batch_of(b"a"))
    partition.vanish()
    with pytest.raises(UnknownPartitionError):
        await partition.fetch(0, 10)
    with pytest.raises(UnknownPartitionError):
        await partition.recover()


# --- times -------------------------------------------------------------------------------------


@pytest.mark.parametrize("restart", [False, True], ids=["", "restart"])
@pytest.mark.parametrize("compression", [Compression.NONE, Compression.LZ4])
async def test_the_first_record_that_is_not_older_is_found(
    *, restart: bool, compression: Compression
) -> None:
    """Times go up and down: compared with a look at every record."""
    random = Random(11)
    segments = MemorySegments()
    partition = await open_partition(segments)
    for n in range(120):
        time = NOW - 1_000_000 + 1000 * n + random.randrange(-20_000, 20_000)
        values = [bytes(random.randrange(120)) for _ in range(random.randint(1, 4))]
        await partition.produce(batch_of(*values, time=time, compression=compression))
    if restart:
        segments, partition = await reopened(segments)
    for start in (0, 50, 51, 52, 200):
        await partition.delete_records(start)
        records = await read_all(partition)
        times = {record.timestamp_ms for record in records}
        for time in [0, NOW, *random.sample(sorted(times), 40), *(t + 1 for t in list(times)[:20])]:
            expected = next(
                ((r.offset, r.timestamp_ms) for r in records if r.timestamp_ms >= time), None
            )
            assert await partition.offset_at_time(time) == expected


async def test_an_empty_partition_has_no_times() -> None:
    partition = await open_partition(MemorySegments())
    assert await partition.offset_at_time(0) is None
    assert await partition.fetch(0, 100) == b""


# --- trims -------------------------------------------------------------------------------------


async def test_the_log_start_may_lie_inside_of_a_batch() -> None:
    segments = MemorySegments()
    partition = await open_partition(segments)
    for n in range(4):
        await partition.produce(batch_of(*[b"%d" % n] * 100))
    size = len(batch_of(*[b"0"] * 100))
    called: list[int] = []
    unwatch = partition.watch(lambda: called.append(partition.log_start_offset))
    assert await partition.delete_records(257) == 257
    assert called == [257]
    unwatch()
    unwatch()
    for _ in range(2):
        assert (await segments.info(SEGMENT)).start_offset == 2 * size
        with pytest.raises(OffsetOutOfRangeError) as refused:
            await partition.fetch(256, 10)
        assert (refused.value.log_start, refused.value.next_offset) == (257, 400)
        assert records_in(await partition.fetch(257, 1))[0].offset == 200
        assert await partition.delete_records(100) == 257, "it never goes back"
        assert [r.offset for r in await read_all(partition)] == list(range(257, 400))
        with pytest.raises(OffsetOutOfRangeError):
            await partition.delete_records(401)
        segments, partition = await reopened(segments)
    assert await partition.delete_records(-1) == 400
    assert (await segments.info(SEGMENT)).start_offset == 4 * size
    segments, partition = await reopened(segments)
    assert (partition.log_start_offset, partition.high_watermark) == (400, 400)
    assert (await partition.produce(batch_of(b"next"))).base_offset == 400
    assert called == [257]


async def test_a_log_start_is_known_when_it_is_durable_also_where_its_caller_has_left() -> None:
    segments = MemorySegments()
    partition = await open_partition(segments)
    await partition.produce(batch_of(b"a", b"b", b"c"))
    told: list[int] = []
    partition.watch(lambda: told.append(partition.log_start_offset))
    segments.hold()
    deleting = asyncio.ensure_future(partition.delete_records(2))
    await asyncio.sleep(0)
    deleting.cancel()
    await asyncio.gather(deleting, return_exceptions=True)
    assert partition.log_start_offset == 0, "it is not durable yet"
    segments.let_go()
    async with segments.open_segment(SEGMENT) as segment:
        await segment.barrier()
    assert (partition.log_start_offset, told) == (2, [2])
    with pytest.raises(OffsetOutOfRangeError):
        await partition.fetch(0, 100)
    segments, partition = await reopened(segments)
    assert partition.log_start_offset == 2


async def test_producers_survive_a_trim_of_everything() -> None:
    segments = MemorySegments()
    partition = await open_partition(segments)
    for n in range(100):
        await partition.produce(batch_of(b"x" * 50, producer=(7, 0, n)))
    await partition.delete_records(-1)
    assert (await partition.produce(batch_of(b"x" * 50, producer=(7, 0, 99)))).duplicate
    segments, partition = await reopened(segments)
    assert partition.high_watermark == 100


@pytest.mark.parametrize("is_lost", [True, False])
async def test_producers_survive_a_trim_beside_an_append_that_brings_a_mark(
    *, is_lost: bool
) -> None:
    """A truncation overtakes appends that wait for room: bytes that said what a mark is to say may go before it."""
    segments = MemorySegments()
    partition = await open_partition(segments)
    count = -(-2 * SMALL.mark_bytes // len(batch_of(b"x" * 50)))
    for n in range(count):
        await partition.produce(batch_of(b"x" * 50, producer=(7, 0, n)))
    under_way: list[Future[Appended]] = []

    def append_what_brings_a_mark() -> None:
        if not under_way:
            segments.hold()
            under_way.append(partition.produce(batch_of(b"x" * 50, producer=(7, 0, count))))

    partition.watch(append_what_brings_a_mark)  # called when the log start has moved
    deletion = asyncio.create_task(partition.delete_records(-1))
    for _ in range(20):
        await asyncio.sleep(0)
    assert partition.log_start_offset == count
    assert not under_way[0].done()
    if is_lost:
        segments.fail(ContainerStoppedError("stopped"))
    else:
        segments.let_go()
        await under_way[0]
    assert await deletion == count
    segments, partition = await reopened(segments)
    told = await partition.produce(batch_of(b"x" * 50, producer=(7, 0, count)))
    assert (told.base_offset, told.duplicate) == (count, not is_lost)
    assert (await partition.produce(batch_of(b"x" * 50, producer=(7, 0, count - 1)))).duplicate
    size = len(batch_of(b"x" * 50))
    assert (await segments.info(SEGMENT)).start_offset == count * size
    partition.check()


async def test_a_trim_that_was_broken_off_is_finished_by_the_recovery() -> None:
    segments = MemorySegments()
    partition = await open_partition(segments)
    for _ in range(60):
        await partition.produce(batch_of(b"v" * 100))
    await segments.update_attributes(SEGMENT, [AttributeUpdate(LOG_START, 50)])
    segments, partition = await reopened(segments)
    assert partition.log_start_offset == 50
    assert (await segments.info(SEGMENT)).start_offset == 50 * len(batch_of(b"v" * 100))
    assert [r.offset for r in await read_all(partition)] == list(range(50, 60))


async def test_marks_of_dropped_bytes_are_forgotten() -> None:
    segments = MemorySegments()
    partition = await open_partition(segments)
    for _ in range(200):
        await partition.produce(batch_of(b"v" * 100))

    async def marks() -> int:
        return sum(key.startswith(b"topic mark ") for key in await segments.attributes(SEGMENT))

    before = await marks()
    assert before >= 10
    await partition.delete_records(150)
    assert await marks() <= before // 2
    segments, partition = await reopened(segments)
    assert [r.offset for r in await read_all(partition)] == list(range(150, 200))
    await partition.delete_records(-1)
    assert 1 <= await marks() <= 2


async def test_retention_by_size_keeps_at_least_so_many_bytes() -> None:
    segments = MemorySegments()
    partition = await open_partition(segments, config={"retention.bytes": "1000"})
    size = len(batch_of(b"v" * 100))
    for n in range(40):
        await partition.produce(batch_of(b"v" * 100))
        await partition.expire(age_is_known=True)
        kept = partition.high_watermark - partition.log_start_offset
        assert kept == min(n + 1, -(-1000 // size))
        partition.check()
    assert partition.size_bytes == -(-1000 // size) * size


async def test_retention_of_no_bytes_keeps_none() -> None:
    partition = await open_partition(MemorySegments(), config={"retention.bytes": "0"})
    await partition.produce(batch_of(b"v"))
    await partition.produce(batch_of(b"v"))
    await partition.expire(age_is_known=False)
    assert partition.log_start_offset == partition.high_watermark == 2


@pytest.mark.parametrize("restart", [False, True], ids=["", "restart"])
async def test_retention_by_age_stops_at_the_first_batch_that_is_young(*, restart: bool) -> None:
    clock = Clock()
    segments = MemorySegments()
    config = {"retention.ms": "10000"}
    partition = await open_partition(segments, clock=clock, config=config)
    for n in range(50):
        clock.now = NOW + 1000 * n
        # The batch at 20 says that it is from later: what is behind it waits for it.
        time = clock.now + (12_000 if n == 20 else 0)
        await partition.produce(batch_of(b"v" * 100, time=time))
    if restart:
        segments, partition = await reopened(segments, clock=clock, config=config)
    await partition.expire(age_is_known=False)
    assert partition.log_start_offset == 0
    for seconds, start in ((29, 19), (30, 20), (41, 20), (42, 20), (43, 33), (100, 50)):
        clock.now = NOW + 1000 * seconds
        await partition.expire(age_is_known=True)
        assert partition.log_start_offset == start, seconds
    segments, partition = await reopened(segments, clock=clock, config=config)
    assert partition.log_start_offset == 50


async def test_records_without_a_time_go_with_the_next_one_that_is_too_old() -> None:
    clock = Clock()
    partition = await open_partition(
        MemorySegments(), clock=clock, config={"retention.ms": "10000"}
    )
    for time in (-1, NOW, -1, NOW + 5_000, -1):
        await partition.produce(batch_of(b"v", time=time))
    assert await partition.rest_until_ms() == math.inf, "it need not be opened for that"
    for seconds, start in ((11, 2), (14, 2), (16, 4), (20, 4)):
        clock.now = NOW + 1000 * seconds
        await partition.expire(age_is_known=True)
        assert partition.log_start_offset == start, seconds


@pytest.mark.parametrize("restart", [False, True], ids=["", "restart"])
async def test_records_without_a_time_are_as_old_as_retention_has_known_them(
    *, restart: bool
) -> None:
    clock, segments, config = Clock(), MemorySegments(), {"retention.ms": "10000"}
    partition = await open_partition(segments, clock=clock, config=config)
    for _ in range(3):
        await partition.produce(batch_of(b"v", time=-1))
    await partition.expire(age_is_known=False)
    assert await partition.rest_until_ms() == math.inf, "it is not known when that was"
    clock.now += 1_000
    await partition.expire(age_is_known=True)
    assert await partition.rest_until_ms() == NOW + 11_001
    for time in (NOW + 9_000, -1, -1):
        await partition.produce(batch_of(b"v", time=time))
    if restart:
        segments, partition = await reopened(segments, clock=clock, config=config)
    for seconds, start in ((11, 0), (12, 3), (20, 4), (30, 4), (31, 6)):
        clock.now = NOW + 1000 * seconds
        await partition.expire(age_is_known=True)
        assert partition.log_start_offset == start, seconds


async def test_records_without_a_time_do_not_wait_for_a_time_that_a_wrong_clock_gave() -> None:
    clock = Clock()
    partition = await open_partition(
        MemorySegments(), clock=clock, config={"retention.ms": "10000"}
    )
    await partition.produce(batch_of(b"v", time=-1))
    clock.now += 10**12
    await partition.expire(age_is_known=True)
    for seconds, start in ((0, 0), (10, 0), (11, 1)):
        clock.now = NOW + 1000 * seconds
        await partition.expire(age_is_known=True)
        assert partition.log_start_offset == start, seconds


async def test_very_many_records_without_a_time_stay_behind_one_that_is_too_old() -> None:
    """So many that places are known, and marks written, among them."""
    clock = Clock()
    partition = await open_partition(
        MemorySegments(), clock=clock, config={"retention.ms": "10000"}
    )
    await partition.produce(batch_of(b"v"))
    for _ in range(40):
        await partition.produce(batch_of(b"v" * 5_000, time=-1))
    for seconds, start in ((20, 1), (30, 1), (31, 41)):
        clock.now = NOW + 1000 * seconds
        await partition.expire(age_is_known=True)
        assert partition.log_start_offset == start, seconds
        await partition.produce(batch_of(b"v" * 5_000, time=-1))


async def test_an_owner_that_is_not_up_to_date_refuses_no_producer_for_ever() -> None:
    """It would say that the sequence is out of order: some clients end then."""
    segments = MemorySegments()
    first = await open_partition(segments)
    await first.produce(batch_of(b"a", producer=(7, 0, 0)))
    second = await open_partition(segments)
    await second.produce(batch_of(b"b", producer=(7, 0, 1)))
    # The first one believes that 0 was the last one.
    with pytest.raises(PartitionUnavailableError) as refused:
        await first.produce(batch_of(b"c", producer=(7, 0, 2)))
    assert refused.value.stored is False
    await first.recover()
    assert (await first.produce(batch_of(b"c", producer=(7, 0, 2)))).base_offset == 2
    assert await _values(first) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("verb", ["fetch", "delete records"])
async def test_an_owner_that_is_not_up_to_date_calls_no_offset_of_another_out_of_range(
    verb: str,
) -> None:
    """Consumers jump by that: to the first record, or to the last."""
    segments = MemorySegments()
    first, second = await open_partition(segments), await open_partition(segments)
    await second.produce(batch_of(b"a", b"b", b"c"))
    with pytest.raises(PartitionUnavailableError):
        await (first.fetch(2, 100) if verb == "fetch" else first.delete_records(2))
    assert not first.is_open
    await first.recover()
    assert [r.offset for r in records_in(await first.fetch(2, 100))] == [0, 1, 2]
    assert await first.delete_records(2) == 2
    with pytest.raises(OffsetOutOfRangeError):
        await first.fetch(4, 100)
    with pytest.raises(OffsetOutOfRangeError):
        await first.delete_records(4)


async def test_an_owner_that_does_not_know_of_a_trim_notices_it() -> None:
    segments = MemorySegments()
    first = await open_partition(segments)
    for _ in range(50):
        await first.produce(batch_of(b"v" * 100))
    second = await open_partition(segments)
    await second.delete_records(40)
    with pytest.raises(PartitionUnavailableError):
        await first.fetch(0, 100)
    assert not first.is_open
    await first.recover()
    assert [r.offset for r in await read_all(first)] == list(range(40, 50))


async def _values(partition: Partition) -> list[bytes | None]:
    return [record.value for record in await read_all(partition)]
