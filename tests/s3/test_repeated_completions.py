"""A completion whose answer was lost is answered again, and does nothing again."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.s3.conftest import Process, client_of
from tests.s3.test_multipart import PART, begin, complete, send
from tests.s3.test_objects import body_of, code_of

pytestmark = pytest.mark.integration


def answer_of(done: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in done.items() if name != "ResponseMetadata"}


def versions_of(client: Any, bucket: str) -> list[str]:
    rows = client.list_object_versions(Bucket=bucket).get("Versions", [])
    return [row["VersionId"] for row in rows]


@pytest.fixture(params=["", "Enabled", "Suspended"])
def versioning(request: pytest.FixtureRequest, client: Any, bucket: str) -> str:
    if request.param:
        client.put_bucket_versioning(
            Bucket=bucket, VersioningConfiguration={"Status": request.param}
        )
    return str(request.param)


def test_a_repeated_completion_has_the_same_answer(
    client: Any, bucket: str, versioning: str
) -> None:
    upload = begin(client, bucket, ChecksumAlgorithm="CRC32C", Metadata={"a": "1"})
    answer = client.upload_part(
        **upload, PartNumber=1, Body=b"123456789", ChecksumCRC32C="4waSgw=="
    )
    part = {"PartNumber": 1, "ETag": answer["ETag"], "ChecksumCRC32C": "4waSgw=="}
    done = complete(client, upload, part, IfNoneMatch="*", MpuObjectSize=9)
    again = complete(client, upload, part, IfNoneMatch="*", MpuObjectSize=9)
    assert answer_of(again) == answer_of(done)
    assert ("VersionId" in done) == bool(versioning)
    assert versions_of(client, bucket) == [done.get("VersionId", "null")]
    assert body_of(client, Bucket=bucket, Key="k") == b"123456789"
    assert code_of(client.list_parts, **upload) == (404, "NoSuchUpload")


def test_a_repeat_that_says_something_else_is_refused(
    client: Any, bucket: str, versioning: str
) -> None:
    upload = begin(client, bucket)
    first, second = send(client, upload, 1, PART), send(client, upload, 3, b"the end")
    complete(client, upload, first, second)
    for parts in (
        [first],
        [first, {**second, "PartNumber": 2}],
        [first, {**second, "ETag": first["ETag"]}],
        [first, {**second, "ChecksumCRC32": "AAAAAA=="}],
    ):
        order = {"MultipartUpload": {"Parts": parts}}
        refused = code_of(client.complete_multipart_upload, **upload, **order)
        assert refused == (400, "InvalidPart")
    order = {"MultipartUpload": {"Parts": [first, second]}}
    for wrong in ({"MpuObjectSize": 5}, {"ChecksumSHA256": "A" * 43 + "="}):
        refused = code_of(client.complete_multipart_upload, **upload, **order, **wrong)
        assert refused == (400, "InvalidRequest")
    other = {**upload, "Key": "other"}
    assert code_of(client.complete_multipart_upload, **other, **order) == (404, "NoSuchUpload")


def test_a_repeat_is_answered_as_long_as_the_object_is_there(
    client: Any, bucket: str, versioning: str
) -> None:
    upload = begin(client, bucket)
    part = send(client, upload, 1, b"of parts")
    done = complete(client, upload, part)
    client.put_object(Bucket=bucket, Key="k", Body=b"later")
    order = {"MultipartUpload": {"Parts": [part]}}
    if versioning == "Enabled":
        assert answer_of(complete(client, upload, part)) == answer_of(done)
        client.delete_object(Bucket=bucket, Key="k")
        assert answer_of(complete(client, upload, part)) == answer_of(done)
        client.delete_object(Bucket=bucket, Key="k", VersionId=done["VersionId"])
    refused = code_of(client.complete_multipart_upload, **upload, **order)
    assert refused == (404, "NoSuchUpload")
    if versioning != "Enabled":
        assert body_of(client, Bucket=bucket, Key="k") == b"later"


@pytest.mark.parametrize("upload_id", ["x", "null", "\u00fc", "\0", "a" * 600, "0" * 32])
def test_a_completion_of_what_was_never_begun_is_told_so(
    client: Any, bucket: str, upload_id: str
) -> None:
    client.put_object(Bucket=bucket, Key="k", Body=b"there")
    order = {"MultipartUpload": {"Parts": [{"PartNumber": 1, "ETag": "x"}]}}
    upload = {"Bucket": bucket, "Key": "k", "UploadId": upload_id}
    refused = code_of(client.complete_multipart_upload, **upload, **order)
    assert refused == (404, "NoSuchUpload")


def test_nobody_sees_which_upload_an_object_was_and_a_copy_is_none(
    client: Any, bucket: str, versioning: str
) -> None:
    upload = begin(client, bucket, Metadata={"a": "1"})
    part = send(client, upload, 1, b"of parts")
    done = complete(client, upload, part)
    head = client.head_object(Bucket=bucket, Key="k")
    assert head["Metadata"] == {"a": "1"}
    assert "order" not in str(head)
    if not versioning:
        assert upload["UploadId"] not in str(head)
    # The copy takes the place of the object: what was uploaded is gone, unless it has a version of its own.
    client.copy_object(
        Bucket=bucket,
        Key="copied",
        CopySource={"Bucket": bucket, "Key": "k"},
    )
    client.delete_object(
        Bucket=bucket, Key="k", **({"VersionId": done["VersionId"]} if versioning else {})
    )
    client.copy_object(Bucket=bucket, Key="k", CopySource={"Bucket": bucket, "Key": "copied"})
    order = {"MultipartUpload": {"Parts": [part]}}
    refused = code_of(client.complete_multipart_upload, **upload, **order)
    assert refused == (404, "NoSuchUpload")


def test_completions_at_the_same_time_have_one_answer_and_make_one_version(
    url: str, client: Any, bucket: str
) -> None:
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    upload = begin(client, bucket)
    parts = [send(client, upload, number, PART) for number in (1, 2, 3)]
    clients = [client_of(url) for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        done = list(threads.map(lambda one: answer_of(complete(one, upload, *parts)), clients))
    assert done == [done[0]] * 4
    assert versions_of(client, bucket) == [done[0]["VersionId"]]
    for one in clients:
        one.close()


@pytest.mark.parametrize("versioned", [False, True])
@pytest.mark.parametrize("cut_off", [False, True], ids=["whole", "cut off"])
def test_a_completion_is_answered_again_after_kill_9(
    process: Process, tmp_path: Path, versioned: bool, cut_off: bool
) -> None:
    """`cut off`: the process ended behind the object and before the end of its upload."""
    client = client_of(process.start())
    client.create_bucket(Bucket="uploads")
    if versioned:
        client.put_bucket_versioning(
            Bucket="uploads", VersioningConfiguration={"Status": "Enabled"}
        )
    upload = begin(client, "uploads")
    parts = [send(client, upload, 1, PART), send(client, upload, 2, b"the end")]
    temporary = process.directory / "tier2" / "temp" / upload["UploadId"]
    shutil.copytree(temporary, tmp_path / "aside")
    done = complete(client, upload, *parts)
    client.close()
    process.kill()
    if cut_off:
        shutil.copytree(tmp_path / "aside", temporary)

    client = client_of(process.start())
    assert "Uploads" not in client.list_multipart_uploads(Bucket="uploads")
    again = complete(client, upload, *parts)
    assert again["ETag"] == done["ETag"]
    assert again.get("VersionId") == done.get("VersionId")
    assert versions_of(client, "uploads") == [done.get("VersionId", "null")]
    assert body_of(client, Bucket="uploads", Key="k") == PART + b"the end"
    client.close()
    assert process.stop() == 0
