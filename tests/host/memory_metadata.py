"""A MetadataStore in memory, which may be away, and may lose answers."""

from collections.abc import Callable

from segmentstore.host.store_record import STORE_PATH
from tier1.bookkeeper.metadata_store import (
    MetadataChangedError,
    MetadataUnavailableError,
    VersionedValue,
)


class MemoryMetadata:
    """Values by path. `lost_answers`: so many of the next creations are done, and say that they may not be."""

    def __init__(self) -> None:
        self.values: dict[str, VersionedValue] = {}
        self.lost_answers = 0
        self.before_create: Callable[[], object] = dict

    async def get(self, path: str) -> VersionedValue | None:
        return self.values.get(path)

    async def create(self, path: str, value: bytes) -> int:
        self.before_create()
        if path in self.values:
            raise MetadataChangedError(f"it exists already path={path}")
        self.values[path] = VersionedValue(value, 0)
        if self.lost_answers:
            self.lost_answers -= 1
            raise MetadataUnavailableError("connection lost")
        return 0

    async def compare_and_set(self, path: str, value: bytes, *, version: int) -> int:
        found = self.values.get(path)
        if found is None or found.version != version:
            raise MetadataChangedError(f"another version path={path}")
        self.values[path] = VersionedValue(value, version + 1)
        return version + 1

    async def delete(self, path: str, *, version: int) -> None:
        found = self.values.get(path)
        if found is None or found.version != version:
            raise MetadataChangedError(f"another version path={path}")
        del self.values[path]

    async def children(self, path: str) -> list[str]:
        below = [
            each.removeprefix(f"{path}/") for each in self.values if each.startswith(f"{path}/")
        ]
        return sorted({name.partition("/")[0] for name in below})

    async def close(self) -> None:
        """Stays for the next owner."""

    def damage(self) -> None:
        """Flip a bit of the store's record."""
        found = self.values[STORE_PATH]
        damaged = bytes([found.value[0] ^ 1]) + found.value[1:]
        self.values[STORE_PATH] = VersionedValue(damaged, found.version)
