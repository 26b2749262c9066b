"""An answered put can be read back: it refers to bytes that it wrote, or to bytes that were found sound."""

import asyncio
import logging
import shutil
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from segmentstore.contracts.errors import CorruptedDataError, ObjectNotFoundError
from segmentstore.contracts.identifiers import BufferView
from tests.tier2.volumes.engines import SMALL, open_small
from tests.tier2.volumes.memory_index import MemoryIndex
from tier2.volumes import deduplication
from tier2.volumes.deduplication import DuplicateCheck
from tier2.volumes.engine import VolumeEngine
from tier2.volumes.index import BlobRow, blob_key, decode_blob_row
from tier2.volumes.mutations import DuplicateFound, Put
from tier2.volumes.objects import Description, RetentionMode, digest
from tier2.volumes.opening import OpenEngine
from tier2.volumes.verification import VerificationReport
from tier2.volumes.volume_format import VOLUME_HEADER_BYTES

PATIENCE_SECONDS = 60
CONTENT = Random(1).randbytes(5000)


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


def volume(directory: Path, number: int = 1) -> Path:
    return directory / "volumes" / f"volume_{number:06d}.dat"


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def place_of(engine: VolumeEngine, content_hash: bytes) -> BlobRow:
    row = engine._index.get(blob_key(content_hash))
    assert row is not None
    return decode_blob_row(row)


async def require_sums(engine: VolumeEngine) -> VerificationReport:
    """References and live bytes are right, whatever is damaged."""
    report = await engine.verify(deep=True)
    assert report.sums_compared
    assert not [one for one in report.problems if "miscounted" in one or "live bytes" in one]
    return report


async def read(engine: VolumeEngine, *keys: bytes) -> list[bytes]:
    return [(await engine.get(key)).content for key in keys]


def flipped(place: Callable[[BlobRow], int]) -> Callable[[Path, BlobRow], None]:
    return lambda path, row: flip(path, place(row))


def cut(path: Path, row: BlobRow) -> None:
    with path.open("r+b") as file:
        file.truncate(row.blob_offset + row.size // 2)


def zeroed(path: Path, row: BlobRow) -> None:
    content = bytearray(path.read_bytes())
    content[row.blob_offset + 100 : row.blob_offset + 600] = bytes(500)
    path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path, BlobRow], None]] = {
    "first byte": flipped(lambda row: row.blob_offset),
    "last byte": flipped(lambda row: row.blob_offset + row.size - 1),
    "zeros": zeroed,
    "header": flipped(lambda row: row.record_offset + 10),
    "index record": flipped(lambda row: row.blob_offset - 20),
    "header of the volume": flipped(lambda _: VOLUME_HEADER_BYTES // 4),
    "cut": cut,
    "gone": lambda path, _: path.unlink(),
}
SOUND_RECORDS = {"first byte", "last byte", "zeros", "cut"}
"""Key and index record of the damaged one can still be read."""


@pytest.mark.parametrize("size", [900, 5000, 300_000], ids=["small", "in line", "large"])
@pytest.mark.parametrize("damage", list(DAMAGES))
async def test_h72_a_put_of_bytes_that_are_damaged_where_they_are_repairs_them(
    tmp_path: Path, damage: str, size: int
) -> None:
    content = Random(1).randbytes(size)
    one = await open_small(str(tmp_path))
    row = place_of(one.engine, (await one.engine.put(b"old", [content])).content_hash)
    await one.close()
    DAMAGES[damage](volume(tmp_path), row)
    two = await open_small(str(tmp_path))
    await two.engine.put(b"new", [content])
    record = await two.engine.put(b"other", [content])
    assert place_of(two.engine, record.content_hash).references == 3
    assert await read(two.engine, b"old", b"new", b"other") == [content] * 3
    assert two.engine._queue._queued_bytes == 0
    await require_sums(two.engine)
    new = [path for path in (tmp_path / "volumes").iterdir() if path != volume(tmp_path)]
    assert size < sum(path.stat().st_size for path in new) < size + 5000, "one copy"
    await two.close()
    again = await open_small(str(tmp_path))
    assert not again.replay.rebuilt
    assert await read(again.engine, b"old", b"new", b"other") == [content] * 3
    await again.close()
    # The volumes alone say the same, as far as they still have the old name.
    shutil.rmtree(tmp_path / "index")
    last = await open_small(str(tmp_path))
    assert last.replay.rebuilt
    assert await read(last.engine, b"new", b"other") == [content] * 2
    if damage in SOUND_RECORDS:
        assert await read(last.engine, b"old") == [content]
        await last.engine.compact()
        await last.engine.check()
    await require_sums(last.engine)
    await last.close()


@pytest.mark.parametrize("unique", [False, True])
async def test_a_put_of_the_same_key_repairs_it(tmp_path: Path, *, unique: bool) -> None:
    one = await open_small(str(tmp_path))
    await one.engine.put(b"key", [CONTENT], unique=unique)
    await one.close()
    flip(volume(tmp_path), 3000)
    two = await open_small(str(tmp_path))
    with pytest.raises(CorruptedDataError):
        await two.engine.get(b"key")
    await two.engine.put(b"key", [memoryview(bytearray(CONTENT))], unique=unique)
    assert await read(two.engine, b"key") == [CONTENT]
    assert (await two.engine.compact()).removed == [1], "nothing of it is live"
    await two.engine.check()
    await two.close()


async def test_h72_sound_bytes_are_stored_once(tmp_path: Path) -> None:
    one = await open_small(str(tmp_path))
    await one.engine.put(b"first", [CONTENT])
    record = await one.engine.put(b"second", [CONTENT])
    assert place_of(one.engine, record.content_hash).references == 2
    await one.close()
    two = await open_small(str(tmp_path))
    await asyncio.gather(*(two.engine.put(b"%d" % n, [CONTENT]) for n in range(8)))
    assert place_of(two.engine, record.content_hash).references == 10
    sizes = [path.stat().st_size for path in (tmp_path / "volumes").iterdir()]
    assert sum(sizes) < 2 * len(CONTENT)
    await two.engine.check()
    await two.close()


async def test_all_that_put_damaged_bytes_at_once_share_one_new_copy(tmp_path: Path) -> None:
    one = await open_small(str(tmp_path))
    record = await one.engine.put(b"old", [CONTENT])
    await one.close()
    flip(volume(tmp_path), 3000)
    two = await open_small(str(tmp_path))
    keys = [b"%d" % number for number in range(20)]
    await asyncio.gather(*(two.engine.put(key, [CONTENT]) for key in keys))
    assert await read(two.engine, b"old", *keys) == [CONTENT] * 21
    assert place_of(two.engine, record.content_hash).references == 21
    assert volume(tmp_path, 2).stat().st_size < 2 * len(CONTENT)
    await require_sums(two.engine)
    await two.close()


@pytest.mark.parametrize("lost", ["nothing", "the last changes", "all"])
async def test_h68_what_a_repair_led_elsewhere_is_found_there_by_the_next_start(
    tmp_path: Path, lost: str
) -> None:
    """Versions, one of them under hold: none may be lost, or lose its hold."""
    index = MemoryIndex()
    one = await open_small(str(tmp_path), open_index=lambda _: index)
    held = await one.engine.put(b"key", [CONTENT], version_id="1", legal_hold=True)
    await one.engine.put(b"key", [b"x" * 3000], version_id="2")
    await one.engine.change_lock(
        b"key", version_id="1", retention=(RetentionMode.GOVERNANCE, 1 << 42)
    )
    await one.engine.put(b"key2", [CONTENT])
    await one.engine.put(b"key3", [b"y" * 3000])
    await one.close()
    row = place_of(one.engine, held.content_hash)
    flip(volume(tmp_path), row.blob_offset + 2500)
    flip(volume(tmp_path), place_of(one.engine, (await head(one, b"key3"))).blob_offset + 1)
    before = index.fork()
    two = await open_small(str(tmp_path), open_index=lambda _: index)
    await two.engine.put(b"other", [CONTENT])
    await two.engine.put(b"another", [b"y" * 3000])
    await two.close()
    left = {"nothing": index, "the last changes": before, "all": MemoryIndex()}[lost]
    three = await open_small(str(tmp_path), open_index=lambda _: left)
    assert bool(three.replay.rebuilt) == (lost == "all")
    engine = three.engine
    assert await read(engine, b"key2", b"other", b"key3", b"another") == [
        CONTENT,
        CONTENT,
        b"y" * 3000,
        b"y" * 3000,
    ]
    versions = await engine.list_versions(b"key")
    assert [(one.version_id, one.legal_hold, one.retain_until_ms) for one in versions] == [
        ("2", False, 0),
        ("1", True, 1 << 42),
    ]
    assert versions[1].sequence == held.sequence
    assert (await engine.get(b"key", version_id="1")).content == CONTENT
    await require_sums(engine)
    await three.close()


async def test_bytes_that_are_not_what_their_hash_says_are_not_shared(tmp_path: Path) -> None:
    """They changed between hashing and writing: their record is whole, and nobody can read them."""
    one = await open_small(str(tmp_path))
    found = digest([CONTENT], SMALL.piece_bytes)
    await one.engine.put_digested(b"first", [CONTENT[::-1]], found, Description())
    with pytest.raises(CorruptedDataError):
        await one.engine.get(b"first")
    await one.engine.put(b"second", [CONTENT])
    assert await read(one.engine, b"first", b"second") == [CONTENT] * 2
    await one.engine.check()
    await one.close()
    # Of two whole records of that hash a rebuild takes the newer one.
    shutil.rmtree(tmp_path / "index")
    two = await open_small(str(tmp_path))
    assert await read(two.engine, b"first", b"second") == [CONTENT] * 2
    await two.engine.check()
    await two.close()


@pytest.mark.parametrize("lost", ["nothing", "the last changes", "all"])
async def test_h68_all_are_led_to_the_bytes_of_a_large_upload(tmp_path: Path, lost: str) -> None:
    index = MemoryIndex()
    one = await open_small(str(tmp_path), open_index=lambda _: index)
    content = Random(2).randbytes(12_000)
    await one.engine.put(b"key", [content])
    await one.engine.put(b"name", [content])
    await one.close()
    flip(volume(tmp_path), 3000)
    before = index.fork()
    two = await open_small(str(tmp_path), open_index=lambda _: index)
    assert two.uploads is not None
    upload = await two.uploads.begin(b"new", Description())
    part = await two.uploads.put_part(upload, 1, [content])
    await two.uploads.complete(upload, [part], Description(etag="e"))
    assert await read(two.engine, b"key", b"name", b"new") == [content] * 3
    await require_sums(two.engine)
    await two.close()
    left = {"nothing": index, "the last changes": before, "all": MemoryIndex()}[lost]
    three = await open_small(str(tmp_path), open_index=lambda _: left)
    assert await read(three.engine, b"name", b"new") == [content] * 2
    if lost != "all":
        assert await read(three.engine, b"key") == [content]
    await require_sums(three.engine)
    await three.close()


async def head(opened: OpenEngine, key: bytes) -> bytes:
    return (await opened.engine.head(key)).content_hash


# --- while a check is under way -------------------------------------------------------------------


class Held:
    """The checks of an engine, which go on when the test says so."""

    def __init__(self, opened: OpenEngine) -> None:
        self.opened = opened
        self.begun = threading.Semaphore(0)
        self.under_way = self.most = self.count = 0
        self._goes_on = threading.Event()
        self._lock = threading.Lock()
        checks = opened.engine._queue._checks
        self._check = checks._check
        checks._check = self._hold

    def _hold(self, put: Put, found: DuplicateFound) -> Put:
        with self._lock:
            self.under_way += 1
            self.count += 1
            self.most = max(self.most, self.under_way)
        self.begun.release()
        assert self._goes_on.wait(PATIENCE_SECONDS)
        with self._lock:
            self.under_way -= 1
        return self._check(put, found)

    async def reached(self) -> None:
        loop = asyncio.get_running_loop()
        assert await loop.run_in_executor(None, self.begun.acquire, True, PATIENCE_SECONDS)

    def go_on(self) -> None:
        self._goes_on.set()


async def damaged_engine(directory: Path) -> tuple[OpenEngine, Held]:
    one = await open_small(str(directory))
    await one.engine.put(b"old", [CONTENT])
    await one.close()
    flip(volume(directory), 3000)
    two = await open_small(str(directory), executor=ThreadPoolExecutor(16))
    return two, Held(two)


@pytest.fixture
def _one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long objects are checked."""
    monkeypatch.setattr(deduplication, "_CHECK_CALL_BYTES_MAX", 1)


@pytest.mark.usefixtures("_one_by_one")
async def test_a_check_holds_up_nobody_else_and_few_are_under_way(tmp_path: Path) -> None:
    opened, held = await damaged_engine(tmp_path)
    engine = opened.engine
    puts = [asyncio.ensure_future(engine.put(b"%d" % n, [CONTENT])) for n in range(10)]
    for _ in range(4):
        await held.reached()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await engine.put(b"else", [b"z" * 5000])
        await engine.put(b"else", [b"tiny"])
        await engine.delete(b"else")
    assert not any(put.done() for put in puts)
    assert held.most == 4
    held.go_on()
    await asyncio.gather(*puts)
    assert held.most == 4
    assert await read(engine, *(b"%d" % n for n in range(10))) == [CONTENT] * 10
    await require_sums(engine)
    await opened.close()


async def test_small_objects_are_checked_by_one_call_and_each_for_itself(tmp_path: Path) -> None:
    opened, held = await damaged_engine(tmp_path)
    content = memoryview(bytearray(CONTENT))
    puts = [asyncio.ensure_future(opened.engine.put(b"%d" % n, [CONTENT])) for n in range(5)]
    puts.insert(2, asyncio.ensure_future(opened.engine.put(b"changes", [content])))
    await held.reached()
    content[7] ^= 1
    held.go_on()
    outcomes = await asyncio.gather(*puts, return_exceptions=True)
    assert [type(one) for one in outcomes if isinstance(one, Exception)] == [CorruptedDataError]
    assert held.most == 1
    assert await read(opened.engine, *(b"%d" % n for n in range(5))) == [CONTENT] * 5
    await require_sums(opened.engine)
    await opened.close()


@pytest.mark.usefixtures("_one_by_one")
async def test_a_put_that_was_given_up_while_it_was_checked_is_not_made(tmp_path: Path) -> None:
    """Its caller may have deleted the key since, and was answered."""
    opened, held = await damaged_engine(tmp_path)
    engine = opened.engine
    some = [b"%d" % number for number in range(6)]
    puts = [asyncio.ensure_future(engine.put(key, [CONTENT])) for key in some]
    for _ in range(4):
        await held.reached()
    for put in puts:
        put.cancel()
    await asyncio.gather(*puts, return_exceptions=True)
    for key in some:
        await engine.delete(key)
    stays = asyncio.ensure_future(engine.put(b"stays", [CONTENT]))
    held.go_on()
    await stays
    await opened.close()
    assert engine._queue._queued_bytes == len(engine._queue._unanswered) == 0
    assert held.count == 5, "those that were in nobody's thread yet are not looked at"
    again = await open_small(str(tmp_path))
    assert await read(again.engine, b"stays", b"old") == [CONTENT] * 2
    for key in some:
        with pytest.raises(ObjectNotFoundError):
            await again.engine.head(key)
    await require_sums(again.engine)
    await again.close()


async def test_what_is_checked_when_the_engine_is_closed_is_made(tmp_path: Path) -> None:
    opened, held = await damaged_engine(tmp_path)
    put = asyncio.ensure_future(opened.engine.put(b"key", [CONTENT]))
    await held.reached()
    closing = asyncio.ensure_future(opened.close())
    await asyncio.sleep(0.05)
    assert not closing.done()
    held.go_on()
    await put
    await closing
    again = await open_small(str(tmp_path))
    assert await read(again.engine, b"key", b"old") == [CONTENT] * 2
    await again.close()


@pytest.mark.parametrize("is_damaged", [False, True])
async def test_bytes_that_go_or_move_while_they_are_checked(
    tmp_path: Path, *, is_damaged: bool
) -> None:
    """The last name is deleted, others are put meanwhile, and the verdict is of a place where nothing is any more."""
    opened, held = await damaged_engine(tmp_path)
    if not is_damaged:
        flip(volume(tmp_path), 3000)
    engine = opened.engine
    put = asyncio.ensure_future(engine.put(b"key", [CONTENT]))
    await held.reached()
    await engine.delete(b"old")
    between = asyncio.ensure_future(engine.put(b"between", [CONTENT]))
    await between
    await engine.compact()
    held.go_on()
    await put
    assert await read(engine, b"key", b"between") == [CONTENT] * 2
    assert held.count == 2, "the place is another one"
    await engine.compact()
    await engine.check()
    await opened.close()


async def test_bytes_that_change_while_they_are_checked_take_nobodys_place(tmp_path: Path) -> None:
    opened, held = await damaged_engine(tmp_path)
    content = memoryview(bytearray(CONTENT))
    put = asyncio.ensure_future(opened.engine.put(b"key", [content]))
    await held.reached()
    content[7] ^= 1
    held.go_on()
    with pytest.raises(CorruptedDataError, match="changed while"):
        await put
    with pytest.raises(ObjectNotFoundError):
        await opened.engine.head(b"key")
    await require_sums(opened.engine)
    await opened.close()


async def test_a_disk_that_cannot_be_read_is_no_reason_to_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = await open_small(str(tmp_path))
    await opened.engine.put(b"old", [CONTENT])

    def fail(*_: object) -> bytes:
        raise OSError(5, "as the test says")

    with monkeypatch.context() as patch:
        patch.setattr(DuplicateCheck, "_front", fail)
        record = await opened.engine.put(b"key", [CONTENT])
    row = place_of(opened.engine, record.content_hash)
    assert row.record_offset > len(CONTENT)
    assert await read(opened.engine, b"key", b"old") == [CONTENT] * 2
    await opened.engine.check()
    await opened.close()


# --- anything -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
async def test_h72_whatever_is_damaged_between_two_lives_what_was_put_since_is_there(
    tmp_path: Path, seed: int
) -> None:
    random = Random(seed)
    contents: Sequence[bytes] = [Random(n).randbytes(n * 350 + 250) for n in range(8)]
    for life in range(6):
        opened = await open_small(str(tmp_path), seed=life)
        engine = opened.engine
        expected: dict[bytes, bytes] = {}
        for _ in range(4):
            some = [(b"%d" % random.randrange(12), random.choice(contents)) for _ in range(6)]
            by_key = dict(some)
            buffers: list[tuple[bytes, list[BufferView]]] = [
                (key, [content]) for key, content in by_key.items()
            ]
            await asyncio.gather(*(engine.put(key, content) for key, content in buffers))
            expected |= by_key
            if random.random() < 0.3:
                key = random.choice(list(expected))
                del expected[key]
                await engine.delete(key)
            if random.random() < 0.2:
                await engine.compact()
        assert await read(engine, *expected) == list(expected.values())
        await require_sums(engine)
        await opened.close()
        if random.random() < 0.5:
            shutil.rmtree(tmp_path / "index")
        again = await open_small(str(tmp_path), seed=life)
        assert await read(again.engine, *expected) == list(expected.values())
        await require_sums(again.engine)
        await again.close()
        for path in sorted((tmp_path / "volumes").iterdir()):
            if random.random() < 0.15:
                path.unlink()
            elif random.random() < 0.6 and path.stat().st_size > VOLUME_HEADER_BYTES:
                for _ in range(random.randrange(1, 4)):
                    flip(path, random.randrange(VOLUME_HEADER_BYTES, path.stat().st_size))


@pytest.mark.parametrize("size", [0, 100, 5000], ids=["empty", "inline", "in a volume"])
async def test_a_copy_is_another_object_of_the_same_bytes(tmp_path: Path, size: int) -> None:
    content = CONTENT[:size]
    opened = await open_small(str(tmp_path))
    engine = opened.engine
    source = await engine.put(b"source", [content])
    await engine.copy(b"copy", b"source", source, Description(content_type="x/y", etag="e"))
    await engine.delete(b"source")
    found = await engine.get(b"copy")
    assert (found.content, found.record.content_type, found.record.etag) == (content, "x/y", "e")
    await engine.check()
    assert sum(path.stat().st_size for path in (tmp_path / "volumes").iterdir()) < size + 2000
    await opened.close()
    (tmp_path / "index").rename(tmp_path / "lost")
    opened = await open_small(str(tmp_path))
    assert (await opened.engine.get(b"copy")).content == content
    await opened.engine.check()
    await opened.close()


async def test_a_copy_of_other_settings_keeps_the_pieces_of_its_source(tmp_path: Path) -> None:
    opened = await open_small(str(tmp_path))
    source = await opened.engine.put(b"source", [CONTENT])
    await opened.close()
    settings = replace(SMALL, piece_bytes=700, inline_bytes_max=6000)
    opened = await open_small(str(tmp_path), settings=settings)
    await opened.engine.copy(b"copy", b"source", source, Description())
    await opened.engine.delete(b"source")
    assert (await opened.engine.get_range(b"copy", 900, 2000)).content == CONTENT[900:2900]
    await opened.engine.check()
    await opened.close()


async def test_a_copy_of_bytes_that_are_damaged_or_gone_is_refused(tmp_path: Path) -> None:
    opened = await open_small(str(tmp_path))
    engine = opened.engine
    source = await engine.put(b"source", [CONTENT])
    small = await engine.put(b"small", [b"small"])
    flip(volume(tmp_path), place_of(engine, source.content_hash).blob_offset + 4000)
    with pytest.raises(CorruptedDataError):
        await engine.copy(b"copy", b"source", source, Description())
    for key, record in ((b"source", source), (b"small", small)):
        await engine.delete(key)
        with pytest.raises(ObjectNotFoundError):
            await engine.copy(b"copy", key, record, Description())
    assert [one.key for one in await engine.list(b"", limit=10)] == []
    await require_sums(engine)
    await opened.close()


def test_the_pieces_of_these_tests_are_shorter_than_their_contents() -> None:
    assert SMALL.piece_bytes < len(CONTENT)
