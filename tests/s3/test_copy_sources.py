"""What a copy is made of: the version and the bytes that were named, or a refusal."""

from typing import Any
from urllib.parse import quote

import pytest

from tests.s3.raw_request import Answer, send, signed_headers
from tests.s3.test_multipart import begin
from tests.s3.test_objects import body_of, code_of

pytestmark = pytest.mark.integration

KEYS = ["a b", "a%20b", "100% x", "x/y%2Fz", "plus+", "\u00fc/%C3%BC"]


def copy(url: str, bucket: str, source: str) -> Answer:
    target = f"{url}/{bucket}/copied"
    headers = {"x-amz-copy-source": source, "x-amz-metadata-directive": "COPY"}
    return send("PUT", target, signed_headers("PUT", target, headers=headers))


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("safe", ["/", ""], ids=["slashes stay", "all is encoded"])
def test_a_source_is_decoded_once_however_much_of_it_is_encoded(
    client: Any, url: str, bucket: str, key: str, safe: str
) -> None:
    for each in KEYS:
        client.put_object(Bucket=bucket, Key=each, Body=each.encode())
    answer = copy(url, bucket, quote(f"{bucket}/{key}", safe=safe))
    assert answer.status == 200, answer.body
    assert body_of(client, Bucket=bucket, Key="copied") == key.encode()


@pytest.mark.parametrize("source", ["", "/", "{}", "{}/", "%2F{}%2F", "{}%2Fa%00", "{}%2F..%2Fa"])
def test_a_source_that_is_none_is_refused(url: str, bucket: str, source: str) -> None:
    answer = copy(url, bucket, source.format(bucket))
    assert (answer.status, answer.code) in {(400, "InvalidArgument"), (400, "InvalidURI")}


@pytest.mark.parametrize("asked", ["bytes=5-10", "bytes=10-12", "bytes=0-99"])
def test_a_part_is_never_copied_shorter_than_it_was_asked_for(
    client: Any, bucket: str, asked: str
) -> None:
    client.put_object(Bucket=bucket, Key="source", Body=b"0123456789")
    upload = begin(client, bucket)
    refused = code_of(
        client.upload_part_copy,
        **upload,
        PartNumber=1,
        CopySource={"Bucket": bucket, "Key": "source"},
        CopySourceRange=asked,
    )
    assert refused == (400, "InvalidArgument")
    assert "Parts" not in client.list_parts(**upload)
