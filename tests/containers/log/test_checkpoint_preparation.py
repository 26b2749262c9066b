"""H29: what a checkpoint needs is encoded beforehand, in slices, while the segments go on changing."""

import asyncio
from itertools import pairwise

from containers.log.checkpoints import PASSES_MAX, SLICE_COUNT, CheckpointPreparation
from containers.metadata.container_metadata import ContainerMetadata
from containers.metadata.segment_metadata import SegmentMetadata
from segmentstore.contracts.identifiers import ContainerId


def changed_segments(count: int) -> tuple[ContainerMetadata, list[SegmentMetadata]]:
    metadata = ContainerMetadata(container_id=ContainerId(0))
    segments = [
        SegmentMetadata(segment_id=metadata.next_segment_id(), name=f"segment-{number}")
        for number in range(count)
    ]
    for segment in segments:
        metadata.add(segment)
    return metadata, segments


def changed_count(segments: list[SegmentMetadata]) -> int:
    return sum(segment.encoded_snapshot is None for segment in segments)


async def test_h29_changed_segments_are_encoded_a_slice_per_turn() -> None:
    metadata, segments = changed_segments(3 * SLICE_COUNT + 1)
    done = asyncio.Event()
    preparation = CheckpointPreparation(metadata=metadata, done=done.set)
    preparation.start()
    preparation.start()
    left = [changed_count(segments)]
    while not done.is_set():
        await asyncio.sleep(0)
        left.append(changed_count(segments))
    assert left[-1] == 0
    assert all(before - after <= SLICE_COUNT for before, after in pairwise(left))


async def test_h29_what_one_slice_would_do_is_left_to_the_checkpoint() -> None:
    metadata, segments = changed_segments(SLICE_COUNT)
    done = asyncio.Event()
    preparation = CheckpointPreparation(metadata=metadata, done=done.set)
    preparation.start()
    assert not done.is_set()  # its caller is not called back in the same stretch
    await asyncio.sleep(0)
    assert done.is_set()
    assert changed_count(segments) == SLICE_COUNT


async def test_h29_what_changes_meanwhile_is_encoded_again_as_long_as_that_helps() -> None:
    metadata, segments = changed_segments(10 * SLICE_COUNT)
    done = asyncio.Event()
    preparation = CheckpointPreparation(metadata=metadata, done=done.set)
    preparation.start()
    turn = 0
    each = SLICE_COUNT // 4
    while not done.is_set():
        await asyncio.sleep(0)
        for number in range(each):  # a quarter as fast as they are encoded
            segments[(turn * each + number) % len(segments)].encoded_snapshot = None
        turn += 1
    assert changed_count(segments) <= 2 * SLICE_COUNT


async def test_h29_segments_that_change_all_the_time_do_not_put_a_checkpoint_off_for_ever() -> None:
    metadata, segments = changed_segments(5 * SLICE_COUNT)
    done = asyncio.Event()
    preparation = CheckpointPreparation(metadata=metadata, done=done.set)
    preparation.start()
    turns = 0
    while not done.is_set():
        await asyncio.sleep(0)
        for segment in segments:
            segment.encoded_snapshot = None
        turns += 1
    assert turns <= (PASSES_MAX + 1) * 5


async def test_a_container_that_ends_is_not_called_back() -> None:
    metadata, _ = changed_segments(2 * SLICE_COUNT)
    calls: list[None] = []
    preparation = CheckpointPreparation(metadata=metadata, done=lambda: calls.append(None))
    preparation.start()
    preparation.stop()
    for _ in range(10):
        await asyncio.sleep(0)
    assert calls == []


async def test_h29_all_are_encoded_before_the_first_checkpoint() -> None:
    metadata, segments = changed_segments(2 * SLICE_COUNT + 5)
    preparation = CheckpointPreparation(metadata=metadata, done=lambda: None)
    await preparation.encode_all()
    assert changed_count(segments) == 0
