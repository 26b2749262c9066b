"""From operations to frames and back: whatever the sizes, the same records come out, and damage is found."""

import struct
from collections import deque
from random import Random

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from containers.log.data_frame import (
    FRAME_HEADER_BYTES,
    DataFrameBuilder,
    FrameInFlight,
    RecordStream,
    decode_frame,
)
from containers.log.log_truncation import TruncationMarkers
from containers.metadata.segment_metadata import SegmentMetadata
from containers.operations.operation import (
    AppendOperation,
    Barrier,
    MetadataCheckpointOperation,
    Operation,
    SealOperation,
)
from containers.operations.record_codec import decode_record, encode_record
from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.contracts.identifiers import Epoch, LogAddress, SegmentId, SequenceNumber

SEGMENT = SegmentMetadata(segment_id=SegmentId(1), name="s")


def operations_of(sizes: list[int]) -> list[Operation]:
    made: list[Operation] = []
    for number, size in enumerate(sizes, start=1):
        operation: Operation
        if size < 0:
            operation = MetadataCheckpointOperation([bytes([number % 256]) * -size])
        else:
            operation = AppendOperation(SEGMENT, bytes([number % 256]) * size)
        operation.sequence_number = SequenceNumber(number)
        made.append(operation)
    return made


def frames_of(
    operations: list[Operation], *, entry_bytes_max: int, operations_max: int = 1000, epoch: int = 1
) -> list[FrameInFlight]:
    builder = DataFrameBuilder(
        epoch=Epoch(epoch), entry_bytes_max=entry_bytes_max, operations_max=operations_max
    )
    queue = deque(operations)
    frames: list[FrameInFlight] = []
    while queue or builder.has_rest:
        frame = builder.build(queue)
        assert frame is not None
        frames.append(frame)
    return frames


def entry_of(frame: FrameInFlight) -> memoryview:
    return memoryview(b"".join(frame.buffers))


def records_of(frames: list[FrameInFlight]) -> list[bytes]:
    stream = RecordStream()
    return [
        bytes(view) for frame in frames for view in stream.records(decode_frame(entry_of(frame)))
    ]


@settings(max_examples=200)
@given(
    sizes=st.lists(st.integers(-300, 700), min_size=1, max_size=40),
    entry_bytes_max=st.integers(FRAME_HEADER_BYTES + 1, 600),
    operations_max=st.integers(1, 10),
)
def test_records_come_out_of_frames_as_they_went_in(
    sizes: list[int], entry_bytes_max: int, operations_max: int
) -> None:
    operations = operations_of(sizes)
    frames = frames_of(operations, entry_bytes_max=entry_bytes_max, operations_max=operations_max)

    assert records_of(frames) == [b"".join(encode_record(operation)) for operation in operations]
    assert all(len(entry_of(frame)) <= entry_bytes_max for frame in frames)
    completed = [operation for frame in frames for operation in frame.completed]
    assert completed == operations


def test_a_large_body_goes_to_the_log_without_a_copy() -> None:
    body = bytes(100_000)
    operation = AppendOperation(SEGMENT, body)
    (frame,) = frames_of([operation], entry_bytes_max=1 << 20)
    assert any(buffer is body for buffer in frame.buffers)


def test_h23_a_frame_holds_a_bounded_number_of_operations() -> None:
    frames = frames_of(operations_of([1] * 100), entry_bytes_max=1 << 20, operations_max=30)
    assert [len(frame.completed) for frame in frames] == [30, 30, 30, 10]


def test_h30_a_frames_marker_is_the_last_operation_started_not_completed() -> None:
    frames = frames_of(operations_of([10, 500, 10]), entry_bytes_max=FRAME_HEADER_BYTES + 200)
    assert [operation.sequence_number for operation in frames[0].completed] == [1]
    assert frames[0].last_started == 2


def test_h30_truncating_at_a_checkpoint_keeps_every_frame_it_touches() -> None:
    # The checkpoint (number 3) begins in the middle of a frame and spans several.
    frames = frames_of(operations_of([50, 50, -400, 50]), entry_bytes_max=FRAME_HEADER_BYTES + 200)
    markers = TruncationMarkers()
    for place, frame in enumerate(frames, start=1):
        markers.add_frame(frame.last_started, LogAddress(place))
    markers.add_truncation_point(SequenceNumber(3))

    address = markers.address_before(SequenceNumber(3))
    kept = frames[address or 0 :]

    numbers = [decode_record(memoryview(record)).sequence_number for record in records_of(kept)]
    assert 3 in numbers
    assert numbers == sorted(numbers)


@given(
    sizes=st.lists(st.integers(-200, 200), min_size=3, max_size=30),
    entry_bytes_max=st.integers(FRAME_HEADER_BYTES + 20, 300),
    skipped=st.integers(0, 20),
)
def test_h30_reading_from_any_frame_on_gives_whole_records_only(
    sizes: list[int], entry_bytes_max: int, skipped: int
) -> None:
    operations = operations_of(sizes)
    frames = frames_of(operations, entry_bytes_max=entry_bytes_max)
    whole = [b"".join(encode_record(operation)) for operation in operations]

    kept = frames[min(skipped, len(frames) - 1) :]
    records = records_of(kept)

    assert records == whole[len(whole) - len(records) :]


def test_a_record_that_its_epoch_never_finished_is_dropped() -> None:
    first = frames_of(operations_of([50, 300]), entry_bytes_max=FRAME_HEADER_BYTES + 150)
    second = frames_of(operations_of([20]), entry_bytes_max=1000, epoch=2)
    records = records_of([*first[:2], *second])
    assert [len(decode_record(memoryview(record)).data) for record in records] == [50, 20]


def test_a_gap_between_frames_is_corruption() -> None:
    frames = frames_of(operations_of([50] * 6), entry_bytes_max=FRAME_HEADER_BYTES + 120)
    with pytest.raises(DataCorruptionError, match="gap"):
        records_of([frames[0], frames[2]])


def test_an_older_epoch_behind_a_newer_one_is_corruption() -> None:
    new = frames_of(operations_of([10]), entry_bytes_max=1000, epoch=2)
    old = frames_of(operations_of([10]), entry_bytes_max=1000, epoch=1)
    with pytest.raises(DataCorruptionError):
        records_of([*new, *old])


def of_version_1(entry: bytes) -> bytes:
    """The same frame as it was written when the checksum covered the payload, too."""
    checked = entry[8:]
    return struct.pack("<HBBI", 0x4644, 1, 0, crc32c(checked)) + checked


def require_every_flipped_bit_found(entry: bytes, *, bits: int) -> None:
    random = Random(1)
    for _ in range(2000):
        damaged = bytearray(entry)
        bit = random.randrange(bits)
        damaged[bit // 8] ^= 1 << (bit % 8)
        with pytest.raises(DataCorruptionError):
            decode_frame(memoryview(damaged))


def test_every_single_flipped_bit_of_a_header_is_found() -> None:
    (frame,) = frames_of(operations_of([40, 40]), entry_bytes_max=1000)
    require_every_flipped_bit_found(bytes(entry_of(frame)), bits=FRAME_HEADER_BYTES * 8)


def test_a_frame_of_version_1_is_read_and_every_flipped_bit_of_it_is_found() -> None:
    (frame,) = frames_of(operations_of([40, 40]), entry_bytes_max=1000)
    old = of_version_1(bytes(entry_of(frame)))
    assert decode_frame(memoryview(old)) == decode_frame(entry_of(frame))
    require_every_flipped_bit_found(old, bits=len(old) * 8)


def test_a_frame_of_appends_may_not_use_the_reserve_and_one_that_frees_space_may() -> None:
    (append,) = frames_of(operations_of([10]), entry_bytes_max=1000)
    (seal,) = frames_of([SealOperation(SEGMENT)], entry_bytes_max=1000)
    assert not append.internal
    assert seal.internal


def test_a_barrier_stays_between_the_operations_it_came_between() -> None:
    before, after = operations_of([10, 10])
    barrier = Barrier(SEGMENT)
    (frame,) = frames_of([before, barrier, after], entry_bytes_max=1000)
    assert frame.completed == [before, barrier, after]


def test_a_barrier_without_anything_before_it_stays_in_the_queue() -> None:
    builder = DataFrameBuilder(epoch=Epoch(1), entry_bytes_max=1000, operations_max=10)
    queue: deque[Operation] = deque([Barrier(SEGMENT)])
    assert builder.build(queue) is None
    assert len(queue) == 1
