"""Goal: what the filesystem store has answered survives any power cut, and no reader ever meets half an object.

Method: run a workload on a simulated disk; between any two of its changes, look at several disks that a power cut at
that moment could leave; start a store on each and compare it with what had been answered.
"""

import asyncio
import copy
import errno
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random

import pytest

from segmentstore.contracts.errors import (
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    StorageError,
    StorageFullError,
)
from tests.contracts.object_key_suite import listed
from tests.sim.disk import Boundary, Mount, SimulatedDisk
from tests.sim.loop import SimLoop
from tests.sim.power_cuts import Persistence, power_cut_images
from tests.sim.simulation import run_simulation
from tier2.object_stores.filesystem import FilesystemObjectStore

ROOT = "/machine/store"

Permitted = dict[str, tuple[bytes | None, ...]]
"""For each key what may be found: contents, None for nothing."""


@dataclass
class Model:
    """What the store has answered, and what it was asked and has not answered yet."""

    certain: dict[str, bytes] = field(default_factory=dict)
    asked: dict[str, bytes | None] = field(default_factory=dict)

    async def ask(self, key: str, content: bytes | None, answer: Awaitable[object]) -> None:
        """One request to make a key hold `content` (None: nothing). If it fails, either may be true."""
        self.asked[key] = content
        await answer
        self.settle(key)

    def settle(self, key: str) -> None:
        content = self.asked.pop(key)
        if content is None:
            self.certain.pop(key, None)
        else:
            self.certain[key] = content

    def permitted(self) -> Permitted:
        found: Permitted = {key: (content,) for key, content in self.certain.items()}
        for key, content in self.asked.items():
            found[key] = (self.certain.get(key), content)
        return found


def new_store(mount: Mount, seed: int) -> FilesystemObjectStore:
    return FilesystemObjectStore(ROOT, files=mount, executor=None, random=Random(seed))


def object_bytes(name: str, length: int) -> bytes:
    return (name.encode() * (length // len(name) + 1))[:length]


async def write_objects(store: FilesystemObjectStore, model: Model, name: str) -> None:
    random = Random(name)
    for number in range(10):
        key = f"{name}/{number % 3}/Chunk-{number}"
        content = object_bytes(key, random.choice((1, 500, 4096, 9000, 20_000)))
        await model.ask(key, content, store.put(key, [content[:700], content[700:]]))
        if number % 3 == 1:
            await store.put(key, [content])
        if number % 4 == 3:
            await model.ask(key, None, store.delete(key))


async def write_roots(store: FilesystemObjectStore, model: Model, name: str) -> None:
    for root in range(2):
        key = f"{name}/root-{root}"
        content = object_bytes(f"{key} version 0", 100)
        await model.ask(key, content, store.put_if_absent(key, content))
        for version in range(1, 7):
            found = await store.get(key)
            assert found.content == content
            content = object_bytes(f"{key} version {version}", 3000 * version)
            await model.ask(key, content, store.put_if_match(key, content, found.tag))


async def workload(store: FilesystemObjectStore, model: Model) -> None:
    async with asyncio.TaskGroup() as tasks:
        for name in ("a", "b", "c"):
            tasks.create_task(write_objects(store, model, name))
        for name in ("r", "s"):
            tasks.create_task(write_roots(store, model, name))


async def compare(store: FilesystemObjectStore, permitted: Permitted, where: str) -> None:
    """Every key holds what it may hold; nothing else is there."""
    names = [info.key for info in await listed(store, "")]
    assert set(names) <= set(permitted), where
    for key, contents in permitted.items():
        try:
            content: bytes | None = (await store.get(key)).content
        except ObjectNotFoundError:
            content = None
        assert content in contents, f"{where} key={key} length={content and len(content)}"
        assert (content is None) == (key not in names), where


@dataclass
class Cut:
    """One disk that a power cut could have left, and what had been answered by then."""

    image: SimulatedDisk
    permitted: Permitted
    where: str


def cuts_of(disk: SimulatedDisk, model: Model, where: str, random: Random) -> list[Cut]:
    return [
        Cut(image, model.permitted(), f"{where} {persistence.value}")
        for persistence, image in power_cut_images(disk, random, subsets=2)
    ]


async def inspect(cuts: list[Cut]) -> None:
    for cut in cuts:
        mount = cut.image.mount("after the power cut")
        store = new_store(mount, 77)
        await store.start()
        await compare(store, cut.permitted, cut.where)
        names = mount.list(f"{ROOT}/temporary")
        assert len(names) == 1, f"{cut.where} {names}"
        await store.close()


@pytest.mark.simulation
@pytest.mark.slow
def test_h11_every_answered_change_survives_a_power_cut_at_any_moment() -> None:
    cuts: list[Cut] = []

    async def main(loop: SimLoop) -> int:
        disk, model, random = SimulatedDisk(), Model(), Random(3)

        def look(boundary: Boundary) -> None:
            where = f"after change {boundary.number} {boundary.kind} {boundary.path}"
            cuts.extend(cuts_of(disk, model, where, random))

        store = new_store(disk.mount("writer"), 5)
        await store.start()
        disk.on_boundary = look
        await workload(store, model)
        disk.on_boundary = None
        cuts.extend(cuts_of(disk, model, "at the end", random))
        await inspect(cuts)
        return disk.boundaries

    boundaries = run_simulation(1, main).result
    assert boundaries > 300
    assert len(cuts) >= 800
    both = [cut for cut in cuts if any(len(contents) == 2 for contents in cut.permitted.values())]
    assert len(both) > 500, "most cuts fall into an unfinished change"


async def go_on(store: FilesystemObjectStore, model: Model) -> None:
    """What the next process does: read back what was unfinished, and finish or repeat it."""
    for key, content in list(model.asked.items()):
        if "root" in key:
            await finish_root(store, model, key, content or b"")
        elif content is not None:
            await model.ask(key, content, store.put(key, [content]))
        else:
            await model.ask(key, None, store.delete(key))


async def finish_root(store: FilesystemObjectStore, model: Model, key: str, content: bytes) -> None:
    """As an owner claims a root: whatever it reads, it replaces by a version of its own."""
    try:
        found = await store.get(key)
    except ObjectNotFoundError:
        await model.ask(key, content, store.put_if_absent(key, content))
        return
    assert found.content in (model.certain.get(key), content)
    # What was read may be the unfinished version; from now on only the claimed one is right.
    claimed = b"claimed over " + found.content
    model.certain[key] = found.content
    await model.ask(key, claimed, store.put_if_match(key, claimed, found.tag))


@pytest.mark.simulation
@pytest.mark.slow
def test_h11_a_successor_of_a_killed_process_builds_on_solid_ground() -> None:
    """The process is killed between two changes; what it left un-synced is still visible to the next one."""
    forks: list[tuple[SimulatedDisk, Model, str]] = []

    async def main(loop: SimLoop) -> int:
        disk, model = SimulatedDisk(), Model()

        def fork(boundary: Boundary) -> None:
            disk.on_boundary = None
            twin = copy.deepcopy(disk)
            disk.on_boundary = fork
            twin.kill_all()
            where = f"after change {boundary.number} {boundary.kind} {boundary.path}"
            forks.append((twin, copy.deepcopy(model), where))

        store = new_store(disk.mount("killed"), 5)
        await store.start()
        disk.on_boundary = fork
        await workload(store, model)
        points = 0
        for twin, twin_model, where in forks:
            successor = new_store(twin.mount("successor"), 6)
            await successor.start()
            await compare(successor, twin_model.permitted(), where)
            await go_on(successor, twin_model)
            cuts = cuts_of(twin, twin_model, f"{where}, successor done,", Random(9))
            assert all(len(contents) == 1 for contents in cuts[0].permitted.values())
            await inspect(cuts)
            points += len(cuts)
        return points

    assert run_simulation(2, main).result >= 800


async def until_done(
    store: FilesystemObjectStore, model: Model, key: str, content: bytes | None
) -> None:
    """Repeat a change until it is answered, reading roots back in between (H4)."""
    for _ in range(200):
        try:
            if content is None:
                await model.ask(key, None, store.delete(key))
            elif "root" not in key:
                await model.ask(key, content, store.put(key, [content]))
            elif key not in model.certain:
                await model.ask(key, content, store.put_if_absent(key, content))
            else:
                tag = (await store.get(key)).tag
                await model.ask(key, content, store.put_if_match(key, content, tag))
            return
        except (ObjectExistsError, ObjectChangedError):
            pass
        except (StorageError, StorageFullError):
            continue
        try:
            found = await store.get(key)
        except StorageError:
            continue
        if found.content == content:
            model.settle(key)
            return
    raise AssertionError(f"never answered key={key}")


FAULTS: tuple[Callable[[SimulatedDisk, Random], None], ...] = (
    lambda disk, random: disk.faults.set_rate("sync", 0.3, errno.EIO, random),
    lambda disk, random: disk.faults.set_rate("sync_directory", 0.3, errno.EIO, random),
    lambda disk, random: disk.faults.set_rate("write", 0.3, errno.ENOSPC, random),
    lambda disk, random: disk.faults.set_rate("rename", 0.4, errno.EIO, random),
    lambda disk, random: disk.faults.set_rate("link", 0.4, errno.EIO, random),
    lambda disk, random: disk.faults.set_rate("open", 0.2, errno.EMFILE, random),
    lambda disk, random: disk.faults.set_rate("read", 0.2, errno.EIO, random),
)


@pytest.mark.simulation
@pytest.mark.slow
@pytest.mark.parametrize("fault", range(len(FAULTS)))
def test_h48_what_was_answered_survives_although_calls_fail_now_and_then(fault: int) -> None:
    async def main(loop: SimLoop) -> int:
        disk, model, random = SimulatedDisk(), Model(), Random(fault)
        cuts: list[Cut] = []
        store = new_store(disk.mount("writer"), 5)
        await store.start()
        FAULTS[fault](disk, random)
        for number in range(25):
            key = f"o/{number}"
            content = object_bytes(key, random.choice((10, 5000)))
            await until_done(store, model, key, content)
            root = object_bytes(f"root version {number}", 5000)
            await until_done(store, model, "root", root)
            if number % 5 == 4:
                await until_done(store, model, f"o/{number - 1}", None)
            cuts += cuts_of(disk, model, f"round {number}", random)
        assert disk.faults.struck > 10
        disk.faults.clear()
        await compare(store, model.permitted(), "at the end")
        await inspect(cuts)
        return len(cuts)

    assert run_simulation(fault, main).result == 125


@pytest.mark.simulation
def test_deletes_work_on_a_full_disk_and_make_room() -> None:
    async def main(loop: SimLoop) -> None:
        disk = SimulatedDisk(capacity_bytes=40 * 4096)
        store = new_store(disk.mount("writer"), 5)
        await store.start()
        puts = [store.put(f"o/{number}", [bytes([number]) * 12_288]) for number in range(20)]
        outcomes = [await asyncio.gather(put, return_exceptions=True) for put in puts]
        refused = [outcome for (outcome,) in outcomes if outcome is not None]
        assert {type(refusal) for refusal in refused} == {StorageFullError}
        assert 7 <= len(refused) <= 10
        assert len(await listed(store, "")) == 20 - len(refused)
        await store.delete("o/0")
        await store.put("new", [b"n" * 12_288])
        assert (await store.get("o/1")).content == bytes([1]) * 12_288

    run_simulation(3, main)


def test_the_power_cuts_of_this_file_include_every_kind() -> None:
    kinds = [kind for kind, _ in power_cut_images(SimulatedDisk(), Random(1), subsets=2)]
    assert kinds == [
        Persistence.NOTHING,
        Persistence.EVERYTHING,
        Persistence.PREFIX,
        Persistence.SUBSET,
        Persistence.SUBSET,
    ]
