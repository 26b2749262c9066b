"""The `verify` job: a deep scrub of a whole Tier 2 in parallel. It changes nothing.

    driver    every container: SSTs, catalog, references, garbage, continuity of layouts, orphans (tier2/offline)
    tasks     every chunk image: checksums of blocks and file, offsets, event framing (chunk_scrub.py)
    driver    events go on from chunk to chunk (chunk_scrub.py)
    tasks     every registered file of topics' records (record_file_scrub.py)

- The service may be at work meanwhile. What there is in a container is planned under one of its manifests. Every byte
  that the manifests named at first is proved, unless it was deleted: what compaction moves away is looked for where it
  is now. What came later is for the next run.
- With a directory for its state, a job that was killed goes on: what it has proved is not read again. A run that comes
  to its end writes that down as well, and the next one proves everything anew: what was sound may have rotted since.
- One run at a time has that directory.
"""

import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from segmentstore.contracts.errors import (
    CorruptedDataError,
    ObjectNotFoundError,
    StorageError,
)
from segmentstore.contracts.object_store import ObjectStore
from segmentstore.spark.jobs.chunk_scrub import (
    ChunkFraming,
    ScrubImage,
    joint_damages,
    scrub_images,
)
from segmentstore.spark.jobs.job_execution import Entry, JobCheckpoint, Progress, TaskRunner, waves
from segmentstore.spark.jobs.record_file_scrub import (
    ScrubbedFile,
    ScrubFile,
    plan_files,
    scrub_files,
)
from segmentstore.spark.python_worker import LoopRunner
from segmentstore.spark.tier2_access import (
    Tier2Location,
    open_containers,
    open_for_reading,
)
from tier2.outside_access import (
    ContainerReader,
    LayoutEntry,
    SnapshotReader,
    VerifyReport,
    verify_container,
)

FINDINGS_MAX = 1_000
_ROUNDS_MAX = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifySettings:
    """What one run does. Sizes in stored bytes."""

    task_bytes: int = 64 << 20
    """Of one task: bounds what a killed worker does again."""
    framing: bool = True
    """Walk through the events as well."""
    state_directory: Path | None = None
    """Where a killed run finds what it has done; a run that ended leaves nothing for the next one."""


@dataclass(slots=True)
class ContainerSummary:
    """One row of the report."""

    container: int
    root_version: int = 0
    segments: int = 0
    segment_bytes: int = 0
    chunks: int = 0
    stored_bytes: int = 0
    events: int = 0
    files: int = 0
    """Of topics' records; their bytes count as stored."""
    orphans: int = 0
    damages: int = 0


@dataclass(slots=True)
class VerifySummary:
    """What a run found."""

    containers: dict[int, ContainerSummary] = field(default_factory=dict)
    damages: list[str] = field(default_factory=list)
    """The first FINDINGS_MAX of them."""
    orphans: list[str] = field(default_factory=list)
    resumed_chunks: int = 0
    """Proved by an earlier run with the same state directory."""
    seconds: float = 0.0
    scrubbed_bytes: int = 0
    """Stored bytes that this run read and proved."""

    @property
    def sound(self) -> bool:
        return not self.damages

    def of(self, container: int) -> ContainerSummary:
        return self.containers.setdefault(container, ContainerSummary(container))

    def add_damage(self, container: int, sentence: str) -> None:
        self.of(container).damages += 1
        if len(self.damages) < FINDINGS_MAX:
            self.damages.append(sentence)


_Item = TypeVar("_Item", ScrubImage, ScrubFile)
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class _Proved:
    """An image or a file, and what was found."""

    item: ScrubImage | ScrubFile
    damages: tuple[str, ...]
    framing: ChunkFraming | None = None

    def entry(self) -> Entry:
        return {
            "name": self.item.name,
            "damages": list(self.damages),
            "framing": None if self.framing is None else asdict(self.framing),
        }


@dataclass(slots=True)
class Plan:
    """What is to be proved under the manifests as they were read."""

    images: list[ScrubImage] = field(default_factory=list)
    sealed_lengths: dict[tuple[int, int], int] = field(default_factory=dict)
    """By container and segment."""
    files: list[ScrubFile] = field(default_factory=list)
    file_damages: list[tuple[int, str]] = field(default_factory=list)
    """Container, and what registrations contradict."""

    def add(self, other: "Plan") -> None:
        """That of another container."""
        self.images += other.images
        self.sealed_lengths |= other.sealed_lengths
        self.files += other.files
        self.file_damages += other.file_damages


class VerifyJob:
    """One run."""

    def __init__(
        self,
        *,
        place: Tier2Location,
        tasks: TaskRunner,
        settings: VerifySettings,
        progress: Progress = lambda _done, _total: None,
    ) -> None:
        """`progress` counts stored bytes that were proved."""
        self._place = place
        self._tasks = tasks
        self._settings = settings
        self._progress = progress
        self._found: dict[str, Sequence[str]] = {}
        """Damages of each image that was proved, by its name."""
        self._framings: dict[str, ChunkFraming] = {}
        self._ledger: JobCheckpoint | None = None
        self._summary = VerifySummary()

    def run(self) -> VerifySummary:
        """Raises InvalidRequestError, JobInUseError, StorageError."""
        try:
            return self._run()
        finally:
            if self._ledger is not None:
                self._ledger.close()

    def _run(self) -> VerifySummary:
        started = time.perf_counter()
        resumed = self._resume()
        plan = first_plan = self._look(first=True)
        missing = [image for image in plan.images if image.name not in self._found]
        for _ in range(_ROUNDS_MAX):
            moved = self._scrub(missing)
            if not moved:
                break
            plan = self._look(first=False)
            missing = [
                image for image in in_place_of(moved, plan.images) if image.name not in self._found
            ]
        else:
            raise StorageError("chunks move faster than they can be verified")
        self._summarize(plan, resumed)
        self._prove_files(first_plan, resumed)
        if self._ledger is not None:
            self._ledger.add({"ended": True})
        self._summary.seconds = time.perf_counter() - started
        return self._summary

    # --- the driver's part ------------------------------------------------------------------

    def _look(self, *, first: bool) -> Plan:
        with LoopRunner() as runner:

            async def look() -> Plan:
                plan = Plan()
                async with open_for_reading(self._place, runner.executor) as store:
                    await self._look_at(store, runner, plan, first=first)
                return plan

            return runner.run(look())

    async def _look_at(
        self, store: ObjectStore, runner: LoopRunner, plan: Plan, *, first: bool
    ) -> None:
        for reader in await open_containers(store, runner.executor, place=self._place.place):
            container = int(reader.container_id)
            if first:
                self._add_report(container, await verify_container(reader, objects=False))
            try:
                plan.add(await plan_container(reader))
            except (CorruptedDataError, ObjectNotFoundError) as error:
                # The report has it already, unless it was damaged just now.
                if not self._summary.of(container).damages:
                    self._summary.add_damage(container, str(error))

    def _add_report(self, container: int, report: VerifyReport) -> None:
        row = self._summary.of(container)
        row.root_version = report.root_version
        row.segments, row.segment_bytes = report.segments, report.bytes_of_segments
        row.orphans = report.orphan_count
        self._summary.orphans += report.orphans
        for sentence in report.damages:
            self._summary.add_damage(container, sentence)

    def _scrub(self, images: Sequence[ScrubImage]) -> list[ScrubImage]:
        """Those that were somewhere else by then."""
        moved: list[ScrubImage] = []
        work = partial(scrub_images, self._place, self._settings.framing)
        ordered = sorted(
            images,
            key=lambda image: (image.container_id, image.entry.identity, image.entry.position),
        )
        for results in self._waves_of(work, ordered):
            moved += [one.image for one in results if one.moved]
            self._keep(
                [_Proved(one.image, one.damages, one.framing) for one in results if not one.moved]
            )
        return moved

    def _scrub_files(self, files: Sequence[ScrubFile]) -> list[ScrubbedFile]:
        """Those that are missing."""
        missing: list[ScrubbedFile] = []
        for results in self._waves_of(partial(scrub_files, self._place), files):
            missing += [one for one in results if one.is_missing]
            self._keep([_Proved(one.file, one.damages) for one in results if not one.is_missing])
        return missing

    def _waves_of(
        self, work: Callable[[Sequence[_Item]], list[_Result]], items: Sequence[_Item]
    ) -> Iterator[list[_Result]]:
        """What the tasks of a wave found. The next wave begins when the caller has kept it."""
        total = sum(item.size for item in items)
        done = 0
        self._progress(0, total)
        for wave in waves(tasks_of(items, self._settings.task_bytes), self._tasks.wave_tasks):
            yield [one for found in self._tasks.run(work, wave) for one in found]
            done += sum(item.size for task in wave for item in task)
            self._progress(done, total)
        self._summary.scrubbed_bytes += done

    def _keep(self, found: Sequence[_Proved]) -> None:
        for one in found:
            self._found[one.item.name] = one.damages
            if one.framing is not None:
                self._framings[one.item.name] = one.framing
        if self._ledger is not None and found:
            self._ledger.add({"images": [one.entry() for one in found]})

    def _prove_files(self, plan: Plan, resumed: frozenset[str]) -> None:
        """Of those that are missing the registration is looked at anew: retention or compaction may have come by."""
        for _ in range(_ROUNDS_MAX):
            files = [each for each in plan.files if each.name not in self._found]
            missing = self._scrub_files(files)
            if not missing:
                break
            plan = self._look(first=False)
            named = {each.key for each in plan.files}
            self._keep([_Proved(one.file, one.damages) for one in missing if one.file.key in named])
        for container, sentence in plan.file_damages:
            self._summary.add_damage(container, sentence)
        for each in plan.files:
            if self._count(each, resumed):
                self._summary.of(each.container_id).files += 1

    # --- what is told ------------------------------------------------------------------------

    def _summarize(self, plan: Plan, resumed: frozenset[str]) -> None:
        by_segment: dict[tuple[int, int], list[ScrubImage]] = {}
        for image in plan.images:
            if self._count(image, resumed):
                self._summary.of(image.container_id).chunks += 1
                by_segment.setdefault((image.container_id, image.segment_id), []).append(image)
        for key, images in by_segment.items():
            framings = [
                self._framings[image.name] for image in images if image.name in self._framings
            ]
            self._summary.of(key[0]).events += sum(framing.events for framing in framings)
            for sentence in joint_damages(framings, sealed_length=plan.sealed_lengths.get(key)):
                self._summary.add_damage(key[0], f"{sentence} segment={images[0].segment_name!r}")

    def _count(self, item: ScrubImage | ScrubFile, resumed: frozenset[str]) -> bool:
        """Into the row of its container; False, and nothing is counted, if it came since this run began."""
        if item.name not in self._found:
            return False
        self._summary.of(item.container_id).stored_bytes += item.size
        self._summary.resumed_chunks += item.name in resumed
        for sentence in self._found[item.name]:
            self._summary.add_damage(item.container_id, sentence)
        return True

    # --- what an earlier run did --------------------------------------------------------------

    def _resume(self) -> frozenset[str]:
        directory = self._settings.state_directory
        if directory is None:
            return frozenset()
        identity = {
            "job": "verify",
            "tier2": self._place.place,
            "endpoint": self._place.endpoint,
            "framing": self._settings.framing,
        }
        self._ledger = JobCheckpoint(directory, identity=identity)
        for entry in _since_last_end(self._ledger.open()):
            images = entry["images"]
            assert isinstance(images, list), f"entries hold lists of images found={type(images)}"
            for image in images:
                self._take_back(image)
        return frozenset(self._found)

    def _take_back(self, image: Mapping[str, object]) -> None:
        name, damages, framing = str(image["name"]), image["damages"], image["framing"]
        self._found[name] = (
            [str(sentence) for sentence in damages] if isinstance(damages, list) else []
        )
        if isinstance(framing, dict):
            self._framings[name] = ChunkFraming(**framing)


async def plan_container(reader: ContainerReader) -> Plan:
    """Under one manifest, or a newer one, if something of it is gone or contradicts itself and the owner has published.

    Raises CorruptedDataError, ObjectNotFoundError, StorageError.
    """
    plan = Plan()
    damage: CorruptedDataError | ObjectNotFoundError | None = None
    for _ in range(_ROUNDS_MAX):
        manifest = reader.manifest
        damage = None
        try:
            plan = await _plan_manifest(SnapshotReader(reader, manifest))
        except (CorruptedDataError, ObjectNotFoundError) as error:
            damage = error
        if damage is None and not plan.file_damages:
            break
        if (await reader.refresh()).manifest.version == manifest.version:
            break
    if damage is not None:
        raise damage
    return plan


async def _plan_manifest(reader: ContainerReader) -> Plan:
    plan = Plan()
    async with aclosing(reader.scan_layouts()) as layouts:
        async for layout in layouts:
            record, container = layout.record, layout.container_id
            if record.sealed:
                plan.sealed_lengths[container, record.segment_id] = record.length
            files, damages = await plan_files(reader, record)
            plan.files += files
            plan.file_damages += [(container, sentence) for sentence in damages]
            plan.images += [
                ScrubImage(container, record.segment_id, record.name, entry)
                for entry in layout.entries
            ]
    return plan


def in_place_of(moved: Sequence[ScrubImage], images: Sequence[ScrubImage]) -> list[ScrubImage]:
    """The images that hold some of the bytes that the moved ones held. O(n log n)."""
    ranges: dict[tuple[int, int], list[LayoutEntry]] = {}
    for image in moved:
        ranges.setdefault((image.container_id, image.segment_id), []).append(image.entry)
    for entries in ranges.values():
        entries.sort(key=lambda entry: entry.end_offset)
    found: list[ScrubImage] = []
    for image in images:
        entries = ranges.get((image.container_id, image.segment_id), [])
        at = bisect_right(entries, image.entry.start_offset, key=lambda entry: entry.end_offset)
        if at < len(entries) and entries[at].start_offset < image.entry.end_offset:
            found.append(image)
    return found


def tasks_of(items: Sequence[_Item], task_bytes: int) -> list[Sequence[_Item]]:
    """The same in the same order, about so many stored bytes in each task."""
    tasks: list[Sequence[_Item]] = []
    first, size = 0, 0
    for number, item in enumerate(items):
        if size and size + item.size > task_bytes:
            tasks.append(items[first:number])
            first, size = number, 0
        size += item.size
    if first < len(items):
        tasks.append(items[first:])
    return tasks


def _since_last_end(entries: Sequence[Entry]) -> Sequence[Entry]:
    """Of the run that was cut off; none if the last one came to its end."""
    ends = [number for number, entry in enumerate(entries) if "ended" in entry]
    return entries[ends[-1] + 1 :] if ends else entries
