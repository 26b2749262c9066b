"""Files of a topic's records out of records: as batches first, as they come."""

from collections.abc import Iterable, Sequence

from segmentstore.codec.record_batch import encode_batch
from segmentstore.codec.record_fields import Record
from tier2.format.chunk_format import BLOCK_BYTES_TARGET, Compression
from tier2.format.record_file import make_record_file


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
