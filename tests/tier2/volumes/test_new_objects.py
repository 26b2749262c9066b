"""Groups of new objects: sealed natively and in Python alike, read back as what they are, and made only of new ones."""

import asyncio
import errno
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from random import Random
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segmentstore.contracts.errors import ObjectExistsError
from segmentstore.contracts.identifiers import BufferView
from tests.tier2.volumes.engines import SMALL, open_small
from tier2.volumes import write_queue
from tier2.volumes.group_commit import GroupCommit
from tier2.volumes.index import decode_blob_row, decode_object_row
from tier2.volumes.mutations import DuplicateFound, NewObject, Put, SmallPut
from tier2.volumes.objects import Condition, IndexRecord
from tier2.volumes.opening import OpenEngine
from tier2.volumes.volume_files import OpenVolume
from tier2.volumes.volume_format import (
    RECORD_HEADER_BYTES,
    decode_index_record,
    decode_record_header,
    seed_of,
)
from tier2.volumes.write_batch import (
    BatchPlace,
    PreparedBatch,
    Seal,
    SealedBatch,
    native_seal,
    seal_batch,
    seal_in_python,
)

SECRET = 0x1234567890ABCDEF
VOLUME, OFFSET, SEQUENCE, NOW_MS, PIECE_BYTES = 7, (1 << 33) + 64, (1 << 40) + 5, 99, 256 << 10
BYTES = Random(1).randbytes(20_000)
NATIVE = native_seal()
needs_native = pytest.mark.skipif(NATIVE is None, reason="it was not built, or is switched off")
texts = st.text(max_size=20, alphabet=st.characters(codec="utf-8"))


@st.composite
def any_object(draw: st.DrawFn) -> NewObject:
    buffers = [BYTES[:size] for size in draw(st.lists(st.integers(0, 5000), max_size=3))]
    whole = b"".join(buffers)
    return (
        draw(st.binary(min_size=1, max_size=60)),
        draw(texts),
        draw(texts),
        draw(st.binary(min_size=32, max_size=32)),
        crc32(whole),
        len(whole),
        draw(st.integers(0, (1 << 64) - 1)),
        whole if draw(st.booleans()) else None,
        buffers,
    )


def one_object(**changed: object) -> NewObject:
    names = ("key", "content_type", "etag", "content_hash", "crc", "size", "created_ms", "inline")
    usual = (b"key", "text/plain", "e" * 32, bytes(32), crc32(b"abc"), 3, NOW_MS, b"abc")
    fields = dict(zip(names, usual, strict=True)) | changed
    return (*(fields[name] for name in names), [b"abc"])  # type: ignore[return-value]  # as the test says


def sealed_by(seal: Seal, objects: Sequence[NewObject]) -> object:
    return seal(objects, SEQUENCE, VOLUME, OFFSET, seed_of(SECRET), NOW_MS, PIECE_BYTES)


@needs_native
@settings(max_examples=150, deadline=None)
@given(st.lists(any_object(), min_size=1, max_size=20))
def test_the_native_seal_is_its_twin(objects: list[NewObject]) -> None:
    assert NATIVE is not None
    assert sealed_by(NATIVE, objects) == sealed_by(seal_in_python, objects)


@pytest.mark.parametrize(
    "seal", [pytest.param(NATIVE, marks=needs_native, id="native"), seal_in_python]
)
def test_records_and_rows_read_back(seal: Seal) -> None:
    large: list[BufferView] = [BYTES[:9000], memoryview(BYTES)[9000:9009]]
    objects: list[NewObject] = []
    for number in range(9):
        content = large if number % 3 == 1 else [BYTES[: 1 + number * 7]]
        whole = b"".join(content)
        key, its_hash = b"key%d" % number, bytes([number]) * 32
        inline = None if number % 3 == 1 else whole
        objects.append(
            (key, "type", "etag", its_hash, crc32(whole), len(whole), number, inline, content)
        )
    parts, rows, length, live = seal(
        objects, SEQUENCE, VOLUME, OFFSET, seed_of(SECRET), NOW_MS, PIECE_BYTES
    )
    written = parts[0]
    for one, part in zip([one for one in objects if one[7] is None], parts[1:], strict=True):
        written += b"".join(one[8]) + part
    assert len(written) == length
    assert len(rows) == len(objects) + 3
    position = counted = 0
    for number, (
        key,
        content_type,
        etag,
        its_hash,
        crc,
        size,
        created,
        inline,
        buffers,
    ) in enumerate(objects):
        header = decode_record_header(written[position:], SECRET)
        assert (header.sequence, header.batch_left) == (SEQUENCE + number, 8 - number)
        assert (header.key_length, header.blob_length) == (len(key), size)
        body = written[position + RECORD_HEADER_BYTES :][: header.body_length]
        assert header.crc == crc32(body, seed_of(SECRET))
        assert body == key + body[len(key) : header.body_length - size] + b"".join(buffers)
        record = decode_index_record(body[len(key) :][: header.index_record_length])
        record.check()
        assert (record.content_type, record.etag, record.content_hash) == (
            content_type,
            etag,
            its_hash,
        )
        assert (record.pieces, record.size, record.created_ms) == ((crc,), size, created)
        assert (record.sequence, record.oldest) == (header.sequence, header.sequence)
        row = decode_object_row(rows[b"o" + key])
        assert (row.volume, row.record_offset, row.record) == (VOLUME, OFFSET + position, record)
        assert row.inline == inline
        assert row.record_length == RECORD_HEADER_BYTES + header.body_length - (
            0 if inline is not None else size
        )
        if inline is None:
            blob = decode_blob_row(rows[b"b" + its_hash])
            assert blob.blob_offset == OFFSET + position + header.blob_offset
            assert (blob.volume, blob.size, blob.references) == (VOLUME, size, 1)
        counted += RECORD_HEADER_BYTES + header.body_length
        position += header.total_length
    assert (position, counted) == (length, live)


@needs_native
@pytest.mark.parametrize(
    "changed",
    [
        {"key": b"k" * 4097},
        {"content_type": "t" * 65_536},
        {"etag": "e" * 65_536},
        {"content_hash": bytes(31)},
        {"crc": 1 << 32},
        {"crc": -1},
        {"size": 4},
        {"size": 1 << 63},
        {"created_ms": 1 << 64},
        {"inline": b"ab"},
    ],
)
def test_what_does_not_fit_is_refused(changed: dict[str, object]) -> None:
    assert NATIVE is not None
    with pytest.raises(ValueError, match=r"."):
        sealed_by(NATIVE, [one_object(), one_object(**changed)])


@needs_native
def test_what_is_no_object_is_refused() -> None:
    assert NATIVE is not None
    for bad in ((), one_object()[:8], "text", one_object(key="text"), one_object(inline=[b"abc"])):
        with pytest.raises(TypeError):
            sealed_by(NATIVE, [one_object(), bad])  # type: ignore[list-item]  # as the test says
    with pytest.raises(TypeError):
        sealed_by(NATIVE, 5)  # type: ignore[arg-type]  # as the test says
    for count in (0, 65_536):
        with pytest.raises(ValueError, match="group of"):
            sealed_by(NATIVE, [one_object()] * count)


async def test_a_group_that_is_not_all_new_is_judged_as_before(tmp_path: Path) -> None:
    """The same keys and the same bytes, alone and side by side: what is there afterwards, and who is refused."""
    opened = await open_small(str(tmp_path))
    engine = opened.engine
    small, large = b"s" * 100, b"l" * 900

    async def put(key: bytes, content: bytes, *, absent: bool = False) -> object:
        return await engine.put(key, [content], condition=Condition(absent=absent))

    await put(b"old", small)
    outcomes = await asyncio.gather(
        put(b"new", small),
        put(b"new", large),
        put(b"old", b"other"),
        put(b"same bytes", large),
        put(b"old", small, absent=True),
        put(b"first", small, absent=True),
        return_exceptions=True,
    )
    assert [type(one) for one in outcomes if isinstance(one, Exception)] == [ObjectExistsError]
    expected = {b"new": large, b"old": b"other", b"same bytes": large, b"first": small}
    for key, content in expected.items():
        assert (await engine.get(key)).content == content
    await engine.check()
    await opened.close()


class Beside:
    """A commit of an engine on a directory, and puts made ready for it."""

    def __init__(self, opened: OpenEngine) -> None:
        self.opened = opened
        self.commit: GroupCommit = opened.engine._queue._commit

    def puts(self, *numbers: int) -> list[Put]:
        wanted = [SmallPut(b"%d" % one, content_of(one), "", "", 900) for one in numbers]
        return write_queue._hash_small_puts(wanted, NOW_MS, SMALL)

    def prepared(self, puts: list[Put]) -> PreparedBatch:
        return self.commit.prepare(puts, NOW_MS)

    def make(self, puts: list[Put], ahead: Sequence[PreparedBatch | None]) -> None:
        outcomes = self.commit.commit(puts, NOW_MS, ahead)
        for number, one in enumerate(outcomes):
            if isinstance(one, DuplicateFound):
                put = self.opened.engine._queue._checks._check(puts[number], one)
                (outcomes[number],) = self.commit.commit([put], NOW_MS, [None])
        assert [one.size for one in outcomes if isinstance(one, IndexRecord)] == [900] * len(puts)


def content_of(number: int) -> bytes:
    return BYTES[number : number + 900]


@pytest.fixture
async def beside(tmp_path: Path) -> AsyncIterator[Beside]:
    """Afterwards everything is there, also in an index that is made anew."""
    beside = Beside(await open_small(str(tmp_path)))
    yield beside
    await beside.opened.engine.check()
    found = [one.key for one in await beside.opened.engine.list(b"", limit=100)]
    assert found
    await beside.opened.close()
    shutil.rmtree(tmp_path / "index")
    again = await open_small(str(tmp_path))
    assert again.replay.rebuilt
    assert not again.replay.damaged
    assert [one.key for one in await again.engine.list(b"", limit=100)] == found
    for key in found:
        assert (await again.engine.get(key)).content == content_of(int(key))
    await again.close()


@pytest.fixture
def sealings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many objects, each time that a group is sealed, ahead or in its turn."""
    counts: list[int] = []

    def counted(puts: Sequence[Put], place: BatchPlace, now_ms: int) -> SealedBatch:
        counts.append(len(puts))
        return seal_batch(puts, place, now_ms)

    monkeypatch.setattr("tier2.volumes.group_commit.seal_batch", counted)
    return counts


async def test_what_was_sealed_ahead_is_written_as_it_is(
    beside: Beside, sealings: list[int]
) -> None:
    beside.make(beside.puts(1), [None])
    puts = beside.puts(2, 3)
    ahead = beside.prepared(puts)
    beside.make(puts, [ahead, ahead])
    assert sealings == [1, 2]


async def test_what_comes_to_stand_elsewhere_is_sealings(
    beside: Beside, sealings: list[int]
) -> None:
    beside.make(beside.puts(1), [None])
    puts, others = beside.puts(2, 3), beside.puts(4, 5)
    ahead, aheads = beside.prepared(puts), beside.prepared(others)
    beside.make(others, [aheads, aheads])
    beside.make(puts, [ahead, ahead])
    assert sealings == [1, 2, 2, 2]


async def test_what_comes_in_another_company_is_sealings(
    beside: Beside, sealings: list[int]
) -> None:
    beside.make(beside.puts(1), [None])
    puts, others = beside.puts(2, 3), beside.puts(4)
    ahead, aheads = beside.prepared(puts), beside.prepared(others)
    beside.make(puts[:1], [ahead])
    beside.make(puts[1:] + others, [ahead, aheads])
    assert sealings == [1, 2, 1, 1, 2]


async def test_what_the_group_before_stores_is_not_written_as_if_it_were_new(
    beside: Beside, sealings: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes to stand where it was sealed for, but one of its keys is not new any more."""
    beside.make(beside.puts(1), [None])
    puts = beside.puts(2, 3)
    ahead = during_the_next_write(monkeypatch, lambda: beside.prepared(puts))
    beside.make(beside.puts(3), [None])
    assert ahead[0].sealed is not None
    beside.make(puts, [ahead[0], ahead[0]])
    assert sealings == [1, 1, 2]
    assert len(await beside.opened.engine.list_versions(b"3")) == 1


async def test_h48_what_was_sealed_for_a_volume_that_failed_goes_to_the_next_one(
    beside: Beside, sealings: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    beside.make(beside.puts(1), [None])
    puts = beside.puts(2, 3)

    def prepare_and_fail() -> PreparedBatch:
        ahead.append(beside.prepared(puts))
        raise OSError(errno.EIO, "as the test says")

    ahead: list[PreparedBatch] = []
    during_the_next_write(monkeypatch, prepare_and_fail)
    with pytest.raises(OSError, match="as the test says"):
        beside.commit.commit(beside.puts(4), NOW_MS, [None])
    beside.make(puts, [ahead[0], ahead[0]])
    assert sealings == [1, 1, 2, 2]


def during_the_next_write(
    monkeypatch: pytest.MonkeyPatch, call: Callable[[], PreparedBatch]
) -> list[PreparedBatch]:
    """What the call came to."""
    calls, found = [call], list[PreparedBatch]()
    real = OpenVolume.write

    def write(self: OpenVolume, buffers: Sequence[BufferView], length: int, **given: bool) -> None:
        if calls:
            found.append(calls.pop()())
        real(self, buffers, length, **given)

    monkeypatch.setattr(OpenVolume, "write", write)
    return found


@pytest.mark.parametrize("seed", range(20))
async def test_what_is_sealed_is_what_judging_makes(tmp_path: Path, seed: int) -> None:
    """The same groups, ready as they are and one by one: the same bytes in the volumes, the same rows in the index."""
    made: list[object] = []
    for is_sealed in (True, False):
        directory, random = tmp_path / f"{is_sealed}", Random(seed)
        directory.mkdir()
        opened = await open_small(str(directory))
        commit: GroupCommit = opened.engine._queue._commit
        applied: list[int] = []
        for number in range(30):
            # A few old keys and contents, and twice the same in one group now and then.
            keys = [
                number * 10 + random.choice((0, 1, 1, 2, 3, -90))
                for _ in range(random.randint(1, 4))
            ]
            sizes = [random.choice((50, 300, 900)) for _ in keys]
            wanted = [
                SmallPut(b"%d" % max(key, 0), BYTES[key % 50 :][:size], "", "", size)
                for key, size in zip(keys, sizes, strict=True)
            ]
            puts = write_queue._hash_small_puts(wanted, NOW_MS, SMALL)
            for put in puts:
                put.new = put.new if is_sealed else None
            commit.commit(puts, NOW_MS, [None] * len(puts))
            applied.append(commit.sequence_applied)
        rows = opened.engine._index.scan(b"", b"\xff", 1000)
        await opened.engine.check()
        await opened.close()
        files = sorted((directory / "volumes").iterdir())
        made.append((applied, rows, [(one.name, one.read_bytes()) for one in files]))
    assert made[0] == made[1]
