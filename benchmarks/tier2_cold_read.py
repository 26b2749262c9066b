"""How fast bytes come back from Tier 2 with every cache empty, against a plain loop over a file of the same blocks.

The plain loop reads 1 MB blocks, checks their checksum and decompresses them: what no reader of this format can leave
out. Both read what the page cache holds, so the difference is ours and not the disk's.
"""

import asyncio
import json
import os
import tempfile
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import lz4.block

from benchmarks.tier2_drain import open_storage, publication
from benchmarks.workbench import Row, print_rows, row
from segmentstore.contracts.identifiers import SegmentId
from segmentstore.contracts.storage import DataPiece
from segmentstore.runtime.files import SystemFileSystem
from tier2.object_stores.filesystem import FilesystemObjectStore

MEBIBYTE = 1 << 20
CONTENT_BYTES = 256 * MEBIBYTE
SMALL_SEGMENTS = 2_000
SMALL_READ_TARGET = 1_000.0


def events(size: int) -> bytes:
    """JSON events that compress about as well as real ones."""
    random = Random(7)
    lines = [
        json.dumps(
            {"user": random.getrandbits(40), "page": f"/shop/{random.randrange(500)}", "n": n}
        )
        for n in range(20_000)
    ]
    block = ("\n".join(lines) + "\n").encode()
    return (block * (size // len(block) + 1))[:size]


def plain_rate(directory: str, content: bytes) -> float:
    """Uncompressed bytes per second of read, checksum, decompress."""
    path = Path(directory) / "plain"
    places: list[tuple[int, int, int]] = []
    with path.open("wb") as file:
        for start in range(0, len(content), MEBIBYTE):
            stored = lz4.block.compress(content[start : start + MEBIBYTE], store_size=False)
            places.append((file.tell(), len(stored), zlib.crc32(stored)))
            file.write(stored)
    descriptor = os.open(path, os.O_RDONLY)
    begin = time.perf_counter()
    for position, size, checksum in places:
        stored = os.pread(descriptor, size, position)
        if zlib.crc32(stored) != checksum:
            raise ValueError(f"checksum at {position}")
        lz4.block.decompress(stored, uncompressed_size=MEBIBYTE)
    rate = len(content) / (time.perf_counter() - begin)
    os.close(descriptor)
    return rate


async def cold_rates(
    directory: str, content: bytes, executor: ThreadPoolExecutor
) -> tuple[float, float]:
    """Uncompressed bytes per second in order by 1 MB, and reads of small segments per second."""
    store = FilesystemObjectStore(
        directory, files=SystemFileSystem(), executor=executor, random=Random(1)
    )
    await store.start()
    writer = await open_storage(store, executor)
    view = memoryview(content)
    runs = [view[at : at + (64 << 10)] for at in range(0, len(view), 64 << 10)]
    small = [
        (n, f"scope/small/{n}", 0, DataPiece(0, [os.urandom(1000)]))
        for n in range(2, SMALL_SEGMENTS + 2)
    ]
    await writer.publish(publication([(1, "scope/big/0", 0, DataPiece(0, runs)), *small], 1))
    reader = await open_storage(store, executor, epoch=2)
    begin = time.perf_counter()
    offset = 0
    while offset < len(content):
        found = await reader.read(SegmentId(1), offset, MEBIBYTE)
        offset = found.offset + len(found.content)
    in_order = len(content) / (time.perf_counter() - begin)
    begin = time.perf_counter()
    for n in range(2, SMALL_SEGMENTS + 2):
        await reader.read(SegmentId(n), 500, 100)
    small_reads = SMALL_SEGMENTS / (time.perf_counter() - begin)
    await store.close()
    return in_order, small_reads


async def measure() -> list[Row]:
    content = events(CONTENT_BYTES)
    with (
        ThreadPoolExecutor(max_workers=6) as executor,
        tempfile.TemporaryDirectory(prefix="segmentstore-bench-") as directory,
    ):
        plain = plain_rate(directory, content)
        tier2_directory = str(Path(directory) / "tier2")
        in_order, small_reads = await cold_rates(tier2_directory, content, executor)
    return [
        row("tier 2 cold read in order", in_order / MEBIBYTE, "MiB/s", plain / MEBIBYTE),
        row("tier 2 cold reads of 1 KB segments", small_reads, "1/s", SMALL_READ_TARGET),
    ]


def main() -> list[Row]:
    rows = asyncio.run(measure())
    print_rows(rows)
    return rows


if __name__ == "__main__":
    main()
