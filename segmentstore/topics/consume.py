"""How far what a partition gives reaches.

Its records are read by decode_batches() of segmentstore/codec/record_batch.py.
"""

from segmentstore.codec.record_batch import parse_header


def next_offset_of(content: bytes, offset: int) -> int:
    """The offset behind the last batch, without a look at records."""
    at = 0
    with memoryview(content) as view:
        while at < len(view):
            header = parse_header(view, at)
            offset = header.next_offset
            at += header.size
    return offset
