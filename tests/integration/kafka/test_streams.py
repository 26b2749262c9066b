"""A program of Kafka Streams counts words: over a killed server none is lost, and a restart begins with its counts.

Method: a store in memory, so that each start reads the changelog, which is a compacted topic; between lines and counts
lies a topic of words, whose records Streams deletes behind itself. Streams counts at least once: over the kill a word
may be counted again, over an orderly restart none is.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from segmentstore.client.topics import Topics, connected_topics
from tests.integration.java_libraries import require_maven
from tests.integration.kafka.clients import Sent, new_topic, produce_by_aiokafka, read_by_aiokafka
from tests.integration.kafka.java_tools import JavaProgram
from tests.integration.kafka.kafka_server import KafkaServerProcess

pytestmark = pytest.mark.integration

SECONDS_MAX = 300.0
PROGRAM = Path(__file__).parent / "java" / "WordCount.java"


@dataclass
class Counting:
    """The topics of one program, and what is in them."""

    bootstrap: str
    topics: Topics
    lines: str
    counted: str

    async def write(self, lines: list[str]) -> None:
        records = [Sent(None, line.encode()) for line in lines]
        await produce_by_aiokafka(self.bootstrap, self.lines, records)

    async def counts(self) -> dict[str, int]:
        """The last one of each word."""
        (place,) = await self.topics.offsets(self.counted)
        if not place.end:
            return {}
        records = await read_by_aiokafka(self.bootstrap, self.counted, place.end)
        return {(each.key or b"").decode(): int(each.value or b"") for each in records}

    async def until(
        self, condition: Callable[[Mapping[str, int]], bool], program: JavaProgram
    ) -> None:
        async with asyncio.timeout(SECONDS_MAX):
            while not condition(await self.counts()):
                program.require_running()
                await asyncio.sleep(0.1)


async def test_words_are_counted_over_a_killed_server_and_a_restart(tmp_path: Path) -> None:
    require_maven("Kafka Streams was not run")
    first = [f"word{number % 7} word{number % 3}" for number in range(200)]
    second = [f"word{number % 5}" for number in range(100)]
    of_first, of_second = Counter(" ".join(first).split()), Counter(" ".join(second).split())
    with KafkaServerProcess(tmp_path / "data") as server:
        lines = await asyncio.to_thread(new_topic, server.bootstrap)
        counted = await asyncio.to_thread(new_topic, server.bootstrap)
        name = f"counting-{lines}"
        program = JavaProgram(
            PROGRAM,
            [server.bootstrap, name, str(tmp_path / "state"), lines, counted],
            log=tmp_path / "streams.log",
        )
        async with connected_topics(server.bootstrap) as topics:
            counting = Counting(server.bootstrap, topics, lines, counted)
            with program:
                await counting.write(first[:100])
                await counting.until(bool, program)
                server.kill()
                server.start()
                await counting.write(first[100:])
                await counting.until(
                    lambda counts: all(counts.get(each, 0) >= n for each, n in of_first.items()),
                    program,
                )
            before = await counting.counts()
            with program:
                await counting.write(second)
                expected = Counter(before) + of_second
                await counting.until(lambda counts: counts == expected, program)
            store, words = f"{name}-counts-changelog", f"{name}-counts-repartition"
            assert (await topics.config(store))["cleanup.policy"] == "compact"
            (place,) = await topics.offsets(words)
            assert place.first > 0, "words that were counted are deleted"
