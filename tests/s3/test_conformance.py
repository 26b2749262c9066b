"""Our own object store over our own endpoint: the conformance suite, with the race of conditional puts at start."""

from collections.abc import AsyncIterator
from itertools import count
from random import Random
from typing import Any

import pytest

from tests.contracts.object_store_suite import ObjectStoreSuite
from tests.s3.conftest import KEYS
from tier2.object_stores.s3.s3_object_store import S3ObjectStore
from tier2.object_stores.s3.settings import S3Settings

pytestmark = pytest.mark.integration
_NUMBERS = count(1)


async def started(settings: S3Settings, seed: int) -> S3ObjectStore:
    store = S3ObjectStore(settings=settings, random=Random(seed))
    await store.start()
    return store


class TestS3ObjectStoreOnOurEndpoint(ObjectStoreSuite):
    refuses_path_prefixes = False

    @pytest.fixture
    async def settings(self, client: Any, url: str, monkeypatch: pytest.MonkeyPatch) -> S3Settings:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEYS.access_key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEYS.secret_key)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        name = f"tier2-{next(_NUMBERS)}"
        client.create_bucket(Bucket=name)
        return S3Settings(bucket=name, endpoint_url=url, prefix="tier2", startup_race_rounds=2)

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
