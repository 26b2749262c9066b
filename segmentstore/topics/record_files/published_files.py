"""The registered files of a partition as Tier 2 shows them, for readers that are not its owner.

Invariants:

- Files come in the order of their numbers; one that was unregistered meanwhile is left out.
- Once a partition's topic is being deleted (RETIRED) its files are still registered, and may be gone: that is no loss.
- What contradicts itself among a partition's files, or between them and its batches, is told and not raised.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from segmentstore.codec.record_batch import BATCH_HEADER_BYTES, BatchError, parse_header
from segmentstore.codec.topic_files import (
    COLD_END,
    FIRST_FILE,
    LAST_FILE,
    LOG_START,
    RETIRED,
    RegisteredFile,
    count_of,
    decode_file,
    file_key,
    file_number_of,
)
from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.contracts.identifiers import EVENT_COUNT, AttributeKey, SegmentId
from segmentstore.contracts.storage import ReadOnlyStorage, SegmentRecord

_PAGE_KEYS: Final = 512


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """One registered file."""

    number: int
    key: str
    """Of its object."""
    file: RegisteredFile
    may_be_gone: bool
    """Its topic is being deleted."""


async def published_files(
    container: ReadOnlyStorage, segment_id: SegmentId, *, first: int, last: int
) -> AsyncGenerator[tuple[int, RegisteredFile], None]:
    """Those with numbers from `first` to `last`, each with its number. Hold it in `aclosing`.

    Raises CorruptedDataError, StorageError.
    """
    following: AttributeKey | None = file_key(first)
    while first <= last and following is not None:
        page = await container.scan_attributes(
            segment_id, start=following, end=file_key(last + 1), count=_PAGE_KEYS
        )
        for key, value in page.values:
            yield file_number_of(key), decode_file(value)
        following = page.following


async def files_of_partition(
    container: ReadOnlyStorage, record: SegmentRecord, topic: str, partition: int
) -> tuple[list[PublishedFile], list[str]]:
    """All files of a partition, whose segment is given, and what contradicts itself: each offset from the log start to
    the end has to be in one file, or in the segment.

    Nothing of a file is read, and of the segment the header of its first batch. Memory: O(files). Raises
    CorruptedDataError (a registration), StorageError.
    """

    def number(key: AttributeKey) -> int:
        return count_of(record.core_attributes, key, name=record.name)

    first, last, cold_end = number(FIRST_FILE), number(LAST_FILE), number(COLD_END)
    found: list[PublishedFile] = []
    is_retired = RETIRED in record.core_attributes
    async with aclosing(published_files(container, record.segment_id, first=1, last=last)) as files:
        async for each, file in files:
            key = file.name(topic, partition).key
            found.append(PublishedFile(each, key, file, is_retired))
    where = f"segment={record.name!r}"
    damages = [
        f"files of a partition do not meet {where} key={behind.key} before={before.file.end_offset}"
        for before, behind in pairwise(found)
        if before.file.end_offset != behind.file.first_offset
    ]
    if [each.number for each in found] != list(range(max(1, first), last + 1)):
        damages.append(
            f"registered files are missing {where} first={first} last={last} found={len(found)}"
        )
    if found and found[-1].file.end_offset != cold_end:
        damages.append(
            f"files end elsewhere than the partition says {where}"
            f" files={found[-1].file.end_offset} cold_end={cold_end}"
        )
    log_start, end = number(LOG_START), number(EVENT_COUNT)
    if found and found[0].file.first_offset > log_start:
        damages.append(
            f"records lie in front of the first file and nowhere {where} log_start={log_start}"
            f" first_offset={found[0].file.first_offset}"
        )
    hot_begin = await _first_offset(container, record)
    if hot_begin is None:
        hot_begin = end
    if not max(cold_end, log_start) <= end or hot_begin > max(cold_end, log_start):
        damages.append(
            f"records lie between the files and the segment, and nowhere {where}"
            f" log_start={log_start} cold_end={cold_end} first_batch={hot_begin} end={end}"
        )
    return found, damages


async def _first_offset(container: ReadOnlyStorage, record: SegmentRecord) -> int | None:
    """Of the first batch in the segment; None if there is none. Raises CorruptedDataError."""
    content = b""
    at = record.start_offset
    while at < record.length and len(content) < BATCH_HEADER_BYTES:
        found = await container.read(record.segment_id, at, BATCH_HEADER_BYTES - len(content))
        content += bytes(found.content[at - found.offset :])
        at = record.start_offset + len(content)
    if not content:
        return None
    try:
        return parse_header(content).base_offset
    except BatchError as error:
        raise CorruptedDataError(
            f"a partition's segment begins with no batch name={record.name!r}: {error}"
        ) from error
