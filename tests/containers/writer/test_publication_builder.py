"""The bytes of a publication are checked by the batch, two batches at a time."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future

import pytest
from crc32c import crc32c

from containers.container_settings import WriterSettings
from containers.metadata.segment_metadata import SegmentMetadata
from containers.writer.publication import PublicationBuilder
from containers.writer.segment_aggregator import ByteTally, SegmentAggregator
from containers.writer.segment_flush import RunPiece, RunSlice, SegmentFlush
from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.contracts.identifiers import SegmentId, SequenceNumber
from segmentstore.contracts.storage import Publication
from tests.containers.writer.small_container import SmallContainer

BATCH_BYTES = 100
BATCHES = 5


class HeldExecutor(Executor):
    """Does a job when it is told to."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Future[object], Callable[[], object]]] = []

    def submit(self, fn, /, *args, **kwargs):  # type: ignore[no-untyped-def]
        future: Future[object] = Future()
        self.jobs.append((future, lambda: fn(*args, **kwargs)))
        return future

    def work(self, number: int) -> None:
        future, job = self.jobs[number]
        future.set_result(job())


def flush_of(wrong: Sequence[int]) -> SegmentFlush:
    """A slice for each batch; those named have other bytes than were received."""
    slices = []
    for number in range(BATCHES):
        content = bytearray(bytes([number]) * BATCH_BYTES)
        checksum = crc32c(content)
        if number in wrong:
            content[-1] ^= 1
        offset = number * BATCH_BYTES
        views = [bytes(content)]
        slices.append(RunSlice(SegmentId(1), offset, BATCH_BYTES, checksum, 0, 0, views=views))
    segment = SegmentMetadata(segment_id=SegmentId(1), name="a")
    return SegmentFlush(
        aggregator=SegmentAggregator(segment, ByteTally()),
        item_count=BATCHES,
        record=None,
        pieces=[RunPiece(0, slices)],
    )


async def build(executor: Executor, flush: SegmentFlush) -> Publication:
    builder = PublicationBuilder(
        source=SmallContainer(),
        settings=WriterSettings(inline_check_bytes_max=0, check_batch_bytes=BATCH_BYTES),
        executor=executor,
    )
    return await builder.build(
        [flush], highest_segment_id=SegmentId(1), highest_sequence_number=SequenceNumber(1)
    )


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.mark.parametrize("number", range(BATCHES))
async def test_h21_a_wrong_byte_is_found_whichever_batch_it_is_in(number: int) -> None:
    executor = HeldExecutor()
    task = asyncio.create_task(build(executor, flush_of([number])))
    done = 0
    await settle()
    while done < len(executor.jobs):
        assert len(executor.jobs) <= done + 2
        executor.work(done)
        done += 1
        await settle()
    assert task.done()
    with pytest.raises(DataCorruptionError, match=f"offset={number * BATCH_BYTES} "):
        await task


async def test_h53_no_bytes_are_looked_at_any_more_when_the_check_has_failed() -> None:
    executor = HeldExecutor()
    task = asyncio.create_task(build(executor, flush_of([0])))
    await settle()
    executor.work(0)
    await settle()
    was_done = task.done()
    for number in range(1, len(executor.jobs)):
        executor.work(number)
    await settle()
    assert not was_done
    assert len(executor.jobs) == 2
    with pytest.raises(DataCorruptionError):
        await task
