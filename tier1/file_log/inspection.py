"""Looks at a log's directory without owning it: for `segmentstore log inspect`.

Takes no lock and changes nothing, so it may run while an owner writes; what that owner does meanwhile may be missed, or
show as a broken frame at the end of the newest file. Everything here blocks.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from segmentstore.runtime.files import FileSystem
from tier1.file_log.directory import decode_identity, parse_journal_name
from tier1.file_log.frames import FrameKind
from tier1.file_log.scan import read_frame, scan_journal


@dataclass(frozen=True, slots=True)
class InspectedFrame:
    """One frame, as `log inspect` prints it."""

    file: str
    offset: int
    kind: FrameKind
    epoch: int
    generation: int
    number: int
    previous_number: int
    """For an epoch frame: where earlier epochs end."""
    synced_number: int
    oldest_number: int
    truncated_up_to: int
    entry_count: int
    length: int
    """Bytes in the file, padding included."""
    first_address: int
    """0 if there are no entries or the frame does not read back."""
    last_address: int
    """Highest address given so far; that of the last entry, if there is one."""
    valid: bool
    """Its checksum holds."""
    current: bool
    """Belongs to the newest life of its file; others are left over and mean nothing."""


@dataclass(frozen=True, slots=True)
class InspectedFile:
    """One journal file."""

    name: str
    creator_epoch: int
    size_bytes: int
    frames: tuple[InspectedFrame, ...]
    damaged_pages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class InspectedLog:
    """What a directory says about its log before any journal is read."""

    log_id: bytes | None
    """None if there is no identity, or a damaged one."""
    epoch: int
    """The highest epoch ever claimed; 0 for a directory without a log."""
    disabled: bool
    owner: str
    """What the last owner said about itself; it may be gone."""
    journal_names: tuple[str, ...]


def inspect_log(files: FileSystem, path: str) -> InspectedLog:
    """Raises OSError if the directory cannot be read."""
    names = files.list(path)
    epochs = [int(name.removeprefix("epoch-")) for name in names if name.startswith("epoch-")]
    journals = [name for name in (parse_journal_name(name) for name in names) if name is not None]
    identity = _read(files, f"{path}/identity") if "identity" in names else b""
    return InspectedLog(
        log_id=decode_identity(identity),
        epoch=max([0, *epochs, *(journal.epoch for journal in journals)]),
        disabled="disabled" in names,
        owner=_read(files, f"{path}/lock").decode(errors="replace") if "lock" in names else "",
        journal_names=tuple(str(journal) for journal in journals),
    )


def inspect_files(files: FileSystem, path: str) -> Iterator[InspectedFile]:
    """The journals, by creator and serial number. Reads every byte of every frame."""
    log = inspect_log(files, path)
    for name in log.journal_names:
        scanned = scan_journal(files, f"{path}/{name}", log_id=log.log_id)
        lives = [(frame.header.epoch, frame.header.generation) for frame in scanned.frames]
        frames = []
        for frame in scanned.frames:
            header = frame.header
            entries = read_frame(files, frame)
            frames.append(
                InspectedFrame(
                    file=name,
                    offset=header.offset,
                    kind=header.kind,
                    epoch=header.epoch,
                    generation=header.generation,
                    number=header.number,
                    previous_number=header.previous_number,
                    synced_number=header.synced_number,
                    oldest_number=header.oldest_number,
                    truncated_up_to=header.truncated_up_to,
                    entry_count=header.entry_count,
                    length=header.length,
                    first_address=entries[0][0] if entries else 0,
                    last_address=header.last_address,
                    valid=entries is not None,
                    current=(header.epoch, header.generation) == max(lives),
                )
            )
        journal = parse_journal_name(name)
        assert journal is not None, f"only journals are listed: {name}"
        yield InspectedFile(
            name,
            journal.epoch,
            scanned.size_bytes,
            tuple(frames),
            tuple(sorted(scanned.damaged_pages)),
        )


def _read(files: FileSystem, path: str) -> bytes:
    file = files.open(path)
    try:
        return file.read_at(0, file.size())
    finally:
        file.close()
