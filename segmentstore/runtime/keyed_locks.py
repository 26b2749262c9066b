"""One lock per name, for the steps that create, delete and expire a stream.

Each of them looks first and acts after an await; the lock keeps the others of this process out in between. Appends
and reads need none: they are decided in one stretch.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class NameLocks:
    """Locks that exist only while somebody holds or awaits them."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    def __len__(self) -> int:
        return len(self._locks)

    @asynccontextmanager
    async def hold(self, name: str) -> AsyncIterator[None]:
        """Wait for the name, then own it until the block ends."""
        lock, users = self._locks.get(name, (None, 0))
        if lock is None:
            lock = asyncio.Lock()
        self._locks[name] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            _, users = self._locks[name]
            if users == 1:
                del self._locks[name]
            else:
                self._locks[name] = (lock, users - 1)
