"""A metadata store in memory, and what a process sees of it over a network."""

from dataclasses import dataclass, field

from tests.tier1.bookkeeper.simulated_network import Network
from tier1.bookkeeper.metadata_store import (
    MetadataChangedError,
    MetadataUnavailableError,
    VersionedValue,
)


@dataclass(slots=True)
class MemoryMetadataStore:
    """Implements MetadataStore; it outlives the processes that use it. Without a network it answers at once."""

    network: Network | None = None
    values: dict[str, VersionedValue] = field(default_factory=dict)

    async def get(self, path: str) -> VersionedValue | None:
        if self.network is None:
            return self.values.get(path)
        return await self.network.request(lambda: self.values.get(path), _unavailable)

    async def create(self, path: str, value: bytes) -> int:
        if self.network is None:
            return self._create(path, value)
        return await self.network.request(lambda: self._create(path, value), _unavailable)

    def _create(self, path: str, value: bytes) -> int:
        if path in self.values:
            raise MetadataChangedError(f"the value exists already path={path!r}")
        self.values[path] = VersionedValue(value, 0)
        return 0

    async def compare_and_set(self, path: str, value: bytes, *, version: int) -> int:
        if self.network is None:
            return self._compare_and_set(path, value, version)
        return await self.network.request(
            lambda: self._compare_and_set(path, value, version), _unavailable
        )

    def _compare_and_set(self, path: str, value: bytes, version: int) -> int:
        found = self.values.get(path)
        if found is None or found.version != version:
            raise MetadataChangedError(f"the value has changed path={path!r} version={version}")
        self.values[path] = VersionedValue(value, version + 1)
        return version + 1

    async def delete(self, path: str, *, version: int) -> None:
        if self.network is None:
            self._delete(path, version)
        else:
            await self.network.request(lambda: self._delete(path, version), _unavailable)

    def _delete(self, path: str, version: int) -> None:
        found = self.values.get(path)
        if found is None or found.version != version:
            raise MetadataChangedError(f"the value has changed path={path!r} version={version}")
        del self.values[path]

    async def children(self, path: str) -> list[str]:
        prefix = f"{path.rstrip('/')}/"
        names = {
            name.removeprefix(prefix).split("/")[0]
            for name in self.values
            if name.startswith(prefix)
        }
        return sorted(names)

    async def close(self) -> None:
        """The values stay."""


def _unavailable(why: str) -> MetadataUnavailableError:
    return MetadataUnavailableError(f"the metadata store does not answer: {why}")
