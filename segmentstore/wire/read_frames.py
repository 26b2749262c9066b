"""ReadSegment frames, read without going through the fields of a command.

A reader that catches up sends thousands of them a second, and the general codec takes longer than the look into the
cache. Whatever does not fit is left to the codec (None), which says what is wrong. The bytes are those of
`codec/wire_protocol/reads.py`:

    ReadSegment     text segment, int64 offset, int32 suggested length, text token, int64 request id
    text            uint16 length, modified UTF-8
"""

import struct
from typing import Final

from segmentstore.codec.wire_protocol.modified_utf8 import decode_text
from segmentstore.codec.wire_protocol.reads import ReadSegment

_TEXT_LENGTH: Final = struct.Struct(">H")
_PLACE_AND_TOKEN_LENGTH: Final = struct.Struct(">qiH")
_REQUEST_ID: Final = struct.Struct(">q")


def read_request(payload: bytes) -> ReadSegment | None:
    """Of a ReadSegment. Raises ProtocolError if its name or its token is no text."""
    try:
        (name_bytes,) = _TEXT_LENGTH.unpack_from(payload)
        name_end = _TEXT_LENGTH.size + name_bytes
        offset, length, token_bytes = _PLACE_AND_TOKEN_LENGTH.unpack_from(payload, name_end)
        token_at = name_end + _PLACE_AND_TOKEN_LENGTH.size
        token_end = token_at + token_bytes
        (request_id,) = _REQUEST_ID.unpack_from(payload, token_end)
    except struct.error:
        return None
    name = decode_text(payload[_TEXT_LENGTH.size : name_end])
    return ReadSegment(name, offset, length, decode_text(payload[token_at:token_end]), request_id)
