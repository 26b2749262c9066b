"""What users of franz-go do, by a program in Go (`go/`): its commands end well where the store does what Kafka does."""

import subprocess
from pathlib import Path
from uuid import uuid4

import pytest

from tests.go_programs import go_program
from tests.integration.kafka.clients import SECONDS_MAX
from tests.integration.kafka.kafka_server import KafkaServerProcess

pytestmark = pytest.mark.integration

SOURCES = Path(__file__).parent / "go"
KILLS = 3
BETWEEN_KILLS = 500
"""Records that are acknowledged."""


@pytest.fixture(scope="module")
def program() -> Path:
    return go_program(SOURCES, name="franz-go", what="franz-go was not run")


@pytest.mark.parametrize("command", ["round-trips", "group", "administration", "transactions"])
def test_franz_go_does_what_it_does_with_kafka(
    program: Path, server: KafkaServerProcess, command: str
) -> None:
    words = [str(program), server.bootstrap, command, f"topic-{uuid4().hex}"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=2 * SECONDS_MAX)
    assert done.returncode == 0, done.stderr


def test_records_of_franz_go_are_there_once_and_in_order_over_kills(
    program: Path, tmp_path: Path
) -> None:
    with KafkaServerProcess(tmp_path / "data") as server:
        words = [str(program), server.bootstrap, "numbers", f"topic-{uuid4().hex}"]
        with subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as client:
            try:
                assert client.stdout is not None
                goal = BETWEEN_KILLS
                for _ in range(KILLS):
                    while (told := client.stdout.readline()) and int(told.split()[1]) < goal:
                        pass
                    assert told, "the client has ended"
                    server.kill()
                    server.start()
                    goal = int(told.split()[1]) + BETWEEN_KILLS
                _, said = client.communicate(timeout=SECONDS_MAX)
            finally:
                client.kill()
    assert client.returncode == 0, said
