"""An operation is judged against everything accepted before it, durable or not; a checkpoint holds all of that."""

from collections.abc import Callable

import pytest

from containers.log.operation_metadata_updater import OperationMetadataUpdater, count_events
from containers.metadata.container_metadata import ContainerMetadata
from containers.metadata.segment_metadata import SegmentMetadata
from containers.operations.snapshot_codec import decode_checkpoint, encode_segment_snapshot
from segmentstore.contracts.errors import SegmentNotFoundError
from segmentstore.contracts.identifiers import EVENT_COUNT, ContainerId
from segmentstore.contracts.segments import AttributeUpdate, AttributeUpdateType

Verb = Callable[[OperationMetadataUpdater, SegmentMetadata, SegmentMetadata], object]

VERBS: dict[str, Verb] = {
    "append": lambda updater, segment, _: updater.accept_append(
        segment, b"x", expected_offset=None, updates=(), seal=False, events=None, now_ms=1
    ),
    "seal": lambda updater, segment, _: updater.accept_seal(segment, now_ms=7),
    "truncate": lambda updater, segment, _: updater.accept_truncate(segment, 3),
    "update attributes": lambda updater, segment, _: updater.accept_attributes(
        segment, [AttributeUpdate(EVENT_COUNT, 5)]
    ),
    "merge into it": lambda updater, segment, other: updater.accept_merge(
        segment, other, updates=(), seal_source=True, now_ms=7
    ),
    "merge it": lambda updater, segment, other: updater.accept_merge(
        other, segment, updates=(), seal_source=True, now_ms=7
    ),
    "delete": lambda updater, segment, _: updater.accept_delete(segment),
}


def two_segments(length: int) -> tuple[OperationMetadataUpdater, SegmentMetadata, SegmentMetadata]:
    metadata = ContainerMetadata(container_id=ContainerId(0))
    segments = [SegmentMetadata(segment_id=metadata.next_segment_id(), name=name) for name in "ab"]
    for segment in segments:
        segment.length = segment.pending_length = length
        metadata.add(segment)
    return OperationMetadataUpdater(metadata=metadata), segments[0], segments[1]


@pytest.mark.parametrize("end", ["delete", "merge it"])
@pytest.mark.parametrize("verb", VERBS)
def test_what_comes_behind_a_delete_or_a_merge_that_is_not_durable_yet_finds_no_segment(
    end: str, verb: str
) -> None:
    updater, segment, other = two_segments(length=10)
    VERBS[end](updater, segment, other)
    number = updater.metadata.sequence_number
    with pytest.raises(SegmentNotFoundError, match=segment.name):
        VERBS[verb](updater, segment, other)
    assert updater.metadata.sequence_number == number, "what is refused got a number"


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "append"])
def test_a_checkpoint_holds_every_change_accepted_since_the_one_before(verb: str) -> None:
    updater, segment, other = two_segments(length=10)
    updater.accept_checkpoint()
    VERBS[verb](updater, segment, other)
    read = ContainerMetadata(container_id=ContainerId(0))
    content = b"".join(updater.accept_checkpoint().payload)
    for given, found in zip(
        (segment, other), decode_checkpoint(read, memoryview(content)), strict=True
    ):
        given.encoded_snapshot = None  # what was kept of it may be old
        assert encode_segment_snapshot(found) == encode_segment_snapshot(given)


@pytest.mark.parametrize("verb", ["seal", "merge into it"])
def test_the_time_of_the_last_change_grows_with_the_clock_and_never_goes_back(verb: str) -> None:
    for before, after in ((3, 7), (9, 9)):
        updater, segment, other = two_segments(length=10)
        segment.pending_last_modified_ms = before
        VERBS[verb](updater, segment, other)
        assert segment.pending_last_modified_ms == after


def test_attributes_that_a_segment_is_made_with_count_at_once() -> None:
    updater, segment, _ = two_segments(length=0)
    updater.accept_map(segment, created=True, attributes=[(EVENT_COUNT, 5)])
    appended = updater.accept_attributes(
        segment, [AttributeUpdate(EVENT_COUNT, 1, AttributeUpdateType.ACCUMULATE)]
    )
    assert appended.attributes == [(EVENT_COUNT, 6)]


def test_an_append_that_sets_the_count_of_events_counts_its_own_behind_that() -> None:
    updater, segment, _ = two_segments(length=0)
    updater.accept_attributes(segment, [AttributeUpdate(EVENT_COUNT, 3)])
    changes = count_events(segment, [(EVENT_COUNT, 10)], 2)
    assert dict(changes)[EVENT_COUNT] == 12


def test_a_source_whose_count_of_events_is_negative_takes_none_away() -> None:
    updater, target, source = two_segments(length=10)
    updater.accept_attributes(target, [AttributeUpdate(EVENT_COUNT, 3)])
    updater.accept_attributes(source, [AttributeUpdate(EVENT_COUNT, -2)])
    merge = updater.accept_merge(target, source, updates=(), seal_source=True, now_ms=1)
    assert dict(merge.attributes)[EVENT_COUNT] == 3
