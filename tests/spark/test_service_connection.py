"""Spark reaches a service that is behind TLS wherever it asks it anything."""

import pickle
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

from segmentstore.client import ClientSettings, connect
from segmentstore.client.errors import ClientError
from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.spark.options import parse_options
from segmentstore.spark.service_connection import connect_service
from segmentstore.spark.sink.sink_options import parse_sink_options
from segmentstore.spark.streaming.progress_publisher import ProgressPublisher
from segmentstore.spark.streams.service_catalog import open_service_catalog
from tests.client.fake_controller import FakeController
from tests.client.fake_store import FakeStore
from tests.client.test_security import behind_tls, certificate

__all__ = ["certificate"]

IMPATIENT = ClientSettings(request_seconds=0.5, retry_seconds_max=0.02)


@pytest.fixture
async def controller() -> AsyncIterator[FakeController]:
    async with FakeStore().serving() as store, FakeController(store).serving() as controller:
        async with connect(controller.address, random=Random(1)) as plain:
            await plain.scope("s").create()
            await plain.stream("s/t").create()
        yield controller


async def test_reads_writes_and_progress_go_through_tls(
    controller: FakeController, certificate: Path
) -> None:
    async with behind_tls(controller.address, certificate) as address:
        words = {
            "controller": address,
            "stream": "s/t",
            "tlsAuthority": str(certificate / "certificate"),
        }
        options = parse_options(words)
        async with open_service_catalog(options, None) as (_, catalog):
            assert await catalog.streams("s") == ["t"]
        publisher = ProgressPublisher.at(options, scope="s", group="query")
        await publisher.publish({"s/t": {0: 0}})
        await publisher.close()
        assert controller.groups == {"s/query"}
        # As executors get them, where the file is not.
        for where in (options, parse_sink_options(words)):
            async with connect_service(pickle.loads(pickle.dumps(where))) as store:
                assert list(await store.scope("s").streams()) == ["t"]


async def test_a_service_that_nobody_vouches_for_is_not_asked(
    controller: FakeController, certificate: Path
) -> None:
    async with behind_tls(controller.address, certificate) as address:
        options = parse_options({"controller": address, "stream": "s/t"})
        async with connect_service(options, IMPATIENT) as store:
            with pytest.raises(ClientError):
                await store.scopes()


def test_certificates_that_cannot_be_read_or_used_are_refused(tmp_path: Path) -> None:
    words = {"controller": "tcp://127.0.0.1:9090", "stream": "s/t"}
    with pytest.raises(InvalidRequestError, match="tlsAuthority"):
        parse_options(words | {"tlsAuthority": str(tmp_path / "missing")})
    with pytest.raises(InvalidRequestError, match="tls://"):
        connect_service(parse_options(words | {"tlsServerName": "other"}))
