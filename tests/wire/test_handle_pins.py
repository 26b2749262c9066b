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
def pins(opened: Opened) -> HandleCache[str]:
    return HandleCache(open_handle=opened.open, idle_max=2, idle_seconds=10.0)


async def test_a_handle_is_opened_once_and_shared(pins: HandleCache[str], opened: Opened) -> None:
    first = await pins.lease("a")
    assert first.handle == "A"
    assert pins.lease_nowait("a") is first
    assert await pins.lease("a") is first
    assert opened.names == ["a"]
    assert pins.lease_nowait("b") is None
    pins.check()


async def test_an_idle_handle_is_closed_after_a_while_and_a_used_one_is_not(
    pins: HandleCache[str], opened: Opened
) -> None:
    used, idle = await pins.lease("used"), await pins.lease("idle")
    pins.release(idle)
    await pins.release_idle(idle.idle_since + 9.0)
    assert opened.names == ["used", "idle"]
    await pins.release_idle(idle.idle_since + 10.0)
    assert opened.names == ["used"]
    pins.release(used)
    pins.check()


async def test_of_too_many_idle_handles_the_longest_idle_goes(
    pins: HandleCache[str], opened: Opened
) -> None:
    for pin in [await pins.lease(name) for name in "abc"]:
        pins.release(pin)
    pins.check()
    await pins.release_idle(0.0)
    assert opened.names == ["b", "c"]


async def test_a_forgotten_handle_is_closed_by_its_last_user(
    pins: HandleCache[str], opened: Opened
) -> None:
    pin = await pins.lease("a")
    pins.forget(pin)
    pins.forget(pin)
    assert pins.lease_nowait("a") is None
    again = await pins.lease("a")
    assert again is not pin
    assert opened.names == ["a", "a"]
    pins.release(pin)
    await pins.release_idle(0.0)
    assert opened.names == ["a"]
    pins.release(again)
    pins.check()


async def test_what_cannot_be_opened_leaves_nothing_behind(pins: HandleCache[str]) -> None:
    with pytest.raises(SegmentNotFoundError):
        await pins.lease("missing")
    assert len(pins) == 0


async def test_closing_closes_what_nobody_uses_and_the_rest_when_it_is_released(
    pins: HandleCache[str], opened: Opened
) -> None:
    used, idle = await pins.lease("used"), await pins.lease("idle")
    pins.release(idle)
    await pins.close()
    assert opened.names == ["used"]
    pins.release(used)
    await pins.release_idle(0.0)
    assert opened.names == []
