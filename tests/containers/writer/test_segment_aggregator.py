"""Aggregators, folds and the backlog against a plain list of states, without a loop.

A container's history holds the state of every segment after each of its operations. Operations come in any order, a
flush takes any prefix at any time, more operations come while it is in flight, and then it lands or is given up.
Whatever lands is refused by the storage if it does not fit, and compared with the history if it does.
"""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from containers.container_settings import WriterSettings
from containers.metadata.append_run import AppendRun
from containers.metadata.segment_metadata import SegmentMetadata
from containers.operations.operation import MergeOperation, SealOperation, TruncateOperation
from containers.writer.backlog import AckCalculator, Backlog
from containers.writer.publication import PublicationBuilder, check_and_join
from containers.writer.segment_aggregator import ByteTally, SegmentAggregator
from containers.writer.segment_flush import SegmentFlush, fold
from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.contracts.identifiers import SHORT_LIVED, SegmentId, SequenceNumber
from segmentstore.contracts.storage import Publication, SegmentRecord
from tests.containers.writer.memory_storage import MemoryStorage
from tests.containers.writer.small_container import EVENTS, WRITER, SmallContainer
from tests.reference.counted_lines import counted_lines

_NAMES = ("a", "b", "c", "d")


class Bench:
    """A backlog driven by hand."""

    def __init__(self) -> None:
        self.container = SmallContainer()
        self.storage = MemoryStorage()
        self.backlog = Backlog(source=self.container, settings=WriterSettings())
        self.builder = PublicationBuilder(
            source=self.container, settings=WriterSettings(), executor=None
        )
        self.consumed_up_to = SequenceNumber(0)
        self.in_flight: list[SegmentFlush] = []
        self.value = 0

    # --- steps --------------------------------------------------------------------------------

    def operate(self, verb: str, first: str, second: str, number: int) -> None:
        container = self.container
        segment = container.metadata.get(first)
        if segment is None:
            container.create(first, [(EVENTS, number)] if number % 2 else [])
            return
        segment_id = SegmentId(segment.segment_id)
        self.value += 1
        if verb == "append" and not segment.sealed:
            changes = [(EVENTS, self.value), (WRITER, -self.value)] if number % 3 else None
            container.append(segment_id, bytes([number]) * number, changes, seal=number % 7 == 6)
        elif verb == "update":
            container.update(segment_id, [(WRITER, self.value if number % 3 else None)])
        elif verb == "truncate":
            span = segment.length - segment.start_offset
            container.truncate(segment_id, segment.start_offset + span * number // 20)
        elif verb == "delete":
            container.delete(segment_id)
        elif verb == "merge":
            self._merge(segment, second)

    def _merge(self, target: SegmentMetadata, name: str) -> None:
        source = self.container.metadata.get(name)
        if source is None or source is target or target.sealed or source.start_offset:
            return
        if not source.sealed:
            self.container.seal(SegmentId(source.segment_id))
        self.container.merge(SegmentId(target.segment_id), SegmentId(source.segment_id))

    def consume(self, count: int) -> None:
        for item in self.container.log.read_nowait(count):
            self.backlog.consume(item, 0.0)
        self.consumed_up_to = self.container.handed_out_sequence_number
        self.backlog.check()

    def take_off(self, name: str | None, bytes_max: int) -> None:
        """Begin to flush one name's segments, or all."""
        if self.in_flight:
            return
        for aggregator in list(self.backlog._aggregators.values()):
            if aggregator.awaits_removal or name not in (None, aggregator.segment.name):
                continue
            self._resolve(aggregator)
            subject = aggregator.flush_target(bytes_max=bytes_max, depth_max=3, items_max=20)
            count = subject.count_to_take(
                may_exceed=True,
                up_to=self.consumed_up_to,
                bytes_max=bytes_max,
                depth_max=3,
                items_max=20,
            )
            if count:
                flush = fold(subject, count)
                for item in flush.slices():
                    item.fetch(self.container.data)
                assert check_and_join(flush.slices()) is None
                subject.in_flight = flush.item_count
                self.in_flight.append(flush)
        self.backlog.check()

    def _resolve(self, aggregator: SegmentAggregator) -> None:
        for each in [aggregator, *aggregator.sources()]:
            if not each.base_known:
                stored = self.storage.segments.get(each.segment_id)
                covered = each.learn(None if stored is None else stored.record)
                assert not covered

    def land(self) -> None:
        changes = [
            change for flush in self.in_flight for change in self.builder.publications_of(flush)
        ]
        if changes:
            self.storage._land(
                Publication(
                    segments=changes,
                    highest_segment_id=self.container.metadata.highest_segment_id,
                    highest_sequence_number=self.consumed_up_to,
                )
            )
        for flush in self.in_flight:
            self._complete(flush)
        self.in_flight = []
        self.backlog.check()
        self.container.check_stored(self.storage)

    def _complete(self, flush: SegmentFlush) -> None:
        aggregator = flush.aggregator
        record = None if flush.deleted else flush.record
        aggregator.complete(flush.item_count, record, 0.0)
        if record is not None:
            self.container.published(
                aggregator.segment_id,
                storage_length=record.length,
                sealed=record.sealed,
                sequence_number=record.sequence_number,
            )
        for merged_sources in flush.merged_sources:
            self.container.segment_removed(merged_sources.aggregator.segment_id)
        if flush.deleted:
            self.container.segment_removed(aggregator.segment_id)
        self.backlog.drop_if_empty(aggregator)

    def give_up(self) -> None:
        for flush in self.in_flight:
            flush.aggregator.abandon()
        self.in_flight = []
        self.backlog.check()

    def acknowledged(self) -> SequenceNumber:
        calculator = AckCalculator(self.consumed_up_to)
        for aggregator in self.backlog._aggregators.values():
            lowest = aggregator.lowest_number()
            if lowest is not None:
                calculator.hold_back(lowest)
        return calculator.result


_STEPS = st.one_of(
    st.tuples(
        st.sampled_from(["append"] * 5 + ["update", "truncate", "delete", "merge", "merge"]),
        st.sampled_from(_NAMES),
        st.sampled_from(_NAMES),
        st.integers(0, 20),
    ),
    st.tuples(st.just("consume"), st.integers(1, 10)),
    st.tuples(
        st.just("take off"), st.one_of(st.none(), st.sampled_from(_NAMES)), st.integers(1, 80)
    ),
    st.tuples(st.sampled_from(["land", "land", "give up"])),
)


@settings(max_examples=200, deadline=None)
@given(steps=st.lists(_STEPS, max_size=80))
def test_h15_every_prefix_of_a_segments_items_folds_into_the_state_it_had(
    steps: list[tuple[object, ...]],
) -> None:
    bench = Bench()
    acknowledged = SequenceNumber(0)
    for step in steps:
        match step:
            case ("consume", int(count)):
                bench.consume(count)
            case ("take off", str() | None as name, int(bytes_max)):
                bench.take_off(name, bytes_max)
            case ("land",):
                bench.land()
            case ("give up",):
                bench.give_up()
            case (str(verb), str(first), str(second), int(number)):
                bench.operate(verb, first, second, number)
        assert bench.acknowledged() >= acknowledged
        acknowledged = bench.acknowledged()
        bench.container.check_acknowledged(bench.storage, acknowledged)
    bench.land()
    bench.consume(10_000)
    for _ in range(1000):
        if not len(bench.backlog):
            break
        bench.take_off(None, 10_000)
        bench.land()
    bench.container.check_equal(bench.storage)
    assert bench.backlog.total_bytes == 0


@dataclass
class Made:
    aggregator: SegmentAggregator
    segment: SegmentMetadata


def _made(*, length: int = 0, number: int = 0) -> Made:
    segment = SegmentMetadata(segment_id=SegmentId(1), name="a")
    aggregator = SegmentAggregator(segment, ByteTally())
    aggregator.learn(
        SegmentRecord(
            segment_id=SegmentId(1),
            name="a",
            start_offset=0,
            length=length,
            sealed=False,
            last_modified_ms=0,
            sequence_number=SequenceNumber(number),
        )
    )
    return Made(aggregator, segment)


def _run(offset: int, length: int, first: int, last: int) -> AppendRun:
    run = AppendRun(
        segment_id=SegmentId(1),
        offset=offset,
        end=offset + length,
        checksum=0,
        sequence_number=SequenceNumber(first),
        last_modified_ms=0,
    )
    run.last_sequence_number = SequenceNumber(last)
    return run


def test_a_truncation_costs_no_more_where_many_of_a_short_lived_segment_wait() -> None:
    container = SmallContainer()
    backlog = Backlog(source=container, settings=WriterSettings())
    segment_id = container.create("short", [(SHORT_LIVED, 1)])

    def lines_for(truncations: int) -> int:
        for _ in range(truncations):
            container.append(segment_id, b"xy")
            container.truncate(segment_id, container.metadata.by_id[segment_id].length - 1)
        items = container.log.read_nowait(10 * truncations)
        with counted_lines() as lines:
            for item in items:
                backlog.consume(item, 0.0)
        return lines.count

    first = lines_for(500)
    lines_for(4_000)
    assert lines_for(500) < 1.1 * first
    backlog.check()
    length = container.metadata.by_id[segment_id].length
    assert container.skipped_offsets[segment_id] == length - 2


def _count(
    aggregator: SegmentAggregator, *, up_to: int = 99, bytes_max: int, items_max: int = 99
) -> int:
    return aggregator.count_to_take(
        may_exceed=True,
        up_to=SequenceNumber(up_to),
        bytes_max=bytes_max,
        depth_max=10,
        items_max=items_max,
    )


def test_a_prefix_ends_where_its_bytes_end_but_has_at_least_one_item() -> None:
    made = _made()
    made.aggregator.add(_run(0, 60, 1, 1), 0.0)
    made.aggregator.add(_run(60, 60, 3, 3), 0.0)
    made.aggregator.add(_run(120, 500, 5, 5), 0.0)
    assert _count(made.aggregator, bytes_max=130) == 2
    assert _count(made.aggregator, bytes_max=100) == 1
    assert _count(made.aggregator, bytes_max=10) == 1
    assert _count(made.aggregator, up_to=3, bytes_max=1000) == 2
    assert _count(made.aggregator, bytes_max=1000, items_max=2) == 2
    assert _count(made.aggregator, bytes_max=1000, items_max=0) == 1
    assert _count(made.aggregator, up_to=0, bytes_max=1000) == 0


def test_h73_a_prefix_never_ends_between_an_append_and_its_seal() -> None:
    made = _made()
    made.aggregator.add(_run(0, 60, 1, 2), 0.0)
    seal = SealOperation(made.segment)
    seal.sequence_number = SequenceNumber(2)
    made.aggregator.add(seal, 0.0)
    assert _count(made.aggregator, bytes_max=1) == 2


def test_h32_items_that_tier_2_has_are_dropped_and_a_run_it_has_in_part_is_trimmed_unchecked() -> (
    None
):
    made = _made(length=70, number=7)
    made.aggregator.base_known = False
    made.aggregator.add(_run(0, 30, 1, 3), 0.0)
    made.aggregator.add(_run(30, 60, 4, 9), 0.0)
    base = made.aggregator.base
    assert made.aggregator.learn(base) == []
    made.aggregator.check()
    (flushed,) = fold(made.aggregator, 1).slices()
    assert (flushed.owner_offset, flushed.length, flushed.checksum) == (70, 20, None)


@pytest.mark.parametrize(("offset", "first"), [(71, 8), (60, 8), (10, 4)])
def test_h16_bytes_that_do_not_stand_at_the_end_of_tier_2_are_refused(
    offset: int, first: int
) -> None:
    made = _made(length=70, number=7)
    made.aggregator.add(_run(offset, 20, first, 9), 0.0)
    with pytest.raises(DataCorruptionError, match="does not stand at"):
        fold(made.aggregator, 1)


def test_h16_a_truncation_past_the_end_is_refused() -> None:
    made = _made(length=70, number=7)
    truncation = TruncateOperation(made.segment, 71)
    truncation.sequence_number = SequenceNumber(8)
    made.aggregator.add(truncation, 0.0)
    with pytest.raises(DataCorruptionError, match="past the length"):
        fold(made.aggregator, 1)


def test_h18_a_merge_waits_while_its_source_is_in_flight_or_was_not_looked_up() -> None:
    target, source = _made(length=5, number=1), _made()
    source.aggregator.add(_run(0, 10, 2, 2), 0.0)
    target.aggregator.add(_run(5, 10, 3, 3), 0.0)
    merge = MergeOperation(target.segment, source.segment)
    merge.sequence_number = SequenceNumber(4)
    target.aggregator.add_merge(merge, source.aggregator, 0.0)
    assert _count(target.aggregator, bytes_max=100) == 2
    source.aggregator.in_flight = 1
    assert _count(target.aggregator, bytes_max=100) == 1
    source.aggregator.in_flight = 0
    source.aggregator.base_known = False
    assert _count(target.aggregator, bytes_max=100) == 1


def test_h34_an_aggregator_without_work_is_not_kept() -> None:
    bench = Bench()
    for number in range(20):
        bench.container.create(f"s{number}")
    bench.consume(100)
    assert len(bench.backlog) == 20
    bench.take_off(None, 100)
    bench.land()
    assert len(bench.backlog) == 0
