"""What Tier 2 holds and what it has lost, counted without its owner: in numbers, and in sentences for a person.

`survey` counts what each container holds and compares what its layouts name with a listing. `find_losses` adds the
containers without a sound manifest: what is left of them, and which backups have a manifest of them.

Invariant: a person who goes on with damage was told of it first, by name; nothing of it is passed over in silence.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, aclosing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TypeAlias

from tqdm import tqdm

from segmentstore.codec.stream_names import parse_segment
from segmentstore.contracts.errors import CorruptedDataError, InvalidRequestError
from segmentstore.recovery.record_files_verification import (
    RecordFilesReport,
    verify_record_files,
)
from segmentstore.recovery.tier2_access import (
    LostManifest,
    Tier2,
    container_count_in,
    find_snapshots,
    summaries_of,
)
from tier2.manifest.snapshots import Snapshot
from tier2.offline.lost_data import LostChunks, Remains, find_lost_chunks, find_remains
from tier2.store_reader import ContainerReader

TRANSACTIONS_MAX = 10_000
METADATA_PREFIX = "_system/_tables/"
"""Of the tables in which the controller keeps scopes and streams."""
RANGES_SHOWN = 20


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
    """Why its SSTs, without which nothing can be found, do not read; empty if they do."""


@dataclass(frozen=True, slots=True)
class LostContainer:
    """A container without a sound manifest, what is left of it, and the proved backups that have a manifest of it."""

    manifest: LostManifest
    remains: Remains
    snapshots: Sequence[Snapshot]

    @property
    def container_id(self) -> int:
        return self.manifest.container_id


@dataclass(frozen=True, slots=True)
class Losses:
    """Of a whole Tier 2."""

    containers: Sequence[LostContainer]
    container_count: int
    surveys: Sequence[ContainerSurvey]
    """Those in which something is lost."""
    record_files: RecordFilesReport
    """Of topics, in the containers whose segments are found."""

    def beyond(self, begun_anew: Sequence[int]) -> bool:
        """Whether anything is lost but the containers that a person lets begin anew."""
        is_lost = bool(self.surveys) or bool(self.record_files.damage_count)
        return is_lost or bool(self.containers_beyond(begun_anew))

    def containers_beyond(self, begun_anew: Sequence[int]) -> list[int]:
        """Those without a sound manifest, but for the ones that a person lets begin anew."""
        ids = [each.container_id for each in self.containers]
        return [each for each in ids if each not in begun_anew]

    def sentences(self, place: str) -> list[str]:
        """One for each thing that is lost."""
        told: list[str] = []
        if self.containers:
            ids = ", ".join(str(each.container_id) for each in self.containers)
            told.append(
                f"lost: {len(self.containers)} of {self.container_count} containers have no sound manifest: {ids};"
                " whatever segments they had cannot be found"
            )
        for each in self.containers:
            told += [
                (
                    f"lost: container {each.container_id}: {each.manifest.why}; left of it are"
                    f" {each.remains.object_count} objects with {each.remains.byte_count} bytes"
                ),
                *(
                    f"but backup {snapshot.name!r} of {shown_time(snapshot.created_ms)} has a manifest of container"
                    f" {each.container_id}; to have the whole store as it was then:"
                    f" segmentstore backup restore {snapshot.name} --from {place} --data NEWDIR"
                    for snapshot in each.snapshots
                ),
            ]
        for survey in self.surveys:
            number = survey.reader.container_id
            if survey.unreadable:
                told.append(
                    f"lost: container {number}: its segments cannot all be found: {survey.unreadable}"
                )
            else:
                told += lost_ranges(survey.lost, number)
                told += _newer(survey, number)
        return told + lost_files(self.record_files.damages, self.record_files.damage_count)


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


def _transaction(segment: str) -> str:
    """Of which stream, and which one; empty for the segment of anything else."""
    if "#transaction." not in segment:
        return ""
    try:
        name = parse_segment(segment)
    except InvalidRequestError:
        return ""
    return f"{name.scope}/{name.stream} {name.transaction_id or 0:032x}"


async def find_losses(tier2: Tier2, surveys: Sequence[ContainerSurvey]) -> Losses:
    """O(objects of containers without a manifest). Raises StorageError, CorruptedDataError."""
    snapshots = await find_snapshots(tier2) if tier2.lost else []
    return Losses(
        [
            LostContainer(
                lost,
                await find_remains(lost.reader.components),
                [
                    each.snapshot
                    for each in snapshots
                    if each.reader is lost.reader and each.snapshot.is_proved
                ],
            )
            for lost in tier2.lost
        ],
        tier2.containers[0].manifest.container_count,
        [each for each in surveys if each.unreadable or not each.lost.is_sound],
        await verify_record_files(
            Tier2([each.reader for each in surveys if not each.unreadable]), deep=False
        ),
    )


async def require_sound_manifest(tier2: Tier2, place: str) -> None:
    """Raises CorruptedDataError; its text names the backups that have all containers and how to restore them."""
    if tier2.containers:
        return
    snapshots = await find_snapshots(tier2)
    whole = [
        each.name
        for each in summaries_of(
            snapshots, container_count_in(tier2, snapshots) if snapshots else 0
        )
        if each.is_complete
    ]
    told = [
        f"but backup {name!r} has all manifests; to have the whole store as it was then:"
        f" segmentstore backup restore {name} --from {place} --data NEWDIR"
        for name in whole
    ]
    raise CorruptedDataError("\n".join([f"no manifest is sound: {tier2.lost[0].why}", *told]))


def lost_ranges(lost: LostChunks, container_id: int) -> list[str]:
    """What is lost of the segments of one container, the first ranges by name."""
    if not lost.range_count:
        return []
    shown = [f"  {each}" for each in lost.ranges[:RANGES_SHOWN]]
    more = lost.range_count - len(shown)
    return [
        (
            f"lost: container {container_id}: {lost.byte_count} bytes of {lost.segment_count} segments, in"
            f" {lost.range_count} ranges whose objects are gone; reading them is an error:"
        ),
        *shown,
        *([f"  and {more} more: `segmentstore tier2 verify` names them"] if more else []),
    ]


def lost_files(damages: Sequence[str], count: int) -> list[str]:
    """What is wrong with files of topics' records: the first sentences of so many."""
    if not count:
        return []
    return [
        f"lost: {count} problems with files of topics' records:",
        *(f"  {each}" for each in damages[:RANGES_SHOWN]),
        *(["  and more: `segmentstore tier2 verify` names them"] if count > RANGES_SHOWN else []),
    ]


def _newer(survey: ContainerSurvey, container_id: int) -> list[str]:
    lost = survey.lost
    if not lost.newer_count:
        return []
    manifest = survey.reader.manifest
    return [
        (
            f"lost: container {container_id}: its manifest is an old one (version {manifest.version}, epoch"
            f" {manifest.epoch}): {lost.newer_count} objects beside it are of epochs up to {lost.highest_epoch}; what"
            " later versions published is lost, and the store deletes those objects after a while: if a newer manifest"
            " is kept somewhere, bring it back first"
        )
    ]


def shown_time(unix_ms: int) -> str:
    """As a person reads it; a dash for 0."""
    if not unix_ms:
        return "-"
    return datetime.fromtimestamp(unix_ms / 1000, UTC).isoformat(timespec="milliseconds")


@contextmanager
def progress_bar(
    what: str, *, quiet: bool, unit: str = " segments", scaled: bool = False
) -> Iterator[Callable[[int], object]]:
    """On stderr, where that is a terminal."""
    with tqdm(
        unit=unit, unit_scale=scaled, desc=what, file=sys.stderr, disable=quiet or None
    ) as bar:
        yield bar.update
