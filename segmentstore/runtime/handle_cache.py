"""Segments and tables that stay open between two requests.

Opening resolves a name, activates the segment and pins it, which costs more than an append or a read itself. What is
in use is kept by its users; what nobody uses is kept for a while, the longest idle first out.

- At most `idle_max` handles are kept that nobody uses, none longer than `idle_seconds`: eviction stays possible (H27).
- A forgotten handle (its segment was deleted, or its container stopped) is never handed out again.
- A handle is closed only when nobody uses it.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Generic, TypeVar

Handle = TypeVar("Handle")


class PinnedHandle(Generic[Handle]):
    """One open handle."""

    __slots__ = ("forgotten", "handle", "idle_since", "name", "opened", "users")

    def __init__(
        self, name: str, handle: Handle, opened: AbstractAsyncContextManager[Handle]
    ) -> None:
        self.name = name
        self.handle = handle
        self.opened = opened
        self.users = 1
        self.idle_since = 0.0
        self.forgotten = False


class HandleCache(Generic[Handle]):
    """Use: pin = lease_nowait(name) or await lease(name); ...; release(pin)."""

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
        self._retired: deque[PinnedHandle[Handle]] = deque()

    def __len__(self) -> int:
        return len(self._handles)

    def lease_nowait(self, name: str) -> PinnedHandle[Handle] | None:
        """The open handle of that name, None if there is none. O(1)."""
        pin = self._handles.get(name)
        if pin is not None:
            if pin.users == 0:
                del self._idle[name]
            pin.users += 1
        return pin

    async def lease(self, name: str) -> PinnedHandle[Handle]:
        """Raises what opening raises."""
        await self._close_retired()
        pin = self.lease_nowait(name)
        if pin is not None:
            return pin
        opened = self._open_handle(name)
        pin = PinnedHandle(name, await opened.__aenter__(), opened)
        if name in self._handles:
            # Somebody else opened it meanwhile; one of the two serves the next request.
            pin.forgotten = True
        else:
            self._handles[name] = pin
        return pin

    def release(self, pin: PinnedHandle[Handle]) -> None:
        """The other end of a lease."""
        assert pin.users > 0, f"released more often than leased name={pin.name!r}"
        pin.users -= 1
        if pin.users:
            return
        if pin.forgotten:
            self._retired.append(pin)
            return
        pin.idle_since = asyncio.get_running_loop().time()
        self._idle[pin.name] = pin
        if len(self._idle) > self._idle_max:
            self.forget(next(iter(self._idle.values())))

    def forget(self, pin: PinnedHandle[Handle]) -> None:
        """Hand it out no more: it met the end of its segment or container."""
        if pin.forgotten:
            return
        pin.forgotten = True
        del self._handles[pin.name]
        if pin.users == 0:
            del self._idle[pin.name]
            self._retired.append(pin)

    async def release_idle(self, now: float) -> None:
        """Called by the tick; `now` is the loop's time."""
        while self._idle:
            pin = next(iter(self._idle.values()))
            if now - pin.idle_since < self._idle_seconds:
                break
            self.forget(pin)
        await self._close_retired()

    async def close(self) -> None:
        """Close what nobody uses, and hand the rest out no more."""
        for pin in list(self._handles.values()):
            self.forget(pin)
        await self._close_retired()

    def check(self) -> None:
        """Prove the bounds, and that idle is what nobody uses. O(n)."""
        assert len(self._idle) <= self._idle_max, f"idle={len(self._idle)} max={self._idle_max}"
        for name, pin in self._handles.items():
            assert not pin.forgotten, f"a forgotten pin is still handed out name={name!r}"
            assert (pin.users == 0) == (name in self._idle), f"idle and in use name={name!r}"
        for pin in self._retired:
            assert pin.users == 0, f"retired in use name={pin.name!r} users={pin.users}"

    async def _close_retired(self) -> None:
        while self._retired:
            await self._retired.popleft().opened.__aexit__(None, None, None)
