"""The conformance suite over a server of S3's protocol, and what is special about S3."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segmentstore.contracts.errors import (
    InvalidRequestError,
    ObjectChangedError,
    ObjectExistsError,
    StorageUnavailableError,
)
from segmentstore.contracts.identifiers import BufferView
from tests.contracts.object_store_suite import ObjectStoreSuite
from tests.tier2.counting_threads import CountingThreads
from tier2.conditional_puts import require_compare_and_set
from tier2.object_stores.memory import MemoryObjectStore
from tier2.object_stores.s3.s3_object_store import S3ObjectStore, cut_into_parts
from tier2.object_stores.s3.settings import S3Settings, parse_s3_url


@pytest.fixture
def settings(moto_url: str, bucket: str) -> S3Settings:
    return S3Settings(
        bucket=bucket, prefix="stores/one", endpoint_url=moto_url, startup_race_rounds=0
    )


async def started(settings: S3Settings, seed: int) -> S3ObjectStore:
    store = S3ObjectStore(settings=settings, random=Random(seed))
    await store.start()
    return store


class TestS3ObjectStore(ObjectStoreSuite):
    refuses_path_prefixes = False

    @pytest.fixture
    async def store(self, settings: S3Settings) -> AsyncIterator[S3ObjectStore]:
        store = await started(settings, 1)
        yield store
        await store.close()

    @pytest.fixture
    async def second_store(self, settings: S3Settings) -> AsyncIterator[S3ObjectStore]:
        store = await started(settings, 2)
        yield store
        await store.close()


class TestS3ObjectStoreThatReadsByObstore(ObjectStoreSuite):
    refuses_path_prefixes = False

    @pytest.fixture
    async def store(self, settings: S3Settings) -> AsyncIterator[S3ObjectStore]:
        store = await started(replace(settings, rust_reads=True), 1)
        yield store
        await store.close()

    @pytest.fixture
    async def second_store(self, settings: S3Settings) -> AsyncIterator[S3ObjectStore]:
        store = await started(replace(settings, rust_reads=True), 2)
        yield store
        await store.close()


async def test_a_file_of_a_topic_goes_up_by_one_request(settings: S3Settings) -> None:
    """Parts could not be conditional on the key; and one put is what a file costs."""
    store = await started(settings, 1)
    body = Random(3).randbytes(40 << 20)
    before = dict(store.statistics.requests)
    await store.put_if_absent("topics/t/partitions/0/segments/00000000-00000009.seg", body)
    counts = store.statistics.requests.items()
    made = {name: n - before.get(name, 0) for name, n in counts if n > before.get(name, 0)}
    assert made == {"put_object": 1}
    assert (await store.get("topics/t/partitions/0/segments/00000000-00000009.seg")).content == body
    with pytest.raises(ObjectExistsError):
        await store.put_if_absent("topics/t/partitions/0/segments/00000000-00000009.seg", b"x")
    await store.close()


async def test_a_large_object_goes_up_in_parts_and_reads_back(settings: S3Settings) -> None:
    store = await started(replace(settings, multipart_bytes_min=6 << 20, part_bytes=5 << 20), 1)
    body = Random(3).randbytes(12 << 20)
    await store.put("large", [body[: 7 << 20], body[7 << 20 :]])
    assert (await store.get("large")).content == body
    assert store.statistics.requests["upload_part"] == 3
    await store.put("large", [body])
    with pytest.raises(ObjectExistsError):
        await store.put("large", [body[1:], b"x"])
    assert (await store.get("large")).content == body
    await store.close()


async def test_large_bodies_are_put_together_in_a_thread(settings: S3Settings) -> None:
    settings = replace(settings, multipart_bytes_min=6 << 20, part_bytes=5 << 20)
    with CountingThreads() as threads:
        store = S3ObjectStore(settings=settings, random=Random(1), executor=threads)
        await store.start()
        for size, jobs in ((1000, 0), (1 << 20, 1), (12 << 20, 3)):
            before = threads.jobs
            body = Random(size).randbytes(size)
            await store.put(f"object/{size}", [body[:300], body[300:]])
            assert threads.jobs == before + jobs, size
            assert (await store.get(f"object/{size}")).content == body
        await store.close()


@given(
    st.lists(st.binary(max_size=40), max_size=8),
    st.integers(min_value=1, max_value=30),
)
def test_parts_hold_the_bytes_in_order_and_only_the_last_is_shorter(
    buffers: list[bytes], part_bytes: int
) -> None:
    parts = [b"".join(part) for part in cut_into_parts(buffers, part_bytes)]
    assert b"".join(parts) == b"".join(buffers)
    assert all(len(part) == part_bytes for part in parts[:-1])
    assert all(0 < len(part) <= part_bytes for part in parts)


async def test_stores_under_different_prefixes_do_not_see_each_other(settings: S3Settings) -> None:
    one, other = (
        await started(settings, 1),
        await started(replace(settings, prefix="stores/two"), 2),
    )
    await one.put("a", [b"of one"])
    await other.put("a", [b"of other"])
    assert (await one.get("a")).content == b"of one"
    async with aclosing(other.list("")) as objects:
        assert [(info.key, info.size) async for info in objects] == [("a", 8)]
    await one.close()
    await other.close()


async def test_requests_are_counted_and_priced(settings: S3Settings) -> None:
    store = await started(settings, 1)
    before = store.statistics.requests.total()
    await store.put("a", [b"x"])
    await store.get("a")
    assert store.statistics.requests.total() == before + 2
    assert store.statistics.cost_usd("put_object") > store.statistics.cost_usd("get_object") > 0
    await store.close()


async def test_h4_a_server_whose_conditional_puts_are_atomic_passes_the_race_and_keeps_nothing(
    settings: S3Settings,
) -> None:
    store = await started(replace(settings, startup_race_rounds=3), 1)
    async with aclosing(store.list("")) as objects:
        assert [info async for info in objects] == []
    await store.close()


class CheckThenWriteStore(MemoryObjectStore):
    """Checks the condition, lets others run, then writes: what some gateways do."""

    async def put_if_match(self, key: str, content: BufferView, tag: str) -> str:
        current = await self.get(key)
        await asyncio.sleep(0)
        if current.tag != tag:
            raise ObjectChangedError(key)
        return self._store(key, bytes(content))


async def test_h4_a_store_whose_conditional_puts_are_not_atomic_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="8 racing put-if-match requests 8 won"):
        await require_compare_and_set(CheckThenWriteStore(), "probe/x", racers=8)


async def test_a_missing_bucket_has_a_name(settings: S3Settings) -> None:
    nowhere = replace(settings, bucket="nobody-made-this", startup_race_rounds=1)
    store = S3ObjectStore(settings=nowhere, random=Random(1))
    with pytest.raises(StorageUnavailableError) as caught:
        await store.start()
    assert caught.value.state == "bucket_missing"


async def test_a_server_that_is_not_there_is_unavailable(settings: S3Settings) -> None:
    gone = replace(
        settings,
        startup_race_rounds=1,
        endpoint_url="http://127.0.0.1:1",
        attempts_max=2,
        retry_seconds_first=0.001,
    )
    store = S3ObjectStore(settings=gone, random=Random(1))
    with pytest.raises(StorageUnavailableError) as caught:
        await store.start()
    assert caught.value.state == "unavailable"


def test_a_url_names_bucket_and_prefix() -> None:
    assert parse_s3_url("s3://bucket/a/b/") == ("bucket", "a/b")
    assert parse_s3_url("s3://bucket") == ("bucket", "")
    for wrong in ("bucket", "s3://", "http://bucket", "s3:///a"):
        with pytest.raises(InvalidRequestError):
            parse_s3_url(wrong)
