"""Uploads in parts become one object, or nothing; what was acknowledged of them outlives the process."""

import asyncio
import errno
import hashlib
import logging
import shutil
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import ParamSpec, TypeVar

import pytest
from typing_extensions import override

from segmentstore.contracts.errors import (
    CorruptedDataError,
    InvalidRequestError,
    ObjectExistsError,
    ObjectLockedError,
    StorageError,
    StorageFullError,
    StorageUnavailableError,
)
from segmentstore.runtime.files import SystemFileSystem
from tests.tier2.volumes.engines import SMALL, SetClock, open_small
from tier2.volumes import multipart
from tier2.volumes.multipart import (
    UPLOAD_ID,
    MultipartUploads,
    Part,
    UploadRecord,
    decode_upload_record,
    encode_upload_record,
    part_of_file_name,
)
from tier2.volumes.objects import (
    Condition,
    Description,
    RetentionMode,
    UploadNotFoundError,
    digest,
)
from tier2.volumes.opening import OpenEngine
from tier2.volumes.volume_files import OpenVolume, write_record
from tier2.volumes.volume_format import RecordHeader

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[OpenEngine]:
    opened = await open_small(str(tmp_path))
    yield opened
    await opened.close()


@pytest.fixture
def uploads(opened: OpenEngine) -> MultipartUploads:
    return uploads_of(opened)


def uploads_of(opened: OpenEngine) -> MultipartUploads:
    assert opened.uploads is not None
    return opened.uploads


def temporary(directory: Path) -> list[str]:
    return sorted(
        str(path.relative_to(directory / "temp")) for path in (directory / "temp").rglob("*")
    )


@pytest.mark.parametrize("size", [150, 900, 9000], ids=["inline", "in memory", "own volume"])
async def test_parts_become_one_object_in_the_order_of_their_numbers(
    opened: OpenEngine, uploads: MultipartUploads, tmp_path: Path, size: int
) -> None:
    contents = {number: Random(number).randbytes(size // 3) for number in (7, 2, 4)}
    upload = await uploads.begin(
        b"bucket/key", Description(content_type="x/y", metadata={"a": "b"})
    )
    parts = {}
    for number, content in contents.items():
        part = await uploads.put_part(upload, number, [content[:20], content[20:]])
        assert part.md5 == hashlib.md5(content).hexdigest()
        parts[number] = part
    assert sorted(uploads.get(upload.upload_id).parts) == [2, 4, 7]
    record = await uploads.complete(
        upload,
        [parts[number] for number in (2, 4, 7)],
        Description(content_type="x/y", metadata={"a": "b"}, etag="composite-3"),
    )
    assert (record.etag, record.content_type) == ("composite-3", "x/y")
    assert record.metadata == {"a": "b", UPLOAD_ID: upload.upload_id}
    found = await opened.engine.get(b"bucket/key")
    assert found.content == contents[2] + contents[4] + contents[7]
    assert temporary(tmp_path) == []
    assert uploads.with_prefix(b"") == []
    await opened.engine.check()
    await opened.engine.compact()
    assert (await opened.engine.get(b"bucket/key")).content == found.content
    await opened.close()
    (tmp_path / "index").rename(tmp_path / "lost")
    again = await open_small(str(tmp_path))
    assert again.replay.rebuilt
    assert (await again.engine.get(b"bucket/key")).content == found.content
    await again.engine.check()
    await again.close()


async def test_all_are_led_to_the_bytes_of_an_upload_that_were_there_already(
    opened: OpenEngine, uploads: MultipartUploads, tmp_path: Path
) -> None:
    content = Random(1).randbytes(9000)
    await opened.engine.put(b"first", [content])
    upload = await uploads.begin(b"second", Description())
    part = await uploads.put_part(upload, 1, [content])
    await uploads.complete(upload, [part], Description(etag="e"))
    await opened.close()
    again = await open_small(str(tmp_path))
    assert not again.replay.rebuilt
    assert len((await again.engine.compact()).removed) == 1, "the volume of the first"
    for key in (b"first", b"second"):
        assert (await again.engine.get(key)).content == content
    await again.engine.check()
    report = await again.engine.verify(deep=True)
    assert report.bytes_of_volumes < 2 * len(content)
    await again.close()


async def test_bytes_that_come_piece_by_piece_and_are_killed_on_their_way_leave_nothing(
    opened: OpenEngine,
    uploads: MultipartUploads,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    content, killed = Random(1).randbytes(9000), tmp_path.with_name(tmp_path.name + "_killed")

    def write_half(
        target: OpenVolume, header: RecordHeader, front: bytes, blob: Iterator[bytes]
    ) -> None:
        write_record(target, header, front, [b"".join(blob)[:5000]])
        shutil.copytree(tmp_path, killed)
        raise OSError(errno.EIO, "as the test says")

    await opened.engine.put(b"before", [b"x"])
    monkeypatch.setattr(multipart, "write_record", write_half)
    async with uploads.incoming() as incoming:
        await incoming.append([content[:4000]])
        await incoming.append([content[4000:]])
        found = digest([content], SMALL.piece_bytes)
        with pytest.raises(StorageError, match="as the test says"):
            await uploads.put_incoming(b"key", incoming, found, Description)
    assert temporary(tmp_path) == []
    assert temporary(killed) != []
    again = await open_small(str(killed))
    assert temporary(killed) == []
    assert [one.key for one in await again.engine.list(b"", limit=10)] == [b"before"]
    await again.engine.put(b"key", [content])
    await again.engine.compact()
    await again.engine.check()
    await again.close()


async def test_a_large_completion_for_which_there_is_no_room_gives_back_what_it_took(
    opened: OpenEngine,
    uploads: MultipartUploads,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing else may come that would have compaction look for it."""

    def write_half(
        target: OpenVolume, header: RecordHeader, front: bytes, blob: Iterator[bytes]
    ) -> None:
        write_record(target, header, front, [b"".join(blob)[:5000]])
        raise OSError(errno.ENOSPC, "as the test says")

    content = Random(1).randbytes(9000)
    await opened.engine.put(b"before", [b"x"])
    upload = await uploads.begin(b"key", Description())
    part = await uploads.put_part(upload, 1, [content])
    before = sorted((tmp_path / "volumes").iterdir()), set(opened.engine._volumes.written_now)
    with monkeypatch.context() as patches:
        patches.setattr(multipart, "write_record", write_half)
        with pytest.raises(StorageFullError, match="as the test says"):
            await uploads.complete(upload, [part], Description(etag="e"))
    after = sorted((tmp_path / "volumes").iterdir()), set(opened.engine._volumes.written_now)
    assert after == before
    await uploads.complete(upload, [part], Description(etag="e"))
    assert (await opened.engine.get(b"key")).content == content
    await opened.engine.check()


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("stopped_in", ["_write_volume", "put_digested"])
async def test_a_large_completion_that_is_given_up_leaves_no_volume_open(
    opened: OpenEngine,
    uploads: MultipartUploads,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stopped_in: str,
    times: int,
) -> None:
    engine = opened.engine
    await engine.put(b"small", [b"x"])
    before = open_files(tmp_path), set(opened.engine._volumes.written_now)
    begun, goes_on = threading.Event(), threading.Event()

    def wait(*_: object) -> None:
        begun.set()
        assert goes_on.wait(60)

    monkeypatch.setattr(uploads._files, "slices", waiting_first(uploads._files.slices, wait))
    if stopped_in == "put_digested":
        monkeypatch.undo()
        commit = engine._queue._commit
        monkeypatch.setattr(commit, "commit", waiting_first(commit.commit, wait))
    content = Random(1).randbytes(9000)
    upload = await uploads.begin(b"key", Description())
    part = await uploads.put_part(upload, 1, [content])
    completing = asyncio.ensure_future(uploads.complete(upload, [part], Description(etag="e")))
    assert await asyncio.get_running_loop().run_in_executor(None, begun.wait, 60)
    for _ in range(times):
        completing.cancel()
        await asyncio.sleep(0.01)
    assert not completing.done(), "it waits for what is under way"
    with pytest.raises(InvalidRequestError, match="being completed"):
        await uploads.abort(upload)
    goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await completing
    assert (open_files(tmp_path), set(engine._volumes.written_now)) == before
    # It was made all the same, and whoever asks again is told.
    assert await uploads.completed(b"key", upload.upload_id) is not None
    assert (await engine.get(b"key")).content == content
    await engine.delete(b"key")
    assert len((await engine.compact()).removed) == 1
    await engine.check()


def open_files(directory: Path) -> list[Path]:
    """Of the engine: others come and go with what else is in this process, and with its garbage."""
    found = (each.resolve() for each in Path("/proc/self/fd").iterdir())
    return sorted(each for each in found if each.is_relative_to(directory.resolve()))


def waiting_first(
    call: Callable[_Arguments, _Result], wait: Callable[[], None]
) -> Callable[_Arguments, _Result]:
    def made(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        wait()
        return call(*args, **kwargs)

    return made


async def test_a_part_that_is_sent_again_replaces_the_first(
    uploads: MultipartUploads, opened: OpenEngine, tmp_path: Path
) -> None:
    upload = await uploads.begin(b"key", Description())
    first = await uploads.put_part(upload, 1, [b"first"])
    second = await uploads.put_part(upload, 1, [b"second"])
    assert len(temporary(tmp_path)) == 3, "the directory, the record and one part"
    with pytest.raises(InvalidRequestError, match="not there"):
        await uploads.complete(upload, [first], Description(etag="e"))
    await uploads.complete(upload, [second], Description(etag="e"))
    assert (await opened.engine.get(b"key")).content == b"second"


async def test_of_two_parts_that_a_start_finds_the_later_one_counts_whatever_the_clock_did(
    tmp_path: Path,
) -> None:
    """A removal is not synced: a power cut brings the file back."""
    clock = SetClock()
    opened = await open_small(str(tmp_path), clock=clock)
    upload = await uploads_of(opened).begin(b"key", Description())
    first = await uploads_of(opened).put_part(upload, 1, [b"first"])
    clock.ms -= 1000
    second = await uploads_of(opened).put_part(upload, 1, [b"second"])
    await opened.close()
    (tmp_path / "temp" / upload.upload_id / first.file_name()).write_bytes(b"first")
    again = await open_small(str(tmp_path), clock=clock)
    assert uploads_of(again).get(upload.upload_id).parts == {1: second}
    assert len(temporary(tmp_path)) == 3, "the directory, the record and one part"
    await again.close()


async def test_of_a_part_whose_name_could_not_be_synced_a_start_finds_nothing(
    tmp_path: Path,
) -> None:
    files = FailingDirectorySyncs()
    opened = await open_small(str(tmp_path), files=files)
    upload = await uploads_of(opened).begin(b"key", Description())
    part = await uploads_of(opened).put_part(upload, 1, [b"acknowledged"])
    files.failing = True
    with pytest.raises(StorageError):
        await uploads_of(opened).put_part(upload, 1, [b"refused"])
    with pytest.raises(StorageError):
        await uploads_of(opened).abort(upload)
    files.failing = False
    assert uploads_of(opened).get(upload.upload_id).parts == {1: part}
    await opened.close()
    again = await open_small(str(tmp_path))
    assert uploads_of(again).with_prefix(b"") == []
    await again.close()


class FailingDirectorySyncs(SystemFileSystem):
    failing = False

    @override
    def sync_directory(self, path: str) -> None:
        if self.failing:
            raise OSError(errno.EIO, "as the test says")
        super().sync_directory(path)


async def test_parts_of_one_number_sent_at_once_have_the_order_of_their_answers(
    tmp_path: Path,
) -> None:
    with ThreadPoolExecutor(4) as executor:
        opened = await open_small(str(tmp_path), executor=executor)
        upload = await uploads_of(opened).begin(b"key", Description())
        answered: list[Part] = []

        async def send(number: int) -> None:
            content = bytes([number]) * (1 if number % 2 else 200_000)
            answered.append(await uploads_of(opened).put_part(upload, 1, [content]))

        await asyncio.gather(*(send(number) for number in range(8)))
        times = [part.stored_ms for part in answered]
        assert times == sorted(set(times))
        await opened.close()
    again = await open_small(str(tmp_path))
    assert uploads_of(again).get(upload.upload_id).parts == {1: answered[-1]}
    await again.close()


async def test_parts_are_named_in_order_and_have_to_be_there(uploads: MultipartUploads) -> None:
    upload = await uploads.begin(b"key", Description())
    one = await uploads.put_part(upload, 1, [b"one"])
    two = await uploads.put_part(upload, 2, [b"two"])
    for parts in ([], [two, one], [one, one], [one, Part(3, 1, "0" * 32, 0, 0)]):
        with pytest.raises(InvalidRequestError):
            await uploads.complete(upload, parts, Description(etag="e"))
    for number in (0, 10_001):
        with pytest.raises(InvalidRequestError):
            await uploads.put_part(upload, number, [b""])


async def test_an_upload_that_is_given_up_leaves_nothing(
    uploads: MultipartUploads, tmp_path: Path
) -> None:
    upload = await uploads.begin(b"key", Description())
    await uploads.put_part(upload, 1, [b"x" * 5000])
    assert [one.record.key for one in uploads.with_prefix(b"ke")] == [b"key"]
    await uploads.abort(upload)
    assert temporary(tmp_path) == []
    with pytest.raises(UploadNotFoundError):
        uploads.get(upload.upload_id)
    with pytest.raises(UploadNotFoundError):
        await uploads.put_part(upload, 2, [b"late"])
    assert temporary(tmp_path) == []


async def test_a_completion_that_is_refused_leaves_the_upload(
    uploads: MultipartUploads, opened: OpenEngine
) -> None:
    await opened.engine.put(b"key", [b"there"])
    upload = await uploads.begin(b"key", Description())
    small = await uploads.put_part(upload, 1, [b"x" * 500])
    part = await uploads.put_part(upload, 2, [b"x" * 5000])
    for chosen in (small, part):
        with pytest.raises(ObjectExistsError):
            await uploads.complete(
                upload, [chosen], Description(etag="e"), condition=Condition(absent=True)
            )
    await uploads.complete(upload, [part], Description(etag="e"))
    assert (await opened.engine.get(b"key")).content == b"x" * 5000


@pytest.mark.parametrize("refused_by", ["condition", "lock", "description"])
async def test_a_large_change_that_is_refused_leaves_no_volume(
    opened: OpenEngine, uploads: MultipartUploads, tmp_path: Path, refused_by: str
) -> None:
    """Nothing else may come that would have compaction look for it, and its bytes may be what fills the disk."""
    held = refused_by == "lock"
    await opened.engine.put(b"key", [b"there"], legal_hold=held)
    content = Random(1).randbytes(9000)
    before = sorted((tmp_path / "volumes").iterdir()), set(opened.engine._volumes.written_now)

    def described() -> Description:
        if refused_by == "description":
            raise InvalidRequestError("as the test says")
        return Description(etag="e")

    condition = Condition(absent=refused_by == "condition")
    found = digest([content], SMALL.piece_bytes)
    async with uploads.incoming() as incoming:
        await incoming.append([content])
        with pytest.raises((ObjectExistsError, ObjectLockedError, InvalidRequestError)):
            await uploads.put_incoming(b"key", incoming, found, described, condition=condition)
    after = sorted((tmp_path / "volumes").iterdir()), set(opened.engine._volumes.written_now)
    assert after == before
    assert (await opened.engine.get(b"key")).content == b"there"
    await opened.engine.check()


async def test_a_part_that_comes_while_an_upload_is_completed_does_not_get_into_it(
    uploads: MultipartUploads, opened: OpenEngine, tmp_path: Path
) -> None:
    upload = await uploads.begin(b"key", Description())
    part = await uploads.put_part(upload, 1, [b"x" * 5000])
    completion = asyncio.ensure_future(uploads.complete(upload, [part], Description(etag="e")))
    await asyncio.sleep(0)
    assert upload.completing
    with pytest.raises(InvalidRequestError, match="being completed"):
        await uploads.abort(upload)
    with pytest.raises(InvalidRequestError, match="being completed"):
        await uploads.complete(upload, [part], Description(etag="e"))
    late = asyncio.ensure_future(uploads.put_part(upload, 1, [b"late"]))
    await asyncio.gather(completion, late, return_exceptions=True)
    assert (await opened.engine.get(b"key")).content == b"x" * 5000
    await opened.close()
    again = await open_small(str(tmp_path))
    assert temporary(tmp_path) == []
    await again.close()


async def test_a_part_that_was_damaged_or_cut_is_never_joined(
    uploads: MultipartUploads, opened: OpenEngine, tmp_path: Path
) -> None:
    for size in (50, 5000):
        upload = await uploads.begin(b"key", Description())
        part = await uploads.put_part(upload, 1, [b"x" * size])
        path = tmp_path / "temp" / upload.upload_id / part.file_name()
        for bad, why in ((b"y" * size, "checksum"), (b"x" * (size - 1), "length")):
            path.write_bytes(bad)
            with pytest.raises(CorruptedDataError, match=why):
                await uploads.complete(upload, [part], Description(etag="e"))
        path.write_bytes(b"x" * size)
        await uploads.complete(upload, [part], Description(etag="e"))
    await opened.engine.check()


async def test_uploads_of_an_earlier_life_go_on(tmp_path: Path) -> None:
    opened = await open_small(str(tmp_path))
    described = Description(
        content_type="x/y",
        metadata={"a": "ü"},
        retention=(RetentionMode.GOVERNANCE, 5),
        legal_hold=True,
    )
    begun = await uploads_of(opened).begin(b"key", described, notes={"n": "1"})
    part = await uploads_of(opened).put_part(begun, 1, [b"x" * 5000], checksum=("crc32", "YWJj"))
    directory = tmp_path / "temp" / begun.upload_id
    await opened.close()
    (directory / "0123.new").write_bytes(b"half of a pa")
    (tmp_path / "temp" / ("0" * 32)).mkdir()
    (tmp_path / "temp" / ("0" * 32) / part.file_name()).write_bytes(b"of a removed upload")
    again = await open_small(str(tmp_path))
    upload = uploads_of(again).get(begun.upload_id)
    assert (upload.record, upload.parts) == (begun.record, {1: part})
    assert upload.record.description == described
    assert len(temporary(tmp_path)) == 3, "the directory, the record and one part"
    await uploads_of(again).complete(upload, [part], described)
    assert (await again.engine.get(b"key")).content == b"x" * 5000
    await again.close()


@pytest.mark.parametrize("versioned", [False, True])
async def test_what_an_upload_became_is_known_while_it_is_there(
    opened: OpenEngine, uploads: MultipartUploads, tmp_path: Path, versioned: bool
) -> None:
    upload = await uploads.begin(b"key", Description())
    part = await uploads.put_part(upload, 1, [b"x" * 500])
    assert await uploads.completed(b"key", upload.upload_id) is None
    version_id = upload.upload_id if versioned else None
    record = await uploads.complete(upload, [part], Description(etag="e", version_id=version_id))
    assert await uploads.completed(b"key", upload.upload_id) == record
    assert await uploads.completed(b"key", "0" * 32) is None
    assert await uploads.completed(b"other", upload.upload_id) is None
    await opened.close()
    (tmp_path / "index").rename(tmp_path / "lost")
    again = await open_small(str(tmp_path))
    assert await uploads_of(again).completed(b"key", upload.upload_id) == record
    await again.engine.put(b"key", [b"later"])
    found = await uploads_of(again).completed(b"key", upload.upload_id)
    assert found == (record if versioned else None)
    await again.close()


@pytest.mark.parametrize("versioned", [False, True])
async def test_an_upload_that_was_cut_off_behind_its_object_never_becomes_another(
    tmp_path: Path, versioned: bool
) -> None:
    opened = await open_small(str(tmp_path / "data"))
    upload = await uploads_of(opened).begin(b"key", Description())
    part = await uploads_of(opened).put_part(upload, 1, [b"x" * 500])
    directory = tmp_path / "data" / "temp" / upload.upload_id
    shutil.copytree(directory, tmp_path / "aside")
    version_id = upload.upload_id if versioned else None
    await uploads_of(opened).complete(upload, [part], Description(etag="e", version_id=version_id))
    await opened.close()
    # As if the process had ended between the two.
    shutil.copytree(tmp_path / "aside", directory)
    again = await open_small(str(tmp_path / "data"))
    assert uploads_of(again).with_prefix(b"") == []
    assert temporary(tmp_path / "data") == []
    assert len(await again.engine.list_versions(b"key")) == 1
    await again.close()


async def test_a_version_of_an_upload_has_its_id(uploads: MultipartUploads) -> None:
    upload = await uploads.begin(b"key", Description())
    part = await uploads.put_part(upload, 1, [b"x"])
    with pytest.raises(InvalidRequestError, match="id of its upload"):
        await uploads.complete(upload, [part], Description(etag="e", version_id="other"))


async def test_an_upload_whose_record_is_damaged_stops_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    opened = await open_small(str(tmp_path))
    begun = await uploads_of(opened).begin(b"key", Description())
    await opened.close()
    (tmp_path / "temp" / begun.upload_id / "upload.json").write_bytes(b"{")
    with caplog.at_level(logging.ERROR):
        again = await open_small(str(tmp_path))
    assert begun.upload_id in caplog.text
    assert uploads_of(again).with_prefix(b"") == []
    assert len(temporary(tmp_path)) == 2, "it is left for a person to look at"
    await again.close()


async def test_uploads_end_when_they_are_too_old(tmp_path: Path) -> None:
    clock = SetClock()
    opened = await open_small(str(tmp_path), clock=clock)
    uploads = uploads_of(opened)
    old = await uploads.begin(b"old", Description())
    await uploads.put_part(old, 1, [b"x"])
    week_ms = int(SMALL.multipart_seconds_max * 1000)
    clock.ms += week_ms
    young = await uploads.begin(b"young", Description())
    assert uploads.with_prefix(b"") == [old, young]
    clock.ms += 1
    next_one = await uploads.begin(b"next", Description())
    assert uploads.with_prefix(b"") == [next_one, young]
    await opened.close()
    clock.ms += week_ms
    again = await open_small(str(tmp_path), clock=clock)
    assert [one.record.key for one in uploads_of(again).with_prefix(b"")] == [b"next"]
    assert len(temporary(tmp_path)) == 2, "a directory and its record"
    await again.close()


async def test_there_is_a_limit_to_uploads(tmp_path: Path) -> None:
    opened = await open_small(str(tmp_path), settings=replace(SMALL, multipart_uploads_max=2))
    uploads = uploads_of(opened)
    first = await uploads.begin(b"a", Description())
    await uploads.begin(b"b", Description())
    with pytest.raises(StorageUnavailableError, match="too many"):
        await uploads.begin(b"c", Description())
    await uploads.abort(first)
    await uploads.begin(b"c", Description())
    await opened.close()


def test_a_part_is_found_by_its_file_name() -> None:
    for part in (
        Part(1, 0, "0" * 32, 0, 5),
        Part(10_000, 1 << 33, "f" * 32, 0xFFFFFFFF, 9, ("crc32c", "4waSgw==")),
    ):
        assert part_of_file_name(part.file_name()) == part
    assert part_of_file_name("upload.json") is None


def test_records_of_uploads_read_back_and_other_bytes_are_none() -> None:
    described = Description("text/x", {"m:a": "1"}, retention=(RetentionMode.COMPLIANCE, 7))
    record = UploadRecord("k/ü".encode(), 5, described, {"a": "b"})
    content = encode_upload_record(record)
    assert decode_upload_record(content) == record
    for other in (b"", b"{}", b"[]", b'{"format": 2}', content.replace(b"COMPL", b""), b"\xff"):
        with pytest.raises(CorruptedDataError):
            decode_upload_record(other)
