"""Tier 1 as it is on disk: what the frames and operations of a log are, and the way back from a disabled one.

Nothing is locked, and only `enable_log` changes anything; the log of a running store may move on meanwhile.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from containers.log.data_frame import RecordStream, decode_frame
from containers.operations.record_codec import Record, decode_record
from segmentstore.contracts.errors import (
    ErrorKind,
    InvalidRequestError,
    LogCorruptedError,
    SegmentStoreError,
)
from segmentstore.runtime.entropy import system_random
from segmentstore.runtime.files import SystemFileSystem
from tier1.file_log.directory import parse_journal_name
from tier1.file_log.log import FileDurableDataLog
from tier1.file_log.recovery import (
    FoundFrame,
    RecoveredChain,
    ScannedJournal,
    link_frames,
    read_frame,
    scan_journal,
)
from tier1.file_log.settings import DurabilityRules

_LOOKS_MAX = 5
"""At a log whose files do not fit together, and that is written meanwhile."""

LogRow: TypeAlias = Mapping[str, str | int | bool | None]


def log_directories(directory: Path, container_id: int | None = None) -> list[Path]:
    """The logs of a data directory, or that of one container, or the log that the directory is.

    Raises InvalidRequestError.
    """
    absolute = directory.absolute()
    pattern = "container-*" if container_id is None else f"container-{container_id:04d}"
    logs = sorted((absolute / "tier1").glob(pattern))
    if logs:
        return logs
    if (absolute / "identity").is_file() and absolute.parent.name == "tier1":
        return [absolute]
    if container_id is not None and any((absolute / "tier1").glob("container-*")):
        raise InvalidRequestError(
            f"there is no log of this container container={container_id} path={absolute}"
        )
    raise InvalidRequestError(
        f"neither a data directory with logs nor the directory of a log path={absolute}"
    )


async def enable_log(directory: Path, container_id: int | None = None) -> None:
    """Undo disable(). Raises InvalidRequestError, also if it is not clear which log is meant, LogInUseError."""
    path, *others = log_directories(directory, container_id)
    if others:
        raise InvalidRequestError(
            f"there are several logs: name one of them with --container path={directory}"
        )
    log = FileDurableDataLog(
        str(path), files=SystemFileSystem(), executor=None, random=system_random()
    )
    try:
        await log.enable()
    finally:
        await log.close()


@dataclass(slots=True)
class LogsSeen:
    """What a look at several logs finds: damage of one of them hides no other."""

    rows: list[LogRow] = field(default_factory=list)
    damages: list[str] = field(default_factory=list)
    """Of logs of which not all is among the rows."""

    @contextmanager
    def looking_at(self, log: str) -> Iterator[None]:
        """The block ends with the first damage, which is kept; every other error is raised."""
        try:
            yield
        except SegmentStoreError as error:
            if error.kind is not ErrorKind.CORRUPT:
                raise
            self.damages.append(str(error) if log in str(error) else f"{error} log={log}")


class LogInspection:
    """One log, read once. Blocks. Raises LogCorruptedError for a log that recovery would refuse."""

    def __init__(self, path: Path) -> None:
        self._name = path.name
        self._path = path
        self._files = SystemFileSystem()
        self._chain = self._look()

    def _look(self) -> RecoveredChain:
        """The frames that count. Files are read one behind the other, and the owner may go on from one to the next."""
        scanned = self._scan()
        for _ in range(_LOOKS_MAX):
            try:
                return self._link(scanned)
            except LogCorruptedError:
                seen, scanned = scanned, self._scan()
                if scanned == seen:
                    raise  # it stands still, so it is as it looks
        return self._link(scanned)

    def _scan(self) -> list[ScannedJournal]:
        journals = [
            str(self._path / name)
            for name in self._files.list(str(self._path))
            if parse_journal_name(name) is not None
        ]
        return [scan_journal(self._files, journal, log_id=None) for journal in journals]

    def _link(self, scanned: list[ScannedJournal]) -> RecoveredChain:
        return link_frames(
            scanned,
            rules=DurabilityRules(),
            reads_back=lambda frame: read_frame(self._files, frame) is not None,
        )

    def frame_rows(self) -> Iterator[LogRow]:
        """One row for each frame that counts."""
        for frame in self._chain.frames:
            header = frame.header
            yield {
                "log": self._name,
                "epoch": header.epoch,
                "frame": header.number,
                "kind": header.kind.name.lower(),
                "entries": header.entry_count,
                "body_bytes": header.body_bytes,
                "last_address": header.last_address,
                "truncated_up_to": self._chain.truncated_up_to,
                "journal": Path(frame.path).name,
                "offset": header.offset,
            }

    def operation_rows(self) -> Iterator[LogRow]:
        """One row for each operation behind the truncation point."""
        stream = RecordStream()
        for frame in self._chain.frames:
            entries = self._live_entries(frame)
            if entries is None:
                stream = RecordStream()  # what is behind it does not follow what was before
                continue
            for address, payload in entries:
                for view in stream.records(decode_frame(payload)):
                    yield operation_row(self._name, address, decode_record(view))

    def _live_entries(self, frame: FoundFrame) -> list[tuple[int, memoryview]] | None:
        """None if the owner has given it up meanwhile, with all that is before it."""
        header = frame.header
        if not header.entry_count or header.last_address <= self._chain.truncated_up_to:
            return []  # recovery does not read it
        entries = read_frame(self._files, frame)
        if entries is None:
            self._require_gone(frame)
            return None
        return [entry for entry in entries if entry[0] > self._chain.truncated_up_to]

    def _require_gone(self, frame: FoundFrame) -> None:
        """A running store may have removed its file meanwhile, or written another frame there."""
        if frame in scan_journal(self._files, frame.path, log_id=None).frames:
            raise LogCorruptedError(
                f"the entries of a frame fail their checksum epoch={frame.header.epoch} number={frame.header.number}"
                f" offset={frame.header.offset} path={frame.path!r}"
            )


def operation_row(log: str, address: int, record: Record) -> LogRow:
    """Of an operation in the entry at that address."""
    return {
        "log": log,
        "address": address,
        "sequence": record.sequence_number,
        "operation": record.type.name.lower(),
        "segment_id": record.segment_id,
        "offset": record.offset,
        "length": record.length,
        "attributes": len(record.attributes),
        "seal": record.seal,
    }
