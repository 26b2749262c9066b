"""Versions, delete markers, retention and legal hold through boto3."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.s3.raw_request import send, signed_headers
from tests.s3.test_objects import body_of, code_of

pytestmark = pytest.mark.integration


def set_versioning(client: Any, bucket: str, status: str) -> None:
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": status})


def shown_versions(
    client: Any, bucket: str, **parameters: object
) -> list[tuple[str, str, bool, bool]]:
    """(key, version, is latest, is marker) of all pages, keys in order and newest first."""
    found = []
    while True:
        page = client.list_object_versions(Bucket=bucket, **parameters)
        for kind in ("Versions", "DeleteMarkers"):
            found += [
                (
                    row["LastModified"],
                    row["Key"],
                    row["VersionId"],
                    row["IsLatest"],
                    kind == "DeleteMarkers",
                )
                for row in page.get(kind, ())
            ]
        if not page["IsTruncated"]:
            break
        parameters["KeyMarker"] = page["NextKeyMarker"]
        parameters["VersionIdMarker"] = page.get("NextVersionIdMarker", "")
    found.sort(key=lambda row: (row[1], not row[3]))
    return [row[1:] for row in found]


@pytest.fixture
def versioned(client: Any, bucket: str) -> str:
    set_versioning(client, bucket, "Enabled")
    return bucket


def put(client: Any, bucket: str, body: bytes, key: str = "k") -> str:
    version: str = client.put_object(Bucket=bucket, Key=key, Body=body).get("VersionId", "")
    return version


def test_every_put_is_a_version_that_can_be_read(client: Any, versioned: str) -> None:
    first, second = put(client, versioned, b"1"), put(client, versioned, b"2")
    named = {"Bucket": versioned, "Key": "k"}
    assert body_of(client, **named) == b"2"
    assert body_of(client, **named, VersionId=first) == b"1"
    assert client.head_object(**named)["VersionId"] == second
    assert client.get_bucket_versioning(Bucket=versioned)["Status"] == "Enabled"


def test_a_delete_leaves_a_marker_and_removing_that_undoes_it(client: Any, versioned: str) -> None:
    first = put(client, versioned, b"1")
    named = {"Bucket": versioned, "Key": "k"}
    marker = client.delete_object(**named)
    assert marker["DeleteMarker"]
    assert code_of(client.get_object, **named) == (404, "NoSuchKey")
    assert code_of(client.get_object, **named, VersionId=marker["VersionId"]) == (
        405,
        "MethodNotAllowed",
    )
    assert body_of(client, **named, VersionId=first) == b"1"
    assert client.list_objects_v2(Bucket=versioned)["KeyCount"] == 0
    assert shown_versions(client, versioned) == [
        ("k", marker["VersionId"], True, True),
        ("k", first, False, False),
    ]
    client.delete_object(**named, VersionId=marker["VersionId"])
    assert body_of(client, **named) == b"1"
    client.delete_object(**named, VersionId=first)
    assert shown_versions(client, versioned) == []
    assert code_of(client.get_object, **named, VersionId=first) == (404, "NoSuchVersion")


def test_suspended_versioning_replaces_the_null_version_alone(client: Any, bucket: str) -> None:
    put(client, bucket, b"before")
    set_versioning(client, bucket, "Enabled")
    kept = put(client, bucket, b"kept")
    set_versioning(client, bucket, "Suspended")
    named = {"Bucket": bucket, "Key": "k"}
    assert body_of(client, **named, VersionId="null") == b"before"
    for body in (b"one", b"two"):
        put(client, bucket, body)
    assert body_of(client, **named, VersionId="null") == b"two"
    assert shown_versions(client, bucket) == [("k", "null", True, False), ("k", kept, False, False)]
    client.delete_object(**named)
    client.delete_object(**named)
    assert shown_versions(client, bucket) == [("k", "null", True, True), ("k", kept, False, False)]
    put(client, bucket, b"three")
    assert shown_versions(client, bucket) == [("k", "null", True, False), ("k", kept, False, False)]


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_versions_are_listed_page_by_page(client: Any, versioned: str, size: int) -> None:
    expected = []
    for key in ("a", "b/1", "b/2", "c"):
        ids = [put(client, versioned, b"%d" % number, key) for number in range(3)]
        expected += [(key, ids[2], True, False)]
        expected += [(key, version, False, False) for version in ids[:2]]
    found = shown_versions(client, versioned, MaxKeys=size)
    assert sorted(found) == sorted(expected)
    assert sorted(shown_versions(client, versioned, Prefix="b/", MaxKeys=size)) == sorted(
        row for row in expected if row[0].startswith("b/")
    )
    page = client.list_object_versions(Bucket=versioned, Delimiter="/")
    assert [row["Prefix"] for row in page["CommonPrefixes"]] == ["b/"]


def test_a_bucket_with_a_marker_in_it_is_not_empty(client: Any, versioned: str) -> None:
    client.delete_object(Bucket=versioned, Key="k")
    assert code_of(client.delete_bucket, Bucket=versioned) == (409, "BucketNotEmpty")


def test_versions_are_copied_and_deleted_by_their_ids(client: Any, versioned: str) -> None:
    first, second = put(client, versioned, b"1"), put(client, versioned, b"2")
    source = {"Bucket": versioned, "Key": "k", "VersionId": first}
    copied = client.copy_object(Bucket=versioned, Key="k", CopySource=source)
    assert copied["CopySourceVersionId"] == first
    assert body_of(client, Bucket=versioned, Key="k") == b"1"
    order = {
        "Objects": [{"Key": "k", "VersionId": each} for each in (first, second)] + [{"Key": "k"}]
    }
    answer = client.delete_objects(Bucket=versioned, Delete=order)
    assert [row.get("DeleteMarker", False) for row in answer["Deleted"]] == [False, False, True]
    assert [row[1] for row in shown_versions(client, versioned)][1:] == [copied["VersionId"]]


# --- object lock ---------------------------------------------------------------------------------


@pytest.fixture
def locked(client: Any, bucket: str) -> str:
    name = f"{bucket}-locked"
    client.create_bucket(Bucket=name, ObjectLockEnabledForBucket=True)
    return name


def soon(days: int = 1) -> datetime:
    return datetime.now(UTC).replace(microsecond=0) + timedelta(days=days)


def test_governance_keeps_a_version_from_whoever_does_not_bypass_it(
    client: Any, locked: str
) -> None:
    until = soon()
    version = client.put_object(
        Bucket=locked,
        Key="k",
        Body=b"x",
        ObjectLockMode="GOVERNANCE",
        ObjectLockRetainUntilDate=until,
    )["VersionId"]
    named = {"Bucket": locked, "Key": "k", "VersionId": version}
    head = client.head_object(**named)
    assert (head["ObjectLockMode"], head["ObjectLockRetainUntilDate"]) == ("GOVERNANCE", until)
    assert code_of(client.delete_object, **named) == (403, "AccessDenied")
    client.delete_object(Bucket=locked, Key="k")
    assert body_of(client, **named) == b"x"
    client.delete_object(**named, BypassGovernanceRetention=True)
    assert code_of(client.head_object, **named)[0] == 404


def test_compliance_can_only_be_extended(client: Any, locked: str) -> None:
    version = put(client, locked, b"x")
    named = {"Bucket": locked, "Key": "k", "VersionId": version}
    retention = {"Mode": "COMPLIANCE", "RetainUntilDate": soon(2)}
    client.put_object_retention(**named, Retention=retention)
    assert client.get_object_retention(**named)["Retention"] == retention
    shorter = {"Mode": "COMPLIANCE", "RetainUntilDate": soon(1)}
    refused = code_of(
        client.put_object_retention, **named, Retention=shorter, BypassGovernanceRetention=True
    )
    assert refused == (403, "AccessDenied")
    refused = code_of(client.delete_object, **named, BypassGovernanceRetention=True)
    assert refused == (403, "AccessDenied")
    longer = {"Mode": "COMPLIANCE", "RetainUntilDate": soon(3)}
    client.put_object_retention(**named, Retention=longer)
    assert client.get_object_retention(**named)["Retention"] == longer


def test_a_legal_hold_keeps_a_version_until_it_ends(client: Any, locked: str) -> None:
    version = client.put_object(Bucket=locked, Key="k", Body=b"x", ObjectLockLegalHoldStatus="ON")
    named = {"Bucket": locked, "Key": "k", "VersionId": version["VersionId"]}
    assert client.get_object_legal_hold(**named)["LegalHold"]["Status"] == "ON"
    refused = code_of(client.delete_object, **named, BypassGovernanceRetention=True)
    assert refused == (403, "AccessDenied")
    client.put_object_legal_hold(**named, LegalHold={"Status": "OFF"})
    client.delete_object(**named)
    assert shown_versions(client, locked) == []


def test_a_bucket_has_a_default_retention_for_new_versions(client: Any, locked: str) -> None:
    rule = {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": 3}}
    order = {"ObjectLockEnabled": "Enabled", "Rule": rule}
    client.put_object_lock_configuration(Bucket=locked, ObjectLockConfiguration=order)
    shown = client.get_object_lock_configuration(Bucket=locked)["ObjectLockConfiguration"]
    assert shown == order
    put(client, locked, b"x")
    head = client.head_object(Bucket=locked, Key="k")
    left = head["ObjectLockRetainUntilDate"] - datetime.now(UTC)
    assert timedelta(days=2.9) < left < timedelta(days=3.1)


def test_locks_are_refused_where_they_cannot_be(
    client: Any, url: str, bucket: str, locked: str
) -> None:
    named = {"Bucket": bucket, "Key": "k"}
    assert code_of(client.put_object, **named, ObjectLockLegalHoldStatus="ON") == (
        400,
        "InvalidRequest",
    )
    configuration = code_of(client.get_object_lock_configuration, Bucket=bucket)
    assert configuration == (404, "ObjectLockConfigurationNotFoundError")
    put(client, locked, b"x")
    none = code_of(client.get_object_retention, Bucket=locked, Key="k")
    assert none == (404, "NoSuchObjectLockConfiguration")
    past = {"ObjectLockMode": "GOVERNANCE", "ObjectLockRetainUntilDate": soon(-1)}
    assert code_of(client.put_object, Bucket=locked, Key="k", **past) == (400, "InvalidArgument")
    # Later than any date that a header could say.
    target = f"{url}/{locked}/k"
    lock = {
        "x-amz-object-lock-mode": "GOVERNANCE",
        "x-amz-object-lock-retain-until-date": "9999-12-31T23:59:59-14:00",
    }
    answer = send("PUT", target, signed_headers("PUT", target, headers=lock), b"x")
    assert (answer.status, answer.code) == (400, "InvalidArgument")
    suspended = code_of(
        client.put_bucket_versioning, Bucket=locked, VersioningConfiguration={"Status": "Suspended"}
    )
    assert suspended == (409, "InvalidBucketState")


def test_a_version_without_an_id_is_read_and_copied_while_one_with_an_id_comes(
    client: Any, bucket: str
) -> None:
    content = bytes(range(256)) * (64 << 12)
    put(client, bucket, content, "large")
    status = {"Status": "Enabled"}
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration=status)
    body = client.get_object(Bucket=bucket, Key="large")["Body"]
    first = body.read(1000)
    put(client, bucket, b"new", "large")
    assert first + body.read() == content
    null = client.get_object(Bucket=bucket, Key="large", VersionId="null")
    assert null["Body"].read() == content


@pytest.mark.parametrize("how", ["overwritten", "deleted"])
@pytest.mark.parametrize("ranged", [False, True], ids=["whole", "range"])
def test_a_version_is_read_to_its_end_while_a_newer_one_takes_its_place(
    client: Any, versioned: str, how: str, ranged: bool
) -> None:
    content = bytes(range(256)) * (64 << 12)
    put(client, versioned, content, "large")
    asked = {"Range": f"bytes=0-{len(content) - 1}"} if ranged else {}
    body = client.get_object(Bucket=versioned, Key="large", **asked)["Body"]
    first = body.read(1000)
    if how == "overwritten":
        put(client, versioned, b"new", "large")
    else:
        client.delete_object(Bucket=versioned, Key="large")
    assert first + body.read() == content
