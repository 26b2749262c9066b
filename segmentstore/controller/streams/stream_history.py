"""The records of one stream, read: state, configuration, epochs, what replaced which segment, the head.

The keys stand in `segmentstore/codec/controller_records/record_keys.py`; here each gets the type of its record. The
table of a scope has these indexes of streams:

| index | names |
|---|---|
| `streams` | every stream that exists, internal ones too |
| `pending` | streams with an unfinished operation |
| `tags/<tag>` | streams with that tag |

`all_streams` lists all streams with their configurations, page by page, for what looks at streams in the background.

Invariants:

- Epochs are read one by one or in short stretches, also those of a client's cut; nothing here grows with the age of a
  stream.
- A stream that is being created or deleted does not exist for clients.
- A listing passes a scope over that is being deleted, however long that takes, or whose table does not answer: it goes
  on with the others. Between two pages the loop does other work.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from segmentstore.codec.controller_records import record_keys
from segmentstore.codec.controller_records.scope_records import SegmentNumberRecord
from segmentstore.codec.controller_records.stream_records import (
    EpochRecord,
    RetentionPolicy,
    ScalingPolicy,
    SealedSegmentRecord,
    SegmentWithRange,
    StreamConfigurationRecord,
    StreamSegment,
    StreamState,
    StreamStateRecord,
    TruncationRecord,
)
from segmentstore.codec.stream_names import creation_epoch_of, segment_name
from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.controller.errors import (
    EpochNotFoundError,
    PolicyReplacedError,
    RetryLaterError,
    ScopeNotFoundError,
    StreamNotFoundError,
    StreamSegmentNotFoundError,
)
from segmentstore.controller.metadata.batch import Batch, RecordKey, Versioned
from segmentstore.controller.metadata.metadata_store import SCOPES_INDEX, MetadataStore
from segmentstore.controller.metadata.metadata_table import MetadataTable

STREAMS_INDEX = "streams"

DELETED_NUMBERS_KEY = RecordKey(record_keys.DELETED_NUMBERS, SegmentNumberRecord.decode)

EPOCHS_PER_READ = 32

_FIRST_EPOCHS_READ = 4
_SEGMENTS_PER_READ = 4096
"""About so many in the epochs that are read at once: between two reads the loop does other work."""

_NAMES_PER_READ = 100

_INVISIBLE_STATES = (StreamState.CREATING, StreamState.DELETING)


class StreamHistory:
    """One stream in the table of its scope."""

    def __init__(self, *, table: MetadataTable, scope: str, stream: str) -> None:
        self.table = table
        self.scope = scope
        self.stream = stream

    @property
    def name(self) -> str:
        """`<scope>/<stream>`."""
        return f"{self.scope}/{self.stream}"

    def segment_name(self, segment_id: int) -> str:
        """What the segment is called in the store."""
        return segment_name(self.scope, self.stream, segment_id)

    def not_found(self) -> StreamNotFoundError:
        """The error that says that there is no such stream."""
        return StreamNotFoundError(self.scope, self.stream)

    async def any_state(self) -> Versioned[StreamStateRecord]:
        """The state record if there is one, whatever the state."""
        return await self.table.read(state_key(self.stream))

    async def state(self) -> StreamStateRecord:
        """The state of a stream that exists. Raises StreamNotFoundError."""
        record = (await self.any_state()).record
        if record is None or record.state in _INVISIBLE_STATES:
            raise self.not_found()
        return record

    async def configuration(self) -> Versioned[StreamConfigurationRecord]:
        """What the user asked for; the record is absent if the stream is."""
        return await self.table.read(configuration_key(self.stream))

    async def require_policy(self, policy: ScalingPolicy | RetentionPolicy) -> None:
        """Raises PolicyReplacedError unless the stream has it: of an update its user was told that it is in force."""
        record = (await self.configuration()).record
        if record is None or policy not in (record.scaling, record.retention):
            raise PolicyReplacedError(f"the policy is another one meanwhile stream={self.name!r}")

    async def epoch(self, epoch: int) -> EpochRecord:
        """One epoch. Raises EpochNotFoundError."""
        record = (await self.table.read(epoch_key(self.stream, epoch))).record
        if record is None:
            raise EpochNotFoundError(f"epoch does not exist stream={self.name!r} epoch={epoch}")
        return record

    async def epochs(self, first: int, last: int) -> AsyncGenerator[EpochRecord, None]:
        """The epochs from `first` up to `last` (inclusive). Hold it in aclosing. Raises EpochNotFoundError."""
        async with aclosing(self._read_epochs(range(first, last + 1))) as read:
            async for number, epoch in read:
                if epoch is None:
                    raise EpochNotFoundError(
                        f"epoch does not exist stream={self.name!r} epoch={number}"
                    )
                yield epoch

    async def segments_of(self, segment_ids: Iterable[int]) -> list[StreamSegment]:
        """The segments of these ids, in the order of the ids. Raises StreamSegmentNotFoundError.

        Clients name them, as many as a request holds: the first one that is not there ends it.
        """
        wanted: dict[int, list[int]] = {}
        for segment_id in sorted(segment_ids):
            wanted.setdefault(creation_epoch_of(segment_id), []).append(segment_id)
        segments: list[StreamSegment] = []
        async with aclosing(self._read_epochs(list(wanted))) as read:
            async for number, epoch in read:
                listed = epoch.segments if epoch is not None else ()
                born = {each.segment_id: each for each in listed if each.creation_epoch == number}
                for segment_id in wanted[number]:
                    segment = born.get(segment_id)
                    if segment is None:
                        raise StreamSegmentNotFoundError(
                            f"stream has no such segment stream={self.name!r} segment_id={segment_id}"
                        )
                    segments.append(segment)
        return segments

    async def _read_epochs(
        self, numbers: Sequence[int]
    ) -> AsyncGenerator[tuple[int, EpochRecord | None], None]:
        """Epochs with their numbers, a few at once. Hold it in aclosing."""
        start, at_once = 0, _FIRST_EPOCHS_READ
        while start < len(numbers):
            some = numbers[start : start + at_once]
            read = await self.table.read_many([epoch_key(self.stream, number) for number in some])
            segments = 1
            for number, epoch in zip(some, read, strict=True):
                if epoch.record is not None:
                    segments = max(segments, len(epoch.record.segments))
                yield number, epoch.record
            # What is in memory comes without a turn of the loop.
            await asyncio.sleep(0)
            start += len(some)
            at_once = max(1, min(EPOCHS_PER_READ, _SEGMENTS_PER_READ // segments))

    async def segments_born(self, first: int, last: int) -> AsyncGenerator[StreamSegment, None]:
        """Every segment that took events in the epochs from `first` up to `last`, once. Hold it in aclosing."""
        async with aclosing(self.epochs(first, last)) as epochs:
            async for epoch in epochs:
                for segment in epoch.segments:
                    # One of an earlier epoch was delivered with it, unless the walk began later.
                    if segment.creation_epoch == epoch.epoch or epoch.epoch == first:
                        yield segment

    async def sealed(
        self, segment_ids: Sequence[int]
    ) -> Mapping[int, Versioned[SealedSegmentRecord]]:
        """What replaced these segments."""
        read = await self.table.read_many([sealed_key(self.stream, each) for each in segment_ids])
        return dict(zip(segment_ids, read, strict=True))

    async def head(self) -> dict[int, int]:
        """Where the stream begins: segment id -> offset. Raises EpochNotFoundError."""
        truncation = (await self.table.read(truncation_key(self.stream))).record
        if truncation is not None:
            return dict(truncation.head)
        return {segment.segment_id: 0 for segment in (await self.epoch(0)).segments}

    async def cut_with_ranges(self, offsets: Mapping[int, int]) -> dict[SegmentWithRange, int]:
        """A cut with the ranges of its segments. Raises StreamSegmentNotFoundError."""
        segments = await self.segments_of(offsets)
        return {segment.with_range: offsets[segment.segment_id] for segment in segments}


def state_key(stream: str) -> RecordKey[StreamStateRecord]:
    """State and counters."""
    return RecordKey(record_keys.state(stream), StreamStateRecord.decode)


def configuration_key(stream: str) -> RecordKey[StreamConfigurationRecord]:
    """What the user asked for."""
    return RecordKey(record_keys.configuration(stream), StreamConfigurationRecord.decode)


def epoch_key(stream: str, epoch: int) -> RecordKey[EpochRecord]:
    """One epoch."""
    return RecordKey(record_keys.epoch(stream, epoch), EpochRecord.decode)


def sealed_key(stream: str, segment_id: int) -> RecordKey[SealedSegmentRecord]:
    """What replaced a segment."""
    return RecordKey(record_keys.sealed(stream, segment_id), SealedSegmentRecord.decode)


def truncation_key(stream: str) -> RecordKey[TruncationRecord]:
    """The head."""
    return RecordKey(record_keys.truncation(stream), TruncationRecord.decode)


async def number_behind_deleted(table: MetadataTable, stream: str) -> int:
    """Above the numbers of all segments that deleted streams of that name had; 0 if there was none."""
    texts = record_keys.deleted_numbers(stream), record_keys.deleted_number(stream)
    found = await table.read_many([RecordKey(each, SegmentNumberRecord.decode) for each in texts])
    return max((each.record.number for each in found if each.record is not None), default=0)


async def use_up_numbers(table: MetadataTable, batch: Batch, stream: str, number: int) -> None:
    """No later stream of that name, also of a later scope of this name, gets a number below this one.

    Others change the same records: for `commit_built`.
    """
    key = RecordKey(record_keys.deleted_numbers(stream), SegmentNumberRecord.decode)
    for each in (key, DELETED_NUMBERS_KEY):
        known = await table.read(each)
        if known.record is None or known.record.number < number:
            batch.put(each, SegmentNumberRecord(number), known)


def tag_index(tag: str) -> str:
    """The index of streams with a tag."""
    return f"tags/{tag}"


@dataclass(frozen=True, slots=True)
class ListedStream:
    """A stream as it was a moment ago."""

    scope: str
    stream: str
    configuration: StreamConfigurationRecord


async def all_streams(
    store: MetadataStore, *, on_unreadable: Callable[[str, SegmentStoreError], None]
) -> AsyncGenerator[ListedStream, None]:
    """Every stream, internal ones too, in order. Hold it in `aclosing`.

    A scope whose table does not answer is named to `on_unreadable`, and its streams (or the rest of them) are left out.
    """
    async with aclosing(all_scopes(store)) as scopes:
        async for scope in scopes:
            after, more = "", True
            while more:
                try:
                    table = await store.scope_table(scope)
                    page = await table.names(STREAMS_INDEX, after=after, count=_NAMES_PER_READ)
                    found = await table.read_many([configuration_key(name) for name in page.names])
                except (ScopeNotFoundError, RetryLaterError):
                    break
                except SegmentStoreError as error:
                    on_unreadable(scope, error)
                    break
                for name, configuration in zip(page.names, found, strict=True):
                    if configuration.record is not None:
                        yield ListedStream(scope, name, configuration.record)
                    after = name
                # What is in memory comes without a turn of the loop.
                await asyncio.sleep(0)
                more = page.more


def all_scopes(store: MetadataStore) -> AsyncGenerator[str, None]:
    """Every scope, in order. Hold it in `aclosing`."""
    return store.scopes.all_names(SCOPES_INDEX, per_read=_NAMES_PER_READ)
