"""One lock per name, there only while somebody holds or wants it.

Invariants:

- Whoever asks first gets the lock first.
- At most `waiters_max` wait for one name; the next one is sent away with RetryLaterError.
- A name that nobody holds or wants takes no memory.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from segmentstore.controller.errors import RetryLaterError


class KeyedLocks:
    """Mutual exclusion by name, inside one event loop."""

    def __init__(self, *, waiters_max: int) -> None:
        self._waiters_max = waiters_max
        self._locks: dict[str, asyncio.Lock] = {}
        self._users: dict[str, int] = {}

    @asynccontextmanager
    async def held(self, name: str) -> AsyncIterator[None]:
        """Holds the lock of `name`. Raises RetryLaterError if too many wait for it already."""
        users = self._users.get(name, 0)
        if users > self._waiters_max:
            raise RetryLaterError(
                f"too many requests wait for one thing name={name!r} count={users}"
            )
        self._users[name] = users + 1
        lock = self._locks.setdefault(name, asyncio.Lock())
        try:
            async with lock:
                yield
        finally:
            self._users[name] -= 1
            if not self._users[name]:
                del self._users[name], self._locks[name]

    def is_held(self, name: str) -> bool:
        """Whether somebody holds or wants the lock."""
        return name in self._locks

    def check(self) -> None:
        """Locks and their users belong together; O(names in use)."""
        assert self._locks.keys() == self._users.keys(), (
            f"locks without users locks={sorted(self._locks)} users={sorted(self._users)}"
        )
        assert all(count > 0 for count in self._users.values()), f"idle locks {self._users}"
