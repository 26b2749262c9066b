"""Segments and tables that stay open between two requests.

Opening resolves a name, activates the segment and pins it, which costs more than an append or a read itself. What is
in use is kept by its users; what is idle is kept for a while, the longest idle first out.

- At most `idle_max` idle handles are kept, none longer than `idle_seconds`: eviction stays possible.
- A discarded handle (its segment was deleted, or its container stopped) is never handed out again.
- A handle is closed only when it is not in use.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Generic, TypeVar

Handle = TypeVar("Handle")


class PinnedHandle(Generic[Handle]):
    """One open handle."""

    __slots__ = ("discarded", "handle", "idle_since", "name", "opened", "users")

    def __init__(
        self, name: str, handle: Handle, opened: AbstractAsyncContextManager[Handle]
    ) -> None:
        self.name = name
        self.handle = handle
        self.opened = opened
        self.users = 1
        self.idle_since = 0.0
        self.discarded = False


class HandleCache(Generic[Handle]):
    """Use: pinned = acquire_nowait(name) or await acquire(name); ...; release(pinned)."""

    def __init__(
        self,
        *,
        open_handle: Callable[[str], AbstractAsyncContextManager[Handle]],
        idle_max: int,
        idle_seconds: float,
    ) -> None:
        self._open_handle = open_handle
        self._idle_max = idle_max
        self._idle_seconds = idle_seconds
        self._handles: dict[str, PinnedHandle[Handle]] = {}
        self._idle: OrderedDict[str, PinnedHandle[Handle]] = OrderedDict()
        self._to_close: deque[PinnedHandle[Handle]] = deque()

    def __len__(self) -> int:
        return len(self._handles)

    def acquire_nowait(self, name: str) -> PinnedHandle[Handle] | None:
        """The open handle of that name, None if there is none. O(1)."""
        pinned = self._handles.get(name)
        if pinned is not None:
            if pinned.users == 0:
                del self._idle[name]
            pinned.users += 1
        return pinned

    async def acquire(self, name: str) -> PinnedHandle[Handle]:
        """Raises what opening raises."""
        await self._close_discarded()
        pinned = self.acquire_nowait(name)
        if pinned is not None:
            return pinned
        opened = self._open_handle(name)
        pinned = PinnedHandle(name, await opened.__aenter__(), opened)
        if name in self._handles:
            # Another caller opened it meanwhile; one of the two serves the next request.
            pinned.discarded = True
        else:
            self._handles[name] = pinned
        return pinned

    def release(self, pinned: PinnedHandle[Handle]) -> None:
        """The other end of acquire()."""
        assert pinned.users > 0, f"released more often than acquired name={pinned.name!r}"
        pinned.users -= 1
        if pinned.users:
            return
        if pinned.discarded:
            self._to_close.append(pinned)
            return
        pinned.idle_since = asyncio.get_running_loop().time()
        self._idle[pinned.name] = pinned
        if len(self._idle) > self._idle_max:
            self.discard(next(iter(self._idle.values())))

    def discard(self, pinned: PinnedHandle[Handle]) -> None:
        """Hand it out no more: it met the end of its segment or container."""
        if pinned.discarded:
            return
        pinned.discarded = True
        del self._handles[pinned.name]
        if pinned.users == 0:
            del self._idle[pinned.name]
            self._to_close.append(pinned)

    async def discard_name(self, name: str) -> None:
        """Before what is open by that name is deleted: an idle handle is closed, one in use is handed out no more."""
        pinned = self._handles.get(name)
        if pinned is not None:
            self.discard(pinned)
        await self._close_discarded()

    def discard_names(self, belongs: Callable[[str], bool]) -> None:
        """Hand out no more what is open by these names: their container has stopped. O(open handles)."""
        for name, pinned in list(self._handles.items()):
            if belongs(name):
                self.discard(pinned)

    async def release_idle(self, now: float) -> None:
        """Called by the tick; `now` is the loop's time."""
        while self._idle:
            pinned = next(iter(self._idle.values()))
            if now - pinned.idle_since < self._idle_seconds:
                break
            self.discard(pinned)
        await self._close_discarded()

    async def close(self) -> None:
        """Close what is idle, and hand the rest out no more."""
        for pinned in list(self._handles.values()):
            self.discard(pinned)
        await self._close_discarded()

    def check(self) -> None:
        """Prove the bounds, and that exactly the idle handles have no users. O(n)."""
        assert len(self._idle) <= self._idle_max, f"idle={len(self._idle)} max={self._idle_max}"
        for name, pinned in self._handles.items():
            assert not pinned.discarded, f"a discarded handle is still handed out name={name!r}"
            assert (pinned.users == 0) == (name in self._idle), f"idle and in use name={name!r}"
        for pinned in self._to_close:
            assert pinned.users == 0, (
                f"to be closed in use name={pinned.name!r} users={pinned.users}"
            )

    async def _close_discarded(self) -> None:
        while self._to_close:
            await self._to_close.popleft().opened.__aexit__(None, None, None)
