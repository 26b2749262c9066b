"""Random lives of the writer, and bugs planted into it, each of which they must find."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from containers.writer.backlog import AckCalculator
from containers.writer.publication import PublicationBuilder
from containers.writer.segment_aggregator import SegmentAggregator
from containers.writer.segment_flush import SegmentFlush
from containers.writer.storage_writer import StorageWriter
from segmentstore.contracts.errors import StorageError
from segmentstore.contracts.identifiers import SequenceNumber
from segmentstore.contracts.storage import Publication, SegmentPublication
from tests.containers.writer.random_life import live

SEEDS = 60
SEEDS_PER_BUG = 60


@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_random_life_ends_with_tier_2_equal_to_the_container(seed: int) -> None:
    live(seed)


class WriterThatTruncatesTheLogPastUnflushedAttributes(StorageWriter):
    def _new_ack_calculator(self) -> AckCalculator:
        writer = self

        class BytesOnly(AckCalculator):
            def hold_back(self, lowest_unpublished: SequenceNumber) -> None:
                if writer.statistics().pending_bytes:
                    super().hold_back(lowest_unpublished)

        return BytesOnly(self._consumed_up_to)


class WriterWhoseStorageLengthRunsAhead(StorageWriter):
    async def _hand_over(self, publication: Publication) -> None:
        try:
            await super()._hand_over(publication)
        except StorageError:
            return


class WriterThatPublishesHalfAMerge(StorageWriter):
    class Builder(PublicationBuilder):
        def publications_of(self, flush: SegmentFlush) -> Iterator[SegmentPublication]:
            flush.merged_sources, kept = [], flush.merged_sources
            yield from super().publications_of(flush)
            flush.merged_sources = kept

    def _new_builder(self) -> PublicationBuilder:
        return self.Builder(source=self._source, settings=self._settings, executor=None)


class WriterThatPublishesLiveAttributes(StorageWriter):
    class Builder(PublicationBuilder):
        def publications_of(self, flush: SegmentFlush) -> Iterator[SegmentPublication]:
            for publication in super().publications_of(flush):
                live_values = flush.aggregator.segment.attributes.core()
                record = replace(publication.record, core_attributes=live_values)
                yield replace(publication, record=record)

    def _new_builder(self) -> PublicationBuilder:
        return self.Builder(source=self._source, settings=self._settings, executor=None)


class WriterThatPublishesAnAppendWithoutItsSeal(StorageWriter):
    class Builder(PublicationBuilder):
        def _plan_segment(
            self, aggregator: SegmentAggregator, up_to: SequenceNumber, bytes_max: int
        ) -> SegmentFlush | None:
            return super()._plan_segment(aggregator, SequenceNumber(10**9), bytes_max)

    def _new_builder(self) -> PublicationBuilder:
        return self.Builder(source=self._source, settings=self._settings, executor=None)


class WriterThatPublishesOtherBytes(StorageWriter):
    """A flush that ignores what is truncated, merged or in Tier 2 already is caught by Tier 2; this one is not."""

    class Builder(PublicationBuilder):
        def publications_of(self, flush: SegmentFlush) -> Iterator[SegmentPublication]:
            for item in flush.slices():
                if item.length > 100:
                    item.views = [bytes(item.length)]
            yield from super().publications_of(flush)

    def _new_builder(self) -> PublicationBuilder:
        return self.Builder(source=self._source, settings=self._settings, executor=None)


@pytest.mark.parametrize(
    "kind",
    [
        WriterThatTruncatesTheLogPastUnflushedAttributes,
        WriterWhoseStorageLengthRunsAhead,
        WriterThatPublishesHalfAMerge,
        WriterThatPublishesLiveAttributes,
        WriterThatPublishesAnAppendWithoutItsSeal,
        WriterThatPublishesOtherBytes,
    ],
)
def test_h81_a_planted_bug_is_found(kind: type[StorageWriter]) -> None:
    for seed in range(SEEDS_PER_BUG):
        try:
            live(seed, kind)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            return
    pytest.fail(f"{kind.__name__} survived {SEEDS_PER_BUG} lives")
