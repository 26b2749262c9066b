"""Finds the frames of a journal file, whatever state a crash left it in.

The walk goes from frame to frame; where no valid header lies it steps on page by page, since a torn frame may be
followed by a whole one. Frames of an earlier life are reported like all others: telling them apart is the business of
`recovery`. Bodies are not read here.

Invariant: a frame of the file's newest life is never jumped over because of an older frame's length.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from segmentstore.contracts.errors import LogCorruptedError
from segmentstore.runtime.files import File, FileSystem
from tier1.file_log.frames import (
    PAGE_BYTES,
    FrameHeader,
    decode_body,
    decode_header,
    looks_like_header,
)

_WINDOW_PAGES = 16


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


def scan_journal(files: FileSystem, path: str, *, log_id: bytes | None) -> ScannedJournal:
    """Read every header of a file. One that vanished meanwhile (freed by a fenced owner) counts as empty. Blocks."""
    try:
        file = files.open(path)
    except FileNotFoundError:
        return ScannedJournal(path, 0, (), frozenset())
    try:
        damaged: list[int] = []
        frames = tuple(FoundFrame(header, path) for header in _headers(file, log_id, damaged))
        return ScannedJournal(path, file.size(), frames, frozenset(damaged))
    finally:
        file.close()


def _headers(file: File, log_id: bytes | None, damaged: list[int]) -> Iterator[FrameHeader]:
    page_count = file.size() // PAGE_BYTES
    window, window_page = memoryview(b""), 0
    newest_life = (0, 0)
    page = 0
    while page < page_count:
        start = (page - window_page) * PAGE_BYTES
        if start >= len(window):
            window = memoryview(file.read_at(page * PAGE_BYTES, _WINDOW_PAGES * PAGE_BYTES))
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
            f"a synced frame does not read back epoch={frame.header.epoch} number={frame.header.number} "
            f"offset={frame.header.offset} path={frame.path!r}"
        )
    return entries
