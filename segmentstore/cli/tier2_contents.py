"""What a container's Tier 2 holds and misses, counted without its owner: the report of a recovery."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, aclosing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TypeAlias

from segmentstore.codec.stream_names import parse_segment
from segmentstore.contracts.errors import CorruptedDataError, InvalidRequestError
from tier2.storage.lost_chunks import LostChunks, find_lost_chunks
from tier2.storage.reader import ContainerReader

TRANSACTIONS_MAX = 10_000
METADATA_PREFIX = "_system/_tables/"
"""Of the tables in which the controller keeps scopes and streams."""

Bar: TypeAlias = AbstractContextManager[Callable[[int], object]]
"""Gives what is called with each step's size."""


@dataclass(slots=True)
class Tier2Contents:
    """Of one container."""

    segments: int = 0
    segment_bytes: int = 0
    """From each start offset to the end of what was flushed."""
    sealed: int = 0
    truncated: int = 0
    newest_ms: int = 0
    """Unix time of the last change that was flushed; 0 without one."""
    has_streams: bool = False
    transactions: set[str] = field(default_factory=set)
    """Streams and ids of transactions that have segments of their own still; up to TRANSACTIONS_MAX."""


@dataclass(frozen=True, slots=True)
class ContainerSurvey:
    """What is there and what is not."""

    reader: ContainerReader
    contents: Tier2Contents
    lost: LostChunks = field(default_factory=LostChunks)
    unreadable: str = ""
    """Why its runs, without which nothing can be found, do not read; empty if they do."""


async def survey(
    readers: Sequence[ContainerReader], *, bar: Callable[[str], Bar]
) -> list[ContainerSurvey]:
    """`bar` makes a progress bar for one of the two passes, from its name.

    O(segments + chunks + objects), no request for each chunk. Raises StorageError.
    """
    surveys: list[ContainerSurvey] = []
    with bar("reading") as update:
        for reader in readers:
            try:
                surveys.append(ContainerSurvey(reader, await contents_of(reader, progress=update)))
            except CorruptedDataError as error:
                surveys.append(ContainerSurvey(reader, Tier2Contents(), unreadable=str(error)))
    with bar("comparing with a listing") as update:
        return [each if each.unreadable else await _compared(each, update) for each in surveys]


async def _compared(survey: ContainerSurvey, progress: Callable[[int], object]) -> ContainerSurvey:
    try:
        return replace(survey, lost=await find_lost_chunks(survey.reader, progress=progress))
    except CorruptedDataError as error:
        return replace(survey, unreadable=str(error))


async def contents_of(
    reader: ContainerReader, *, progress: Callable[[int], object] = lambda _: None
) -> Tier2Contents:
    """O(segments). Raises StorageError, CorruptedDataError."""
    contents = Tier2Contents()
    async with aclosing(reader.list_segments("", "")) as records:
        async for record in records:
            contents.segments += 1
            contents.segment_bytes += record.length - record.start_offset
            contents.sealed += record.sealed
            contents.truncated += record.start_offset > 0
            contents.newest_ms = max(contents.newest_ms, record.last_modified_ms)
            contents.has_streams |= record.name.startswith(METADATA_PREFIX)
            transaction = _transaction(record.name)
            if transaction and len(contents.transactions) < TRANSACTIONS_MAX:
                contents.transactions.add(transaction)
            progress(1)
    return contents


@contextmanager
def progress_bar(
    what: str, *, quiet: bool, unit: str = " segments", scaled: bool = False
) -> Iterator[Callable[[int], object]]:
    """On stderr."""
    from tqdm import tqdm

    with tqdm(unit=unit, unit_scale=scaled, desc=what, file=sys.stderr, disable=quiet) as bar:
        yield bar.update


def shown_time(unix_ms: int) -> str:
    """As a person reads it; a dash for 0."""
    if not unix_ms:
        return "-"
    return datetime.fromtimestamp(unix_ms / 1000, UTC).isoformat(timespec="milliseconds")


def _transaction(segment: str) -> str:
    """Of which stream, and which one; empty for the segment of anything else."""
    if "#transaction." not in segment:
        return ""
    try:
        name = parse_segment(segment)
    except InvalidRequestError:
        return ""
    return f"{name.scope}/{name.stream} {name.transaction_id or 0:032x}"
