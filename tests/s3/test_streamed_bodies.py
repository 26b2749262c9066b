"""Bodies in signed and unsigned chunks, with and without trailing headers, right and wrong."""

import hashlib
from collections.abc import Sequence
from typing import Any

import pytest

from segmentstore.s3.authentication import chunk_signature, trailer_signature
from segmentstore.s3.checksums import checksum_text
from tests.s3.raw_request import Answer, seed_of, send, signed_headers
from tests.s3.test_objects import body_of

pytestmark = pytest.mark.integration

SIGNED = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
SIGNED_TRAILER = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"
UNSIGNED_TRAILER = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
CHUNKS = (b"a" * 65536, b"b" * 100_000, b"c" * 5)
WHOLE = b"".join(CHUNKS)


def put_in_chunks(
    url: str,
    payload: str,
    chunks: Sequence[bytes] = CHUNKS,
    *,
    declared: int | None = None,
    trailer: str = "",
    algorithm: str = "crc32c",
    spoil_chunk: int | None = None,
    spoil_trailer: bool = False,
    trailer_end: str = "\r\n",
    cut: int = 0,
) -> Answer:
    length = sum(len(chunk) for chunk in chunks) if declared is None else declared
    headers = {"x-amz-decoded-content-length": str(length), "Content-Encoding": "aws-chunked"}
    if trailer:
        headers["x-amz-trailer"] = f"x-amz-checksum-{algorithm}"
    headers = signed_headers("PUT", url, payload, headers)
    by = seed_of(headers, payload)
    body, previous = b"", by.signature
    for number, chunk in enumerate([*chunks, b""]):
        previous = chunk_signature(
            by.signing_key,
            timestamp=by.timestamp,
            scope=by.scope,
            previous=previous,
            chunk_sha256=hashlib.sha256(chunk).hexdigest(),
        )
        shown = "0" * 64 if number == spoil_chunk else previous
        extension = "" if payload == UNSIGNED_TRAILER else f";chunk-signature={shown}"
        body += f"{len(chunk):x}{extension}\r\n".encode() + chunk
        body += b"\r\n" if chunk else b""
    if trailer:
        body += f"x-amz-checksum-{algorithm}:{trailer}{trailer_end}".encode()
    if payload == SIGNED_TRAILER:
        signature = trailer_signature(
            by.signing_key,
            timestamp=by.timestamp,
            scope=by.scope,
            previous=previous,
            trailer=f"x-amz-checksum-{algorithm}:{trailer}\n".encode(),
        )
        shown = "0" * 64 if spoil_trailer else signature
        body += f"x-amz-trailer-signature:{shown}\r\n".encode()
    body += b"\r\n"
    whole = len(body)
    return send("PUT", url, headers, body[: whole - cut], length=whole, cut_off=cut > 0)


CHECKSUM = checksum_text("crc32c", [WHOLE])


@pytest.mark.parametrize(
    ("payload", "trailer"), [(SIGNED, ""), (SIGNED_TRAILER, CHECKSUM), (UNSIGNED_TRAILER, CHECKSUM)]
)
def test_a_body_in_chunks_is_stored_as_their_bytes(
    client: Any, url: str, bucket: str, payload: str, trailer: str
) -> None:
    answer = put_in_chunks(f"{url}/{bucket}/k", payload, trailer=trailer)
    assert answer.status == 200, answer.body
    assert body_of(client, Bucket=bucket, Key="k") == WHOLE
    head = client.head_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")
    assert head.get("ChecksumCRC32C", "") == trailer
    assert "ContentEncoding" not in head


@pytest.mark.parametrize("payload", [SIGNED_TRAILER, UNSIGNED_TRAILER])
def test_a_trailing_header_may_end_as_it_is_signed_with_its_block_closed_behind_it(
    client: Any, url: str, bucket: str, payload: str
) -> None:
    """As MinIO's clients send it."""
    answer = put_in_chunks(f"{url}/{bucket}/k", payload, trailer=CHECKSUM, trailer_end="\n\r\n")
    assert answer.status == 200, answer.body
    assert answer.headers.get("Connection", "") != "close", "all of the body was read"
    assert body_of(client, Bucket=bucket, Key="k") == WHOLE
    head = client.head_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")
    assert head["ChecksumCRC32C"] == CHECKSUM


def test_an_empty_body_in_chunks_is_an_empty_object(client: Any, url: str, bucket: str) -> None:
    assert put_in_chunks(f"{url}/{bucket}/k", SIGNED, []).status == 200
    assert body_of(client, Bucket=bucket, Key="k") == b""


@pytest.mark.parametrize(
    ("payload", "wrong", "expected"),
    [
        (SIGNED, {"spoil_chunk": 0}, "SignatureDoesNotMatch"),
        (SIGNED, {"spoil_chunk": 2}, "SignatureDoesNotMatch"),
        (SIGNED, {"spoil_chunk": 3}, "SignatureDoesNotMatch"),
        (SIGNED, {"declared": len(WHOLE) + 1}, "IncompleteBody"),
        (SIGNED, {"declared": len(WHOLE) - 1}, "IncompleteBody"),
        (SIGNED, {"cut": 100}, ""),
        (SIGNED_TRAILER, {"trailer": CHECKSUM, "spoil_trailer": True}, "SignatureDoesNotMatch"),
        (SIGNED_TRAILER, {"trailer": "AAAAAA=="}, "BadDigest"),
        (UNSIGNED_TRAILER, {"trailer": "AAAAAA=="}, "BadDigest"),
        ("STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD", {}, "NotImplemented"),
    ],
)
def test_a_wrong_body_in_chunks_stores_nothing(
    client: Any, url: str, bucket: str, payload: str, wrong: dict[str, Any], expected: str
) -> None:
    answer = put_in_chunks(f"{url}/{bucket}/k", payload, **wrong)
    assert answer.code == expected, answer.body
    assert client.list_objects_v2(Bucket=bucket)["KeyCount"] == 0


@pytest.mark.parametrize(
    "body",
    [
        b"zz\r\n",
        b"-5\r\nabcde\r\n0\r\n\r\n",
        b"5\r\nabcdeXX0\r\n\r\n",
        b"5" * 9000,
        b"\r\n",
        b"\xff\r\n",
    ],
)
def test_what_is_no_chunk_is_refused(client: Any, url: str, bucket: str, body: bytes) -> None:
    target = f"{url}/{bucket}/k"
    headers = signed_headers("PUT", target, UNSIGNED_TRAILER, {"x-amz-decoded-content-length": "5"})
    answer = send("PUT", target, headers, body)
    assert (answer.status, answer.code) == (400, "IncompleteBody")
    assert client.list_objects_v2(Bucket=bucket)["KeyCount"] == 0
