from segmentstore.codec.record_fields import FieldBytes

def batches_to_columns(
    content: FieldBytes, position: int, from_offset: int, numbers: bytearray, rows: int, /
) -> tuple[int, int, int, tuple[int, int, int, int, int, int, int | None] | None]: ...
def records_to_columns(
    records: FieldBytes,
    record_count: int,
    base_offset: int,
    base_timestamp: int,
    last_offset_delta: int,
    append_time: int | None,
    shift: int,
    from_offset: int,
    numbers: bytearray,
    rows: int,
    /,
) -> tuple[int, int]: ...
def is_readable(batch: FieldBytes, /) -> bool: ...
def are_keyed(records: FieldBytes, record_count: int, last_offset_delta: int, /) -> bool | None: ...
