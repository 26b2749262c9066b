"""A client that asks for an object and does not take it holds its answer in memory for a while, and not for ever."""

import asyncio
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from segmentstore.s3.settings import EndpointSettings
from tests.s3.conftest import client_of, endpoint

pytestmark = pytest.mark.integration

SIZE = 16 << 20
"""More than the sockets of both sides hold."""


@pytest.mark.slow
async def test_h53_an_answer_in_one_piece_that_is_not_taken_is_cut_off(tmp_path: Path) -> None:
    settings = EndpointSettings(
        port=0, first_window_bytes=SIZE, window_bytes=SIZE, window_seconds_max=0.2
    )
    async with endpoint(tmp_path, settings) as url:
        client = client_of(url, signature_version="s3v4")
        await asyncio.to_thread(client.create_bucket, Bucket="bucket")
        await asyncio.to_thread(client.put_object, Bucket="bucket", Key="k", Body=bytes(SIZE))
        asked = {"Bucket": "bucket", "Key": "k"}
        target = urlsplit(client.generate_presigned_url("get_object", Params=asked))
        host, port = target.netloc.split(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
        try:
            request = f"GET {target.path}?{target.query} HTTP/1.1\r\nHost: {target.netloc}\r\n\r\n"
            writer.write(request.encode())
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200")
            async with asyncio.timeout(60):
                while not writer.transport.is_closing():
                    # Of a connection that was cut the kernel tells who writes.
                    writer.write(b"\r\n")
                    await asyncio.sleep(0.02)
            received = 0
            with suppress(ConnectionError):
                while piece := await reader.read(1 << 20):
                    received += len(piece)
        finally:
            writer.close()
    assert received < SIZE
