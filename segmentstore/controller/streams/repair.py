"""After a recovery from Tier 2 alone: makes the segments agree with the records that name them.

Containers reach Tier 2 at different moments. A record may name a segment that never got there, and a segment may have
got there whose record did not.

| found | done |
|---|---|
| the table of a scope is missing | created empty, and reported: its streams are segments that no stream lists |
| a segment that its stream lists is missing | created empty; sealed if something replaced it or the stream is sealed |
| a segment that was sealed is not, or is shorter | sealed at what is there; the missing bytes are reported |
| the head lies behind the end of a segment | the head moves to that end |
| a segment that no stream lists | reported, nothing is deleted; neither its number nor its epoch is given again |
| a table of records may have lost its last changes | numbers that it may have given are skipped |
| an active segment may have lost its tail | it ends at what is there, and a new epoch goes on in another segment |
| an active segment is sealed: what replaced it is lost | the same |

A segment whose tail is lost must not go on: readers and writers know offsets of bytes that are gone, and others would
get these. One that is sealed takes no bytes, and writers that find no successors take their stream for sealed. The last
two rows take streams on which no operation is under way, so they are a pass of their own (`end_lost_tails`), behind the
controller's start. Two kinds of streams go on in their segments, because their clients know nothing but the active one:
byte streams (no event was ever counted), which are reported unless they are sealed, and internal streams.

Open transactions end with their leases.

Invariant: repairing twice finds nothing to do the second time, if nothing was lost in between.
"""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Final, TypeAlias

from segmentstore.codec.controller_records import record_keys
from segmentstore.codec.controller_records.scope_records import ScopeState, SegmentNumberRecord
from segmentstore.codec.controller_records.stream_records import (
    EpochRecord,
    StreamSegment,
    StreamState,
    StreamStateRecord,
    TruncationRecord,
)
from segmentstore.codec.stream_names import (
    TABLE_SUFFIX,
    SegmentName,
    is_user_name,
    parse_segment,
)
from segmentstore.contracts.errors import InvalidRequestError, SegmentStoreError
from segmentstore.contracts.segments import SegmentApi, SegmentProperties
from segmentstore.controller.errors import ScopeNotFoundError
from segmentstore.controller.metadata.batch import Batch
from segmentstore.controller.metadata.metadata_store import (
    PENDING_INDEX,
    MetadataStore,
    scope_key,
)
from segmentstore.controller.metadata.metadata_table import MetadataTable
from segmentstore.controller.streams.scaling import Scaling
from segmentstore.controller.streams.stream_cuts import SegmentsByKey, lies_behind
from segmentstore.controller.streams.stream_history import (
    DELETED_NUMBERS_KEY,
    EPOCHS_PER_READ,
    STREAMS_INDEX,
    StreamHistory,
    all_scopes,
    epoch_key,
    sealed_key,
    state_key,
    truncation_key,
    use_up_numbers,
)
from segmentstore.controller.streams.stream_operations import StreamOperations
from segmentstore.controller.streams.stream_segments import StreamSegments, event_count

_PAGE = 500
_NUMBERS_USED_UP_MAX = 1 << 30
"""No stream comes so far; a name with a higher number was made up, and must not leave a stream without numbers."""
_EPOCHS_USED_UP_MAX = 1_000
"""So many epochs a stream may have lost; a name with a later one was made up."""
NUMBERS_SKIPPED: Final = 1 << 20
"""More than a stream gives away before its table reaches Tier 2; a stream has numbers for a thousand recoveries."""
STRANGERS_MAX = 10_000
"""Strangers that a report names; further ones are only counted."""


TailIsLost: TypeAlias = Callable[[str], bool]
"""Whether the last changes of the segment or table of this name may be gone: the log of its container is."""


def nothing_is_lost(_: str) -> bool:
    """Every container has the log that it had."""
    return False


@dataclass(slots=True)
class RepairReport:
    """What was found and done."""

    created: list[str] = field(default_factory=list)
    shorter: list[str] = field(default_factory=list)
    """Sealed segments that are shorter than they were, and by how much."""
    ended: list[str] = field(default_factory=list)
    """Active segments that may have lost their tails, or were sealed, and the length at which they ended."""
    byte_segments: list[str] = field(default_factory=list)
    """Those of byte streams, which go on."""
    failures: list[str] = field(default_factory=list)
    """Streams whose segments could not be ended, and why."""
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
        scaling: Scaling,
    ) -> None:
        self._metadata = metadata
        self._operations = operations
        self._segments = segments
        self._steps = steps
        self._scaling = scaling
        self._epochs_used: dict[tuple[str, str], int] = {}
        """The latest epoch of segments that a stream does not list."""

    async def repair_all(self, is_lost: TailIsLost = nothing_is_lost) -> RepairReport:
        """Before the controller's start. Raises what the interfaces raise; begin again then."""
        report = RepairReport()
        await self._create_scope_tables(report)
        await self._skip_numbers_of_scopes(is_lost)
        async with aclosing(self._streams(STREAMS_INDEX, PENDING_INDEX)) as streams:
            async for scope, stream in streams:
                await self._repair(scope, stream, is_lost, report)
        await self._report_strangers(report)
        return report

    async def end_lost_tails(self, is_lost: TailIsLost, report: RepairReport) -> None:
        """Behind `repair_all` and the controller's start; adds to its report. Raises what listing streams raises."""
        async with aclosing(self._streams(STREAMS_INDEX)) as streams:
            async for scope, stream in streams:
                try:
                    await self._go_on_behind(scope, stream, is_lost, report)
                except SegmentStoreError as error:
                    report.failures.append(f"{scope}/{stream}: {error}")

    async def _streams(self, *indexes: str) -> AsyncGenerator[tuple[str, str], None]:
        """Every stream of these indexes, some of them twice."""
        async with aclosing(all_scopes(self._metadata)) as scopes:
            async for scope in scopes:
                for index in indexes:
                    table = await self._metadata.scope_table(scope)
                    async with aclosing(table.all_names(index, per_read=_PAGE)) as names:
                        async for stream in names:
                            yield scope, stream

    async def _repair(
        self, scope: str, stream: str, is_lost: TailIsLost, report: RepairReport
    ) -> None:
        async with self._operations.unsettled(scope, stream) as history:
            if is_lost(history.table.name):
                await self._skip_numbers(history)
            state = (await history.any_state()).record
            if state is None or state.state is StreamState.DELETING:
                return
            head = await history.head()
            head_segments = await history.segments_of(head)
            head_by_key = SegmentsByKey(head_segments)
            first = min(segment.creation_epoch for segment in head_segments)
            chunk: list[StreamSegment] = []
            async with aclosing(history.segments_born(first, state.last_epoch)) as segments:
                async for segment in segments:
                    if lies_behind(segment, head_by_key):
                        continue
                    chunk.append(segment)
                    if len(chunk) >= _PAGE:
                        await self._agree(history, state, chunk, report)
                        chunk = []
            await self._agree(history, state, chunk, report)
            await self._move_head(history, head, report)

    async def _agree(
        self,
        history: StreamHistory,
        state: StreamStateRecord,
        segments: list[StreamSegment],
        report: RepairReport,
    ) -> None:
        """All of them exist, and those that the records say are sealed are."""
        names = [history.segment_name(segment.segment_id) for segment in segments]
        infos = await self._steps.info(names)
        replaced = await history.sealed([segment.segment_id for segment in segments])
        missing: list[str] = []
        unsealed: list[str] = []
        batch = Batch()
        for segment, name, info in zip(segments, names, infos, strict=True):
            known = replaced[segment.segment_id]
            length = known.record.length if known.record is not None else None
            # Without a length its stream is in between: the task that finishes that operation may have to write to it.
            is_sealed = state.state is StreamState.SEALED or length is not None
            if info is None:
                missing.append(name)
                # A commit may have bytes for it that Tier 2 still has beside it.
                is_sealed |= known.record is not None and state.state is not StreamState.COMMITTING
            if is_sealed and (info is None or not info.sealed):
                unsealed.append(name)
            there = info.length if info is not None else 0
            if known.record is not None and length is not None and there < length:
                key = sealed_key(history.stream, segment.segment_id)
                batch.put(key, replace(known.record, length=there), known)
                report.shorter.append(f"{name} by {length - there} bytes")
        await self._steps.create(missing)
        await self._steps.seal(unsealed)
        if batch.changes:
            await history.table.commit(batch)
        report.created += missing

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
        epochs = [name.creation_epoch for name in names if name.segment_id not in known]
        if epochs:
            latest = max(*epochs, self._epochs_used.get((scope, stream), 0))
            self._epochs_used[(scope, stream)] = latest

    async def _use_up_numbers(self, scope: str, stream: str, number: int) -> None:
        """No new segment of the stream, or of a later one of its name, gets this number or a lower one.

        It would have the name of a segment that is there, and take its bytes over.
        """
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
                    await use_up_numbers(table, batch, stream, number + 1)
                if batch.changes:
                    await table.commit(batch)
        except ScopeNotFoundError:
            # A scope that is created again finds its old table, or begins with nothing.
            return

    async def _create_scope_tables(self, report: RepairReport) -> None:
        async with aclosing(all_scopes(self._metadata)) as names:
            async for scope in names:
                record = (await self._metadata.scopes.read(scope_key(scope))).record
                if record is None or record.state is not ScopeState.ACTIVE:
                    continue
                if await self._metadata.create_scope_table(scope, record.incarnation):
                    report.created.append(record_keys.scope_table(scope, record.incarnation))

    async def _skip_numbers_of_scopes(self, is_lost: TailIsLost) -> None:
        """Streams and scopes that are created from now on begin above what lost ones of their names may have used."""
        scopes = self._metadata.scopes
        if is_lost(scopes.name):
            batch = Batch()
            await self._put_skipped(batch, scopes, 0)
            await scopes.commit(batch)
        async with aclosing(all_scopes(self._metadata)) as names:
            async for scope in names:
                known = await scopes.read(scope_key(scope))
                record = known.record
                if record is None:
                    continue
                table = self._metadata.table_of(scope, record.incarnation)
                if not is_lost(table.name):
                    continue
                # Twice, since each may reach Tier 2 without the other.
                batch = Batch()
                first = await self._put_skipped(batch, table, record.first_segment_number)
                await table.commit(batch)
                batch = Batch()
                batch.put(scope_key(scope), replace(record, first_segment_number=first), known)
                await scopes.commit(batch)

    async def _put_skipped(self, batch: Batch, table: MetadataTable, at_least: int) -> int:
        known = await table.read(DELETED_NUMBERS_KEY)
        used = max(at_least, known.record.number if known.record is not None else 0)
        first = used + NUMBERS_SKIPPED
        batch.put(DELETED_NUMBERS_KEY, SegmentNumberRecord(first), known)
        return first

    async def _skip_numbers(self, history: StreamHistory) -> None:
        state = await history.any_state()
        if state.record is None:
            return
        number = state.record.next_segment_number + NUMBERS_SKIPPED
        batch = Batch()
        batch.put(
            state_key(history.stream), replace(state.record, next_segment_number=number), state
        )
        await history.table.commit(batch)

    async def _go_on_behind(
        self, scope: str, stream: str, is_lost: TailIsLost, report: RepairReport
    ) -> None:
        """Skip epochs that are used up, and end active segments that may have lost their tails, or are sealed."""
        async with self._operations.exclusive(scope, stream) as history:
            state = (await history.any_state()).record
            if state is None or state.state is not StreamState.ACTIVE:
                return
            used = self._epochs_used.get((scope, stream), 0)
            if used - state.last_epoch <= _EPOCHS_USED_UP_MAX:
                await self._skip_epochs(history, up_to=used)
            if not is_user_name(stream):
                return
            # Skipped epochs have the segments of the current one.
            epoch = await history.epoch(state.current_epoch)
            names = [history.segment_name(segment.segment_id) for segment in epoch.segments]
            infos = await self._steps.info(names)
            ended: list[StreamSegment] = []
            for segment, name, info in zip(epoch.segments, names, infos, strict=True):
                if info is None or not (info.sealed or is_lost(name)):
                    continue
                if info.length and not event_count(info):
                    # A client seals a byte stream by its segment, and it stays readable there.
                    if not info.sealed:
                        report.byte_segments.append(f"{name} at {info.length}")
                    continue
                ended.append(segment)
        if not ended:
            return
        await self._scaling.scale(
            scope,
            stream,
            sealed=[segment.segment_id for segment in ended],
            ranges=[(segment.low, segment.high) for segment in ended],
        )
        names = [history.segment_name(segment.segment_id) for segment in ended]
        for name, info in zip(names, await self._steps.info(names), strict=True):
            report.ended.append(f"{name} at {info.length if info is not None else 0}")

    async def _skip_epochs(self, history: StreamHistory, *, up_to: int) -> None:
        """Epochs in which nothing is replaced, up to that one."""
        while True:
            state = await history.any_state()
            assert state.record is not None, f"nothing to go on with stream={history.name!r}"
            first = state.record.last_epoch + 1
            last = min(up_to, state.record.last_epoch + EPOCHS_PER_READ)
            if first > last:
                return
            current = await history.epoch(state.record.current_epoch)
            batch = Batch()
            for number in range(first, last + 1):
                key = epoch_key(history.stream, number)
                record = EpochRecord(number, number, current.created_ms, current.segments)
                batch.put(key, record, await history.table.read(key))
            skipped = replace(state.record, current_epoch=last, last_epoch=last)
            batch.put(state_key(history.stream), skipped, state)
            await history.table.commit(batch)


def _stream_segment(segment: SegmentProperties) -> SegmentName | None:
    """The name of a stream's own segment; None for tables, transactions, transients and names of others."""
    try:
        name = parse_segment(segment.name)
    except InvalidRequestError:
        return None
    if name.stream.endswith(TABLE_SUFFIX) or name.parent != name:
        return None
    return name
