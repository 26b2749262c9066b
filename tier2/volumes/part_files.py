"""Parts of uploads as files: their names say all about them.

    part-NUMBER-LENGTH-MD5-CRC32-MILLISECONDS[-ALGORITHM-CHECKSUM]       numbers decimal, the rest hexadecimal

Invariant: a file of that name was synced before it got it; its length and CRC32 are checked whenever it is read.
"""

import re
from base64 import b64decode, b64encode
from collections.abc import Iterator
from dataclasses import dataclass

from segmentstore.codec.crc32 import crc32_of
from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.runtime.files import FileSystem

_NAME = re.compile(
    r"part-(\d{5})-(\d+)-([0-9a-f]{32})-([0-9a-f]{8})-(\d+)(?:-([a-z0-9]+)-([0-9a-f]+))?"
)
_SLICE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Part:
    """A part that is there."""

    number: int
    length: int
    md5: str
    """Of its bytes, in hexadecimal digits: its etag."""
    crc32: int
    stored_ms: int
    checksum: tuple[str, str] | None = None
    """Algorithm and value in Base64, if its sender gave one: it is right."""

    def file_name(self) -> str:
        name = f"part-{self.number:05d}-{self.length}-{self.md5}-{self.crc32:08x}-{self.stored_ms}"
        if self.checksum is None:
            return name
        algorithm, value = self.checksum
        return f"{name}-{algorithm}-{b64decode(value).hex()}"


def part_of_file_name(name: str) -> Part | None:
    """None for other files."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    number, length, md5, crc32, stored_ms, algorithm, checksum = found.groups()
    return Part(
        number=int(number),
        length=int(length),
        md5=md5,
        crc32=int(crc32, 16),
        stored_ms=int(stored_ms),
        checksum=(algorithm, b64encode(bytes.fromhex(checksum)).decode()) if algorithm else None,
    )


def part_slices(directory: str, part: Part, files: FileSystem) -> Iterator[bytes]:
    """The bytes of a part; what is wrong with them is said behind the last slice.

    Blocking. Raises CorruptedDataError, OSError.
    """
    path = f"{directory}/{part.file_name()}"
    file = files.open(path)
    try:
        offset = crc32 = 0
        while piece := file.read_at(offset, _SLICE_BYTES):
            crc32 = crc32_of(piece, crc32)
            offset += len(piece)
            yield piece
    finally:
        file.close()
    if offset != part.length:
        raise CorruptedDataError(f"a part has another length than its name says path={path}")
    if crc32 != part.crc32:
        raise CorruptedDataError(f"a part fails its checksum path={path}")
