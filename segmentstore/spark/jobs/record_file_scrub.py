"""Files of topics' records for the `verify` job: which are registered, and the work of one task that proves some.

A file is read whole and proved as it stands alone (tier2/format/record_file.py: checksums of file, index and blocks;
what records and index say of one another), and held against what is registered: size, offsets, count and times.

- Damage is an answer and not an error. What is damaged is read once more before that is said.
- A file that is gone is damage only if it is still registered when the driver looks again.
- Files of one partition follow one another without a gap, up to where the partition says that they end.
"""

from collections.abc import Sequence
from concurrent.futures import Executor
from contextlib import aclosing
from dataclasses import dataclass

from segmentstore.codec.topic_files import RegisteredFile
from segmentstore.contracts.errors import CorruptedDataError, ObjectNotFoundError
from segmentstore.contracts.object_store import ObjectStore
from segmentstore.contracts.storage import SegmentRecord
from segmentstore.spark.python_worker import LoopRunner
from segmentstore.spark.tier2_access import Tier2Location, open_for_reading
from segmentstore.spark.topics.published_partition import facts_of_record
from segmentstore.topics.record_files.published_files import published_files
from segmentstore.topics.topic_records import PARTITION_PREFIX, parse_partition_segment
from tier2.format.record_file import damages_of_record_file, open_record_file
from tier2.store_reader import ContainerReader


@dataclass(frozen=True, slots=True)
class ScrubFile:
    """One file to prove."""

    container_id: int
    segment_name: str
    number: int
    """Of the file, in its partition."""
    key: str
    file: RegisteredFile

    @property
    def name(self) -> str:
        """The same for the same bytes, in every plan."""
        return f"file {self.key}"


@dataclass(frozen=True, slots=True)
class ScrubbedFile:
    """What was found in one file."""

    file: ScrubFile
    damages: tuple[str, ...]
    is_missing: bool = False


async def plan_files(
    reader: ContainerReader, record: SegmentRecord
) -> tuple[list[ScrubFile], list[str]]:
    """The registered files of a segment, if it is that of a partition, and what contradicts itself among them.

    Raises CorruptedDataError, StorageError.
    """
    found: list[ScrubFile] = []
    damages: list[str] = []
    if not record.name.startswith(PARTITION_PREFIX):
        return found, damages
    partition = parse_partition_segment(record.name)
    if partition is None:
        return found, damages
    facts = facts_of_record(record)
    topic, index = partition
    async with aclosing(
        published_files(reader, facts.segment_id, first=1, last=facts.last_file)
    ) as files:
        async for number, file in files:
            key = file.name(topic, index).key
            last = found[-1] if found else None
            if last is not None and last.file.end_offset != file.first_offset:
                damages.append(
                    f"files of a partition do not meet key={key} before={last.file.end_offset}"
                )
            found.append(ScrubFile(int(reader.container_id), record.name, number, key, file))
    expected = list(range(max(1, facts.first_file), facts.last_file + 1))
    if [each.number for each in found] != expected:
        damages.append(
            f"registered files are missing segment={record.name!r} first={facts.first_file}"
            f" last={facts.last_file} found={len(found)}"
        )
    if found and found[-1].file.end_offset != facts.cold_end:
        damages.append(
            f"files end elsewhere than the partition says segment={record.name!r}"
            f" files={found[-1].file.end_offset} cold_end={facts.cold_end}"
        )
    return found, damages


def scrub_files(place: Tier2Location, files: Sequence[ScrubFile]) -> list[ScrubbedFile]:
    """All of them, one after the other. Raises StorageError."""
    with LoopRunner() as runner:
        return runner.run(_scrub_files(place, files, runner.executor))


async def _scrub_files(
    place: Tier2Location, files: Sequence[ScrubFile], executor: Executor
) -> list[ScrubbedFile]:
    found: list[ScrubbedFile] = []
    async with open_for_reading(place, executor) as store:
        for each in files:
            try:
                damages = await _damages_of(store, each) and await _damages_of(store, each)
                found.append(ScrubbedFile(each, tuple(damages)))
            except ObjectNotFoundError:
                missing = f"a registered file is missing key={each.key}"
                found.append(ScrubbedFile(each, (missing,), is_missing=True))
    return found


async def _damages_of(store: ObjectStore, each: ScrubFile) -> list[str]:
    file = each.file
    # One byte more than there should be: a file that is longer is damaged as well.
    image = await store.get_range(each.key, 0, file.size + 1)
    damages = [
        f"{damage} segment={each.segment_name!r}"
        for damage in damages_of_record_file(image, source=each.key)
    ]
    if len(image) != file.size:
        damages.append(f"a file has another size key={each.key} registered={file.size}")
    try:
        opened = open_record_file(image, source=each.key)
    except CorruptedDataError:
        return damages
    times = [entry.events for entry in opened.index.entries if entry.events is not None]
    held = (
        opened.header.start_offset,
        opened.header.end_offset,
        opened.header.record_count,
        min(each.lowest_time_ms for each in times),
        max(each.highest_time_ms for each in times),
    )
    registered = (
        file.first_offset,
        file.end_offset,
        file.record_count,
        file.lowest_ms,
        file.highest_ms,
    )
    if held != registered:
        damages.append(f"a file is registered otherwise key={each.key} {held=} {registered=}")
    return damages
