"""The simulated object store keeps its promises with faults off, and breaks them one by one with faults on."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import aclosing

import pytest

from segmentstore.contracts.errors import (
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    StorageError,
    StorageFullError,
)
from tests.sim.loop import SimLoop
from tests.sim.node import SimulationError
from tests.sim.object_store import MountedObjectStore, SimulatedObjectStore, StoreFaults
from tests.sim.simulation import run_simulation

pytestmark = pytest.mark.simulation

Body = Callable[[SimulatedObjectStore, MountedObjectStore], Coroutine[None, None, None]]


def _run(body: Body, faults: StoreFaults | None = None, seed: int = 1) -> None:
    async def main(loop: SimLoop) -> None:
        store = SimulatedObjectStore(loop, loop.random, faults or StoreFaults())
        await body(store, store.mount())

    run_simulation(seed, main)


async def _list(view: MountedObjectStore, prefix: str) -> list[str]:
    async with aclosing(view.list(prefix)) as cursor:
        return [entry.key async for entry in cursor]


def test_without_faults_every_view_sees_what_was_put() -> None:
    async def body(store: SimulatedObjectStore, view: MountedObjectStore) -> None:
        await view.put("a/1", [b"he", b"llo"])
        other = store.mount()
        assert (await other.get("a/1")).content == b"hello"
        assert await other.get_range("a/1", 3, 10) == b"lo"
        assert await other.size("a/1") == 5
        assert await _list(other, "a/") == ["a/1"]
        await view.delete("a/1")
        await view.delete("a/1")
        assert await _list(other, "a/") == []
        with pytest.raises(ObjectNotFoundError):
            await other.get("a/1")

    _run(body)


def test_h80_of_racing_conditional_puts_exactly_one_wins() -> None:
    async def body(store: SimulatedObjectStore, view: MountedObjectStore) -> None:
        async def create(number: int) -> bool:
            try:
                await store.mount().put_if_absent("root", bytes([number]))
            except ObjectExistsError:
                return False
            return True

        async def replace(number: int, tag: str) -> bool:
            try:
                await store.mount().put_if_match("root", bytes([number]), tag)
            except ObjectChangedError:
                return False
            return True

        assert sum(await asyncio.gather(*(create(number) for number in range(8)))) == 1
        tag = (await view.get("root")).tag
        assert sum(await asyncio.gather(*(replace(number, tag) for number in range(8)))) == 1

    _run(body)


def test_h80_error_before_leaves_nothing_and_error_after_leaves_all() -> None:
    async def before(store: SimulatedObjectStore, view: MountedObjectStore) -> None:
        with pytest.raises(StorageError):
            await view.put("a", [b"x"])
        await asyncio.sleep(10_000)
        assert store.keys() == []

    async def after(store: SimulatedObjectStore, view: MountedObjectStore) -> None:
        with pytest.raises(StorageError):
            await view.put("a", [b"x"])
        assert store.keys() == ["a"]

    _run(before, StoreFaults(error_before=1.0))
    _run(after, StoreFaults(error_after=1.0))


def test_h80_a_late_effect_lands_after_its_sender_is_dead_and_after_later_requests() -> None:
    async def main(loop: SimLoop) -> tuple[bool, bool]:
        store = SimulatedObjectStore(loop, loop.random, StoreFaults(late=1.0))
        node = loop.new_node("a")
        view = store.mount(node)

        async def send() -> None:
            with pytest.raises(StorageError):
                await view.put("a/1", [b"x"])

        await loop.invoke(node, send())
        loop.crash(node)
        store.settle()
        there_at_once = store.peek("a/1") is not None
        await store.mount().delete("a/1")
        await asyncio.sleep(7201)
        return there_at_once, store.peek("a/1") is not None

    outcomes = {run_simulation(seed, main).result for seed in range(20)}
    assert (False, True) in outcomes, outcomes


def test_h80_a_client_that_retries_by_itself_reports_a_conflict_with_itself() -> None:
    async def body(store: SimulatedObjectStore, view: MountedObjectStore) -> None:
        with pytest.raises(ObjectExistsError):
            await view.put_if_absent("root", b"1")
        assert store.peek("root") == b"1"
        tag = (await view.get("root")).tag
        with pytest.raises(ObjectChangedError):
            await view.put_if_match("root", b"2", tag)
        assert store.peek("root") == b"2"

    _run(body, StoreFaults(own_retry=1.0))


def test_h80_lists_may_be_stale() -> None:
    async def body(store: SimulatedObjectStore, view: MountedObjectStore) -> None:
        await view.put("a", [b"x"])
        assert await _list(view, "") == []
        await asyncio.sleep(3600)
        assert await _list(view, "") == ["a"]
        await view.delete("a")
        assert await _list(view, "") == ["a"]

    _run(body, StoreFaults(stale_list_seconds=3600.0, latency_seconds_mean=1e-9))


def test_h80_a_store_that_is_down_full_or_cut_off_says_so_and_recovers() -> None:
    async def body(store: SimulatedObjectStore, view: MountedObjectStore) -> None:
        store.down = True
        with pytest.raises(StorageError):
            await view.get("a")
        store.down = False
        store.capacity_bytes = 3
        with pytest.raises(StorageFullError):
            await view.put("a", [b"four"])
        await view.put("b", [b"123"])
        await view.delete("b")
        await view.put("c", [b"123"])
        view.reachable = False
        with pytest.raises(StorageError):
            await view.get("c")
        assert (await store.mount().get("c")).content == b"123"

    _run(body)


@pytest.mark.parametrize("second", [b"other", None])
def test_h2_a_key_with_other_bytes_or_a_second_life_fails_the_run(second: bytes | None) -> None:
    async def body(store: SimulatedObjectStore, view: MountedObjectStore) -> None:
        await view.put("a", [b"x"])
        if second is None:
            await view.delete("a")
        await view.put("a", [second or b"x"])
        await asyncio.sleep(1)

    with pytest.raises(SimulationError, match="H2"):
        _run(body)


def test_a_key_below_another_key_fails_the_run() -> None:
    async def body(store: SimulatedObjectStore, view: MountedObjectStore) -> None:
        await view.put("a", [b"x"])
        await view.put("a/b", [b"x"])

    with pytest.raises(SimulationError, match="below"):
        _run(body)
