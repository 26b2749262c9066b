"""One server for each test module that asks for it."""

from collections.abc import Iterator

import pytest

from tests.integration.kafka.kafka_server import KafkaServerProcess


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServerProcess]:
    with KafkaServerProcess(tmp_path_factory.mktemp("kafka") / "data") as process:
        yield process
