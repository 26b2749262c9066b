"""A table segment read from Tier 2 alone: entries by key, through the index in the segment's attributes.

What of a table lies in Tier 2 (the owner of the format is the tables' room; both are held together by a test):

    attribute key      0x01, then the key
    attribute value    u64 offset, u32 length of the newest record, after compaction also u64 version; big-endian
    record             u8 1, i32 key length, i32 value length, i64 version, key, value

Invariants:

- What is returned is as of one published root or a newer one; a record that compaction moved meanwhile is looked up
  again, at most _ATTEMPTS_MAX times.
- A key that was removed has no entry.
"""

import struct
from collections.abc import AsyncGenerator, Sequence
from typing import Final

from segmentstore.contracts.errors import (
    CorruptedDataError,
    SegmentTruncatedError,
    StorageError,
)
from segmentstore.contracts.identifiers import AttributeKey, AttributeValue
from segmentstore.contracts.storage import SegmentRecord
from tier2.storage.reader import ContainerReader

_INDEX_PREFIX: Final = b"\x01"
_PLACE = struct.Struct(">QI")
_MOVED = struct.Struct(">QIQ")
_HEADER = struct.Struct(">Biiq")
_FORMAT: Final = 1
_ATTEMPTS_MAX: Final = 8
_PAGE: Final = 512


class PublishedTable:
    """One table segment as it is published."""

    def __init__(self, *, container: ContainerReader, name: str) -> None:
        self._container = container
        self._name = name

    async def get(self, keys: Sequence[str]) -> list[bytes | None]:
        """Values in the order of the keys; None where there is no entry, or no such table. Raises StorageError."""
        names = [AttributeKey(_INDEX_PREFIX + key.encode()) for key in keys]
        for _ in range(_ATTEMPTS_MAX):
            record = await self._container.find(self._name)
            if record is None:
                return [None] * len(keys)
            places = await self._container.load_attributes(record.segment_id, names)
            try:
                return [
                    await self._value(record, name, places[name]) if name in places else None
                    for name in names
                ]
            except SegmentTruncatedError:
                # Compaction moved the record between the two looks.
                await self._container.refresh()
        raise StorageError(f"a table moved during every attempt to read it table={self._name!r}")

    async def scan(self, prefix: str) -> AsyncGenerator[tuple[str, bytes], None]:
        """Keys that begin so, with their values, in the order of the keys. Hold it in `aclosing`.

        Entries that change meanwhile may be missed or be of different moments. Raises StorageError.
        """
        record = await self._container.find(self._name)
        if record is None:
            return
        start = _INDEX_PREFIX + prefix.encode()
        # No byte of UTF-8 is 0xff, so it lies above every key that begins with the prefix.
        end = AttributeKey(start + b"\xff")
        following: AttributeKey | None = AttributeKey(start)
        while following is not None:
            page = await self._container.scan_attributes(
                record.segment_id, start=following, end=end, count=_PAGE
            )
            keys = [key[1:].decode() for key, _ in page.values]
            for key, value in zip(keys, await self.get(keys), strict=True):
                if value is not None:
                    yield key, value
            following = page.following

    async def _value(
        self, record: SegmentRecord, name: AttributeKey, place: AttributeValue
    ) -> bytes:
        offset, length = _decode_place(place)
        content = b""
        while len(content) < length:
            at = offset + len(content)
            found = await self._container.read(record.segment_id, at, length - len(content))
            content += found.content[at - found.offset :][: length - len(content)]
        key = name[1:]
        kind, key_length, value_length, _ = _HEADER.unpack_from(content)
        if (
            kind != _FORMAT
            or value_length < 0
            or _HEADER.size + key_length + value_length != length
            or content[_HEADER.size : _HEADER.size + key_length] != key
        ):
            raise CorruptedDataError(
                f"table index points at another record table={self._name!r} key={key!r} offset={offset}"
            )
        return content[_HEADER.size + key_length :]


def _decode_place(value: AttributeValue) -> tuple[int, int]:
    if isinstance(value, bytes) and len(value) in (_PLACE.size, _MOVED.size):
        offset, length = _PLACE.unpack_from(value)
        return offset, length
    raise CorruptedDataError(f"table index is damaged value={value!r}")
