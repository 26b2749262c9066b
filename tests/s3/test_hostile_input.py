"""Requests that are wrong on purpose: a clear refusal, nothing stored, and the endpoint goes on."""

import asyncio
import hashlib
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from segmentstore.s3.settings import EndpointSettings
from segmentstore.s3.xml_documents import parse
from tests.s3.conftest import endpoint
from tests.s3.raw_request import send, send_bytes, signed_headers
from tests.s3.test_objects import body_of, code_of
from tier2.volumes.engine import VolumeEngine

pytestmark = pytest.mark.integration

BOMB = (
    b'<?xml version="1.0"?><!DOCTYPE Delete [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;">]>'
    b"<Delete><Object><Key>&b;</Key></Object></Delete>"
)
FILE = b'<!DOCTYPE Delete [<!ENTITY x SYSTEM "file:///etc/passwd">]><Delete><Object><Key>&x;</Key></Object></Delete>'


@pytest.fixture(autouse=True)
def _lives_on(client: Any, bucket: str) -> Iterator[None]:
    client.put_object(Bucket=bucket, Key="before", Body=b"before")
    yield
    assert body_of(client, Bucket=bucket, Key="before") == b"before"
    keys = [row["Key"] for row in client.list_objects_v2(Bucket=bucket)["Contents"]]
    assert keys == ["before"]


@pytest.mark.parametrize(
    "body",
    [
        BOMB,
        FILE,
        b"",
        b"not xml",
        b"<Delete>",
        b"<Other/>",
        b"<Delete></Delete>",
        b"<Delete>" + b"<a>" * 100_000,
        b"<Delete>" + b"<Object/>" * 60_000 + b"</Delete>",
        b"<Delete><Object><Key></Key></Object></Delete>",
        b'<?xml version="1.0" encoding="nonsense"?><Delete/>',
        b"\x00\xff\xfe",
        b"<Delete>" + b"<Object><Key>k</Key></Object>" * 1001 + b"</Delete>",
    ],
    ids=range(13),
)
def test_a_document_that_cannot_be_used_is_refused(url: str, bucket: str, body: bytes) -> None:
    target = f"{url}/{bucket}?delete="
    payload = hashlib.sha256(body).hexdigest()
    answer = send("POST", target, signed_headers("POST", target, payload), body)
    assert (answer.status, answer.code) == (400, "MalformedXML")


def test_a_document_of_much_text_in_many_pieces_is_read_in_one_go() -> None:
    # Seconds, in which nobody else was answered, when each piece was added to the text before it.
    pieces, text = 40_000, "x" * 90
    content = f"<Delete>{f'{text}<a/>' * pieces}</Delete>".encode()
    started = time.process_time()
    assert parse(content, "Delete").text == text * pieces
    assert time.process_time() - started < 1.0


def test_a_document_of_many_megabytes_is_refused_unread(url: str, bucket: str) -> None:
    target = f"{url}/{bucket}?delete="
    headers = {**signed_headers("POST", target), "Expect": "100-continue"}
    answer = send("POST", target, headers, length=1 << 40)
    assert (answer.status, answer.code) == (400, "EntityTooLarge")


def test_an_object_above_the_limit_is_refused_unread_and_multipart_is_named(
    url: str, bucket: str
) -> None:
    target = f"{url}/{bucket}/large"
    answer = send("PUT", target, signed_headers("PUT", target), length=1 << 33)
    assert (answer.status, answer.code) == (400, "EntityTooLarge")
    assert b"multipart" in answer.body


def test_a_body_that_is_cut_off_stores_nothing(url: str, bucket: str) -> None:
    target = f"{url}/{bucket}/cut"
    headers = signed_headers("PUT", target)
    send("PUT", target, headers, b"x" * 1000, length=100_000, cut_off=True)


def test_a_body_of_another_hash_than_signed_stores_nothing(url: str, bucket: str) -> None:
    target = f"{url}/{bucket}/k"
    headers = signed_headers("PUT", target, hashlib.sha256(b"one").hexdigest())
    answer = send("PUT", target, headers, b"two")
    assert (answer.status, answer.code) == (400, "XAmzContentSHA256Mismatch")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("../../../etc/passwd", "InvalidURI"),
        ("a/%2e%2e/%2E%2E/x", "InvalidURI"),
        ("a%00b", "InvalidURI"),
        ("%ff%fe", "InvalidURI"),
        ("x" * 1025, "KeyTooLongError"),
    ],
)
def test_a_key_that_means_harm_is_refused(url: str, bucket: str, path: str, expected: str) -> None:
    target = f"{url}/{bucket}/{path}"
    answer = send("PUT", target, signed_headers("PUT", target), b"x")
    assert (answer.status, answer.code) == (400, expected)


@pytest.mark.parametrize(
    "name", ["..", "Upper", "a", "with_underscore", "1.2.3.4", "a..b", "x" * 64, "-ab", "ab-"]
)
def test_a_bucket_name_that_is_none_is_refused(url: str, name: str) -> None:
    target = f"{url}/{name}"
    answer = send("PUT", target, signed_headers("PUT", target))
    assert (answer.status, answer.code) == (400, "InvalidBucketName")


def test_headers_without_end_and_requests_that_are_none_are_refused(url: str) -> None:
    for request in (
        b"GET / HTTP/1.1\r\nHost: x\r\nx-amz-meta-a: " + b"a" * 100_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"\x16\x03\x01\x00\xa5\x01\x00\x00",
    ):
        status = send_bytes(url, request).split(b" ")[1:2]
        assert status in ([], [b"400"], [b"403"], [b"431"])


def test_a_length_is_required(url: str, bucket: str) -> None:
    target = f"{url}/{bucket}/k"
    headers = {
        **signed_headers("PUT", target),
        "Transfer-Encoding": "chunked",
        "Host": url[7:],
        "Connection": "close",
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    request = f"PUT /{bucket}/k HTTP/1.1\r\n{head}\r\n5\r\nhello\r\n0\r\n\r\n".encode()
    received = send_bytes(url, request, half_close=False)
    assert b" 411 " in received
    assert b"MissingContentLength" in received


def test_methods_and_subresources_that_are_none_are_refused(
    client: Any, url: str, bucket: str
) -> None:
    for method, path, expected in (
        ("POST", f"/{bucket}/k", "MethodNotAllowed"),
        ("PATCH", f"/{bucket}", "MethodNotAllowed"),
        ("DELETE", "/", "MethodNotAllowed"),
        ("PUT", f"/{bucket}?policy=", "NotImplemented"),
    ):
        answer = send(method, url + path, signed_headers(method, url + path))
        assert answer.code == expected
    tags = {"TagSet": [{"Key": "a", "Value": "b"}]}
    tagged = code_of(client.put_object_tagging, Bucket=bucket, Key="before", Tagging=tags)
    assert tagged == (501, "NotImplemented")


def test_numbers_that_are_none_are_refused(url: str, bucket: str) -> None:
    for path in (
        f"/{bucket}?list-type=2&max-keys=abc",
        f"/{bucket}?list-type=2&max-keys=99999999999999999999",
        f"/{bucket}?prefix=%00",
        f"/{bucket}/k?versionId=",
    ):
        answer = send("GET", url + path, signed_headers("GET", url + path))
        assert (answer.status, answer.code) == (400, "InvalidArgument")


def test_a_health_answer_needs_no_signature(url: str) -> None:
    answer = send("GET", f"{url}/-/health", {"Host": "x"})
    assert (answer.status, answer.body) == (200, b'{"status": "ok"}')


async def test_health_says_why_an_engine_has_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with endpoint(tmp_path, EndpointSettings(port=0)) as url:
        ask = partial(send, "GET", f"{url}/-/health", {"Host": "x"})
        assert (await asyncio.to_thread(ask)).status == 200
        bug = ZeroDivisionError("as the test says")
        monkeypatch.setattr(VolumeEngine, "failure", property(lambda _: bug))
        answer = await asyncio.to_thread(ask)
        assert answer.status == 503
        assert b"as the test says" in answer.body
