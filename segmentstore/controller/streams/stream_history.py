"""The records of one stream, read: state, configuration, epochs, what replaced which segment, the head.

Invariants:

- Epochs are read one by one or in short stretches; nothing here grows with the age of a stream.
- A stream that is being created or deleted does not exist for those who ask.
"""

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing

from segmentstore.codec.stream_names import creation_epoch_of, segment_name
from segmentstore.codec.stream_records.epoch_record import EpochRecord
from segmentstore.codec.stream_records.sealed_segment_record import SealedSegmentRecord
from segmentstore.codec.stream_records.stream_configuration_record import (
    StreamConfigurationRecord,
)
from segmentstore.codec.stream_records.stream_segment import StreamSegment
from segmentstore.codec.stream_records.stream_state_record import StreamState, StreamStateRecord
from segmentstore.controller.errors import (
    EpochNotFoundError,
    StreamNotFoundError,
    StreamSegmentNotFoundError,
)
from segmentstore.controller.metadata.metadata_table import MetadataTable
from segmentstore.controller.metadata.record_key import Versioned
from segmentstore.controller.streams.stream_keys import (
    configuration_key,
    epoch_key,
    sealed_key,
    state_key,
    truncation_key,
)

EPOCHS_PER_READ = 32

_INVISIBLE = (StreamState.CREATING, StreamState.DELETING)


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
        if record is None or record.state in _INVISIBLE:
            raise self.not_found()
        return record

    async def configuration(self) -> Versioned[StreamConfigurationRecord]:
        """What the user asked for; the record is absent if the stream is."""
        return await self.table.read(configuration_key(self.stream))

    async def epoch(self, epoch: int) -> EpochRecord:
        """One epoch. Raises EpochNotFoundError."""
        record = (await self.table.read(epoch_key(self.stream, epoch))).record
        if record is None:
            raise EpochNotFoundError(f"epoch does not exist stream={self.name!r} epoch={epoch}")
        return record

    async def epochs(self, first: int, last: int) -> AsyncGenerator[EpochRecord, None]:
        """The epochs from `first` up to `last` (inclusive). Hold it in aclosing. Raises EpochNotFoundError."""
        for start in range(first, last + 1, EPOCHS_PER_READ):
            numbers = range(start, min(start + EPOCHS_PER_READ, last + 1))
            read = await self.table.read_many(
                [epoch_key(self.stream, number) for number in numbers]
            )
            for number, epoch in zip(numbers, read, strict=True):
                if epoch.record is None:
                    raise EpochNotFoundError(
                        f"epoch does not exist stream={self.name!r} epoch={number}"
                    )
                yield epoch.record

    async def segments_of(self, segment_ids: Iterable[int]) -> list[StreamSegment]:
        """The segments of these ids, in the order of the ids. Raises StreamSegmentNotFoundError."""
        ordered = sorted(segment_ids)
        epochs = dict.fromkeys(map(creation_epoch_of, ordered))
        read = await self.table.read_many([epoch_key(self.stream, number) for number in epochs])
        found = {number: epoch.record for number, epoch in zip(epochs, read, strict=True)}
        segments = []
        for segment_id in ordered:
            epoch = found[creation_epoch_of(segment_id)]
            segment = epoch.segment(segment_id) if epoch is not None else None
            if segment is None:
                raise StreamSegmentNotFoundError(
                    f"stream has no such segment stream={self.name!r} segment_id={segment_id}"
                )
            segments.append(segment)
        return segments

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
