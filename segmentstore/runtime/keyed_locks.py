"""One lock for each key, that exists only while it is held or waited for.

For steps that look first and act after an await: the lock keeps the others of this process out in between.

Invariants:

- Callers get the lock of a key in the order in which they asked for it.
- At most `waiters_max` wait for one key; the next caller is refused at once.
- A key whose lock is neither held nor waited for takes no memory.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

_Key = TypeVar("_Key", bound=Hashable)


class KeyedLocks(Generic[_Key]):
    """Mutual exclusion by key, inside one event loop."""

    def __init__(
        self,
        *,
        waiters_max: int | None = None,
        refusal: Callable[[_Key, int], Exception] | None = None,
    ) -> None:
        """`refusal` makes the error of a caller that may not wait, of the key and the count of those that do."""
        assert (waiters_max is None) == (refusal is None), (
            "a bound needs an error, and an error a bound"
        )
        self._waiters_max = waiters_max
        self._refusal = refusal
        self._locks: dict[_Key, asyncio.Lock] = {}
        self._users: dict[_Key, int] = {}

    def __len__(self) -> int:
        return len(self._locks)

    @asynccontextmanager
    async def held(self, key: _Key) -> AsyncIterator[None]:
        """Holds the lock of the key. Raises what `refusal` makes if too many wait for it already."""
        users = self._users.get(key, 0)
        if self._waiters_max is not None and users > self._waiters_max:
            assert self._refusal is not None, "a bound without an error"
            raise self._refusal(key, users)
        self._users[key] = users + 1
        lock = self._locks.setdefault(key, asyncio.Lock())
        try:
            async with lock:
                yield
        finally:
            self._users[key] -= 1
            if not self._users[key]:
                del self._users[key], self._locks[key]

    def is_held(self, key: _Key) -> bool:
        """Whether the lock is held or waited for."""
        return key in self._locks

    def check(self) -> None:
        """Locks and their users belong together; O(keys in use)."""
        assert self._locks.keys() == self._users.keys(), (
            f"locks without users locks={list(self._locks)} users={list(self._users)}"
        )
        assert all(count > 0 for count in self._users.values()), f"idle locks {self._users}"
