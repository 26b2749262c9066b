"""Checksums that travel with bodies: which there are, how they are written, and whether they are right.

    x-amz-checksum-crc32, -crc32c, -crc64nvme, -sha1, -sha256, -sha512  base64 of the big-endian value, verified, kept

A multipart object has the checksum of the checksums of its parts, with `-N` behind it for N parts (COMPOSITE), or, by
an algorithm that allows it, that of all its bytes (FULL_OBJECT): a CRC of joined bytes follows from the CRCs and the
lengths of the pieces.

CRC64NVME is CRC-64/NVME: polynomial 0xAD93D23594C93659 reflected, all ones before and after; of b"123456789" it is
0xAE8B14860A799888. The native piece computes 2.1 GB/s; its twin here 8 MB/s, for machines without a compiler.
"""

import hashlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol

from crc32c import crc32c

from segmentstore.codec.crc32 import crc32_of
from segmentstore.codec.crc_algebra import CRC32, Crc, joined_crc
from segmentstore.contracts.identifiers import BufferView
from segmentstore.runtime.native import native_module

HEADER_PREFIX = "x-amz-checksum-"
CRC64_POLYNOMIAL = 0x9A6C9329AC4BC9B5
"""The highest power in the lowest bit, as the values have it."""
_CRC64_ONES = (1 << 64) - 1
_NATIVE_DIGESTS = native_module("segmentstore.runtime.native.digests")


class RunningChecksum(Protocol):
    """One checksum of bytes that come one after the other: as the hashes of hashlib have it."""

    def update(self, data: BufferView, /) -> None:
        """Blocking."""

    def digest(self) -> bytes:
        """Of all that came, big-endian."""


class _RunningCrc:
    def __init__(self, function: Callable[[BufferView, int], int], length: int) -> None:
        """`function`: of bytes, behind what a value is the checksum of."""
        self._function = function
        self._length = length
        self._value = 0

    def update(self, data: BufferView, /) -> None:
        self._value = self._function(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(self._length, "big")


def _crc64_of_one(data: BufferView, value: int) -> int:
    return crc64_of((data,), value)


ALGORITHMS: Mapping[str, Callable[[], RunningChecksum]] = {
    "crc32": partial(_RunningCrc, crc32_of, 4),
    "crc32c": partial(_RunningCrc, crc32c, 4),
    "crc64nvme": partial(_RunningCrc, _crc64_of_one, 8),
    "sha1": partial(hashlib.sha1, usedforsecurity=False),
    "sha256": hashlib.sha256,
    "sha512": hashlib.sha512,
}
"""By name as it stands in headers, in lower case."""
CHECKSUM_HEADERS = frozenset(HEADER_PREFIX + name for name in ALGORITHMS)
"""Those that hold a value."""


JOINABLE: Mapping[str, Crc] = {
    "crc32": CRC32,
    "crc32c": Crc(0x82F63B78, 32),
    "crc64nvme": Crc(CRC64_POLYNOMIAL, 64),
}
"""What allows FULL_OBJECT."""
COMPOSABLE = frozenset(ALGORITHMS) - {"crc64nvme"}
"""What allows COMPOSITE."""


def checksum_tag(algorithm: str) -> str:
    """The name of the element that holds it."""
    return f"Checksum{algorithm.upper()}"


def checksum_text(algorithm: str, buffers: Iterable[BufferView]) -> str:
    """As it is written in a header."""
    running = ALGORITHMS[algorithm]()
    for buffer in buffers:
        running.update(buffer)
    return text_of(running)


def text_of(running: RunningChecksum) -> str:
    """As it is written in a header, of all that came."""
    return b64encode(running.digest()).decode()


def composite_checksum(algorithm: str, parts: Sequence[str]) -> str:
    """Of a multipart object, from the checksums of its parts in their order."""
    whole = checksum_text(algorithm, [b64decode(part) for part in parts])
    return f"{whole}-{len(parts)}"


def joined_checksum(algorithm: str, pieces: Sequence[tuple[str, int]]) -> str:
    """Of all bytes, from the checksum and the length of each piece in their order. `algorithm` is one of JOINABLE."""
    crc = JOINABLE[algorithm]
    values = [(int.from_bytes(b64decode(text), "big"), length) for text, length in pieces]
    return b64encode(joined_crc(crc, values).to_bytes(crc.bits // 8, "big")).decode()


def crc64_of(buffers: Iterable[BufferView], value: int = 0) -> int:
    """Of all buffers, as if they were one, behind what `value` is the checksum of."""
    if _NATIVE_DIGESTS is None:
        return _crc64_in_python(buffers, value)
    found: int = _NATIVE_DIGESTS.crc64_all((tuple(buffers),), value)[0]
    return found


def _make_crc64_table() -> Sequence[int]:
    table: list[int] = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ CRC64_POLYNOMIAL if crc & 1 else crc >> 1
        table.append(crc)
    return table


_CRC64_TABLE = _make_crc64_table()


def _crc64_in_python(buffers: Iterable[BufferView], value: int) -> int:
    crc = value ^ _CRC64_ONES
    table = _CRC64_TABLE
    for buffer in buffers:
        for byte in memoryview(buffer).cast("B"):
            crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ _CRC64_ONES
