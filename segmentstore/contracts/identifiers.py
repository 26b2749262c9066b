"""The numbers that name things, each a type of its own so that none is added to another by accident.

- A sequence number orders operations inside one container. It is never an offset.
- An offset is a byte position inside one segment. It is never a sequence number or an address.
- A log address is the place of an entry in Tier 1; it means nothing outside its log.
- An epoch grows at every successful log initialisation; the holder of the higher epoch wins.
"""

from typing import NewType, TypeAlias

SegmentId = NewType("SegmentId", int)
"""Number that a container gives a segment at its creation; never reused, also not after deletion."""

ContainerId = NewType("ContainerId", int)
"""0 .. container count - 1."""

SequenceNumber = NewType("SequenceNumber", int)
"""Strictly increasing number of an operation in its container; the first is 1."""

Epoch = NewType("Epoch", int)
"""Fencing number of a container's log; the first is 1."""

LogAddress = NewType("LogAddress", int)
"""Place of an entry in a DurableDataLog: strictly grows in append order."""

NO_SEGMENT = SegmentId(0)
NO_SEQUENCE_NUMBER = SequenceNumber(0)

BufferView: TypeAlias = bytes | memoryview
"""Bytes handed from package to package. A memoryview must not change until the callee is done with it."""

AttributeKey = NewType("AttributeKey", bytes)
"""1 to 255 bytes. Sixteen-byte keys that start with CORE_ATTRIBUTE_PREFIX are core attributes."""

AttributeValue: TypeAlias = int | bytes
"""A signed 64-bit number, or a byte string of at most ATTRIBUTE_VALUE_BYTES_MAX bytes."""

CORE_ATTRIBUTE_PREFIX = (1 << 63).to_bytes(8, "big")
ATTRIBUTE_KEY_BYTES_MAX = 255
ATTRIBUTE_VALUE_BYTES_MAX = 1024
CORE_ATTRIBUTES_MAX = 100
"""Of one segment, EVENT_COUNT not among them: they are in its record, which every checkpoint carries."""
CORE_ATTRIBUTE_BYTES_MAX = 16 * 1024
"""Of one segment: the bytes of those values that are byte strings."""

EVENT_COUNT = AttributeKey(CORE_ATTRIBUTE_PREFIX + (1).to_bytes(8, "big"))
"""Core attribute: events appended since the segment's creation, truncation notwithstanding. Never negative."""
SCALE_POLICY_TYPE = AttributeKey(CORE_ATTRIBUTE_PREFIX + (2).to_bytes(8, "big"))
"""Core attribute: 0 fixed, 1 kilobytes per second, 2 events per second."""
SCALE_POLICY_RATE = AttributeKey(CORE_ATTRIBUTE_PREFIX + (3).to_bytes(8, "big"))
SHORT_LIVED = AttributeKey(CORE_ATTRIBUTE_PREFIX + b"\x00flush\x00\x01")
"""Core attribute, 1: bytes are mostly truncated soon, because they are kept elsewhere by then. They go to Tier 2 later
than others, so that most of them need not."""
SEGMENT_TYPE = AttributeKey(CORE_ATTRIBUTE_PREFIX + (9).to_bytes(8, "big"))
TABLE_KEY_LENGTH = AttributeKey(CORE_ATTRIBUTE_PREFIX + (12).to_bytes(8, "big"))
"""Core attribute, on table segments only: 0 for the hash layout, else the length of every key in bytes."""
TABLE_ENTRY_COUNT = AttributeKey(CORE_ATTRIBUTE_PREFIX + b"\x00table\x00\x01")
TABLE_LIVE_BYTES = AttributeKey(CORE_ATTRIBUTE_PREFIX + b"\x00table\x00\x02")
CONTENT_TYPE = AttributeKey(CORE_ATTRIBUTE_PREFIX + b"stream\x00\x01")
"""Core attribute, on segments that were made as streams over HTTP: UTF-8, as their creator sent it."""
INITIALISING = AttributeKey(CORE_ATTRIBUTE_PREFIX + b"stream\x00\x07")
"""Core attribute, 1 while the segment is half created: what makes it has not stored its first bytes or its seal yet."""


def is_core_attribute(key: AttributeKey) -> bool:
    """Whether the attribute lives in the segment's own record and is thus always in memory."""
    return len(key) == 16 and key.startswith(CORE_ATTRIBUTE_PREFIX)
