"""`segmentstore topic` and `segmentstore group` against a server of Kafka's protocol, which runs in another thread."""

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from segmentstore.cli.exit_codes import ExitCode
from segmentstore.topics.groups.committed_offsets import TopicPartition
from segmentstore.topics.groups.groups import OffsetToCommit
from tests.cli.command_line import CommandLine, Result
from tests.containers.node import MemoryTiers
from tests.topics.kafka_service import KafkaService, kafka_service
from tests.topics.slow_reads import make_reads_slow


class ServiceThread:
    """A service with a loop of its own: each command has one too."""

    def __init__(self) -> None:
        self._ready = threading.Event()
        self._end = asyncio.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._loop: asyncio.AbstractEventLoop
        self.service: KafkaService

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(60), "the service did not start"
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    async def _serve(self) -> None:
        async with kafka_service(MemoryTiers()) as service:
            self._loop, self.service = asyncio.get_running_loop(), service
            self._ready.set()
            await self._end.wait()

    def commit(self, group: str, topic: str, partition: int, offset: int) -> None:
        offsets = {TopicPartition(topic, partition): OffsetToCommit(offset=offset)}
        committed = self.service.groups.commit(group, member_id="", generation=-1, offsets=offsets)
        assert not asyncio.run_coroutine_threadsafe(committed, self._loop).result(60)


class KafkaCommands:
    """`segmentstore NOUN VERB ... --kafka`."""

    def __init__(self, cli: CommandLine, thread: ServiceThread, folder: Path) -> None:
        self._cli = cli
        self.thread = thread
        self._folder = folder

    def __call__(self, *arguments: str, lines: bytes | None = None) -> Result:
        """Run one command line; `lines` become a file that is its last argument."""
        given = list(arguments)
        if lines is not None:
            path = self._folder / "lines"
            path.write_bytes(lines)
            given.append(str(path))
        return self._cli(*given, "--kafka", self.thread.service.address)

    def works(self, *arguments: str, lines: bytes | None = None) -> Result:
        result = self(*arguments, lines=lines)
        assert result.exit_code == ExitCode.OK, result.errors
        return result


@pytest.fixture
def kafka(offline: CommandLine, tmp_path: Path) -> Iterator[KafkaCommands]:
    with ServiceThread() as thread:
        yield KafkaCommands(offline, thread, tmp_path)


def test_a_topic_is_created_listed_shown_and_deleted(kafka: KafkaCommands) -> None:
    made = kafka.works(
        *("topic", "create", "--name", "logs", "--partitions", "2", "--compression", "lz4"),
        *("--config", "retention.ms=60000", "-o", "json"),
    )
    assert made.row == {
        "topic": "logs",
        "partitions": 2,
        "retention.ms": "60000",
        "compression.type": "lz4",
    }
    kafka.works("topic", "create", "archive")
    listed = kafka.works("topic", "list", "-o", "json").rows
    assert listed == [
        {"topic": "archive", "partitions": 1},
        {"topic": "logs", "partitions": 2},
    ]
    rows = kafka.works("topic", "info", "logs", "--config", "-o", "json").rows
    config = {row["config"]: row["value"] for row in rows}
    assert (config["compression.type"], config["retention.ms"]) == ("lz4", "60000")
    assert kafka("topic", "create", "logs").exit_code == ExitCode.CONFLICT
    wrong = kafka("topic", "create", "new", "--config", "no.such.word=1")
    assert wrong.exit_code == ExitCode.USAGE
    assert wrong.errors.startswith("error: ")
    changes = ("--config", "retention.ms=5", "--default", "compression.type", "--partitions", "3")
    kafka.works("topic", "alter", "logs", *changes)
    rows = kafka.works("topic", "info", "logs", "--config", "-o", "json").rows
    config = {row["config"]: row["value"] for row in rows}
    assert (config["compression.type"], config["retention.ms"]) == ("producer", "5")
    assert len(kafka.works("topic", "info", "logs", "-o", "json").rows) == 3
    for wrong_change in (("--partitions", "2"), ("--config", "no.such.word=1")):
        refused = kafka("topic", "alter", "logs", *wrong_change)
        assert refused.exit_code == ExitCode.USAGE, refused.errors
    kafka.works("topic", "delete", "logs", "--name", "archive")
    assert kafka.works("topic", "list").text == ""
    for gone in (
        ("alter", "logs", "--partitions", "9"),
        ("info", "logs"),
        ("consume", "logs"),
        ("delete", "logs"),
    ):
        assert kafka("topic", *gone).exit_code == ExitCode.NOT_FOUND


@pytest.mark.parametrize(
    "arguments",
    [
        ("topic", "create"),
        ("topic", "create", "a", "--name", "b"),
        ("topic", "create", "a", "--config", "word"),
        ("topic", "delete"),
        ("topic", "alter", "a"),
        ("topic", "alter", "a", "--config", "b=1", "--default", "b"),
        ("topic", "consume", "a", "--from", "5"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(
    offline: CommandLine, arguments: tuple[str, ...]
) -> None:
    assert offline(*arguments).exit_code == ExitCode.USAGE


def test_lines_are_written_and_read(kafka: KafkaCommands) -> None:
    kafka.works("topic", "create", "logs", "--partitions", "3")
    written = kafka.works("topic", "produce", "logs", "-o", "json", lines=b"one\ntwo\n\nfour")
    assert written.row == {"topic": "logs", "records": 4}
    assert kafka.works("topic", "consume", "logs").content == b"one\ntwo\n\nfour\n"
    rows = kafka.works("topic", "info", "logs", "-o", "json").rows
    assert [(row["first_offset"], row["end_offset"]) for row in rows] == [(0, 4), (0, 0), (0, 0)]
    part = kafka.works(
        "topic", "consume", "logs", "--partition", "0", "--from", "1", "--limit", "2"
    )
    assert part.content == b"two\n\n"
    kafka.works("topic", "produce", "logs", "--partition", "2", lines=b"\xff\n")
    row = kafka.works("topic", "consume", "logs", "--partition", "2", "-o", "json").row
    assert row["timestamp_ms"] > 0
    del row["timestamp_ms"]
    assert row == {"topic": "logs", "partition": 2, "offset": 0, "key": None, "value_hex": "ff"}
    for verb in ("produce", "consume"):
        lines = b"x\n" if verb == "produce" else None
        refused = kafka("topic", verb, "logs", "--partition", "3", lines=lines)
        assert refused.exit_code == ExitCode.USAGE
    beyond = kafka("topic", "consume", "logs", "--partition", "0", "--from", "5")
    assert beyond.exit_code == ExitCode.CONFLICT


def test_many_lines_of_next_to_nothing_are_written(kafka: KafkaCommands) -> None:
    """What a batch needs for a record is longer than these lines: 256 KiB of them were more than a topic takes."""
    kafka.works("topic", "create", "logs")
    written = kafka.works("topic", "produce", "logs", "-o", "json", lines=b"\n" * 150_000)
    assert written.row == {"topic": "logs", "records": 150_000}
    assert kafka.works("topic", "info", "logs", "-o", "json").row["end_offset"] == 150_000


def test_a_key_decides_the_partition_and_the_order_within_it_stays(kafka: KafkaCommands) -> None:
    kafka.works("topic", "create", "logs", "--partitions", "4")
    lines = [f"key-{number % 5}:{number}" for number in range(2000)]
    content = "".join(f"{line}\n" for line in lines).encode()
    command = ("topic", "produce", "logs", "--key-separator", ":", "--compression", "zstd")
    kafka.works(*command, lines=content)
    rows = kafka.works("topic", "consume", "logs", "-o", "json").rows
    assert len(rows) == len(lines)
    places = {(row["key"], row["partition"]) for row in rows}
    assert len(places) == 5, "a key has one partition"
    for key in {row["key"] for row in rows}:
        found = [f"{key}:{row['value']}" for row in rows if row["key"] == key]
        assert found == [line for line in lines if line.startswith(f"{key}:")]
    wrong = kafka("topic", "produce", "logs", "--key-separator", ":", lines=b"no separator\n")
    assert wrong.exit_code == ExitCode.USAGE


def test_more_than_one_answer_of_records_is_read(kafka: KafkaCommands) -> None:
    kafka.works("topic", "create", "logs")
    content = b"".join(b"%07d" % number + b"x" * 992 + b"\n" for number in range(3000))
    kafka.works("topic", "produce", "logs", lines=content)
    assert kafka.works("topic", "consume", "logs").content == content


def test_a_follower_ends_at_its_limit(kafka: KafkaCommands) -> None:
    kafka.works("topic", "create", "logs", "--partitions", "2")
    kafka.works("topic", "produce", "logs", "--partition", "1", lines=b"one\ntwo\n")
    followed = kafka.works("topic", "consume", "logs", "--follow", "--limit", "1")
    assert followed.content == b"one\n"


@pytest.mark.parametrize("follow", [True, False])
def test_a_read_that_storage_is_too_slow_for_ends_a_listing_with_an_error_and_no_follower(
    kafka: KafkaCommands, monkeypatch: pytest.MonkeyPatch, follow: bool
) -> None:
    # The server's answer was empty, and was taken for the end of the partition: exit code 0, and records missing.
    kafka.works("topic", "create", "logs")
    kafka.works("topic", "produce", "logs", lines=b"a\nb\n")
    make_reads_slow(monkeypatch, 1)
    if follow:
        shown = kafka.works("topic", "consume", "logs", "--follow", "--limit", "2")
        assert shown.content == b"a\nb\n"
        return
    shown = kafka("topic", "consume", "logs")
    assert (shown.exit_code, shown.content) == (ExitCode.UNAVAILABLE, b"")
    assert "code=REQUEST_TIMED_OUT" in shown.errors


def test_groups_are_listed_shown_and_deleted(kafka: KafkaCommands) -> None:
    kafka.works("topic", "create", "logs")
    kafka.works("topic", "produce", "logs", lines=b"one\ntwo\nthree\n")
    kafka.thread.commit("readers", "logs", 0, 1)
    assert kafka.works("group", "list", "-o", "json").rows == [{"group": "readers"}]
    assert kafka.works("group", "info", "readers", "-o", "json").row == {
        "group": "readers",
        "state": "Empty",
        "protocol": "",
        "member": None,
        "client": None,
        "host": None,
    }
    offsets = kafka.works("group", "offsets", "readers", "-o", "json").row
    assert offsets == {"topic": "logs", "partition": 0, "offset": 1, "end_offset": 3, "lag": 2}
    kafka.works("group", "delete", "readers")
    assert kafka.works("group", "list").text == ""
    for verb in ("info", "delete"):
        assert kafka("group", verb, "readers").exit_code == ExitCode.NOT_FOUND
    assert json.dumps(kafka.works("group", "offsets", "readers", "-o", "json").rows) == "[]"


def test_a_server_that_is_not_there_is_told(kafka: KafkaCommands, offline: CommandLine) -> None:
    assert offline("topic", "list", "--kafka", "127.0.0.1:1").exit_code == ExitCode.UNAVAILABLE
    assert offline("topic", "list", "--kafka", "nowhere").exit_code == ExitCode.USAGE


@pytest.mark.parametrize("host", ["a..b", "a" * 64])
def test_a_name_that_no_host_has_is_told_in_one_sentence(offline: CommandLine, host: str) -> None:
    told = offline("topic", "list", "--kafka", f"{host}:9092")
    assert told.exit_code == ExitCode.UNAVAILABLE
    assert told.errors.startswith(f"error: no connection address={host}:9092")


def test_an_offset_of_a_partition_that_is_not_there_is_shown_without_an_end(
    kafka: KafkaCommands,
) -> None:
    """Behind a recovery from Tier 2 alone the groups' offsets may be newer than the catalogue of topics."""
    kafka.works("topic", "create", "logs")
    kafka.works("topic", "produce", "logs", lines=b"one\ntwo\nthree\n")
    kafka.thread.commit("readers", "logs", 0, 1)
    kafka.thread.commit("readers", "logs", 3, 5)
    shown = kafka.works("group", "offsets", "readers", "-o", "json").rows
    assert shown == [
        {"topic": "logs", "partition": 0, "offset": 1, "end_offset": 3, "lag": 2},
        {"topic": "logs", "partition": 3, "offset": 5, "end_offset": None, "lag": None},
    ]
