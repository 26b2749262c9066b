"""Goal: what the engine has answered survives any power cut, nothing half is seen, and the volumes alone say the same.

Method: a workload on a simulated disk; between any two of its changes, two disks that a power cut could leave, of other
kinds each time, each with an index that lost some of its unsynced batches; an engine is opened on each, compared with
what had been answered, and compared again after its index was thrown away.
"""

import asyncio
import contextlib
import errno
from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random

import pytest

from segmentstore.contracts.errors import SegmentStoreError
from tests.sim.disk import Boundary, SimulatedDisk
from tests.sim.loop import SimLoop
from tests.sim.power_cuts import Persistence, power_cut_images, power_cut_images_by_turns
from tests.sim.simulation import run_simulation
from tests.tier2.volumes.engines import open_small
from tests.tier2.volumes.memory_index import MemoryIndex
from tier2.volumes.engine import VolumeEngine
from tier2.volumes.objects import Description
from tier2.volumes.opening import OpenEngine

ROOT = "/machine/volumes"

Version = tuple[str, bytes | None, bool]
State = tuple[Version, ...]
"""All versions of a key, newest first: id, content (None: a marker), legal hold."""


@dataclass
class Answers:
    """For each key what was answered, and what was asked and not yet answered."""

    certain: dict[bytes, State] = field(default_factory=dict)
    asked: dict[bytes, State] = field(default_factory=dict)

    def permitted(self) -> dict[bytes, tuple[State, ...]]:
        keys = sorted({*self.certain, *self.asked})
        return {
            key: (self.certain.get(key, ()), self.asked.get(key, self.certain.get(key, ())))
            for key in keys
        }


@dataclass
class Cut:
    image: SimulatedDisk
    index: MemoryIndex
    permitted: dict[bytes, tuple[State, ...]]
    where: str


async def state_of(engine: VolumeEngine, key: bytes) -> State:
    found: list[Version] = []
    for one in await engine.list_versions(key):
        content = None
        if not one.delete_marker:
            content = (await engine.get(key, version_id=one.version_id)).content
        found.append((one.version_id, content, one.legal_hold))
    return tuple(found)


class Writer:
    """Changes keys of its own, with contents that all writers share."""

    def __init__(self, name: str, opened: OpenEngine, answers: Answers) -> None:
        self.name = name
        self.engine = opened.engine
        self.uploads = opened.uploads
        self.answers = answers
        self.random = Random(name)

    async def run(self, steps: int) -> None:
        for number in range(steps):
            key = f"{self.name}/{number % 4}".encode()
            before = self.answers.certain.get(key, ())
            try:
                await self.change(key, before, number)
            except SegmentStoreError:
                # Either state may be true from now on; what is there is read back, as a caller would.
                now = await state_of(self.engine, key)
                assert now in (before, self.answers.asked[key])
                self.answers.certain[key] = now
                self.answers.asked.pop(key)

    async def change(self, key: bytes, before: State, number: int) -> None:
        content = bytes([self.random.randrange(4)]) * self.random.choice((50, 600, 5000))
        kind = self.random.randrange(10)
        held = any(hold for _, _, hold in before)
        version_id = f"v{number}" if kind in (3, 4) else ""
        kept = tuple(one for one in before if one[0] != version_id)
        if held:
            target = next(one for one in before if one[2])
            self.ask(key, tuple((i, c, False) for i, c, _ in before))
            await self.engine.change_lock(key, version_id=target[0], legal_hold=False)
        elif kind < 5:
            self.ask(key, ((version_id, content, kind == 2), *kept))
            await self.engine.put(
                key, [content], version_id=version_id or None, legal_hold=kind == 2
            )
        elif kind == 5:
            marker_id = f"m{number}"
            self.ask(key, ((marker_id, None, False), *(v for v in before if v[0] != marker_id)))
            await self.engine.delete(key, marker_id=marker_id)
        elif kind == 6:
            await self.upload(key, before, content)
        else:
            self.ask(key, before[1:])
            await self.engine.delete(key)
        self.answers.certain[key] = self.answers.asked.pop(key)

    async def upload(self, key: bytes, before: State, content: bytes) -> None:
        assert self.uploads is not None
        kept = tuple(one for one in before if one[0])
        self.ask(key, (("", content, False), *kept))
        upload = await self.uploads.begin(key, Description())
        parts = [
            await self.uploads.put_part(upload, 1, [content[:40]]),
            await self.uploads.put_part(upload, 2, [content[40:]]),
        ]
        await self.uploads.complete(upload, parts, Description(etag="composite-2"))

    def ask(self, key: bytes, state: State) -> None:
        self.answers.asked[key] = state


async def workload(opened: OpenEngine, answers: Answers, *, steps: int) -> None:
    async with asyncio.TaskGroup() as tasks:
        for name in ("a", "b", "c"):
            tasks.create_task(Writer(name, opened, answers).run(steps))
    await opened.engine.compact()
    async with asyncio.TaskGroup() as tasks:
        for name in ("a", "b", "d"):
            tasks.create_task(Writer(name, opened, answers).run(steps))
        tasks.create_task(compact_twice(opened.engine))


async def compact_twice(engine: VolumeEngine) -> None:
    for _ in range(2):
        with contextlib.suppress(SegmentStoreError):
            await engine.compact()


def cuts_of(
    images: Iterable[tuple[Persistence, SimulatedDisk]],
    index: MemoryIndex,
    answers: Answers,
    where: str,
    random: Random,
) -> list[Cut]:
    cuts: list[Cut] = []
    for persistence, image in images:
        left = index.fork()
        left.lose_unsynced(random)
        cuts.append(Cut(image, left, answers.permitted(), f"{where} {persistence.value}"))
    return cuts


async def all_states(engine: VolumeEngine, keys: list[bytes]) -> dict[bytes, State]:
    return {key: await state_of(engine, key) for key in keys}


async def inspect(cut: Cut, *, rebuild: bool) -> None:
    mount = cut.image.mount("after the cut")
    opened = await open_small(ROOT, files=mount, open_index=lambda _: cut.index)
    keys = list(cut.permitted)
    found = await all_states(opened.engine, keys)
    for key, permitted in cut.permitted.items():
        assert found[key] in permitted, f"{cut.where} {key!r} {opened.replay}"
    listed = await opened.engine.list(b"", limit=1000)
    assert {one.key for one in listed} <= set(keys), cut.where
    report = await opened.engine.verify(deep=True)
    assert report.healthy, f"{cut.where} {opened.replay} {report}"
    await opened.close()
    if not rebuild:
        return
    again = await open_small(ROOT, files=mount, open_index=lambda _: MemoryIndex())
    assert await all_states(again.engine, keys) == found, f"{cut.where} {again.replay}"
    report = await again.engine.verify(deep=True)
    assert report.healthy, f"{cut.where} {opened.replay} {again.replay} {report}"
    await again.engine.compact()
    assert await all_states(again.engine, keys) == found, cut.where
    await again.engine.check()
    await again.close()
    last = await open_small(ROOT, files=mount, open_index=lambda _: MemoryIndex())
    assert await all_states(last.engine, keys) == found, f"{cut.where} {last.replay}"
    await last.close()


@pytest.mark.simulation
@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_h72_every_answered_change_survives_a_power_cut_at_any_moment(seed: int) -> None:
    cuts: list[Cut] = []

    async def main(loop: SimLoop) -> None:
        disk, answers, random, index = SimulatedDisk(), Answers(), Random(seed), MemoryIndex()

        def look(boundary: Boundary) -> None:
            where = f"after change {boundary.number} {boundary.kind} {boundary.path}"
            images = power_cut_images_by_turns(disk, random, turn=boundary.number)
            cuts.extend(cuts_of(images, index, answers, where, random))

        disk.on_boundary = look
        opened = await open_small(
            ROOT, files=disk.mount("writer"), open_index=lambda _: index, seed=seed
        )
        await workload(opened, answers, steps=26)
        disk.on_boundary = None
        images = power_cut_images(disk, random, subsets=2)
        cuts.extend(cuts_of(images, index, answers, "at the end", random))
        for number, cut in enumerate(cuts):
            await inspect(cut, rebuild=number % 4 == 0)

    run_simulation(seed, main)
    assert len(cuts) >= 1000, len(cuts)
    unfinished = [cut for cut in cuts if any(a != b for a, b in cut.permitted.values())]
    assert len(unfinished) > 500


@pytest.mark.simulation
@pytest.mark.slow
def test_h68_a_rebuild_that_is_cut_off_begins_again() -> None:
    cuts: list[Cut] = []

    async def main(loop: SimLoop) -> None:
        disk, answers, random, index = SimulatedDisk(), Answers(), Random(5), MemoryIndex()
        mount = disk.mount("writer")
        opened = await open_small(ROOT, files=mount, open_index=lambda _: index)
        await workload(opened, answers, steps=8)
        await opened.close()
        lost = MemoryIndex()

        class Watched(MemoryIndex):
            def apply(self, changes: Iterable[tuple[bytes, bytes | None]]) -> None:
                super().apply(changes)
                images = power_cut_images(disk, random, subsets=2)
                cuts.extend(cuts_of(images, self, answers, "in a rebuild", random))

        lost = Watched()
        again = await open_small(ROOT, files=mount, open_index=lambda _: lost)
        assert again.replay.rebuilt
        await again.close()
        for cut in cuts:
            await inspect(cut, rebuild=False)

    run_simulation(1, main)
    assert len(cuts) > 10


FAULTS = (
    ("sync", errno.EIO),
    ("sync_directory", errno.EIO),
    ("write", errno.ENOSPC),
    ("write", errno.EIO),
    ("truncate", errno.EIO),
    ("open", errno.EMFILE),
    ("read", errno.EIO),
    ("remove", errno.EIO),
)


@pytest.mark.simulation
@pytest.mark.slow
@pytest.mark.parametrize("fault", range(len(FAULTS)))
def test_h48_what_was_answered_survives_although_calls_fail_now_and_then(fault: int) -> None:
    kind, number = FAULTS[fault]

    async def main(loop: SimLoop) -> None:
        disk, answers, random, index = SimulatedDisk(), Answers(), Random(fault), MemoryIndex()
        opened = await open_small(ROOT, files=disk.mount("writer"), open_index=lambda _: index)
        writer = Writer("a", opened, answers)
        for round_number in range(12):
            disk.faults.set_rate(kind, 0.2, number, random)
            for step in range(4):
                key = f"a/{step % 3}".encode()
                before = answers.certain.get(key, ())
                try:
                    await writer.change(key, before, round_number * 4 + step)
                except SegmentStoreError:
                    disk.faults.clear()
                    now = await state_of(opened.engine, key)
                    asked = answers.asked.pop(key)
                    assert now in (before, asked)
                    answers.certain[key] = now
                    disk.faults.set_rate(kind, 0.2, number, random)
            await compact_twice(opened.engine)
            disk.faults.clear()
            await opened.engine.check()
            images = power_cut_images(disk, random, subsets=2)
            for cut in cuts_of(images, index, answers, f"round {round_number}", random):
                await inspect(cut, rebuild=True)
        assert disk.faults.struck > 0 or kind == "truncate"

    run_simulation(fault, main)
