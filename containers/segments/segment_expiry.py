"""Drops what a rule says need not be kept: segments are truncated by age or size, prefix by prefix.

    every so often -> published segments of each rule's prefix -> their blocks from the start on -> one truncation each

- Expiry is a truncation in the log like any other: it is replayed, published and undone by nothing.
- Whole blocks of Tier 2 are dropped, up to one that begins with an event or whose structure is unknown.
  Bytes that are not flushed yet never expire.
- Only the segment that was looked at is cut: one that was created since under the same name is left alone.
- A transaction's or a transient segment does not expire: it is merged as a whole or not at all, and its bytes
  expire in its parent. Nor does one that the settings exempt.
- A segment that is gone by then, or of which an index is damaged, holds up no other one.
- A block is old when its *highest* time is; one without times when nothing was appended to its segment since.
- Ages count only after the process has run for a while: a jump of the clock while it was down cannot be seen.
- When wall clock and loop clock disagree by more than a bound, rules of age stop until time or a person settles it; the
  sentence is in `complaint()`. Rules of size go on.
- Without rules nothing is ever asked of Tier 2. Tables never expire.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing

from containers.container_settings import ExpirySettings, RetentionRule
from segmentstore.codec.container_hash import is_to_be_merged
from segmentstore.contracts.errors import (
    CorruptedDataError,
    SegmentNotFoundError,
    SegmentStoreError,
    SegmentTruncatedError,
)
from segmentstore.contracts.identifiers import SegmentId
from segmentstore.contracts.storage import SegmentRecord, Storage, StoredBlock
from segmentstore.runtime.clock import ClockWatch, WallClock

_LOGGER = logging.getLogger(__name__)


class SegmentExpiry:
    """The rules of one container at work. `truncate` is the container's verb, for the segment of that id only."""

    def __init__(
        self,
        *,
        storage: Storage,
        truncate: Callable[[str, int, SegmentId], Awaitable[None]],
        wall_clock: WallClock,
        settings: ExpirySettings,
    ) -> None:
        self._storage = storage
        self._truncate = truncate
        self._wall_clock = wall_clock
        self._settings = settings
        self.clock_watch = ClockWatch(
            wall_clock=wall_clock,
            difference_seconds_max=settings.clock_difference_seconds_max,
            settle_seconds=settings.clock_settle_seconds,
        )
        self.truncations = 0

    async def run(self) -> None:
        """Until cancelled; returns at once without rules."""
        if not self._settings.rules:
            return
        self.clock_watch.doubt("the store has just started")
        while True:
            await asyncio.sleep(self._settings.interval_seconds)
            try:
                await self.look()
            except SegmentStoreError as error:
                _LOGGER.warning("expiry could not look at everything: %s", error)

    def complaint(self) -> str:
        """Why nothing expires by age now, in a sentence; "" if all is well, or nothing would expire by age."""
        if not any(rule.age_seconds is not None for rule in self._settings.rules):
            return ""
        self.clock_watch.look()
        return self.clock_watch.complaint()

    async def look(self) -> None:
        """Apply every rule once. Raises what Tier 2 and the log raise."""
        for number, rule in enumerate(self._settings.rules):
            earlier = self._settings.rules[:number]
            async with aclosing(self._storage.list_segments(rule.prefix, "")) as records:
                async for record in records:
                    if any(record.name.startswith(other.prefix) for other in earlier):
                        continue
                    if is_to_be_merged(record.name) or self._settings.exempt(record.name):
                        continue
                    await self._expire(record, rule)

    async def _expire(self, record: SegmentRecord, rule: RetentionRule) -> None:
        try:
            offset = await self._keep_from(record, rule)
        except (SegmentNotFoundError, SegmentTruncatedError) as error:
            # Truncated further since it was listed, or no longer published: the next look sees what it became.
            _LOGGER.info("segment was not looked at name=%r: %s", record.name, error)
            return
        except CorruptedDataError as error:
            _LOGGER.warning("segment cannot expire name=%r: %s", record.name, error)
            return
        if offset <= record.start_offset:
            return
        try:
            await self._truncate(record.name, offset, record.segment_id)
        except SegmentStoreError as error:
            # A table, or gone, or truncated further meanwhile: the next look sees what it became.
            _LOGGER.info("segment did not expire name=%r offset=%d: %s", record.name, offset, error)
        else:
            self.truncations += 1

    async def _keep_from(self, record: SegmentRecord, rule: RetentionRule) -> int:
        """The offset of the first block that stays. O(blocks that go)."""
        oldest_ms = None
        if rule.age_seconds is not None and self.clock_watch.trusted():
            oldest_ms = self._wall_clock.now_ms() - int(rule.age_seconds * 1000)
        surplus = None if rule.bytes_max is None else record.length - rule.bytes_max
        keep_from = record.start_offset
        if record.length <= record.start_offset:
            return keep_from
        blocks = self._storage.list_blocks(record.segment_id, record.start_offset, record.length)
        seen = 0
        async with aclosing(blocks) as listed:
            async for block in listed:
                if block.begins_on_event or not block.events_known:
                    keep_from = max(keep_from, block.offset)
                seen += 1
                if seen > self._settings.blocks_max:
                    return keep_from
                by_size = surplus is not None and block.offset + block.length <= surplus
                if not by_size and not _is_old(block, record, oldest_ms):
                    return keep_from
        return record.length


def _is_old(block: StoredBlock, record: SegmentRecord, oldest_ms: int | None) -> bool:
    if oldest_ms is None:
        return False
    # Where events are may be known without when they came: a merge counts as events bytes that were declared as none.
    newest_ms = block.highest_time_ms or record.last_modified_ms
    return newest_ms < oldest_ms
