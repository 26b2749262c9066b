"""Which partition a record with a key belongs to: the hash that Kafka's Java client takes, and most others do.

Records with the same key are written to the same partition by them and by us, as long as the number of partitions
stays.
librdkafka is the exception: it takes CRC32 unless it is told `partitioner=murmur2_random`.
"""

from typing import Final

_SEED: Final = 0x9747B28C
_FACTOR: Final = 0x5BD1E995
_SHIFT: Final = 24
_WORD: Final = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The 32-bit hash, unsigned. O(bytes), in Python."""
    value = _SEED ^ len(data)
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        part = int.from_bytes(data[at : at + 4], "little") * _FACTOR & _WORD
        part ^= part >> _SHIFT
        value = (value * _FACTOR & _WORD) ^ (part * _FACTOR & _WORD)
    rest = data[whole:]
    if rest:
        value = (value ^ int.from_bytes(rest, "little")) * _FACTOR & _WORD
    value ^= value >> 13
    value = value * _FACTOR & _WORD
    return value ^ value >> 15


def partition_of(key: bytes, *, partition_count: int) -> int:
    """0 .. partition_count - 1."""
    assert partition_count > 0, f"a topic has partitions count={partition_count}"
    return (murmur2(key) & 0x7FFFFFFF) % partition_count
