"""Where a routing key falls in the key space of a stream, and a key in a key-value table.

One hash family serves all of it: MurmurHash3 x64 128 over the text's UTF-16LE code units, with a seed for each use
(32 bits, sign extended). `container_hash.py` is its third member.

| use | seed | result |
|---|---|---|
| events | 1741865571 | position in [0, 1) |
| keys of a key-value table | -2020233499 | position in [0, 1) |
| names of segment attributes | 817748169 | 16 bytes |

Invariants:

- A position is the upper 52 bits of the first half of the hash, read as a binary fraction: 0 <= position < 1.
- The ranges of a stream's active segments partition [0, 1); the segment of a position is the one whose range holds
  it, lower bound inclusive and upper bound exclusive. A position therefore never has two segments.
- The sixteen bytes of an attribute are both halves of the hash, each little endian.
"""

from collections.abc import Sequence
from typing import Final

from segmentstore.codec.container_hash import murmur3_128

EVENT_SEED: Final = 1741865571
TABLE_SEED: Final = -2020233499
ATTRIBUTE_SEED: Final = 817748169

_FRACTION_BITS = 52


def event_position(routing_key: str) -> float:
    """Where an event with this routing key belongs, in [0, 1)."""
    return _position(routing_key.encode("utf-16-le", "surrogatepass"), EVENT_SEED)


def table_position(key: bytes) -> float:
    """Where a table's key belongs, in [0, 1): the bytes as they are, hashed without any encoding."""
    return _position(key, TABLE_SEED)


def attribute_id(name: str) -> bytes:
    """The 16-byte key of a named segment attribute."""
    h1, h2 = murmur3_128(name.encode("utf-16-le", "surrogatepass"), ATTRIBUTE_SEED)
    return h1.to_bytes(8, "little") + h2.to_bytes(8, "little")


def range_index(upper_bounds: Sequence[float], position: float) -> int:
    """The index of the first range whose upper bound lies above the position; the last one if none does.

    `upper_bounds` grow. O(log n).
    """
    assert upper_bounds, "a key space without ranges"
    low, high = 0, len(upper_bounds) - 1
    while low < high:
        middle = (low + high) // 2
        if upper_bounds[middle] > position:
            high = middle
        else:
            low = middle + 1
    return low


def _position(content: bytes, seed: int) -> float:
    h1, _ = murmur3_128(content, seed)
    return (h1 >> 64 - _FRACTION_BITS) / (1 << _FRACTION_BITS)
