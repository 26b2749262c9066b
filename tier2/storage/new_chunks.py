"""Chunks that a publication is about to write: cut from its pieces, and gathered into objects.

- A chunk holds one segment's neighbouring bytes, cut only between runs (H76).
- A long stretch is an object of its own; all short ones of a round share packed objects, so that the number of puts
  does not grow with the number of small segments (H1).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from segmentstore.contracts.identifiers import BufferView
from segmentstore.contracts.storage import MergePiece, RunEvents
from tier2.format.chunk_format import Compression
from tier2.format.chunk_index import EventInformation
from tier2.storage.object_names import ObjectIdentity
from tier2.storage.run_values import EntryEvents, LayoutEntry
from tier2.storage.settings import StorageSettings


@dataclass(frozen=True, slots=True)
class ChunkPlace:
    """Where an uploaded chunk image lies."""

    identity: ObjectIdentity
    position: int
    size: int
    file_crc32: int


@dataclass(slots=True)
class NewChunk:
    """Bytes on their way into an object. `place` is set once, when the object is stored."""

    offset: int
    """First offset, in the segment the bytes were written to."""
    runs: list[BufferView] = field(default_factory=list)
    events: list[EventInformation | None] = field(default_factory=list)
    """One for each run; None where nothing is known."""
    length: int = 0
    place: ChunkPlace | None = None
    compression: Compression | None = None
    """None: as the settings say."""
    crc32: int | None = None
    """Of the bytes as they were read. If given, the encoded image is decoded and compared before it is stored."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A chunk, old or new, at its place in a segment's layout."""

    start_offset: int
    length: int
    chunk: NewChunk | LayoutEntry
    events: EntryEvents = EntryEvents.AS_IN_IMAGE
    event_shift: int = 0

    @property
    def end_offset(self) -> int:
        return self.start_offset + self.length

    def moved(self, piece: MergePiece) -> "Stretch":
        """The same bytes as a part of the segment that `piece` moves their segment into (H76)."""
        events, shift = EntryEvents.NOT_COUNTED, 0
        if piece.first_event is not None and self.events is not EntryEvents.NOT_COUNTED:
            events, shift = self.events, self.event_shift + piece.first_event
            if piece.begins_event and self.start_offset == 0:
                events = EntryEvents.BEGINS_ON_ONE
        return Stretch(self.start_offset + piece.offset, self.length, self.chunk, events, shift)

    def entry(self) -> LayoutEntry:
        """As it goes into the layout; a new chunk must have been stored."""
        chunk = self.chunk
        if isinstance(chunk, LayoutEntry):
            assert chunk.length == self.length, f"length changed {chunk.length} -> {self.length}"
            return replace(
                chunk,
                start_offset=self.start_offset,
                end_offset=self.end_offset,
                events=self.events,
                event_shift=self.event_shift,
            )
        place = chunk.place
        assert place is not None, f"chunk was not stored offset={chunk.offset}"
        return LayoutEntry(
            self.start_offset,
            self.end_offset,
            place.identity,
            place.position,
            place.size,
            place.file_crc32,
            chunk.offset,
            self.events,
            self.event_shift,
        )


def cut_into_chunks(
    offset: int,
    runs: Sequence[BufferView],
    events: Sequence[RunEvents | None],
    chunk_bytes_max: int,
) -> Iterator[NewChunk]:
    """Chunks of at most `chunk_bytes_max` bytes, except where one run alone is longer."""
    chunk = NewChunk(offset)
    for run, described in zip(runs, events, strict=True):
        if not len(run):
            continue
        if chunk.length and chunk.length + len(run) > chunk_bytes_max:
            yield chunk
            chunk = NewChunk(chunk.offset + chunk.length)
        chunk.runs.append(run)
        chunk.events.append(None if described is None else _event_information(described))
        chunk.length += len(run)
    if chunk.length:
        yield chunk


def _event_information(described: RunEvents) -> EventInformation:
    """In the words of the chunk format."""
    return EventInformation(
        first_event_position=None if described.first_number is None else 0,
        first_event_number=described.first_number or 0,
        lowest_time_ms=described.lowest_time_ms,
        highest_time_ms=described.highest_time_ms,
    )


def gather_into_objects(
    chunks: Sequence[NewChunk], settings: StorageSettings
) -> list[list[NewChunk]]:
    """Which chunks share an object, in the order in which they lie there."""
    objects: list[list[NewChunk]] = []
    pack: list[NewChunk] = []
    pack_bytes = 0
    for chunk in chunks:
        if chunk.length >= settings.solo_chunk_bytes_min:
            objects.append([chunk])
            continue
        if pack and (
            pack_bytes + chunk.length > settings.pack_bytes_max
            or len(pack) == settings.pack_chunks_max
        ):
            objects.append(pack)
            pack, pack_bytes = [], 0
        pack.append(chunk)
        pack_bytes += chunk.length
    if pack:
        objects.append(pack)
    return objects
