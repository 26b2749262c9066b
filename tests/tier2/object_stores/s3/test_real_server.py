"""The conformance suite over a real S3 server."""

from collections.abc import AsyncIterator
from random import Random

import pytest

from tests.contracts.object_store_suite import ObjectStoreSuite
from tests.tier2.object_stores.s3.real_server import gateway_url, new_bucket
from tier2.object_stores.s3.s3_object_store import S3ObjectStore
from tier2.object_stores.s3.settings import S3Settings

__all__ = ["gateway_url"]

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("credentials")]


async def started(settings: S3Settings, seed: int) -> S3ObjectStore:
    store = S3ObjectStore(settings=settings, random=Random(seed))
    await store.start()
    return store


class TestS3ObjectStoreOnVersitygw(ObjectStoreSuite):
    @pytest.fixture
    async def settings(self, gateway_url: str) -> S3Settings:
        bucket = await new_bucket(gateway_url)
        return S3Settings(
            bucket=bucket, endpoint_url=gateway_url, prefix="tier2", connect_seconds_max=60.0
        )

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
