"""One pass of compaction by key over a partition's files: superseded records go, offsets and ranges of files stay.

    files that no pass has seen -- keys and their newest offsets, as many as there is room for -->
    each file below             -- the records that survive, under another name --> registered in its place

Which records survive is Tier 2's affair (tier2/format/record_compaction.py). A file keeps its last record when all
others go, because no file is empty. It is superseded, so it changes no key's last value, as long as a tombstone of its
key stays: of the key of a file's only record no tombstone behind it is removed.

Invariants:

- A record goes only if a newer one of its key is in a registered file. So the last value of each key is there, wherever
  a pass breaks off; what it has done until then stays done.
- COMPACTED_END moves behind the last replacement of a pass, and so says what is done.
- The last record of the last file stays, also a tombstone, as long as there is no file behind it: a consumer goes on
  behind the last record that it is given, and would wait at a gap for an end that it is told of and never comes to.
- Files are filtered in order: what is kept in front is known when a tombstone behind it is judged.
- A tombstone goes `delete.retention.ms` behind the pass that removed the values before it, at the earliest. Of a pass
  that ended while the clocks were not trusted that time is counted from when they are, and so it is if it has not come
  yet by more than it lasts: the clock was wrong that was trusted then.

| attribute | says |
|---|---|
| COMPACTED_END | passes have noted all records below it; absent: 0 |
| TOMBSTONES_END, TOMBSTONES_SINCE | the COMPACTED_END of a pass, 0: no tombstone is left; its end, Unix milliseconds, |
| | 0: the clocks were not trusted then |
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from segmentstore.codec.topic_files import RegisteredFile, count_of
from segmentstore.contracts.identifiers import CORE_ATTRIBUTE_PREFIX, AttributeKey
from segmentstore.contracts.segments import AttributeUpdate, Segment, SegmentProperties
from segmentstore.topics.record_files.record_files import FileForm, MadeFile, RecordFiles
from segmentstore.topics.record_files.registered_files import RegisteredFiles

COMPACTED_END: Final = AttributeKey(CORE_ATTRIBUTE_PREFIX + b"\x00topic\x00\x09")
TOMBSTONES_END: Final = AttributeKey(CORE_ATTRIBUTE_PREFIX + b"\x00topic\x00\x0a")
TOMBSTONES_SINCE: Final = AttributeKey(CORE_ATTRIBUTE_PREFIX + b"\x00topic\x00\x0b")

NOT_TRUSTED: Final = 0
"""In the place of a time: the clocks were not trusted."""


@dataclass(frozen=True, slots=True)
class CompactionState:
    """How far passes have come."""

    end: int = 0
    tombstones_end: int = 0
    tombstones_since_ms: int = 0

    @classmethod
    def of(cls, info: SegmentProperties) -> "CompactionState":
        """Of the partition's segment. Raises CorruptedDataError."""
        return cls(
            *(
                count_of(info.core_attributes, key, name=info.name)
                for key in (COMPACTED_END, TOMBSTONES_END, TOMBSTONES_SINCE)
            )
        )

    @property
    def waits_for_clock(self) -> bool:
        """Whether it is not known since when tombstones wait."""
        return self.end > 0 and self.tombstones_since_ms == NOT_TRUSTED

    def needs_time(self, now_ms: int, retention_ms: int) -> bool:
        """Whether the present one is to take the place of that since which tombstones wait.

        One that lies further ahead than they wait is of a clock that was wrong: they would be kept until it comes. One
        that is less far ahead stays, so that a clock that is a little behind lets none go too early.
        """
        return self.waits_for_clock or self.tombstones_since_ms - now_ms > retention_ms

    def removable_end(self, now_ms: int, retention_ms: int) -> int:
        """Tombstones below it may go."""
        return self.tombstones_end if self.has_waited(now_ms, retention_ms) else 0

    def has_waited(self, now_ms: int, retention_ms: int) -> bool:
        return not self.waits_for_clock and now_ms - self.tombstones_since_ms >= retention_ms

    def behind(self, end: int, now_ms: int, *, tombstones_went: bool) -> "CompactionState":
        """A pass that has noted all below `end`, and is over now (NOT_TRUSTED: when that is cannot be told)."""
        if tombstones_went and end == self.tombstones_end:
            return CompactionState(end, 0, now_ms)  # none is left, but those that a file needs
        if tombstones_went or not self.tombstones_end:
            return CompactionState(end, end, now_ms)
        return CompactionState(end, self.tombstones_end, self.tombstones_since_ms)

    def updates(self) -> list[AttributeUpdate]:
        return [
            AttributeUpdate(COMPACTED_END, self.end),
            AttributeUpdate(TOMBSTONES_END, self.tombstones_end),
            AttributeUpdate(TOMBSTONES_SINCE, self.tombstones_since_ms),
        ]


async def compact_files(
    segment: Segment,
    *,
    files: RecordFiles,
    registered: RegisteredFiles,
    key_of: Callable[[RegisteredFile], str],
    form: FileForm,
    state: CompactionState,
    until: int,
    tombstones_end: int,
    secret: bytes,
    replace: Callable[[int, RegisteredFile, MadeFile], Awaitable[bool]],
) -> int | None:
    """The offset that all was noted below; None if a file was replaced or forgotten meanwhile by another one.

    `until`: the number of the first file that is left as it is, as are those behind it.

    Raises SegmentStoreError, what `replace` raises.
    """
    newest = files.newest_offsets(start_offset=state.end, secret=secret)
    number = await registered.at_offset(segment, state.end)
    last = registered.last
    while number < min(until, last + 1):
        file = await registered.get(segment, number)
        if not await files.note_keys(key_of(file), file, newest):
            break
        number += 1
    if newest.end_offset <= state.end and not tombstones_end:
        return state.end
    for number in range(registered.first, last + 1):
        if number < registered.first:
            continue  # retention came in between
        file = await registered.get(segment, number)
        if file.first_offset >= newest.end_offset:
            break
        made = await files.surviving(
            key_of(file),
            file,
            newest,
            tombstones_end=tombstones_end,
            keeps_last=number == last,
            form=form,
        )
        if made is not None and not await replace(number, file, made):
            return None
    return newest.end_offset
