"""The index of a table segment: its extended attributes, and the scan of them in key order.

    attribute key      0x01, then the key of the table
    attribute value    u64 offset and u32 length of the newest record; after compaction also u64 version, which
                       without it is the offset. Big-endian. A removed key has no attribute.

and, among its core attributes, so that they are always in memory:

    TABLE_KEY_LENGTH   0 for the hash layout, else the length of every key; a segment that has it is a table
    SEGMENT_TYPE       TABLE, for clients that look at Pravega's attribute
    TABLE_ENTRY_COUNT  keys that exist
    TABLE_LIVE_BYTES   bytes of their newest records

Records and index change in one operation, so whatever brings the one back brings the other.
"""

import asyncio
import struct
from bisect import bisect_left
from collections.abc import Mapping
from concurrent.futures import Executor
from heapq import merge
from typing import Final, NamedTuple

from containers.attributes.attribute_updates import TABLE_INDEX_PREFIX
from containers.attributes.extended_attributes import ask_tier2
from containers.container_settings import TableSettings
from containers.metadata.attribute_table import NumberedValue
from containers.metadata.segment_metadata import SegmentMetadata
from segmentstore.contracts.errors import CorruptedDataError, SegmentNotFoundError
from segmentstore.contracts.identifiers import (
    TABLE_KEY_LENGTH,
    AttributeKey,
    AttributeValue,
    SequenceNumber,
)
from segmentstore.contracts.storage import AttributePage, ReadOnlyStorage

TABLE: Final = 1
"""Value of SEGMENT_TYPE."""

_PLACE = struct.Struct(">QI")
_MOVED_PLACE = struct.Struct(">QIQ")
_PLACE_OFFSET = struct.Struct(">Q")
_PLACE_LENGTH = struct.Struct(">I")
_PLACE_BYTES = _PLACE.size

_KEYS_SORTED_INLINE = 2_000
"""Sorting this many takes about a millisecond."""


class Place(NamedTuple):
    """Where the newest record of a key is."""

    offset: int
    length: int
    version: int


def index_key(key: bytes) -> AttributeKey:
    """The attribute that says where the record of a table's key is."""
    return AttributeKey(TABLE_INDEX_PREFIX + key)


def encode_place(offset: int, length: int) -> bytes:
    """A record whose version is its offset."""
    return _PLACE.pack(offset, length)


def encode_moved(offset: int, length: int, version: int) -> bytes:
    """A record that compaction put there."""
    return _MOVED_PLACE.pack(offset, length, version)


def decode_place(value: AttributeValue) -> Place:
    """Raises CorruptedDataError."""
    if isinstance(value, bytes):
        if len(value) == _PLACE_BYTES:
            offset, length = _PLACE.unpack(value)
            return Place(offset, length, offset)
        if len(value) == _MOVED_PLACE.size:
            return Place(*_MOVED_PLACE.unpack(value))
    raise CorruptedDataError(f"table index is damaged value={value!r}")


def record_length_of(value: AttributeValue) -> int:
    """How long the newest record is. Raises CorruptedDataError."""
    if isinstance(value, bytes) and len(value) == _PLACE_BYTES:
        length: int = _PLACE_LENGTH.unpack_from(value, _PLACE_OFFSET.size)[0]
        return length
    return decode_place(value).length


def stands_at(value: AttributeValue, offset: int) -> bool:
    """Whether that is where the newest record is. Raises CorruptedDataError for a value that is no place."""
    if not isinstance(value, bytes) or len(value) < _PLACE_BYTES:
        return decode_place(value).offset == offset
    return value.startswith(_PLACE_OFFSET.pack(offset))


def is_table(segment: SegmentMetadata) -> bool:
    """Whether the segment was created as a table.

    Only this attribute says so, which nothing but a creation can set: any client may write SEGMENT_TYPE.
    """
    return TABLE_KEY_LENGTH in segment.attributes.core_values


def key_length_of(segment: SegmentMetadata) -> int:
    """0 for the hash layout."""
    value = segment.attributes.core_values.get(TABLE_KEY_LENGTH, 0)
    assert isinstance(value, int), f"key length of {segment!r} is {value!r}"
    return value


class IndexScan:
    """The keys of one active table in byte order, page by page, from memory and the SSTs of Tier 2 together.

    - The SSTs give what is published, memory what is not: its keys are sorted once, and again when an iteration begins
      after the table has changed. An iteration that goes on may use an older list: whatever it lacks was published
      before that, or came into being after the iteration began. A page keeps to one list, which is older than what Tier
      2 answers, though an iteration that begins meanwhile makes a newer one.
    - For every key found memory has the last word, if it knows it.
    - A token is the last key delivered, so it survives whatever happens between two pages, restarts included.
    """

    def __init__(
        self,
        *,
        segment: SegmentMetadata,
        storage: ReadOnlyStorage,
        executor: Executor | None,
        settings: TableSettings,
    ) -> None:
        self._segment = segment
        self._storage = storage
        self._executor = executor
        self._settings = settings
        self._keys: list[AttributeKey] = []
        self._keys_as_of: SequenceNumber | None = None

    def serves(self, segment: SegmentMetadata) -> bool:
        """Whether it was made for this very activation of the segment."""
        return self._segment is segment

    async def page(
        self, *, start: AttributeKey, end: AttributeKey, count: int, begins: bool
    ) -> tuple[list[tuple[bytes, Place]], bool]:
        """Up to `count` keys with start <= attribute key < end and their places, and whether there may be more.

        `begins`: it is the first page of an iteration. Fewer than `count` come with the last page, and with one of long
        keys: they have no more bytes together than a page may have, yet there is at least one.
        """
        if self._keys_as_of is None or (
            begins and self._keys_as_of != self._segment.last_sequence_number
        ):
            await self._sort_keys()
        # Taken before Tier 2 is asked: what a newer list leaves out as published may have come too late for the answer.
        keys = self._keys
        found: list[tuple[bytes, Place]] = []
        following: AttributeKey | None = start
        while following is not None:
            stored, behind = await self._stored(following, end, count)
            bound = end if behind is None else behind
            if self._collect(found, stored, keys, start=following, end=bound, count=count):
                return found, True
            following = behind
        return found, False

    def _collect(
        self,
        found: list[tuple[bytes, Place]],
        stored: Mapping[AttributeKey, AttributeValue],
        keys: list[AttributeKey],
        *,
        start: AttributeKey,
        end: AttributeKey,
        count: int,
    ) -> bool:
        """Add the live keys of [start, end), of Tier 2 and of the list; True if the page is full."""
        attributes = self._segment.attributes
        first = bisect_left(keys, start)
        in_memory = keys[first : bisect_left(keys, end, lo=first)]
        last: AttributeKey | None = None
        total = sum(len(key) for key, _ in found)
        for key in merge(stored, in_memory):
            if key == last:
                continue
            last = key
            value = attributes.committed_value(key) if attributes.is_known(key) else stored.get(key)
            if value is None:
                continue
            total += len(key) - len(TABLE_INDEX_PREFIX)
            if total > self._settings.page_bytes_max and found:
                return True
            found.append((key[len(TABLE_INDEX_PREFIX) :], decode_place(value)))
            if len(found) == count:
                return True
        return False

    async def _stored(
        self, start: AttributeKey, end: AttributeKey, count: int
    ) -> tuple[dict[AttributeKey, AttributeValue], AttributeKey | None]:
        """What Tier 2 has from `start` on, and where to go on."""
        segment = self._segment
        if segment.attributes.complete:
            return {}, None

        async def scan() -> AttributePage:
            page = await self._storage.scan_attributes(
                segment.segment_id,
                start=start,
                end=end,
                count=min(count + 1, self._settings.scan_count),
            )
            if segment.is_gone():
                raise SegmentNotFoundError(segment.name)
            return page

        page = await ask_tier2(segment, scan)
        return dict(page.values), page.following

    async def _sort_keys(self) -> None:
        segment = self._segment
        attributes = segment.attributes
        number = segment.last_sequence_number
        published = SequenceNumber(-1) if attributes.complete else segment.published_sequence_number
        copies = attributes.copy_extended()
        if attributes.extended_count <= _KEYS_SORTED_INLINE:
            keys = _sorted_keys(copies, published)
        else:
            keys = await asyncio.get_running_loop().run_in_executor(
                self._executor, _sorted_keys, copies, published
            )
        if self._keys_as_of is None or number >= self._keys_as_of:
            # Else an iteration that began later has a newer list already, and needs it for its next pages.
            self._keys, self._keys_as_of = keys, number


def _sorted_keys(
    values: tuple[dict[AttributeKey, NumberedValue], ...], published: SequenceNumber
) -> list[AttributeKey]:
    return sorted(
        key
        for part in values
        for key, (value, number) in part.items()
        if value is not None and number > published and key.startswith(TABLE_INDEX_PREFIX)
    )
