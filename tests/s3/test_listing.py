"""Listings through boto3, against what a listing of a plain Python set says."""

from random import Random
from typing import Any

import pytest

from tests.s3.test_objects import code_of

pytestmark = pytest.mark.integration


def fill(client: Any, bucket: str, keys: list[str]) -> None:
    for key in keys:
        client.put_object(Bucket=bucket, Key=key, Body=key.encode())


def expected_entries(keys: list[str], prefix: str, delimiter: str) -> list[str]:
    entries = []
    for key in sorted(keys, key=str.encode):
        if not key.startswith(prefix):
            continue
        cut = key.find(delimiter, len(prefix)) if delimiter else -1
        entry = key if cut < 0 else key[: cut + len(delimiter)]
        if entry not in entries:
            entries.append(entry)
    return entries


def entries_of(page: dict[str, Any]) -> list[str]:
    keys = [row["Key"] for row in page.get("Contents", ())]
    prefixes = [row["Prefix"] for row in page.get("CommonPrefixes", ())]
    return sorted(keys + prefixes, key=str.encode)


def walk_v2(client: Any, **parameters: object) -> list[str]:
    found: list[str] = []
    while True:
        page = client.list_objects_v2(**parameters)
        assert page["KeyCount"] == len(entries_of(page))
        found += entries_of(page)
        if not page["IsTruncated"]:
            return found
        parameters["ContinuationToken"] = page["NextContinuationToken"]


def walk_v1(client: Any, **parameters: object) -> list[str]:
    found: list[str] = []
    while True:
        page = client.list_objects(**parameters)
        found += entries_of(page)
        if not page["IsTruncated"]:
            return found
        parameters["Marker"] = page["NextMarker"]


@pytest.mark.parametrize("seed", range(3))
def test_every_page_size_prefix_and_delimiter_gives_the_same_walk(
    client: Any, bucket: str, seed: int
) -> None:
    random = Random(seed)
    keys = sorted(
        {"".join(random.choice("ab/-é") for _ in range(random.randint(1, 6))) for _ in range(50)}
    )
    fill(client, bucket, keys)
    for prefix in ("", "a", "a/", "b/a", "zz"):
        for delimiter in ("", "/", "-", "a/"):
            expected = expected_entries(keys, prefix, delimiter)
            asked = {"Bucket": bucket, "Prefix": prefix, "Delimiter": delimiter}
            for size in (1, 3, 1000):
                assert walk_v2(client, **asked, MaxKeys=size) == expected
            assert walk_v1(client, **asked, MaxKeys=2) == expected


def test_a_walk_over_many_keys_jumps_over_directories(client: Any, bucket: str) -> None:
    keys = [f"d{number % 3}/{number:03d}" for number in range(60)] + [
        f"f{n:02d}" for n in range(40)
    ]
    fill(client, bucket, keys)
    expected = ["d0/", "d1/", "d2/", *(f"f{n:02d}" for n in range(40))]
    assert walk_v2(client, Bucket=bucket, Delimiter="/", MaxKeys=7) == expected


def test_start_after_begins_behind_a_key_that_need_not_exist(client: Any, bucket: str) -> None:
    fill(client, bucket, ["a", "b", "c"])
    page = client.list_objects_v2(Bucket=bucket, StartAfter="aa")
    assert entries_of(page) == ["b", "c"]
    assert entries_of(client.list_objects_v2(Bucket=bucket, StartAfter="b")) == ["c"]


def test_a_row_says_what_the_object_is(client: Any, bucket: str) -> None:
    put = client.put_object(Bucket=bucket, Key="k", Body=b"12345")
    row = client.list_objects_v2(Bucket=bucket, FetchOwner=True)["Contents"][0]
    head = client.head_object(Bucket=bucket, Key="k")
    assert (row["Key"], row["Size"], row["ETag"]) == ("k", 5, put["ETag"])
    assert row["LastModified"].replace(microsecond=0) == head["LastModified"]
    assert "Owner" in row


def test_no_keys_are_asked_for_and_none_are_given(client: Any, bucket: str) -> None:
    fill(client, bucket, ["a"])
    page = client.list_objects_v2(Bucket=bucket, MaxKeys=0)
    assert (page["KeyCount"], page["IsTruncated"]) == (0, False)


def test_arguments_that_cannot_be_are_refused(client: Any, bucket: str) -> None:
    assert code_of(client.list_objects_v2, Bucket=bucket, MaxKeys=-1) == (400, "InvalidArgument")
    token = code_of(client.list_objects_v2, Bucket=bucket, ContinuationToken="not ours!")
    assert token == (400, "InvalidArgument")
    encoding = code_of(client.list_objects, Bucket=bucket, EncodingType="rot13")
    assert encoding == (400, "InvalidArgument")


def test_buckets_are_made_listed_and_removed_when_they_are_empty(client: Any, bucket: str) -> None:
    assert bucket in [row["Name"] for row in client.list_buckets()["Buckets"]]
    assert client.get_bucket_location(Bucket=bucket)["LocationConstraint"] is None
    assert code_of(client.create_bucket, Bucket=bucket) == (409, "BucketAlreadyOwnedByYou")
    fill(client, bucket, ["k"])
    assert code_of(client.delete_bucket, Bucket=bucket) == (409, "BucketNotEmpty")
    client.delete_object(Bucket=bucket, Key="k")
    client.delete_bucket(Bucket=bucket)
    assert code_of(client.head_bucket, Bucket=bucket)[0] == 404


def test_objects_of_one_bucket_are_not_in_another(client: Any, bucket: str) -> None:
    other = f"{bucket}-x"
    client.create_bucket(Bucket=other)
    fill(client, other, ["k"])
    assert client.list_objects_v2(Bucket=bucket)["KeyCount"] == 0
    assert code_of(client.get_object, Bucket=bucket, Key="k") == (404, "NoSuchKey")
