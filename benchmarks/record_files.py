"""What it costs to make a topic's batches a file of records, and a file's blocks batches again: compiled beside Python.

Three payloads as in the description that the format follows: JSON, Protocol Buffers, text logs; ratio and speed of
decompression beside the figures that it names. One core, CPU time, best of a few rounds.

And what a reader in order gets of files that are as far away as those of an object store: read ahead of, beside not,
in turn, the median.

    python -m benchmarks record_files
"""

import asyncio
import json
import struct
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import replace
from random import Random
from resource import RUSAGE_SELF, getrusage
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks.workbench import Row, median, print_rows, row
from segmentstore.codec import record_columns
from segmentstore.codec.record_batch import (
    Compression,
    encode_batch,
    place_batch,
)
from segmentstore.codec.record_fields import Record, append_varint
from segmentstore.host.record_files import Tier2RecordFiles
from segmentstore.runtime.clock import SystemWallClock
from segmentstore.runtime.files import SystemFileSystem
from segmentstore.runtime.process import tune_for_serving
from segmentstore.topics.consume import next_offset_of
from segmentstore.topics.partition import Partition
from segmentstore.topics.record_files.record_files import FileCompression, FileForm
from segmentstore.topics.settings import TopicSettings
from tests.http.memory_segments import MemorySegments
from tests.tier2.format.record_images import make_record_file
from tests.topics.batches import NOW, open_partition
from tier2.format import chunk_format
from tier2.format.block import decode_block
from tier2.format.chunk_format import BlockEntry, ChunkFlag
from tier2.format.record_file import RecordFileImage, open_record_file
from tier2.format.record_transcoding import (
    PYTHON_LOOPS,
    RecordLoops,
    batches_of_block,
    native_loops,
)
from tier2.object_stores.memory import MemoryObjectStore
from tier2.object_stores.volumes import LateVolumes
from tier2.volumes.settings import VolumeSettings

ROUNDS: Final = 5
BATCH_BYTES: Final = 16 << 10
FILE_BYTES: Final = 64_000_000
DISTANCE_SECONDS: Final = 0.02
"""Of a range of an object: what a store of the same region takes to its first byte."""
DISTANT_BYTES: Final = 32 << 20
FETCH_BYTES: Final = 1 << 20
NATIVE_BYTES: Final = 16 << 20
PYTHON_BYTES: Final = 2 << 20
WANTED_MB: Final = 500.0
PIECE_BYTES: Final = 2 << 20
JOINED_SECONDS: Final = 3.14
JOINED_FAULTS: Final = 487_000.0
"""On the same machine when a file was gathered whole, its image joined in fresh pages, and hashed."""
TIME_MS: Final = 1_795_000_000_000

WORDS: Final = [
    "checkout",
    "cart",
    "search",
    "payment",
    "inventory",
    "session",
    "cache",
    "request",
    "response",
    "timeout",
    "retry",
    "user",
    "order",
    "queue",
    "worker",
    "stream",
    "segment",
    "offset",
    "partition",
    "commit",
]


def json_payload(random: Random, number: int) -> bytes:
    """An event of a web shop."""
    event = {
        "event_id": f"{random.getrandbits(64):016x}",
        "timestamp": TIME_MS + number,
        "type": random.choice(("page_view", "add_to_cart", "purchase")),
        "user": {"id": random.randrange(100_000), "country": random.choice(("DE", "US", "FR"))},
        "page": f"/products/{random.choice(WORDS)}/{random.randrange(1000)}",
        "referrer": "https://www.example.com/",
        "user_agent": "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0",
        "duration_ms": random.randrange(1000),
    }
    return json.dumps(event).encode()


def protobuf_payload(random: Random, number: int) -> bytes:
    """A measurement: ids, times and floats, with the tags between them that repeat."""
    message = bytearray(b"\x09" + random.getrandbits(64).to_bytes(8, "little") + b"\x10")
    append_varint(message, TIME_MS + number)
    message += b"\x1a\x08" + f"dev-{random.randrange(10_000):04}".encode()
    for tag in (0x21, 0x29, 0x31):
        message += bytes([tag]) + struct.pack("<d", random.gauss(20, 5))
    message += b"\x38"
    append_varint(message, random.randrange(1 << 20))
    message += b"\x42\x0f" + b"sensor/readings"
    message += b"\x4a\x10firmware-2.14.07"
    return bytes(message)


def log_payload(random: Random, number: int) -> bytes:
    """A line of a server's log: few sentences, with a number or two in each."""
    seconds = TIME_MS // 1000 + number // 500
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    what = random.choice(
        (
            f"request completed status=200 duration_ms={random.randrange(100)}",
            f"connection accepted peer=10.0.0.{random.randrange(8)}",
            "cache hit for session, nothing is fetched from the database",
            f"worker {random.randrange(4)} takes the next job from the queue of orders",
        )
    )
    level = "INFO" if number % 50 else "WARN"
    return f"{stamp}.{number % 500 * 2:03}Z {level} com.example.shop.OrderService [main] {what}".encode()


def sized_payload(size: int) -> Callable[[Random, int], bytes]:
    """JSON of about so many bytes."""

    def payload(random: Random, number: int) -> bytes:
        content = b""
        while len(content) < size:
            content += json_payload(random, number)
        return content[:size]

    return payload


PAYLOADS: Final[Mapping[str, tuple[Callable[[Random, int], bytes], float, float]]] = {
    "JSON": (json_payload, 4.3, 3.2),
    "Protocol Buffers": (protobuf_payload, 1.4, 3.8),
    "logs": (log_payload, 8.0, 2.9),
}
"""With the ratio and the GB/s of decompression that the description names for LZ4."""


def batches_of(payload: Callable[[Random, int], bytes], codec: Compression, size: int) -> bytes:
    """As a producer sends them."""
    random = Random(1)
    content = bytearray()
    number = records_bytes = 0
    while records_bytes < size:
        records: list[Record] = []
        batch_bytes = 0
        while batch_bytes < BATCH_BYTES:
            value = payload(random, number + len(records))
            key = b"user-%d" % random.randrange(100_000)
            records.append(Record(0, TIME_MS + number + len(records), key, value))
            batch_bytes += len(value)
        batch = bytearray(encode_batch(records, compression=codec))
        place_batch(batch, number)
        content += batch
        number += len(records)
        records_bytes += batch_bytes
    return bytes(content)


def best_seconds(work: Callable[[], object], rounds: int) -> float:
    best = float("inf")
    for _ in range(rounds):
        begin = time.process_time()
        work()
        best = min(best, time.process_time() - begin)
    return best


def file_of(
    batches: bytes,
    loops: RecordLoops,
    compression: chunk_format.Compression = chunk_format.Compression.LZ4,
) -> RecordFileImage:
    return make_record_file(batches, compression=compression, created_ms=TIME_MS, loops=loops)


def blocks_of(made: RecordFileImage) -> list[tuple[memoryview, BlockEntry]]:
    view = memoryview(b"".join(made.buffers))
    return [
        (view[entry.position : entry.end_position], entry)
        for entry in open_record_file(view).index.entries
    ]


def turns(loops: RecordLoops, size: int, rounds: int) -> dict[str, float]:
    """MB/s of records, as they are in a block, by what is done."""
    found: dict[str, float] = {}
    for record_bytes in (160, 1000):
        for codec in (Compression.NONE, Compression.LZ4):
            batches = batches_of(sized_payload(record_bytes), codec, size)
            made = file_of(batches, loops)
            blocks = blocks_of(made)
            megabytes = sum(entry.uncompressed_length for _, entry in blocks) / 1e6
            what = f"{record_bytes} B, {codec.name.lower()}"
            seconds = best_seconds(lambda batches=batches: file_of(batches, loops), rounds)  # type: ignore[misc] # bound now
            found[f"flush, {what}"] = megabytes / seconds
            if codec is Compression.NONE:

                def cold(blocks: list[tuple[memoryview, BlockEntry]] = blocks) -> None:
                    for stored, entry in blocks:
                        batches_of_block(
                            decode_block(entry, stored),
                            entry,
                            ChunkFlag(0),
                            batch_bytes_max=1 << 20,
                            loops=loops,
                        )

                found[f"cold block to batches, {what}"] = megabytes / best_seconds(cold, rounds)
    return found


def columns(loops: record_columns.ColumnLoops, size: int, rounds: int) -> dict[str, float]:
    """MB/s of decompressed records."""
    found: dict[str, float] = {}
    for codec in (Compression.NONE, Compression.LZ4):
        payload = sized_payload(1000)
        megabytes = len(batches_of(payload, Compression.NONE, size)) / 1e6
        batches = batches_of(payload, codec, size)

        def read(batches: bytes = batches) -> None:
            record_columns.columns_of_batches(batches, loops=loops)

        what = f"columns of fetched batches, 1000 B, {codec.name.lower()}"
        found[what] = megabytes / best_seconds(read, rounds)
    return found


def payload_rows(loops: RecordLoops) -> list[Row]:
    """Ratio and speed of decompression, and how many records a file has."""
    rows: list[Row] = []
    for name, (payload, ratio_wanted, speed_wanted) in PAYLOADS.items():
        batches = batches_of(payload, Compression.NONE, NATIVE_BYTES)
        ratios = []
        for compression in (chunk_format.Compression.LZ4, chunk_format.Compression.ZSTD):
            made = file_of(batches, loops, compression)
            blocks = blocks_of(made)
            length = sum(entry.uncompressed_length for _, entry in blocks)

            def decode(blocks: list[tuple[memoryview, BlockEntry]] = blocks) -> None:
                for stored, entry in blocks:
                    decode_block(entry, stored)

            speed = length / best_seconds(decode, ROUNDS) / 1e9
            ratios.append(length / made.size)
            if compression is chunk_format.Compression.LZ4:
                rows.append(row(f"{name}: ratio of LZ4", ratios[0], "x", ratio_wanted))
                rows.append(row(f"{name}: LZ4 decompressed", speed, "GB/s", speed_wanted))
                records = made.record_count * FILE_BYTES / length
                rows.append(row(f"{name}: records in a file of 64 MB", records, "", 100_000))
            else:
                rows.append(row(f"{name}: ratio of Zstandard", ratios[1], "x", 2 * ratios[0]))
                rows.append(row(f"{name}: Zstandard decompressed", speed, "GB/s", 0.5))
    return rows


async def stored_files() -> tuple[float, float]:
    """CPU for a gigabyte of batches that become files in volumes, and page faults for it; letters as Kafka's producer
    of its performance tests sends them, which hardly become smaller."""
    random = Random(1)
    records = [
        Record(n, TIME_MS + n, None, bytes(random.choices(range(65, 91), k=1000)))
        for n in range(250)
    ]
    batch = bytearray(encode_batch(records))
    batch_count = FILE_BYTES // len(batch)

    async def pieces() -> AsyncGenerator[memoryview, None]:
        piece = bytearray()
        for number in range(batch_count):
            place_batch(batch, number * len(records))
            piece += batch
            if len(piece) + len(batch) > PIECE_BYTES or number == batch_count - 1:
                yield memoryview(piece)
                piece = bytearray()

    with ThreadPoolExecutor(4) as threads, TemporaryDirectory() as directory:
        store = LateVolumes(
            directory,
            files=SystemFileSystem(),
            executor=threads,
            wall_clock=SystemWallClock(),
            random=random,
            settings=VolumeSettings(),
        )
        await store.start()
        files = Tier2RecordFiles(
            object_store=store, writers=threads, readers=threads, cache_bytes=1 << 20
        )
        form = FileForm(FileCompression.LZ4, 3, log_append_time=False, created_ms=TIME_MS)
        found: list[tuple[float, float]] = []
        gigabytes = batch_count * len(batch) / 1e9
        for number in range(ROUNDS + 1):
            before = getrusage(RUSAGE_SELF)
            async with aclosing(pieces()) as some:
                made = await files.make(some, form)
            await files.put(f"topics/{number}", made.image)
            made.release()
            after = getrusage(RUSAGE_SELF)
            seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            found.append((seconds / gigabytes, (after.ru_minflt - before.ru_minflt) / gigabytes))
        await store.close()
    return median([seconds for seconds, _ in found[1:]]), median([n for _, n in found[1:]])


class _DistantObjects(MemoryObjectStore):
    async def get_range(self, key: str, start: int, length: int) -> bytes:
        await asyncio.sleep(DISTANCE_SECONDS)
        return await super().get_range(key, start, length)


async def distant_reads() -> Mapping[bool, float]:
    """MB/s of batches that one reader in order fetches, by whether it is read ahead of."""
    segments, objects = MemorySegments(), _DistantObjects()
    with ThreadPoolExecutor(4) as threads:
        found: dict[bool, list[float]] = {True: [], False: []}
        for number in range(2 * ROUNDS):
            is_ahead = number % 2 == 0
            files = Tier2RecordFiles(
                object_store=objects, writers=threads, readers=threads, cache_bytes=32 << 20
            )
            settings = TopicSettings(file_bytes=DISTANT_BYTES // 4)
            if not is_ahead:
                settings = replace(settings, read_ahead_bytes_max=0)
            partition = await open_partition(segments, settings=settings, record_files=files)
            if not partition.high_watermark:
                await _fill(partition)
            offset, length, began = 0, 0, time.monotonic()
            while offset < partition.high_watermark:
                content = await partition.fetch(offset, FETCH_BYTES)
                length += len(content)
                offset = next_offset_of(content, offset)
            found[is_ahead].append(length / 1e6 / (time.monotonic() - began))
            await partition.close()
            await files.close()
    return {is_ahead: median(speeds) for is_ahead, speeds in found.items()}


async def _fill(partition: Partition) -> None:
    payload, random = sized_payload(1000), Random(1)
    for number in range(DISTANT_BYTES // BATCH_BYTES):
        first = number * 16
        records = [Record(n, NOW + first + n, None, payload(random, n)) for n in range(16)]
        await partition.produce(encode_batch(records))
    while await partition.make_file():
        pass


def main() -> list[Row]:
    """Measure, print and return the rows: compiled beside Python, then beside what is wanted."""
    native, native_columns = native_loops(), record_columns.native_loops()
    assert native is not None, "the native pieces are not built"
    assert native_columns is not None, "the native pieces are not built"
    compiled = turns(native, NATIVE_BYTES, ROUNDS)
    compiled |= columns(native_columns, NATIVE_BYTES, ROUNDS)
    python = turns(PYTHON_LOOPS, PYTHON_BYTES, 1)
    python |= columns(record_columns.PYTHON_LOOPS, PYTHON_BYTES, 1)
    tune_for_serving()
    seconds, faults = asyncio.run(stored_files())
    rows = [
        row("files put into volumes: CPU, beside joined images", seconds, "s/GB", JOINED_SECONDS),
        row("files put into volumes: page faults", faults, "/GB", JOINED_FAULTS),
    ]
    speeds = asyncio.run(distant_reads())
    rows.append(row("20 ms away, read ahead of, beside not", speeds[True], "MB/s", speeds[False]))
    rows += [
        row(f"{what}, beside Python", compiled[what], "MB/s", python[what]) for what in compiled
    ]
    rows += [
        row(what, value, "MB/s", 1000.0 if what.startswith("columns") else WANTED_MB)
        for what, value in compiled.items()
    ]
    rows += payload_rows(native)
    print_rows(rows)
    return rows


if __name__ == "__main__":
    main()
