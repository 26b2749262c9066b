from collections.abc import Iterable

from segmentstore.contracts.identifiers import BufferView

HASHES: int
"""Whether `digest_all` can hash."""

def digest_all(
    contents: Iterable[Iterable[BufferView]], piece_bytes: int, hashed: bool, /
) -> list[tuple[int, bytes, tuple[int, ...]]]: ...
def crc32_all(contents: Iterable[Iterable[BufferView]], value: int, /) -> list[int]: ...
def crc64_all(contents: Iterable[Iterable[BufferView]], value: int, /) -> list[int]: ...
