"""Reads a range of a partition on an executor: files and batches from Tier 2, the rest from the service.

Each round looks up anew where the offset that comes next lies:

    below the cold end as published   the registered file
    below the published end           the batches in the segment's chunks
    behind                            the service, if it may be asked

Invariants:

- A range that moved while a task runs (batches became a file, a file was replaced) is found where it lies now: what
  vanished is looked up in the newest manifest, in a bounded number of rounds without progress.
- Every offset of the range is passed once, in order; offsets without a record (compaction) are passed over.
- A topic is its id: records of another one that has its name by now are never given out.
- What is not there any more is a DataLossError, or with fail_on_data_loss false a warning and the next record. So is a
  batch that was kept because no reader can read its records, but as a CorruptedDataError.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import Executor
from contextlib import AsyncExitStack, aclosing
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from segmentstore.codec.topic_files import RegisteredFile
from segmentstore.contracts.errors import (
    CorruptedDataError,
    ObjectNotFoundError,
    SegmentNotFoundError,
    SegmentTruncatedError,
    StorageError,
)
from segmentstore.spark.python_worker import run_task
from segmentstore.spark.scan.data_loss import DataLossError, pass_over
from segmentstore.spark.tier2_access import (
    OPEN_ATTEMPTS,
    OPEN_PAUSE_SECONDS,
    open_tier2_reader,
)
from segmentstore.spark.topics.published_partition import PartitionFacts, PublishedPartition
from segmentstore.spark.topics.record_rows import (
    RecordRun,
    RowBuilder,
    runs_of_batches,
)
from segmentstore.spark.topics.topic_catalogue import TopicMissingError
from segmentstore.spark.topics.topic_options import TopicReadOptions
from segmentstore.spark.topics.topic_ranges import TopicRange
from segmentstore.topics.topic_records import topic_id_of_segment

if TYPE_CHECKING:
    from segmentstore.spark.topics.topic_service import TopicService

_LOG = logging.getLogger(__name__)
_FETCH_BYTES: Final = 4 << 20


def read_topic_range(part: TopicRange, options: TopicReadOptions) -> Iterator[pa.RecordBatch]:
    """The rows of one range. Raises DataLossError, StorageError, ClientError."""
    return run_task(lambda executor: _read(part, options, executor))


async def _read(
    part: TopicRange, options: TopicReadOptions, executor: Executor
) -> AsyncGenerator[pa.RecordBatch, None]:
    async with AsyncExitStack() as opened:
        published: PublishedPartition | None = None
        if options.place is not None:
            view = await opened.enter_async_context(
                open_tier2_reader(options.place, executor=executor)
            )
            published = PublishedPartition(
                view,
                topic=part.topic,
                partition=part.index,
                segment_name=part.segment_name,
                executor=executor,
            )
        service = None
        if options.service:
            # Only queries that ask the service need its client library.
            from segmentstore.spark.topics.topic_service import TopicService

            service = await opened.enter_async_context(TopicService(options.service))
        reader = PartitionReader(part, options=options, published=published, service=service)
        async with aclosing(reader.batches()) as batches:
            async for batch in batches:
                yield batch


class PartitionReader:
    """One range, from what is open already."""

    def __init__(
        self,
        part: TopicRange,
        *,
        options: TopicReadOptions,
        published: PublishedPartition | None,
        service: "TopicService | None",
    ) -> None:
        self._part = part
        self._options = options
        self._published = published
        self._service = service
        self._topic_id = topic_id_of_segment(part.segment_name)
        self._rows = RowBuilder(topic=part.topic, partition=part.index, columns=options.columns)
        self._offset = part.start
        """Every offset of the range below it was passed."""
        self._facts: PartitionFacts | None = None
        self._missing: str | None = None
        """What vanished in the last round."""
        self._missing_end = part.end
        """Where what is behind it begins."""

    async def batches(self) -> AsyncGenerator[pa.RecordBatch, None]:
        """The rows. Hold it in `aclosing`. Raises as read_topic_range()."""
        rounds = 0
        while self._offset < self._part.end:
            begun_at = self._offset
            async with aclosing(self._round(is_late=rounds > 0)) as pieces:
                async for runs in pieces:
                    for run in runs:
                        yield self._rows.batch(run)
            rounds += 1
            if self._offset > begun_at:
                rounds, self._missing = 0, None
            if rounds == OPEN_ATTEMPTS:
                self._give_up()
                # Going on behind what is lost: what is there has rounds of its own.
                rounds = 0
            elif rounds and self._published is not None:
                if rounds > 1:
                    # The plan saw more than this process does: volumes are seen up to a second late.
                    await asyncio.sleep(OPEN_PAUSE_SECONDS)
                await self._published.refresh()

    async def _round(self, *, is_late: bool) -> AsyncGenerator[list[RecordRun], None]:
        """From one place, until that ends or has moved away."""
        if self._published is not None:
            try:
                self._facts = facts = await self._published.look()
                if facts is not None and self._offset < facts.end:
                    if self._offset < facts.log_start:
                        self._skip_to(facts.log_start, facts)
                        return
                    is_cold = self._offset < facts.cold_end
                    found = self._of_file(facts) if is_cold else self._of_chunks(facts)
                    async with aclosing(found) as pieces:
                        async for piece in pieces:
                            yield piece
                    if not is_late or self._service is None:
                        return
            except (ObjectNotFoundError, SegmentTruncatedError) as error:
                self._missing = str(error)
                if not is_late or self._service is None:
                    return
            except SegmentNotFoundError:
                # The topic was deleted; the next round sees no partition.
                return
        if self._service is not None and self._offset < self._part.end:
            async with aclosing(self._of_service(self._service)) as pieces:
                async for piece in pieces:
                    yield piece

    async def _of_file(self, facts: PartitionFacts) -> AsyncGenerator[list[RecordRun], None]:
        assert self._published is not None, "a file without Tier 2"
        part = self._part
        file = await self._published.file_at(facts, self._offset)
        if file is None or file.first_offset > self._offset:
            self._missing = f"no file of an offset below the cold end offset={self._offset}"
            self._missing_end = min(part.end, facts.cold_end if file is None else file.first_offset)
            return
        self._missing_end = end = min(part.end, file.end_offset)
        if file.is_batch:
            self._pass_unreadable(file)
            self._offset = end
            return
        blocks = self._published.blocks(
            file,
            self._offset,
            end,
            lowest_time_ms=part.lowest_time_ms,
            highest_time_ms=part.highest_time_ms,
        )
        async with aclosing(blocks) as groups:
            async for group in groups:
                # Blocks of one request together: small Arrow batches cost Spark more a row.
                runs = self._pass(b"".join([block.batches for block in group]), end)
                self._offset = max(self._offset, min(end, group[-1].end_offset))
                yield runs
        self._offset = end

    def _pass_unreadable(self, file: RegisteredFile) -> None:
        """Raises CorruptedDataError, unless the query goes on without what is lost."""
        why = (
            f"a producer wrote records that no reader can read {self._part.name}"
            f" first_offset={file.first_offset} end_offset={file.end_offset}"
        )
        if self._options.fail_on_data_loss:
            raise CorruptedDataError(why)
        _LOG.warning("going on without what cannot be read: %s", why)

    async def _of_chunks(self, facts: PartitionFacts) -> AsyncGenerator[list[RecordRun], None]:
        assert self._published is not None, "chunks without Tier 2"
        offset = self._offset
        self._missing_end = end = min(self._part.end, facts.end)
        place = await self._published.place_of(facts, lambda each: each.offset <= offset)
        batches = self._published.batches(facts, place, offset=offset, end=end)
        async with aclosing(batches) as pieces:
            async for content in pieces:
                yield self._pass(content, end)
        self._offset = end

    async def _of_service(self, service: "TopicService") -> AsyncGenerator[list[RecordRun], None]:
        part = self._part
        empty_end = 0  # the last answer had no record below it
        while self._offset < part.end:
            try:
                fetched = await service.fetch(
                    part.topic, part.index, offset=self._offset, bytes_max=_FETCH_BYTES
                )
                # It was asked by name. Ids never come back, so a topic that is there now was there then.
                is_gone = await self._is_replaced(service)
            except TopicMissingError:
                fetched, is_gone = None, True
            if is_gone:
                self._lose(head=0, tail=0)
                self._offset = part.end
            elif fetched is None:
                await self._skip_to_served(service)
            elif fetched.content:
                empty_end = 0
                yield self._pass(fetched.content, part.end)
            elif fetched.end <= self._offset:
                self._lose(head=self._offset, tail=fetched.end)
                self._offset = part.end
            elif empty_end <= self._offset:
                # A file that is made at this moment may hide records from one look, and no more.
                empty_end = fetched.end
            else:
                # Compaction left no record from there to the end.
                self._offset = min(part.end, empty_end)

    async def _is_replaced(self, service: "TopicService") -> bool:
        """Whether another topic has the name. Raises TopicMissingError, ClientError."""
        for attempt in range(OPEN_ATTEMPTS):
            if attempt:
                # A broker learns up to a second late that a topic was made again: this one may know the old one still.
                await asyncio.sleep(OPEN_PAUSE_SECONDS)
            if await service.topic_id(self._part.topic) == self._topic_id:
                return False
        return True

    def _pass(self, content: bytes, end: int) -> list[RecordRun]:
        """The records of whole batches; reading goes on behind them."""
        start = self._offset
        runs, behind = runs_of_batches(
            content,
            start=start,
            end=end,
            lowest_time_ms=self._part.lowest_time_ms,
            source=self._part.name,
        )
        self._offset = min(end, max(start, behind))
        return runs

    async def _skip_to_served(self, service: "TopicService") -> None:
        """The service says that there is no such offset: it begins, or ends, elsewhere."""
        part = self._part
        try:
            described = await service.described(part.topic)
        except TopicMissingError:
            # It was deleted while it was asked: the next fetch knows.
            return
        if described.topic_id != self._topic_id:
            return
        for each in described.offsets:
            if each.partition == part.index and each.first > self._offset:
                self._lose(head=each.first, tail=each.end)
                self._offset = min(part.end, each.first)
                return
            if each.partition == part.index and self._offset <= each.end:
                # It moved while it was asked: the next fetch knows.
                return
        self._lose(head=0, tail=0)
        self._offset = part.end

    def _skip_to(self, head: int, facts: PartitionFacts) -> None:
        self._lose(head=head, tail=facts.end)
        self._offset = min(self._part.end, head)

    def _give_up(self) -> None:
        """Rounds without progress. Raises StorageError, DataLossError."""
        facts, missing = self._facts, self._missing
        if missing is not None and self._options.fail_on_data_loss:
            raise StorageError(
                f"records were looked up anew and not found in any round {self._part.name}"
                f" offset={self._offset}: {missing}"
            )
        self._lose(
            head=0 if facts is None else facts.log_start, tail=0 if facts is None else facts.end
        )
        self._offset = self._part.end if missing is None else self._missing_end
        self._missing = None

    def _lose(self, *, head: int, tail: int) -> None:
        part = self._part
        loss = DataLossError(part.name, start=part.start, end=part.end, head=head, tail=tail)
        pass_over(loss, fail=self._options.fail_on_data_loss)
