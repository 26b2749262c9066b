"""Everything the stream protocol remembers of a segment, as attributes of that segment.

They change only in the operation that carries the bytes and the seal they belong to, so a crash leaves all or nothing.

Keys (reserved: the segment verbs refuse to set them, see `is_reserved_key`):

    core attributes, always in memory with their segment, 16 bytes: 80 00 00 00 00 00 00 00 "stream" 00 nn
        nn 01  content type     UTF-8, as the creator sent it
           02  time to live     number, seconds since the last access
           03  expiry           UTF-8, the RFC 3339 instant as sent
           04  stream sequence  bytes of the last accepted Stream-Seq
           05  closer           producer record (below), then the producer's id in UTF-8
           06  producer count   number
           07  initialising     1 while a create has not yet stored its first bytes or its seal; else absent
           08  fork origin      UTF-8 JSON, see ForkOrigin: [source, source id, offset, sub-offset, copied, ancestors]
    core attributes of a fork registry, a segment of its own (see stream_directory.py)
           09  fork count       number of forks that copied from the source and still exist
           0a  deleted          1 once the source was deleted while forks of it exist; else absent
    one extended attribute per producer: "stream/producer/" then the producer's id in UTF-8
        producer record

    producer record, 16 bytes: epoch (8, big endian), last accepted sequence (8, big endian)

A segment without them was made by the segment verbs: as a stream it is application/octet-stream and never expires.

An RFC 3339 instant, as `Stream-Expires-At` carries it, is a date, a time, and `Z` or a numeric offset.
"""

import json
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from segmentstore.contracts.errors import DataCorruptionError, InvalidRequestError
from segmentstore.contracts.identifiers import (
    CONTENT_TYPE,
    CORE_ATTRIBUTE_PREFIX,
    AttributeKey,
    AttributeValue,
)
from segmentstore.contracts.segments import JSON_MEDIA_TYPE, AttributeUpdate, media_type_of

DEFAULT_CONTENT_TYPE = "application/octet-stream"

_CORE_NAMESPACE = CORE_ATTRIBUTE_PREFIX + b"stream"
_EXTENDED_NAMESPACE = b"stream/"
_PRODUCER_PREFIX = _EXTENDED_NAMESPACE + b"producer/"
_PRODUCER_RECORD = struct.Struct(">QQ")

INSTANT_CHARACTERS_MAX = 40

# fromisoformat alone takes dates, week numbers and instants without an offset, which are not RFC 3339.
_INSTANT = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?([Zz]|[+-][0-9]{2}:[0-9]{2})"
)


def _core_key(number: int) -> AttributeKey:
    return AttributeKey(_CORE_NAMESPACE + number.to_bytes(2, "big"))


TIME_TO_LIVE_KEY = _core_key(2)
EXPIRES_AT_KEY = _core_key(3)
STREAM_SEQUENCE_KEY = _core_key(4)
CLOSER_KEY = _core_key(5)
PRODUCER_COUNT_KEY = _core_key(6)
FORK_ORIGIN_KEY = _core_key(8)
FORK_COUNT_KEY = _core_key(9)
DELETED_KEY = _core_key(10)


def is_reserved_key(key: bytes) -> bool:
    """Whether only the stream protocol may write the attribute."""
    return key.startswith((_CORE_NAMESPACE, _EXTENDED_NAMESPACE))


def producer_key(producer_id: str) -> AttributeKey:
    """Under which key a producer's record is."""
    return AttributeKey(_PRODUCER_PREFIX + producer_id.encode())


class ProducerRecord(NamedTuple):
    """What a stream remembers of one idempotent producer."""

    epoch: int
    sequence: int
    """The highest accepted one of that epoch."""

    def encode(self) -> bytes:
        return _PRODUCER_RECORD.pack(self.epoch, self.sequence)


def producer_record(value: AttributeValue | None) -> ProducerRecord | None:
    """Raises DataCorruptionError if the stored value cannot be one."""
    if value is None:
        return None
    if not isinstance(value, bytes) or len(value) != _PRODUCER_RECORD.size:
        raise DataCorruptionError(f"producer record is malformed value={value!r}")
    return ProducerRecord(*_PRODUCER_RECORD.unpack(value))


@dataclass(frozen=True, slots=True)
class Closer:
    """The producer request that closed a stream."""

    producer_id: str
    record: ProducerRecord

    def encode(self) -> bytes:
        return self.record.encode() + self.producer_id.encode()


def closer_of(value: AttributeValue | None) -> Closer | None:
    """None if no producer closed the stream."""
    if not isinstance(value, bytes):
        return None
    size = _PRODUCER_RECORD.size
    return Closer(value[size:].decode(), ProducerRecord(*_PRODUCER_RECORD.unpack(value[:size])))


@dataclass(frozen=True, slots=True)
class ForkOrigin:
    """Where a fork's first bytes came from."""

    source: str
    source_id: int
    offset: int
    """Byte offset of Stream-Fork-Offset in the source."""
    sub_offset: int
    copied: int
    """Bytes inherited."""
    ancestors: Sequence[tuple[int, int]]
    """(segment id, bytes in common): tokens that the fork's readers may still hold. The source is the last."""

    def encode(self) -> bytes:
        fields = [
            self.source,
            self.source_id,
            self.offset,
            self.sub_offset,
            self.copied,
            list(self.ancestors),
        ]
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


def _fork_origin(value: AttributeValue | None) -> ForkOrigin | None:
    if not isinstance(value, bytes):
        return None
    return ForkOrigin(*json.loads(value))


@dataclass(frozen=True, slots=True)
class StreamConfiguration:
    """What a PUT fixed until the stream is deleted."""

    content_type: str = DEFAULT_CONTENT_TYPE
    time_to_live_seconds: int | None = None
    expires_at: str | None = None
    fork_origin: ForkOrigin | None = None

    @property
    def media_type(self) -> str:
        return media_type_of(self.content_type)

    @property
    def is_json(self) -> bool:
        return self.media_type == JSON_MEDIA_TYPE

    @property
    def is_text(self) -> bool:
        """Whether SSE carries the bytes as they are."""
        return self.is_json or self.media_type.startswith("text/")

    @property
    def may_expire(self) -> bool:
        return self.time_to_live_seconds is not None or self.expires_at is not None

    @property
    def expires_at_ms(self) -> int | None:
        return None if self.expires_at is None else instant_ms(self.expires_at)

    def updates(self) -> list[AttributeUpdate]:
        """What a create stores."""
        updates = [AttributeUpdate(CONTENT_TYPE, self.content_type.encode())]
        if self.time_to_live_seconds is not None:
            updates.append(AttributeUpdate(TIME_TO_LIVE_KEY, self.time_to_live_seconds))
        if self.expires_at is not None:
            updates.append(AttributeUpdate(EXPIRES_AT_KEY, self.expires_at.encode()))
        if self.fork_origin is not None:
            updates.append(AttributeUpdate(FORK_ORIGIN_KEY, self.fork_origin.encode()))
        return updates


def configuration_of(attributes: Mapping[AttributeKey, AttributeValue]) -> StreamConfiguration:
    """Read a stream's configuration out of its segment's core attributes."""
    content_type = attributes.get(CONTENT_TYPE)
    time_to_live = attributes.get(TIME_TO_LIVE_KEY)
    expires_at = attributes.get(EXPIRES_AT_KEY)
    return StreamConfiguration(
        content_type=(
            content_type.decode() if isinstance(content_type, bytes) else DEFAULT_CONTENT_TYPE
        ),
        time_to_live_seconds=time_to_live if isinstance(time_to_live, int) else None,
        expires_at=expires_at.decode() if isinstance(expires_at, bytes) else None,
        fork_origin=_fork_origin(attributes.get(FORK_ORIGIN_KEY)),
    )


def instant_ms(text: str) -> int:
    """The Unix time in milliseconds of an RFC 3339 instant. Raises InvalidRequestError."""
    if len(text) > INSTANT_CHARACTERS_MAX or _INSTANT.fullmatch(text) is None:
        raise InvalidRequestError(
            f"not an RFC 3339 instant value={text[:INSTANT_CHARACTERS_MAX]!r}"
        )
    try:
        return round(datetime.fromisoformat(text.upper()).timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        raise InvalidRequestError(f"no such instant value={text!r}") from error
