"""What a request meets that others change while it is under way."""

import asyncio
import socket
from collections import Counter
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore.exceptions import ClientError

from segmentstore.s3.buckets import BucketRecord, Buckets
from segmentstore.s3.settings import EndpointSettings
from tests.s3.conftest import client_of, endpoint
from tests.s3.raw_request import signed_headers

pytestmark = pytest.mark.integration

BODY = b"of a slow client"


class SlowPut:
    """Its head and a part of its body are sent; `end` sends the rest."""

    def __init__(self, url: str, path: str, headers: dict[str, str] | None = None) -> None:
        where = urlsplit(url)
        signed = signed_headers("PUT", url + path, headers=headers)
        head = "".join(f"{name}: {value}\r\n" for name, value in signed.items())
        self._connection = socket.create_connection((where.hostname, where.port))
        self._connection.sendall(
            f"PUT {path} HTTP/1.1\r\nHost: {where.netloc}\r\nExpect: 100-continue\r\n"
            f"Content-Length: {len(BODY)}\r\n{head}\r\n".encode()
        )
        assert b"100 Continue" in self._connection.recv(1000)
        self._connection.sendall(BODY[:5])

    def end(self) -> int:
        self._connection.sendall(BODY[5:])
        status = int(self._connection.recv(1000).split()[1])
        self._connection.close()
        return status


def test_a_put_that_ends_after_versioning_was_enabled_destroys_nothing(
    client: Any, url: str, bucket: str
) -> None:
    client.put_object(Bucket=bucket, Key="k", Body=b"precious")
    slow = SlowPut(url, f"/{bucket}/k")
    status = {"Status": "Enabled"}
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration=status)
    assert slow.end() == 200
    found = [
        client.get_object(Bucket=bucket, Key="k", VersionId=row["VersionId"])["Body"].read()
        for row in client.list_object_versions(Bucket=bucket)["Versions"]
    ]
    assert sorted(found) == [BODY, b"precious"]


def test_a_put_that_ends_after_a_default_retention_was_set_has_it(
    client: Any, url: str, bucket: str
) -> None:
    locked = f"{bucket}-default"
    client.create_bucket(Bucket=locked, ObjectLockEnabledForBucket=True)
    slow = SlowPut(url, f"/{locked}/k")
    rule = {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": 9}}
    client.put_object_lock_configuration(
        Bucket=locked,
        ObjectLockConfiguration={"ObjectLockEnabled": "Enabled", "Rule": rule},
    )
    assert slow.end() == 200
    assert client.head_object(Bucket=locked, Key="k")["ObjectLockMode"] == "GOVERNANCE"


@pytest.mark.parametrize(
    "asked",
    [{}, {"Range": "bytes=0-9"}, {"IfNoneMatch": '"other"'}, {"Range": "bytes=10-"}],
    ids=str,
)
@pytest.mark.parametrize("size", [100, 5000])
async def test_no_read_fails_because_others_overwrite_what_it_reads(
    tmp_path: Path, asked: dict[str, str], size: int
) -> None:
    settings = EndpointSettings(port=0, first_window_bytes=1000, window_bytes=1000)
    async with endpoint(tmp_path, settings) as url:
        client = client_of(url)
        await asyncio.to_thread(client.create_bucket, Bucket="bucket")
        await asyncio.to_thread(client.put_object, Bucket="bucket", Key="k", Body=b"x" * size)
        stop = Event()

        def write(number: int) -> None:
            mine = client_of(url)
            while not stop.is_set():
                mine.put_object(Bucket="bucket", Key="k", Body=b"%d" % number * size)
            mine.close()

        def read() -> Counter[str]:
            answers: Counter[str] = Counter()
            for _ in range(150):
                try:
                    body = client.get_object(Bucket="bucket", Key="k", **asked)["Body"].read()
                    answers["mixed" if len(set(body)) > 1 else "right"] += 1
                except ClientError as error:
                    answers[error.response["Error"]["Code"]] += 1
            return answers

        writers = [asyncio.create_task(asyncio.to_thread(write, number)) for number in range(3)]
        try:
            assert await asyncio.to_thread(read) == {"right": 150}
        finally:
            stop.set()
            await asyncio.gather(*writers)
        client.close()


def test_a_page_of_no_uploads_is_the_last(client: Any, url: str, bucket: str) -> None:
    upload = client.create_multipart_upload(Bucket=bucket, Key="k")["UploadId"]
    named = {"Bucket": bucket, "Key": "k", "UploadId": upload}
    client.upload_part(**named, PartNumber=1, Body=b"x")
    assert not client.list_multipart_uploads(Bucket=bucket, MaxUploads=0)["IsTruncated"]
    assert not client.list_parts(**named, MaxParts=0)["IsTruncated"]


@pytest.mark.parametrize("first", ["lock", "suspend"])
async def test_of_a_lock_and_an_end_of_versioning_at_once_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    store, both = Buckets._store, asyncio.Event()
    made: list[Buckets] = []

    async def held(self: Buckets, name: str, record: BucketRecord) -> None:
        made.append(self)
        await both.wait()
        await store(self, name, record)

    async with endpoint(tmp_path, EndpointSettings(port=0)) as url:
        client = client_of(url)
        await asyncio.to_thread(client.create_bucket, Bucket="bucket")
        enabled = {"Bucket": "bucket", "VersioningConfiguration": {"Status": "Enabled"}}
        await asyncio.to_thread(client.put_bucket_versioning, **enabled)
        suspended = {"Bucket": "bucket", "VersioningConfiguration": {"Status": "Suspended"}}
        locked = {"Bucket": "bucket", "ObjectLockConfiguration": {"ObjectLockEnabled": "Enabled"}}
        calls = [
            partial(client.put_object_lock_configuration, **locked),
            partial(client.put_bucket_versioning, **suspended),
        ]
        monkeypatch.setattr(Buckets, "_store", held)
        if first == "suspend":
            calls.reverse()
        outcomes = [asyncio.ensure_future(asyncio.to_thread(calls[0]))]
        async with asyncio.timeout(60):
            while not made:
                await asyncio.sleep(0.001)
            outcomes.append(asyncio.ensure_future(asyncio.to_thread(calls[1])))
            while not made[0]._changing._waiters:
                await asyncio.sleep(0.001)
        both.set()
        one, other = await asyncio.gather(*outcomes, return_exceptions=True)
        assert not isinstance(one, BaseException)
        assert isinstance(other, ClientError)
        assert other.response["Error"]["Code"] == "InvalidBucketState"
        client.close()
