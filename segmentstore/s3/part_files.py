"""Parts of multipart uploads as files: their names say all about them, and they are joined by mapping them.

    part-NUMBER-LENGTH-MD5-CRC32-MILLISECONDS[-ALGORITHM-CHECKSUM]       numbers decimal, the rest hexadecimal

Invariants: a file of that name was synced before it got it; its CRC32 is checked when it is joined. Joining maps the
files instead of reading them, so an object of any size needs no memory of its own; the system drops pages as it likes.
"""

import mmap
import re
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from segmentstore.codec.crc32 import crc32_of
from segmentstore.contracts.errors import CorruptedDataError

_NAME = re.compile(
    r"part-(\d{5})-(\d+)-([0-9a-f]{32})-([0-9a-f]{8})-(\d+)(?:-([a-z0-9]+)-([0-9a-f]+))?"
)
_SLICE_BYTES = 1 << 20
"""Buffers of that size: a vectored write takes up to 1024 of them, which is below what the system writes at once."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part that is there."""

    number: int
    length: int
    md5: str
    crc32: int
    stored_ms: int
    checksum: tuple[str, str] | None = None
    """Algorithm and value, if the client gave one: it is right."""

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


def map_parts(directory: str, parts: Sequence[Part]) -> list[memoryview]:
    """The bytes of the parts, one behind the other, checked. Blocking. Raises CorruptedDataError, OSError.

    The mappings live as long as the views. Nobody writes to the files: they have their names since they were whole.
    """
    views: list[memoryview] = []
    for part in parts:
        if not part.length:
            continue
        path = Path(directory, part.file_name())
        with path.open("rb") as file:
            if path.stat().st_size != part.length:
                raise CorruptedDataError(f"a part has another length than its name path={path}")
            view = memoryview(mmap.mmap(file.fileno(), part.length, access=mmap.ACCESS_READ))
        if crc32_of(view) != part.crc32:
            raise CorruptedDataError(f"a part fails its checksum path={path}")
        views += [view[at : at + _SLICE_BYTES] for at in range(0, part.length, _SLICE_BYTES)]
    return views
