"""Where reading of topics begins and ends: the words of options, and Spark's checkpoint.

    earliest, latest
    {"logs": {"0": 23, "1": -1, "2": -2}}     by topic and partition; -1 is the latest, -2 the earliest offset
    {"0": 23}                                 the same where one topic is read

A start that does not name a partition begins at its earliest record, an end takes all of it. Spark's checkpoint holds
the second form, as its Kafka source writes it, with numbers alone, and with the topic's id:

    {"logs": {"0": 23, "1": 7, "id": "<32 hex digits>"}}

Invariants:

- Decoding what was encoded gives the same position; equal positions are equal texts.
- Offsets are those of the topic with that id. Where it is missing, as older versions wrote it and users may, any topic
  of the name is meant.
- What comes from a user or a file is refused with a sentence if it is not of such a form.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias
from uuid import UUID

from segmentstore.contracts.errors import InvalidRequestError

EARLIEST: Final = -2
LATEST: Final = -1
_WORDS: Final = {"earliest": EARLIEST, "latest": LATEST}

TopicOffsets: TypeAlias = Mapping[tuple[str, int], int]
"""By topic and partition: everything below was read."""
_ID: Final = "id"
"""Stands among the partitions of a topic, whose names are numbers."""


@dataclass(frozen=True, slots=True)
class TopicPosition:
    """Where a query stands."""

    offsets: TopicOffsets
    ids: Mapping[str, UUID] = field(default_factory=dict)
    """By topic: which one of that name the offsets are of, where that is known."""


@dataclass(frozen=True, slots=True)
class OffsetWords:
    """What a user said of an end; -1 and -2 mean what they mean in Kafka."""

    everywhere: int | None
    """For every partition; None if there are numbers."""
    named: tuple[tuple[str, int, int], ...] = ()
    """Topic, partition, offset."""
    ids: tuple[tuple[str, UUID], ...] = ()
    """Topic, id."""

    @property
    def asks_for_earliest(self) -> bool:
        return self.everywhere == EARLIEST or any(each[2] == EARLIEST for each in self.named)

    def is_of_any(self, topic: str, partition: int) -> bool:
        """Whether an offset is named for the partition, whichever topic has the name."""
        offset = self.of(topic, partition)
        return offset not in (None, EARLIEST, LATEST) and topic not in dict(self.ids)

    def of(self, topic: str, partition: int) -> int | None:
        """What is said of a partition; None if nothing is."""
        if self.everywhere is not None:
            return self.everywhere
        for named_topic, named_partition, offset in self.named:
            if (named_topic, named_partition) == (topic, partition):
                return offset
        return None


def parse_offset_words(
    words: Mapping[str, str], name: str, topics: tuple[str, ...]
) -> OffsetWords | None:
    """None if the option is not given. Raises InvalidRequestError."""
    text = words.get(name.lower(), "")
    if not text:
        return None
    if text.lower() in _WORDS:
        return OffsetWords(_WORDS[text.lower()])
    try:
        named = _position_of(json.loads(text), topics, least=EARLIEST)
    except ValueError as error:
        raise InvalidRequestError(
            f'{name} is earliest, latest or JSON such as {{"{topics[0]}": {{"0": 23}}}}'
            f" given={text[:200]!r}: {error}"
        ) from error
    offsets = tuple((topic, index, offset) for (topic, index), offset in named.offsets.items())
    return OffsetWords(None, offsets, tuple(named.ids.items()))


def encode_topic_offsets(offsets: TopicOffsets) -> dict[str, object]:
    """As options take it."""
    return encode_topic_position(TopicPosition(offsets))


def encode_topic_position(position: TopicPosition) -> dict[str, object]:
    """For Spark's checkpoint."""
    content: dict[str, dict[str, object]] = {}
    for (topic, index), offset in sorted(position.offsets.items()):
        content.setdefault(topic, {})[str(index)] = offset
    for topic, partitions in content.items():
        if topic in position.ids:
            partitions[_ID] = position.ids[topic].hex
    return dict[str, object](content)


def decode_topic_position(content: object) -> TopicPosition:
    """Raises InvalidRequestError."""
    try:
        if not isinstance(content, dict):
            raise ValueError("no object")
        return _position_of(content, tuple(content), least=0)
    except ValueError as error:
        raise InvalidRequestError(
            f"the checkpoint is not of a query of topics content={str(content)[:200]}: {error}"
        ) from error


def _position_of(content: object, topics: tuple[str, ...], *, least: int) -> TopicPosition:
    if not isinstance(content, dict):
        raise ValueError("no object")
    if content and not any(isinstance(each, dict) for each in content.values()):
        if len(topics) != 1:
            raise ValueError("offsets of several topics stand under their names")
        content = {topics[0]: content}
    named: dict[tuple[str, int], int] = {}
    ids: dict[str, UUID] = {}
    for topic, partitions in content.items():
        if topic not in topics or not isinstance(partitions, dict):
            raise ValueError(f"no topic that is read, or no offsets of it: {topic}")
        for index, offset in partitions.items():
            if index == _ID:
                ids[topic] = _topic_id(offset)
                continue
            if not str(index).isascii() or not str(index).isdigit():
                raise ValueError(f"no partition: {index}")
            if not isinstance(offset, int) or isinstance(offset, bool) or offset < least:
                raise ValueError(f"no offset: {offset}")
            named[topic, int(index)] = offset
    return TopicPosition(named, ids)


def _topic_id(text: object) -> UUID:
    if not isinstance(text, str):
        raise ValueError(f"no id of a topic: {text}")
    return UUID(hex=text)
