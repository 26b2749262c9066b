"""The endpoint as a process: what it says, where its keys are, and what is there after kill -9."""

import http.client
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from time import sleep
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

from segmentstore.s3.settings import EndpointSettings
from tests.s3.conftest import Process, client_of
from tests.s3.raw_request import signed_headers
from tests.s3.test_multipart import PART, begin, complete, send
from tests.s3.test_objects import body_of

pytestmark = pytest.mark.integration

WRITERS = 6


def bytes_of(writer: int, number: int) -> bytes:
    size = (10, 5_000, 200_000)[number % 3]
    return (b"%d of %d;" % (number, writer) * (size // 8 + 1))[:size]


def write_until_it_is_gone(url: str, writer: int, acknowledged: list[tuple[int, int]]) -> None:
    client = client_of(url)
    for number in range(10_000):
        try:
            client.put_object(
                Bucket="objects", Key=f"{writer}/{number}", Body=bytes_of(writer, number)
            )
        except (ClientError, BotoCoreError, HTTPClientError):
            break
        acknowledged.append((writer, number))
    client.close()


def test_h72_every_acknowledged_object_is_there_after_kill_9(process: Process) -> None:
    acknowledged: list[tuple[int, int]] = []
    for _life in range(3):
        acknowledged.clear()
        url = process.start()
        client = client_of(url)
        if "objects" not in [row["Name"] for row in client.list_buckets()["Buckets"]]:
            client.create_bucket(Bucket="objects")
        client.close()
        with ThreadPoolExecutor(WRITERS) as threads:
            writing = [
                threads.submit(write_until_it_is_gone, url, writer, acknowledged)
                for writer in range(WRITERS)
            ]
            while len(acknowledged) < 60:
                assert not any(future.done() for future in writing)
                sleep(0.01)
            process.kill()
            for future in writing:
                future.result()
        client = client_of(process.start())
        for writer, number in acknowledged:
            found = body_of(client, Bucket="objects", Key=f"{writer}/{number}")
            assert found == bytes_of(writer, number)
        client.close()
        assert process.stop() == 0


def test_an_upload_goes_on_after_kill_9_with_the_parts_that_were_acknowledged(
    process: Process,
) -> None:
    client = client_of(process.start())
    client.create_bucket(Bucket="uploads")
    upload = begin(client, "uploads", ContentType="text/x")
    first = send(client, upload, 1, PART)
    send(client, upload, 2, b"replaced")
    second = send(client, upload, 2, b"the end")
    done = begin(client, "uploads", "done")
    complete(client, done, send(client, done, 1, b"done"))
    client.close()
    process.kill()

    client = client_of(process.start())
    assert body_of(client, Bucket="uploads", Key="done") == b"done"
    shown = client.list_parts(**upload)["Parts"]
    assert [(part["PartNumber"], part["ETag"]) for part in shown] == [
        (1, first["ETag"]),
        (2, second["ETag"]),
    ]
    complete(client, upload, first, second)
    assert body_of(client, Bucket="uploads", Key="k") == PART + b"the end"
    assert client.head_object(Bucket="uploads", Key="k")["ContentType"] == "text/x"
    client.close()
    assert process.stop() == 0
    assert list((process.directory / "tier2" / "temp").iterdir()) == []


def test_a_large_body_that_kill_9_cuts_off_leaves_nothing(process: Process) -> None:
    url = process.start()
    client = client_of(url)
    client.create_bucket(Bucket="bucket")
    client.close()
    target = f"{url}/bucket/k"
    length = EndpointSettings().held_body_bytes_max + 1
    temporary = process.directory / "tier2" / "temp"
    with sending_slowly("PUT", target, signed_headers("PUT", target), bytes(20 << 20), length):
        while not any(path.stat().st_size > 10 << 20 for path in temporary.rglob("*.new")):
            sleep(0.01)
        process.kill()
    client = client_of(process.start())
    assert list(temporary.iterdir()) == []
    assert client.list_objects_v2(Bucket="bucket")["KeyCount"] == 0
    client.close()
    assert process.stop() == 0


@contextmanager
def sending_slowly(
    method: str, url: str, headers: Mapping[str, str], body: bytes, length: int
) -> Iterator[None]:
    """A request that declares more than it sends while the block lasts."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    connection.putrequest(method, parts.path)
    for name, value in {**headers, "Content-Length": str(length)}.items():
        connection.putheader(name, value)
    connection.endheaders()
    connection.send(body)
    try:
        yield
    finally:
        connection.close()


def test_buckets_versioning_and_locks_outlive_the_process(process: Process) -> None:
    client = client_of(process.start())
    client.create_bucket(Bucket="locked", ObjectLockEnabledForBucket=True)
    client.put_object(Bucket="locked", Key="k", Body=b"1", ObjectLockLegalHoldStatus="ON")
    client.put_object(Bucket="locked", Key="k", Body=b"2")
    before: Any = client.list_object_versions(Bucket="locked")["Versions"]
    client.close()
    process.kill()
    client = client_of(process.start())
    assert client.get_bucket_versioning(Bucket="locked")["Status"] == "Enabled"
    assert client.list_object_versions(Bucket="locked")["Versions"] == before
    held = client.get_object_legal_hold(Bucket="locked", Key="k", VersionId=before[1]["VersionId"])
    assert held["LegalHold"]["Status"] == "ON"
    client.close()
    assert process.stop() == 0


def run_without_keys(directory: Path, **variables: str) -> "subprocess.Popen[str]":
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("SEGMENTSTORE_S3_")
    }
    command = [sys.executable, "-m", "segmentstore.cli", "s3", "--listen", "127.0.0.1:0"]
    return subprocess.Popen(
        [*command, "--data", str(directory)],
        env={**environment, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_keys_are_made_once_and_readable_by_their_owner_alone(tmp_path: Path) -> None:
    contents: list[str] = []
    path = tmp_path / "s3_credentials.json"
    for expected in (" new keys=", " keys="):
        process = run_without_keys(tmp_path)
        assert process.stdout is not None
        line = process.stdout.readline()
        process.terminate()
        process.communicate(timeout=60)
        assert f"{expected}{path}" in line
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        contents.append(path.read_text())
        assert json.loads(contents[0])["secret_key"] not in line
    assert contents[0] == contents[1]
    path.chmod(0o644)
    process = run_without_keys(tmp_path)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "chmod 600" in errors


def test_half_a_key_pair_is_refused(tmp_path: Path) -> None:
    process = run_without_keys(tmp_path, SEGMENTSTORE_S3_ACCESS_KEY="half")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "SEGMENTSTORE_S3_SECRET_KEY" in errors


def test_a_second_process_does_not_get_the_volumes(process: Process) -> None:
    process.start()
    second = run_without_keys(process.directory)
    _, errors = second.communicate(timeout=60)
    assert second.returncode == 5
    assert "another process has these volumes" in errors
    assert process.stop() == 0
