"""A bit that flips between Tier 2 and who reads it: the objects are sound."""

import pytest

from tier2.object_stores.filesystem import FilesystemObjectStore


def flip_once_on_the_way(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is first read of each object of chunks has a flipped bit. The keys, as they are read."""
    flipped: list[str] = []
    get_range = FilesystemObjectStore.get_range

    async def flipping(self: FilesystemObjectStore, key: str, start: int, length: int) -> bytes:
        content = await get_range(self, key, start, length)
        if "/chunks/" not in key or key in flipped:
            return content
        flipped.append(key)
        middle = len(content) // 2
        return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]

    monkeypatch.setattr(FilesystemObjectStore, "get_range", flipping)
    return flipped
