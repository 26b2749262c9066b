"""Goal: a change whose caller goes away is made as a whole or not at all, and memory says what the next start will say.

Method: each change is cancelled at each of its awaits in turn; what it gives to a thread is done by then, though it was
not told of it. What memory says when all is still is compared with what a start on the same files finds.
"""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ParamSpec, TypeVar

import pytest

from segmentstore.s3.buckets import Buckets
from segmentstore.s3.errors import S3Error
from segmentstore.s3.request_target import BUCKETS, object_key, objects_prefix
from segmentstore.s3.settings import EndpointSettings
from tests.tier2.volumes.engines import SMALL, SetClock, open_small
from tests.tier2.volumes.memory_index import MemoryIndex
from tier2.volumes.multipart import MultipartUploads, Upload
from tier2.volumes.objects import Description, digest
from tier2.volumes.opening import OpenEngine

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

KEY = object_key("bucket", "key")
TURNS_MAX = 400


class PromptExecutor(Executor):
    """Does what it is given at once; the loop hears of it in a later turn."""

    def submit(
        self,
        fn: Callable[_Arguments, _Result],
        /,
        *args: _Arguments.args,
        **kwargs: _Arguments.kwargs,
    ) -> "Future[_Result]":
        future: Future[_Result] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - it belongs to the caller
            future.set_exception(error)
        return future


@dataclass
class World:
    opened: OpenEngine
    buckets: Buckets

    @property
    def uploads(self) -> MultipartUploads:
        assert self.opened.uploads is not None
        return self.opened.uploads

    @property
    def upload(self) -> Upload:
        return self.uploads.with_prefix(objects_prefix("bucket"))[0]

    async def state(self) -> object:
        """What a client could see."""
        engine = self.opened.engine
        listed = await engine.list(b"", limit=100)
        objects = {
            one.key: (await engine.get(one.key)).content
            for one in listed
            if not one.key.startswith(BUCKETS)
        }
        uploads = {one.upload_id: dict(one.parts) for one in self.uploads.with_prefix(b"")}
        return objects, uploads, dict(self.buckets.records)


async def open_world(directory: Path, index: MemoryIndex) -> World:
    opened = await open_small(
        str(directory),
        open_index=lambda _: index,
        executor=PromptExecutor(),
        settings=replace(SMALL, multipart_memory_bytes_max=1000),
        clock=SetClock(ms=2_000_000),
    )
    buckets = Buckets(
        engine=opened.engine,
        wall_clock=SetClock(),
        settings=EndpointSettings(),
    )
    await buckets.start()
    return World(opened, buckets)


async def prepare(world: World, content: bytes) -> None:
    await world.buckets.create("bucket", lock=False)
    await world.buckets.create("empty", lock=False)
    await world.opened.engine.put(object_key("bucket", "other"), [b"x"])
    upload = await world.uploads.begin(KEY, Description())
    await world.uploads.put_part(upload, 1, [content])


async def complete(world: World) -> None:
    upload = world.upload
    await world.uploads.complete(upload, list(upload.parts.values()), Description(etag="e"))


async def send_part_again(world: World) -> None:
    await world.uploads.put_part(world.upload, 1, [b"another"])


async def send_part(world: World) -> None:
    await world.uploads.put_part(world.upload, 2, [b"second"])


async def abort(world: World) -> None:
    await world.uploads.abort(world.upload)


async def begin(world: World) -> None:
    await world.uploads.begin(KEY, Description())


async def stream_part(world: World) -> None:
    async with world.uploads.incoming(world.upload) as incoming:
        for _ in range(2):
            await incoming.append([b"piece", b" by piece"])
        await world.uploads.put_incoming_part(world.upload, 2, incoming, md5="0" * 32)


async def stream_object(world: World) -> None:
    await stream(world, b"s" * 400)


async def stream_large_object(world: World) -> None:
    await stream(world, b"s" * 4000)


async def stream(world: World, content: bytes) -> None:
    async with world.uploads.incoming() as incoming:
        await incoming.append([content[:100]])
        await incoming.append([content[100:]])
        found = digest([content], SMALL.piece_bytes)
        await world.uploads.put_incoming(KEY, incoming, found, lambda: Description(etag="streamed"))


async def suspend(world: World) -> None:
    await world.buckets.change("bucket", versioning="Suspended")


async def create_bucket(world: World) -> None:
    await world.buckets.create("third", lock=True)


async def delete_bucket(world: World) -> None:
    await world.buckets.delete("empty")


async def delete_full_bucket(world: World) -> None:
    with pytest.raises(S3Error, match="BucketNotEmpty"):
        await world.buckets.delete("bucket")


def bytes_without_a_name(directory: Path) -> list[Path]:
    """What a start would remove."""
    temporary = directory / "temp"
    unlisted = [one for one in temporary.iterdir() if not (one / "upload.json").exists()]
    return unlisted + list(temporary.rglob("*.new"))


CHANGES = (
    complete,
    send_part_again,
    send_part,
    stream_part,
    stream_object,
    stream_large_object,
    abort,
    begin,
    suspend,
    create_bucket,
    delete_bucket,
    delete_full_bucket,
)


@pytest.mark.parametrize("size", [400, 4000], ids=["small", "large"])
@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_that_is_cancelled_at_any_await_leaves_memory_and_disk_agreed(
    tmp_path: Path, change: Callable[[World], Awaitable[None]], size: int
) -> None:
    directory, index = tmp_path / "whole", MemoryIndex()
    world = await open_world(directory, index)
    await prepare(world, b"p" * size)
    before = await world.state()
    await change(world)
    whole = await world.state()
    await world.opened.close()
    for turns in range(TURNS_MAX):
        index, directory = MemoryIndex(), tmp_path / str(turns)
        world = await open_world(directory, index)
        await prepare(world, b"p" * size)
        changing = asyncio.ensure_future(change(world))
        for _ in range(turns):
            await asyncio.sleep(0)
        is_over = changing.done()
        changing.cancel()
        await asyncio.gather(changing, return_exceptions=True)
        for _ in range(100):
            await asyncio.sleep(0)
        after = await world.state()
        assert after in (before, whole), f"{turns=}"
        assert bytes_without_a_name(directory) == [], f"{turns=}"
        await world.opened.close()
        again = await open_world(directory, index)
        assert await again.state() == after, f"{turns=}"
        await again.opened.close()
        if is_over:
            return
    raise AssertionError("it never ends")
