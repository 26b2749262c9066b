"""Holds the volumes against the index: what is damaged, what is missing, and whether the sums are right.

    each volume:     header; with `deep` every record's checksum
                     record there, with `deep`: the index has its version or a newer one, unless a tombstone took it
    each object row: its record stands where the row says, with its key and number; its blob has a row
    each blob row:   its bytes are inside an existing volume; with `deep` (the volumes were read whole) checked there
    sums:            references, live bytes of each volume

Memory: a row for each volume, and with `deep` a hash for each version that volumes have and the index has not, up to a
bound: those are deleted, and not compacted yet. That every blob is named as often as it says is proved by sums over
all rows of the hashes times the names, on both sides.

Beside a writer: what looks wrong is looked at again, and forgotten if its row has changed; sums are compared only if
nothing was committed meanwhile. Blocking; runs in an executor.
"""

import hashlib
from collections.abc import Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from segmentstore.contracts.errors import CorruptedDataError
from tier2.volumes.index import (
    BLOB,
    CURRENT,
    NEXT_SEQUENCE,
    VERSION,
    VERSION_ID,
    VOLUME,
    BlobRow,
    IndexChanges,
    ObjectRow,
    blob_key,
    decode_blob_row,
    decode_object_row,
    decode_sequence,
    decode_volume_row,
    rows_of_kind,
    version_id_key,
    version_key,
    volume_key,
)
from tier2.volumes.index_database import IndexDatabase
from tier2.volumes.volume_files import DamagedStretch, ScannedRecord, VolumeFiles, VolumeScan
from tier2.volumes.volume_format import (
    RECORD_HEADER_BYTES,
    VOLUME_HEADER_BYTES,
    RecordKind,
    decode_index_record,
    decode_record_header,
)

_PAGE_ROWS = 256
_PROBLEMS_MAX = 1000
_ABSENT_VERSIONS_MAX = 1_000_000


def advance(steps: Iterator[int], *, bytes_max: int, steps_max: int) -> tuple[int, bool]:
    """One piece of a verification: about how many bytes were read, and whether that was the last one."""
    read = 0
    for count, step in enumerate(steps, start=1):
        read += step
        if read >= bytes_max or count >= steps_max:
            return read, False
    return read, True


@dataclass(slots=True)
class VerificationReport:
    """What was found; healthy if there are no problems."""

    volumes: int = 0
    records: int = 0
    """Read whole; 0 unless deep."""
    objects: int = 0
    """Versions, delete markers included."""
    blobs: int = 0
    bytes_of_volumes: int = 0
    live_bytes: int = 0
    unreferenced_volumes: list[int] = field(default_factory=list)
    """Nothing of them is live: the next compaction removes them, tombstones apart."""
    records_compared: bool = False
    """Whether every version in the volumes was looked for in the index: only if deep, and not too many are deleted."""
    sums_compared: bool = False
    """False if something was committed meanwhile."""
    problems: list[str] = field(default_factory=list)
    """One sentence each, at most 1,000."""

    @property
    def healthy(self) -> bool:
        return not self.problems


@dataclass(frozen=True, slots=True)
class _AbsentVersion:
    volume: int
    sequence: int
    key: bytes
    version_id: str


class Verification:
    """One pass."""

    def __init__(
        self,
        *,
        index: IndexDatabase,
        volumes: VolumeFiles,
        absent_versions_max: int = _ABSENT_VERSIONS_MAX,
        first_volume: int = 0,
    ) -> None:
        """`first_volume`: the volumes before it are looked at last."""
        self._index = index
        self._volumes = volumes
        self._absent_versions_max = absent_versions_max
        self._first_volume = first_volume
        self.volume = first_volume
        """The one that is looked at, or was the last one."""
        self.report = VerificationReport()
        self._secrets: dict[int, int] = {}
        self._sizes: dict[int, int] = {}
        self._live: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        """How far each volume was read."""
        self._absent: dict[bytes, _AbsentVersion] = {}
        """What volumes have and the index has not."""
        self._removed: dict[bytes, int] = {}
        """The number of the newest tombstone of versions that the index has not."""
        self._named = 0
        self._references = 0

    def steps(self, deep: bool) -> Generator[int, None, None]:
        """A record or a row at a time: about how many bytes were read for it; at its end the report is whole.

        Raises CorruptedDataError if the index cannot be read, OSError.
        """
        before = self._index.get(NEXT_SEQUENCE), self._volume_rows()
        numbers = self._volumes.numbers()
        numbers.sort(key=lambda number: (number < self._first_volume, number))
        for number in numbers:
            self.volume = number
            yield from self._look_at_volume(number, deep=deep)
        if deep:
            yield from self._look_for_absent_versions()
        for kind in (CURRENT, VERSION):
            for row_key, content in rows_of_kind(self._index, kind, page_rows=_PAGE_ROWS):
                yield self._look_at_object(row_key, content)
        yield from self._look_at_version_ids()
        for row_key, content in rows_of_kind(self._index, BLOB, page_rows=_PAGE_ROWS):
            self._look_at_blob(row_key, content)
            yield len(content)
        if before == (self._index.get(NEXT_SEQUENCE), self._volume_rows()):
            self._compare_sums(before[1])

    # --- volumes ---------------------------------------------------------------------------------

    def _look_at_volume(self, number: int, *, deep: bool) -> Iterator[int]:
        report = self.report
        content = self._index.get_certain(volume_key(number))
        row = None if content is None else decode_volume_row(content)
        try:
            header = self._volumes.header(number)
            size = self._volumes.size(number)
        except FileNotFoundError:
            return
        except CorruptedDataError as error:
            self._problem(f"volume {number}: {error}")
            self._sizes[number] = self._volumes.size(number)
            return
        report.volumes += 1
        report.bytes_of_volumes += size
        self._sizes[number] = size
        if header is None:
            return
        self._secrets[number] = header.secret
        if row is None or not row.live_bytes:
            report.unreferenced_volumes.append(number)
        if not deep:
            return
        # What is behind may be half written at this moment: all of a volume of which the index says nothing yet.
        end = 0 if row is None else min(size, row.indexed_to)
        try:
            file = self._volumes.open(number)
        except FileNotFoundError:
            return
        try:
            for one in VolumeScan(file, secret=header.secret, size=end, offset=0):
                if not isinstance(one, DamagedStretch):
                    report.records += 1
                elif self._is_there(number, one.offset + one.length):
                    self._problem(
                        f"volume {number}: no good record in {one.length} bytes at {one.offset}: {one.why}"
                    )
                record = one.record if isinstance(one, DamagedStretch) else one
                if record is not None:
                    self._look_for_version(number, record)
                yield one.length if isinstance(one, DamagedStretch) else one.header.total_length
        finally:
            file.close()
        self._ends[number] = end

    def _is_there(self, number: int, end: int) -> bool:
        """Whether a volume still goes so far: compaction removes volumes, and shortens them on a full disk."""
        try:
            return self._volumes.size(number) >= end
        except FileNotFoundError:
            return False

    def _look_for_version(self, number: int, one: ScannedRecord) -> None:
        """Whether the index knows of a record in a volume."""
        if one.header.kind is RecordKind.BLOB:
            return
        version_id, sequence = one.record.version_id, one.header.sequence
        found = IndexChanges(self._index).version(one.key, version_id)
        if found is None:
            if len(self._absent) + len(self._removed) < self._absent_versions_max:
                self._note_absent(number, one)
            return
        has = found[1].record.sequence
        if one.header.is_deleted and has < sequence:
            what = "it is deleted, and the index has it"
        elif one.header.kind is RecordKind.PUT and has < sequence:
            what = "the index has an older one"
        else:
            return
        again = IndexChanges(self._index).version(one.key, version_id)
        if again is not None and again[1].record.sequence == has:
            self._problem(f"version {version_id!r} of {one.key!r} in volume {number}: {what}")

    def _note_absent(self, number: int, one: ScannedRecord) -> None:
        name = _digest_of_version(one)
        sequence = one.header.sequence
        if one.header.is_deleted:
            self._removed[name] = max(sequence, self._removed.get(name, 0))
            return
        known = self._absent.get(name)
        if known is None or known.sequence <= sequence:
            self._absent[name] = _AbsentVersion(number, sequence, one.key, one.record.version_id)

    def _look_for_absent_versions(self) -> Iterator[int]:
        """Those that no tombstone took: the index has lost them. Tombstones of a moment ago are looked for as well."""
        lost = {name: one for name, one in self._absent.items() if not self._is_removed(name)}
        lost = {name: one for name, one in lost.items() if self._is_absent(one)}
        if lost:
            # A tombstone is in its volume before its row goes, so what is there now has it.
            for number in self._volumes.numbers():
                with suppress(FileNotFoundError, CorruptedDataError):
                    yield from self._read_tombstones(number, self._ends.get(number, 0))
        present = set(self._volumes.numbers())
        for name, one in lost.items():
            if one.volume in present and not self._is_removed(name) and self._is_absent(one):
                self._problem(
                    f"version {one.version_id!r} of {one.key!r} is in volume {one.volume}, and not in the index"
                )
        self.report.records_compared = (
            len(self._absent) + len(self._removed) < self._absent_versions_max
        )

    def _read_tombstones(self, number: int, start: int) -> Iterator[int]:
        header = self._volumes.header(number)
        if header is None:
            return
        size = self._volumes.size(number)
        if size <= start:
            return
        file = self._volumes.open(number)
        try:
            for one in VolumeScan(file, secret=header.secret, size=size, offset=start):
                if isinstance(one, ScannedRecord) and one.header.is_deleted:
                    name = _digest_of_version(one)
                    self._removed[name] = max(one.header.sequence, self._removed.get(name, 0))
                yield one.length if isinstance(one, DamagedStretch) else one.header.total_length
        finally:
            file.close()

    def _is_removed(self, name: bytes) -> bool:
        return self._removed.get(name, -1) > self._absent[name].sequence

    def _is_absent(self, one: "_AbsentVersion") -> bool:
        return IndexChanges(self._index).version(one.key, one.version_id) is None

    def _volume_rows(self) -> dict[int, tuple[int, int]]:
        """How far each is indexed, and its live bytes."""
        found = {}
        for row_key, content in rows_of_kind(self._index, VOLUME, page_rows=_PAGE_ROWS):
            row = decode_volume_row(content)
            number = int.from_bytes(row_key[len(VOLUME) :], "big")
            found[number] = (row.indexed_to, row.live_bytes)
        return found

    # --- objects ---------------------------------------------------------------------------------

    def _look_at_object(self, row_key: bytes, content: bytes) -> int:
        """About how many bytes were read for it."""
        self.report.objects += 1
        read = len(content)
        try:
            row = decode_object_row(content)
            key = row_key[1:]
            if row_key.startswith(VERSION):
                key = row_key[1 : row_key.index(b"\0")]
                if row_key != version_key(key, row.record.sequence):
                    raise CorruptedDataError("its place is not that of its number")
            self._live[row.volume] = self._live.get(row.volume, 0) + row.record_length
            if row.has_blob_row:
                self._named += int.from_bytes(row.record.content_hash, "big")
                if self._index.get(blob_key(row.record.content_hash)) is None:
                    raise CorruptedDataError("its bytes have no row")
            read += row.record_length
            self._look_at_record(key, row)
        except (CorruptedDataError, FileNotFoundError) as error:
            if self._index.get(row_key) == content:
                self._problem(f"object {row_key!r}: {error}")
        return read

    def _look_at_record(self, key: bytes, row: ObjectRow) -> None:
        if row.volume not in self._secrets:
            volume = self._volumes.header(row.volume)
            if volume is None:
                raise CorruptedDataError(f"volume {row.volume} has no header")
            self._secrets[row.volume] = volume.secret
        front = self._volumes.read(row.volume, row.record_offset, row.record_length)
        header = decode_record_header(front, self._secrets[row.volume])
        found_key = front[RECORD_HEADER_BYTES : RECORD_HEADER_BYTES + header.key_length]
        record = decode_index_record(
            memoryview(front)[RECORD_HEADER_BYTES + header.key_length : header.blob_offset]
        )
        if header.kind not in (RecordKind.PUT, RecordKind.CHANGE) or found_key != key:
            raise CorruptedDataError(f"another record is there {header.kind=} key={found_key!r}")
        if record != row.record:
            raise CorruptedDataError("its record says something else than the index")

    def _look_at_version_ids(self) -> Iterator[int]:
        for row_key, content in rows_of_kind(self._index, VERSION_ID, page_rows=_PAGE_ROWS):
            key, version_id = row_key[1:].split(b"\0", 1)
            found = self._index.get(version_key(key, decode_sequence(content)))
            if (
                found is None or decode_object_row(found).record.version_id != version_id.decode()
            ) and self._index.get(row_key) == content:
                self._problem(f"version id {row_key!r} finds another version, or none")
            yield len(row_key)
        for row_key, content in rows_of_kind(self._index, VERSION, page_rows=_PAGE_ROWS):
            key = row_key[1 : row_key.index(b"\0")]
            record = decode_object_row(content).record
            if (
                self._index.get(version_id_key(key, record.version_id)) is None
                and self._index.get(row_key) == content
            ):
                self._problem(f"version {row_key!r} is not found by its id")
            yield len(content)

    def _look_at_blob(self, row_key: bytes, content: bytes) -> None:
        self.report.blobs += 1
        try:
            row: BlobRow = decode_blob_row(content)
            self._live[row.volume] = self._live.get(row.volume, 0) + row.size
            self._references += int.from_bytes(row_key[1:], "big") * row.references
            size = self._sizes.get(row.volume)
            if size is None or row.blob_offset + row.size > size:
                # It has grown since it was looked at.
                size = self._sizes[row.volume] = self._volumes.size(row.volume)
            if not VOLUME_HEADER_BYTES < row.blob_offset <= size - row.size or not row.references:
                raise CorruptedDataError(f"it cannot be there {row} volume_bytes={size}")
        except (CorruptedDataError, FileNotFoundError) as error:
            if self._index.get(row_key) == content:
                self._problem(f"bytes {row_key[1:].hex()}: {error}")

    def _compare_sums(self, volumes: dict[int, tuple[int, int]]) -> None:
        self.report.sums_compared = True
        self.report.live_bytes = sum(self._live.values())
        if self._named != self._references:
            self._problem("references of bytes are miscounted")
        for number in sorted({*volumes, *self._live}):
            said = volumes.get(number, (0, 0))[1]
            if said != self._live.get(number, 0):
                self._problem(
                    f"volume {number}: the index says {said} live bytes, its rows {self._live.get(number, 0)}"
                )

    def _problem(self, what: str) -> None:
        if len(self.report.problems) < _PROBLEMS_MAX:
            self.report.problems.append(what)


def _digest_of_version(one: ScannedRecord) -> bytes:
    name = one.key + b"\0" + one.record.version_id.encode()
    return hashlib.blake2b(name, digest_size=16).digest()
