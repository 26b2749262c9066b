"""Checksums that travel with bodies: which there are, how they are written, and whether they are right.

    x-amz-checksum-crc32, -crc32c, -sha1, -sha256    base64 of the big-endian value, verified and kept
    x-amz-checksum-crc64nvme                         taken without a look: there is no fast one to be had here

A multipart object has the checksum of the checksums of its parts, with `-N` behind it for N parts.
"""

import hashlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence

from crc32c import crc32c

from segmentstore.codec.crc32 import crc32_of
from segmentstore.contracts.identifiers import BufferView

HEADER_PREFIX = "x-amz-checksum-"


def _crc32(buffers: Iterable[BufferView]) -> bytes:
    value = 0
    for buffer in buffers:
        value = crc32_of(buffer, value)
    return value.to_bytes(4, "big")


def _crc32c(buffers: Iterable[BufferView]) -> bytes:
    value = 0
    for buffer in buffers:
        value = crc32c(buffer, value)
    return value.to_bytes(4, "big")


def _sha1(buffers: Iterable[BufferView]) -> bytes:
    hasher = hashlib.sha1(usedforsecurity=False)
    for buffer in buffers:
        hasher.update(buffer)
    return hasher.digest()


def _sha256(buffers: Iterable[BufferView]) -> bytes:
    hasher = hashlib.sha256()
    for buffer in buffers:
        hasher.update(buffer)
    return hasher.digest()


ALGORITHMS: Mapping[str, Callable[[Iterable[BufferView]], bytes]] = {
    "crc32": _crc32,
    "crc32c": _crc32c,
    "sha1": _sha1,
    "sha256": _sha256,
}
"""By name as it stands in headers, in lower case."""


def checksum_text(algorithm: str, buffers: Iterable[BufferView]) -> str:
    """As it is written in a header."""
    return b64encode(ALGORITHMS[algorithm](buffers)).decode()


def composite_checksum(algorithm: str, parts: Sequence[str]) -> str:
    """Of a multipart object, from the checksums of its parts in their order."""
    whole = checksum_text(algorithm, [b64decode(part) for part in parts])
    return f"{whole}-{len(parts)}"
