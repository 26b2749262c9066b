"""Files of topics' records for the `verify` job: which are registered, and the work of one task that proves some.

A file is read whole, proved, and held against what is registered (tier2/offline/record_file_proof.py).

- Damage is an answer and not an error. What is damaged is read once more before that is said.
- A file that is gone is damage only if it is still registered when the driver looks again, and its topic is not being
  deleted.
- Files of one partition follow one another without a gap, and its batches follow them (files_of_partition()).
"""

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from segmentstore.codec.topic_files import RegisteredFile
from segmentstore.contracts.errors import ObjectNotFoundError
from segmentstore.contracts.object_store import ObjectStore
from segmentstore.contracts.storage import SegmentRecord
from segmentstore.spark.python_worker import LoopRunner
from segmentstore.spark.tier2_access import Tier2Location, open_for_reading
from segmentstore.topics.record_files.published_files import files_of_partition
from segmentstore.topics.topic_records import parse_partition_segment
from tier2.outside_access import ContainerReader, damages_of_registered_file


@dataclass(frozen=True, slots=True)
class ScrubFile:
    """One file to prove."""

    container_id: int
    segment_name: str
    number: int
    """Of the file, in its partition."""
    key: str
    file: RegisteredFile
    may_be_gone: bool

    @property
    def name(self) -> str:
        """The same for the same bytes, in every plan."""
        return f"file {self.key}"

    @property
    def size(self) -> int:
        """Stored bytes."""
        return self.file.size


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
    partition = parse_partition_segment(record.name)
    if partition is None:
        return [], []
    files, damages = await files_of_partition(reader, record, *partition)
    container = int(reader.container_id)
    return [
        ScrubFile(container, record.name, each.number, each.key, each.file, each.may_be_gone)
        for each in files
    ], damages


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
                if each.may_be_gone:
                    found.append(ScrubbedFile(each, ()))
                    continue
                missing = f"a registered file is missing key={each.key}"
                found.append(ScrubbedFile(each, (missing,), is_missing=True))
    return found


async def _damages_of(store: ObjectStore, each: ScrubFile) -> list[str]:
    # One byte more than there should be: a file that is longer is damaged as well.
    content = await store.get_range(each.key, 0, each.file.size + 1)
    found = damages_of_registered_file(content, each.file, key=each.key)
    return [f"{damage} segment={each.segment_name!r}" for damage in found]
