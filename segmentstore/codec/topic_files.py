"""The files of a topic's partition: what of them is registered with the partition's segment, and how they are named.

Behind the flush point a file of records (tier2/format/record_file.py) is the only copy of a partition's records. Which
files those are is told by attributes of the partition's segment, whose bytes are the batches before the flush point:

| attribute | value |
|---|---|
| LOG_START | the lowest offset that may be read; absent: 0. It may lie inside of a file |
| COLD_END | records below this offset are in files only; absent: there are none |
| FIRST_FILE, LAST_FILE | numbers of the first and the last registered file; absent or 0: there never was one |
| b"topic file ", u64 number | one file, RegisteredFile |
| RETIRED | present: its topic is being deleted, no file is registered any more, and objects of files may be gone |

Numbers begin at 1, grow with the offsets and never come again. When all files were deleted, FIRST_FILE is
LAST_FILE + 1.

    RegisteredFile    u64 first offset, u64 end offset (exclusive), u64 bytes of the object, u64 count of records,
                      i64 lowest time of its records, i64 highest time of them, i64 highest time of all records of the
                      partition up to its end (Unix milliseconds), u64 name number; big-endian

    object            topics/<topic>/partitions/<number>/segments/<first>-<last>.seg
                      topics/<topic>/partitions/<number>/segments/<first>-<last>.<name number>.seg
                      the same with .batch for .seg: one batch as the segment had it, whose records no reader can read;
                      its count of records is 0, and both of its times are the highest that its header names

`first` and `last` (inclusive) are the offsets that the file answers for, with zeros in front up to eight digits. A name
number that is not 0 stands there in 16 hex digits; it is drawn at random, for a range whose plain name is taken.
A topic stands there as it is called, unless the grammar of object keys (contracts/object_store.py) forbids it: a dot at
its beginning is written `=2E`, and of a name that is too long for one part of a key, the first TOPIC_PART_CHARACTERS
characters and `=` are one part and the others the next. No topic has a `=` in its name.

Invariants:

- Building and parsing are inverse; nothing else parses. Two topics never have a key in common.
- Files of one partition have no gap between the end of one and the first offset of the next.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from struct import Struct
from typing import Final

from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.contracts.identifiers import (
    CORE_ATTRIBUTE_PREFIX,
    AttributeKey,
    AttributeValue,
)

LOG_START: Final = AttributeKey(CORE_ATTRIBUTE_PREFIX + b"\x00topic\x00\x01")
COLD_END: Final = AttributeKey(CORE_ATTRIBUTE_PREFIX + b"\x00topic\x00\x04")
FIRST_FILE: Final = AttributeKey(CORE_ATTRIBUTE_PREFIX + b"\x00topic\x00\x05")
LAST_FILE: Final = AttributeKey(CORE_ATTRIBUTE_PREFIX + b"\x00topic\x00\x06")
RETIRED: Final = AttributeKey(CORE_ATTRIBUTE_PREFIX + b"\x00topic\x00\x0c")

TOPIC_PART_CHARACTERS: Final = 190

TOPICS_PREFIX: Final = "topics/"
"""What the keys of all objects of topics begin with."""

_FILE_KEY: Final = b"topic file "
_FILE: Final = Struct(">QQQQqqqQ")
_DIGITS_MIN: Final = 8
_NAME: Final = re.compile(
    r"topics/(?P<topic>[^/]+(?:=/[^/]+)?)/partitions/(?P<partition>\d+)/segments/"
    r"(?P<first>\d{8,})-(?P<last>\d{8,})(?:\.(?P<number>[0-9a-f]{16}))?\.(?P<kind>seg|batch)",
    re.ASCII,
)
_DOT: Final = "=2E"


@dataclass(frozen=True, slots=True)
class RegisteredFile:
    """One file as it is registered. Which topic and partition: those of the segment."""

    first_offset: int
    end_offset: int
    """Exclusive."""
    size: int
    """Bytes of the object."""
    record_count: int
    lowest_ms: int
    highest_ms: int
    highest_ms_until_end: int
    """Of all records of the partition up to the end, deleted ones as well: it never falls from file to file."""
    name_number: int = 0

    @property
    def is_batch(self) -> bool:
        """Whether it is no file of records but one batch, kept as it came because its records cannot be read."""
        return not self.record_count

    def name(self, topic: str, partition: int) -> "RecordFileName":
        """Of its object."""
        return RecordFileName(
            topic,
            partition,
            self.first_offset,
            self.end_offset - 1,
            self.name_number,
            self.is_batch,
        )


def file_key(number: int) -> AttributeKey:
    """The attribute that registers a file."""
    return AttributeKey(_FILE_KEY + number.to_bytes(8, "big"))


def file_number_of(key: AttributeKey) -> int:
    """Of the file that an attribute of file_key() registers."""
    return int.from_bytes(key[len(_FILE_KEY) :], "big")


def count_of(
    attributes: Mapping[AttributeKey, AttributeValue], key: AttributeKey, *, name: str
) -> int:
    """A count among the core attributes of the partition's segment `name`; absent: 0. Raises CorruptedDataError."""
    value = attributes.get(key, 0)
    if not isinstance(value, int) or value < 0:
        raise CorruptedDataError(
            f"an attribute of a partition is no count name={name!r} key={key.hex()} value={value!r}"
        )
    return value


def encode_file(file: RegisteredFile) -> bytes:
    """The attribute's value."""
    return _FILE.pack(
        file.first_offset,
        file.end_offset,
        file.size,
        file.record_count,
        file.lowest_ms,
        file.highest_ms,
        file.highest_ms_until_end,
        file.name_number,
    )


def decode_file(value: AttributeValue) -> RegisteredFile:
    """Raises CorruptedDataError."""
    if not isinstance(value, bytes) or len(value) != _FILE.size:
        raise CorruptedDataError(f"a registered file is none value={value!r}")
    file = RegisteredFile(*_FILE.unpack(value))
    if file.first_offset >= file.end_offset or file.highest_ms > file.highest_ms_until_end:
        raise CorruptedDataError(f"a registered file contradicts itself file={file}")
    return file


@dataclass(frozen=True, slots=True)
class RecordFileName:
    """Where a file is, and what its name says."""

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    """Inclusive."""
    name_number: int = 0
    """0: the plain name."""
    is_batch: bool = False
    """One batch as it came, and no file of records."""

    @property
    def key(self) -> str:
        """Of the object, below the place of Tier 2."""
        first, last = (f"{each:0{_DIGITS_MIN}}" for each in (self.first_offset, self.last_offset))
        number = f".{self.name_number:016x}" if self.name_number else ""
        kind = "batch" if self.is_batch else "seg"
        return f"{files_prefix(self.topic, self.partition)}{first}-{last}{number}.{kind}"

    @classmethod
    def parsed(cls, key: str) -> "RecordFileName | None":
        """None if the key is not the one that such a file would have."""
        found = _NAME.fullmatch(key)
        if found is None:
            return None
        name = cls(
            _topic_of(found["topic"]),
            int(found["partition"]),
            int(found["first"]),
            int(found["last"]),
            int(found["number"] or "0", 16),
            found["kind"] == "batch",
        )
        return name if name.key == key and name.first_offset <= name.last_offset else None


def topic_prefix(topic: str) -> str:
    """What the keys of all objects of a topic begin with."""
    name = _DOT + topic[1:] if topic.startswith(".") else topic
    if len(topic) > TOPIC_PART_CHARACTERS:
        cut = len(name) - len(topic) + TOPIC_PART_CHARACTERS
        rest = name[cut:]
        name = f"{name[:cut]}=/{_DOT + rest[1:] if rest.startswith('.') else rest}"
    return f"{TOPICS_PREFIX}{name}/"


def files_prefix(topic: str, partition: int) -> str:
    """What the keys of a partition's files begin with."""
    return f"{topic_prefix(topic)}partitions/{partition}/segments/"


def _topic_of(parts: str) -> str:
    first, _, rest = parts.partition("=/")
    return "".join(
        "." + part.removeprefix(_DOT) if part.startswith(_DOT) else part for part in (first, rest)
    )
