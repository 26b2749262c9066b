"""Which groups hold back the retention of a stream, and how far each has consumed it.

    in the table of the stream's scope
    index `subscribers/<stream>`                names `<scope of the group>/<group>`
    record `consumed/<stream>/<scope>/<group>`  what the group said last

Invariants:

- The group's own record says whether it subscribes; the index may hold more names (of a group that was changed or
  deleted a moment ago). It holds fewer only where the stream is younger than what the group said: a stream that is
  deleted forgets its subscribers, and one that is created again has none until they say so again.
- What a group has consumed counts only for the group of that id and in that generation, and never goes back there. One
  that was deleted and created again, or reset, starts where its configuration says: all behind that is yet to be read.
- A cut that cannot be of its stream is refused: it names segments that the stream never had (numbers are never used
  again, so those of an earlier stream of the name are none of them), lies behind the end of one, or there is no such
  stream. A group that has one all the same (its stream was deleted and created again, or an earlier version took it)
  holds back everything.
"""

import logging
from contextlib import aclosing

from segmentstore.codec.controller_api import controller_pb2 as api
from segmentstore.codec.controller_records import record_keys
from segmentstore.codec.controller_records.reader_group_records import (
    ConsumedCutRecord,
    GroupCut,
    ReaderGroupRecord,
)
from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.controller.errors import (
    PreconditionError,
    ScopeNotFoundError,
    StreamNotFoundError,
    StreamSegmentNotFoundError,
)
from segmentstore.controller.metadata.batch import Batch, RecordKey
from segmentstore.controller.metadata.metadata_store import MetadataStore
from segmentstore.controller.settings import ReaderGroupSettings
from segmentstore.controller.streams.stream_cuts import (
    Cut,
    CutWithRanges,
    check_cover,
    check_cut,
    lowest_of,
    normalised,
    reaches,
)
from segmentstore.controller.streams.stream_history import StreamHistory
from segmentstore.controller.streams.stream_operations import StreamOperations
from segmentstore.controller.streams.stream_segments import StreamSegments

_LOG = logging.getLogger(__name__)

UpdateStatus = api.UpdateSubscriberStatus


class Subscribers:
    """Reads and changes what is known of the subscribers of streams."""

    def __init__(
        self,
        *,
        store: MetadataStore,
        operations: StreamOperations,
        segments: StreamSegments,
        settings: ReaderGroupSettings,
    ) -> None:
        self._store = store
        self._operations = operations
        self._segments = segments
        self._settings = settings

    async def update_cut(self, request: api.SubscriberStreamCut) -> api.UpdateSubscriberStatus:
        """A group says how far it has consumed a stream."""
        status = UpdateStatus.Status
        stream = request.streamCut.streamInfo
        scope, _, group = request.subscriber.partition("/")
        try:
            history = await self._operations.history(stream.scope, stream.stream)
            await history.state()
        except (ScopeNotFoundError, StreamNotFoundError):
            return UpdateStatus(status=status.STREAM_NOT_FOUND)
        record = await self._subscriber(history, scope, group)
        if record is None or record.group_id != request.readerGroupId:
            return UpdateStatus(status=status.SUBSCRIBER_NOT_FOUND)
        if record.generation != request.generation:
            return UpdateStatus(status=status.GENERATION_MISMATCH)
        key = _consumed_key(history.stream, scope, group)
        known = await history.table.read(key)
        try:
            cut = await self._checked(history, dict(request.streamCut.cut), known.record, record)
        except (PreconditionError, StreamSegmentNotFoundError, InvalidRequestError):
            return UpdateStatus(status=status.STREAM_CUT_NOT_VALID)
        batch = Batch()
        batch.put(
            key,
            ConsumedCutRecord(group_id=record.group_id, generation=record.generation, offsets=cut),
            known,
        )
        await history.table.commit(batch)
        return UpdateStatus(status=status.SUCCESS)

    async def list_of(self, request: api.StreamInfo) -> api.SubscribersResponse:
        response = api.SubscribersResponse
        try:
            history = await self._operations.history(request.scope, request.stream)
            await history.state()
        except (ScopeNotFoundError, StreamNotFoundError):
            return response(status=response.Status.STREAM_NOT_FOUND)
        return response(status=response.Status.SUCCESS, subscribers=list(await self._all(history)))

    async def lowest_cut(self, history: StreamHistory) -> CutWithRanges | None:
        """Before which position every subscriber has consumed the stream; None without subscribers.

        A subscriber that has not said anything stands where its configuration starts, or at the head.
        """
        cuts: list[CutWithRanges] = []
        for name, record in (await self._all(history)).items():
            scope, _, group = name.partition("/")
            consumed = (
                await history.table.read(_consumed_key(history.stream, scope, group))
            ).record
            if consumed is not None and _counts_for(consumed, record):
                offsets = dict(consumed.offsets)
            else:
                offsets = normalised(_starting_cut(record, history)) or await history.head()
            try:
                cuts.append(await history.cut_with_ranges(offsets))
            except StreamSegmentNotFoundError:
                _LOG.warning("stream=%s group=%s starts in foreign segments", history.name, name)
                cuts.append(await history.cut_with_ranges(await history.head()))
        return lowest_of(cuts) if cuts else None

    async def subscribe(self, stream_scope: str, stream: str, *, scope: str, group: str) -> None:
        """The group may be a subscriber from now on. A scope that does not exist has no streams: nothing to do."""
        batch = Batch()
        batch.list_name(_index(stream), f"{scope}/{group}")
        try:
            await (await self._store.scope_table(stream_scope)).commit(batch)
        except ScopeNotFoundError:
            return

    async def unsubscribe(self, stream_scope: str, stream: str, *, scope: str, group: str) -> None:
        """The group is no subscriber any more, and what it has consumed is forgotten."""
        try:
            table = await self._store.scope_table(stream_scope)
        except ScopeNotFoundError:
            return
        key = _consumed_key(stream, scope, group)
        batch = Batch()
        batch.remove(key, await table.read(key))
        batch.unlist_name(_index(stream), f"{scope}/{group}")
        await table.commit(batch)

    async def check_cuts(
        self, record: ReaderGroupRecord, *, known: ReaderGroupRecord | None = None
    ) -> None:
        """Raises InvalidRequestError for a cut that is none of its stream, unless the group has it already."""
        before = (*known.starting_cuts, *known.ending_cuts) if known is not None else ()
        for cut in (*record.starting_cuts, *record.ending_cuts):
            if cut in before or not cut.offsets:
                continue
            try:
                await self._check_cut(cut)
            except (
                PreconditionError,
                ScopeNotFoundError,
                StreamNotFoundError,
                StreamSegmentNotFoundError,
            ) as error:
                raise InvalidRequestError(
                    f"the group's cut is none of its stream: {error}"
                ) from error

    async def _check_cut(self, cut: GroupCut) -> None:
        history = await self._operations.history(cut.scope, cut.stream)
        await history.state()
        check_cover(await history.segments_of(cut.offsets))
        await self._check_ends(history, cut.offsets)

    async def _check_ends(self, history: StreamHistory, offsets: Cut) -> None:
        """Raises PreconditionError if one lies behind the end of its segment, as it is by now."""
        names = [history.segment_name(segment_id) for segment_id in offsets]
        infos = await self._segments.info(names)
        for name, info, offset in zip(names, infos, offsets.values(), strict=True):
            # One that is gone lies behind the head: reading begins there.
            if info is not None and offset > info.length:
                raise PreconditionError(f"{name} ends at {info.length} offset={offset}")

    async def on_stream_deletion(self, history: StreamHistory) -> None:
        """The stream is being deleted: no reader group subscribes to it any more."""
        more = True
        while more:
            page = await history.table.names(
                _index(history.stream), count=self._settings.names_per_read
            )
            for name in page.names:
                scope, _, group = name.partition("/")
                await self.unsubscribe(history.scope, history.stream, scope=scope, group=group)
            more = page.more

    async def _all(self, history: StreamHistory) -> dict[str, ReaderGroupRecord]:
        found: dict[str, ReaderGroupRecord] = {}
        index, per_read = _index(history.stream), self._settings.names_per_read
        async with aclosing(history.table.all_names(index, per_read=per_read)) as names:
            async for name in names:
                scope, _, group = name.partition("/")
                record = await self._subscriber(history, scope, group)
                if record is not None:
                    found[name] = record
        return found

    async def _subscriber(
        self, history: StreamHistory, scope: str, group: str
    ) -> ReaderGroupRecord | None:
        try:
            table = await self._store.scope_table(scope)
        except ScopeNotFoundError:
            return None
        record = (await table.read(group_key(group))).record
        if record is None or not record.subscribes_to(history.scope, history.stream):
            return None
        return record

    async def _checked(
        self,
        history: StreamHistory,
        cut: dict[int, int],
        before: ConsumedCutRecord | None,
        record: ReaderGroupRecord,
    ) -> dict[int, int]:
        check_cut(cut)
        offsets = normalised(cut)
        segments = await history.segments_of(offsets)
        check_cover(segments)
        known: Cut = {}
        if before is not None and _counts_for(before, record):
            known = before.offsets
            if not reaches(offsets, segments, known, await history.segments_of(known)):
                raise PreconditionError("a subscriber does not go back")
        # Lengths only grow: what was within them still is. So only segments that were read from since are asked about.
        further = {each: at for each, at in offsets.items() if at > known.get(each, 0)}
        await self._check_ends(history, further)
        return offsets


def _counts_for(consumed: ConsumedCutRecord, record: ReaderGroupRecord) -> bool:
    return (consumed.group_id, consumed.generation) == (record.group_id, record.generation)


def group_key(group: str) -> RecordKey[ReaderGroupRecord]:
    """Where the record of a group stands, in the table of its scope."""
    return RecordKey(record_keys.reader_group(group), ReaderGroupRecord.decode)


def _consumed_key(stream: str, scope: str, group: str) -> RecordKey[ConsumedCutRecord]:
    return RecordKey(record_keys.consumed_cut(stream, scope, group), ConsumedCutRecord.decode)


def _index(stream: str) -> str:
    return f"subscribers/{stream}"


def _starting_cut(record: ReaderGroupRecord, history: StreamHistory) -> dict[int, int]:
    for cut in record.starting_cuts:
        if (cut.scope, cut.stream) == (history.scope, history.stream):
            return dict(cut.offsets)
    return {}
