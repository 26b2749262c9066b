"""Records behind the flush point: every client reads from files what it read from the log, also across kill -9.

Method: a server that makes a file of whatever is older than a fifth of a second, in a file system, so that files are
seen as any tool sees them.
"""

import asyncio
import json
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from segmentstore.cli.http_client import HttpClient
from tests.integration.kafka.clients import (
    SECONDS_MAX,
    Sent,
    new_topic,
    produce_by_aiokafka,
    produce_by_confluent,
    read_by_aiokafka,
    read_by_confluent,
    read_by_kafka_python,
)
from tests.integration.kafka.kafka_server import KafkaServerProcess
from tests.integration.kafka.topic_files import FILE_OPTIONS, files_of, wait_for_files
from tier2.format.record_file import damages_of_record_file, open_record_file

pytestmark = pytest.mark.integration

READER = Path(__file__).parents[3] / "examples" / "read_segment_file.py"
RECORDS = [
    Sent(b"key", b"value", (("name", b"value"), ("name", b"again"), ("none", None))),
    Sent(None, b"no key"),
    Sent(b"a tombstone", None),
    Sent(b"", b""),
    *[Sent(b"%d" % at, b"compresses well " * 20) for at in range(200)],
    Sent(b"long", b"x" * 900_000),
]


@pytest.fixture(scope="module")
def files_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServerProcess]:
    with KafkaServerProcess(tmp_path_factory.mktemp("files") / "data", FILE_OPTIONS) as process:
        yield process


def latest_records(bootstrap: str, topic: str, partitions: int) -> list[tuple[int, int]]:
    """Offset and time of the record with the highest time of each partition."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    places = [ConfluentPartition(topic, index) for index in range(partitions)]
    latest = OffsetSpec.max_timestamp()  # type: ignore[no-untyped-call]  # has no types
    futures = admin.list_offsets(dict.fromkeys(places, latest), request_timeout=SECONDS_MAX)
    told = {place.partition: future.result(SECONDS_MAX) for place, future in futures.items()}
    return [(told[index].offset, told[index].timestamp) for index in range(partitions)]


async def test_the_record_with_the_highest_time_is_told_from_the_log_and_from_files(
    files_server: KafkaServerProcess,
) -> None:
    bootstrap = files_server.bootstrap
    topic = await asyncio.to_thread(new_topic, bootstrap, 2)

    def produced(*times: int) -> None:
        producer = Producer({"bootstrap.servers": bootstrap})
        for time_ms in times:
            producer.produce(topic, b"value", partition=0, timestamp=time_ms)
        assert producer.flush(SECONDS_MAX) == 0

    now = int(time.time() * 1000)
    await asyncio.to_thread(produced, now - 5_000, now - 1_000, now - 2_000, now - 1_000)
    expected = [(1, now - 1_000), (-1, -1)]
    assert await asyncio.to_thread(latest_records, bootstrap, topic, 2) == expected
    await asyncio.to_thread(wait_for_files, files_server, topic, 4)
    assert await asyncio.to_thread(latest_records, bootstrap, topic, 2) == expected
    await asyncio.to_thread(produced, now - 3_000)
    assert await asyncio.to_thread(latest_records, bootstrap, topic, 2) == expected
    await asyncio.to_thread(produced, now - 500)
    expected = [(5, now - 500), (-1, -1)]
    assert await asyncio.to_thread(latest_records, bootstrap, topic, 2) == expected


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_what_was_compressed_by_a_client_is_read_from_a_file(
    files_server: KafkaServerProcess, codec: str
) -> None:
    bootstrap = files_server.bootstrap
    topic = await asyncio.to_thread(new_topic, bootstrap)
    config = {"compression.type": codec}
    await asyncio.to_thread(produce_by_confluent, bootstrap, topic, RECORDS, config)
    by_aiokafka = RECORDS[1:]
    await produce_by_aiokafka(
        bootstrap, topic, by_aiokafka, compression_type=None if codec == "none" else codec
    )
    expected = RECORDS + by_aiokafka
    paths = await asyncio.to_thread(wait_for_files, files_server, topic, len(expected))
    assert await read_by_aiokafka(bootstrap, topic, len(expected)) == expected
    assert await asyncio.to_thread(read_by_confluent, bootstrap, topic, len(expected)) == expected
    assert (
        await asyncio.to_thread(read_by_kafka_python, bootstrap, topic, len(expected)) == expected
    )
    # Files that are not registered would repeat offsets here: there are none.
    found: list[Sent] = []
    for path in paths:
        image = path.read_bytes()
        assert not damages_of_record_file(image)
        records = open_record_file(image).records_from(0)
        found += [Sent(each.key, each.value, each.headers) for each in records]
    assert found == expected


def test_a_file_is_read_by_a_program_that_has_its_page_alone(
    files_server: KafkaServerProcess,
) -> None:
    topic = new_topic(files_server.bootstrap)
    produce_by_confluent(files_server.bootstrap, topic, RECORDS[:4])
    (path, *_) = wait_for_files(files_server, topic, 4)
    done = subprocess.run(
        [sys.executable, str(READER), str(path)], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout.splitlines()[0])["offset"] == 0


def test_records_are_deleted_with_their_files_and_topics_with_theirs(
    files_server: KafkaServerProcess,
) -> None:
    topic = new_topic(files_server.bootstrap, config={"file.delete.delay.ms": "0"})
    for part in range(3):
        produce_by_confluent(files_server.bootstrap, topic, RECORDS[:50])
        wait_for_files(files_server, topic, 50 * (part + 1))
    admin = AdminClient({"bootstrap.servers": files_server.bootstrap})

    def delete_records() -> int:
        for done in admin.delete_records([ConfluentPartition(topic, 0, 60)]).values():
            assert done.result(SECONDS_MAX).low_watermark == 60
        return min(name.last_offset for name, _ in files_of(files_server, topic))

    delete_records()
    asyncio.run(_flush(files_server.address))
    assert delete_records() >= 60, "files of deleted records stay, and Tier 2 names them no more"
    until = time.monotonic() + SECONDS_MAX
    assert read_by_confluent(files_server.bootstrap, topic, 90, start=60) == [
        *RECORDS[10:50],
        *RECORDS[:50],
    ]
    for deleted in admin.delete_topics([topic]).values():
        deleted.result(SECONDS_MAX)
    while files_of(files_server, topic):
        assert time.monotonic() < until, "files of a deleted topic stay"
        time.sleep(0.05)


async def test_records_are_there_once_and_in_order_over_kills_beside_the_making_of_files(
    tmp_path: Path,
) -> None:
    acknowledged: list[int] = []
    with KafkaServerProcess(tmp_path / "data", FILE_OPTIONS) as server:
        topic = await asyncio.to_thread(new_topic, server.bootstrap)
        producer = Producer(
            {
                "bootstrap.servers": server.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "batch.num.messages": 20,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 100,
            }
        )

        def told(error: object, message: object) -> None:
            assert error is None, f"a record was not stored: {error}"
            acknowledged.append(len(acknowledged))

        sent = 0

        def send_for(seconds: float) -> None:
            nonlocal sent
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                if sent - len(acknowledged) < 200:
                    producer.produce(topic, b"%d" % sent, partition=0, on_delivery=told)
                    sent += 1
                producer.poll(0.001)

        for seconds in (0.7, 0.55, 0.9):
            # Files are made five times a second: a kill meets an image, a put, a registration or a truncation.
            await asyncio.to_thread(send_for, seconds)
            server.kill()
            server.start()
        assert producer.flush(SECONDS_MAX) == 0, "records are left"
        await asyncio.to_thread(wait_for_files, server, topic, sent)
        found = await read_by_aiokafka(server.bootstrap, topic, sent)
        with urllib.request.urlopen(f"{server.address}/metrics") as answer:
            assert b"kafka_files_total" in answer.read()
    assert [each.value for each in found] == [b"%d" % at for at in range(sent)]
    assert len(acknowledged) == sent


def test_a_backup_keeps_files_of_records_and_its_copy_has_them(tmp_path: Path) -> None:
    data, restored = tmp_path / "data", tmp_path / "restored"
    command = [sys.executable, "-m", "segmentstore.cli", "backup"]
    with KafkaServerProcess(data, FILE_OPTIONS) as server:
        topic = new_topic(server.bootstrap, config={"file.delete.delay.ms": "0"})
        produce_by_confluent(server.bootstrap, topic, RECORDS)
        kept = wait_for_files(server, topic, len(RECORDS))
        wait_until_registered(server)
        subprocess.run([*command, "pin", "monday", "--server", server.address], check=True)
        produce_by_confluent(server.bootstrap, topic, RECORDS[:2])
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        end = len(RECORDS) + 1
        for done in admin.delete_records([ConfluentPartition(topic, 0, end)]).values():
            assert done.result(SECONDS_MAX).low_watermark == end
        for deleted in admin.delete_topics([topic]).values():
            deleted.result(SECONDS_MAX)
        asyncio.run(_flush(server.address))
        assert server.terminate() == 0
    assert all(each.exists() for each in kept), "a file went that a backup names"
    verify = [sys.executable, "-m", "segmentstore.cli", "tier2", "verify", str(data), "--quiet"]
    verified = subprocess.run(verify, check=True, capture_output=True, text=True)
    assert f"files of records: {len(kept)} with " in verified.stderr
    assert ", 0 problems, " in verified.stderr
    kept[0].rename(tmp_path / "away")
    verified = subprocess.run(verify, check=False, capture_output=True, text=True)
    assert verified.returncode == 7
    assert kept[0].name in verified.stderr
    assert "backup='monday'" in verified.stderr
    (tmp_path / "away").rename(kept[0])
    words = ["restore", "monday", "--from", str(data), "--data", str(restored), "--quiet"]
    subprocess.run([*command, *words], check=True)
    shutil.rmtree(data)
    with KafkaServerProcess(restored) as server:
        assert read_by_confluent(server.bootstrap, topic, len(RECORDS)) == RECORDS
        produce_by_confluent(server.bootstrap, topic, RECORDS[:2])
        assert read_by_confluent(server.bootstrap, topic, 3, start=len(RECORDS) - 1) == [
            RECORDS[-1],
            *RECORDS[:2],
        ]


def test_a_copy_names_a_file_of_records_that_is_not_there_or_damaged(tmp_path: Path) -> None:
    data = tmp_path / "data"
    command = [sys.executable, "-m", "segmentstore.cli", "backup"]
    with KafkaServerProcess(data, FILE_OPTIONS) as server:
        topic = new_topic(server.bootstrap)
        produce_by_confluent(server.bootstrap, topic, RECORDS)
        (path, *_) = wait_for_files(server, topic, len(RECORDS))
        wait_until_registered(server)
        subprocess.run([*command, "pin", "monday", "--server", server.address], check=True)
        assert server.terminate() == 0
    image = bytearray(path.read_bytes())
    image[len(image) // 2] ^= 4
    for number, is_there in enumerate((True, False)):
        if is_there:
            path.write_bytes(image)
        else:
            path.unlink()
        words = ["restore", "monday", "--from", str(data), "--data", str(tmp_path / f"{number}")]
        done = subprocess.run(
            [*command, *words, "--quiet"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 7, done.stderr
        assert path.name in done.stdout + done.stderr


def test_a_recovery_names_a_file_of_records_that_is_not_there(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with KafkaServerProcess(data, FILE_OPTIONS) as server:
        topic = new_topic(server.bootstrap)
        produce_by_confluent(server.bootstrap, topic, RECORDS)
        (path, *_) = wait_for_files(server, topic, len(RECORDS))
        wait_until_registered(server)
        assert server.terminate() == 0
    shutil.rmtree(data / "tier1")
    (data / "identity").unlink()
    sound = path.read_bytes()
    path.unlink()
    words = ["recover", "--from-tier2", str(data), "--data", str(tmp_path / "new"), "--quiet"]
    command = [sys.executable, "-m", "segmentstore.cli", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 7, done.stderr
    assert (
        f"a registered file is missing key={path.relative_to(data / 'tier2/objects')}"
        in done.stderr
    )
    assert not (tmp_path / "new").exists()
    path.write_bytes(sound)
    subprocess.run(command, check=True, capture_output=True)
    with KafkaServerProcess(tmp_path / "new") as server:
        assert read_by_confluent(server.bootstrap, topic, len(RECORDS)) == RECORDS


def wait_until_registered(server: KafkaServerProcess) -> None:
    """A file is there before Tier 2 shows its registration."""
    verify = [sys.executable, "-m", "segmentstore.cli", "tier2", "verify", "--quiet"]
    until = time.monotonic() + SECONDS_MAX
    said = ""
    while "files of records: " not in said or ", 0 objects that nothing refers to" not in said:
        assert time.monotonic() < until, said
        asyncio.run(_flush(server.address))
        place = str(server.data_directory)
        said = subprocess.run([*verify, place], check=True, capture_output=True, text=True).stderr


async def _flush(address: str) -> None:
    async with HttpClient(address) as client:
        await client.flush_all()
