"""Finds the frames of a crashed log, and decides which of them count.

    scan_journal()    every header of one file, whatever state a crash left it in; bodies are not read
    link_frames()     the chain of the frames that count; pure but for reading bodies where a checksum decides
    plan_recovery()   what of the chain stays in place, and what the new epoch copies

The scan goes from frame to frame; where no valid header lies it steps on page by page, since a torn frame may be
followed by a whole one. Frames of an earlier generation of the file are reported like all others: `link_frames` tells
them apart.

The frames of a log are a chain: each names the one before it. Recovery finds its newest end and follows it back.

- The *governing* epoch is the highest one that was established: it has a frame behind its epoch frame (which is
  written only after that was synced), or its epoch frame is whole. Frames of other epochs count only as far as the
  governing chain names them; what a fenced owner wrote later, or a recovery that never finished, is thus never seen.
- Up to the highest number that any frame of the governing epoch calls synced, the chain must be complete: a hole
  there is damage. Behind it the chain ends at the first frame that is missing or broken: a torn tail, which is
  cut.
- The chain begins exactly at the frame that its end calls the oldest needed one.

Invariant: a frame of the file's newest generation is never jumped over because of an older frame's length.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from segmentstore.contracts.errors import LogCorruptedError
from segmentstore.runtime.files import File, FileSystem
from tier1.file_log.frames import (
    PAGE_BYTES,
    FrameHeader,
    FrameKind,
    decode_body,
    decode_header,
    is_of_another_release,
    looks_like_header,
)
from tier1.file_log.settings import DurabilityRules

_SCAN_WINDOW_PAGES = 16

WAY_OUT = (
    "put the journals back as they were, or take this log as lost: `segmentstore log set-aside` takes it out of the"
    " store, and `segmentstore recover --from-tier2` begins a new one above what Tier 2 holds"
)


@dataclass(frozen=True, slots=True)
class FoundFrame:
    """A frame whose header holds, and the file it lies in."""

    header: FrameHeader
    path: str


@dataclass(frozen=True, slots=True)
class ScannedJournal:
    """What one file holds, in page order."""

    path: str
    size_bytes: int
    frames: tuple[FoundFrame, ...]
    damaged_pages: frozenset[int]
    """Pages that begin like a header of this log whose checksum fails."""
    is_foreign: bool = False
    """It begins with a frame of another log."""
    is_of_another_release: bool = False
    """It begins with a frame in a format that is not known here."""


@dataclass(frozen=True, slots=True)
class RecoveredChain:
    """What a crashed log holds."""

    frames: tuple[FoundFrame, ...] = ()
    """Oldest first."""
    synced_number: int = 0
    """Frames up to this number are known to be synced."""
    truncated_up_to: int = 0
    highest_number: int = 0
    """Over every header seen, frames that were cut included."""
    highest_address: int = 0
    cut_frames: int = 0


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """What a new epoch does with the chain."""

    in_place: tuple[FoundFrame, ...] = ()
    """The stretch of the chain that stays where it is; it begins and ends with live entries."""
    copied: tuple[FoundFrame, ...] = ()
    """Frames whose live entries go into the new epoch frame."""


def scan_journal(files: FileSystem, path: str, *, log_id: bytes | None) -> ScannedJournal:
    """Read every header of a file. One that vanished meanwhile (freed by a fenced owner) counts as empty. Blocks."""
    try:
        file = files.open(path)
    except FileNotFoundError:
        return ScannedJournal(path, 0, (), frozenset())
    try:
        damaged: list[int] = []
        frames = tuple(FoundFrame(header, path) for header in _headers_of(file, log_id, damaged))
        first_page = b"" if frames else file.read_at(0, PAGE_BYTES)
        has_frame_of_any = decode_header(first_page, log_id=None, page=0) is not None
        return ScannedJournal(
            path,
            file.size(),
            frames,
            frozenset(damaged),
            is_foreign=log_id is not None and has_frame_of_any,
            is_of_another_release=is_of_another_release(first_page),
        )
    finally:
        file.close()


def _headers_of(file: File, log_id: bytes | None, damaged: list[int]) -> Iterator[FrameHeader]:
    page_count = file.size() // PAGE_BYTES
    window, window_page = memoryview(b""), 0
    newest_life = (0, 0)
    page = 0
    while page < page_count:
        start = (page - window_page) * PAGE_BYTES
        if start >= len(window):
            window = memoryview(file.read_at(page * PAGE_BYTES, _SCAN_WINDOW_PAGES * PAGE_BYTES))
            window_page, start = page, 0
        raw = window[start : start + PAGE_BYTES]
        header = decode_header(raw, log_id=log_id, page=page)
        if header is None:
            if log_id is not None and looks_like_header(raw, log_id):
                damaged.append(page)
            page += 1
            continue
        yield header
        if (header.epoch, header.generation) >= newest_life:
            newest_life = (header.epoch, header.generation)
            page = header.end_page
        else:
            page += 1


@dataclass(slots=True)
class _FrameIndex:
    """The scanned frames by everything that names one."""

    by_number: dict[tuple[int, int], FoundFrame] = field(default_factory=dict)
    by_place: dict[tuple[str, int], FoundFrame] = field(default_factory=dict)
    first_of_life: dict[tuple[int, int], FoundFrame] = field(default_factory=dict)
    damaged: set[tuple[str, int]] = field(default_factory=set)

    @staticmethod
    def of(journals: Sequence[ScannedJournal]) -> "_FrameIndex":
        index = _FrameIndex()
        for journal in journals:
            index.damaged.update((journal.path, page) for page in journal.damaged_pages)
            for frame in journal.frames:
                header = frame.header
                index.by_number[header.epoch, header.number] = frame
                index.by_place[frame.path, header.page] = frame
                if header.page == 0:
                    index.first_of_life[header.epoch, header.generation] = frame
        return index

    def frames(self) -> list[FoundFrame]:
        return list(self.by_place.values())

    def behind(self, frame: FoundFrame, rules: DurabilityRules) -> FoundFrame | None:
        """The frame that follows in the same file, or at the start of the next one."""
        header = frame.header
        candidates = (
            self.by_place.get((frame.path, header.end_page)),
            self.first_of_life.get((header.epoch, header.generation + 1)),
        )
        for candidate in candidates:
            if candidate is not None and rules.continues(header, candidate.header):
                return candidate
        return None


def link_frames(
    journals: Sequence[ScannedJournal],
    *,
    rules: DurabilityRules,
    reads_back: Callable[[FoundFrame], bool],
) -> RecoveredChain:
    """The chain in the given files. O(frames). Raises LogCorruptedError."""
    for journal in journals:
        # Its frames are not known here, and without them the chain may be whole and too short.
        if journal.is_of_another_release:
            raise LogCorruptedError(
                "a journal was written by another release of the program, in a format that this one does not know:"
                f" go on with that release path={journal.path!r}"
            )
    index = _FrameIndex.of(journals)
    frames = index.frames()
    if not frames:
        return RecoveredChain()
    highest_number = max(frame.header.number for frame in frames)
    highest_address = max(frame.header.last_address for frame in frames)
    anchor, synced_number = _anchor(index, reads_back)
    if anchor is None:
        # Only the torn epoch frame of a first start that never finished.
        return RecoveredChain(highest_number=highest_number, highest_address=highest_address)
    newer: list[FoundFrame] = []
    tail = anchor
    for _ in frames:
        following = index.behind(tail, rules)
        if following is None or not reads_back(following):
            break
        newer.append(following)
        tail = following
    older = _trace_back(index, anchor, oldest_number=tail.header.oldest_number)
    return RecoveredChain(
        frames=(*reversed(older), *newer),
        synced_number=synced_number,
        truncated_up_to=tail.header.truncated_up_to,
        highest_number=highest_number,
        highest_address=highest_address,
        cut_frames=_count_cut(index, tail),
    )


def _anchor(
    index: _FrameIndex, reads_back: Callable[[FoundFrame], bool]
) -> tuple[FoundFrame | None, int]:
    """The newest frame that must exist, and the highest number known to be synced."""
    frames = index.frames()
    for epoch in sorted({frame.header.epoch for frame in frames}, reverse=True):
        of_epoch = [frame for frame in frames if frame.header.epoch == epoch]
        ordinary = [frame for frame in of_epoch if frame.header.kind is not FrameKind.EPOCH]
        if ordinary:
            synced_number = max(frame.header.synced_number for frame in ordinary)
            anchor = index.by_number.get((epoch, synced_number))
            if anchor is None:
                anchor = _first_needed(ordinary, reads_back)
            if anchor is None:
                raise LogCorruptedError(
                    f"a synced frame is missing: {WAY_OUT} epoch={epoch} number={synced_number}"
                )
            return anchor, synced_number
        for frame in of_epoch:
            if reads_back(frame):
                return frame, frame.header.synced_number
    return None, 0


def _first_needed(
    frames: Sequence[FoundFrame], reads_back: Callable[[FoundFrame], bool]
) -> FoundFrame | None:
    """A newest frame that needs none before it: once it was synced, everything older could go."""
    newest = max(frames, key=lambda frame: frame.header.number)
    alone = newest.header.oldest_number == newest.header.number
    return newest if alone and reads_back(newest) else None


def _trace_back(index: _FrameIndex, anchor: FoundFrame, *, oldest_number: int) -> list[FoundFrame]:
    """From the anchor to the oldest needed frame, newest first."""
    frame = anchor
    traced = [anchor]
    while frame.header.number > oldest_number:
        key = (frame.header.previous_epoch, frame.header.previous_number)
        previous = index.by_number.get(key)
        if previous is None or not oldest_number <= previous.header.number < frame.header.number:
            raise LogCorruptedError(
                f"a synced frame is missing: {WAY_OUT} epoch={key[0]} number={key[1]}"
                f" oldest_number={oldest_number}"
            )
        frame = previous
        traced.append(frame)
    return traced


def _count_cut(index: _FrameIndex, tail: FoundFrame) -> int:
    """Frames of the governing epoch behind the end; at least one when the next page was a header once."""
    epoch, number = tail.header.epoch, tail.header.number
    behind = sum(
        1
        for frame in index.frames()
        if frame.header.epoch == epoch and frame.header.number > number
    )
    return max(behind, int((tail.path, tail.header.end_page) in index.damaged))


def plan_recovery(
    chain: RecoveredChain, *, rules: DurabilityRules, copy_bytes_max: int
) -> RecoveryPlan:
    """What stays and what is copied. Copies reach back beyond need by whole files while they are small."""
    frames = chain.frames
    oldest = 0
    while oldest < len(frames) and not _is_live(frames[oldest], chain):
        oldest += 1
    kept = len(frames)
    while kept > oldest and not rules.is_durable(frames[kept - 1].header, chain.synced_number):
        kept -= 1
    copied_bytes = _live_bytes(frames[kept:], chain)
    while kept > oldest:
        start = kept - 1
        while start > oldest and frames[start - 1].path == frames[kept - 1].path:
            start -= 1
        copied_bytes += _live_bytes(frames[start:kept], chain)
        if copied_bytes > copy_bytes_max:
            break
        kept = start
    # What stays is one stretch of the chain, marks between entries included: the links run through them.
    while kept > oldest and not _is_live(frames[kept - 1], chain):
        kept -= 1
    copied = tuple(frame for frame in frames[kept:] if _is_live(frame, chain))
    return RecoveryPlan(in_place=frames[oldest:kept], copied=copied)


def _is_live(frame: FoundFrame, chain: RecoveredChain) -> bool:
    return frame.header.entry_count > 0 and frame.header.last_address > chain.truncated_up_to


def _live_bytes(frames: Sequence[FoundFrame], chain: RecoveredChain) -> int:
    return sum(frame.header.body_bytes for frame in frames if _is_live(frame, chain))


def read_frame(files: FileSystem, frame: FoundFrame) -> list[tuple[int, memoryview]] | None:
    """(address, payload) of each entry, or None when the frame does not read back whole. Blocks."""
    try:
        file = files.open(frame.path)
    except FileNotFoundError:
        return None
    try:
        raw = memoryview(file.read_at(frame.header.offset, frame.header.length))
    finally:
        file.close()
    # The header is compared again: it was read in another call, and the file may have been damaged since.
    again = decode_header(raw, log_id=frame.header.log_id, page=frame.header.page)
    return decode_body(frame.header, raw) if again == frame.header else None


def read_durable_frame(files: FileSystem, frame: FoundFrame) -> list[tuple[int, memoryview]]:
    """As read_frame, for a frame that is known to have been synced: raises LogCorruptedError. Blocks."""
    entries = read_frame(files, frame)
    if entries is None:
        raise LogCorruptedError(
            f"a synced frame does not read back: {WAY_OUT} epoch={frame.header.epoch} number={frame.header.number} "
            f"offset={frame.header.offset} path={frame.path!r}"
        )
    return entries
