"""One server for each test module that asks for it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.kafka.kafka_server import KafkaServerProcess

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.integration)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServerProcess]:
    with KafkaServerProcess(tmp_path_factory.mktemp("kafka") / "data") as process:
        yield process
