"""After a recovery from Tier 2 alone: makes the segments agree with the records that name them (H78).

Containers reach Tier 2 at different moments. A record may name a segment that never got there, and a segment may have
got there whose record did not.

| found | done |
|---|---|
| a segment that its stream lists is missing | created empty; sealed if something replaced it or the stream is sealed |
| the head lies behind the end of a segment | the head moves to that end |
| a segment that no stream lists | reported, nothing is deleted; its number is not given again |

Operations under way are driven to their end afterwards, by the controller's start; open transactions end with their
leases.

Invariant: repairing twice finds nothing to do the second time.
"""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from itertools import groupby

from segmentstore.codec.controller_records.scope_records import SegmentNumberRecord
from segmentstore.codec.controller_records.stream_records import (
    StreamSegment,
    StreamState,
    StreamStateRecord,
    TruncationRecord,
)
from segmentstore.codec.stream_names import TABLE_SUFFIX, SegmentName, parse_segment
from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.contracts.segments import SegmentApi, SegmentProperties
from segmentstore.controller.errors import ScopeNotFoundError
from segmentstore.controller.metadata.batch import Batch
from segmentstore.controller.metadata.metadata_store import (
    PENDING_INDEX,
    MetadataStore,
)
from segmentstore.controller.streams.stream_cuts import lies_behind
from segmentstore.controller.streams.stream_history import (
    DELETED_NUMBERS_KEY,
    STREAMS_INDEX,
    StreamHistory,
    all_scopes,
    deleted_number_key,
    state_key,
    truncation_key,
)
from segmentstore.controller.streams.stream_operations import StreamOperations
from segmentstore.controller.streams.stream_segments import StreamSegments

_PAGE = 500
_NUMBERS_USED_UP_MAX = 1 << 30
"""No stream comes so far; a name with a higher number was made up, and must not leave a stream without numbers."""
STRANGERS_MAX = 10_000
"""Strangers that a report names; further ones are only counted."""


@dataclass(slots=True)
class RepairReport:
    """What was found and done."""

    created: list[str] = field(default_factory=list)
    moved_heads: list[str] = field(default_factory=list)
    """Streams whose head moved."""
    ended_transactions: list[str] = field(default_factory=list)
    """Streams and ids of transactions that were to be committed, to epochs that are lost; they end as aborted."""
    strangers: list[str] = field(default_factory=list)
    stranger_count: int = 0


class Repair:
    """Goes through all streams once, then through all segments."""

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        operations: StreamOperations,
        segments: SegmentApi,
        steps: StreamSegments,
    ) -> None:
        self._metadata = metadata
        self._operations = operations
        self._segments = segments
        self._steps = steps

    async def repair_all(self) -> RepairReport:
        """Before the controller's start. Raises what the doors raise; begin again then."""
        report = RepairReport()
        async with aclosing(self._streams()) as streams:
            async for scope, stream in streams:
                await self._repair(scope, stream, report)
        await self._report_strangers(report)
        return report

    async def _streams(self) -> AsyncGenerator[tuple[str, str], None]:
        """Every stream that has a state record, some of them twice."""
        async with aclosing(all_scopes(self._metadata)) as scopes:
            async for scope in scopes:
                for index in (STREAMS_INDEX, PENDING_INDEX):
                    table = await self._metadata.scope_table(scope)
                    async with aclosing(table.all_names(index, per_read=_PAGE)) as names:
                        async for stream in names:
                            yield scope, stream

    async def _repair(self, scope: str, stream: str, report: RepairReport) -> None:
        async with self._operations.unsettled(scope, stream) as history:
            state = (await history.any_state()).record
            if state is None or state.state is StreamState.DELETING:
                return
            head = await history.head()
            head_segments = await history.segments_of(head)
            first = min(segment.creation_epoch for segment in head_segments)
            chunk: list[StreamSegment] = []
            async with aclosing(history.segments_born(first, state.last_epoch)) as segments:
                async for segment in segments:
                    if lies_behind(segment, head_segments):
                        continue
                    chunk.append(segment)
                    if len(chunk) >= _PAGE:
                        await self._create_missing(history, state, chunk, report)
                        chunk = []
            await self._create_missing(history, state, chunk, report)
            await self._move_head(history, head, report)

    async def _create_missing(
        self,
        history: StreamHistory,
        state: StreamStateRecord,
        segments: list[StreamSegment],
        report: RepairReport,
    ) -> None:
        names = [history.segment_name(segment.segment_id) for segment in segments]
        infos = await self._steps.info(names)
        missing = [segment for segment, info in zip(segments, infos, strict=True) if info is None]
        if not missing:
            return
        sealed = await history.sealed([segment.segment_id for segment in missing])
        created = [history.segment_name(segment.segment_id) for segment in missing]
        await self._steps.create(created)
        await self._steps.seal(
            [
                history.segment_name(segment_id)
                for segment_id, replaced in sealed.items()
                if replaced.record is not None or state.state is StreamState.SEALED
            ]
        )
        report.created += created

    async def _move_head(
        self, history: StreamHistory, head: Mapping[int, int], report: RepairReport
    ) -> None:
        known = await history.table.read(truncation_key(history.stream))
        if known.record is None:
            return
        infos = await self._steps.info([history.segment_name(each) for each in head])
        reachable = {
            segment_id: min(offset, info.length if info is not None else 0)
            for (segment_id, offset), info in zip(head.items(), infos, strict=True)
        }
        if reachable == dict(head):
            return
        batch = Batch()
        batch.put(
            truncation_key(history.stream),
            TruncationRecord(reachable, known.record.previous_head),
            known,
        )
        await history.table.commit(batch)
        report.moved_heads.append(history.name)

    async def _report_strangers(self, report: RepairReport) -> None:
        after = ""
        while True:
            page = await self._segments.list_segments(start_after=after, limit=_PAGE)
            parsed = [name for each in page if (name := _stream_segment(each)) is not None]
            for (scope, stream), names in groupby(
                parsed, key=lambda name: (name.scope, name.stream)
            ):
                await self._compare(scope, stream, list(names), report)
            if len(page) < _PAGE:
                return
            after = page[-1].name

    async def _compare(
        self, scope: str, stream: str, names: list[SegmentName], report: RepairReport
    ) -> None:
        known: set[int] = set()
        try:
            history = await self._operations.history(scope, stream)
        except ScopeNotFoundError:
            history = None
        state = (await history.any_state()).record if history is not None else None
        if history is not None and state is not None:
            for number in sorted({name.creation_epoch for name in names}):
                if number <= state.last_epoch:
                    epoch = await history.epoch(number)
                    known |= {segment.segment_id for segment in epoch.segments}
        strangers = [name.name for name in names if name.segment_id not in known]
        report.stranger_count += len(strangers)
        report.strangers += strangers[: STRANGERS_MAX - len(report.strangers)]
        numbers = [name.number for name in names if name.segment_id not in known]
        used = [number for number in numbers if number < _NUMBERS_USED_UP_MAX]
        if used:
            await self._use_up_numbers(scope, stream, max(used))

    async def _use_up_numbers(self, scope: str, stream: str, number: int) -> None:
        """No new segment of the stream, or of a later one of its name, gets this number or a lower one.

        It would have the name of a segment that is there, and take its bytes over.
        """
        after = SegmentNumberRecord(number + 1)
        try:
            async with self._operations.unsettled(scope, stream) as history:
                table = history.table
                state = await history.any_state()
                batch = Batch()
                if state.record is not None:
                    if state.record.next_segment_number <= number:
                        record = replace(state.record, next_segment_number=number + 1)
                        batch.put(state_key(stream), record, state)
                else:
                    for key in (deleted_number_key(stream), DELETED_NUMBERS_KEY):
                        known = await table.read(key)
                        if known.record is None or known.record.number <= number:
                            batch.put(key, after, known)
                if batch.changes:
                    await table.commit(batch)
        except ScopeNotFoundError:
            # A scope that is created again finds its old table, or begins with nothing.
            return


def _stream_segment(segment: SegmentProperties) -> SegmentName | None:
    """The name of a stream's own segment; None for tables, transactions, transients and names of others."""
    try:
        name = parse_segment(segment.name)
    except InvalidRequestError:
        return None
    if name.stream.endswith(TABLE_SUFFIX) or name.parent != name:
        return None
    return name
