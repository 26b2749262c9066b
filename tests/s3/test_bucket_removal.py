"""A bucket that is written to and removed at once, on an endpoint in this loop."""

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from segmentstore.s3.buckets import Buckets
from segmentstore.s3.errors import S3Error
from segmentstore.s3.request_target import object_key
from segmentstore.s3.settings import EndpointSettings
from tests.s3.conftest import client_of, endpoint
from tests.s3.raw_request import send, signed_headers
from tests.s3.test_objects import body_of, code_of
from tests.tier2.volumes.engines import SetClock, open_small
from tests.tier2.volumes.memory_index import MemoryIndex
from tier2.volumes.index import current_key

pytestmark = pytest.mark.integration


async def test_a_bucket_does_not_go_while_a_put_into_it_is_under_way(tmp_path: Path) -> None:
    async with endpoint(tmp_path, EndpointSettings(port=0)) as url:
        client = client_of(url)
        await asyncio.to_thread(client.create_bucket, Bucket="bucket")
        target = f"{url}/bucket/k"
        headers = {**signed_headers("PUT", target), "Expect": "100-continue"}
        host, port = url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        writer.write(
            f"PUT /bucket/k HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: 7\r\n{head}\r\n".encode()
        )
        assert b"100 Continue" in await reader.readuntil(b"\r\n\r\n")

        refused = await asyncio.to_thread(code_of, client.delete_bucket, Bucket="bucket")
        assert refused == (409, "BucketNotEmpty")
        writer.write(b"content")
        assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
        writer.close()
        await writer.wait_closed()
        assert await asyncio.to_thread(body_of, client, Bucket="bucket", Key="k") == b"content"
        client.close()


class PausingIndex(MemoryIndex):
    """Holds whoever looks for objects, until the test lets it go on."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()
        self.go_on.set()
        self.asked = threading.Event()

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        if not self.go_on.is_set() and current_key(object_key("bucket", "k")) in keys:
            self.asked.set()
            assert self.go_on.wait(60)
        return super().get_many(keys)


async def test_a_put_that_was_given_up_is_not_left_in_a_bucket_that_is_gone(tmp_path: Path) -> None:
    index, clock = PausingIndex(), SetClock()
    with ThreadPoolExecutor(8) as executor:
        opened = await open_small(str(tmp_path), open_index=lambda _: index, executor=executor)
        buckets = Buckets(engine=opened.engine, wall_clock=clock, settings=EndpointSettings())
        await buckets.create("bucket", lock=False)

        async def put() -> None:
            async with buckets.writing("bucket"):
                await opened.engine.put(object_key("bucket", "k"), [b"content"])

        index.go_on.clear()
        given_up = asyncio.create_task(put())
        await asyncio.to_thread(index.asked.wait, 60)
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
        removal = asyncio.create_task(buckets.delete("bucket"))
        await asyncio.sleep(0.1)
        index.go_on.set()
        with pytest.raises(S3Error, match="BucketNotEmpty"):
            await removal
        assert "bucket" in buckets.records
        assert (await opened.engine.get(object_key("bucket", "k"))).content == b"content"
        await opened.close()


async def test_a_bucket_is_there_for_everybody_until_it_is_decided_that_it_goes(
    tmp_path: Path,
) -> None:
    index, clock = PausingIndex(), SetClock()
    with ThreadPoolExecutor(8) as executor:
        opened = await open_small(str(tmp_path), open_index=lambda _: index, executor=executor)
        buckets = Buckets(engine=opened.engine, wall_clock=clock, settings=EndpointSettings())
        await buckets.create("bucket", lock=False)
        ended: list[str] = []

        async def end_uploads() -> None:
            ended.append("bucket")

        async def write() -> bytes:
            async with buckets.writing("bucket"):
                return b"written"

        for is_empty in (False, True):
            change = opened.engine.delete if is_empty else opened.engine.put
            arguments = [] if is_empty else [[b"content"]]
            await change(object_key("bucket", "other"), *arguments)
            removal = asyncio.create_task(buckets.delete("bucket", end_uploads=end_uploads))
            for _ in range(3):
                await asyncio.sleep(0)
            assert not removal.done()
            assert buckets.get("bucket") is not None
            writing = asyncio.create_task(write())
            await asyncio.gather(removal, writing, return_exceptions=True)
            assert bool(ended) == is_empty
            assert ("bucket" in buckets.records) != is_empty
            if is_empty:
                with pytest.raises(S3Error, match="NoSuchBucket"):
                    await writing
            else:
                assert await writing == b"written"
        await opened.close()


async def test_uploads_of_a_bucket_go_with_it(tmp_path: Path) -> None:
    async with endpoint(tmp_path, EndpointSettings(port=0)) as url:
        client = client_of(url)

        def work() -> None:
            client.create_bucket(Bucket="bucket")
            upload = client.create_multipart_upload(Bucket="bucket", Key="k")
            client.delete_bucket(Bucket="bucket")
            client.create_bucket(Bucket="bucket")
            named = {"Bucket": "bucket", "Key": "k", "UploadId": upload["UploadId"]}
            assert code_of(client.list_parts, **named) == (404, "NoSuchUpload")

        await asyncio.to_thread(work)
        client.close()
    assert list((tmp_path / "tier2" / "temp").iterdir()) == []


async def test_the_limit_of_an_object_is_a_setting_and_its_refusal_names_it(tmp_path: Path) -> None:
    async with endpoint(tmp_path, EndpointSettings(port=0, object_bytes_max=1000)) as url:
        client = client_of(url)
        await asyncio.to_thread(client.create_bucket, Bucket="bucket")
        target = f"{url}/bucket/k"
        answers = [
            await asyncio.to_thread(send, "PUT", target, signed_headers("PUT", target), bytes(size))
            for size in (1000, 1001)
        ]
        assert [answer.status for answer in answers] == [200, 400]
        assert answers[1].code == "EntityTooLarge"
        assert b"at most 1000 can be sent" in answers[1].body
        client.close()
