from segmentstore.contracts.identifiers import BufferView
from tier2.format.record_transcoding import BlockSums, RecordsPlace

def batches_to_block(
    batches: BufferView,
    position: int,
    out: bytearray,
    target: int,
    sums: BlockSums,
    /,
) -> tuple[
    int,
    int,
    tuple[int, int, int, int, int, int, int],
    tuple[int, int, int, int, int, int, int | None] | None,
]: ...
def records_to_block(
    records: BufferView,
    place: RecordsPlace,
    base_offset: int,
    base_timestamp: int,
    last_offset_delta: int,
    append_time: int | None,
    out: bytearray,
    bytes_stop: int,
    sums: BlockSums,
    /,
) -> tuple[int, tuple[int, int, int], tuple[int, int, int, int, int, int, int]]: ...
def block_to_batches(
    block: BufferView, has_append_time: bool, batch_bytes_max: int, /
) -> tuple[bytes, tuple[int, int, int, int, int]] | None: ...
def facts_of_block(block: BufferView, /) -> tuple[int, int, int, int, int] | None: ...
