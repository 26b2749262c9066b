"""Joins small neighbouring chunks of a segment into large ones, and so unpacks a segment as it grows.

    choose windows of neighbours, many segments in one step -> read and verify their images -> decode, join, encode
    -> decode what was encoded and compare checksums -> upload -> publish the new layouts in one version

- Neighbours only, in offset order, and never more than `compaction_chunk_bytes` together.
- While a segment grows, a joined chunk is several times as long as its longest part, so that a byte is copied a few
  times in all and not with every publication. A cold segment is joined as far as that is worth a copy.
- What the indexes know of events is kept (tier2/maintenance/chunk_rewriting.py).
- A published event keeps its time: blocks are joined only if their lowest times are equal. So a chunk of many small
  publications keeps a block for each, and has a bounded number of them, since readers fetch its index as a whole.
- A step is bounded by bytes and segments, and the next one waits until the bytes of this one fit into the rate.
- A step is done in one thread at a time, and rests between its pieces (tier2/background_pace.py) in the first quarter
  of the time that its bytes have at the rate.
- Nothing is asked of the store when nothing grew: candidates are remembered
  (tier2/maintenance/compaction_candidates.py), and the one survey after the claim ends.
- What changes meanwhile stays as it is (tier2/maintenance/chunk_swap.py). A damaged image is never copied: it is
  evidence. An SST that cannot be read ends no owner: what it knows stays as it is.
"""

import logging
from asyncio import get_running_loop, sleep
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from segmentstore.contracts.errors import CorruptedDataError, ObjectNotFoundError
from segmentstore.contracts.identifiers import SegmentId
from tier2.background_pace import BackgroundPace
from tier2.container_objects import ObjectIdentity
from tier2.format.chunk_format import (
    BLOCK_CHECKSUM_BYTES,
    BLOCK_ENTRY_BYTES,
    Compression,
)
from tier2.layout_entry import LayoutEntry
from tier2.maintenance.chunk_rewriting import join_blocks
from tier2.maintenance.chunk_swap import Replacement, swap_entries
from tier2.maintenance.compaction_candidates import Candidate, CompactionCandidates
from tier2.publish.chunk_upload import NewChunk, PlacedChunk
from tier2.publish.owned_manifest import OwnedManifest
from tier2.read.chunk_images import Block, Image, decoded_blocks, read_images
from tier2.read.components import Components
from tier2.read.layout_walk import LayoutWalk
from tier2.read.published_segments import PublishedSegments
from tier2.settings import StorageSettings
from tier2.sst.keyspace import (
    decode_record,
    end_offset_of,
    layout_range,
    record_key,
)

_LOG = logging.getLogger(__name__)
_ENTRIES_PER_LOOK = 1_024
_STRETCHED_SHARE = 0.25
"""Of the time that its bytes have at the rate: so long a step may rest between its pieces."""
_AHEAD_SECONDS = 1.0
"""Of bytes that may be joined before the rate is looked at: many tiny steps need no pauses."""
_SURVEY_PAGE_ENTRIES = 2_048
_SURVEY_PAGES_PER_STEP = 8
_SURVEY_ENTRIES_PER_TURN = 64
_FULL_CHUNK_BLOCKS = 2_048
"""A chunk of so many blocks is not joined again: with others like it the chunks would hardly become fewer."""
_BLOCK_BYTES_MIN = BLOCK_ENTRY_BYTES + BLOCK_CHECKSUM_BYTES + 1
"""Of an image, for each block."""
_COLD_CHUNKS_MIN = 2
_COLD_GROWTH_MIN = 1.5


@dataclass(slots=True)
class _JoinJob:
    """One window of one segment."""

    segment_id: SegmentId
    entries: Sequence[LayoutEntry]
    cold: bool
    parts: dict[int, list[Block]] = field(default_factory=dict)
    """Decoded blocks by the start offset of their entry."""
    chunks: list[NewChunk] = field(default_factory=list)

    @property
    def length(self) -> int:
        return self.entries[-1].end_offset - self.entries[0].start_offset


class Compactor:
    """Compaction of one claim."""

    def __init__(
        self,
        *,
        owned: OwnedManifest,
        candidates: CompactionCandidates,
        segments: PublishedSegments,
        components: Components,
    ) -> None:
        """`candidates`: publications tell them which segments grew."""
        self._owned = owned
        self._candidates = candidates
        self._segments = segments
        self._components = components
        self._settings = components.settings
        self._survey = CompactionSurvey(
            owned=owned, candidates=candidates, settings=components.settings
        )
        self._pace = BackgroundPace(
            busy_share_min=components.settings.compaction_busy_share_min,
            busy_share_max=components.settings.compaction_busy_share_max,
        )
        self._not_before = 0.0
        self._rests_until = 0.0
        self._alone: list[_JoinJob] = []
        """Jobs of a step in which an image was damaged or gone: the others are done one by one. Until then they hold
        nothing: what was read of them is read again."""

    async def step(self) -> bool:
        """Join what is due, up to the bounds of one step; True if a version was published.

        Raises as Storage.publish().
        """
        rate = self._settings.compaction_bytes_per_second
        now = get_running_loop().time()
        if not rate or now + _AHEAD_SECONDS < self._not_before:
            return False
        jobs = [self._alone.pop()] if self._alone else await self._choose(now)
        if not jobs:
            return False
        read_bytes = sum(job.length for job in jobs)
        self._not_before = max(now, self._not_before) + read_bytes / rate
        self._rests_until = now + read_bytes / rate * _STRETCHED_SHARE
        try:
            with self._pace.working():
                return await self._join(jobs)
        except (CorruptedDataError, ObjectNotFoundError) as error:
            if len(jobs) > 1:
                for job in jobs:
                    job.parts, job.chunks = {}, []
                self._alone = jobs
                return True
            if isinstance(error, ObjectNotFoundError):
                _LOG.info("not joining chunks, an object of them is gone: %s", error)
                return False
            self._components.counters.checksum_failures += 1
            _LOG.error("not joining chunks of segment %d: %s", jobs[0].segment_id, error)
        return False

    # --- choosing -----------------------------------------------------------------------------

    async def _choose(self, now: float) -> list[_JoinJob]:
        jobs: list[_JoinJob] = []
        budget = self._settings.compaction_step_bytes
        await self._survey.step(now)
        candidates = self._candidates
        again: list[Candidate] = []
        taken: set[SegmentId] = set()
        for _ in range(self._settings.compaction_step_segments):
            candidate = candidates.take(now)
            if candidate is None:
                break
            if candidate.segment_id in taken:
                again.append(candidate)
                continue
            taken.add(candidate.segment_id)
            try:
                found, rest = await self._look_at(candidate)
            except (CorruptedDataError, ObjectNotFoundError) as error:
                left = f"not joining chunks of segment {candidate.segment_id}"
                await self._owned.note_unreadable_sst(left, error)
                continue
            await sleep(0)  # a look is a millisecond of work that may wait for nothing
            for number, job in enumerate(found):
                if jobs and budget < job.length:
                    rest = _candidate_from(candidate, found[number].entries[0].start_offset)
                    break
                budget -= job.length
                jobs.append(job)
            if rest is not None:
                again.append(rest)
            if budget <= 0:
                break
        for candidate in again:
            candidates.look_at(candidate)
        return jobs

    async def _look_at(self, candidate: Candidate) -> tuple[list[_JoinJob], Candidate | None]:
        """Windows in a bounded part of the layout, and where to go on."""
        view, segment_id = self._owned.view, candidate.segment_id
        value = (await self._segments.values(view, (segment_id,))).get(segment_id)
        if value is None:
            return [], None
        record = decode_record(segment_id, value)
        above = candidate.from_offset
        if above is None:
            above = record.length - 2 * self._settings.compaction_chunk_bytes
        start, end = layout_range(segment_id, max(above, record.start_offset))
        page, following = await view.scan(
            start, end, limit=_ENTRIES_PER_LOOK, group=record_key(segment_id)[:-1]
        )
        entries = [LayoutEntry.decode(end_offset_of(key), one) for key, one in page if one]
        cold = candidate.cold
        windows = windows_to_join(entries, self._settings, cold=cold)
        full = [entry for window in windows for entry in window if await self._is_full(entry)]
        if full:
            windows = [
                window
                for stretch in _stretches_between(entries, full)
                for window in windows_to_join(stretch, self._settings, cold=cold)
            ]
        if cold:
            windows += await self._to_recompress(entries, windows)
        jobs = [_JoinJob(segment_id, window, cold) for window in windows]
        rest = None if following is None else _candidate_from(candidate, end_offset_of(following))
        return sorted(jobs, key=lambda job: job.entries[0].start_offset), rest

    async def _is_full(self, entry: LayoutEntry) -> bool:
        """Whether its chunk has as many blocks as one should. Its index is read only if its size allows so many."""
        if entry.size < _FULL_CHUNK_BLOCKS * _BLOCK_BYTES_MIN:
            return False
        try:
            index = await self._components.chunk_reader.index(entry)
        except (CorruptedDataError, ObjectNotFoundError):
            # The step that joins it sees the same, and says so.
            return False
        return len(index.entries) >= _FULL_CHUNK_BLOCKS

    async def _to_recompress(
        self, entries: Sequence[LayoutEntry], windows: Sequence[Sequence[LayoutEntry]]
    ) -> list[Sequence[LayoutEntry]]:
        """Entries outside the windows whose image is compressed otherwise than cold ones are."""
        wanted = self._settings.cold_compression
        if wanted is self._settings.compression:
            return []
        joined = {entry.end_offset for window in windows for entry in window}
        alone: list[Sequence[LayoutEntry]] = []
        for entry in entries:
            if entry.end_offset in joined:
                continue
            try:
                index = await self._components.chunk_reader.index(entry)
            except (CorruptedDataError, ObjectNotFoundError) as error:
                _LOG.error("not looking at a chunk's compression: %s", error)
                continue
            kinds = {block.compression for block in index.entries}
            if kinds - {wanted, Compression.NONE}:
                alone.append((entry,))
        return alone

    # --- joining ------------------------------------------------------------------------------

    async def _join(self, jobs: Sequence[_JoinJob]) -> bool:
        components = self._components
        await self._read(jobs)
        worth: list[_JoinJob] = []
        for job in jobs:
            await components.offload(self._make_chunks, job)
            await self._rest()
            if len(job.chunks) < len(job.entries) or len(job.entries) == 1:
                worth.append(job)
        if not worth:
            return False
        with self._owned.uploading() as uploader:
            chunks = [chunk for job in worth for chunk in job.chunks]
            await uploader.upload_one_by_one(chunks, self._rest)
            replacements = await components.offload(lambda: [_replacement_of(job) for job in worth])
            swapped = await swap_entries(
                replacements, owned=self._owned, segments=self._segments, uploader=uploader
            )
        counters = components.counters
        counters.joined_chunks += sum(len(one.old) for one in swapped)
        counters.joined_bytes += sum(entry.length for one in swapped for entry in one.old)
        return bool(swapped)

    async def _read(self, jobs: Sequence[_JoinJob]) -> None:
        by_place: dict[tuple[ObjectIdentity, int], _JoinJob] = {
            (entry.identity, entry.position): job for job in jobs for entry in job.entries
        }
        entries = [entry for job in jobs for entry in job.entries]

        def decode(images: Sequence[Image]) -> None:
            for entry, image, index in images:
                job = by_place[entry.identity, entry.position]
                job.parts[entry.start_offset] = decoded_blocks(entry, image, index)

        async with aclosing(read_images(entries, self._components)) as found:
            async for images in found:
                await self._components.offload(decode, images)
                await self._rest()

    async def _rest(self) -> None:
        """Not beyond the time that is set for the step: publications wait for its end."""
        left = self._rests_until - get_running_loop().time()
        await self._pace.rest(at_most=max(left, 0.0))

    def _make_chunks(self, job: _JoinJob) -> None:
        settings = self._settings
        compression = settings.cold_compression if job.cold else settings.compression
        job.chunks = join_blocks(
            job.entries[0].start_offset,
            [block for _, blocks in sorted(job.parts.items()) for block in blocks],
            chunk_bytes_max=max(settings.compaction_chunk_bytes, job.entries[0].length),
            compression=compression,
        )
        job.parts = {}


def _candidate_from(candidate: Candidate, offset: int) -> Candidate:
    return Candidate(candidate.segment_id, cold=candidate.cold, from_offset=offset)


def _replacement_of(job: _JoinJob) -> Replacement:
    new = [PlacedChunk(chunk.offset, chunk.length, chunk).entry() for chunk in job.chunks]
    return Replacement(job.segment_id, job.entries, new)


class CompactionSurvey:
    """One look at every layout after a claim, a few pages at a time: what did earlier owners leave in small pieces?

    It remembers where it is, and ends; what is published meanwhile is noticed without it.
    """

    def __init__(
        self, *, owned: OwnedManifest, candidates: CompactionCandidates, settings: StorageSettings
    ) -> None:
        self._owned = owned
        self._candidates = candidates
        self._settings = settings
        self._walk = LayoutWalk()
        self._cut_short = False
        self._segment_id: SegmentId | None = None
        self._small_chunks = 0
        self._chunks = 0

    async def step(self, now: float) -> None:
        """Go on by some pages, if there are any left and candidates have room."""
        for _ in range(_SURVEY_PAGES_PER_STEP):
            if self._cut_short or not self._walk.has_next_page() or not self._candidates.has_room:
                return
            try:
                await self._look_at_page(now)
            except (CorruptedDataError, ObjectNotFoundError) as error:
                # Behind it chunks stay small that an earlier owner left: that costs space only.
                self._cut_short = True
                await self._owned.note_unreadable_sst("not looking for small chunks", error)

    async def _look_at_page(self, now: float) -> None:
        page = await self._walk.next_page(self._owned.view, limit=_SURVEY_PAGE_ENTRIES)
        for number, (segment_id, found) in enumerate(page):
            self._see(segment_id, found, now)
            if number % _SURVEY_ENTRIES_PER_TURN == _SURVEY_ENTRIES_PER_TURN - 1:
                await sleep(0)
        if not self._walk.has_next_page():
            self._finish_segment(now)

    def _see(self, segment_id: SegmentId, found: bytes | LayoutEntry, now: float) -> None:
        if isinstance(found, bytes):
            self._finish_segment(now)
            self._segment_id = segment_id
        else:
            self._chunks += 1
            self._small_chunks += found.length <= self._settings.compaction_chunk_bytes // 2

    def _finish_segment(self, now: float) -> None:
        segment_id, self._segment_id = self._segment_id, None
        small, self._small_chunks = self._small_chunks, 0
        chunks, self._chunks = self._chunks, 0
        if segment_id is None:
            return
        candidates = self._candidates
        if small >= self._settings.compaction_chunks_min:
            candidates.look_at(Candidate(segment_id, cold=False, from_offset=0))
        recompress = self._settings.cold_compression is not self._settings.compression
        if small > 1 or (recompress and chunks):
            candidates.grew(segment_id, 0, now)


def windows_to_join(
    entries: Sequence[LayoutEntry], settings: StorageSettings, *, cold: bool
) -> list[Sequence[LayoutEntry]]:
    """Stretches of neighbours, none of them twice, each as long as it is worth a copy.

    O(n * neighbours in a joined chunk), where sizes are such that nothing is worth it; else O(n).
    """
    count_min = _COLD_CHUNKS_MIN if cold else settings.compaction_chunks_min
    growth_min = _COLD_GROWTH_MIN if cold else settings.compaction_growth_min
    windows: list[Sequence[LayoutEntry]] = []
    first = 0
    while first < len(entries):
        joined_end = end = first
        total = longest = 0
        while (
            end < len(entries)
            # With a longer one no window is worth a copy, and those in front of it may be without it.
            and entries[end].length * growth_min <= settings.compaction_chunk_bytes
            and total + entries[end].length <= settings.compaction_chunk_bytes
            and (end == first or entries[end].start_offset == entries[end - 1].end_offset)
        ):
            total += entries[end].length
            longest = max(longest, entries[end].length)
            end += 1
            if end - first >= count_min and total >= growth_min * longest:
                joined_end = end
        if joined_end > first:
            windows.append(entries[first:joined_end])
            first = joined_end
        else:
            first += 1
    return windows


def _stretches_between(
    entries: Sequence[LayoutEntry], walls: Sequence[LayoutEntry]
) -> list[Sequence[LayoutEntry]]:
    """The entries without the walls, neighbours that no wall parts together."""
    parting = {entry.end_offset for entry in walls}
    stretches: list[list[LayoutEntry]] = [[]]
    for entry in entries:
        if entry.end_offset in parting:
            stretches.append([])
        else:
            stretches[-1].append(entry)
    return [stretch for stretch in stretches if stretch]
