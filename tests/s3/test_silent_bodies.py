"""A body of which nothing arrives is given up, with the memory that it would have had. In virtual time."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import StreamReader
from aiohttp.base_protocol import BaseProtocol

from segmentstore.s3.authentication import UNSIGNED_PAYLOAD
from segmentstore.s3.errors import S3Error
from segmentstore.s3.request_body import UNSIGNED_TRAILER, BodyReader, MemoryBudget
from segmentstore.s3.settings import EndpointSettings

LENGTH = 8 << 20
SETTINGS = EndpointSettings(bodies_bytes_max=LENGTH)


class Upload:
    """A request whose body is in the test's hand."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        protocol = BaseProtocol(loop)
        protocol.connection_made(asyncio.Transport())
        self.content = StreamReader(protocol, 1 << 30, loop=loop)
        self.request = SimpleNamespace(
            content=self.content, content_length=LENGTH, can_read_body=True, headers={}
        )
        self.query: dict[str, str] = {}
        self.headers: dict[str, str] = {}
        self.authenticated = SimpleNamespace(payload=UNSIGNED_PAYLOAD)
        self.expect_continue = SimpleNamespace(give=self._nothing)

    async def _nothing(self) -> None: ...

    def header(self, name: str) -> str | None:
        return self.headers.get(name)

    def send(self, count: int) -> None:
        self.content.feed_data(bytes(count))

    def send_text(self, text: str) -> None:
        self.content.feed_data(text.encode())

    def end(self) -> None:
        self.content.feed_eof()


class ChunkedUpload(Upload):
    """Its body comes in chunks of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.authenticated = SimpleNamespace(payload=UNSIGNED_TRAILER, signature="")
        self.headers["x-amz-decoded-content-length"] = str(LENGTH)


class Reading:
    """Bodies with the memory of one."""

    def __init__(self, *, streams: bool) -> None:
        self.budget = MemoryBudget(
            bytes_max=LENGTH, wait_seconds_max=SETTINGS.body_wait_seconds_max
        )
        self._streams = streams
        self._reader = BodyReader(
            budget=self.budget, executor=None, settings=SETTINGS, piece_bytes=1 << 20
        )

    async def read(self, upload: Any) -> int:
        """How long it was."""
        if self._streams:
            return (await self._reader.stream(upload, LENGTH, self._drop)).length
        async with self._reader.read(upload, LENGTH) as body:
            return body.length

    async def _drop(self, _pieces: object) -> None: ...


@pytest.fixture(params=[False, True], ids=["held", "streamed"])
def reading(request: pytest.FixtureRequest) -> Reading:
    return Reading(streams=request.param)


async def test_one_that_is_silent_gives_its_memory_to_those_that_wait_for_it(
    reading: Reading,
) -> None:
    silent, other = Upload(), Upload()
    silent.send(1)
    of_silent = asyncio.create_task(reading.read(silent))
    await asyncio.sleep(1)
    assert reading.budget.bytes_held == LENGTH
    other.send(LENGTH)
    other.end()
    assert await reading.read(other) == LENGTH
    with pytest.raises(S3Error, match="RequestTimeout"):
        await of_silent
    assert reading.budget.bytes_held == 0


async def test_one_that_is_slow_is_no_silent_one(reading: Reading) -> None:
    slow = Upload()
    of_slow = asyncio.create_task(reading.read(slow))
    for _ in range(4):
        slow.send(LENGTH // 4)
        await asyncio.sleep(SETTINGS.body_silence_seconds_max - 1)
    slow.end()
    assert await of_slow == LENGTH


async def test_one_that_is_slow_is_no_silent_one_however_long_its_chunks_are(
    reading: Reading,
) -> None:
    """Less than a mebibyte comes in the time after which a silent one is given up."""
    slow = ChunkedUpload()
    of_slow = asyncio.create_task(reading.read(slow))
    slow.send_text(f"{LENGTH:x}\r\n")
    at_once = 768 << 10
    for first in range(0, LENGTH, at_once):
        slow.send(min(at_once, LENGTH - first))
        await asyncio.sleep(SETTINGS.body_silence_seconds_max - 1)
    slow.send_text("\r\n0\r\n\r\n")
    slow.end()
    assert await of_slow == LENGTH


async def test_one_that_trickles_has_an_end_all_the_same(reading: Reading) -> None:
    slow = Upload()
    of_slow = asyncio.create_task(reading.read(slow))
    while not of_slow.done():
        slow.send(1)
        await asyncio.sleep(SETTINGS.body_silence_seconds_max - 1)
        # Not only in proportion to what it announced, which may be hundreds of megabytes.
        assert asyncio.get_running_loop().time() < 2 * SETTINGS.body_seconds_max
    with pytest.raises(S3Error, match="RequestTimeout"):
        await of_slow
