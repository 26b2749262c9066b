"""The read index against plain bytes.

Goal: whatever happens to segments in whatever order, every readable byte reads as it was appended, nothing else is
readable, memory stays in its budget and every waiter ends. Method: hypothesis drives a few segments through stage,
commit, flush, eviction, truncation, seal, merge and deletion in a cache of one MiB, beside a bytearray per segment.
"""

import asyncio
from contextlib import aclosing
from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

from containers.read_index.segment_read_index import SegmentReadIndex
from segmentstore.contracts.errors import (
    CacheFullError,
    SegmentNotFoundError,
    SegmentTruncatedError,
)
from segmentstore.contracts.segments import ReadResultEntryKind
from tests.containers.reading.read_index_bench import (
    MIB,
    ReadIndexBench,
    acknowledge,
    confirmed,
    merge,
    metadata_of,
    publish,
    seal,
    truncate,
)

SEGMENTS_MAX = 6
CHOICE = st.integers(0, 9)
SIZE = st.one_of(st.integers(1, 400), st.integers(1_000, 300_000))
LIKELY = st.sampled_from([True, True, False])
SHARE = st.sampled_from([0.0, 0.01, 0.3, 0.5, 0.97, 1.0, 1.0])


class ModelSegment:
    """What a segment must be."""

    def __init__(self, index: SegmentReadIndex) -> None:
        self.index = index
        self.content = bytearray()
        self.committed = 0
        self.sealed = False
        self.merges: list[tuple[int, int, ModelSegment]] = []
        """Begin, end and source of merges that are not published."""
        self.merged = False

    @property
    def start(self) -> int:
        return self.index.metadata.start_offset

    @property
    def stored(self) -> int:
        return self.index.metadata.storage_length


class ReadIndexMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.random = Random(5)
        self.bench = ReadIndexBench(budget_bytes=MIB)
        self.segments: list[ModelSegment] = []
        self.waiting: list[tuple[asyncio.Task[bytes], ModelSegment, int]] = []
        for size in (100_000, 5_000, 0):
            self.create()
            if size:
                self.append(choice=len(self.segments) - 1, size=size)

    def pick(self, choice: int, *, open_only: bool = False) -> ModelSegment | None:
        found = [s for s in self.segments if not s.merged and not (open_only and s.sealed)]
        if not found:
            self.create()
            return None
        return found[choice % len(found)]

    @rule()
    def create(self) -> None:
        if sum(not segment.merged for segment in self.segments) < SEGMENTS_MAX:
            self.segments.append(ModelSegment(self.bench.open()))

    @rule(choice=CHOICE, size=SIZE)
    def append(self, choice: int, size: int) -> None:
        segment = self.pick(choice, open_only=True)
        if segment is not None:
            self.stage(choice, size)
            self.commit_all(segment)

    @rule(choice=CHOICE, size=SIZE)
    def stage(self, choice: int, size: int) -> None:
        segment = self.pick(choice, open_only=True)
        if segment is None:
            return
        data = self.random.randbytes(size)
        staged_end = segment.index.staged_end
        try:
            segment.index.stage(data)
        except CacheFullError:
            assert segment.index.staged_end == staged_end
            return
        segment.index.metadata.pending_length += size
        segment.content += data

    @rule(choice=CHOICE)
    def commit(self, choice: int) -> None:
        segment = self.pick(choice)
        if segment is not None:
            self.commit_all(segment)

    def commit_all(self, segment: ModelSegment) -> None:
        segment.committed = len(segment.content)
        metadata_of(segment.index).set_length(segment.committed)
        segment.index.appended()

    @rule(choice=CHOICE, share=SHARE)
    def flush(self, choice: int, share: float) -> None:
        segment = self.pick(choice)
        if segment is None:
            return
        limit = segment.merges[0][0] if segment.merges else segment.committed
        end = segment.stored + int((limit - segment.stored) * share)
        publish(self.bench, segment.index, end)
        acknowledge(segment.index, end)

    @rule(choice=CHOICE, read_between=st.booleans(), drop_early=st.booleans())
    def publish_merge(self, choice: int, read_between: bool, drop_early: bool) -> None:
        targets = [s for s in self.segments if s.merges]
        if not targets:
            return
        target = targets[choice % len(targets)]
        begin, end, source = target.merges[0]
        if source.merges:
            # Its own sources leave first.
            target, source = source, source.merges[0][2]
            if source.merges:
                return
            begin, end, _ = target.merges[0]
        target.merges.pop(0)
        tier2 = self.bench.tier2.published
        target_id, source_id = target.index.metadata.segment_id, source.index.metadata.segment_id
        if begin > target.stored:
            publish(self.bench, target.index, begin)
        if source.stored:
            publish(self.bench, source.index)
            acknowledge(source.index)
        tier2[target_id] = tier2.get(target_id, b"") + bytes(source.content)
        tier2.pop(source_id, None)
        if read_between:
            self.read_somewhere()
        if drop_early:
            self.bench.container.remove(source_id)
        acknowledge(target.index, end)
        if read_between:
            self.read_somewhere()
        target.index.complete_merge(source.index)
        self.bench.container.remove(source_id)
        self.segments.remove(source)

    @rule(choice=CHOICE, likely=LIKELY)
    def seal(self, choice: int, likely: bool) -> None:
        segment = self.pick(choice, open_only=True)
        if segment is not None and not likely:
            self.commit_all(segment)
            segment.sealed = True
            seal(segment.index)

    @rule(choice=CHOICE, other=CHOICE)
    def merge(self, choice: int, other: int) -> None:
        target = self.pick(choice, open_only=True)
        source = self.pick(other)
        if target is None or source is None or target is source or source.start:
            return
        if target.committed != len(target.content) or source.committed != len(source.content):
            return
        source.sealed = True
        seal(source.index)
        begin = target.committed
        merge(target.index, source.index)
        source.index.end_reads(SegmentNotFoundError(source.index.metadata.name))
        source.merged = True
        target.content += source.content
        target.committed = len(target.content)
        if source.content:
            target.merges.append((begin, target.committed, source))
        else:
            self.bench.container.remove(source.index.metadata.segment_id)
            self.segments.remove(source)

    @rule(choice=CHOICE, share=SHARE, likely=LIKELY)
    def truncate(self, choice: int, share: float, likely: bool) -> None:
        segment = self.pick(choice)
        if segment is not None and not likely:
            offset = segment.start + int((segment.committed - segment.start) * share)
            truncate(self.bench, segment.index, offset)

    @rule(size=st.integers(1, MIB))
    def evict(self, size: int) -> None:
        self.bench.cache.evict(size)

    @rule(choice=CHOICE, likely=LIKELY)
    def delete(self, choice: int, likely: bool) -> None:
        segment = self.pick(choice)
        if segment is None or segment.merges or likely:
            return
        segment.index.end_reads(SegmentNotFoundError(segment.index.metadata.name))
        self.bench.container.remove(segment.index.metadata.segment_id)
        self.segments.remove(segment)

    @rule(choice=CHOICE, share=SHARE, length=st.integers(1, 400_000), cold=st.booleans())
    def read(self, choice: int, share: float, length: int, cold: bool) -> None:
        segment = self.pick(choice)
        if segment is not None:
            if cold:
                self.bench.cache.evict(MIB)
            offset = segment.start + int((segment.committed - segment.start) * share)
            self.read_and_compare(segment, offset, length)

    @rule(choice=CHOICE, share=SHARE)
    def views_of_unflushed_bytes(self, choice: int, share: float) -> None:
        segment = self.pick(choice)
        if segment is not None and not segment.merges:
            begin = segment.stored + int((len(segment.content) - segment.stored) * share)
            views = segment.index.views(begin, len(segment.content) - begin)
            assert b"".join(views) == segment.content[begin:]

    @rule(choice=CHOICE)
    def wait_at_the_tail(self, choice: int) -> None:
        segment = self.pick(choice)
        if segment is not None:
            offset = segment.committed
            task = self.loop.create_task(segment.index.wait_for_bytes(offset, 1_000))
            self.waiting.append((task, segment, offset))

    @invariant()
    def nothing_is_lost_and_every_waiter_is_answered(self) -> None:
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.run_until_complete(asyncio.sleep(0))
        self.bench.container.check()
        still: list[tuple[asyncio.Task[bytes], ModelSegment, int]] = []
        for task, segment, offset in self.waiting:
            is_gone = segment.merged or segment not in self.segments
            moved = segment.committed > offset or segment.sealed or is_gone
            if not moved:
                assert not task.done()
                still.append((task, segment, offset))
                continue
            try:
                content = self.loop.run_until_complete(asyncio.wait_for(task, 60))
            except SegmentNotFoundError:
                assert is_gone
                continue
            except SegmentTruncatedError:
                assert segment.start > offset
                continue
            assert content == segment.content[offset : offset + len(content)]
            assert content or segment.sealed
        self.waiting = still
        self.read_somewhere()

    def read_somewhere(self) -> None:
        readable = [s for s in self.segments if not s.merged and s.committed > s.start]
        if self.random.random() < 0.3:
            self.bench.cache.evict(self.random.choice([4096, 100_000, MIB]))
        for segment in readable:
            offset = self.random.randrange(segment.start, segment.committed)
            self.read_and_compare(segment, offset, self.random.choice([1, 5_000, 200_000]))

    def read_and_compare(self, segment: ModelSegment, offset: int, length: int) -> None:
        self.loop.run_until_complete(self._read_and_compare(segment, offset, length))

    async def _read_and_compare(self, segment: ModelSegment, offset: int, length: int) -> None:
        expected = segment.content[offset : min(offset + length, segment.committed)]
        cached = segment.index.read_cached(offset, length)
        assert cached is None or cached == expected
        content = b""
        async with aclosing(segment.index.read(offset, length, confirm=confirmed)) as entries:
            async for entry in entries:
                if entry.kind is ReadResultEntryKind.FUTURE:
                    assert not segment.sealed
                    break
                if entry.kind is ReadResultEntryKind.END_OF_SEGMENT:
                    assert segment.sealed
                content += await entry.content()
        assert content == expected

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        self.loop.run_until_complete(self.bench.container.close())
        for task, _, _ in self.waiting:
            results = self.loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
            assert isinstance(results[0], Exception | bytes)
        assert self.bench.memory.occupied_bytes == 0
        self.bench.container.check()
        self.loop.close()


TestReadIndexAgainstPlainBytes = pytest.mark.slow(ReadIndexMachine.TestCase)
TestReadIndexAgainstPlainBytes.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
