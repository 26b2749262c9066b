"""A bucket that is written to and removed at once, on an endpoint in this loop."""

import asyncio
from pathlib import Path

import pytest

from segmentstore.s3.settings import EndpointSettings
from tests.s3.conftest import client_of, endpoint
from tests.s3.raw_request import send, signed_headers
from tests.s3.test_objects import body_of, code_of

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
