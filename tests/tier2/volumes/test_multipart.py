"""Uploads in parts become one object, or nothing."""

import hashlib
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from random import Random

import pytest

from segmentstore.contracts.errors import (
    InvalidRequestError,
    ObjectExistsError,
    ObjectNotFoundError,
)
from segmentstore.contracts.identifiers import BufferView
from tests.tier2.volumes.engines import open_small
from tier2.volumes.description import Description
from tier2.volumes.multipart import MultipartUploads
from tier2.volumes.mutations import Condition
from tier2.volumes.opening import OpenEngine


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[OpenEngine]:
    opened = await open_small(str(tmp_path))
    yield opened
    await opened.close()


@pytest.fixture
def uploads(opened: OpenEngine) -> MultipartUploads:
    assert opened.uploads is not None
    return opened.uploads


async def received(content: bytes) -> AsyncGenerator[BufferView, None]:
    for start in range(0, len(content), 700):
        yield content[start : start + 700]


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
    etags = {}
    for number, content in contents.items():
        part = await uploads.put_part(upload.upload_id, number, received(content))
        assert part.etag == hashlib.md5(content).hexdigest()
        etags[number] = part.etag
    assert [part.number for part in uploads.list_parts(upload.upload_id)] == [2, 4, 7]
    record = await uploads.complete(
        upload.upload_id, [(n, etags[n]) for n in (2, 4, 7)], etag="composite-3"
    )
    assert (record.etag, record.content_type, record.metadata) == ("composite-3", "x/y", {"a": "b"})
    found = await opened.engine.get(b"bucket/key")
    assert found.content == contents[2] + contents[4] + contents[7]
    assert temporary(tmp_path) == []
    assert uploads.list_uploads(b"") == []
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


async def test_an_upload_whose_bytes_are_there_already_leaves_no_volume(
    opened: OpenEngine, uploads: MultipartUploads, tmp_path: Path
) -> None:
    content = Random(1).randbytes(9000)
    await opened.engine.put(b"first", [content])
    upload = await uploads.begin(b"second", Description())
    part = await uploads.put_part(upload.upload_id, 1, received(content))
    await uploads.complete(upload.upload_id, [(1, part.etag)], etag="e")
    assert len((await opened.engine.compact()).removed) == 1
    assert (await opened.engine.get(b"second")).content == content
    await opened.engine.check()


async def test_a_part_that_is_sent_again_replaces_the_first(
    uploads: MultipartUploads, opened: OpenEngine, tmp_path: Path
) -> None:
    upload = await uploads.begin(b"key", Description())
    first = await uploads.put_part(upload.upload_id, 1, received(b"first"))
    second = await uploads.put_part(upload.upload_id, 1, received(b"second"))
    assert len(temporary(tmp_path)) == 2, "the directory and one part"
    with pytest.raises(InvalidRequestError, match="no such part"):
        await uploads.complete(upload.upload_id, [(1, first.etag)], etag="e")
    await uploads.complete(upload.upload_id, [(1, second.etag)], etag="e")
    assert (await opened.engine.get(b"key")).content == b"second"


async def test_parts_are_named_in_order_and_have_to_be_there(uploads: MultipartUploads) -> None:
    upload = await uploads.begin(b"key", Description())
    one = await uploads.put_part(upload.upload_id, 1, received(b"one"))
    two = await uploads.put_part(upload.upload_id, 2, received(b"two"))
    for parts in ([], [(2, two.etag), (1, one.etag)], [(1, one.etag)] * 2, [(3, one.etag)]):
        with pytest.raises(InvalidRequestError):
            await uploads.complete(upload.upload_id, parts, etag="e")
    for number in (0, 10_001):
        with pytest.raises(InvalidRequestError):
            await uploads.put_part(upload.upload_id, number, received(b""))


async def test_an_upload_that_is_given_up_leaves_nothing(
    uploads: MultipartUploads, tmp_path: Path
) -> None:
    upload = await uploads.begin(b"key", Description())
    await uploads.put_part(upload.upload_id, 1, received(b"x" * 5000))
    assert [one.key for one in uploads.list_uploads(b"ke")] == [b"key"]
    await uploads.abort(upload.upload_id)
    assert temporary(tmp_path) == []
    with pytest.raises(ObjectNotFoundError):
        uploads.list_parts(upload.upload_id)


async def test_a_completion_that_is_refused_leaves_the_upload(
    uploads: MultipartUploads, opened: OpenEngine
) -> None:
    await opened.engine.put(b"key", [b"there"])
    upload = await uploads.begin(b"key", Description())
    part = await uploads.put_part(upload.upload_id, 1, received(b"x" * 5000))
    with pytest.raises(ObjectExistsError):
        await uploads.complete(
            upload.upload_id, [(1, part.etag)], etag="e", condition=Condition(absent=True)
        )
    await uploads.complete(upload.upload_id, [(1, part.etag)], etag="e")
    assert (await opened.engine.get(b"key")).content == b"x" * 5000


async def test_a_body_that_breaks_off_leaves_no_part(
    uploads: MultipartUploads, tmp_path: Path
) -> None:
    async def broken() -> AsyncGenerator[BufferView, None]:
        yield b"some"
        raise ConnectionResetError("gone")

    upload = await uploads.begin(b"key", Description())
    with pytest.raises(ConnectionResetError):
        await uploads.put_part(upload.upload_id, 1, broken())
    assert uploads.list_parts(upload.upload_id) == []
    assert temporary(tmp_path) == [upload.upload_id]


async def test_uploads_of_an_earlier_life_are_gone(tmp_path: Path) -> None:
    opened = await open_small(str(tmp_path))
    assert opened.uploads is not None
    upload = await opened.uploads.begin(b"key", Description())
    await opened.uploads.put_part(upload.upload_id, 1, received(b"x" * 5000))
    await opened.close()
    again = await open_small(str(tmp_path))
    assert temporary(tmp_path) == []
    await again.close()
