"""The `compact` job: small or LZ4 chunks become large ones in zstd, prepared by workers and published by the owner.

    plan   every segment's layout -> windows of neighbours, a chunk's length each
    wave   keys from the owner -> workers read, join, encode, upload -> each window is proposed -> the owner publishes

- What is done is in the layouts themselves: a run that was killed is simply started again, and finds less to do.
- A refusal costs the upload and nothing else: the segment changed meanwhile, or the plan was made from a manifest that
  was not the newest any more (volumes are seen a little late). Such segments are planned again, a few times.
- Windows below `window_bytes_min` stay: small segments share objects, and one of each for them would be dearer.
- A task (`rewrite_window`) has Tier 2 join neighbouring chunks of one segment (tier2/maintenance/chunk_rewriting.py).
- A task that runs twice writes the same bytes under the same key: nothing in them depends on when or where it ran.
- A task publishes nothing: the owner looks at what was uploaded and decides.

Tasks import this module, so it does not import aiohttp. This is why the protocol `SwapOwners` is here, and not
beside its two implementations in swap_owners.py.
"""

import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Executor
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

from segmentstore.contracts.errors import CorruptedDataError, ObjectNotFoundError, SwapRefusedError
from segmentstore.contracts.identifiers import BufferView, ContainerId, SegmentId
from segmentstore.contracts.storage import ProposedImage, SwapProposal
from segmentstore.runtime.clock import SystemWallClock
from segmentstore.spark.jobs.job_execution import Progress, TaskRunner, waves
from segmentstore.spark.python_worker import LoopRunner
from segmentstore.spark.tier2_access import (
    Tier2Location,
    container_reader,
    is_volumes,
    open_containers,
    open_for_reading,
    open_for_uploads,
)
from tier2.outside_access import LayoutEntry, SegmentLayout, proposed_images, rewrite_chunks

REFUSALS_MAX = 1_000
_WINDOW_ENTRIES_MAX = 2_000
"""Of a proposal, so that its description stays below what the service takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactSettings:
    """What one run does. Sizes in uncompressed bytes."""

    chunk_bytes: int = 64 << 20
    """Of the chunks that come out; a longer one is never joined."""
    window_bytes_min: int = 1 << 20
    prefix: str = ""
    """Only segments whose names begin so."""
    dry_run: bool = False
    """Plan only."""
    rounds_max: int = 3
    """Times that a segment is looked at whose windows were refused."""


@dataclass(slots=True)
class SegmentSummary:
    """One row of the report."""

    segment: str
    container: int
    windows: int = 0
    swapped: int = 0
    kept: int = 0
    """Windows that are as they should be."""
    refused: int = 0
    """In the last round."""
    chunks_before: int = 0
    chunks_after: int = 0
    """Of the windows that were swapped."""
    stored_bytes_before: int = 0
    stored_bytes_after: int = 0


@dataclass(slots=True)
class CompactSummary:
    """What a run did."""

    segments: dict[str, SegmentSummary] = field(default_factory=dict)
    refusals: list[str] = field(default_factory=list)
    """The first REFUSALS_MAX of the last round, in the owner's words."""
    seconds: float = 0.0
    read_bytes: int = 0
    """Uncompressed bytes of the windows that were looked at."""

    @property
    def swapped(self) -> int:
        return sum(row.swapped for row in self.segments.values())

    def of(self, window: "Window") -> SegmentSummary:
        return self.segments.setdefault(
            window.segment_name, SegmentSummary(window.segment_name, window.container_id)
        )


@dataclass(frozen=True, slots=True)
class Window:
    """Neighbouring entries of one segment that may become one chunk."""

    container_id: int
    segment_id: int
    segment_name: str
    entries: tuple[LayoutEntry, ...]

    @property
    def length(self) -> int:
        return self.entries[-1].end_offset - self.entries[0].start_offset


@dataclass(frozen=True, slots=True)
class RewriteTask:
    """A window of one segment, and where its bytes go."""

    container_id: int
    segment_id: int
    segment_name: str
    entries: tuple[LayoutEntry, ...]
    """Neighbours in offset order."""
    object_key: str
    """Given out by the owner."""
    created_ms: int
    chunk_bytes_max: int
    staging_directory: str = ""
    """Where the object is left for the driver, if the workers may not write to Tier 2 themselves."""

    @property
    def length(self) -> int:
        """Uncompressed bytes."""
        return self.entries[-1].end_offset - self.entries[0].start_offset


@dataclass(frozen=True, slots=True)
class RewrittenWindow:
    """What became of it."""

    task: RewriteTask
    new: tuple[ProposedImage, ...] = ()
    """What to propose; empty if the window is as it should be, or could not be rewritten."""
    stored_bytes: int = 0
    """Of the new object."""
    staged_path: str = ""
    why_not: str = ""
    """A sentence, if the window could not be rewritten."""


class SwapOwners(Protocol):
    """What the job asks of owners. Everything blocks."""

    def reserve(self, container_id: int, count: int) -> list[str]:
        """Keys to upload objects under. Raises SegmentStoreError."""

    def release(self, container_id: int, keys: Sequence[str]) -> None:
        """Keys that will not be used."""

    def upload(self, container_id: int, key: str, content: bytes) -> None:
        """Store an object for workers that may not write to Tier 2 themselves."""

    def propose(self, container_id: int, proposal: SwapProposal) -> None:
        """Returns when the swap is published. Raises StorageError, SwapRefusedError with the reason, which may be that
        it is not known whether it was."""


class CompactJob:
    """One run."""

    def __init__(
        self,
        *,
        place: Tier2Location,
        tasks: TaskRunner,
        owner: SwapOwners | None,
        settings: CompactSettings,
        progress: Progress = lambda _done, _total: None,
    ) -> None:
        """`progress` counts uncompressed bytes. `owner` may be missing for a run that only plans."""
        self._place = place
        self._tasks = tasks
        self._named_owner = owner
        self._settings = settings
        self._progress = progress
        self._keys: dict[int, list[str]] = {}
        """Given out and not used yet, by container."""
        self._summary = CompactSummary()

    def run(self) -> CompactSummary:
        """Raises InvalidRequestError, StorageError."""
        started = time.perf_counter()
        windows = plan_windows(self._place, self._settings)
        for window in windows:
            self._summary.of(window).windows += 1
        if not self._settings.dry_run:
            self._compact(windows)
            for _ in range(1, self._settings.rounds_max):
                refused = self._take_refused()
                if not refused:
                    break
                again = [
                    window
                    for window in plan_windows(self._place, self._settings)
                    if window.segment_name in refused
                ]
                for window in again:
                    self._summary.of(window).windows += 1
                self._compact(again)
        self._summary.seconds = time.perf_counter() - started
        return self._summary

    @property
    def _owner(self) -> SwapOwners:
        assert self._named_owner is not None, "only a dry run has no owner"
        return self._named_owner

    def _compact(self, windows: Sequence[Window]) -> None:
        total = sum(window.length for window in windows)
        done = 0
        self._progress(0, total)
        # Volumes have one writer: what workers made goes through the driver, and through the owner, into them.
        with tempfile.TemporaryDirectory(prefix="segmentstore-compact-") as directory:
            staging = directory if is_volumes(self._place) else ""
            try:
                for wave in waves(windows, self._tasks.wave_tasks):
                    self._wave(wave, staging)
                    done += sum(window.length for window in wave)
                    self._progress(done, total)
            finally:
                for container_id, keys in self._keys.items():
                    if keys:
                        self._owner.release(container_id, keys)
                self._keys.clear()
                self._summary.read_bytes += done

    def _take_refused(self) -> set[str]:
        """Names of segments with refused windows, whose account begins anew."""
        refused = {row.segment for row in self._summary.segments.values() if row.refused}
        for name in refused:
            row = self._summary.segments[name]
            row.windows, row.kept, row.refused = 0, 0, 0
        self._summary.refusals.clear()
        return refused

    def _wave(self, wave: Sequence[Window], staging: str) -> None:
        now_ms = SystemWallClock().now_ms()
        keys = self._take_keys(wave)
        tasks = [
            RewriteTask(
                container_id=window.container_id,
                segment_id=window.segment_id,
                segment_name=window.segment_name,
                entries=window.entries,
                object_key=key,
                created_ms=now_ms,
                chunk_bytes_max=self._settings.chunk_bytes,
                staging_directory=staging,
            )
            for window, key in zip(wave, keys, strict=True)
        ]
        try:
            results = self._tasks.run(partial(rewrite_window, self._place), tasks)
            for window, result in zip(wave, results, strict=True):
                self._settle(window, result)
        except BaseException:
            # Released with the others: those that were used are none of the owner's any more.
            for window, key in zip(wave, keys, strict=True):
                self._keys[window.container_id].append(key)
            raise

    def _take_keys(self, wave: Sequence[Window]) -> list[str]:
        wanted: dict[int, int] = {}
        for window in wave:
            wanted[window.container_id] = wanted.get(window.container_id, 0) + 1
        for container_id, count in wanted.items():
            have = self._keys.setdefault(container_id, [])
            if len(have) < count:
                have += self._owner.reserve(container_id, count - len(have))
        return [self._keys[window.container_id].pop() for window in wave]

    def _settle(self, window: Window, result: RewrittenWindow) -> None:
        row, key = self._summary.of(window), result.task.object_key
        if not result.new:
            self._keys[window.container_id].append(key)
            if result.why_not:
                self._refused(window, result.why_not)
            else:
                row.kept += 1
            return
        try:
            if result.staged_path:
                path = Path(result.staged_path)
                self._owner.upload(window.container_id, key, path.read_bytes())
                path.unlink()
            self._owner.propose(window.container_id, _swap_proposal(window, result))
        except SwapRefusedError as error:
            self._refused(window, str(error))
            return
        row.swapped += 1
        row.chunks_before += len(window.entries)
        row.chunks_after += len(result.new)
        row.stored_bytes_before += sum(entry.size for entry in window.entries)
        row.stored_bytes_after += result.stored_bytes

    def _refused(self, window: Window, why: str) -> None:
        self._summary.of(window).refused += 1
        if len(self._summary.refusals) < REFUSALS_MAX:
            self._summary.refusals.append(
                f"{why} segment={window.segment_name!r} offset={window.entries[0].start_offset}"
            )


def plan_windows(place: Tier2Location, settings: CompactSettings) -> list[Window]:
    """Of all segments, by container, id and offset. O(layout entries). Raises InvalidRequestError, StorageError."""
    with LoopRunner() as runner:

        async def look() -> list[Window]:
            windows: list[Window] = []
            async with open_for_reading(place, runner.executor) as store:
                for reader in await open_containers(store, runner.executor, place=place.place):
                    async with aclosing(reader.scan_layouts()) as layouts:
                        async for layout in layouts:
                            if layout.record.name.startswith(settings.prefix):
                                windows += windows_of(layout, settings)
            return windows

        return runner.run(look())


def windows_of(layout: SegmentLayout, settings: CompactSettings) -> list[Window]:
    """Stretches of neighbours as long as a chunk may be, none of them twice. O(n)."""
    windows: list[Window] = []
    stretch: list[LayoutEntry] = []
    length = 0

    def end_stretch() -> None:
        if stretch and (length >= settings.window_bytes_min):
            windows.append(
                Window(
                    layout.container_id,
                    layout.record.segment_id,
                    layout.record.name,
                    tuple(stretch),
                )
            )
        stretch.clear()

    for entry in layout.entries:
        if length + entry.length > settings.chunk_bytes or len(stretch) == _WINDOW_ENTRIES_MAX:
            end_stretch()
            length = 0
        stretch.append(entry)
        length += entry.length
    end_stretch()
    return windows


def _swap_proposal(window: Window, result: RewrittenWindow) -> SwapProposal:
    old = proposed_images(ContainerId(window.container_id), window.entries)
    return SwapProposal(SegmentId(window.segment_id), old, list(result.new))


def rewrite_window(place: Tier2Location, task: RewriteTask) -> RewrittenWindow:
    """Read, join, encode, upload. Raises StorageError if the store does not answer."""
    with LoopRunner() as runner:
        return runner.run(_rewrite(place, task, runner.executor))


async def _rewrite(place: Tier2Location, task: RewriteTask, executor: Executor) -> RewrittenWindow:
    try:
        async with open_for_reading(place, executor) as store:
            rewritten = await rewrite_chunks(
                container_reader(store, task.container_id, executor),
                task.entries,
                object_key=task.object_key,
                chunk_bytes_max=task.chunk_bytes_max,
                created_ms=task.created_ms,
            )
    except ObjectNotFoundError:
        return RewrittenWindow(task, why_not="its chunks are somewhere else by now")
    except CorruptedDataError as error:
        return RewrittenWindow(task, why_not=f"not copied, it is damaged: {error}")
    if rewritten is None:
        return RewrittenWindow(task)
    window = RewrittenWindow(task, tuple(rewritten.images), rewritten.size)
    if task.staging_directory:
        return _stage_object(window, rewritten.buffers)
    async with open_for_uploads(place, executor) as store:
        await store.put(task.object_key, rewritten.buffers)
    return window


def _stage_object(window: RewrittenWindow, buffers: Sequence[BufferView]) -> RewrittenWindow:
    path = Path(window.task.staging_directory) / window.task.object_key.replace("/", "_")
    with path.open("wb") as file:
        file.writelines(buffers)
    return RewrittenWindow(window.task, window.new, window.stored_bytes, str(path))
