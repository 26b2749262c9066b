"""Small objects are copied by the hundred, and all that holds for one copy holds for each of them."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from segmentstore.contracts.errors import CorruptedDataError, ObjectNotFoundError
from segmentstore.runtime.files import SystemFileSystem
from tests.sim.disk import SimulatedDisk
from tests.sim.loop import SimLoop
from tests.sim.simulation import run_simulation
from tests.tier2.volumes.engines import SMALL, open_small
from tests.tier2.volumes.memory_index import MemoryIndex
from tests.tier2.volumes.one_record import encode_record
from tier2.volumes.compaction_copy import (
    CopiedSlice,
    CopyBatch,
    PlainCopier,
    RecordCopier,
    verify_slice,
)
from tier2.volumes.engine import VolumeEngine
from tier2.volumes.mutations import PlainRelocation, VolumeWritten
from tier2.volumes.opening import OpenEngine
from tier2.volumes.volume_files import OpenVolume, VolumeFiles, VolumeScan
from tier2.volumes.volume_format import RECORD_HEADER_BYTES

ROOMY = replace(SMALL, volume_bytes_max=50_000)


def content_of(number: int) -> bytes:
    return Random(number).randbytes(10 + number % 180)


async def fill(engine: VolumeEngine, count: int, prefix: bytes = b"key/") -> None:
    await asyncio.gather(
        *(engine.put(prefix + b"%04d" % number, [content_of(number)]) for number in range(count))
    )


@asynccontextmanager
async def rebuilt(directory: Path) -> AsyncIterator[VolumeEngine]:
    """The same engine from its volumes alone."""
    shutil.rmtree(directory / "index")
    opened = await open_small(str(directory))
    assert opened.replay.rebuilt
    yield opened.engine
    await opened.engine.check()
    await opened.close()


async def test_h69_small_objects_keep_their_numbers_when_their_volume_goes(tmp_path: Path) -> None:
    directory = tmp_path / "engine"
    opened = await open_small(str(directory), settings=ROOMY)
    engine = opened.engine
    await fill(engine, 900)
    before = [await engine.head(b"key/%04d" % number) for number in range(900)]
    for number in range(900):
        if number % 3:
            await engine.delete(b"key/%04d" % number)
    summary = await engine.compact()
    assert summary.removed
    assert summary.kept == []
    assert summary.records_copied >= 250
    await engine.check()

    async def require(engine: VolumeEngine) -> None:
        assert len(await engine.list(b"", limit=1000)) == 300
        for number in range(0, 900, 3):
            found = await engine.get(b"key/%04d" % number)
            assert found.content == content_of(number)
            assert found.record == before[number]

    await require(engine)
    await opened.close()
    async with rebuilt(directory) as again:
        await require(again)


async def test_a_small_object_behind_a_version_with_an_id_is_kept_and_one_that_was_replaced_is_not(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "engine"
    opened = await open_small(str(directory), settings=ROOMY)
    engine = opened.engine
    await fill(engine, 400)
    for number in range(400):
        key = b"key/%04d" % number
        if number % 4 == 0:
            await engine.put(key, [b"newer"], version_id="one")
        elif number % 4 == 1:
            await engine.put(key, [b"other"])
        else:
            await engine.delete(key)
    summary = await engine.compact()
    assert summary.removed
    assert summary.kept == []

    async def require(engine: VolumeEngine) -> None:
        for number in range(0, 400, 4):
            key = b"key/%04d" % number
            versions = await engine.list_versions(key)
            assert [one.version_id for one in versions] == ["one", ""]
            assert (await engine.get(key, version_id="")).content == content_of(number)
            assert (await engine.get(b"key/%04d" % (number + 1))).content == b"other"
            assert len(await engine.list_versions(b"key/%04d" % (number + 1))) == 1

    await require(engine)
    await engine.check()
    await opened.close()
    async with rebuilt(directory) as again:
        await require(again)


@pytest.mark.parametrize("seed", range(6))
def test_what_changes_while_it_is_copied_stays_as_it_was_answered(seed: int) -> None:
    async def change(engine: VolumeEngine, number: int) -> None:
        key = b"key/%04d" % number
        match number // 3 % 5:
            case 0:
                await engine.put(key, [b"newer"], version_id="one")
            case 1:
                await engine.put(key, [b"other"])
            case 2:
                await engine.delete(key)
            case 3:
                await engine.change_lock(key, legal_hold=True)

    async def require(engine: VolumeEngine, number: int) -> None:
        key = b"key/%04d" % number
        kind = number // 3 % 5
        if kind == 2:
            with pytest.raises(ObjectNotFoundError):
                await engine.get(key)
            return
        found = await engine.get(key, version_id="" if kind == 0 else None)
        assert found.content == (b"other" if kind == 1 else content_of(number))
        assert found.record.legal_hold == (kind == 3)

    async def main(loop: SimLoop) -> None:
        disk, index = SimulatedDisk(), MemoryIndex()
        opened = await open_small(
            "/machine/engine",
            files=disk.mount("one"),
            open_index=lambda _: index,
            settings=replace(ROOMY, compaction_batch_bytes=5000),
        )
        engine = opened.engine
        await fill(engine, 300)
        for number in range(300):
            if number % 3:
                await engine.delete(b"key/%04d" % number)

        async def change_all() -> None:
            for number in Random(2).sample(range(0, 300, 3), 100):
                await change(engine, number)

        async with asyncio.TaskGroup() as tasks:
            compacting = tasks.create_task(engine.compact())
            tasks.create_task(change_all())
        summary = compacting.result()
        assert summary.removed
        assert summary.kept == [], "a volume of which something seems to be live"
        await engine.check()
        for number in range(0, 300, 3):
            await require(engine, number)
        await opened.close()
        again = await open_small(
            "/machine/engine", files=disk.mount("two"), open_index=lambda _: MemoryIndex()
        )
        for number in range(0, 300, 3):
            await require(again.engine, number)
        await again.engine.check()
        await again.close()

    run_simulation(seed, main)


async def test_long_objects_between_small_ones_are_copied_as_well(tmp_path: Path) -> None:
    directory = tmp_path / "engine"
    settings = replace(SMALL, volume_bytes_max=8 << 20)
    opened = await open_small(str(directory), settings=settings)
    sizes = (5, 100_000, 150, 200_000, 30, 3_000_000, 0, 199, 1_500_000, 201)
    contents = {
        b"%02d/%d" % (turn, size): Random(turn + size).randbytes(size)
        for turn in range(2)
        for size in sizes
    }
    for key, content in contents.items():
        await opened.engine.put(key, [content])
        await opened.engine.put(b"gone" + key, [content[::-1] + b"x" * 70])
    for key in contents:
        await opened.engine.delete(b"gone" + key)
    await opened.close()
    opened = await open_small(str(directory), settings=settings)
    summary = await opened.engine.compact()
    assert summary.removed
    assert summary.kept == []
    await opened.engine.check()
    await opened.close()
    async with rebuilt(directory) as again:
        for key, content in contents.items():
            assert (await again.get(key)).content == content


@pytest.mark.parametrize("which", ["live", "dead", "tombstone"])
async def test_a_volume_with_a_damaged_small_record_stays(tmp_path: Path, which: str) -> None:
    directory = tmp_path / "engine"
    opened = await open_small(str(directory), settings=ROOMY)
    await fill(opened.engine, 90)
    for number in range(1, 90):
        await opened.engine.delete(b"key/%04d" % number)
    await opened.close()
    (volume,) = sorted((directory / "volumes").iterdir())
    content = bytearray(volume.read_bytes())
    match which:
        case "live":
            place = content.index(b"key/0000") + 40
        case "dead":
            place = content.index(content_of(50))
        case _:
            place = content.rindex(b"key/0050") + 10
    content[place] ^= 1
    volume.write_bytes(content)
    opened = await open_small(str(directory), settings=ROOMY)
    summary = await opened.engine.compact()
    assert summary.kept == [1]
    assert volume.exists()
    assert (await opened.engine.get(b"key/0000")).content == content_of(0)
    await opened.close()


class Copying:
    """A volume of small objects, and another one to copy them to."""

    def __init__(self, directory: Path, index: MemoryIndex) -> None:
        engine_id = (directory / "identity").read_bytes()[16:32]
        self.index = index
        self.volumes = VolumeFiles(
            str(directory / "volumes"),
            files=SystemFileSystem(),
            random=Random(9),
            engine_id=engine_id,
        )
        (self.number,) = self.volumes.numbers()
        header = self.volumes.header(self.number)
        assert header is not None
        self.secret = header.secret
        self.source = self.volumes.open(self.number)
        self.target: OpenVolume = self.volumes.create(now_ms=1, sequence_first=1)

    def plain(self) -> PlainCopier:
        scan = VolumeScan(
            self.source, secret=self.secret, size=self.volumes.size(self.number), offset=0
        )
        return PlainCopier(
            index=self.index,
            scan=scan,
            number=self.number,
            secret=self.secret,
            keeps_tombstone=lambda tombstone, oldest: True,
        )

    def others(self) -> RecordCopier:
        return RecordCopier(
            index=self.index,
            source=self.source,
            source_number=self.number,
            source_secret=self.secret,
            target=self.target,
            keeps_tombstone=lambda tombstone, oldest: True,
        )

    def slices(self) -> list[CopiedSlice]:
        plain = self.plain()
        return list(iter(lambda: plain.copy(self.target), None))


@contextmanager
def copying(directory: Path, index: MemoryIndex) -> Iterator[Copying]:
    one = Copying(directory, index)
    yield one
    one.source.close()
    one.target.close()


async def filled(directory: Path, count: int) -> MemoryIndex:
    index = MemoryIndex()
    opened: OpenEngine = await open_small(
        str(directory),
        open_index=lambda _: index,
        settings=replace(ROOMY, volume_bytes_max=1 << 20),
    )
    await fill(opened.engine, count)
    await opened.close()
    return index


async def test_every_step_of_a_copy_is_about_a_hundred_records(tmp_path: Path) -> None:
    index = await filled(tmp_path, 700)
    with copying(tmp_path, index) as one:
        batch, plain, others = CopyBatch(source=1, target=one.target), one.plain(), one.others()
        counts = [0]
        while batch.take(plain, others):
            counts.append(batch.count)
        assert counts[-1] == 700
        assert max(after - before for before, after in pairwise(counts)) <= 128
        for verify in batch.verification():
            verify()
        written, *moves = (change for group in batch.changes() for change in group)
        assert isinstance(written, VolumeWritten)
        assert (written.sequence_lowest, written.sequence_highest) == (1, 700)
        lengths = [len(one.moves) for one in moves if isinstance(one, PlainRelocation)]
        assert sum(lengths) == 700
        assert max(lengths) <= 128


async def test_a_small_copy_that_reads_back_otherwise_is_refused(tmp_path: Path) -> None:
    index = await filled(tmp_path, 40)
    with copying(tmp_path, index) as one:
        (copied,) = one.slices()
        verify_slice(one.target.file, copied, one.target.secret)
        content = one.target.file.read_at(copied.offset, copied.length)
        ends = 0
        for place in range(0, len(content), 7):
            changed = bytearray(content)
            changed[place] ^= 16
            one.target.file.write_at(copied.offset, [bytes(changed)])
            try:
                verify_slice(one.target.file, copied, one.target.secret)
                ends += 1
            except CorruptedDataError:
                continue
        assert ends <= len(content) // 7 // 20, "of the zeros between records nobody reads anything"
        one.target.file.truncate(copied.offset + copied.length - 8)
        with pytest.raises(CorruptedDataError):
            verify_slice(one.target.file, copied, one.target.secret)


async def test_a_copy_is_the_record_that_its_volume_would_have_got_in_the_first_place(
    tmp_path: Path,
) -> None:
    index = await filled(tmp_path, 60)
    with copying(tmp_path, index) as one:
        one.slices()
        scan = VolumeScan(one.target.file, secret=one.target.secret, size=one.target.end, offset=0)
        for offset in [found.offset for found in scan if not hasattr(found, "why")]:
            found = scan.record_at(offset)
            front = found.header.key_length + found.header.index_record_length
            expected = b"".join(
                encode_record(
                    secret=one.target.secret,
                    kind=found.header.kind,
                    timestamp_ms=found.header.timestamp_ms,
                    sequence=found.header.sequence,
                    key=found.key,
                    index_record=one.target.file.read_at(offset + RECORD_HEADER_BYTES, front)[
                        found.header.key_length :
                    ],
                    blob=[found.inline or b""],
                )
            )
            assert one.target.file.read_at(offset, len(expected)) == expected
            assert found.inline == content_of(int(found.key[4:]))
