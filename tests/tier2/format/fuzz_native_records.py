"""Random damage of batches and blocks: the native loops and their twins have to agree on every one.

    python -m tests.tier2.format.fuzz_native_records SEED SECONDS [TRANSCODING.so COLUMNS.so]

The test beside it runs this with libraries that were built with sanitizers, which end the process at the first byte
that is read or written outside of a buffer.
"""

import importlib.util
import struct
import sys
import time
from random import Random
from types import ModuleType

from crc32c import crc32c

from segmentstore.codec import record_columns
from segmentstore.codec.record_batch import BATCH_HEADER_BYTES, BatchError, encode_batch
from segmentstore.codec.record_columns import ColumnLoops
from segmentstore.codec.record_fields import Record
from segmentstore.contracts.errors import CorruptedDataError
from tests.tier2.format.record_images import make_record_file
from tier2.format import record_transcoding
from tier2.format.block import decode_block
from tier2.format.record_file import open_record_file
from tier2.format.record_transcoding import BlockSums, RecordLoops

TIMES = (0, 5, -(2**63), 2**63 - 1, 1_795_000_000_000)


def loops_of(paths: list[str]) -> tuple[RecordLoops, ColumnLoops]:
    """Those of the given libraries, or of the installed ones."""
    if not paths:
        transcoding, columns = record_transcoding.native_loops(), record_columns.native_loops()
        assert transcoding is not None, "it was not built"
        assert columns is not None, "it was not built"
        return transcoding, columns
    one, other = (
        loaded(name, path)
        for name, path in zip(("record_transcoding", "record_columns"), paths, strict=True)
    )
    return (
        RecordLoops(
            one.batches_to_block, one.records_to_block, one.block_to_batches, one.facts_of_block
        ),
        ColumnLoops(other.batches_to_columns, other.records_to_columns, other.are_keyed),
    )


def loaded(name: str, path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def damaged_batch(random: Random) -> bytes:
    def some_bytes() -> bytes | None:
        return random.choice([None, b"", random.randbytes(random.randrange(200))])

    records = [
        Record(
            0,
            random.choice(TIMES) if random.randrange(2) else TIMES[-1] + random.randrange(9),
            some_bytes(),
            some_bytes(),
            tuple((f"h{n}", some_bytes()) for n in range(random.choice([0, 0, 0, 1, 3, 70]))),
        )
        for _ in range(random.randrange(1, 8))
    ]
    batch = bytearray(encode_batch(records, base_offset=random.choice([0, 1, 2**40, 2**63 - 20])))
    for _ in range(random.randrange(4)):
        at = random.randrange(21, len(batch))
        match random.randrange(4):
            case 0:
                batch[at] ^= 1 << random.randrange(8)
            case 1:
                batch[at] = random.choice([0x00, 0x01, 0x7F, 0x80, 0xFF])
            case 2:
                batch[at : at + random.randrange(1, 12)] = b"\xff" * random.randrange(12)
            case _:
                del batch[at : at + random.randrange(1, 9)]
    if len(batch) < BATCH_HEADER_BYTES:
        return bytes(batch)
    if random.randrange(8):
        batch[8:12] = struct.pack(">i", len(batch) - 12)
    batch[17:21] = struct.pack(">I", crc32c(bytes(batch[21:])))
    return bytes(batch)


def image_by(loops: RecordLoops, batch: bytes, target: int) -> tuple[object, object]:
    try:
        made = make_record_file(batch, created_ms=1, block_bytes_target=target, loops=loops)
    except (BatchError, ValueError) as error:
        return type(error), str(error)
    return b"".join(made.buffers), made.unreadable


def columns_by(loops: ColumnLoops, batch: bytes) -> object:
    try:
        columns, _ = record_columns.columns_of_batches(batch, loops=loops)
    except BatchError as error:
        return str(error)
    return [columns.record(row) for row in range(len(columns))]


def keys_by(loops: ColumnLoops, batch: bytes) -> object:
    try:
        return record_columns.all_have_keys(batch, bytes_max=1 << 20, loops=loops)
    except BatchError as error:
        return str(error)


def batches_by(loops: RecordLoops, block: bytes, most: int, *, has_append_time: bool) -> object:
    try:
        return loops.block_to_batches(block, has_append_time, most)
    except CorruptedDataError:
        return None


def compare(random: Random, native: RecordLoops, native_columns: ColumnLoops) -> None:
    batch = damaged_batch(random)
    target = random.choice([1, 50, 400, 1 << 20])
    image = image_by(native, batch, target)
    assert image == image_by(record_transcoding.PYTHON_LOOPS, batch, target), batch.hex()
    columns = columns_by(native_columns, batch)
    assert columns == columns_by(record_columns.PYTHON_LOOPS, batch), batch.hex()
    keys = keys_by(native_columns, batch)
    assert keys == keys_by(record_columns.PYTHON_LOOPS, batch), batch.hex()
    native.batches_to_block(batch, 0, bytearray(random.randrange(600)), target, BlockSums())
    native_columns.batches_to_columns(batch, 0, 0, bytearray(random.randrange(600)), 0)
    if not isinstance(image[0], bytes) or not image[0]:
        return
    entry = open_record_file(image[0]).index.entries[0]
    stored = memoryview(image[0])[entry.position : entry.end_position]
    block = bytearray(decode_block(entry, stored))
    for _ in range(random.randrange(3)):
        at = random.randrange(len(block))
        block[at] = random.choice([0x00, 0x01, 0x7F, 0x80, 0xFF, block[at] ^ 1])
    cut = bytes(block[: random.choice([len(block), random.randrange(len(block) + 1)])])
    has_append_time, most = bool(random.randrange(2)), random.choice([0, 70, 300, 1 << 20])
    found = batches_by(native, cut, most, has_append_time=has_append_time)
    assert found == batches_by(
        record_transcoding.PYTHON_LOOPS, cut, most, has_append_time=has_append_time
    ), cut.hex()
    native.facts_of_block(cut)


def main(seed: int, seconds: float, paths: list[str]) -> None:
    native, native_columns = loops_of(paths)
    random = Random(seed)
    end = time.monotonic() + seconds
    count = 0
    while time.monotonic() < end:
        compare(random, native, native_columns)
        count += 1
    sys.stdout.write(f"{count} damaged batches, seed {seed}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:])
