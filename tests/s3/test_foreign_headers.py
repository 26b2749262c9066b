"""What this endpoint does not do is refused in words, wherever it is asked for; what means nothing here is taken."""

from typing import Any
from urllib.parse import quote

import pytest

from segmentstore.s3.checksums import checksum_text
from tests.s3.conftest import client_of
from tests.s3.raw_request import Answer, send, signed_headers
from tests.s3.test_multipart import begin
from tests.s3.test_objects import body_of, code_of

pytestmark = pytest.mark.integration

CLASS = (400, "InvalidStorageClass")
OWNER = (403, "AccessDenied")
NONE = (501, "NotImplemented")
UNKNOWN = (400, "InvalidRequest")

REFUSED = [
    ("x-amz-storage-class", "GLACIER", CLASS),
    ("x-amz-storage-class", "REDUCED_REDUNDANCY", CLASS),
    ("x-amz-storage-class", "standard", CLASS),
    ("x-amz-acl", "public-read", NONE),
    ("x-amz-acl", "authenticated-read", NONE),
    ("x-amz-acl", "bucket-owner-read", NONE),
    ("x-amz-acl", "nonsense", NONE),
    ("x-amz-grant-read", 'uri="http://acs.amazonaws.com/groups/global/AllUsers"', NONE),
    ("x-amz-grant-write", "id=1", NONE),
    ("x-amz-grant-full-control", "id=1", NONE),
    ("x-amz-grant-read-acp", "id=1", NONE),
    ("x-amz-grant-write-acp", "id=1", NONE),
    ("x-amz-object-ownership", "ObjectWriter", NONE),
    ("x-amz-server-side-encryption", "AES256", NONE),
    ("x-amz-server-side-encryption", "aws:kms", NONE),
    ("x-amz-server-side-encryption-aws-kms-key-id", "key", NONE),
    ("x-amz-server-side-encryption-context", "e30=", NONE),
    ("x-amz-server-side-encryption-bucket-key-enabled", "true", NONE),
    ("x-amz-server-side-encryption-customer-algorithm", "AES256", NONE),
    ("x-amz-server-side-encryption-customer-key", "a2V5", NONE),
    ("x-amz-server-side-encryption-customer-key-md5", "a2V5", NONE),
    ("x-amz-copy-source-server-side-encryption-customer-algorithm", "AES256", NONE),
    ("x-amz-tagging", "a=1", NONE),
    ("x-amz-website-redirect-location", "/other", NONE),
    ("x-amz-write-offset-bytes", "5", NONE),
    ("x-amz-expected-bucket-owner", "123456789012", OWNER),
    ("x-amz-source-expected-bucket-owner", "123456789012", OWNER),
    ("x-amz-if-match-size", "5", NONE),
    ("x-amz-if-match-last-modified-time", "Mon, 23 Nov 2026 09:00:00 GMT", NONE),
    ("x-amz-rename-source", "/b/k", NONE),
    ("x-amz-checksum-xxhash3", "AAAA", UNKNOWN),
]
TAKEN = [
    ("x-amz-storage-class", "STANDARD"),
    ("x-amz-acl", "private"),
    ("x-amz-acl", "bucket-owner-full-control"),
    ("x-amz-object-ownership", "BucketOwnerEnforced"),
    ("x-amz-server-side-encryption-bucket-key-enabled", "false"),
    ("x-amz-tagging", ""),
    ("x-amz-tagging-directive", "COPY"),
    ("x-amz-request-payer", "requester"),
    ("x-amz-expected-bucket-owner", "segmentstore"),
    ("x-amz-mfa", "serial 123456"),
    ("x-amz-user-agent", "a browser"),
    ("x-amz-te", "append-md5"),
]
BEFORE = b"before"


def ask(
    url: str,
    bucket: str,
    verb: str,
    headers: dict[str, str],
    query: str = "",
    body: bytes = b"",
) -> Answer:
    """One request of each kind that the headers may come with."""
    method, path = {
        "put": ("PUT", f"{bucket}/new?x=1"),
        "copy": ("PUT", f"{bucket}/copied?x=1"),
        "begin": ("POST", f"{bucket}/parts?uploads="),
        "create": ("PUT", f"{bucket}-more?x=1"),
        "get": ("GET", f"{bucket}/k?x=1"),
        "delete": ("DELETE", f"{bucket}/k?x=1"),
    }[verb]
    if verb == "copy":
        headers = {**headers, "x-amz-copy-source": f"{bucket}/k"}
    target = f"{url}/{path}{query}"
    return send(method, target, signed_headers(method, target, headers=headers), body)


@pytest.mark.parametrize("verb", ["put", "copy", "begin", "create", "get", "delete"])
def test_what_is_not_done_is_refused_and_changes_nothing(
    client: Any, url: str, bucket: str, verb: str
) -> None:
    client.put_object(Bucket=bucket, Key="k", Body=BEFORE)
    for name, value, expected in REFUSED:
        answer = ask(url, bucket, verb, {name: value})
        assert (answer.status, answer.code) == expected, (name, value)
    assert [row["Key"] for row in client.list_objects_v2(Bucket=bucket)["Contents"]] == ["k"]
    assert "Uploads" not in client.list_multipart_uploads(Bucket=bucket)
    assert code_of(client.list_objects_v2, Bucket=f"{bucket}-more") == (404, "NoSuchBucket")
    assert body_of(client, Bucket=bucket, Key="k") == BEFORE


@pytest.mark.parametrize("verb", ["put", "copy", "begin", "create", "get", "delete"])
def test_what_means_nothing_here_is_taken(client: Any, url: str, bucket: str, verb: str) -> None:
    for name, value in TAKEN:
        client.put_object(Bucket=bucket, Key="k", Body=BEFORE)
        answer = ask(url, bucket, verb, {name: value})
        assert answer.status in {200, 204}, (name, value, answer)
        if verb == "create":
            client.delete_bucket(Bucket=f"{bucket}-more")


def test_a_header_that_was_moved_into_the_query_is_one(client: Any, url: str, bucket: str) -> None:
    for name, value, expected in (
        ("x-amz-storage-class", "GLACIER", CLASS),
        ("x-amz-acl", "public-read", NONE),
        ("X-Amz-Acl", "public-read", NONE),
        ("x-amz-checksum-crc32", "AAAAAA==", (200, "")),
        ("x-amz-checksum-crc32", "AAAAAQ==", (400, "BadDigest")),
    ):
        answer = ask(url, bucket, "put", {}, f"&{name}={value.replace('=', '%3D')}")
        assert (answer.status, answer.code) == expected, (name, value)
    signer = client_of(url, signature_version="s3v4")
    presigned = signer.generate_presigned_url("put_object", {"Bucket": bucket, "Key": "signed"})
    assert send("PUT", presigned, {}, b"x").status == 200
    signer.close()


def test_a_checksum_that_boto3_may_not_know_is_verified_kept_and_shown(
    url: str, bucket: str
) -> None:
    name, right = "x-amz-checksum-sha512", checksum_text("sha512", [b"a body"])
    wrong = ask(url, bucket, "put", {name: checksum_text("sha512", [b"another"])}, "", b"a body")
    assert (wrong.status, wrong.code) == (400, "BadDigest")
    assert ask(url, bucket, "put", {name: right}, "", b"a body").status == 200
    target = f"{url}/{bucket}/new"
    shown = send(
        "HEAD", target, signed_headers("HEAD", target, headers={"x-amz-checksum-mode": "ENABLED"})
    )
    assert (shown.status, shown.headers[name]) == (200, right)


def test_an_address_that_is_presigned_with_the_checksum_of_no_bytes_takes_any_body(
    client: Any, url: str, bucket: str
) -> None:
    # As the SDK for JavaScript makes them, which does not know the body yet.
    for algorithm, value in (("crc32", "AAAAAA=="), ("crc64nvme", "AAAAAAAAAAA=")):
        names = {
            f"x-amz-checksum-{algorithm}": value,
            "x-amz-sdk-checksum-algorithm": algorithm.upper(),
        }
        query = "&".join(f"{name}={quote(text, safe='')}" for name, text in names.items())
        answer = ask(url, bucket, "put", {}, f"&{query}", b"a body")
        assert (answer.status, answer.code) == (200, "")
        assert body_of(client, Bucket=bucket, Key="new") == b"a body"
        # A header is said with the body.
        said = ask(url, bucket, "put", {f"x-amz-checksum-{algorithm}": value}, "", b"a body")
        assert (said.status, said.code) == (400, "BadDigest")


def ask_by_query(
    url: str, method: str, path: str, names: dict[str, str], headers: dict[str, str] | None = None
) -> Answer:
    """As a client that presigns and moves its headers into the query."""
    query = "&".join(f"{name}={quote(value, safe='')}" for name, value in names.items())
    target = f"{url}/{path}?{query}"
    return send(method, target, signed_headers(method, target, headers=headers), b"")


def test_a_lock_and_metadata_that_were_moved_into_the_query_are_kept(
    client: Any, url: str, bucket: str
) -> None:
    locked = f"{bucket}-locked"
    created = ask_by_query(url, "PUT", locked, {"x-amz-bucket-object-lock-enabled": "true"})
    assert created.status == 200
    lock = {
        "x-amz-object-lock-mode": "GOVERNANCE",
        "X-Amz-Object-Lock-Retain-Until-Date": "2099-01-01T00:00:00Z",
        "x-amz-object-lock-legal-hold": "ON",
        "x-amz-meta-owner": "anna",
        "X-Amz-Meta-Place": "here",
    }
    assert ask_by_query(url, "PUT", f"{locked}/k", lock).status == 200
    head = client.head_object(Bucket=locked, Key="k")
    assert (head["ObjectLockMode"], head["ObjectLockLegalHoldStatus"]) == ("GOVERNANCE", "ON")
    assert head["Metadata"] == {"owner": "anna", "place": "here"}
    version = {"Bucket": locked, "Key": "k", "VersionId": head["VersionId"]}
    assert code_of(client.delete_object, **version) == (403, "AccessDenied")
    client.put_object_legal_hold(**version, LegalHold={"Status": "OFF"})
    names = {"versionId": head["VersionId"], "x-amz-bypass-governance-retention": "true"}
    assert ask_by_query(url, "DELETE", f"{locked}/k", names).status == 204


def test_a_copy_whose_source_was_moved_into_the_query_is_one(
    client: Any, url: str, bucket: str
) -> None:
    client.put_object(Bucket=bucket, Key="source", Body=b"0123456789")
    client.put_object(Bucket=bucket, Key="target", Body=b"before")
    source = {"x-amz-copy-source": f"{bucket}/source"}
    refused = {**source, "x-amz-copy-source-if-none-match": "*"}
    assert ask_by_query(url, "PUT", f"{bucket}/target", refused).status == 412
    assert ask_by_query(url, "PUT", f"{bucket}/target", source).status == 200
    assert body_of(client, Bucket=bucket, Key="target") == b"0123456789"
    upload = begin(client, bucket)
    part = {**source, "x-amz-copy-source-range": "bytes=2-4"}
    part |= {"partNumber": "1", "uploadId": upload["UploadId"]}
    assert ask_by_query(url, "PUT", f"{bucket}/k", part).status == 200
    assert [row["Size"] for row in client.list_parts(**upload)["Parts"]] == [3]


def test_a_header_that_says_another_thing_than_the_query_is_refused(
    client: Any, url: str, bucket: str
) -> None:
    both = ask_by_query(
        url, "PUT", f"{bucket}/k", {"x-amz-meta-a": "1"}, headers={"X-Amz-Meta-A": "2"}
    )
    assert (both.status, both.code) == UNKNOWN
    same = ask_by_query(
        url, "PUT", f"{bucket}/k", {"x-amz-meta-a": "1"}, headers={"X-Amz-Meta-A": "1"}
    )
    assert same.status == 200
    assert client.head_object(Bucket=bucket, Key="k")["Metadata"] == {"a": "1"}


@pytest.mark.parametrize(
    ("verb", "name", "value"),
    [
        ("put", "If-Unmodified-Since", "Mon, 23 Nov 2026 09:00:00 GMT"),
        ("put", "If-Modified-Since", "Mon, 23 Nov 2026 09:00:00 GMT"),
        ("put", "Content-Range", "bytes 0-4/10"),
        ("delete", "If-Unmodified-Since", "Mon, 23 Nov 2026 09:00:00 GMT"),
        ("delete", "If-None-Match", "*"),
    ],
)
def test_a_condition_that_a_write_would_not_keep_is_refused(
    client: Any, url: str, bucket: str, verb: str, name: str, value: str
) -> None:
    client.put_object(Bucket=bucket, Key="k", Body=BEFORE)
    answer = ask(url, bucket, verb, {name: value})
    assert (answer.status, answer.code) == NONE
    assert [row["Key"] for row in client.list_objects_v2(Bucket=bucket)["Contents"]] == ["k"]


def test_boto3_is_told_of_each_by_its_own_parameter(client: Any, bucket: str) -> None:
    client.put_object(Bucket=bucket, Key="k", Body=BEFORE, StorageClass="STANDARD", ACL="private")
    put = {"Bucket": bucket, "Key": "k2", "Body": b"x"}
    assert code_of(client.put_object, **put, StorageClass="GLACIER") == CLASS
    assert code_of(client.put_object, **put, ACL="public-read") == NONE
    assert code_of(client.put_object, **put, ServerSideEncryption="AES256") == NONE
    assert code_of(client.put_object, **put, ExpectedBucketOwner="123456789012") == OWNER
    assert code_of(client.create_bucket, Bucket=f"{bucket}-x", ACL="public-read") == NONE
    refused = code_of(
        client.create_multipart_upload, Bucket=bucket, Key="k", StorageClass="GLACIER"
    )
    assert refused == CLASS
    begin(client, bucket, StorageClass="STANDARD")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-amz-meta-a", "one\ntwo"),
        ("x-amz-meta-a", "one\x01two"),
        ("x-amz-meta-a%20b", "1"),
        ("x-amz-meta-a%0D%0Ab", "1"),
        ("x-amz-meta-%C3%A9", "1"),
    ],
)
def test_metadata_from_the_query_that_no_header_could_give_back_is_refused(
    client: Any, url: str, bucket: str, name: str, value: str
) -> None:
    """Kept, it would leave each GET and HEAD of the object without an answer."""
    client.put_object(Bucket=bucket, Key="k", Body=BEFORE)
    put = ask_by_query(url, "PUT", f"{bucket}/k", {name: value})
    begun = ask_by_query(url, "POST", f"{bucket}/k", {"uploads": "", name: value})
    assert body_of(client, Bucket=bucket, Key="k") == BEFORE
    assert [(each.status, each.code) for each in (put, begun)] == [(400, "InvalidArgument")] * 2


def test_metadata_from_the_query_that_a_header_can_give_back_comes_back(
    client: Any, url: str, bucket: str
) -> None:
    names = {"x-amz-meta-a.b_c": "one\ttwo, \"three\": 'four'"}
    assert ask_by_query(url, "PUT", f"{bucket}/k", names).status == 200
    head = client.head_object(Bucket=bucket, Key="k")
    assert head["Metadata"] == {"a.b_c": "one\ttwo, \"three\": 'four'"}
