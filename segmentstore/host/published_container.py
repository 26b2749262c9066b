"""What Tier 2 has published of a container that stays down, for readers: no claim, no write, no log.

PublishedContainer stands in the place of a container that failed again and again for the same cause. Tier 1 holds
what was acknowledged and not published yet, and no process reads it now; so this container says only what the manifest
proves:

- Published bytes are read. At and behind the published length of a segment that is not sealed there a read is refused
  with the cause of the failure: it is not the end.
- A segment is sealed if the manifest says so. It is not said to be open: its properties name why the container is down
  (`container_down`), and what follows from being open is refused.
- A name that the manifest lacks is refused with the cause: the log may have the segment.
- What the container did behind the last publication is unknown: a segment that it truncated, deleted or merged away is
  still read as it was published.
- The manifest is read by the first request, and anew when an object of it is missing; it is not replaced while the
  container is down, because only its owner replaces it.
"""

import asyncio
from asyncio import Future
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import NoReturn

from segmentstore.contracts.errors import (
    BadOffsetError,
    ContainerNotFoundError,
    ObjectNotFoundError,
    SegmentTruncatedError,
)
from segmentstore.contracts.identifiers import ContainerId, SegmentId
from segmentstore.contracts.segments import ReadResultEntryKind, SegmentProperties
from segmentstore.contracts.storage import ReadOnlyStorage, SegmentRecord
from tier2.store_reader import ContainerReader

_PIECE_BYTES = 1 << 20
"""What one entry of a read asks Tier 2 for at most."""


class PublishedContainer:
    """SegmentReads of one container that is down; `why` is what refusals say."""

    def __init__(self, *, reader: ContainerReader, why: str) -> None:
        self._reader = reader
        self._why = why
        self._is_open = False
        self._opening = asyncio.Lock()

    @property
    def container_id(self) -> ContainerId:
        return self._reader.container_id

    @asynccontextmanager
    async def open_segment(self, name: str) -> AsyncIterator["PublishedSegment"]:
        """Raises ContainerNotFoundError for a name that is not published, CorruptedDataError, StorageError."""
        record = await self._find(name)
        yield PublishedSegment(storage=self._reader, properties=self._properties(record))

    async def info(self, name: str) -> SegmentProperties:
        return self._properties(await self._find(name))

    async def _find(self, name: str) -> SegmentRecord:
        await self._open()
        record = await self._reader.find(name)
        if record is None:
            self._refuse("Tier 2 has no segment of that name, and its log cannot be asked")
        return record

    async def _open(self) -> None:
        async with self._opening:
            if self._is_open:
                return
            try:
                await self._reader.refresh()
            except ObjectNotFoundError:
                self._refuse("it has published nothing yet")
            self._is_open = True

    def _refuse(self, what: str) -> NoReturn:
        raise ContainerNotFoundError(self.container_id, f"{what}: {self._why}")

    def _properties(self, record: SegmentRecord) -> SegmentProperties:
        return SegmentProperties(
            name=record.name,
            segment_id=record.segment_id,
            container_id=self.container_id,
            start_offset=record.start_offset,
            length=record.length,
            storage_length=record.length,
            sealed=record.sealed,
            sealed_in_storage=record.sealed,
            last_modified_ms=record.last_modified_ms,
            core_attributes=record.core_attributes,
            active=False,
            container_down=self._why,
        )


@dataclass(frozen=True, slots=True)
class PublishedEntry:
    """One step of a read: bytes that Tier 2 gave, the end of a sealed segment, or bytes that are truncated."""

    kind: ReadResultEntryKind
    offset: int
    bytes_read: bytes
    segment: SegmentProperties

    async def content(self) -> bytes:
        if self.kind is ReadResultEntryKind.TRUNCATED:
            raise SegmentTruncatedError(self.segment.name, start_offset=self.segment.start_offset)
        return self.bytes_read


class PublishedSegment:
    """ReadOnlySegment over what is published of it, as of opening."""

    def __init__(self, *, storage: ReadOnlyStorage, properties: SegmentProperties) -> None:
        self._storage = storage
        self._properties = properties

    @property
    def name(self) -> str:
        return self._properties.name

    @property
    def segment_id(self) -> SegmentId:
        return self._properties.segment_id

    def is_sure(self) -> bool:
        """What is published is no one's word but Tier 2's; what only an owner could say is refused."""
        return True

    async def confirm(self) -> None:
        return

    def info(self) -> SegmentProperties:
        """As Tier 2 has it."""
        return self._properties

    def read_nowait(self, offset: int, length_max: int) -> bytes | None:  # noqa: ARG002 - nothing is in memory
        """None: nothing is in memory. Raises as read()."""
        self._check_offset(offset)
        if offset < self._properties.start_offset:
            raise SegmentTruncatedError(self.name, start_offset=self._properties.start_offset)
        return None

    def views_nowait(self, offset: int, length_max: int) -> Sequence[memoryview]:
        """None: nothing is in memory. Raises as read()."""
        self.read_nowait(offset, length_max)
        return ()

    def readable(self, offset: int) -> "Future[None]":
        """Done: there are bytes, or the segment is sealed. Raises ContainerNotFoundError where only the container
        could tell of more."""
        self._check_offset(min(offset, self._properties.length))
        done: Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    async def read(self, offset: int, max_length: int) -> AsyncGenerator[PublishedEntry, None]:
        """The published bytes from `offset` on; it ends where they do.

        Raises ContainerNotFoundError at and behind the published length of a segment that is not sealed,
        BadOffsetError behind that of a sealed one, CorruptedDataError, StorageError.
        """
        self._check_offset(offset)
        segment = self._properties
        if offset < segment.start_offset:
            yield PublishedEntry(ReadResultEntryKind.TRUNCATED, offset, b"", segment)
            return
        end = min(segment.length, offset + max_length)
        while offset < end:
            found = await self._storage.read(
                segment.segment_id, offset, min(end - offset, _PIECE_BYTES)
            )
            content = bytes(found.content[offset - found.offset : end - found.offset])
            yield PublishedEntry(ReadResultEntryKind.STORAGE, offset, content, segment)
            offset += len(content)
        if offset == segment.length and segment.sealed:
            yield PublishedEntry(ReadResultEntryKind.END_OF_SEGMENT, offset, b"", segment)

    def _check_offset(self, offset: int) -> None:
        segment = self._properties
        if offset >= segment.length and segment.may_have_more:
            raise ContainerNotFoundError(
                segment.container_id,
                f"only the first {segment.length} bytes of the segment are in Tier 2: {segment.container_down}",
            )
        if not 0 <= offset <= segment.length:
            raise BadOffsetError(segment.name, expected=segment.length, given=offset)
