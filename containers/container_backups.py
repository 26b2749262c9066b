"""Backups of one container: root versions that are kept in Tier 2, made and dropped by the owner (H6)."""

from collections.abc import Awaitable, Callable, Sequence

from segmentstore.contracts.storage import PinnedRoot, Storage


class ContainerBackups:
    """Each call may run beside everything else that the container does."""

    def __init__(self, *, storage: Storage, flush: Callable[[], Awaitable[None]]) -> None:
        self._storage = storage
        self._flush = flush

    async def pin(self, name: str) -> PinnedRoot:
        """Everything acknowledged before the call is in it. A name that is taken gives what is there already.

        Raises InvalidRequestError, ContainerNotFoundError without a Tier 2, StorageError.
        """
        await self._flush()
        return await self._storage.pin(name)

    async def drop(self, name: str) -> bool:
        """False if there is none of that name. Raises StorageError."""
        return await self._storage.unpin(name)

    async def list(self) -> Sequence[PinnedRoot]:
        """By name."""
        return await self._storage.pins()
