"""Goal: a body that is too large to be held is stored as others are, or not at all, with memory that it does not set.

Method: endpoints whose bound for held bodies is a few kilobytes, with boto3 and with requests of our own.
"""

import asyncio
import hashlib
import io
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from botocore.exceptions import ClientError

from segmentstore.s3.checksums import ALGORITHMS, checksum_text
from segmentstore.s3.request_body import BodyReader
from segmentstore.s3.settings import EndpointSettings
from tests.s3.conftest import client_of, endpoint
from tests.s3.raw_request import send, signed_headers
from tests.s3.test_streamed_bodies import SIGNED, SIGNED_TRAILER, UNSIGNED_TRAILER, put_in_chunks
from tests.silent_connections import check_that_more_are_refused
from tier2.volumes.multipart import MultipartUploads
from tier2.volumes.settings import VolumeSettings

pytestmark = pytest.mark.integration

HELD_BYTES_MAX = 200_000
WINDOW_BYTES = 64 << 10
SETTINGS = EndpointSettings(
    port=0,
    object_bytes_max=4 << 20,
    held_body_bytes_max=HELD_BYTES_MAX,
    body_window_bytes=WINDOW_BYTES,
    window_bytes=128 << 10,
    part_bytes_min=1,
)
BODY = Random(1).randbytes(HELD_BYTES_MAX + 1)
LARGE = Random(2).randbytes(3_333_333)


@asynccontextmanager
async def small_endpoint(
    directory: Path, *, joined_in_memory: int = 1000, settings: EndpointSettings = SETTINGS
) -> AsyncIterator[tuple[str, Any]]:
    """URL and client of an endpoint with a bucket; `joined_in_memory`: what is not put into a volume of its own."""
    volumes = VolumeSettings(multipart_memory_bytes_max=joined_in_memory)
    async with endpoint(directory, settings, volumes) as url:
        client = client_of(url)
        await asyncio.to_thread(client.create_bucket, Bucket="bucket")
        try:
            yield url, client
        finally:
            client.close()


def temporary(directory: Path) -> list[str]:
    """Files of uploads and bodies."""
    return sorted(str(path.name) for path in (directory / "tier2" / "temp").rglob("*"))


async def put(client: Any, key: str, body: bytes, **facts: object) -> Any:
    return await asyncio.to_thread(client.put_object, Bucket="bucket", Key=key, Body=body, **facts)


async def get(client: Any, key: str, **facts: object) -> bytes:
    def read() -> bytes:
        content: bytes = client.get_object(Bucket="bucket", Key=key, **facts)["Body"].read()
        return content

    return await asyncio.to_thread(read)


async def keys(client: Any) -> list[str]:
    listed = await asyncio.to_thread(client.list_objects_v2, Bucket="bucket")
    return [one["Key"] for one in listed.get("Contents", [])]


@pytest.mark.parametrize("joined_in_memory", [1000, 32 << 20], ids=["own volume", "in memory"])
@pytest.mark.parametrize("body", [BODY, LARGE], ids=["a byte above", "many windows"])
async def test_a_body_above_the_bound_is_an_object_like_others(
    tmp_path: Path, body: bytes, joined_in_memory: int
) -> None:
    async with small_endpoint(tmp_path, joined_in_memory=joined_in_memory) as (_, client):
        answer = await put(client, "k", body, ContentType="x/y", Metadata={"a": "b"})
        assert answer["ETag"] == f'"{hashlib.md5(body).hexdigest()}"'
        head = await asyncio.to_thread(client.head_object, Bucket="bucket", Key="k")
        assert (head["ContentLength"], head["ContentType"]) == (len(body), "x/y")
        assert (head["ETag"], head["Metadata"]) == (answer["ETag"], {"a": "b"})
        assert await get(client, "k") == body
        for start, end in ((0, 1), (100_000, 180_001), (len(body) - 1, len(body))):
            assert await get(client, "k", Range=f"bytes={start}-{end - 1}") == body[start:end]
        assert temporary(tmp_path) == []
    async with endpoint(tmp_path, SETTINGS) as url:
        client = client_of(url)
        assert await get(client, "k") == body
        client.close()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("payload", [UNSIGNED_TRAILER, SIGNED_TRAILER])
async def test_a_trailing_checksum_is_verified_and_kept(
    tmp_path: Path, algorithm: str, payload: str
) -> None:
    chunks = (BODY[:100_000], BODY[100_000:])
    right, wrong = checksum_text(algorithm, chunks), checksum_text(algorithm, [b"other"])
    async with small_endpoint(tmp_path) as (url, client):
        send_chunks = partial(put_in_chunks, payload=payload, chunks=chunks, algorithm=algorithm)
        refused = await asyncio.to_thread(send_chunks, f"{url}/bucket/wrong", trailer=wrong)
        assert refused.code == "BadDigest"
        answer = await asyncio.to_thread(send_chunks, f"{url}/bucket/k", trailer=right)
        assert answer.status == 200, answer.body
        assert await keys(client) == ["k"]
        head = await asyncio.to_thread(
            client.head_object, Bucket="bucket", Key="k", ChecksumMode="ENABLED"
        )
        # By its header: boto3 may not know the algorithm.
        shown = head["ResponseMetadata"]["HTTPHeaders"][f"x-amz-checksum-{algorithm}"]
        assert shown == right
        assert await get(client, "k") == BODY
        assert temporary(tmp_path) == []


@pytest.mark.parametrize(
    ("payload", "wrong", "expected"),
    [
        (SIGNED, {"spoil_chunk": 0}, "SignatureDoesNotMatch"),
        (SIGNED, {"spoil_chunk": 2}, "SignatureDoesNotMatch"),
        (SIGNED, {"declared": len(BODY) + 1}, "IncompleteBody"),
        (SIGNED, {"declared": len(BODY) - 1}, ""),
        (SIGNED, {"cut": 100}, ""),
        (SIGNED_TRAILER, {"trailer": "AAAAAA==", "spoil_trailer": True}, "SignatureDoesNotMatch"),
    ],
)
async def test_a_wrong_body_in_chunks_leaves_nothing(
    tmp_path: Path, payload: str, wrong: dict[str, Any], expected: str
) -> None:
    async with small_endpoint(tmp_path) as (url, client):
        answer = await asyncio.to_thread(
            partial(
                put_in_chunks, f"{url}/bucket/k", payload, [BODY[:150_000], BODY[150_000:]], **wrong
            )
        )
        assert answer.status != 200
        assert answer.code == expected or not expected, answer.body
        assert await keys(client) == []
        await still(tmp_path)


async def still(directory: Path) -> None:
    """Returns when no file of a body is left."""
    async with asyncio.timeout(60):
        while temporary(directory):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("headers", "payload", "expected"),
    [
        ({"Content-MD5": "AAAAAAAAAAAAAAAAAAAAAA=="}, "UNSIGNED-PAYLOAD", "BadDigest"),
        ({"x-amz-checksum-crc32": "AAAAAA=="}, "UNSIGNED-PAYLOAD", "BadDigest"),
        ({}, hashlib.sha256(b"other").hexdigest(), "XAmzContentSHA256Mismatch"),
    ],
)
async def test_what_a_client_says_of_a_body_is_checked_over_all_of_it(
    tmp_path: Path, headers: dict[str, str], payload: str, expected: str
) -> None:
    async with small_endpoint(tmp_path) as (url, client):
        target = f"{url}/bucket/k"
        signed = signed_headers("PUT", target, payload, headers)
        answer = await asyncio.to_thread(send, "PUT", target, signed, BODY)
        assert answer.code == expected, answer.body
        assert (await keys(client), temporary(tmp_path)) == ([], [])
        right = signed_headers("PUT", target, hashlib.sha256(BODY).hexdigest())
        assert (await asyncio.to_thread(send, "PUT", target, right, BODY)).status == 200
        assert await get(client, "k") == BODY


async def test_a_trailing_checksum_that_was_not_announced_is_refused(tmp_path: Path) -> None:
    async with small_endpoint(tmp_path) as (url, client):
        target, value = f"{url}/bucket/k", checksum_text("crc32", [BODY])
        facts = {"x-amz-decoded-content-length": str(len(BODY))}
        headers = signed_headers("PUT", target, UNSIGNED_TRAILER, facts)
        body = f"{len(BODY):x}\r\n".encode() + BODY + b"\r\n0\r\n"
        body += f"x-amz-checksum-crc32:{value}\r\n\r\n".encode()
        answer = await asyncio.to_thread(send, "PUT", target, headers, body)
        assert answer.code == "InvalidRequest", answer.body
        assert (await keys(client), temporary(tmp_path)) == ([], [])


def held_back(monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.Event, asyncio.Event]:
    """Set when a body has arrived; nothing is done with it before the other one is set."""
    arrived, goes_on = asyncio.Event(), asyncio.Event()
    stream = BodyReader.stream

    async def slow_stream(self: BodyReader, *args: Any) -> Any:
        body = await stream(self, *args)
        arrived.set()
        await goes_on.wait()
        return body

    monkeypatch.setattr(BodyReader, "stream", slow_stream)
    return arrived, goes_on


async def test_conditions_are_judged_when_the_body_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived, goes_on = held_back(monkeypatch)
    async with small_endpoint(tmp_path) as (_, client):
        putting = asyncio.create_task(put(client, "k", LARGE, IfNoneMatch="*"))
        await arrived.wait()
        await put(client, "k", b"small")
        goes_on.set()
        with pytest.raises(ClientError, match="PreconditionFailed"):
            await putting
        assert await get(client, "k") == b"small"
        with pytest.raises(ClientError, match="NoSuchKey"):
            await put(client, "absent", LARGE, IfMatch='"0"')
        etag = f'"{hashlib.md5(b"small").hexdigest()}"'
        await put(client, "k", LARGE, IfMatch=etag)
        assert await get(client, "k") == LARGE
        assert temporary(tmp_path) == []


async def test_versions_and_locks_are_those_of_the_bucket_when_the_body_is_there(
    tmp_path: Path,
) -> None:
    async with small_endpoint(tmp_path) as (_, client):
        await put(client, "k", b"first")
        enabled = {"Status": "Enabled"}
        await asyncio.to_thread(
            client.put_bucket_versioning, Bucket="bucket", VersioningConfiguration=enabled
        )
        version = (await put(client, "k", LARGE))["VersionId"]
        assert await get(client, "k", VersionId=version) == LARGE
        assert await get(client, "k", VersionId="null") == b"first"


@pytest.mark.parametrize("sent", [1, WINDOW_BYTES + 1, len(LARGE) - 1])
async def test_a_client_that_breaks_off_leaves_nothing(tmp_path: Path, sent: int) -> None:
    async with small_endpoint(tmp_path) as (url, client):
        for _ in range(3):
            target = f"{url}/bucket/k"
            headers = signed_headers("PUT", target)
            await asyncio.to_thread(
                partial(send, "PUT", target, headers, LARGE[:sent], length=len(LARGE), cut_off=True)
            )
        await still(tmp_path)
        assert await keys(client) == []
        await put(client, "k", LARGE)
        assert await get(client, "k") == LARGE


async def test_of_a_body_no_more_than_its_windows_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows: list[int] = []
    stream = BodyReader.stream

    async def counted(self: BodyReader, call: Any, length_max: int, sink: Any) -> Any:
        async def count(window: Sequence[bytes]) -> None:
            windows.append(sum(map(len, window)))
            assert self._budget.bytes_held < HELD_BYTES_MAX
            await sink(window)

        return await stream(self, call, length_max, count)

    monkeypatch.setattr(BodyReader, "stream", counted)
    settings = EndpointSettings(
        port=0,
        object_bytes_max=4 << 20,
        held_body_bytes_max=HELD_BYTES_MAX,
        body_window_bytes=WINDOW_BYTES,
        read_bytes=4 << 10,
    )
    async with small_endpoint(tmp_path, settings=settings) as (url, _):
        one_chunk = partial(put_in_chunks, f"{url}/bucket/k", UNSIGNED_TRAILER, [LARGE])
        assert (await asyncio.to_thread(one_chunk)).status == 200
    assert sum(windows) == len(LARGE)
    assert len(windows) > 2


async def test_a_body_above_the_limit_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    async with small_endpoint(tmp_path) as (url, _):
        target = f"{url}/bucket/k"
        headers = signed_headers("PUT", target)
        length = SETTINGS.object_bytes_max + 1
        answer = await asyncio.to_thread(partial(send, "PUT", target, headers, b"", length=length))
        assert answer.code == "EntityTooLarge"
        assert temporary(tmp_path) == []


async def test_a_part_above_the_bound_is_a_part_like_others(tmp_path: Path) -> None:
    async with small_endpoint(tmp_path) as (_, client):
        begun = await asyncio.to_thread(
            client.create_multipart_upload, Bucket="bucket", Key="k", ChecksumAlgorithm="CRC32"
        )
        named = {"Bucket": "bucket", "Key": "k", "UploadId": begun["UploadId"]}
        parts: list[dict[str, Any]] = []
        for number, body in ((1, LARGE), (2, BODY), (2, LARGE), (3, b"end")):
            answer = await asyncio.to_thread(
                partial(
                    client.upload_part,
                    **named,
                    PartNumber=number,
                    Body=body,
                    ChecksumAlgorithm="CRC32",
                )
            )
            assert answer["ETag"] == f'"{hashlib.md5(body).hexdigest()}"'
            assert answer["ChecksumCRC32"] == checksum_text("crc32", [body])
            parts = [one for one in parts if one["PartNumber"] != number]
            facts = {name: answer[name] for name in ("ETag", "ChecksumCRC32")}
            parts.append({"PartNumber": number, **facts})
        assert len(temporary(tmp_path)) == 5, "the directory, the record and three parts"
        await asyncio.to_thread(
            client.complete_multipart_upload, **named, MultipartUpload={"Parts": parts}
        )
        assert await get(client, "k") == LARGE + LARGE + b"end"
        assert temporary(tmp_path) == []


async def test_a_part_whose_upload_is_aborted_meanwhile_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived, goes_on = held_back(monkeypatch)
    async with small_endpoint(tmp_path) as (_, client):
        begun = await asyncio.to_thread(client.create_multipart_upload, Bucket="bucket", Key="k")
        named = {"Bucket": "bucket", "Key": "k", "UploadId": begun["UploadId"]}
        sending = asyncio.create_task(
            asyncio.to_thread(partial(client.upload_part, **named, PartNumber=1, Body=LARGE))
        )
        await arrived.wait()
        await asyncio.to_thread(client.abort_multipart_upload, **named)
        goes_on.set()
        with pytest.raises(ClientError, match="NoSuchUpload"):
            await sending
        assert temporary(tmp_path) == []


async def test_a_large_object_is_copied_without_its_bytes_and_by_parts(tmp_path: Path) -> None:
    async with small_endpoint(tmp_path) as (_, client):
        await put(client, "source", LARGE, Metadata={"a": "b"})
        volumes = sorted((tmp_path / "tier2" / "volumes").iterdir())
        size = sum(path.stat().st_size for path in volumes)
        source = {"Bucket": "bucket", "Key": "source"}
        copied = await asyncio.to_thread(
            partial(client.copy_object, Bucket="bucket", Key="copy", CopySource=source)
        )
        assert copied["CopyObjectResult"]["ETag"] == f'"{hashlib.md5(LARGE).hexdigest()}"'
        summed = await asyncio.to_thread(
            partial(
                client.copy_object,
                Bucket="bucket",
                Key="summed",
                CopySource=source,
                ChecksumAlgorithm="SHA256",
            )
        )
        expected = checksum_text("sha256", [LARGE])
        assert summed["CopyObjectResult"]["ChecksumSHA256"] == expected
        volumes = sorted((tmp_path / "tier2" / "volumes").iterdir())
        assert sum(path.stat().st_size for path in volumes) < size + 10_000
        begun = await asyncio.to_thread(
            client.create_multipart_upload, Bucket="bucket", Key="parts"
        )
        named = {"Bucket": "bucket", "Key": "parts", "UploadId": begun["UploadId"]}
        whole = await asyncio.to_thread(
            partial(client.upload_part_copy, **named, PartNumber=1, CopySource=source)
        )
        half = await asyncio.to_thread(
            partial(
                client.upload_part_copy,
                **named,
                PartNumber=2,
                CopySource=source,
                CopySourceRange="bytes=1000-1500000",
            )
        )
        parts = [
            {"PartNumber": number, "ETag": one["CopyPartResult"]["ETag"]}
            for number, one in enumerate((whole, half), start=1)
        ]
        await asyncio.to_thread(
            client.complete_multipart_upload, **named, MultipartUpload={"Parts": parts}
        )
        await asyncio.to_thread(client.delete_object, Bucket="bucket", Key="source")
        assert await get(client, "copy") == await get(client, "summed") == LARGE
        assert await get(client, "parts") == LARGE + LARGE[1000:1500001]
        assert temporary(tmp_path) == []


async def test_a_source_that_goes_during_a_copy_is_said_to_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = MultipartUploads.incoming
    async with small_endpoint(tmp_path) as (_, client):
        await put(client, "source", LARGE)
        source = {"Bucket": "bucket", "Key": "source"}

        @asynccontextmanager
        async def late(self: MultipartUploads, *args: Any) -> AsyncIterator[Any]:
            await asyncio.to_thread(client.delete_object, Bucket="bucket", Key="source")
            async with append(self, *args) as incoming:
                yield incoming

        monkeypatch.setattr(MultipartUploads, "incoming", late)
        begun = await asyncio.to_thread(client.create_multipart_upload, Bucket="bucket", Key="k")
        named = {"Bucket": "bucket", "Key": "k", "UploadId": begun["UploadId"]}
        with pytest.raises(ClientError, match="OperationAborted"):
            await asyncio.to_thread(
                partial(client.upload_part_copy, **named, PartNumber=1, CopySource=source)
            )
        assert len(temporary(tmp_path)) == 2, "the directory and the record of the upload"


async def test_several_large_bodies_side_by_side_keep_their_bytes(tmp_path: Path) -> None:
    bodies = {f"k{number}": Random(number).randbytes(1_000_000 + number) for number in range(6)}
    async with small_endpoint(tmp_path) as (_, client):
        async with asyncio.TaskGroup() as tasks:
            for key, body in bodies.items():
                tasks.create_task(put(client, key, body))
        for key, body in bodies.items():
            assert await get(client, key) == body
        assert temporary(tmp_path) == []


async def test_a_body_from_a_stream_of_boto3_is_stored(tmp_path: Path) -> None:
    async with small_endpoint(tmp_path) as (_, client):
        await asyncio.to_thread(
            partial(client.put_object, Bucket="bucket", Key="k", Body=io.BytesIO(LARGE))
        )
        assert await get(client, "k") == LARGE


async def test_connections_that_say_nothing_are_bounded(tmp_path: Path) -> None:
    async with endpoint(tmp_path, replace(SETTINGS, connections_max=3)) as url:
        host, port = url.removeprefix("http://").split(":")
        await check_that_more_are_refused(host, int(port), connections_max=3)
