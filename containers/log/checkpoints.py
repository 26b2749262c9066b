"""Metadata checkpoints: when the next one is due (`CheckpointPolicy`), and what is encoded for it beforehand.

A checkpoint costs its own bytes, and a log that is not truncated costs recovery time and disk. It is due after
`bytes_min` bytes and at least ten times the size of the last one, or after `operations_max` operations, or after as
many frames as cost more to read than the checkpoint: `frames_min`, and one for each `bytes_for_a_frame` of the last
one. Checkpoints alone never make one due. operation_processor.py asks when it is due, and takes it; another one comes
when everything is in Tier 2, so that an idle log has nothing else (writer_source.py).

A checkpoint is the state of one moment, so it is taken without giving the loop back. What can be done before is done
before, by `CheckpointPreparation`: every segment that changed since the last checkpoint is encoded again, a slice per
turn of the loop. Those that change meanwhile have to be encoded once more; passes are repeated as long as each leaves
clearly less than the one before. Where so few have changed that one slice would do, there is nothing to prepare: they
are encoded once, by the checkpoint.

Invariants:
- a slice encodes at most SLICE_COUNT segments, and so does a checkpoint that goes without preparation;
- `done` is called once per start(), at the latest after PASSES_MAX passes, and never after stop();
- what is raised in a turn of the loop, by `done` too, goes to `fail`: a container without checkpoints has to end.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from containers.container_settings import CheckpointSettings
from containers.metadata.container_metadata import ContainerMetadata
from containers.metadata.segment_metadata import SegmentMetadata
from containers.operations.snapshot_codec import encode_segment_snapshot
from segmentstore.runtime.guarded_callback import guarded, raise_again

_CHECKPOINT_SIZE_FACTOR = 10

SLICE_COUNT = 1000
"""Segments encoded in one turn of the loop: about a millisecond."""

PASSES_MAX = 5

_NEXT_PASS_SHARE_MAX = 0.7
"""Another pass is made if the last one left less than this part of what it began with."""


class CheckpointPolicy:
    """Counts what went into the log since the last checkpoint."""

    def __init__(self, settings: CheckpointSettings) -> None:
        self._settings = settings
        self._bytes = 0
        self._operations = 0
        self._frames = 0
        self._size = 0

    def committed(self, *, length: int, operations: int) -> None:
        """Of one frame."""
        self._frames += 1
        self._bytes += length
        self._operations += operations

    def checkpoint_taken(self, size: int) -> None:
        """A checkpoint of that many bytes was numbered; counting begins anew."""
        self._bytes = -size
        self._operations = -1
        self._frames = 0
        self._size = size

    def ignore_operation(self) -> None:
        """The next operation is written for the log's own sake and makes no checkpoint due."""
        self._operations -= 1

    def is_due(self) -> bool:
        settings = self._settings
        if self._operations >= settings.operations_max:
            return True
        if self._frames >= settings.frames_min + self._size // settings.bytes_for_a_frame:
            return True
        return self._bytes >= max(settings.bytes_min, _CHECKPOINT_SIZE_FACTOR * self._size)

    def has_new_operations(self) -> bool:
        """Something besides the checkpoint itself went into the log since."""
        return self._operations > 0


class CheckpointPreparation:
    """Goes before every checkpoint that is due."""

    def __init__(
        self,
        *,
        metadata: ContainerMetadata,
        done: Callable[[], None],
        fail: Callable[[Exception], None] = raise_again,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._metadata = metadata
        self._done = done
        self._run_turn = guarded(self._go_on, fail)
        self._changed: deque[SegmentMetadata] = deque()
        self._pass_count = 0
        self._passes = 0
        self._running = False

    def start(self) -> None:
        """Begin, unless it is under way already."""
        if not self._running:
            self._running = True
            self._passes = 0
            changed = self._list_changed()
            self._begin_pass(changed if len(changed) > SLICE_COUNT else deque())

    def stop(self) -> None:
        """The container ends: nothing is called any more."""
        self._running = False
        self._changed.clear()

    async def encode_all(self) -> None:
        """The same in a coroutine, once: for a container that does not serve yet."""
        self._changed = self._list_changed()
        while self._changed:
            self._encode_slice()
            await asyncio.sleep(0)

    def _list_changed(self) -> deque[SegmentMetadata]:
        segments = self._metadata.by_id.values()
        return deque(segment for segment in segments if segment.encoded_snapshot is None)

    def _begin_pass(self, changed: deque[SegmentMetadata]) -> None:
        self._passes += 1
        self._changed = changed
        self._pass_count = len(changed)
        self._loop.call_soon(self._run_turn)

    def _go_on(self) -> None:
        if not self._running:
            return
        self._encode_slice()
        if self._changed:
            self._loop.call_soon(self._run_turn)
            return
        changed = self._list_changed()
        if (
            len(changed) > SLICE_COUNT
            and len(changed) < _NEXT_PASS_SHARE_MAX * self._pass_count
            and self._passes < PASSES_MAX
        ):
            self._begin_pass(changed)
            return
        self._running = False
        self._done()

    def _encode_slice(self) -> None:
        changed = self._changed
        for _ in range(min(SLICE_COUNT, len(changed))):
            encode_segment_snapshot(changed.popleft())
