"""Appends that are replayed together come to what each by itself comes to."""

from collections.abc import Callable
from random import Random

import pytest

from containers.log.in_memory_log import InMemoryLog
from containers.metadata.append_run import RUN_BYTES_MAX, AppendRun
from containers.metadata.container_metadata import ContainerMetadata
from containers.metadata.segment_metadata import SegmentMetadata
from containers.operations.operation import AppendOperation, Operation
from containers.operations.record_codec import LENGTH_FIELD_BYTES, encode_record
from containers.recovery.replay import Replay
from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.contracts.identifiers import (
    EVENT_COUNT,
    ContainerId,
    SegmentId,
    SequenceNumber,
)
from tests.containers.reading.read_index_bench import MIB, ReadIndexBench

SEGMENTS = 4


class ReplayBench:
    """A replay that has seen a checkpoint of some empty segments."""

    def __init__(
        self, *, budget_bytes: int = 8 * MIB, published: int = 0, stored_bytes: int = 0
    ) -> None:
        """Tier 2 has the last segment up to operation `published`, which is `stored_bytes` of it."""
        self.index = ReadIndexBench(budget_bytes=budget_bytes).container
        self.metadata = ContainerMetadata(container_id=ContainerId(0))
        self.memory_log = InMemoryLog(metadata=self.metadata)
        self.replay = Replay(
            metadata=self.metadata,
            memory_log=self.memory_log,
            read_index=self.index,
            storage_known=True,
        )
        self.replay.checkpoint_seen = True
        for number in range(1, SEGMENTS + 1):
            segment = SegmentMetadata(segment_id=SegmentId(number), name=f"s{number}")
            if number == SEGMENTS:
                segment.published_sequence_number = SequenceNumber(published)
                segment.storage_length = stored_bytes
            self.metadata.add(segment)
            self.index.open(segment)

    def one_by_one(self, payload: bytes) -> None:
        view, position = memoryview(payload), 0
        while position < len(view):
            position = self._one(view, position)

    def together(self, payload: bytes) -> None:
        view, position = memoryview(payload), 0
        while position < len(view):
            taken = self.replay.append_records(view, position)
            position = taken if taken != position else self._one(view, position)

    def _one(self, view: memoryview, position: int) -> int:
        head = view[position : position + LENGTH_FIELD_BYTES]
        end = position + LENGTH_FIELD_BYTES + int.from_bytes(head, "little")
        self.replay.append_record(view[position:end])
        return end

    def state(self) -> list[object]:
        self.memory_log.check()
        self.index.check()
        found: list[object] = [
            self.replay.highest_sequence_number,
            self.replay.operations,
            self.replay.data_bytes,
            self.replay.overlap.by_segment,
        ]
        for segment in self.metadata.by_id.values():
            found.append(repr(segment))
            found.append((segment.last_sequence_number, segment.last_modified_ms))
            found.append(segment.attributes.core())
            found.append(segment.read_index.read_cached(0, segment.length))
        found += [item_state(item) for item in self.memory_log.items()]
        return found


def item_state(item: AppendRun | Operation) -> object:
    if not isinstance(item, AppendRun):
        return (type(item), item.sequence_number)
    slots = (name for kind in type(item).__mro__ for name in getattr(kind, "__slots__", ()))
    return {name: getattr(item, name) for name in slots}


class RecordMaker:
    """Records as the container writes them."""

    def __init__(self) -> None:
        self.number = 0
        self.lengths = dict.fromkeys(range(1, SEGMENTS + 1), 0)
        self._events = dict.fromkeys(self.lengths, 0)

    def append(
        self,
        segment_id: int,
        data: bytes,
        *,
        events: int | None = None,
        seal: bool = False,
        change: Callable[[AppendOperation], None] | None = None,
    ) -> bytes:
        self.number += 1
        segment = SegmentMetadata(segment_id=SegmentId(segment_id), name="")
        operation = AppendOperation(segment, data)
        operation.sequence_number = SequenceNumber(self.number)
        operation.offset = self.lengths[segment_id]
        operation.last_modified_ms = 1_000 + self.number // 3
        operation.seal = seal
        if events is not None:
            self._events[segment_id] += events
            operation.events = events
            operation.attributes = [(EVENT_COUNT, self._events[segment_id])]
        self.lengths[segment_id] += len(data)
        if change is not None:
            change(operation)
        return b"".join(encode_record(operation))


def random_records(random: Random, maker: RecordMaker, count: int) -> bytes:
    records: list[bytes] = []
    for _ in range(count):
        segment_id = random.randint(1, SEGMENTS - 1 if random.random() < 0.5 else SEGMENTS)
        size = random.choice((0, 1, 100, 100, 100, 3_000, 5_000, 70_000))
        events = 1 if size >= 8 and random.random() < 0.1 else None
        records.append(maker.append(segment_id, random.randbytes(size), events=events))
    return b"".join(records)


@pytest.mark.parametrize("seed", range(12))
async def test_together_they_come_to_what_each_by_itself_comes_to(seed: int) -> None:
    random = Random(seed)
    maker = RecordMaker()
    payload = random_records(random, maker, 150 if seed % 3 == 0 else 0)
    published, stored_bytes = maker.number, maker.lengths[SEGMENTS]
    payload += random_records(random, maker, 200) + maker.append(1, b"the end", seal=True)
    states: list[list[object]] = []
    for apply in (ReplayBench.one_by_one, ReplayBench.together):
        bench = ReplayBench(
            budget_bytes=(32 if seed % 2 else 64) * MIB,
            published=published,
            stored_bytes=stored_bytes,
        )
        apply(bench, payload)
        states.append(bench.state())
    assert states[0] == states[1]


async def test_plain_appends_of_several_segments_are_taken_in_one_call() -> None:
    maker = RecordMaker()
    payload = b"".join(maker.append(1 + n % SEGMENTS, b"x" * 100) for n in range(1000))
    bench = ReplayBench()
    assert bench.replay.append_records(memoryview(payload), 0) == len(payload)
    assert len(bench.memory_log) == SEGMENTS


async def test_h38_nothing_is_taken_that_might_not_fit_into_memory() -> None:
    maker = RecordMaker()
    payload = b"".join(maker.append(1, b"x" * 4000) for _ in range(300))
    bench = ReplayBench(budget_bytes=2 * MIB)
    assert bench.replay.append_records(memoryview(payload), 0) == 0
    assert bench.state() == ReplayBench(budget_bytes=2 * MIB).state()


async def test_a_run_ends_where_it_would_have_ended_before_the_crash() -> None:
    maker = RecordMaker()
    payload = b"".join(maker.append(1, b"x" * 1000) for _ in range(900))
    bench = ReplayBench()
    bench.together(payload)
    ends = [item.end for item in bench.memory_log.items() if isinstance(item, AppendRun)]
    assert ends == [263_000, 525_000, 787_000, 900_000]
    assert all(end % RUN_BYTES_MAX < 1000 for end in ends[:-1])


def _wrong_offset(operation: AppendOperation) -> None:
    operation.offset += 1


def _wrong_number(operation: AppendOperation) -> None:
    operation.sequence_number = SequenceNumber(operation.sequence_number - 1)


def _unknown_segment(operation: AppendOperation) -> None:
    operation.segment.segment_id = SegmentId(99)


@pytest.mark.parametrize("change", [_wrong_offset, _wrong_number, _unknown_segment])
@pytest.mark.parametrize("segment_id", [1, 2])
async def test_a_record_that_does_not_fit_is_found_among_others(
    change: Callable[[AppendOperation], None], segment_id: int
) -> None:
    maker = RecordMaker()
    good = [maker.append(1, b"good"), maker.append(1, b"good")]
    bad = maker.append(segment_id, b"bad", change=change)
    behind = maker.append(3, b"behind")
    bench = ReplayBench()
    with pytest.raises(DataCorruptionError):
        bench.together(b"".join([*good, bad, behind]))
    assert bench.replay.operations == len(good)
    assert bench.metadata.by_id[SegmentId(3)].length == 0


async def test_a_record_whose_lengths_contradict_each_other_is_found_among_others() -> None:
    maker = RecordMaker()
    good, bad = maker.append(1, b"good"), bytearray(maker.append(1, b"bad"))
    bad[LENGTH_FIELD_BYTES + 36] += 1  # the data's length, behind the time
    bench = ReplayBench()
    with pytest.raises(DataCorruptionError):
        bench.together(good + bad + maker.append(1, b"more"))
    assert bench.replay.operations == 1
