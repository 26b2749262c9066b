"""Proves one object of a topic's records as it is registered with its partition (segmentstore/codec/topic_files.py).

A file of records is proved as it stands alone (tier2/format/record_file.py: checksums of file, index and blocks; what
records and index say of one another), and held against what is registered: size, offsets, count and times. A batch that
was kept as it came is proved by its checksum, and held against the same.

Damage is an answer, not an error.
"""

from segmentstore.codec.record_batch import BatchError, proved_header
from segmentstore.codec.topic_files import RegisteredFile
from segmentstore.contracts.errors import CorruptedDataError
from tier2.format.record_file import damages_of_record_file, open_record_file


def damages_of_registered_file(content: bytes, file: RegisteredFile, *, key: str) -> list[str]:
    """What is wrong with an object's content, in sentences. CPU: O(bytes); callers run it in an executor."""
    damages: list[str] = []
    if len(content) != file.size:
        damages.append(f"a file has another size key={key} registered={file.size}")
    held: tuple[int, ...]
    if file.is_batch:
        try:
            header = proved_header(content)
        except BatchError as error:
            return [*damages, f"a batch is damaged key={key}: {error}"]
        times = header.max_timestamp, header.max_timestamp
        held = header.base_offset, header.next_offset, 0, *times
    else:
        damages = [*damages_of_record_file(content, source=key), *damages]
        try:
            opened = open_record_file(content, source=key)
        except CorruptedDataError:
            return damages
        events = [entry.events for entry in opened.index.entries if entry.events is not None]
        held = (
            opened.header.start_offset,
            opened.header.end_offset,
            opened.header.record_count,
            min(each.lowest_time_ms for each in events),
            max(each.highest_time_ms for each in events),
        )
    registered = (
        file.first_offset,
        file.end_offset,
        file.record_count,
        file.lowest_ms,
        file.highest_ms,
    )
    if held != registered:
        damages.append(f"a file is registered otherwise key={key} {held=} {registered=}")
    return damages
