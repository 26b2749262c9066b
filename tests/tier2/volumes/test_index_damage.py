"""Goal: no flipped bit in the file of the index gives a wrong row, or hides a row that is there.

Method: a small index is written in many transactions, so that its file has old states of its pages as well, with short
and long keys, small rows and some that fill pages of their own. One bit is flipped, then everything is asked for; by a
child process, since LMDB, which believes what it maps, may end it. Where the flips are is drawn by a seed; a run by
hand draws more of them: INDEX_FLIPS=20000 pytest -n 0 tests/tier2/volumes/test_index_damage.py
"""

import asyncio
import logging
import os
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import lmdb
import pytest

from segmentstore.contracts.errors import CorruptedDataError, ObjectExistsError
from tests.tier2.volumes.engines import SMALL, open_small
from tier2.volumes.index_database import LmdbIndex, OutdatedIndexError, with_checksum
from tier2.volumes.objects import Condition
from tier2.volumes.opening import OpenEngine

FLIPS = int(os.environ.get("INDEX_FLIPS", "100"))
PAGE = 4096
WRONG = 50
"""Exit codes of a child from here on are faults; those below say what it met."""


def pages_in_use(directory: Path) -> tuple[list[int], int]:
    """Their numbers, and that of the last page that there is."""
    index = LmdbIndex(str(directory))
    with index._environment.begin() as transaction:
        state = index._certain_state_of(transaction)
        used = sorted({0, 1} | index._pages.check(state, lambda _key, _value: None))
    index.close()
    return used, state.highest_page


def one_bit_flipped(path: Path, flips: int, look: Callable[[], int]) -> Counter[int]:
    """What `look` says in a child process for each of so many flips, most of them in pages in use."""
    whole = path.read_bytes()
    used, highest_page = pages_in_use(path.parent)
    path.write_bytes(whole)
    random, said = Random(1), Counter[int]()
    for number in range(flips):
        page = random.choice(used) if number % 4 else random.randrange(highest_page + 1)
        at, bit = page * PAGE + random.randrange(PAGE), random.randrange(8)
        flip(path, whole, at, bit)
        child = os.fork()
        if not child:
            code = WRONG
            try:
                code = look()
            except BaseException:  # noqa: BLE001 - its parent is told by the code
                traceback.print_exc()
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        assert 0 <= code < WRONG, f"bit {bit} of byte {at}: {code}"
        said[code] += 1
        path.write_bytes(whole)
        path.with_name("lock.mdb").unlink(missing_ok=True)
        path.with_name("damaged").unlink(missing_ok=True)
    return said


def flip(path: Path, whole: bytes, at: int, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes([whole[at] ^ 1 << bit]))


def written_index(directory: Path) -> dict[bytes, bytes]:
    """Its rows."""
    random, rows = Random(2), dict[bytes, bytes]()
    keys = [b"okey/%03d" % number for number in range(120)]
    keys += [b"f" * 400 + random.randbytes(9) for _ in range(4)]
    index = LmdbIndex(str(directory))
    for _ in range(14):
        batch = [
            (key, random.randbytes(random.choice((20, 150, 900, 2500))))
            for key in random.sample(keys, 20)
        ]
        index.apply(batch)
        rows.update(batch)
    for key in random.sample(sorted(rows), 10):
        index.apply([(key, None)])
        del rows[key]
    index.sync()
    index.close()
    return rows


def test_a_start_finds_each_bit_that_flipped_in_what_is_in_use(tmp_path: Path) -> None:
    rows = written_index(tmp_path)

    def look() -> int:
        try:
            index = LmdbIndex(str(tmp_path))
        except CorruptedDataError:
            return 1
        right = list(index.scan(b"", b"\xff", 1000)) == sorted(rows.items())
        right &= index.get_many(list(rows)) == list(rows.values())
        return 0 if right else WRONG

    said = one_bit_flipped(tmp_path / "data.mdb", FLIPS, look)
    # The rest hit pages that were free.
    assert said[1] > FLIPS // 10


def test_d5_a_bit_that_flips_behind_the_start_gives_no_wrong_row_and_hides_none(
    tmp_path: Path,
) -> None:
    rows = written_index(tmp_path)
    absent = [b"okey/%03d+" % number for number in range(0, 120, 7)]

    def look() -> int:
        met = 0
        try:
            index = LmdbIndex(str(tmp_path), checked_bytes_max=0)
        except CorruptedDataError:
            return 1
        try:
            if list(index.scan(b"", b"\xff", 1000)) != sorted(rows.items()):
                return WRONG
        except CorruptedDataError:
            met |= 2
        for key in (*rows, *absent):
            for get, weaker in ((index.get_certain, False), (index.get, True)):
                try:
                    found = get(key)
                except (CorruptedDataError, OSError):
                    met |= 4
                else:
                    if found != rows.get(key) and not (weaker and found is None):
                        return WRONG
        return met

    said = one_bit_flipped(tmp_path / "data.mdb", FLIPS, look)
    assert said[6] > FLIPS // 20


# --- the engine ----------------------------------------------------------------------------------


async def filled(directory: Path) -> dict[bytes, bytes]:
    """Objects in an engine that was closed, in several lives."""
    random, contents = Random(3), dict[bytes, bytes]()
    for life in range(3):
        opened = await open_small(str(directory), seed=life)
        for _ in range(25):
            key = b"key/%02d" % random.randrange(40)
            contents[key] = random.randbytes(random.choice((20, 150, 900)))
            await opened.engine.put(key, [contents[key]])
        await opened.close()
    return contents


async def survey(opened: OpenEngine, contents: dict[bytes, bytes], *, refused: bool) -> bool:
    """Whether anything was refused as damaged, which only may be if `refused`. Raises AssertionError for all else."""
    met = False
    for key, right in contents.items():
        try:
            assert (await opened.engine.get(key)).content == right
        except CorruptedDataError:
            met = True
        try:
            await opened.engine.put(key, [b"other"], condition=Condition(absent=True))
        except (ObjectExistsError, CorruptedDataError) as error:
            met |= isinstance(error, CorruptedDataError)
        else:
            raise AssertionError(f"overwritten {key!r}")
    try:
        listed = [one.key for one in await opened.engine.list(b"", limit=1000)]
        assert listed == sorted(contents)
    except CorruptedDataError:
        met = True
    assert refused or not met
    return met


def test_an_index_with_a_flipped_bit_is_made_anew_at_the_start(tmp_path: Path) -> None:
    contents = asyncio.run(filled(tmp_path))

    async def look() -> int:
        opened = await open_small(str(tmp_path))
        await survey(opened, contents, refused=False)
        return int(bool(opened.replay.rebuilt))

    path = tmp_path / "index" / "data.mdb"
    said = one_bit_flipped(path, FLIPS // 3, lambda: asyncio.run(look()))
    assert said[1] > FLIPS // 30


def test_an_engine_that_meets_damage_refuses_and_overwrites_nothing_and_its_next_start_heals_it(
    tmp_path: Path,
) -> None:
    contents = asyncio.run(filled(tmp_path))

    async def look() -> int:
        try:
            opened = await open_small(
                str(tmp_path), open_index=lambda path: LmdbIndex(path, checked_bytes_max=0)
            )
        except CorruptedDataError:
            raise AssertionError("it has to be made anew") from None
        met = await survey(opened, contents, refused=True)
        await opened.close()
        again = await open_small(
            str(tmp_path), open_index=lambda path: LmdbIndex(path, checked_bytes_max=0)
        )
        await survey(again, contents, refused=False)
        return int(met)

    path = tmp_path / "index" / "data.mdb"
    said = one_bit_flipped(path, FLIPS // 3, lambda: asyncio.run(look()))
    assert said[1] > FLIPS // 60


def test_an_index_without_checksums_is_made_anew_once_and_said_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    contents = asyncio.run(filled(tmp_path))
    written_without_checksums(tmp_path / "index")
    with pytest.raises(OutdatedIndexError):
        LmdbIndex(str(tmp_path / "index"))

    async def look() -> str:
        opened = await open_small(str(tmp_path), settings=SMALL)
        await survey(opened, contents, refused=False)
        await opened.close()
        return opened.replay.rebuilt

    with caplog.at_level(logging.INFO):
        assert "no checksums" in asyncio.run(look())
    assert len(caplog.records) == 1
    assert "made anew" in caplog.text
    assert not list(tmp_path.glob("index.*"))
    assert not asyncio.run(look())


def written_without_checksums(directory: Path) -> None:
    """As before there were any."""
    with (
        lmdb.open(str(directory), map_size=1 << 30) as environment,
        environment.begin(write=True) as transaction,
    ):
        for key, value in list(transaction.cursor()):
            transaction.delete(key)
            if key >= b"\1":
                transaction.put(key, value[4:])


def test_pages_that_were_never_written_are_no_damage_if_they_are_free(tmp_path: Path) -> None:
    index = LmdbIndex(str(tmp_path))
    for _ in range(10):
        index.apply([(b"a", b"1")])
    index.apply([(b"a", b"1"), (b"big", bytes(50_000)), (b"big", None)])
    index.close()
    used, highest_page = pages_in_use(tmp_path)
    written = PAGE * (max(used) + 1)
    assert written < PAGE * (highest_page + 1)
    os.truncate(tmp_path / "data.mdb", written)
    again = LmdbIndex(str(tmp_path))
    assert again.get_many([b"a", b"big"]) == [b"1", None]
    again.close()
    os.truncate(tmp_path / "data.mdb", 3 * PAGE)
    with pytest.raises(CorruptedDataError, match="cut off"):
        LmdbIndex(str(tmp_path))


def test_a_row_that_stands_under_another_key_is_damage(tmp_path: Path) -> None:
    index = LmdbIndex(str(tmp_path))
    rows = {b"a": b"1" * 20, b"b": b"2" * 20}
    index.apply(rows.items())
    index.close()
    one, other = (with_checksum(key, value) for key, value in rows.items())
    path = tmp_path / "data.mdb"
    whole = path.read_bytes()
    assert one in whole
    path.write_bytes(whole.replace(one, b"?" * 24).replace(other, one).replace(b"?" * 24, other))
    with pytest.raises(CorruptedDataError):
        LmdbIndex(str(tmp_path))
    index = LmdbIndex(str(tmp_path), checked_bytes_max=0)
    with pytest.raises(CorruptedDataError, match="checksum"):
        index.get(b"a")
    index.close()
    with pytest.raises(CorruptedDataError, match="checksum"):
        LmdbIndex(str(tmp_path), checked_bytes_max=0)
