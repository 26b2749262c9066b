"""What somebody tries first who would keep his only copy here: files, pages, filters and guards, by boto3."""

from pathlib import Path
from random import Random
from typing import Any

import pytest
from boto3.s3.transfer import TransferConfig

from tests.s3.conftest import client_of
from tests.s3.raw_request import send, signed_headers
from tests.s3.test_objects import body_of, code_of

pytestmark = pytest.mark.integration

IN_PARTS = TransferConfig(multipart_threshold=5 << 20, multipart_chunksize=5 << 20)
KEYS = [
    "a",
    "a b",
    "a%20b",
    "a&b",
    "a+b",
    "a//3",
    "a/1",
    "<x>",
    "b/",
    "b/c/d",
    "tab\tx",
    "a\r\nb",
    "ü/ä",
    "\ufffe",
    "🙂",
]


@pytest.mark.parametrize("checksums", ["when_required", "when_supported"])
@pytest.mark.parametrize("algorithm", ["", "CRC32", "SHA1", "SHA256"])
def test_files_of_many_parts_come_back_whatever_checksum_they_have(
    url: str, bucket: str, tmp_path: Path, checksums: str, algorithm: str
) -> None:
    client = client_of(
        url, request_checksum_calculation=checksums, response_checksum_validation=checksums
    )
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(Random(1).randbytes((11 << 20) + 5))
    extra = {"ChecksumAlgorithm": algorithm} if algorithm else {}
    client.upload_file(str(source), bucket, "file", ExtraArgs=extra, Config=IN_PARTS)
    client.copy({"Bucket": bucket, "Key": "file"}, bucket, "copied", Config=IN_PARTS)
    client.download_file(bucket, "copied", str(target), Config=IN_PARTS)
    assert target.read_bytes() == source.read_bytes()
    head = client.head_object(Bucket=bucket, Key="file", ChecksumMode="ENABLED")
    expected = algorithm or ("CRC32" if checksums == "when_supported" else "")
    assert [name for name in head if name.startswith("Checksum") and name != "ChecksumType"] == (
        [f"Checksum{expected}"] if expected else []
    )
    client.close()


@pytest.mark.parametrize("delimiter", ["", "/", "b"])
@pytest.mark.parametrize("operation", ["list_objects", "list_objects_v2", "list_object_versions"])
def test_pages_of_any_size_show_every_key_once_in_order(
    client: Any, bucket: str, operation: str, delimiter: str
) -> None:
    for key in KEYS:
        client.put_object(Bucket=bucket, Key=key, Body=b"")
    shown: list[str] = []
    groups: list[str] = []
    for key in sorted(KEYS, key=str.encode):
        place = key.find(delimiter) if delimiter else -1
        (shown if place < 0 else groups).append(key if place < 0 else key[: place + 1])
    groups = list(dict.fromkeys(groups))
    for page_size in (1, 2, 5, 100):
        found: list[str] = []
        prefixes: list[str] = []
        for page in client.get_paginator(operation).paginate(
            Bucket=bucket, Delimiter=delimiter, PaginationConfig={"PageSize": page_size}
        ):
            rows = page.get("Contents", []) + page.get("Versions", [])
            found += [row["Key"] for row in rows]
            prefixes += [row["Prefix"] for row in page.get("CommonPrefixes", [])]
        assert (found, prefixes) == (shown, groups)


def test_a_listing_that_is_not_encoded_can_be_read_whatever_the_keys_are(
    client: Any, url: str, bucket: str
) -> None:
    for key in ("\x01", "\ufffe", "\uffff", "a\rb"):
        client.put_object(Bucket=bucket, Key=key, Body=b"")
    target = f"{url}/{bucket}?list-type=2"
    answer = send("GET", target, signed_headers("GET", target))
    assert answer.body.count(b"<Key>\xef\xbf\xbd</Key>") == 3
    assert b"<Key>a&#13;b</Key>" in answer.body


def test_buckets_are_listed_by_prefix_and_in_pages(client: Any, bucket: str) -> None:
    names = [f"{bucket}-{letter}" for letter in "abc"]
    for name in names:
        client.create_bucket(Bucket=name)
    listed = client.list_buckets(Prefix=f"{bucket}-")
    assert [row["Name"] for row in listed["Buckets"]] == names
    pages = client.get_paginator("list_buckets").paginate(
        Prefix=f"{bucket}-", PaginationConfig={"PageSize": 2}
    )
    assert [[row["Name"] for row in page["Buckets"]] for page in pages] == [names[:2], names[2:]]
    assert client.list_buckets(BucketRegion="eu-west-1")["Buckets"] == []


def test_a_deletion_whose_guard_is_not_known_here_deletes_nothing(client: Any, bucket: str) -> None:
    client.put_object(Bucket=bucket, Key="k", Body=b"0123456789")
    for guard in ({"Size": 3}, {"LastModifiedTime": "2020-01-01T00:00:00Z"}):
        answer = client.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "k", **guard}]})
        assert [row["Code"] for row in answer["Errors"]] == ["NotImplemented"]
    assert body_of(client, Bucket=bucket, Key="k") == b"0123456789"


def test_an_empty_object_has_no_range_but_its_end(client: Any, bucket: str) -> None:
    client.put_object(Bucket=bucket, Key="k", Body=b"")
    for asked in ("bytes=0-0", "bytes=0-", "bytes=5-"):
        refused = code_of(client.get_object, Bucket=bucket, Key="k", Range=asked)
        assert refused == (416, "InvalidRange")
    client.copy_object(Bucket=bucket, Key="copied", CopySource={"Bucket": bucket, "Key": "k"})
    assert body_of(client, Bucket=bucket, Key="copied") == b""
