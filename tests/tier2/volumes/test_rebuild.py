"""A rebuild takes small objects by the block: it must come to what reading record by record comes to."""

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from segmentstore.contracts.errors import StorageUnavailableError
from segmentstore.runtime.files import SystemFileSystem
from tests.tier2.volumes.engines import Model, SetClock, open_small, require
from tests.tier2.volumes.index_database_suite import LONG
from tests.tier2.volumes.memory_index import MemoryIndex
from tier2.volumes import rebuild
from tier2.volumes.index import ObjectRow, decode_object_row, encode_object_row, plain_row_sequence
from tier2.volumes.index_database import LmdbIndex, Row, value_of, with_checksum
from tier2.volumes.objects import IndexRecord, RetentionMode
from tier2.volumes.opening import IncompleteIndexMark, OpenEngine, open_engine_for_reading
from tier2.volumes.rebuild import PlainRows, RecordBlocks, native_walk, walk_in_python
from tier2.volumes.recovery import object_row_of
from tier2.volumes.settings import VolumeSettings
from tier2.volumes.volume_files import DamagedStretch, ScannedRecord, VolumeScan
from tier2.volumes.volume_format import VOLUME_HEADER_BYTES, decode_volume_header

ROOMY = VolumeSettings(
    volume_bytes_max=200_000,
    reserve_bytes=16_384,
    compaction_reserve_bytes=16_384,
    compaction_interval_seconds=1e9,
)
"""Objects of usual sizes are inline here."""


@pytest.fixture(autouse=True, params=["native", "python"])
def walk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What walks over plain records."""
    found = native_walk() if request.param == "native" else walk_in_python
    if found is None:
        pytest.skip("it was not built, or is switched off")
    monkeypatch.setattr(rebuild, "FASTEST_WALK", found)


async def live(opened: OpenEngine, model: Model, random: Random, steps: int) -> None:
    """Changes of every kind; most are plain puts."""
    engine = opened.engine
    for number in range(steps):
        key = b"key/%d" % random.randrange(40)
        content = b"%d " % number + b"." * random.choice((0, 90, 900, 3000, 6000))
        match random.randrange(12):
            case 0:
                if model.keys.get(key):
                    gone = model.keys[key][0]
                    await engine.delete(key)
                    model.remove(key, gone.version_id)
            case 1:
                version = f"v{number}"
                record = await engine.put(key, [content], version_id=version)
                model.put(key, version, content, record, hold=False)
            case 2:
                record = await engine.put(key, [content], legal_hold=True)
                await engine.change_lock(key, legal_hold=False)
                model.put(key, "", content, record, hold=False)
            case 3:
                until = (RetentionMode.GOVERNANCE, 1)
                record = await engine.put(key, [content], retention=until)
                model.put(key, "", content, record, hold=False)
            case _:
                record = await engine.put(key, [content])
                model.put(key, "", content, record, hold=False)


@pytest.mark.parametrize("seed", range(6))
async def test_h68_an_index_made_anew_from_blocks_says_what_the_lost_one_said(
    tmp_path: Path, seed: int
) -> None:
    random, model = Random(seed), Model()
    for life in range(3):
        opened = await open_small(str(tmp_path), settings=ROOMY, clock=SetClock(), seed=life)
        await live(opened, model, random, 90)
        if life == 1:
            await opened.engine.compact()
        await opened.close()
    before = LmdbIndex(str(tmp_path / "index"), read_only=True)
    rows = before.scan(b"", b"\xff", 100_000)
    before.close()
    shutil.rmtree(tmp_path / "index")
    again = await open_small(str(tmp_path), settings=ROOMY)
    assert again.replay.rebuilt
    assert not again.replay.damaged
    await require(again.engine, model)
    await again.close()
    after = LmdbIndex(str(tmp_path / "index"), read_only=True)
    found = after.scan(b"", b"\xff", 100_000)
    after.close()
    # Where a copy lies may differ from where the original lay; what is known of an object may not.
    assert [key for key, _ in found] == [key for key, _ in rows]
    for (key, one), (_, other) in zip(found, rows, strict=True):
        if key[:1] in b"ov":
            assert decode_object_row(one).record == decode_object_row(other).record


async def filled_volume(directory: Path) -> bytes:
    """One volume of groups of some records, plain ones and others."""
    opened = await open_small(str(directory), settings=ROOMY)
    random = Random(4)
    await live(opened, Model(), random, 60)
    await opened.close()
    return (directory / "volumes" / "volume_000001.dat").read_bytes()


def scan_of(path: Path, content: bytes) -> VolumeScan:
    path.write_bytes(content)
    header = decode_volume_header(content[:VOLUME_HEADER_BYTES])
    file = SystemFileSystem().open(str(path))
    return VolumeScan(file, secret=header.secret, size=len(content), offset=0)


def by_blocks(path: Path, content: bytes) -> tuple[list[Row], list[DamagedStretch], int]:
    """Rows of all puts, damage, and how many records came in blocks."""
    secret = decode_volume_header(content[:VOLUME_HEADER_BYTES]).secret
    scan = scan_of(path, content)
    rows: list[Row] = []
    damaged: list[DamagedStretch] = []
    in_blocks = 0
    items = iter(scan)
    blocks = RecordBlocks(scan, volume=1, secret=secret, memory_for=shared)
    while True:
        block = blocks.take()
        if block is not None:
            in_blocks += len(block.plain) + len(block.others)
            for row in block.plain:
                key, value = row[0], bytes(value_of(row))
                assert bytes(row[1]) == with_checksum(key, value)
                rows.append((key[1:], value[8:]))
            rows += puts_among(block.others)
            continue
        one = next(items, None)
        if one is None:
            return sorted(rows), damaged, in_blocks
        if isinstance(one, DamagedStretch):
            damaged.append(one)
        else:
            rows += puts_among([one])


SHARED = memoryview(bytearray(1 << 20))


def shared(length: int) -> memoryview:
    """The same memory again and again: whoever goes on reading what lies there reads something else."""
    return SHARED[:length]


def puts_among(records: Sequence[ScannedRecord]) -> list[Row]:
    return [
        (one.key, encode_object_row(object_row_of(1, one))[8:])
        for one in records
        if not one.header.is_deleted
    ]


async def test_h71_blocks_and_single_records_find_the_same_whatever_is_damaged(
    tmp_path: Path,
) -> None:
    content = await filled_volume(tmp_path / "engine")
    random, path = Random(7), tmp_path / "volume"
    rows, damaged, in_blocks = by_blocks(path, content)
    assert not damaged
    assert in_blocks >= 50
    for _ in range(150):
        bad = bytearray(content)
        bad[random.randrange(VOLUME_HEADER_BYTES, len(bad))] ^= 1 << random.randrange(8)
        if random.random() < 0.3:
            del bad[random.randrange(VOLUME_HEADER_BYTES, len(bad)) :]
        found, damaged, _ = by_blocks(path, bytes(bad))
        items = list(scan_of(path, bytes(bad)))
        single = [one for one in items if isinstance(one, ScannedRecord)]
        assert found == sorted(puts_among(single))
        assert damaged == [one for one in items if isinstance(one, DamagedStretch)]
        assert set(found) <= set(rows)


async def test_a_stretch_grows_until_whole_groups_fit_into_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = await filled_volume(tmp_path / "engine")
    whole = by_blocks(tmp_path / "volume", content)
    assert whole[2] >= 50
    monkeypatch.setattr(rebuild, "_STRETCH_BYTES_MIN", 100)
    assert by_blocks(tmp_path / "volume", content) == whole


async def test_what_rows_were_made_of_is_read_anew_where_its_group_is_broken(
    tmp_path: Path,
) -> None:
    opened = await open_small(str(tmp_path / "engine"), settings=ROOMY)
    puts = [opened.engine.put(b"key/%d" % number, [b"content"]) for number in range(8)]
    await asyncio.gather(*puts)
    await opened.close()
    content = bytearray((tmp_path / "engine" / "volumes" / "volume_000001.dat").read_bytes())
    content[content.rindex(b"content")] ^= 1
    found, damaged, _ = by_blocks(tmp_path / "volume", bytes(content))
    assert len(found) == 7
    assert len(damaged) == 1


def test_h69_of_many_rows_of_a_key_the_highest_number_stays(tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    index = LmdbIndex(str(tmp_path / "index"))
    index.load()
    lost = [0]

    def superseded(volume: int, length: int) -> None:
        assert volume == 1
        lost[0] += length

    random = Random(3)
    plain = PlainRows(index=index, bytes_max=20_000, superseded=superseded)
    newest: dict[bytes, int] = {}
    total = 0
    for sequence in random.sample(range(1, 4000), 900):
        key = b"o" + random.choice((b"%d" % random.randrange(90), random.choice(LONG)))
        row = laid_in(plain, key, row_of(sequence))
        newest[key] = max(newest.get(key, 0), sequence)
        total += 300
        plain.take([(key, row)], len(row))
    plain.store()
    index.loaded()
    stored = dict(index.scan(b"", b"\xff", 1000))
    assert {key: plain_row_sequence(row) for key, row in stored.items()} == newest
    assert total - lost[0] == 300 * len(newest)
    index.close()


@pytest.mark.parametrize("shuffled", [False, True])
def test_rows_that_come_in_order_are_stored_before_their_memory_is_full(*, shuffled: bool) -> None:
    index = MemoryIndex()
    plain = PlainRows(index=index, bytes_max=80_000, superseded=never)
    numbers = list(range(400))
    if shuffled:
        Random(5).shuffle(numbers)
    for number in numbers:
        key = b"o%04d" % number
        row = laid_in(plain, key, row_of(number))
        plain.take([(key, row)], len(row))
    stored = len(index.scan(b"o", b"p", 1000))
    assert stored == 0 if shuffled else stored > 300
    plain.store()
    rows = index.scan(b"o", b"p", 1000)
    assert rows == [(b"o%04d" % number, row_of(number)) for number in range(400)]


def laid_in(plain: PlainRows, key: bytes, value: bytes) -> memoryview:
    row = with_checksum(key, value)
    memory = plain.memory_for(len(row))
    memory[:] = row
    return memory


def never(_volume: int, _length: int) -> None:
    raise AssertionError("no row was superseded")


def row_of(sequence: int) -> bytes:
    record = IndexRecord(3, sequence, bytes(32), "etag", 1, 1000, (7,), inline=True)
    return encode_object_row(ObjectRow(1, 64 + 8 * sequence, 300, record, b"abc"))


async def test_h68_an_index_that_was_not_made_whole_is_made_again(tmp_path: Path) -> None:
    opened = await open_small(str(tmp_path), settings=ROOMY)
    model = Model()
    await live(opened, model, Random(2), 40)
    await opened.close()
    mark = IncompleteIndexMark(str(tmp_path / "index"), files=SystemFileSystem())
    assert not mark.is_there
    mark.put()
    index = LmdbIndex(str(tmp_path / "index"))
    index.apply([(b"okey/0", b"what a power cut may leave")])
    index.close()
    again = await open_small(str(tmp_path), settings=ROOMY)
    assert again.replay.rebuilt == "its rebuild was cut off"
    await require(again.engine, model)
    await again.close()
    assert not mark.is_there
    assert not list(tmp_path.glob("index.damaged-*"))


_KILLED = """
import asyncio, os, sys
from tests.tier2.volumes.engines import open_small
from tier2.volumes.rebuild import Rebuild

Rebuild._count_blobs = lambda self: os._exit(9)
asyncio.run(open_small(sys.argv[1]))
"""


async def test_h68_a_process_that_is_killed_while_it_rebuilds_leaves_it_to_the_next(
    tmp_path: Path,
) -> None:
    opened = await open_small(str(tmp_path), settings=ROOMY)
    model = Model()
    await live(opened, model, Random(2), 40)
    await opened.close()
    shutil.rmtree(tmp_path / "index")
    killed = subprocess.run(
        [sys.executable, "-c", _KILLED, str(tmp_path)],
        cwd=Path(__file__).parents[3],
        check=False,
    )
    assert killed.returncode == 9
    # Nobody takes what is there for the whole.
    with pytest.raises(StorageUnavailableError, match="being made"):
        await open_engine_for_reading(
            str(tmp_path),
            files=SystemFileSystem(),
            open_index=lambda path: LmdbIndex(path, read_only=True),
            executor=None,
            wall_clock=SetClock(),
            random=Random(1),
            settings=ROOMY,
        )
    again = await open_small(str(tmp_path), settings=ROOMY)
    assert again.replay.rebuilt == "its rebuild was cut off"
    await require(again.engine, model)
    await again.close()
