"""Opens Tier 2 by its place, for reading, with the service off (or on: its owner may go on)."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from segmentstore.contracts.errors import InvalidRequestError, SegmentNotFoundError
from segmentstore.runtime.entropy import system_random
from segmentstore.runtime.files import SystemFileSystem
from tier2.object_stores.filesystem.filesystem_object_store import FilesystemObjectStore
from tier2.storage.reader import ContainerReader, StoreReader
from tier2.storage.settings import StorageSettings


@dataclass(frozen=True, slots=True)
class Tier2:
    """Every container that has a root, by id."""

    containers: Sequence[ContainerReader]

    async def container_of(self, name: str) -> ContainerReader:
        """The one that has the segment. Raises SegmentNotFoundError."""
        for container in self.containers:
            if await container.find(name) is not None:
                return container
        raise SegmentNotFoundError(name)


@asynccontextmanager
async def open_tier2(place: str) -> AsyncIterator[Tier2]:
    """`place` is a data directory, its `tier2` directory, or a `file://` URL of either.

    Raises InvalidRequestError if there is no Tier 2, StorageError.
    """
    # Not started: a store that was not started reads, and leaves no trace.
    store = FilesystemObjectStore(
        _object_directory(place), files=SystemFileSystem(), executor=None, random=system_random()
    )
    reader = StoreReader(object_store=store, settings=StorageSettings(), executor=None)
    ids = await reader.containers()
    if not ids:
        raise InvalidRequestError(f"there is no Tier 2 here: no container has a root place={place}")
    yield Tier2([await reader.open(container_id) for container_id in ids])
    await store.close()


def _object_directory(place: str) -> str:
    parts = urlsplit(place)
    if parts.scheme not in ("", "file"):
        raise InvalidRequestError(
            f"Tier 2 is read from a directory or a file:// URL, not from {parts.scheme}://"
        )
    path = Path(unquote(parts.path) if parts.scheme else place).absolute()
    inside = path / "tier2"
    return str(inside if inside.is_dir() else path)
