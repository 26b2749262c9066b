from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from segmentstore.contracts.errors import SegmentNotFoundError
from segmentstore.runtime.handle_cache import HandleCache


class Opened:
    """What was opened and not closed, in order."""

    def __init__(self) -> None:
        self.names: list[str] = []

    @asynccontextmanager
    async def open(self, name: str) -> AsyncIterator[str]:
        if name == "missing":
            raise SegmentNotFoundError(name)
        self.names.append(name)
        try:
            yield name.upper()
        finally:
            self.names.remove(name)


@pytest.fixture
def opened() -> Opened:
    return Opened()


@pytest.fixture
def handles(opened: Opened) -> HandleCache[str]:
    return HandleCache(open_handle=opened.open, idle_max=2, idle_seconds=10.0)


async def test_a_handle_is_opened_once_and_shared(
    handles: HandleCache[str], opened: Opened
) -> None:
    first = await handles.acquire("a")
    assert first.handle == "A"
    assert handles.acquire_nowait("a") is first
    assert await handles.acquire("a") is first
    assert opened.names == ["a"]
    assert handles.acquire_nowait("b") is None
    handles.check()


async def test_an_idle_handle_is_closed_after_a_while_and_a_used_one_is_not(
    handles: HandleCache[str], opened: Opened
) -> None:
    used, idle = await handles.acquire("used"), await handles.acquire("idle")
    handles.release(idle)
    await handles.release_idle(idle.idle_since + 9.0)
    assert opened.names == ["used", "idle"]
    await handles.release_idle(idle.idle_since + 10.0)
    assert opened.names == ["used"]
    handles.release(used)
    handles.check()


async def test_of_too_many_idle_handles_the_longest_idle_goes(
    handles: HandleCache[str], opened: Opened
) -> None:
    for pinned in [await handles.acquire(name) for name in "abc"]:
        handles.release(pinned)
    handles.check()
    await handles.release_idle(0.0)
    assert opened.names == ["b", "c"]


async def test_a_forgotten_handle_is_closed_by_its_last_user(
    handles: HandleCache[str], opened: Opened
) -> None:
    pinned = await handles.acquire("a")
    handles.discard(pinned)
    handles.discard(pinned)
    assert handles.acquire_nowait("a") is None
    again = await handles.acquire("a")
    assert again is not pinned
    assert opened.names == ["a", "a"]
    handles.release(pinned)
    await handles.release_idle(0.0)
    assert opened.names == ["a"]
    handles.release(again)
    handles.check()


async def test_what_cannot_be_opened_leaves_nothing_behind(handles: HandleCache[str]) -> None:
    with pytest.raises(SegmentNotFoundError):
        await handles.acquire("missing")
    assert len(handles) == 0


async def test_closing_closes_what_nobody_uses_and_the_rest_when_it_is_released(
    handles: HandleCache[str], opened: Opened
) -> None:
    used, idle = await handles.acquire("used"), await handles.acquire("idle")
    handles.release(idle)
    await handles.close()
    assert opened.names == ["used"]
    handles.release(used)
    await handles.release_idle(0.0)
    assert opened.names == []


async def test_a_discarded_handle_with_two_users_waits_for_both(
    handles: HandleCache[str], opened: Opened
) -> None:
    pinned = await handles.acquire("a")
    assert handles.acquire_nowait("a") is pinned
    await handles.discard_name("a")
    for _ in range(2):
        assert opened.names == ["a"]
        handles.release(pinned)
        await handles.release_idle(0.0)
    assert opened.names == []


async def test_an_idle_handle_is_closed_before_its_name_is_deleted(
    handles: HandleCache[str], opened: Opened
) -> None:
    handles.release(await handles.acquire("a"))
    await handles.discard_name("a")
    await handles.discard_name("unknown")
    assert opened.names == []
    assert handles.acquire_nowait("a") is None
    handles.check()
