"""The records of logs in ZooKeeper: the part of the coordination store that a log needs, with errors of a log.

Invariant: every error of the coordination store reaches the log as one of its own, here and only here.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from segmentstore.coordination.coordination_store import (
    CoordinationStore,
    CoordinationUnavailableError,
    ValueChangedError,
)
from segmentstore.coordination.zookeeper import ZooKeeperStore
from tier1.bookkeeper.metadata_store import (
    MetadataChangedError,
    MetadataUnavailableError,
    VersionedValue,
)


class ZooKeeperMetadataStore:
    """Implements MetadataStore. Made by connect()."""

    def __init__(self, store: CoordinationStore) -> None:
        self._store = store

    @classmethod
    async def connect(
        cls, servers: str, *, root: str, session_seconds: float = 10.0
    ) -> "ZooKeeperMetadataStore":
        """Of the ensemble at `servers`, as in "host1:2181,host2:2181"; paths are below `root`.

        Raises InvalidRequestError if kazoo is not installed, MetadataUnavailableError.
        """
        with _errors_of_a_log():
            return cls(
                await ZooKeeperStore.connect(servers, root=root, session_seconds=session_seconds)
            )

    async def get(self, path: str) -> VersionedValue | None:
        with _errors_of_a_log():
            return await self._store.get(path)

    async def create(self, path: str, value: bytes) -> int:
        with _errors_of_a_log():
            return await self._store.create(path, value)

    async def compare_and_set(self, path: str, value: bytes, *, version: int) -> int:
        with _errors_of_a_log():
            return await self._store.compare_and_set(path, value, version=version)

    async def delete(self, path: str, *, version: int) -> None:
        with _errors_of_a_log():
            await self._store.delete(path, version=version)

    async def children(self, path: str) -> list[str]:
        with _errors_of_a_log():
            return await self._store.children(path)

    async def close(self) -> None:
        await self._store.close()


@contextmanager
def _errors_of_a_log() -> Iterator[None]:
    try:
        yield
    except ValueChangedError as error:
        raise MetadataChangedError(str(error)) from error
    except CoordinationUnavailableError as error:
        raise MetadataUnavailableError(str(error)) from error
