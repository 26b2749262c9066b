"""Multipart uploads through boto3."""

import hashlib
from dataclasses import replace
from typing import Any

import pytest

from segmentstore.s3.checksums import composite_checksum
from segmentstore.s3.object_metadata import note_of_parts
from tests.s3 import raw_request
from tests.s3.test_objects import body_of, code_of
from tier2.volumes.multipart import Part

pytestmark = pytest.mark.integration

MEGABYTE = 1 << 20
PART = bytes(range(256)) * (5 * MEGABYTE // 256)


def begin(client: Any, bucket: str, key: str = "k", **parameters: object) -> dict[str, str]:
    upload = client.create_multipart_upload(Bucket=bucket, Key=key, **parameters)
    return {"Bucket": bucket, "Key": key, "UploadId": upload["UploadId"]}


def send(client: Any, upload: dict[str, str], number: int, body: bytes) -> dict[str, object]:
    answer = client.upload_part(**upload, PartNumber=number, Body=body)
    return {"PartNumber": number, "ETag": answer["ETag"]}


def complete(client: Any, upload: dict[str, str], *parts: dict[str, object], **more: object) -> Any:
    return client.complete_multipart_upload(
        **upload, MultipartUpload={"Parts": list(parts)}, **more
    )


def test_parts_become_one_object(client: Any, bucket: str) -> None:
    upload = begin(client, bucket, ContentType="text/x", Metadata={"a": "1"})
    second = send(client, upload, 7, b"the end")
    first = send(client, upload, 2, PART)
    done = complete(client, upload, first, second)
    md5 = hashlib.md5(hashlib.md5(PART).digest() + hashlib.md5(b"the end").digest()).hexdigest()
    assert done["ETag"] == f'"{md5}-2"'
    assert body_of(client, Bucket=bucket, Key="k") == PART + b"the end"
    head = client.head_object(Bucket=bucket, Key="k")
    assert (head["ContentType"], head["Metadata"], head["ETag"]) == (
        "text/x",
        {"a": "1"},
        done["ETag"],
    )
    assert code_of(client.list_parts, **upload) == (404, "NoSuchUpload")
    assert "Uploads" not in client.list_multipart_uploads(Bucket=bucket)


def test_a_part_that_is_sent_again_replaces_the_first(client: Any, bucket: str) -> None:
    upload = begin(client, bucket)
    stale = send(client, upload, 1, b"first")
    fresh = send(client, upload, 1, b"second")
    refused = code_of(
        client.complete_multipart_upload, **upload, MultipartUpload={"Parts": [stale]}
    )
    assert refused == (400, "InvalidPart")
    complete(client, upload, fresh)
    assert body_of(client, Bucket=bucket, Key="k") == b"second"


def test_completions_that_cannot_be_are_refused_and_the_upload_stays(
    client: Any, bucket: str
) -> None:
    upload = begin(client, bucket)
    small, large = send(client, upload, 1, b"small"), send(client, upload, 2, PART)
    for parts, expected in (
        ([small, large], "EntityTooSmall"),
        ([large, small], "InvalidPartOrder"),
        ([large, large], "InvalidPartOrder"),
        ([{"PartNumber": 3, "ETag": "x"}], "InvalidPart"),
        ([], "MalformedXML"),
    ):
        refused = code_of(
            client.complete_multipart_upload, **upload, MultipartUpload={"Parts": parts}
        )
        assert refused == (400, expected)
    complete(client, upload, large)
    assert body_of(client, Bucket=bucket, Key="k") == PART


def test_a_completion_meets_its_condition_or_changes_nothing(client: Any, bucket: str) -> None:
    client.put_object(Bucket=bucket, Key="k", Body=b"before")
    upload = begin(client, bucket)
    part = send(client, upload, 1, b"after")
    order = {"MultipartUpload": {"Parts": [part]}}
    refused = code_of(client.complete_multipart_upload, **upload, **order, IfNoneMatch="*")
    assert refused == (412, "PreconditionFailed")
    assert body_of(client, Bucket=bucket, Key="k") == b"before"
    client.delete_object(Bucket=bucket, Key="k")
    complete(client, upload, part, IfNoneMatch="*")
    assert body_of(client, Bucket=bucket, Key="k") == b"after"


def test_an_aborted_upload_is_gone(client: Any, bucket: str) -> None:
    upload = begin(client, bucket)
    part = send(client, upload, 1, b"x")
    client.abort_multipart_upload(**upload)
    assert code_of(client.abort_multipart_upload, **upload) == (404, "NoSuchUpload")
    assert code_of(client.upload_part, **upload, PartNumber=1, Body=b"x") == (404, "NoSuchUpload")
    refused = code_of(client.complete_multipart_upload, **upload, MultipartUpload={"Parts": [part]})
    assert refused == (404, "NoSuchUpload")
    assert client.list_objects_v2(Bucket=bucket)["KeyCount"] == 0


def test_parts_and_uploads_are_listed_page_by_page(client: Any, bucket: str) -> None:
    uploads = [begin(client, bucket, key) for key in ("a", "b/1", "b/2", "c", "c")]
    for number in (1, 2, 3):
        send(client, uploads[0], number, b"%d" % number)
    page = client.list_parts(**uploads[0], MaxParts=2)
    assert [part["PartNumber"] for part in page["Parts"]] == [1, 2]
    rest = client.list_parts(**uploads[0], PartNumberMarker=page["NextPartNumberMarker"])
    assert [(part["PartNumber"], part["Size"]) for part in rest["Parts"]] == [(3, 1)]
    found: list[tuple[str, str]] = []
    marker: dict[str, str] = {}
    while True:
        listed = client.list_multipart_uploads(Bucket=bucket, MaxUploads=2, **marker)
        found += [(row["Key"], row["UploadId"]) for row in listed["Uploads"]]
        if not listed["IsTruncated"]:
            break
        marker = {
            "KeyMarker": listed["NextKeyMarker"],
            "UploadIdMarker": listed["NextUploadIdMarker"],
        }
    assert sorted(found) == sorted((each["Key"], each["UploadId"]) for each in uploads)
    rolled = client.list_multipart_uploads(Bucket=bucket, Delimiter="/")
    assert [row["Prefix"] for row in rolled["CommonPrefixes"]] == ["b/"]


def test_an_empty_marker_shows_parts_from_the_first_on(client: Any, url: str, bucket: str) -> None:
    upload = begin(client, bucket)
    send(client, upload, 1, b"x")
    target = f"{url}/{bucket}/k?part-number-marker=&uploadId={upload['UploadId']}"
    answer = raw_request.send("GET", target, raw_request.signed_headers("GET", target))
    assert b"<PartNumberMarker>0</PartNumberMarker>" in answer.body
    assert b"<PartNumber>1</PartNumber>" in answer.body


def test_uploads_of_one_key_that_are_aborted_page_by_page_are_all_shown(
    client: Any, bucket: str
) -> None:
    uploads = [begin(client, bucket, key) for key in ("a", "k", "k", "k", "k", "k", "z")]
    pages = client.get_paginator("list_multipart_uploads")
    found = []
    for page in pages.paginate(Bucket=bucket, PaginationConfig={"PageSize": 2}):
        for row in page.get("Uploads", []):
            found.append(row["UploadId"])
            client.abort_multipart_upload(Bucket=bucket, Key=row["Key"], UploadId=row["UploadId"])
    assert sorted(found) == sorted(upload["UploadId"] for upload in uploads)
    behind = [begin(client, bucket, key) for key in ("k", "k", "z")][2:]
    listed = client.list_multipart_uploads(Bucket=bucket, KeyMarker="k")["Uploads"]
    assert [row["UploadId"] for row in listed] == [behind[0]["UploadId"]]


def test_parts_are_copied_from_ranges_of_objects(client: Any, bucket: str) -> None:
    client.put_object(Bucket=bucket, Key="source", Body=PART + b"tail")
    upload = begin(client, bucket)
    parts = []
    for number, first, last in ((1, 0, len(PART) - 1), (2, 2, 5)):
        answer = client.upload_part_copy(
            **upload,
            PartNumber=number,
            CopySource={"Bucket": bucket, "Key": "source"},
            CopySourceRange=f"bytes={first}-{last}",
        )
        parts.append({"PartNumber": number, "ETag": answer["CopyPartResult"]["ETag"]})
    complete(client, upload, *parts)
    assert body_of(client, Bucket=bucket, Key="k") == PART + PART[2:6]


def test_an_object_of_parts_has_the_checksum_of_their_checksums(client: Any, bucket: str) -> None:
    upload = begin(client, bucket, ChecksumAlgorithm="CRC32C")
    answer = client.upload_part(
        **upload, PartNumber=1, Body=b"123456789", ChecksumCRC32C="4waSgw=="
    )
    part = {"PartNumber": 1, "ETag": answer["ETag"], "ChecksumCRC32C": "4waSgw=="}
    done = complete(client, upload, part)
    assert done["ChecksumCRC32C"] == composite_checksum("crc32c", ["4waSgw=="])
    head = client.head_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")
    assert (head["ChecksumCRC32C"], head["ChecksumType"]) == (done["ChecksumCRC32C"], "COMPOSITE")


def test_boto3_uploads_and_downloads_files_of_many_parts(
    client: Any, bucket: str, tmp_path: Any
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(PART * 4 + b"tail")
    client.upload_file(str(source), bucket, "file")
    client.download_file(bucket, "file", str(target))
    assert target.read_bytes() == source.read_bytes()


def test_an_object_is_read_by_its_parts(client: Any, bucket: str) -> None:
    upload = begin(client, bucket, ChecksumAlgorithm="CRC32", ChecksumType="FULL_OBJECT")
    pieces = [PART, PART, b"x" + PART, b"the end"]
    sent = [send(client, upload, 3 * number, body) for number, body in enumerate(pieces, 1)]
    done = complete(client, upload, *sent)
    start, size = 0, sum(map(len, pieces))
    for number, body in enumerate(pieces, 1):
        asked = {"Bucket": bucket, "Key": "k", "PartNumber": number, "ChecksumMode": "ENABLED"}
        answer, head = client.get_object(**asked), client.head_object(**asked)
        assert answer["Body"].read() == body
        for shown in (answer, head):
            assert shown["ResponseMetadata"]["HTTPStatusCode"] == 206
            assert shown["ContentRange"] == f"bytes {start}-{start + len(body) - 1}/{size}"
            assert (shown["PartsCount"], shown["ETag"]) == (4, done["ETag"])
            assert shown["ContentLength"] == len(body)
            assert "ChecksumCRC32" not in shown  # it is that of the whole
        start += len(body)
    assert code_of(client.get_object, Bucket=bucket, Key="k", PartNumber=5) == (
        416,
        "InvalidPartNumber",
    )
    assert code_of(client.get_object, Bucket=bucket, Key="k", PartNumber=0) == (
        400,
        "InvalidArgument",
    )
    both = code_of(client.get_object, Bucket=bucket, Key="k", PartNumber=1, Range="bytes=0-1")
    assert both == (400, "InvalidRequest")


def test_a_last_part_without_bytes_is_read_as_one(client: Any, bucket: str) -> None:
    """As uploads end whose client learns late that nothing more comes. No Content-Range could say where it is."""
    upload = begin(client, bucket)
    complete(client, upload, send(client, upload, 1, PART), send(client, upload, 2, b""))
    for ask in (client.get_object, client.head_object):
        answer = ask(Bucket=bucket, Key="k", PartNumber=2)
        assert (answer["ContentLength"], answer["PartsCount"]) == (0, 2)
        assert "ContentRange" not in answer
    assert client.get_object(Bucket=bucket, Key="k", PartNumber=1)["Body"].read() == PART


def test_attributes_of_an_object_are_those_that_are_asked_for(
    client: Any, url: str, bucket: str
) -> None:
    upload = begin(client, bucket, ChecksumAlgorithm="CRC32")
    sent = [send(client, upload, number, body) for number, body in ((1, PART), (2, b"the end"))]
    parts = client.list_parts(**upload)["Parts"]
    done = complete(
        client,
        upload,
        *(
            {**part, "ChecksumCRC32": row["ChecksumCRC32"]}
            for part, row in zip(sent, parts, strict=True)
        ),
    )
    names = ["ETag", "Checksum", "ObjectParts", "StorageClass", "ObjectSize"]
    asked = {"Bucket": bucket, "Key": "k"}
    shown = client.get_object_attributes(**asked, ObjectAttributes=names)
    assert shown["ETag"] == done["ETag"].strip('"')
    value = done["ChecksumCRC32"].partition("-")[0]
    assert shown["Checksum"] == {"ChecksumCRC32": value, "ChecksumType": "COMPOSITE"}
    assert shown["ObjectParts"] == {"TotalPartsCount": 2}
    assert (shown["StorageClass"], shown["ObjectSize"]) == ("STANDARD", len(PART) + 7)
    assert shown["LastModified"] == client.head_object(**asked)["LastModified"]
    size = client.get_object_attributes(**asked, ObjectAttributes=["ObjectSize"])
    assert set(size) == {"ObjectSize", "LastModified", "ResponseMetadata"}
    target = f"{url}/{bucket}/k?attributes="
    for named in ({}, {"x-amz-object-attributes": "ETag,Owner"}):
        headers = raw_request.signed_headers("GET", target, headers=named)
        answer = raw_request.send("GET", target, headers)
        assert (answer.status, answer.code) == (400, "InvalidArgument")


@pytest.mark.parametrize("body", [b"", b"x", PART])
def test_an_object_that_came_as_one_has_one_part(client: Any, bucket: str, body: bytes) -> None:
    client.put_object(Bucket=bucket, Key="k", Body=body, ChecksumAlgorithm="CRC32")
    answer = client.get_object(Bucket=bucket, Key="k", PartNumber=1, ChecksumMode="ENABLED")
    assert answer["Body"].read() == body
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == (206 if body else 200)
    assert "PartsCount" not in answer
    assert "ChecksumCRC32" in answer
    second = code_of(client.get_object, Bucket=bucket, Key="k", PartNumber=2)
    assert second == (416, "InvalidPartNumber")
    etag = client.head_object(Bucket=bucket, Key="k")["ETag"]
    stale = code_of(client.get_object, Bucket=bucket, Key="k", PartNumber=1, IfMatch='"other"')
    assert stale == (412, "PreconditionFailed")
    client.get_object(Bucket=bucket, Key="k", PartNumber=1, IfMatch=etag)


def test_a_copy_of_parts_is_an_object_of_one_part(client: Any, bucket: str) -> None:
    upload = begin(client, bucket)
    complete(client, upload, send(client, upload, 1, PART), send(client, upload, 2, b"the end"))
    client.copy_object(Bucket=bucket, Key="copy", CopySource={"Bucket": bucket, "Key": "k"})
    answer = client.get_object(Bucket=bucket, Key="copy", PartNumber=1)
    assert answer["Body"].read() == PART + b"the end"
    assert "PartsCount" not in answer


def test_lengths_of_parts_that_would_fill_the_index_are_not_kept() -> None:
    equal = [Part(number, 5 << 20, "", crc32=0, stored_ms=0) for number in range(10_000)]
    assert note_of_parts(equal) == {"u:parts": "5242880x10000"}
    assert note_of_parts([replace(part, length=part.number) for part in equal]) == {}
