"""Where reading of topics begins and ends: the words of options, and Spark's checkpoint.

    earliest, latest
    {"logs": {"0": 23, "1": -1, "2": -2}}     by topic and partition; -1 is the latest, -2 the earliest offset
    {"0": 23}                                 the same where one topic is read

A start that does not name a partition begins at its earliest record, an end takes all of it. Spark's checkpoint holds
the second form, as its Kafka source writes it, with numbers alone.

Invariants:

- Decoding what was encoded gives the same position; equal positions are equal texts.
- What comes from a user or a file is refused with a sentence if it is not of such a form.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from segmentstore.contracts.errors import InvalidRequestError

EARLIEST: Final = -2
LATEST: Final = -1
_WORDS: Final = {"earliest": EARLIEST, "latest": LATEST}

TopicOffsets: TypeAlias = Mapping[tuple[str, int], int]
"""By topic and partition: everything below was read."""


@dataclass(frozen=True, slots=True)
class OffsetWords:
    """What a user said of an end; -1 and -2 mean what they mean in Kafka."""

    everywhere: int | None
    """For every partition; None if there are numbers."""
    named: tuple[tuple[str, int, int], ...] = ()
    """Topic, partition, offset."""

    @property
    def asks_for_earliest(self) -> bool:
        return self.everywhere == EARLIEST or any(each[2] == EARLIEST for each in self.named)

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
        named = _named(json.loads(text), topics, least=EARLIEST)
    except ValueError as error:
        raise InvalidRequestError(
            f'{name} is earliest, latest or JSON such as {{"{topics[0]}": {{"0": 23}}}}'
            f" given={text[:200]!r}: {error}"
        ) from error
    return OffsetWords(
        None, tuple((topic, index, offset) for (topic, index), offset in named.items())
    )


def encode_topic_offsets(offsets: TopicOffsets) -> dict[str, object]:
    """For Spark's checkpoint."""
    content: dict[str, dict[str, int]] = {}
    for (topic, index), offset in sorted(offsets.items()):
        content.setdefault(topic, {})[str(index)] = offset
    return dict[str, object](content)


def decode_topic_offsets(content: object) -> TopicOffsets:
    """Raises InvalidRequestError."""
    try:
        if not isinstance(content, dict):
            raise ValueError("no object")
        return _named(content, tuple(content), least=0)
    except ValueError as error:
        raise InvalidRequestError(
            f"the checkpoint is not of a query of topics content={str(content)[:200]}: {error}"
        ) from error


def _named(content: object, topics: tuple[str, ...], *, least: int) -> dict[tuple[str, int], int]:
    if not isinstance(content, dict):
        raise ValueError("no object")
    if content and not any(isinstance(each, dict) for each in content.values()):
        if len(topics) != 1:
            raise ValueError("offsets of several topics stand under their names")
        content = {topics[0]: content}
    named: dict[tuple[str, int], int] = {}
    for topic, partitions in content.items():
        if topic not in topics or not isinstance(partitions, dict):
            raise ValueError(f"no topic that is read, or no offsets of it: {topic}")
        for index, offset in partitions.items():
            if not str(index).isascii() or not str(index).isdigit():
                raise ValueError(f"no partition: {index}")
            if not isinstance(offset, int) or isinstance(offset, bool) or offset < least:
                raise ValueError(f"no offset: {offset}")
            named[topic, int(index)] = offset
    return named
