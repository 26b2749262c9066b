"""Table frames with a single key, read and written without going through the fields of a command.

Clients that look up and update one key at a time send such frames by the ten thousand, and the general codec takes
longer than the table. Only this one shape is known here; whatever looks different, damaged frames among it, is left to
the codec (None), which reads all shapes and says what is wrong. The bytes are those of
`codec/wire_protocol/tables.py`:

    ReadTable             int64 request id, text segment, text token, int32 1, key
    UpdateTableEntries    the same, then the value, then int64 table offset (optional)
    TableRead             int64 request id, text segment, int32 1, key, value
    TableEntriesUpdated   int64 request id, int32 1, int64 version

    text    uint16 length, modified UTF-8
    key     int32 (4 + length + 8), int32 length, the key, int64 version
    value   int32 (4 + length), int32 length, the value
"""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from segmentstore.codec.wire_protocol.command import FRAME_HEADER, FRAME_HEADER_BYTES
from segmentstore.codec.wire_protocol.fields import decode_text
from segmentstore.codec.wire_protocol.tables import (
    NO_TABLE_OFFSET,
    TableEntriesUpdated,
    TableRead,
    UpdateTableEntries,
)
from segmentstore.contracts.tables import NOT_EXISTS, TableEntry

_UPDATE_TABLE: Final = UpdateTableEntries.type
REQUEST_ID_BYTES: Final = 8
_REQUEST_AND_LENGTH: Final = struct.Struct(">qH")
_UINT16: Final = struct.Struct(">H")
_COUNT_AND_KEY: Final = struct.Struct(">iii")
_INT64: Final = struct.Struct(">q")
_VERSION_AND_VALUE: Final = struct.Struct(">qii")
_LENGTH_BYTES: Final = 4
_NO_TABLE_OFFSET: Final = _INT64.pack(NO_TABLE_OFFSET)
_ENTRIES_UPDATED: Final = struct.Struct(">iiqiq")
_ENTRIES_UPDATED_PAYLOAD_BYTES: Final = _ENTRIES_UPDATED.size - FRAME_HEADER_BYTES
_TABLE_READ_HEAD: Final = struct.Struct(">ii8s")
_TABLE_READ_FIXED_BYTES: Final = REQUEST_ID_BYTES + _VERSION_AND_VALUE.size
"""A TableRead without its name, its key and its value."""
KEY_AT: Final = _COUNT_AND_KEY.size
"""Where a single key begins, counted from the count of keys."""
_KEY_OVERHEAD_BYTES: Final = 12
"""What the outer length of a key counts beyond the key."""


class NamedTable(NamedTuple):
    """Which table a ReadTable or UpdateTableEntries is for: the next one for it has the same bytes there."""

    content: bytes
    """Name and token with their lengths, so another name or token never begins with them."""
    name: bytes
    """The name alone, with its length."""
    segment: str
    end: int
    """Where in the payload the keys or entries begin."""

    def begins(self, payload: bytes) -> bool:
        """Whether that payload is for the same table, with the same token."""
        return payload.startswith(self.content, REQUEST_ID_BYTES)


def payload_of_next(
    view: memoryview, position: int, limit: int, *, kind: int
) -> tuple[bytes, int] | None:
    """The payload of the frame at `position` and where it ends, if it is of that kind and whole before `limit`."""
    begin = position + FRAME_HEADER_BYTES
    if begin > limit:
        return None
    found, length = FRAME_HEADER.unpack_from(view, position)
    end = begin + length
    if found != kind or end > limit:
        return None
    return bytes(view[begin:end]), end


def read_named_table(payload: bytes) -> NamedTable | None:
    """Raises ProtocolError if the name is no text."""
    try:
        _, name_bytes = _REQUEST_AND_LENGTH.unpack_from(payload)
        name_end = _REQUEST_AND_LENGTH.size + name_bytes
        (token_bytes,) = _UINT16.unpack_from(payload, name_end)
    except struct.error:
        return None
    end = name_end + _UINT16.size + token_bytes
    if end > len(payload):
        return None
    segment = decode_text(payload[_REQUEST_AND_LENGTH.size : name_end])
    return NamedTable(
        payload[REQUEST_ID_BYTES:end], payload[REQUEST_ID_BYTES:name_end], segment, end
    )


def read_request_id(payload: bytes) -> int:
    """What any of these payloads begins with."""
    request_id: int = _INT64.unpack_from(payload)[0]
    return request_id


def read_single_key(payload: bytes, begin: int) -> int | None:
    """Where the one key of a ReadTable ends that begins `KEY_AT` behind `begin`."""
    try:
        count, outer, key_bytes = _COUNT_AND_KEY.unpack_from(payload, begin)
    except struct.error:
        return None
    end: int = begin + KEY_AT + key_bytes
    if (
        count != 1
        or key_bytes <= 0
        or outer != key_bytes + _KEY_OVERHEAD_BYTES
        or len(payload) < end + _INT64.size
    ):
        return None
    return end


def read_single_update(payload: bytes, begin: int) -> TableEntry | None:
    """The one entry of an UpdateTableEntries from `begin` on; None also for one with a table offset."""
    try:
        count, outer, key_bytes = _COUNT_AND_KEY.unpack_from(payload, begin)
        if count != 1 or key_bytes <= 0 or outer != key_bytes + _KEY_OVERHEAD_BYTES:
            return None
        key_at = begin + _COUNT_AND_KEY.size
        key_end = key_at + key_bytes
        version, outer, value_bytes = _VERSION_AND_VALUE.unpack_from(payload, key_end)
    except struct.error:
        return None
    value_at = key_end + _VERSION_AND_VALUE.size
    value_end = value_at + value_bytes
    if value_bytes < 0 or outer != 4 + value_bytes or value_end > len(payload):
        return None
    if value_end < len(payload) and payload[value_end:] != _NO_TABLE_OFFSET:
        return None
    return TableEntry(payload[key_at:key_end], payload[value_at:value_end], version)


class SameShapeUpdates:
    """UpdateTableEntries of one table that differ in request id, key, version and value, and in no length.

    A client that keeps many updates under way sends such ones: a sequence of them is read in one go, and everything
    else in them is compared with what the first one had there.
    """

    __slots__ = (
        "_behind_key",
        "_between",
        "_fields",
        "_head",
        "_tail",
        "entry_bytes",
        "frame_bytes",
    )

    def __init__(self, named: NamedTable, entry: TableEntry, payload: bytes) -> None:
        """As the update of `entry` that `payload` is, behind what names its table."""
        key_bytes, value_bytes = len(entry.key), len(entry.value)
        key_at = named.end + KEY_AT
        value_at = key_at + key_bytes + _VERSION_AND_VALUE.size
        self._head = FRAME_HEADER.pack(_UPDATE_TABLE, len(payload))
        self._between = payload[REQUEST_ID_BYTES:key_at]
        self._behind_key = payload[value_at - 2 * _LENGTH_BYTES : value_at]
        self._tail = payload[value_at + value_bytes :]
        self._fields = struct.Struct(
            f">{len(self._head)}sq{len(self._between)}s{key_bytes}sq{len(self._behind_key)}s"
            f"{value_bytes}s{len(self._tail)}s"
        )
        self.frame_bytes = self._fields.size
        self.entry_bytes = key_bytes + value_bytes

    def read(
        self, view: memoryview, position: int, limit: int, *, count: int
    ) -> tuple[list[int], list[TableEntry]]:
        """Request ids and entries of up to `count` that are whole before `limit`, from `position` on."""
        request_ids: list[int] = []
        entries: list[TableEntry] = []
        head, between = self._head, self._between
        behind_key, end = self._behind_key, self._tail
        count = min(count, (limit - position) // self.frame_bytes)
        if count <= 0 or view[position : position + len(head)] != head:
            return request_ids, entries
        run = view[position : position + count * self.frame_bytes]
        for start, request_id, name, key, version, lengths, value, tail in self._fields.iter_unpack(
            run
        ):
            if start != head or name != between or lengths != behind_key or tail != end:
                break
            request_ids.append(request_id)
            entries.append(TableEntry(key, value, version))
        return request_ids, entries


def encode_single_read(
    request_id: bytes, name: bytes, asked: bytes, found: TableEntry | None
) -> tuple[bytes, bytes, bytes, bytes, bytes]:
    """The parts of a TableRead. `request_id`, the `name` with its length, and what was `asked` for, from the count
    of keys to the end of the key, are the bytes of the ReadTable."""
    version, value = (NOT_EXISTS, b"") if found is None else (found.version, found.value)
    value_bytes = len(value)
    length = _TABLE_READ_FIXED_BYTES + len(name) + len(asked) + value_bytes
    return (
        _TABLE_READ_HEAD.pack(TableRead.type, length, request_id),
        name,
        asked,
        _VERSION_AND_VALUE.pack(version, 4 + value_bytes, value_bytes),
        value,
    )


def encode_single_updates(request_ids: Sequence[int], versions: Sequence[int]) -> bytes:
    """A TableEntriesUpdated for each."""
    pack, kind, length = (
        _ENTRIES_UPDATED.pack,
        TableEntriesUpdated.type,
        _ENTRIES_UPDATED_PAYLOAD_BYTES,
    )
    return b"".join(
        [
            pack(kind, length, request_id, 1, version)
            for request_id, version in zip(request_ids, versions, strict=True)
        ]
    )
