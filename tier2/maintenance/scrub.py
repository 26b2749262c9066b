"""Reads every chunk again and again, slowly, so that damage is found while the bytes can still be had from elsewhere.

    walk over the layouts of the newest manifest, then what snapshots alone name -> read the image -> verify every block
    damaged or missing -> its bytes are still cached by the container: encode them anew and publish; the old is garbage
                       -> otherwise it is reported: a log line, a counter; reads of that range stay CORRUPT
    a hole in a layout, an SST that cannot be read -> reported; of a manifest with such an SST the rest is not walked

- Only the owner scrubs and repairs; others verify and report (tier2/offline/verify.py).
- Cached bytes are believed only if they agree with every block of the image that is still sound.
- Reading is spread over time: a step takes what the rate allows since the last one, and no longer than a bound, since
  publications wait for its end. Rate 0, the default, is off.
- A backup's chunks are only reported: what is mended belongs to the newest manifest.
- A damage counts once in a pass. Where a pass is, is in memory only: after a restart one begins anew.
"""

import logging
from asyncio import get_running_loop
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

from segmentstore.codec.crc32 import crc32_of
from segmentstore.contracts.errors import CorruptedDataError, ObjectNotFoundError, StorageError
from segmentstore.contracts.identifiers import SegmentId
from segmentstore.contracts.storage import KeptBytes
from segmentstore.runtime.clock import WallClock
from tier2.container_objects import ObjectIdentity, ObjectKind
from tier2.format.block import decode_block
from tier2.format.chunk_decoder import ByteRange, parse_tail, tail_range
from tier2.format.chunk_format import BLOCK_BYTES_TARGET, BlockEntry
from tier2.layout_entry import LayoutEntry
from tier2.maintenance.chunk_swap import Replacement, swap_entries
from tier2.manifest.snapshots import Snapshot
from tier2.manifest.view import ManifestView
from tier2.publish.chunk_upload import NewChunk, PlacedChunk
from tier2.publish.owned_manifest import OwnedManifest
from tier2.read.chunk_images import is_unreadable, read_proved, verify_image
from tier2.read.components import Components
from tier2.read.layout_walk import LayoutContinuity, LayoutWalk, WalkedEntry
from tier2.read.published_segments import PublishedSegments
from tier2.sst.keyspace import (
    decode_record,
    end_offset_of,
    layout_key,
    layout_range,
    record_key,
    reference_key,
)

_LOG = logging.getLogger(__name__)
_WALK_PAGE_ENTRIES = 256
_STEP_BYTES_MAX = 64 << 20
_STEP_SECONDS_MAX = 1.0
"""Tiny chunks cost a request each, however few bytes they are."""


@dataclass(frozen=True, slots=True)
class SuspectLayout:
    """A segment whose layout did not join as it was walked over."""

    segment_id: SegmentId
    snapshot: Snapshot | None


@dataclass(frozen=True, slots=True)
class NamedChunk:
    """A layout entry of a living segment, and the backup that names it (None: the newest manifest does)."""

    segment_id: SegmentId
    entry: LayoutEntry
    snapshot: Snapshot | None


class Walked(Enum):
    """How far it is where nothing was found."""

    PAGE = auto()
    """A page was read; there is more."""
    EVERYTHING = auto()


Step: TypeAlias = NamedChunk | SuspectLayout | Walked


class Scrubber:
    """Scrubbing of one claim."""

    def __init__(
        self,
        *,
        owned: OwnedManifest,
        segments: PublishedSegments,
        components: Components,
        wall_clock: WallClock,
    ) -> None:
        self._owned = owned
        self._segments = segments
        self._components = components
        self._wall_clock = wall_clock
        self._walk = ScrubWalk(owned=owned, components=components)
        self._allowance = 0.0
        self._looked_at: float | None = None
        self._next_pass_at = 0.0

    async def step(self, kept: KeptBytes) -> bool:
        """Read on as far as the rate allows; True if something was repaired. Raises as Storage.publish()."""
        settings = self._components.settings
        rate = settings.scrub_bytes_per_second
        now = get_running_loop().time()
        since, self._looked_at = self._looked_at, now
        if not rate or now < self._next_pass_at:
            return False
        if since is not None:
            self._allowance = min(_STEP_BYTES_MAX, self._allowance + (now - since) * rate)
        repaired = False
        while self._allowance > 0:
            found = await self._next()
            if found is Walked.EVERYTHING:
                self._finish_pass(now)
                break
            try:
                repaired |= await self._take(found, kept)
            except (CorruptedDataError, ObjectNotFoundError) as error:
                # What says whether the chunk still counts is damaged as well.
                await self._report("an SST cannot be read", error, None)
            if get_running_loop().time() - now >= _STEP_SECONDS_MAX:
                break
        return repaired

    def _finish_pass(self, now: float) -> None:
        self._walk = ScrubWalk(owned=self._owned, components=self._components)
        self._next_pass_at = now + self._components.settings.scrub_pass_seconds
        counters = self._components.counters
        counters.scrub_passes += 1
        counters.last_scrubbed_ms = self._wall_clock.now_ms()

    async def _next(self) -> Step:
        try:
            return await self._walk.next()
        except (CorruptedDataError, ObjectNotFoundError) as error:
            await self._report("an SST cannot be read", error, self._walk.snapshot)
        try:
            return Walked.PAGE if await self._walk.skip_root() else Walked.EVERYTHING
        except (CorruptedDataError, ObjectNotFoundError):
            # What names the backups is damaged as well; the next pass tries again.
            return Walked.EVERYTHING

    async def _take(self, found: Step, kept: KeptBytes) -> bool:
        """True if something was repaired."""
        if isinstance(found, NamedChunk):
            if found.snapshot is None or await self._is_its_own(found):
                self._allowance -= found.entry.size
                return await self._scrub(found, kept)
        elif isinstance(found, SuspectLayout):
            await self._look_again(found)
        # A look-up or a page reads about a block of an SST.
        self._allowance -= self._components.settings.sst_block_bytes
        return False

    async def _is_its_own(self, found: NamedChunk) -> bool:
        """Whether the newest manifest no longer names what a backup does, or was not walked to its end."""
        if self._walk.newest_cut_short:
            return True
        entry = found.entry
        key = reference_key(entry.identity, found.segment_id, entry.end_offset)
        try:
            return await self._owned.view.get(key) is None
        except (CorruptedDataError, ObjectNotFoundError):
            return True

    async def _look_again(self, doubt: SuspectLayout) -> None:
        """A doubted layout, whole, under one manifest."""
        view = self._walk.view
        try:
            wrong = await _damage_of_layout(doubt.segment_id, view)
        except (CorruptedDataError, ObjectNotFoundError) as error:
            wrong = str(error)
        if wrong is not None:
            await self._report("layout is damaged", wrong, doubt.snapshot)

    async def _report(self, what: str, why: object, snapshot: Snapshot | None) -> None:
        if not await self._is_kept(snapshot):
            return
        self._components.counters.scrub_damages += 1
        _LOG.error("%s%s: %s", what, _backup_suffix(snapshot), why)

    async def _is_kept(self, snapshot: Snapshot | None) -> bool:
        """Whether its manifest still counts. Proves that the newest one is ours."""
        await self._owned.publisher.require_owner()
        return snapshot is None or snapshot in await self._owned.snapshots()

    async def _scrub(self, found: NamedChunk, kept: KeptBytes) -> bool:
        segment_id, entry = found.segment_id, found.entry
        counters = self._components.counters
        counters.scrubbed_chunks += 1
        image = b""

        def prove(read: bytes) -> None:
            nonlocal image
            image = read
            verify_image(entry, read)

        try:
            await read_proved(
                (ObjectKind.CHUNKS, entry.identity),
                entry.position,
                entry.size,
                prove,
                self._components,
            )
        except StorageError as error:
            damaged = isinstance(error, CorruptedDataError | ObjectNotFoundError)
            if not damaged and not is_unreadable(error):
                raise
            if not await self._is_current(found):
                return False
            counters.scrub_damages += 1
            _LOG.error(
                "chunk is damaged segment_id=%d offset=%d end=%d%s: %s",
                segment_id,
                entry.start_offset,
                entry.end_offset,
                _backup_suffix(found.snapshot),
                error,
            )
            return found.snapshot is None and await self._repair(segment_id, entry, image, kept)
        finally:
            counters.scrubbed_bytes += len(image)
        return False

    async def _is_current(self, found: NamedChunk) -> bool:
        """Whether its manifest still names it: what went meanwhile is no damage."""
        if not await self._is_kept(found.snapshot):
            return False
        if found.snapshot is not None:
            return True
        segment_id, entry = found.segment_id, found.entry
        key = layout_key(segment_id, entry.end_offset)
        values = await self._owned.view.get_many([record_key(segment_id), key])
        return record_key(segment_id) in values and values.get(key) == entry.encode()

    async def _repair(
        self, segment_id: SegmentId, entry: LayoutEntry, image: bytes, kept: KeptBytes
    ) -> bool:
        content = kept(segment_id, entry.start_offset, entry.end_offset)
        if content is None or len(content) != entry.length:
            _LOG.error("its bytes are nowhere else: reads of that range stay CORRUPT")
            return False
        try:
            chunk = await self._components.offload(_rebuilt_chunk, entry, image, content)
        except CorruptedDataError as error:
            _LOG.error("not repaired: %s", error)
            return False
        with self._owned.uploading() as uploader:
            await uploader.upload_chunks([chunk])
            new = PlacedChunk(chunk.offset, chunk.length, chunk).entry()
            swapped = await swap_entries(
                [Replacement(segment_id, [entry], [new])],
                owned=self._owned,
                segments=self._segments,
                uploader=uploader,
            )
        self._components.counters.scrub_repairs += len(swapped)
        if swapped:
            _LOG.warning("it was written anew from the cache as %s", new.identity)
        return bool(swapped)


class ScrubWalk:
    """Where a pass is: it goes over the layout entries of the newest manifest, then over those that snapshots keep.

    - The owner goes on publishing between two pages, so a layout that does not join is only doubted here, once in a
      pass; the caller looks again, under one manifest.
    - What is written while a pass goes on is left to the next one. Where more is written than may be read, a pass would
      follow the newest segments for ever, and come to older ones and to backups never again.
    - What a backup shares with the newest manifest comes up again: whether it does costs a look-up, which is the
      caller's to count.
    """

    def __init__(self, *, owned: OwnedManifest, components: Components) -> None:
        self._owned = owned
        self._components = components
        self.snapshot: Snapshot | None = None
        """Whose manifest is walked now; None: the newest one."""
        self.newest_cut_short = False
        """Not everything that the newest manifest names came up."""
        self._began_at: ObjectIdentity | None = None
        """Given out as the pass began: what it is to read has a lower one."""
        self._view: ManifestView | None = None
        """That of the snapshot."""
        self._snapshots: list[Snapshot] | None = None
        """Those that follow."""
        self._walk = LayoutWalk()
        self._page: Iterator[WalkedEntry] = iter(())
        self._layout: LayoutContinuity | None = None
        self._doubt: SuspectLayout | None = None
        self._doubted: SegmentId | None = None

    @property
    def view(self) -> ManifestView:
        """What is walked now."""
        return self._owned.view if self._view is None else self._view

    async def next(self) -> Step:
        """O(one page), whatever lies between two chunks.

        Raises CorruptedDataError and ObjectNotFoundError for SSTs; `skip_root()` goes on behind them.
        """
        if self._began_at is None:
            self._began_at = self._owned.take_identity()
        while True:
            if self._doubt is not None:
                doubt, self._doubt = self._doubt, None
                return doubt
            walked = next(self._page, None)
            if walked is not None:
                found = self._see(*walked)
                if found is not None:
                    return found
            elif self._walk.has_next_page():
                self._page = await self._walk.next_page(self.view, limit=_WALK_PAGE_ENTRIES)
                return Walked.PAGE
            else:
                sound = self._finish_segment()
                if sound and not await self._next_root():
                    return Walked.EVERYTHING

    async def skip_root(self) -> bool:
        """Go on with the next manifest; False if that was the last one."""
        self.newest_cut_short |= self.snapshot is None
        return await self._next_root()

    async def _next_root(self) -> bool:
        if self._snapshots is None:
            self._snapshots = list(await self._owned.snapshots())
        self._walk, self._page = LayoutWalk(), iter(())
        self._layout = self._doubted = None
        if not self._snapshots:
            return False
        self.snapshot = self._snapshots.pop(0)
        self._view = self._components.view(self.snapshot.manifest)
        return True

    def _see(self, segment_id: SegmentId, found: bytes | LayoutEntry) -> NamedChunk | None:
        if isinstance(found, bytes):
            self._finish_segment()
            self._layout = LayoutContinuity(decode_record(segment_id, found))
            return None
        if self._layout is None:
            # Its record is damaged, which was reported.
            return None
        self._heed(segment_id, self._layout.see(found))
        return (
            None if self._is_newer(found.identity) else NamedChunk(segment_id, found, self.snapshot)
        )

    def _is_newer(self, identity: ObjectIdentity) -> bool:
        mark = self._began_at
        assert mark is not None, "a pass begins with its first step"
        return (identity.epoch, identity.serial) > (mark.epoch, mark.serial)

    def _finish_segment(self) -> bool:
        """False if that left a doubt."""
        layout, self._layout = self._layout, None
        return layout is None or self._heed(layout.record.segment_id, layout.finish())

    def _heed(self, segment_id: SegmentId, what: str | None) -> bool:
        if what is None or segment_id == self._doubted:
            return True
        self._doubted = segment_id
        self._doubt = SuspectLayout(segment_id, self.snapshot)
        return False


async def _damage_of_layout(segment_id: SegmentId, view: ManifestView) -> str | None:
    """What is wrong with a segment's layout; nothing if there is no such segment any more."""
    value = await view.get(record_key(segment_id))
    if value is None:
        return None
    layout = LayoutContinuity(decode_record(segment_id, value))
    start, end = layout_range(segment_id, 0)
    async with aclosing(view.pages(start, end, limit=_WALK_PAGE_ENTRIES)) as pages:
        async for page in pages:
            for key, content in page:
                assert content is not None, f"a scan gives live entries only key={key!r}"
                wrong = layout.see(LayoutEntry.decode(end_offset_of(key), content))
                if wrong is not None:
                    return wrong
    return layout.finish()


def _rebuilt_chunk(entry: LayoutEntry, image: bytes, content: bytes) -> NewChunk:
    """The chunk with its bytes from elsewhere, and what its index still says of blocks and events.

    Raises CorruptedDataError if a sound block says that these are other bytes.
    """
    chunk = NewChunk(entry.start_offset, length=len(content), crc32=crc32_of(content))
    view = memoryview(content)
    index = _blocks_of_damaged(entry, image)
    if index is None:
        for start in range(0, len(view), BLOCK_BYTES_TARGET):
            chunk.runs.append(view[start : start + BLOCK_BYTES_TARGET])
            chunk.events.append(None)
        return chunk
    at = 0
    for block in index:
        expected = view[at : at + block.uncompressed_length]
        try:
            stored = memoryview(image)[block.position : block.end_position]
            found = decode_block(block, stored, source=str(entry.identity))
        except CorruptedDataError:
            found = expected
        if found != expected:
            raise CorruptedDataError(
                f"a sound block holds other bytes than the cache offset={entry.start_offset + at}"
            )
        chunk.runs.append(expected)
        chunk.events.append(entry.block_events(block))
        at += block.uncompressed_length
    return chunk


def _blocks_of_damaged(entry: LayoutEntry, image: bytes) -> Sequence[BlockEntry] | None:
    """The blocks, if the end of the image can still be read and means this chunk."""
    if len(image) != entry.size:
        return None
    wanted = tail_range(entry.size)
    for _ in range(2):
        try:
            found = parse_tail(image[wanted.start :], identity=entry.chunk_identity)
        except CorruptedDataError:
            return None
        if not isinstance(found, ByteRange):
            whole = found.end_offset - found.start_offset == entry.length
            return found.entries if whole else None
        wanted = found
    return None


def _backup_suffix(snapshot: Snapshot | None) -> str:
    return "" if snapshot is None else f" backup={snapshot.name!r}"
