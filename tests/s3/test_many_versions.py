"""Keys with many versions: what is asked of them costs what is shown, not what there is. Endpoints in this loop."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from segmentstore.s3.settings import EndpointSettings
from tests.s3.conftest import client_of, endpoint
from tests.s3.test_objects import code_of
from tests.s3.test_versions import set_versioning, shown_versions
from tier2.volumes.index_database import LmdbIndex, Row

pytestmark = pytest.mark.integration

ROUNDS = 150
IN_DATABASE_SECONDS_MAX = 60.0


def put_and_delete(client: Any) -> list[tuple[str, str, bool, bool]]:
    """What has to be listed then."""
    client.create_bucket(Bucket="bucket")
    client.put_object(Bucket="bucket", Key="k", Body=b"null")
    set_versioning(client, "bucket", "Enabled")
    expected = [("k", "null", False, False)]
    for _ in range(ROUNDS):
        put = client.put_object(Bucket="bucket", Key="k", Body=b"x")
        deleted = client.delete_object(Bucket="bucket", Key="k")
        expected.append(("k", put["VersionId"], False, False))
        expected.append(("k", deleted["VersionId"], False, True))
    expected[-1] = ("k", expected[-1][1], True, True)
    return expected


async def test_a_key_with_many_versions_is_looked_at_and_listed_in_few_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows_read = 0
    scan = LmdbIndex.scan

    def counted(self: LmdbIndex, *args: Any, **facts: Any) -> Sequence[Row]:
        nonlocal rows_read
        rows = scan(self, *args, **facts)
        rows_read += len(rows)
        return rows

    monkeypatch.setattr(LmdbIndex, "scan", counted)
    async with endpoint(tmp_path, EndpointSettings(port=0)) as url:
        client = client_of(url)

        def is_looked_at_and_listed_in_few_rows(client: Any) -> bool:
            nonlocal rows_read
            rows_read = 0
            assert code_of(client.head_object, Bucket="bucket", Key="k")[0] == 404
            if rows_read > 2:
                return False
            rows_read = 0
            page = client.list_object_versions(Bucket="bucket", MaxKeys=4)
            assert page["IsTruncated"]
            marker = {
                "KeyMarker": page["NextKeyMarker"],
                "VersionIdMarker": page["NextVersionIdMarker"],
            }
            client.list_object_versions(Bucket="bucket", MaxKeys=4, **marker)
            return rows_read <= 20

        def work() -> None:
            expected = put_and_delete(client)
            # What is still in memory is read along, and the engine reads rows for itself now and then: it is asked
            # again until the last change is in the database, and it had nothing else to do.
            client.create_bucket(Bucket="other")
            until = time.monotonic() + IN_DATABASE_SECONDS_MAX
            while not is_looked_at_and_listed_in_few_rows(client):
                assert time.monotonic() < until, f"{rows_read=}"
                time.sleep(0.1)
            for size in (1, 7, 1000):
                assert sorted(shown_versions(client, "bucket", MaxKeys=size)) == sorted(expected)

        await asyncio.to_thread(work)
        client.close()


async def test_versions_that_are_deleted_page_by_page_are_all_shown(tmp_path: Path) -> None:
    async with endpoint(tmp_path, EndpointSettings(port=0)) as url:
        client = client_of(url)

        def work() -> None:
            expected = put_and_delete(client)
            found = []
            pages = client.get_paginator("list_object_versions")
            for page in pages.paginate(Bucket="bucket", PaginationConfig={"PageSize": 7}):
                rows = page.get("Versions", []) + page.get("DeleteMarkers", [])
                found += [row["VersionId"] for row in rows]
                named = [{"Key": row["Key"], "VersionId": row["VersionId"]} for row in rows]
                client.delete_objects(Bucket="bucket", Delete={"Objects": named})
            assert sorted(found) == sorted(row[1] for row in expected)
            client.delete_bucket(Bucket="bucket")

        await asyncio.to_thread(work)
        client.close()
