"""Table frames with a single key, read and written without going through the fields of a command.

Clients that look up and update one key at a time send them by the ten thousand, and the general codec takes longer
than the table. Only that one shape is known here; whatever looks different, damaged frames among it, is left to the
codec (None), which reads all shapes and says what is wrong. The bytes are those of `codec/wire_protocol/tables.py`:

    ReadTable             int64 request id, text segment, text token, int32 1, key
    UpdateTableEntries    the same, then the value, then int64 table offset (optional)
    TableRead             int64 request id, text segment, int32 1, key, value
    TableEntriesUpdated   int64 request id, int32 1, int64 version

    text    uint16 length, modified UTF-8
    key     int32 (4 + length + 8), int32 length, the key, int64 version
    value   int32 (4 + length), int32 length, the value
"""

import struct
from typing import Final, NamedTuple

from segmentstore.codec.wire_protocol.command import FRAME_HEADER_BYTES, frame
from segmentstore.codec.wire_protocol.modified_utf8 import decode_text, encode_text
from segmentstore.codec.wire_protocol.tables import (
    NO_TABLE_OFFSET,
    TableEntriesUpdated,
    TableRead,
    UpdateTableEntries,
)
from segmentstore.contracts.tables import NOT_EXISTS, TableEntry

_REQUEST_AND_LENGTH: Final = struct.Struct(">qH")
_UINT16: Final = struct.Struct(">H")
_COUNT_AND_KEY: Final = struct.Struct(">iii")
_VALUE: Final = struct.Struct(">ii")
_VERSION: Final = struct.Struct(">q")
_VERSION_AND_VALUE: Final = struct.Struct(">qii")
_UPDATED: Final = struct.Struct(">iiqiq")
_KEY_OVERHEAD_BYTES: Final = 12
"""What the outer length of a key counts beyond the key."""


class SingleKey(NamedTuple):
    """The part that both frames have in common."""

    request_id: int
    segment: str
    key: bytes
    version: int
    end: int
    """Where in the payload the next field begins."""


def read_single_key(payload: bytes) -> SingleKey | None:
    """Of a ReadTable, or of the beginning of an UpdateTableEntries. Raises ProtocolError if the name is no text."""
    try:
        request_id, name_bytes = _REQUEST_AND_LENGTH.unpack_from(payload)
        name_end = _REQUEST_AND_LENGTH.size + name_bytes
        (token_bytes,) = _UINT16.unpack_from(payload, name_end)
        counted = name_end + _UINT16.size + token_bytes
        count, outer, key_bytes = _COUNT_AND_KEY.unpack_from(payload, counted)
        if count != 1 or key_bytes <= 0 or outer != key_bytes + _KEY_OVERHEAD_BYTES:
            return None
        key_at = counted + _COUNT_AND_KEY.size
        key_end = key_at + key_bytes
        (version,) = _VERSION.unpack_from(payload, key_end)
    except struct.error:
        return None
    segment = decode_text(payload[_REQUEST_AND_LENGTH.size : name_end])
    end = key_end + _VERSION.size
    return SingleKey(request_id, segment, payload[key_at:key_end], version, end)


def read_single_update(payload: bytes) -> UpdateTableEntries | None:
    """The command, without its token. Raises ProtocolError for a name that is no text."""
    single = read_single_key(payload)
    if single is None:
        return None
    request_id, segment, key, version, end = single
    try:
        outer, value_bytes = _VALUE.unpack_from(payload, end)
    except struct.error:
        return None
    value_at = end + _VALUE.size
    rest = len(payload) - value_at - value_bytes
    if value_bytes < 0 or outer != 4 + value_bytes or rest < 0:
        return None
    if rest == 0:
        table_offset = NO_TABLE_OFFSET
    elif rest >= _VERSION.size:
        (table_offset,) = _VERSION.unpack_from(payload, value_at + value_bytes)
    else:
        return None
    entry = TableEntry(key, payload[value_at : value_at + value_bytes], version)
    return UpdateTableEntries(request_id, segment, "", (entry,), table_offset)


def encode_single_read(asked: SingleKey, found: TableEntry | None) -> bytes:
    """A TableRead. Raises ProtocolError if it does not fit into a frame."""
    name, key = encode_text(asked.segment), asked.key
    version, value = (NOT_EXISTS, b"") if found is None else (found.version, found.value)
    return frame(
        TableRead.type,
        _REQUEST_AND_LENGTH.pack(asked.request_id, len(name)),
        name,
        _COUNT_AND_KEY.pack(1, len(key) + _KEY_OVERHEAD_BYTES, len(key)),
        key,
        _VERSION_AND_VALUE.pack(version, 4 + len(value), len(value)),
        value,
    )


def encode_single_update(request_id: int, version: int) -> bytes:
    """A TableEntriesUpdated."""
    length = _UPDATED.size - FRAME_HEADER_BYTES
    return _UPDATED.pack(TableEntriesUpdated.type, length, request_id, 1, version)
