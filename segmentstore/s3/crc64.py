"""CRC-64/NVME, which S3 calls CRC64NVME: polynomial 0xAD93D23594C93659 reflected, all ones before and after.

Of b"123456789" it is 0xAE8B14860A799888. The native piece computes 2.1 GB/s; its twin here 8 MB/s, for machines
without a compiler.
"""

from collections.abc import Iterable, Sequence

from segmentstore.contracts.identifiers import BufferView
from segmentstore.runtime.native import native_module

CRC64_POLYNOMIAL = 0x9A6C9329AC4BC9B5
"""The highest power in the lowest bit, as the values have it."""
_NATIVE = native_module("segmentstore.runtime.native.digests")
_ONES = (1 << 64) - 1


def _table() -> Sequence[int]:
    table: list[int] = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ CRC64_POLYNOMIAL if crc & 1 else crc >> 1
        table.append(crc)
    return table


_TABLE = _table()


def crc64_of(buffers: Iterable[BufferView], value: int = 0) -> int:
    """Of all buffers, as if they were one, behind what `value` is the checksum of."""
    if _NATIVE is None:
        return _crc64_of(buffers, value)
    found: int = _NATIVE.crc64_all((tuple(buffers),), value)[0]
    return found


def _crc64_of(buffers: Iterable[BufferView], value: int) -> int:
    crc = value ^ _ONES
    table = _TABLE
    for buffer in buffers:
        for byte in memoryview(buffer).cast("B"):
            crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ _ONES
