"""Objects through boto3: put, get, head, delete, copy, ranges, conditions, metadata, checksums."""

from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.s3.raw_request import send

pytestmark = pytest.mark.integration

MEGABYTE = 1 << 20


def code_of(call: Any, **parameters: object) -> tuple[int, str]:
    """Status and code of a refused call."""
    with pytest.raises(ClientError) as caught:
        call(**parameters)
    response = caught.value.response
    return response["ResponseMetadata"]["HTTPStatusCode"], response["Error"]["Code"]


def body_of(client: Any, **parameters: object) -> bytes:
    with client.get_object(**parameters)["Body"] as stream:
        content: bytes = stream.read()
    return content


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 300_000, 20 * MEGABYTE + 5])
def test_an_object_reads_back_at_every_size(client: Any, bucket: str, size: int) -> None:
    content = bytes(number % 251 for number in range(1000)) * (size // 1000 + 1)
    content = content[:size]
    put = client.put_object(Bucket=bucket, Key="a/b", Body=content)
    answer = client.get_object(Bucket=bucket, Key="a/b")
    assert answer["Body"].read() == content
    assert answer["ETag"] == put["ETag"]
    assert answer["ContentLength"] == size
    assert client.head_object(Bucket=bucket, Key="a/b")["ContentLength"] == size


@pytest.mark.parametrize(
    "key",
    [
        "a",
        "ä ö/ü",
        "a b+c%20d&e=f;g",
        "/leading//double/",
        "emoji 🙂",
        "x" * 1024,
        "a/../b",
        "new\nline",
        "?#",
    ],
)
def test_any_key_of_utf_8_is_kept_as_it_is(client: Any, bucket: str, key: str) -> None:
    client.put_object(Bucket=bucket, Key=key, Body=b"content")
    assert body_of(client, Bucket=bucket, Key=key) == b"content"
    listed = client.list_objects_v2(Bucket=bucket)["Contents"]
    assert [row["Key"] for row in listed] == [key]
    client.delete_object(Bucket=bucket, Key=key)
    assert client.list_objects_v2(Bucket=bucket)["KeyCount"] == 0


def test_a_key_of_more_than_1024_bytes_is_refused(client: Any, bucket: str) -> None:
    assert code_of(client.put_object, Bucket=bucket, Key="ä" * 513, Body=b"") == (
        400,
        "KeyTooLongError",
    )


def test_metadata_and_headers_come_back(client: Any, bucket: str) -> None:
    client.put_object(
        Bucket=bucket,
        Key="k",
        Body=b"x",
        ContentType="text/plain; charset=utf-8",
        CacheControl="no-cache",
        ContentDisposition='attachment; filename="x"',
        ContentEncoding="gzip",
        ContentLanguage="de",
        Metadata={"colour": "blue", "shape": "round"},
    )
    head = client.head_object(Bucket=bucket, Key="k")
    assert head["Metadata"] == {"colour": "blue", "shape": "round"}
    assert head["ContentType"] == "text/plain; charset=utf-8"
    assert head["CacheControl"] == "no-cache"
    assert head["ContentDisposition"] == 'attachment; filename="x"'
    assert head["ContentEncoding"] == "gzip"
    assert head["ContentLanguage"] == "de"
    shown = client.get_object(Bucket=bucket, Key="k", ResponseContentType="image/png")
    assert shown["ContentType"] == "image/png"
    shown["Body"].close()


def test_too_much_metadata_is_refused(client: Any, bucket: str) -> None:
    status = code_of(client.put_object, Bucket=bucket, Key="k", Metadata={"a": "x" * 2048})
    assert status == (400, "MetadataTooLarge")


@pytest.mark.parametrize(
    ("asked", "expected", "shown"),
    [
        ("bytes=0-3", b"0123", "bytes 0-3/10"),
        ("bytes=7-", b"789", "bytes 7-9/10"),
        ("bytes=-2", b"89", "bytes 8-9/10"),
        ("bytes=-100", b"0123456789", "bytes 0-9/10"),
        ("bytes=8-100", b"89", "bytes 8-9/10"),
    ],
)
def test_a_range_is_answered_with_its_bytes(
    client: Any, bucket: str, asked: str, expected: bytes, shown: str
) -> None:
    client.put_object(Bucket=bucket, Key="k", Body=b"0123456789")
    answer = client.get_object(Bucket=bucket, Key="k", Range=asked)
    assert answer["Body"].read() == expected
    assert answer["ContentRange"] == shown
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == 206


def test_ranges_outside_and_several_at_once_are_refused(client: Any, bucket: str) -> None:
    client.put_object(Bucket=bucket, Key="k", Body=b"0123456789")
    for asked in ("bytes=10-", "bytes=-0", "bytes=20-30"):
        assert code_of(client.get_object, Bucket=bucket, Key="k", Range=asked) == (
            416,
            "InvalidRange",
        )
    several = code_of(client.get_object, Bucket=bucket, Key="k", Range="bytes=0-1,3-4")
    assert several == (400, "InvalidRequest")


def test_the_end_of_an_empty_object_is_all_of_it(client: Any, bucket: str) -> None:
    client.put_object(Bucket=bucket, Key="empty", Body=b"")
    for ask in (client.get_object, client.head_object):
        answer = ask(Bucket=bucket, Key="empty", Range="bytes=-8")
        assert answer["ResponseMetadata"]["HTTPStatusCode"] == 200
        assert answer["ContentLength"] == 0
        assert "ContentRange" not in answer
    for range_ in ("bytes=0-", "bytes=0-7", "bytes=-0"):
        refused = code_of(client.get_object, Bucket=bucket, Key="empty", Range=range_)
        assert refused == (416, "InvalidRange")


def test_a_range_across_windows_of_a_large_object(client: Any, bucket: str) -> None:
    content = b"".join(b"%08d" % number for number in range(3 * MEGABYTE))
    client.put_object(Bucket=bucket, Key="k", Body=content)
    asked = {"Bucket": bucket, "Key": "k", "Range": f"bytes=100-{20 * MEGABYTE}"}
    assert body_of(client, **asked) == content[100 : 20 * MEGABYTE + 1]


def test_conditions_on_reading(client: Any, bucket: str) -> None:
    etag = client.put_object(Bucket=bucket, Key="k", Body=b"x")["ETag"]
    modified = client.head_object(Bucket=bucket, Key="k")["LastModified"]
    named = {"Bucket": bucket, "Key": "k"}
    assert body_of(client, **named, IfMatch=etag, IfModifiedSince="2001-01-01") == b"x"
    assert code_of(client.get_object, **named, IfMatch='"other"')[0] == 412
    assert code_of(client.get_object, **named, IfNoneMatch=etag)[0] == 304
    assert code_of(client.head_object, **named, IfNoneMatch=etag)[0] == 304
    assert code_of(client.get_object, **named, IfModifiedSince=modified)[0] == 304
    assert code_of(client.get_object, **named, IfUnmodifiedSince="2001-01-01")[0] == 412


def test_conditions_on_writing(client: Any, bucket: str) -> None:
    named = {"Bucket": bucket, "Key": "k"}
    assert code_of(client.put_object, **named, Body=b"0", IfMatch='"x"') == (404, "NoSuchKey")
    etag = client.put_object(**named, Body=b"1", IfNoneMatch="*")["ETag"]
    assert code_of(client.put_object, **named, Body=b"2", IfNoneMatch="*") == (
        412,
        "PreconditionFailed",
    )
    assert code_of(client.put_object, **named, Body=b"2", IfMatch='"x"') == (
        412,
        "PreconditionFailed",
    )
    client.put_object(**named, Body=b"3", IfMatch=etag)
    assert body_of(client, **named) == b"3"


def test_a_deletion_by_several_etags_is_refused_as_a_put_is(client: Any, bucket: str) -> None:
    named = {"Bucket": bucket, "Key": "k"}
    etag = client.put_object(**named, Body=b"x")["ETag"]
    for several in (f'{etag}, "x"', f'"x", {etag}', '"*", "x"', f"{etag}, *"):
        refused = (501, "NotImplemented")
        assert code_of(client.put_object, **named, Body=b"y", IfMatch=several) == refused
        assert code_of(client.delete_object, **named, IfMatch=several) == refused
    assert body_of(client, **named) == b"x"


@pytest.mark.parametrize("quoted", ['"*"', '""'])
def test_a_star_in_quotes_is_the_etag_of_no_object(client: Any, bucket: str, quoted: str) -> None:
    named = {"Bucket": bucket, "Key": "k"}
    client.put_object(**named, Body=b"x")
    assert code_of(client.delete_object, **named, IfMatch=quoted) == (412, "PreconditionFailed")
    listed = {"Objects": [{"Key": "k", "ETag": quoted}]}
    errors = client.delete_objects(Bucket=bucket, Delete=listed).get("Errors", [])
    assert [row["Code"] for row in errors] == ["PreconditionFailed"]
    assert body_of(client, **named) == b"x"


def test_a_deletion_of_whatever_is_there_is_refused_where_nothing_is(
    client: Any, bucket: str
) -> None:
    enabled = {"Status": "Enabled"}
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration=enabled)
    named = {"Bucket": bucket, "Key": "k"}
    failed = (412, "PreconditionFailed")
    assert code_of(client.delete_object, **named, IfMatch="*") == failed
    listed = {"Objects": [{"Key": "k", "ETag": "*"}]}
    errors = client.delete_objects(Bucket=bucket, Delete=listed)["Errors"]
    assert [row["Code"] for row in errors] == ["PreconditionFailed"]
    assert "DeleteMarkers" not in client.list_object_versions(Bucket=bucket)
    client.put_object(**named, Body=b"x")
    assert client.delete_object(**named, IfMatch="*")["DeleteMarker"]
    assert code_of(client.delete_object, **named, IfMatch="*") == failed


def test_a_missing_object_and_a_missing_bucket_are_told_apart(client: Any, bucket: str) -> None:
    assert code_of(client.get_object, Bucket=bucket, Key="none") == (404, "NoSuchKey")
    assert code_of(client.head_object, Bucket=bucket, Key="none")[0] == 404
    assert code_of(client.get_object, Bucket="no-such-bucket", Key="k") == (404, "NoSuchBucket")
    assert code_of(client.put_object, Bucket="no-such-bucket", Key="k") == (404, "NoSuchBucket")
    client.delete_object(Bucket=bucket, Key="none")


@pytest.mark.parametrize("algorithm", ["CRC32", "CRC32C", "SHA1", "SHA256"])
def test_checksums_are_verified_kept_and_shown(client: Any, bucket: str, algorithm: str) -> None:
    if algorithm == "CRC32C":
        put = client.put_object(
            Bucket=bucket, Key="k", Body=b"123456789", ChecksumCRC32C="4waSgw=="
        )
    else:
        put = client.put_object(
            Bucket=bucket, Key="k", Body=b"123456789", ChecksumAlgorithm=algorithm
        )
    name = f"Checksum{algorithm}"
    head = client.head_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")
    assert put[name]
    assert head[name] == put[name]
    assert name not in client.head_object(Bucket=bucket, Key="k")


def test_a_body_with_another_checksum_stores_nothing(client: Any, bucket: str) -> None:
    named = {"Bucket": bucket, "Key": "k", "Body": b"123456789"}
    assert code_of(client.put_object, **named, ChecksumCRC32C="AAAAAA==") == (400, "BadDigest")
    assert code_of(client.put_object, **named, ContentMD5="AAAAAAAAAAAAAAAAAAAAAA==") == (
        400,
        "BadDigest",
    )
    assert code_of(client.put_object, **named, ContentMD5="AAAA") == (400, "InvalidDigest")
    assert client.list_objects_v2(Bucket=bucket)["KeyCount"] == 0


def test_a_copy_takes_metadata_along_or_replaces_it(client: Any, bucket: str) -> None:
    key = "from/ä b"
    client.put_object(
        Bucket=bucket, Key=key, Body=b"content", Metadata={"a": "1"}, ContentType="text/x"
    )
    source = {"Bucket": bucket, "Key": key}
    copied = client.copy_object(Bucket=bucket, Key="to", CopySource=source)
    head = client.head_object(Bucket=bucket, Key="to")
    assert (head["Metadata"], head["ContentType"]) == ({"a": "1"}, "text/x")
    assert head["ETag"] == copied["CopyObjectResult"]["ETag"]
    client.copy_object(
        Bucket=bucket, Key=key, CopySource=source, Metadata={"b": "2"}, MetadataDirective="REPLACE"
    )
    assert client.head_object(**source)["Metadata"] == {"b": "2"}
    assert body_of(client, Bucket=bucket, Key="to") == b"content"


def test_copies_that_cannot_be_are_refused(client: Any, bucket: str) -> None:
    etag = client.put_object(Bucket=bucket, Key="k", Body=b"x")["ETag"]
    source = {"Bucket": bucket, "Key": "k"}
    itself = code_of(client.copy_object, Bucket=bucket, Key="k", CopySource=source)
    assert itself == (400, "InvalidRequest")
    missing = code_of(client.copy_object, Bucket=bucket, Key="n", CopySource=f"{bucket}/none")
    assert missing == (404, "NoSuchKey")
    changed = code_of(
        client.copy_object, Bucket=bucket, Key="n", CopySource=source, CopySourceIfNoneMatch=etag
    )
    assert changed == (412, "PreconditionFailed")


def test_many_are_deleted_at_once(client: Any, bucket: str) -> None:
    for number in range(5):
        client.put_object(Bucket=bucket, Key=f"k{number}", Body=b"x")
    order = {"Objects": [{"Key": f"k{number}"} for number in range(4)] + [{"Key": "never"}]}
    answer = client.delete_objects(Bucket=bucket, Delete=order)
    assert {row["Key"] for row in answer["Deleted"]} == {"k0", "k1", "k2", "k3", "never"}
    quiet = {"Objects": [{"Key": "k4"}], "Quiet": True}
    assert "Deleted" not in client.delete_objects(Bucket=bucket, Delete=quiet)
    assert client.list_objects_v2(Bucket=bucket)["KeyCount"] == 0


def test_what_the_endpoint_does_not_have_is_refused_not_ignored(client: Any, bucket: str) -> None:
    encrypted = code_of(client.put_object, Bucket=bucket, Key="k", ServerSideEncryption="AES256")
    assert encrypted == (501, "NotImplemented")
    public = code_of(client.put_bucket_acl, Bucket=bucket, ACL="public-read")
    assert public == (501, "NotImplemented")
    tags = {"TagSet": [{"Key": "a", "Value": "b"}]}
    tagged = code_of(client.put_bucket_tagging, Bucket=bucket, Tagging=tags)
    assert tagged == (501, "NotImplemented")
    assert code_of(client.put_object, Bucket=bucket, Key="k", Tagging="a=b") == (
        501,
        "NotImplemented",
    )


def test_an_upload_by_a_form_is_told_what_to_do_instead(url: str, bucket: str) -> None:
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    answer = send("POST", f"{url}/{bucket}", headers, b"--b--\r\n")
    assert (answer.status, answer.code) == (501, "NotImplemented")
    assert b"presign a PUT instead" in answer.body


def test_an_object_may_be_of_the_type_of_a_form(client: Any, bucket: str) -> None:
    form = "multipart/form-data; boundary=b"
    upload = client.create_multipart_upload(Bucket=bucket, Key="k", ContentType=form)
    named = {"Bucket": bucket, "Key": "k", "UploadId": upload["UploadId"]}
    part = client.upload_part(**named, PartNumber=1, Body=b"--b--")
    parts = [{"PartNumber": 1, "ETag": part["ETag"]}]
    client.complete_multipart_upload(**named, MultipartUpload={"Parts": parts})
    assert client.head_object(Bucket=bucket, Key="k")["ContentType"] == form


def test_what_no_bucket_here_can_have_is_said_not_to_be_there(client: Any, bucket: str) -> None:
    for ask, code in {
        client.get_bucket_cors: "NoSuchCORSConfiguration",
        client.get_bucket_encryption: "ServerSideEncryptionConfigurationNotFoundError",
        client.get_bucket_lifecycle_configuration: "NoSuchLifecycleConfiguration",
        client.get_bucket_policy: "NoSuchBucketPolicy",
        client.get_bucket_policy_status: "NoSuchBucketPolicy",
        client.get_public_access_block: "NoSuchPublicAccessBlockConfiguration",
        client.get_bucket_replication: "ReplicationConfigurationNotFoundError",
        client.get_bucket_tagging: "NoSuchTagSet",
        client.get_bucket_website: "NoSuchWebsiteConfiguration",
    }.items():
        assert code_of(ask, Bucket=bucket) == (404, code)
        assert code_of(ask, Bucket="never-made") == (404, "NoSuchBucket")
    assert client.get_bucket_request_payment(Bucket=bucket)["Payer"] == "BucketOwner"
    assert "LoggingEnabled" not in client.get_bucket_logging(Bucket=bucket)
    assert "Status" not in client.get_bucket_accelerate_configuration(Bucket=bucket)
    assert "TopicConfigurations" not in client.get_bucket_notification_configuration(Bucket=bucket)
    ownership = client.get_bucket_ownership_controls(Bucket=bucket)["OwnershipControls"]
    assert ownership == {"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]}
    for remove in (
        client.delete_bucket_cors,
        client.delete_bucket_lifecycle,
        client.delete_bucket_policy,
        client.delete_bucket_tagging,
    ):
        assert remove(Bucket=bucket)["ResponseMetadata"]["HTTPStatusCode"] == 204
        assert code_of(remove, Bucket="never-made") == (404, "NoSuchBucket")


def test_the_owner_has_access_and_objects_have_no_tags(client: Any, bucket: str) -> None:
    client.put_object(Bucket=bucket, Key="k", Body=b"x")
    owner = {"DisplayName": "segmentstore", "ID": "segmentstore"}
    for answer in (
        client.get_bucket_acl(Bucket=bucket),
        client.get_object_acl(Bucket=bucket, Key="k"),
    ):
        assert answer["Owner"] == owner
        grantee = {**owner, "Type": "CanonicalUser"}
        assert answer["Grants"] == [{"Grantee": grantee, "Permission": "FULL_CONTROL"}]
    assert client.get_object_tagging(Bucket=bucket, Key="k")["TagSet"] == []
    client.delete_object_tagging(Bucket=bucket, Key="k")
    assert body_of(client, Bucket=bucket, Key="k") == b"x"
    for ask in (client.get_object_acl, client.get_object_tagging, client.delete_object_tagging):
        assert code_of(ask, Bucket=bucket, Key="none") == (404, "NoSuchKey")


@pytest.mark.parametrize("change", ["overwrite", "delete"])
def test_an_answer_goes_on_with_the_bytes_that_it_began_with(
    client: Any, bucket: str, change: str
) -> None:
    before = b"before.." * (8 * MEGABYTE)
    client.put_object(Bucket=bucket, Key="k", Body=before)
    with client.get_object(Bucket=bucket, Key="k")["Body"] as stream:
        received = stream.read(MEGABYTE)
        if change == "overwrite":
            client.put_object(Bucket=bucket, Key="k", Body=b"after..." * (8 * MEGABYTE))
        else:
            client.delete_object(Bucket=bucket, Key="k")
        received += stream.read()
    assert received == before
