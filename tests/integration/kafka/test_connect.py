"""Kafka Connect carries lines from a file through a topic to a file, while the server is killed: none is lost.

Method: one worker by itself with the connectors for files that come with Kafka. Lines are appended before, while and
behind the kill; what has no line in the second file by then is on its way. Connect does so at least once: a line may be
there again, but the first of each come in the order of the first file.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.java_libraries import require_maven
from tests.integration.kafka.clients import new_topic
from tests.integration.kafka.java_tools import JavaProgram
from tests.integration.kafka.kafka_server import KafkaServerProcess

pytestmark = pytest.mark.integration

SECONDS_MAX = 300.0
LINES = 600


def properties(path: Path, **words: str) -> Path:
    """A file of them. Dots are written as two underlines."""
    text = "".join(f"{word.replace('__', '.')}={value}\n" for word, value in words.items())
    path.write_text(text)
    return path


async def until(condition: Callable[[], bool], program: JavaProgram) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        while not condition():
            program.require_running()
            await asyncio.sleep(0.1)


async def test_lines_of_a_file_reach_another_one_over_a_killed_server(tmp_path: Path) -> None:
    require_maven("Kafka Connect was not run")
    source, sink = tmp_path / "source.txt", tmp_path / "sink.txt"
    lines = [f"line {number}" for number in range(3 * LINES)]

    def append(first: int) -> None:
        with source.open("a") as file:
            file.writelines(f"{line}\n" for line in lines[first : first + LINES])

    def arrived() -> list[str]:
        return sink.read_text().splitlines() if sink.exists() else []

    with KafkaServerProcess(tmp_path / "data") as server:
        topic = await asyncio.to_thread(new_topic, server.bootstrap)
        string = "org.apache.kafka.connect.storage.StringConverter"
        worker = properties(
            tmp_path / "worker.properties",
            bootstrap__servers=server.bootstrap,
            key__converter=string,
            value__converter=string,
            offset__storage__file__filename=str(tmp_path / "offsets"),
            offset__flush__interval__ms="500",
            listeners="HTTP://127.0.0.1:0",
            plugin__discovery="service_load",
        )
        first = properties(
            tmp_path / "source.properties",
            name="from-file",
            connector__class="FileStreamSource",
            tasks__max="1",
            file=str(source),
            topic=topic,
        )
        second = properties(
            tmp_path / "sink.properties",
            name="to-file",
            connector__class="FileStreamSink",
            tasks__max="1",
            file=str(sink),
            topics=topic,
        )
        program = JavaProgram(
            "org.apache.kafka.connect.cli.ConnectStandalone",
            [str(worker), str(first), str(second)],
            log=tmp_path / "connect.log",
        )
        append(0)
        with program:
            await until(lambda: bool(arrived()), program)
            append(LINES)
            server.kill()
            append(2 * LINES)
            server.start()
            await until(lambda: set(lines) <= set(arrived()), program)
        assert list(dict.fromkeys(arrived())) == lines
