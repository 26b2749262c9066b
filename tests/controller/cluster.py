"""A store in memory with a controller over it, that can be killed after any step and started again."""

from collections.abc import Sequence
from contextlib import aclosing, suppress
from itertools import pairwise

from segmentstore.codec.controller_records.stream_records import (
    EpochRecord,
    ScalingPolicy,
    StreamConfigurationRecord,
    StreamState,
)
from segmentstore.controller.errors import ScopeNotFoundError
from segmentstore.controller.metadata.metadata_store import PENDING_INDEX, MetadataStore
from segmentstore.controller.scopes import Scopes
from segmentstore.controller.settings import StreamSettings
from segmentstore.controller.streams.repair import Repair
from segmentstore.controller.streams.scaling import replaced_segments
from segmentstore.controller.streams.stream_cuts import SegmentsByKey, lies_behind
from segmentstore.controller.streams.stream_history import StreamHistory, all_scopes
from segmentstore.controller.streams.streams import Streams
from tests.controller.crashing_doors import CrashingSegments, CrashingTables, CrashPlan
from tests.http.memory_segments import MemorySegments
from tests.reference.memory_tables import MemoryTables


class SteppingClock:
    """A wall clock that the test moves."""

    def __init__(self) -> None:
        self.ms = 1_000_000

    def now_ms(self) -> int:
        return self.ms


class Cluster:
    """The state that outlives a controller, and the controller of the moment."""

    def __init__(self, *, settings: StreamSettings | None = None) -> None:
        self.settings = settings or StreamSettings()
        self.memory_segments = MemorySegments()
        self.memory_tables = MemoryTables()
        self.clock = SteppingClock()
        self.plan = CrashPlan()
        self._build()

    def _build(self) -> None:
        self.segments = CrashingSegments(self.memory_segments, self.plan)
        self.tables = CrashingTables(self.memory_tables, self.plan)
        self.metadata = MetadataStore(tables=self.tables)
        self.streams = Streams(
            metadata=self.metadata,
            segments=self.segments,
            wall_clock=self.clock,
            settings=self.settings,
        )
        self.repair = Repair(
            metadata=self.metadata,
            operations=self.streams.operations,
            segments=self.segments,
            steps=self.streams.segments,
            scaling=self.streams.scaling,
        )
        self.scopes = Scopes(
            metadata=self.metadata,
            streams=self.streams,
            wall_clock=self.clock,
            settings=self.settings,
        )

    async def start(self) -> None:
        await self.metadata.start()
        await self.scopes.resume_all()
        await self.resume_operations()

    async def resume_operations(self) -> None:
        """What is under way on streams, in every scope."""
        async with aclosing(all_scopes(self.metadata)) as scopes:
            async for scope in scopes:
                with suppress(ScopeNotFoundError):
                    await self.streams.operations.resume(scope)

    async def restart(self) -> None:
        """Another process over the same store: what was committed is there, nothing else."""
        self.memory_segments = self.memory_segments.restarted()
        self.memory_tables = self.memory_tables.restarted()
        self.plan = CrashPlan()
        self._build()
        await self.start()

    async def create(self, stream: str, *, segments: int = 1, tags: Sequence[str] = ()) -> None:
        """A stream in the scope `s`."""
        await self.streams.create(
            "s",
            stream,
            StreamConfigurationRecord(
                scaling=ScalingPolicy(segment_count_min=segments), tags=tuple(sorted(tags))
            ),
        )

    async def current(self, stream: str) -> list[int]:
        segments = await self.streams.queries.current_segments("s", stream)
        return [segment.segment_id for segment in segments]

    async def append(self, stream: str, segment_id: int, length: int) -> None:
        history = await self.streams.operations.history("s", stream)
        async with self.memory_segments.open_segment(history.segment_name(segment_id)) as segment:
            await segment.append(b"x" * length)

    async def check(self) -> None:
        """Every stream of every scope is whole, settled, and has exactly the segments that it should have."""
        self.memory_tables.check()
        expected: set[str] = set()
        for scope in (await self.scopes.names(after="", count=1000)).names:
            table = await self.metadata.scope_table(scope)
            assert not (await table.names(PENDING_INDEX, count=1)).names, "something is pending"
            for stream in (await self.scopes.streams(scope, after="", count=1000)).names:
                history = StreamHistory(table=table, scope=scope, stream=stream)
                expected |= await self._check_stream(history)
        assert set(self.memory_segments.names()) == expected

    async def _check_stream(self, history: StreamHistory) -> set[str]:
        state = await history.state()
        state.check()
        assert state.state in (StreamState.ACTIVE, StreamState.SEALED), state
        assert state.current_epoch == state.last_epoch, state
        epochs: list[EpochRecord] = []
        async with aclosing(history.epochs(0, state.last_epoch)) as read:
            async for epoch in read:
                epoch.check()
                epochs.append(epoch)
        numbers = [segment.segment_id for epoch in epochs for segment in epoch.segments]
        assert max(number & 0xFFFFFFFF for number in numbers) < state.next_segment_number
        for before, after in pairwise(epochs):
            await self._check_replaced(history, before, after)
        active = epochs[-1].segments
        for segment in active:
            info = await self.memory_segments.info(history.segment_name(segment.segment_id))
            assert info.sealed == (state.state is StreamState.SEALED), segment
        head = await history.head()
        head_segments = SegmentsByKey(await history.segments_of(head))
        return {
            history.segment_name(segment.segment_id)
            for epoch in epochs
            for segment in epoch.segments
            if not lies_behind(segment, head_segments)
        }

    async def _check_replaced(
        self, history: StreamHistory, before: EpochRecord, after: EpochRecord
    ) -> None:
        replaced = replaced_segments(before, after)
        # A repair skips epochs that lost segments have.
        assert replaced or before.segments == after.segments, "an epoch that replaces nothing"
        for segment in replaced:
            sealed = (await history.sealed([segment.segment_id]))[segment.segment_id].record
            assert sealed is not None, segment
            assert sealed.replacing_epoch == after.epoch
            assert sealed.length is not None
            name = history.segment_name(segment.segment_id)
            if name in self.memory_segments.names():
                info = await self.memory_segments.info(name)
                assert info.sealed, name
                assert info.length == sealed.length, name
            successors = await self.streams.queries.successors(
                history.scope, history.stream, segment.segment_id
            )
            assert successors, segment
            for successor in successors:
                assert segment.segment_id in successor.predecessors
                assert successor.segment in after.segments
            covered = sum(
                min(each.segment.high, segment.high) - max(each.segment.low, segment.low)
                for each in successors
            )
            assert abs(covered - (segment.high - segment.low)) < 1e-9
