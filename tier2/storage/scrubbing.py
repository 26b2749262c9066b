"""Reads every chunk again and again, slowly, so that damage is found while the bytes can still be had from elsewhere.

    walk over the layouts under the current root -> read the image -> verify every block
    damaged or missing -> its bytes are still cached by the container: encode them anew and publish; the old is garbage
                       -> otherwise it is reported: a log line, a counter; reads of that range stay CORRUPT

- Only the owner scrubs and repairs; others verify and report (tier2/storage/verify.py).
- Cached bytes are believed only if they agree with every block of the image that is still sound.
- Reading is spread over time: a step takes what the rate allows since the last one, and no longer than a bound, since
  publications wait for its end. Rate 0, the default, is off.
- A damage counts once in a pass. Where a pass is, is in memory only: after a restart one begins anew.
"""

import logging
from asyncio import get_running_loop
from collections.abc import Sequence

from segmentstore.codec.crc32 import crc32_of
from segmentstore.contracts.errors import CorruptedDataError, ObjectNotFoundError
from segmentstore.contracts.identifiers import SegmentId
from segmentstore.contracts.storage import KeptBytes
from segmentstore.runtime.clock import WallClock
from tier2.format.block import decode_block
from tier2.format.chunk_format import BLOCK_BYTES_TARGET
from tier2.format.chunk_index import BlockEntry
from tier2.format.chunk_reader import ByteRange, parse_tail, tail_range
from tier2.storage.block_events import block_events
from tier2.storage.components import Components
from tier2.storage.image_reading import identity_of, verify_image
from tier2.storage.layout_swap import Replacement, swap_entries
from tier2.storage.new_chunks import NewChunk, Stretch
from tier2.storage.object_names import ObjectKind
from tier2.storage.owned_root import OwnedRoot
from tier2.storage.published_segments import PublishedSegments
from tier2.storage.run_block import Entry
from tier2.storage.run_keys import (
    SEGMENT,
    end_offset_of,
    is_layout_key,
    is_record_key,
    layout_key,
    range_of,
    record_key,
    segment_of,
)
from tier2.storage.run_values import LayoutEntry

_LOG = logging.getLogger(__name__)
_PAGE = 256
_STEP_BYTES_MAX = 64 << 20
_STEP_SECONDS_MAX = 1.0
"""Tiny chunks cost a request each, however few bytes they are."""


class Scrubber:
    """Scrubbing of one claim."""

    def __init__(
        self,
        *,
        owned: OwnedRoot,
        segments: PublishedSegments,
        components: Components,
        wall_clock: WallClock,
    ) -> None:
        self._owned = owned
        self._segments = segments
        self._components = components
        self._wall_clock = wall_clock
        self._page: list[Entry] = []
        self._start, self._end = range_of(SEGMENT)
        self._following: bytes | None = self._start
        self._living: SegmentId | None = None
        """The segment whose record was seen last: keys behind no record belong to a removed one."""
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
            entry = await self._next_entry()
            if entry is None:
                self._finish_pass(now)
                break
            segment_id, layout_entry = entry
            self._allowance -= layout_entry.size
            repaired |= await self._scrub(segment_id, layout_entry, kept)
            if get_running_loop().time() - now >= _STEP_SECONDS_MAX:
                break
        return repaired

    def _finish_pass(self, now: float) -> None:
        self._following, self._living = self._start, None
        self._next_pass_at = now + self._components.settings.scrub_pass_seconds
        counters = self._components.counters
        counters.scrub_passes += 1
        counters.last_scrubbed_ms = self._wall_clock.now_ms()

    async def _next_entry(self) -> tuple[SegmentId, LayoutEntry] | None:
        """The next chunk of a living segment; None at the end of the pass."""
        while True:
            while self._page:
                key, value = self._page.pop()
                if is_record_key(key):
                    self._living = segment_of(key)
                elif self._living == segment_of(key) and is_layout_key(key) and value is not None:
                    return segment_of(key), LayoutEntry.decode(end_offset_of(key), value)
            if self._following is None:
                return None
            page, self._following = await self._owned.view.scan(
                self._following, self._end, limit=_PAGE
            )
            self._page = page[::-1]

    async def _scrub(self, segment_id: SegmentId, entry: LayoutEntry, kept: KeptBytes) -> bool:
        counters = self._components.counters
        counters.scrubbed_chunks += 1
        image = b""
        try:
            image = await self._read(entry)
            counters.scrubbed_bytes += len(image)
            await self._components.offload(verify_image, entry, image)
        except (CorruptedDataError, ObjectNotFoundError) as error:
            if not await self._is_current(segment_id, entry):
                return False
            counters.scrub_damages += 1
            _LOG.error(
                "chunk is damaged segment_id=%d offset=%d end=%d: %s",
                segment_id,
                entry.start_offset,
                entry.end_offset,
                error,
            )
            return await self._repair(segment_id, entry, image, kept)
        return False

    async def _read(self, entry: LayoutEntry) -> bytes:
        """The image; read once more if it is damaged, because the way here may be what damaged it."""
        image = b""
        for last in (False, True):
            image = await self._components.objects.get_range(
                ObjectKind.CHUNKS, entry.identity, entry.position, entry.size
            )
            try:
                await self._components.offload(verify_image, entry, image)
            except CorruptedDataError:
                if last:
                    break
            else:
                break
        return image

    async def _is_current(self, segment_id: SegmentId, entry: LayoutEntry) -> bool:
        """Whether the root still names it: what went meanwhile is no damage (H8). Proves that the root is ours."""
        await self._owned.publisher.require_owner()
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
            chunk = await self._components.offload(_rebuilt, entry, image, content)
        except CorruptedDataError as error:
            _LOG.error("not repaired: %s", error)
            return False
        uploader = self._owned.uploader()
        try:
            await uploader.upload_chunks([chunk])
        except BaseException:
            self._owned.publisher.abandon(uploader.uploaded)
            raise
        new = Stretch(chunk.offset, chunk.length, chunk).entry()
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


def _rebuilt(entry: LayoutEntry, image: bytes, content: bytes) -> NewChunk:
    """The chunk with its bytes from elsewhere, and what its index still says of blocks and events (H76).

    Raises CorruptedDataError if a sound block says that these are other bytes.
    """
    chunk = NewChunk(entry.start_offset, length=len(content), crc32=crc32_of(content))
    view = memoryview(content)
    index = _index_of(entry, image)
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
        chunk.events.append(block_events(entry, block))
        at += block.uncompressed_length
    return chunk


def _index_of(entry: LayoutEntry, image: bytes) -> Sequence[BlockEntry] | None:
    """The blocks, if the end of the image can still be read and means this chunk."""
    if len(image) != entry.size:
        return None
    wanted = tail_range(entry.size)
    for _ in range(2):
        try:
            found = parse_tail(image[wanted.start :], identity=identity_of(entry))
        except CorruptedDataError:
            return None
        if not isinstance(found, ByteRange):
            whole = found.end_offset - found.start_offset == entry.length
            return found.entries if whole else None
        wanted = found
    return None
