"""Goal: one flipped bit in a volume costs the bytes it is in at most, and is reported: it never brings an older object
back, hides a newer one, or undoes a deletion.

Method: keys are overwritten and deleted; one bit behind the header of a volume is flipped, anywhere or in what was
written last; the engine is opened with an index that is as it was, that lags behind, or that is lost.
"""

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from segmentstore.codec.crc32 import crc32_of
from segmentstore.codec.crc_algebra import CRC32, flipped_bit, joined_crc, with_bit_flipped
from segmentstore.contracts.errors import CorruptedDataError, ObjectNotFoundError
from tests.tier2.volumes.engines import SMALL, open_small
from tests.tier2.volumes.memory_index import MemoryIndex
from tier2.volumes.engine import VolumeEngine
from tier2.volumes.opening import OpenEngine

KEYS = [b"key/%d" % number for number in range(6)]
Contents = dict[bytes, bytes | None]


async def fill(directory: Path, random: Random, *, lives: int) -> tuple[Contents, MemoryIndex]:
    """What each key holds in the end, and an index that has not been told of everything."""
    index = MemoryIndex()
    contents: Contents = {}
    left = index
    for life in range(lives):
        opened = await open_small(str(directory), open_index=lambda _: index, seed=life)
        for key in KEYS:
            content = random.randbytes(random.choice((20, 150, 900, 2500)))
            metadata = random.choice(({}, {"a": "b"}))
            await opened.engine.put(key, [content], metadata=metadata)
            contents[key] = content
        for _ in range(6):
            await change(opened.engine, contents, random)
        left = index.fork()
        await opened.close()
    return contents, left


async def change(engine: VolumeEngine, contents: Contents, random: Random) -> None:
    key = random.choice(KEYS)
    if random.random() < 0.2:
        await engine.delete(key)
        contents[key] = None
        return
    content = random.randbytes(random.choice((20, 150, 900, 2500)))
    known = [one for one in contents.values() if one is not None]
    if known and random.random() < 0.2:
        content = random.choice(known)
    await engine.put(key, [content])
    contents[key] = content


async def require_nothing_older(opened: OpenEngine, contents: Contents) -> int:
    """How many keys are refused as damaged."""
    refused = 0
    for key, right in contents.items():
        try:
            assert (await opened.engine.get(key)).content == right, f"{key!r} {opened.replay}"
        except ObjectNotFoundError:
            assert right is None, f"{key!r} is hidden {opened.replay}"
        except CorruptedDataError:
            refused += 1
    listed = [one.key for one in await opened.engine.list(b"", limit=100)]
    assert listed == sorted(key for key, content in contents.items() if content is not None)
    return refused


def flip_somewhere(directory: Path, random: Random, *, near_the_end: bool) -> bool:
    """False if it may be zeros behind a record that were hit, which belong to no checksum."""
    paths = sorted((directory / "volumes").iterdir())
    path = paths[-1] if near_the_end else random.choice(paths)
    content = path.read_bytes()
    first = max(64, len(content) - 600) if near_the_end else 64
    place = random.randrange(first, len(content))
    path.write_bytes(with_bit_flipped(content, place * 8 + random.randrange(8)))
    return content[place] != 0


@pytest.mark.parametrize("index_is", ["kept", "behind", "lost"])
@pytest.mark.parametrize("seed", range(40))
async def test_h45_a_flipped_bit_never_brings_back_hides_or_undoes(
    tmp_path: Path, seed: int, index_is: str
) -> None:
    random = Random(f"{seed} {index_is}")
    contents, behind = await fill(tmp_path, random, lives=random.choice((1, 2)))
    index = behind if index_is == "behind" else MemoryIndex()
    if index_is == "kept":
        opened = await open_small(str(tmp_path), open_index=lambda _: index)
        await opened.close()
    certain = flip_somewhere(tmp_path, random, near_the_end=seed % 2 == 0)
    opened = await open_small(str(tmp_path), open_index=lambda _: index)
    assert not opened.replay.cut_bytes
    await require_nothing_older(opened, contents)
    report = await opened.engine.verify(deep=True)
    assert not (certain and report.healthy), "the damage is said"
    await opened.close()


@pytest.mark.parametrize("index_is", ["behind", "lost"])
async def test_h45_the_newest_object_is_refused_and_not_its_forerunner_served(
    tmp_path: Path, index_is: str
) -> None:
    """Its bytes are bad, what the record says of them is proved; the same bytes, put again, heal it."""
    index = MemoryIndex()
    # The database has what the test gives it, however long the disk takes.
    quiet = replace(SMALL, index_delay_seconds=1e9)
    opened = await open_small(str(tmp_path), open_index=lambda _: index, settings=quiet)
    old, new = Random(1).randbytes(3000), Random(2).randbytes(3000)
    await opened.engine.put(b"key", [old])
    opened.engine._index.flush()
    await opened.engine.put(b"key", [new])
    left = index.fork() if index_is == "behind" else MemoryIndex()
    await opened.close()
    path = tmp_path / "volumes" / "volume_000001.dat"
    content = path.read_bytes()
    damaged = bytearray(content)
    damaged[content.index(new) + 100 : content.index(new) + 110] = bytes(10)
    path.write_bytes(damaged)
    opened = await open_small(str(tmp_path), open_index=lambda _: left)
    assert len(opened.replay.damaged) == 1
    assert path.stat().st_size == len(content)
    with pytest.raises(CorruptedDataError):
        await opened.engine.get(b"key")
    assert (await opened.engine.get_range(b"key", 2000, 1000)).content == new[2000:]
    assert not (await opened.engine.verify(deep=True)).healthy
    await opened.engine.put(b"key", [new])
    assert (await opened.engine.get(b"key")).content == new
    await opened.close()


async def test_numbers_do_not_return_where_a_header_is_lost(tmp_path: Path) -> None:
    index = MemoryIndex()
    opened = await open_small(str(tmp_path), open_index=lambda _: index)
    last = None
    for number in range(3):
        last = await opened.engine.put(b"%d" % number, [b"x" * 100])
    await opened.close()
    assert last is not None
    path = tmp_path / "volumes" / "volume_000001.dat"
    content = bytearray(path.read_bytes())
    place = content.rindex(b"S4rc")
    content[place : place + 48] = b"\xa5" * 48
    path.write_bytes(content)
    opened = await open_small(str(tmp_path), open_index=lambda _: MemoryIndex())
    assert len(opened.replay.damaged) == 1
    assert opened.replay.sequence_next > last.sequence
    await opened.close()


@pytest.mark.parametrize("seed", range(30))
def test_which_bit_was_flipped_follows_from_the_checksum(seed: int) -> None:
    random = Random(seed)
    front, behind = random.randbytes(random.randrange(1, 60)), random.randbytes(seed)
    bit = random.randrange(len(front) * 8)
    before, after = crc32_of(front + behind, 7), crc32_of(with_bit_flipped(front, bit) + behind, 7)
    assert flipped_bit(CRC32, before ^ after, len(front), behind=len(behind)) == bit
    assert joined_crc(
        CRC32, [(crc32_of(front, 7), len(front)), (crc32_of(behind), len(behind))]
    ) == crc32_of(front + behind, 7)
    assert flipped_bit(CRC32, 0, len(front)) is None
