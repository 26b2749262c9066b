"""Commands about segments that are neither appends nor reads: one command in, one reply out.

`SegmentCommands.handlers` has the handler of each. Errors are raised; the connection turns them into replies.

- Sealing a sealed segment, and truncating at or below the start, are successes: clients repeat themselves.
- A segment that is half created (one that HTTP is about to fill, or never will) is none: what is done to it would go
  with it when its name is created anew.
- A merge of a source that is gone succeeds if the target remembers it. A *batch* counts every source that is
  gone as merged, as the protocol says: a client that sends one keeps its own record of what it merged.

LocateOffset needs an offset where an event begins. first_event_from() finds it from one that is known, by the headers
of the events between:

    event    int32 type (0), int32 length of what follows, the event

A segment that holds something else ends the search with None: its bytes soon make no sense as headers. How far an event
is looked for, and how many searches read at once, has its bounds in `settings.py`; a search gives way after each piece.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import groupby
from random import Random
from types import MappingProxyType
from typing import Final, TypeAlias, TypeVar, cast

from segmentstore.codec.event_frame import NoEventError, skip_events
from segmentstore.codec.wire_protocol.administration import (
    FlushToStorage,
    ListStorageChunks,
    StorageChunk,
    StorageChunksListed,
    StorageFlushed,
)
from segmentstore.codec.wire_protocol.appends import CreateTransientSegment
from segmentstore.codec.wire_protocol.command import Command
from segmentstore.codec.wire_protocol.reads import (
    NO_ATTRIBUTE_VALUE,
    GetSegmentAttribute,
    GetStreamSegmentInfo,
    LocateOffset,
    OffsetLocated,
    SegmentAttribute,
    SegmentAttributeUpdated,
    StreamSegmentInfo,
    UpdateSegmentAttribute,
)
from segmentstore.codec.wire_protocol.refusals import OperationUnsupported
from segmentstore.codec.wire_protocol.segments import (
    CreateSegment,
    DeleteSegment,
    MergedSource,
    MergeSegments,
    MergeSegmentsBatch,
    SealSegment,
    SegmentCreated,
    SegmentDeleted,
    SegmentPolicyUpdated,
    SegmentsBatchMerged,
    SegmentSealed,
    SegmentsMerged,
    SegmentTruncated,
    TruncateSegment,
    UpdateSegmentPolicy,
)
from segmentstore.contracts.errors import (
    BadAttributeUpdateError,
    BadOffsetError,
    InvalidRequestError,
    SegmentNotFoundError,
    SegmentStoreError,
    SegmentTruncatedError,
)
from segmentstore.contracts.identifiers import (
    CORE_ATTRIBUTE_PREFIX,
    EVENT_COUNT,
    SCALE_POLICY_RATE,
    SCALE_POLICY_TYPE,
    AttributeKey,
    is_core_attribute,
)
from segmentstore.contracts.segments import (
    AttributeUpdate,
    AttributeUpdateType,
    Segment,
    SegmentApi,
    SegmentReads,
    read_available,
)
from segmentstore.wire.settings import WireSettings

ROLLOVER_BYTES: Final = AttributeKey(CORE_ATTRIBUTE_PREFIX + (4).to_bytes(8, "big"))
"""Core attribute: what the creator wished a chunk's size in Tier 2 to be; kept, not obeyed."""
TRANSIENT_MARK: Final = "#transient."
_LOGGER = logging.getLogger(__name__)
_SEARCHED_PIECE_BYTES: Final = 64 << 10
_MERGED_AT_ONCE: Final = 256
"""Sources of a batch that are asked for together."""

_Kind = TypeVar("_Kind", bound=Command)
CommandHandler: TypeAlias = Callable[[Command], Awaitable[Command]]
"""The reply to one command of its kind. Raises SegmentStoreError."""
ListChunks: TypeAlias = Callable[[str], Awaitable[Sequence[StorageChunk]]]
FlushContainer: TypeAlias = Callable[[int], Awaitable[None]]
EventNear: TypeAlias = Callable[[str, int], Awaitable[int | None]]
"""An event's beginning near an offset: the first at or above it, or one below it with whole events between; None if
none is known."""


class SegmentCommands:
    """Answers the commands of session-less requests: a handler for each type of command.

    CreateTransientSegment is the connection's (`requests.py`), which knows the name before there is such a segment.
    """

    def __init__(
        self,
        *,
        segments: SegmentApi,
        reads: SegmentReads,
        random: Random,
        flush_container: FlushContainer | None,
        list_chunks: ListChunks | None,
        event_near: EventNear | None,
        settings: WireSettings,
    ) -> None:
        self._searched_bytes_max = settings.event_search_bytes_max
        self._searches = asyncio.Semaphore(settings.event_searches_max)
        self._segments = segments
        self._reads = reads
        self._random = random
        self._flush_container = flush_container
        self._list_chunks = list_chunks
        self._event_near = event_near
        self.handlers: Mapping[int, CommandHandler] = MappingProxyType(
            dict(
                (
                    _handler(GetStreamSegmentInfo, self._info),
                    _handler(GetSegmentAttribute, self._attribute),
                    _handler(LocateOffset, self._locate),
                    _handler(CreateSegment, self._create),
                    _handler(UpdateSegmentAttribute, self._update_attribute),
                    _handler(UpdateSegmentPolicy, self._update_policy),
                    _handler(SealSegment, self._seal),
                    _handler(TruncateSegment, self._truncate),
                    _handler(MergeSegments, self._merge),
                    _handler(MergeSegmentsBatch, self._merge_batch),
                    _handler(DeleteSegment, self._delete),
                    _handler(FlushToStorage, self._flush),
                    _handler(ListStorageChunks, self._chunks),
                )
            )
        )
        """By the type of the command."""

    # --- questions -------------------------------------------------------------------------------

    async def _info(self, command: GetStreamSegmentInfo) -> Command:
        info = await self._reads.info(command.segment)
        info.require_created()
        if info.may_have_more:
            # The answer has no word for a length that is only a lower bound: clients would take it for the end.
            info.require_container()
        return StreamSegmentInfo(
            command.request_id,
            command.segment,
            exists=True,
            is_sealed=info.sealed,
            is_deleted=False,
            last_modified_ms=info.last_modified_ms,
            write_offset=info.length,
            start_offset=info.start_offset,
        )

    async def _attribute(self, command: GetSegmentAttribute) -> Command:
        key = AttributeKey(command.attribute_id)
        await self._refuse_half_created(command.segment)
        value = (await self._segments.attributes(command.segment, [key])).get(key)
        return SegmentAttribute(
            command.request_id, value if isinstance(value, int) else NO_ATTRIBUTE_VALUE
        )

    async def _update_attribute(self, command: UpdateSegmentAttribute) -> Command:
        update = AttributeUpdate(
            client_attribute_key(command.attribute_id),
            _number_or_none(command.new_value),
            AttributeUpdateType.REPLACE_IF_EQUALS,
            _number_or_none(command.expected_value),
        )
        await self._refuse_half_created(command.segment)
        try:
            await self._segments.update_attributes(command.segment, [update])
        except BadAttributeUpdateError:
            return SegmentAttributeUpdated(command.request_id, success=False)
        return SegmentAttributeUpdated(command.request_id, success=True)

    async def _locate(self, command: LocateOffset) -> Command:
        """The first event that begins at the target or behind it; the end if that is not known."""
        segment, target = command.segment, command.target_offset
        async with self._segments.open_segment(segment) as handle:
            info = handle.info()
            info.require_created()
            located: int | None = info.start_offset
            if target >= info.length:
                located = info.length
            elif target > info.start_offset:
                near = None
                if self._event_near is not None:
                    near = await self._event_near(segment, target)
                # Clients truncate where events begin.
                known = info.start_offset if near is None else max(near, info.start_offset)
                async with self._searches:
                    located = await first_event_from(
                        handle, known, target, bytes_max=self._searched_bytes_max
                    )
        offset = info.length if located is None else located
        return OffsetLocated(command.request_id, segment, offset)

    # --- changes ---------------------------------------------------------------------------------

    async def _create(self, command: CreateSegment) -> Command:
        attributes = _policy_updates(command.target_rate, command.scale_type)
        if command.rollover_bytes > 0:  # Pravega takes a negative one as none.
            attributes.append(AttributeUpdate(ROLLOVER_BYTES, command.rollover_bytes))
        await self._segments.create(command.segment, attributes)
        return SegmentCreated(command.request_id, command.segment)

    async def new_transient_name(self, command: CreateTransientSegment) -> str:
        """Of the segment that it asks for, which is not made here."""
        parent = command.parent_segment
        (await self._segments.info(parent)).require_created()
        number = self._random.getrandbits(128)
        return f"{parent}{TRANSIENT_MARK}{command.writer_id.hex()}.{number:032x}"

    async def create_transient(self, name: str) -> None:
        """`name` is a new one."""
        await self._segments.create(name)

    async def delete_abandoned(self, names: Sequence[str]) -> None:
        """Delete transient segments whose connection is gone. Those that stay, for whatever reason, go by age."""
        for name in names:
            try:
                await self._segments.delete(name)
            except SegmentNotFoundError:
                continue
            except SegmentStoreError as error:
                _LOGGER.info(
                    "segment=%s of a connection that is gone stays for now: %s", name, error
                )

    async def _refuse_half_created(self, segment: str, *, takes_bytes: bool = False) -> None:
        """Before what would go with such a segment. Raises SegmentNotFoundError; InvalidRequestError where bytes are
        added to a JSON stream.

        Of one that is not there the request itself says so: a merge may be done already.
        """
        try:
            properties = await self._segments.info(segment)
        except SegmentNotFoundError:
            return
        properties.require_created()
        if takes_bytes:
            properties.require_no_messages()

    async def _update_policy(self, command: UpdateSegmentPolicy) -> Command:
        await self._refuse_half_created(command.segment)
        await self._segments.update_attributes(
            command.segment, _policy_updates(command.target_rate, command.scale_type)
        )
        return SegmentPolicyUpdated(command.request_id, command.segment)

    async def _seal(self, command: SealSegment) -> Command:
        await self._refuse_half_created(command.segment)
        await self._segments.seal(command.segment)
        return SegmentSealed(command.request_id, command.segment)

    async def _truncate(self, command: TruncateSegment) -> Command:
        segment, offset = command.segment, command.truncation_offset
        info = await self._segments.info(segment)
        info.require_created()
        info.require_no_messages()
        if offset < info.start_offset:
            raise SegmentTruncatedError(segment, start_offset=info.start_offset)
        try:
            await self._segments.truncate(segment, offset)
        except BadOffsetError as error:
            raise SegmentTruncatedError(segment, start_offset=info.start_offset) from error
        return SegmentTruncated(command.request_id, segment)

    async def _merge(self, command: MergeSegments) -> Command:
        updates = [
            AttributeUpdate(
                client_attribute_key(change.attribute_id),
                _number_or_none(change.new_value),
                AttributeUpdateType(change.update_type),
                _number_or_none(change.old_value),
            )
            for change in command.attribute_changes
        ]
        is_transient = TRANSIENT_MARK in command.source
        if is_transient:
            # One large event: its pieces were counted one by one as they came.
            updates.append(AttributeUpdate(EVENT_COUNT, 1, AttributeUpdateType.ACCUMULATE))
        await self._refuse_half_created(command.target, takes_bytes=True)
        await self._refuse_half_created(command.source)
        length = await self._segments.merge(
            command.target, command.source, attribute_updates=updates, seal_source=is_transient
        )
        return SegmentsMerged(command.request_id, command.target, command.source, length)

    async def _merge_batch(self, command: MergeSegmentsBatch) -> Command:
        await self._refuse_half_created(command.target, takes_bytes=True)
        lengths: list[int] = []
        for is_transient, group in groupby(command.sources, lambda name: TRANSIENT_MARK in name):
            lengths += await self._merge_all(command.target, list(group), seal_sources=is_transient)
        merged = [
            MergedSource(source, length)
            for source, length in zip(command.sources, lengths, strict=True)
        ]
        return SegmentsBatchMerged(command.request_id, command.target, merged)

    async def _merge_all(
        self, target: str, sources: Sequence[str], *, seal_sources: bool
    ) -> list[int]:
        """The target's length behind each source; now, for one that is gone."""
        lengths: list[int] = []
        while len(lengths) < len(sources):
            rest = sources[len(lengths) : len(lengths) + _MERGED_AT_ONCE]
            try:
                lengths += await self._segments.merge_all(target, rest, seal_sources=seal_sources)
            except SegmentNotFoundError as error:
                if error.name == target:
                    raise
                # Those before it are merged, and remembered: asked again for their lengths.
                before = rest[: rest.index(error.name)]
                lengths += await self._segments.merge_all(target, before, seal_sources=seal_sources)
                lengths.append((await self._segments.info(target)).length)
            # Sources that are gone, or were merged before, are found so without a wait: others have their turn.
            await asyncio.sleep(0)
        return lengths

    async def _delete(self, command: DeleteSegment) -> Command:
        await self._segments.delete(command.segment)
        return SegmentDeleted(command.request_id, command.segment)

    # --- for operators ---------------------------------------------------------------------------

    async def _flush(self, command: FlushToStorage) -> Command:
        if self._flush_container is None:
            await self._segments.flush()
        else:
            await self._flush_container(command.container_id)
        return StorageFlushed(command.request_id)

    async def _chunks(self, command: ListStorageChunks) -> Command:
        if self._list_chunks is None:
            return OperationUnsupported(command.request_id, "listStorageChunks")
        chunks = await self._list_chunks(command.segment)
        return StorageChunksListed(command.request_id, chunks)


def _handler(
    kind: type[_Kind], answer: Callable[[_Kind], Awaitable[Command]]
) -> tuple[int, CommandHandler]:
    # Called with commands of this kind alone: it is looked up by their type.
    return kind.type, cast(CommandHandler, answer)


def client_attribute_key(attribute_id: bytes) -> AttributeKey:
    """As a key that clients may write. Raises InvalidRequestError for one that the store itself relies on."""
    key = AttributeKey(attribute_id)
    if is_core_attribute(key):
        raise InvalidRequestError(f"a core attribute is not for clients to set key={key.hex()}")
    return key


def _policy_updates(target_rate: int, scale_type: int) -> list[AttributeUpdate]:
    if not 0 <= scale_type <= 2:
        raise InvalidRequestError(f"unknown scale type scale_type={scale_type}")
    return [
        AttributeUpdate(SCALE_POLICY_TYPE, scale_type),
        AttributeUpdate(SCALE_POLICY_RATE, target_rate),
    ]


def _number_or_none(value: int) -> int | None:
    return None if value == NO_ATTRIBUTE_VALUE else value


async def first_event_from(
    segment: Segment, position: int, target: int, *, bytes_max: int
) -> int | None:
    """The first beginning of an event at or above `target`, counted on from `position`, where one begins.

    None for bytes that are no events, and beyond `bytes_max`. Raises what reading raises.
    """
    if target - position > bytes_max:
        return None
    while position < target:
        content = await read_available(segment, position, _SEARCHED_PIECE_BYTES)
        try:
            count, behind = skip_events(content, stop=target - position)
        except NoEventError:
            return None
        if not count:
            return None
        position += behind
        # What is in memory is read without a wait: others have their turn all the same.
        await asyncio.sleep(0)
    return position if position <= segment.info().length else None
