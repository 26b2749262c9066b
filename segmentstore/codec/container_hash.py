"""Which container a segment lives in: a pure function of its name and the container count.

It is the function that Pravega uses, so that a name lands in the same container there and here.

Invariants:

- A segment, its transactions, its transients and all epochs of its number share a container: what names them
  apart is stripped before hashing, so a merge of a transaction never crosses containers.
- The result depends on nothing but the arguments; the container count is fixed when a store is created.

The name is reduced to its primary name, in this order:

1. a suffix `#transaction.` or `#transient.` is cut off if at least 32 characters follow it, again and again, so that
   a transaction of a transaction stays with them too;
2. everything from the last `.#epoch.` on is cut off.

The hash is MurmurHash3 x64 128 over the UTF-16LE code units of the primary name, its two halves starting from
`SEED` (a 32-bit number, sign extended). The first half `h1` is mapped to a bucket by jump consistent hashing:
`state` starts as h1; each step sets state = state * 2862933555777941757 + 1 (mod 2^64), takes
d = ((state >> 33) + 1) / 2^31, and jumps to next = int((candidate + 1) / d), until next reaches the count.
"""

from functools import lru_cache

from segmentstore.contracts.identifiers import ContainerId

SEED = 1661405012
"""Sign extension leaves it as it is: the number is positive."""

_REMEMBERED_MAX = 4096
_REMEMBERED_LENGTH_MAX = 256
"""Names of up to so many characters are remembered: a hash takes 50 to 150 us, and each call asks for one."""

_MASK = (1 << 64) - 1
_C1 = 0x87C37B91114253D5
_C2 = 0x4CF5AD432745937F
_JUMP_MULTIPLIER = 2862933555777941757
_SUFFIX_ID_LENGTH = 32
_TRANSACTION = "#transaction."
_TRANSIENT = "#transient."
_EPOCH = ".#epoch."


def container_of(name: str, container_count: int) -> ContainerId:
    """The container of a segment. O(length of the name); `container_count` is at least 1."""
    assert container_count >= 1, f"no container to choose from container_count={container_count}"
    primary = primary_name(name)
    if len(primary) > _REMEMBERED_LENGTH_MAX:
        return _bucket_of(primary, container_count)
    return _remembered_bucket_of(primary, container_count)


def _bucket_of(primary: str, container_count: int) -> ContainerId:
    h1 = murmur3_128(primary.encode("utf-16-le"), SEED)[0]
    return ContainerId(_jump_bucket(h1, container_count))


_remembered_bucket_of = lru_cache(maxsize=_REMEMBERED_MAX)(_bucket_of)


def is_to_be_merged(name: str) -> bool:
    """Whether it names a transaction's or a transient segment: what is to become a part of another one, as a whole."""
    return _suffix_start(name) > 0


def transaction_parent(name: str) -> str:
    """The segment that a transaction's segment is to become a part of; "" for the name of any other segment."""
    return name[: _start_of_suffix(name, _TRANSACTION)]


def primary_name(name: str) -> str:
    """The name without its transaction, transient and epoch suffixes."""
    while True:
        start = _suffix_start(name)
        if start <= 0:
            break
        name = name[:start]
    start = name.rfind(_EPOCH)
    return name[:start] if start > 0 else name


def _suffix_start(name: str) -> int:
    return _start_of_suffix(name, _TRANSACTION) or _start_of_suffix(name, _TRANSIENT)


def _start_of_suffix(name: str, marker: str) -> int:
    """Where it is cut off; 0 if it has none, or nothing in front of it."""
    start = name.rfind(marker)
    is_whole = start > 0 and len(name) - start - len(marker) >= _SUFFIX_ID_LENGTH
    return start if is_whole else 0


def murmur3_128(content: bytes, seed: int) -> tuple[int, int]:
    """Both unsigned 64-bit halves of MurmurHash3 x64 128; the signed 32-bit seed is sign extended."""
    h1 = h2 = seed & _MASK
    whole = len(content) - len(content) % 16
    for start in range(0, whole, 16):
        k1 = int.from_bytes(content[start : start + 8], "little")
        k2 = int.from_bytes(content[start + 8 : start + 16], "little")
        h1 ^= _scramble(k1, _C1, 31, _C2)
        h1 = ((_rotate(h1, 27) + h2) * 5 + 0x52DCE729) & _MASK
        h2 ^= _scramble(k2, _C2, 33, _C1)
        h2 = ((_rotate(h2, 31) + h1) * 5 + 0x38495AB5) & _MASK
    tail = content[whole:]
    if len(tail) > 8:
        h2 ^= _scramble(int.from_bytes(tail[8:], "little"), _C2, 33, _C1)
    if tail:
        h1 ^= _scramble(int.from_bytes(tail[:8], "little"), _C1, 31, _C2)
    h1 ^= len(content)
    h2 ^= len(content)
    h1 = (h1 + h2) & _MASK
    h2 = (h2 + h1) & _MASK
    h1 = _finish(h1)
    h2 = _finish(h2)
    h1 = (h1 + h2) & _MASK
    return h1, (h2 + h1) & _MASK


def _scramble(lane: int, first: int, bits: int, second: int) -> int:
    return (_rotate(lane * first & _MASK, bits) * second) & _MASK


def _rotate(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (64 - bits))) & _MASK


def _finish(value: int) -> int:
    value ^= value >> 33
    value = value * 0xFF51AFD7ED558CCD & _MASK
    value ^= value >> 33
    value = value * 0xC4CEB9FE1A85EC53 & _MASK
    return value ^ (value >> 33)


def _jump_bucket(state: int, count: int) -> int:
    candidate = 0
    while True:
        state = (state * _JUMP_MULTIPLIER + 1) & _MASK
        fraction = ((state >> 33) + 1) / (1 << 31)
        following = int((candidate + 1) / fraction)
        if following >= count:
            return candidate
        candidate = following
