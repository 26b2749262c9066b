"""The record of a topic as it stands in the catalogue, a table: one entry for each topic, its name in UTF-8 the key.

    u8         version, 1
    u8         state: 1 being created, 2 there, 3 being deleted
    16 bytes   id of the topic: drawn at its creation, never given to another one
    u32        partitions that are there
    u32        partitions that are to be there: more while some are being added
    i64        creation, Unix milliseconds
    u16        count of settings, and for each: u16 length of the word, the word, u16 length of the value, the value

Numbers are big-endian, words and values UTF-8.

What a topic is to the store is its id: segments of its partitions are named by the name and the id, so a topic that is
deleted and created again never meets old bytes, nor what was sent to the old one.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import Final
from uuid import UUID

from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.contracts.segments import SYSTEM_PREFIX
from segmentstore.topics.errors import InvalidTopicError

CATALOGUE_TABLE: Final = f"{SYSTEM_PREFIX}_topics/catalogue"
TOPIC_NAME_LENGTH_MAX: Final = 249

PARTITION_PREFIX: Final = f"{SYSTEM_PREFIX}_topics/"
"""What names of partitions' segments begin with."""
_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")
_VERSION: Final = 1
_HEAD: Final = Struct(">BB16sIIqH")
_LENGTH: Final = Struct(">H")


class TopicState(IntEnum):
    """Persistent: never renumber."""

    CREATING = 1
    ACTIVE = 2
    DELETING = 3


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """One topic."""

    state: TopicState
    topic_id: UUID
    partitions: int
    partitions_target: int
    created_ms: int
    config: Mapping[str, str]

    @property
    def is_settled(self) -> bool:
        """Whether nothing is to be finished."""
        return self.state is TopicState.ACTIVE and self.partitions == self.partitions_target


def check_topic_name(name: str) -> None:
    """Raises InvalidTopicError."""
    if len(name) > TOPIC_NAME_LENGTH_MAX or name in (".", "..") or not _NAME.fullmatch(name):
        raise InvalidTopicError(
            f"a topic's name has 1 to {TOPIC_NAME_LENGTH_MAX} letters, digits, dots, hyphens and"
            f" underscores, and is not . or .. name={name!r}"
        )


def partition_segment_name(name: str, topic_id: UUID, index: int) -> str:
    """Clients of segments can neither read nor write it by that name."""
    return f"{PARTITION_PREFIX}{name}~{topic_id.hex}/{index}"


def partition_segments_prefix(name: str) -> str:
    """What the names of all segments of topics of that name begin with, whatever their ids."""
    return f"{PARTITION_PREFIX}{name}~"


def parse_partition_segment(name: str) -> tuple[str, int] | None:
    """Topic and index of the partition whose segment has that name; None if none has."""
    topic, tilde, rest = name.removeprefix(PARTITION_PREFIX).partition("~")
    _, _, index = rest.partition("/")
    if not (name.startswith(PARTITION_PREFIX) and tilde and index.isascii() and index.isdigit()):
        return None
    return topic, int(index)


def topic_id_of_segment(name: str) -> UUID | None:
    """Of the topic to which a partition's segment of that name belongs; None if it is no partition's."""
    if parse_partition_segment(name) is None:
        return None
    text, _, _ = name.partition("~")[2].partition("/")
    try:
        return UUID(hex=text)
    except ValueError:
        return None


def encode_topic(record: TopicRecord) -> bytes:
    """The value of the entry."""
    content = bytearray(
        _HEAD.pack(
            _VERSION,
            record.state,
            record.topic_id.bytes,
            record.partitions,
            record.partitions_target,
            record.created_ms,
            len(record.config),
        )
    )
    for word, value in sorted(record.config.items()):
        for text in (word.encode(), value.encode()):
            content += _LENGTH.pack(len(text)) + text
    return bytes(content)


def decode_topic(value: bytes, *, name: str) -> TopicRecord:
    """Raises CorruptedDataError."""
    if len(value) < _HEAD.size or value[0] != _VERSION:
        raise CorruptedDataError(f"a topic's record is cut or of another version name={name!r}")
    _, state, topic_id, partitions, target, created_ms, count = _HEAD.unpack_from(value)
    at = _HEAD.size
    texts: list[str] = []
    for _ in range(2 * count):
        if len(value) - at < _LENGTH.size:
            raise CorruptedDataError(f"a topic's settings are cut name={name!r}")
        (length,) = _LENGTH.unpack_from(value, at)
        at += _LENGTH.size
        if length > len(value) - at:
            raise CorruptedDataError(f"a topic's settings are cut name={name!r}")
        try:
            texts.append(value[at : at + length].decode())
        except UnicodeDecodeError as error:
            raise CorruptedDataError(f"a topic's settings are no text name={name!r}") from error
        at += length
    if at != len(value) or state not in iter(TopicState) or not 0 <= partitions <= target:
        raise CorruptedDataError(f"a topic's record contradicts itself name={name!r}")
    return TopicRecord(
        TopicState(state),
        UUID(bytes=topic_id),
        partitions,
        target,
        created_ms,
        dict(zip(texts[::2], texts[1::2], strict=True)),
    )
