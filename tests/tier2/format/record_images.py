"""Files of a topic's records out of records: as batches first, as they come."""

from collections.abc import Iterable, Sequence

from segmentstore.codec.record_batch import encode_batch
from segmentstore.codec.record_fields import Record
from segmentstore.contracts.identifiers import BufferView
from tier2.format.block import ZSTD_LEVEL
from tier2.format.chunk_format import BLOCK_BYTES_TARGET, SMALLEST_CHUNK_BYTES, Compression
from tier2.format.image_memory import ImageMemory
from tier2.format.record_file import RecordFileBuilder, RecordFileImage
from tier2.format.record_transcoding import RecordLoops


def make_record_file(
    batches: BufferView,
    *,
    compression: Compression = Compression.LZ4,
    level: int = ZSTD_LEVEL,
    created_ms: int,
    log_append_time: bool = False,
    start_offset: int | None = None,
    end_offset: int | None = None,
    block_bytes_target: int = BLOCK_BYTES_TARGET,
    loops: RecordLoops | None = None,
) -> RecordFileImage:
    """The image of one file of whole batches (version 2, placed, of any client's codec), one behind the other.

    As RecordFileBuilder, all at once.
    """
    builder = RecordFileBuilder(
        ImageMemory(len(batches) + SMALLEST_CHUNK_BYTES),
        compression=compression,
        level=level,
        block_bytes_target=block_bytes_target,
        loops=loops,
    )
    builder.add(batches)
    return builder.finish(
        created_ms=created_ms,
        log_append_time=log_append_time,
        start_offset=start_offset,
        end_offset=end_offset,
    )


def image_of(
    batches: Iterable[Sequence[Record]],
    *,
    compression: Compression = Compression.NONE,
    created_ms: int = 1_795_000_002_000,
    start_offset: int | None = None,
    end_offset: int | None = None,
    log_append_time: bool = False,
    block_bytes_target: int = BLOCK_BYTES_TARGET,
) -> bytes:
    """One file of batches of records that have their offsets."""
    made = make_record_file(
        b"".join(encode_batch(each, keeps_offsets=True) for each in batches if each),
        compression=compression,
        created_ms=created_ms,
        start_offset=start_offset,
        end_offset=end_offset,
        log_append_time=log_append_time,
        block_bytes_target=block_bytes_target,
    )
    image = b"".join(made.buffers)
    assert len(image) == made.size
    assert not made.unreadable
    return image
