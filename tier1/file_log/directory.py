"""The directory of a log: which process may use it, under which epoch, which log it is, and the names of its files.

    lock                        held by flock while a process owns the log; its text says which one
    identity                    which log this is, see below
    epoch-0000000012            an empty file whose name claims epoch 12
    journal-0000000012-000003   the third journal file that epoch 12 created
    disabled                    present while the log refuses to be initialised; why, in UTF-8 (may be cut off or empty)
    ballast                     zeros; removed when a new owner finds no room on the disk for its first journal

The file `identity`:

    version 1   "SLID", version u32, log id (16 bytes), CRC32C of those: little endian, 28 bytes
    version 2   as 1, and the id of the log that it follows (16 bytes) before the CRC32C: 44 bytes
    version 3   as 2, and how many changes the manifest had that it follows (u64) before the CRC32C: 52 bytes

Invariants:
- An epoch is claimed by creating its file exclusively and syncing the directory *before* anything is read.
- Epoch files are removed only below a claim that is durable, and *before* the claimant reads anything. Hence whatever
  the holder of epoch e has synced while its own epoch file was still there, every later owner reads: one lookup made
  after a sync decides whether it may be acknowledged.
- Journal names hold the creator's epoch: no process ever opens for writing what another one created.
- An identity is written once and never changes.

All methods block; they run in an executor. OSError passes through.
"""

import struct
from contextlib import suppress
from dataclasses import dataclass
from random import Random

import crc32c

from segmentstore.contracts.errors import (
    LogCorruptedError,
    LogDisabledError,
    LogInUseError,
    LogNotPrimaryError,
)
from segmentstore.runtime.entropy import random_id
from segmentstore.runtime.files import File, FileSystem, LockHeldError, lock_file

_REASON_BYTES_MAX = 2048
_IDENTITY_MAGIC = b"SLID"
_IDENTITY_VERSION = 1
_IDENTITY_VERSION_THAT_FOLLOWS = 2
_IDENTITY_VERSION_WITH_CHANGES = 3
_IDENTITY_HEADER = struct.Struct("<4sI16s")
_IDENTITY_FOLLOWS = struct.Struct("<16s")
_IDENTITY_CHANGES = struct.Struct("<Q")
_IDENTITY_CHECKSUM = struct.Struct("<I")
IDENTITY_BYTES_MAX = (
    _IDENTITY_HEADER.size
    + _IDENTITY_FOLLOWS.size
    + _IDENTITY_CHANGES.size
    + _IDENTITY_CHECKSUM.size
)


@dataclass(frozen=True, slots=True)
class JournalName:
    """The epoch that created a journal file, and as which of its files."""

    epoch: int
    serial: int

    def __str__(self) -> str:
        return f"journal-{self.epoch:010d}-{self.serial:06d}"


@dataclass(frozen=True, slots=True)
class LogIdentity:
    """Ids of 16 bytes."""

    log_id: bytes
    follows: bytes = b""
    """The log whose manifest in Tier 2 this one takes over, because that log is lost; empty: none."""
    follows_changes: int | None = None
    """How many changes that manifest had when this log was made; None if it was not noted, or follows none."""


class LogDirectory:
    """One log's directory as one process sees it."""

    def __init__(self, path: str, *, files: FileSystem, random: Random, owner: str) -> None:
        self.path = path
        self._files = files
        self._random = random
        self._owner = owner
        self._lock: File | None = None
        self._epoch = 0
        self._own_epoch_path = ""

    @property
    def ballast_path(self) -> str:
        return self.join("ballast")

    def join(self, name: str) -> str:
        return f"{self.path}/{name}"

    # --- ownership ---------------------------------------------------------------------------

    def lock(self, *, takeover: bool) -> None:
        """Become the only process that uses the log. Raises LogInUseError; with `takeover` goes on without the lock."""
        self._files.make_directories(self.path)
        try:
            self._lock = lock_file(self._files, self.join("lock"), holder=self._owner)
        except LockHeldError as error:
            if not takeover:
                raise LogInUseError(
                    f"another process holds the log; stop it first holder={error.holder!r} path={self.path!r}"
                ) from None

    def unlock(self) -> None:
        """Idempotent."""
        if self._lock is not None:
            lock, self._lock = self._lock, None
            lock.close()

    def read_or_create_identity(self) -> LogIdentity:
        """Made from the given randomness at the first start, before there is anything else.

        With a new one the frames of the log would be those of a stranger.
        """
        path = self.join("identity")
        if not self._files.exists(path):
            if self.highest_epoch():
                raise LogCorruptedError(
                    "the identity of the log is missing, and its journals or epochs are there: put the file back, or"
                    " take this log as lost: `segmentstore recover --from-tier2` begins a new one above what Tier 2"
                    f" holds path={path!r}"
                )
            self._create_identity(path)
        file = self._files.open(path)
        try:
            content = file.read_at(0, IDENTITY_BYTES_MAX + 1)
        finally:
            file.close()
        identity = decode_identity(content)
        if identity is None:
            raise LogCorruptedError(f"the identity of the log does not read back path={path!r}")
        return identity

    def _create_identity(self, path: str) -> None:
        # Linked under its name only when complete and synced; of two creators one wins and both read the winner's.
        temporary = self.join(f"identity-{self._random.randbytes(8).hex()}.new")
        file = self._files.open(temporary, create=True)
        try:
            file.truncate(0)
            file.write_at(0, [encode_identity(LogIdentity(random_id(self._random)))])
            file.sync_data()
        finally:
            file.close()
        with suppress(FileExistsError):
            self._files.link(temporary, path)
        self._files.remove(temporary)
        self._files.sync_directory(self.path)

    # --- epochs ------------------------------------------------------------------------------

    def claim_epoch(self, *, floor: int) -> int:
        """Fence every earlier owner durably and return the new epoch, above `floor` and every epoch ever claimed.

        Returns only when the names of all earlier epochs are gone: an owner of such an epoch acknowledges nothing more.
        """
        claimed = max(floor, self.highest_epoch()) + 1
        try:
            self._files.open(self._epoch_path(claimed), create=True, exclusive=True).close()
        except FileExistsError as error:
            raise LogInUseError(
                f"another process claims the log at this moment epoch={claimed} path={self.path!r}"
            ) from error
        self._files.sync_directory(self.path)
        highest = self.highest_epoch()
        if highest != claimed:
            raise LogNotPrimaryError(
                f"another process claimed the log epoch={claimed} owner_epoch={highest}"
            )
        self._epoch = claimed
        self._own_epoch_path = self._epoch_path(claimed)
        for epoch in self._epochs():
            if epoch < claimed:
                self._remove_if_present(self._epoch_path(epoch))
        return claimed

    def check_epoch(self) -> None:
        """Raises LogNotPrimaryError if an owner claimed a higher epoch, and may have read the log, before this call."""
        # Asked behind every sync: the path is made once, and the way to the answer is short.
        if not self._files.exists(self._own_epoch_path):
            raise LogNotPrimaryError(
                f"another process has taken the log over epoch={self._epoch} path={self.path!r}"
            )

    def _epoch_path(self, epoch: int) -> str:
        return self.join(f"epoch-{epoch:010d}")

    def _epochs(self) -> list[int]:
        numbers = [_number_after(name, "epoch-") for name in self._files.list(self.path)]
        return sorted(number for number in numbers if number is not None)

    def highest_epoch(self) -> int:
        """That was ever claimed here; 0 without one. Needs no lock."""
        # A journal outlives its epoch's file when a person tidies up by hand: its name counts too.
        return max([0, *self._epochs(), *(name.epoch for name in self.journals())])

    # --- files -----------------------------------------------------------------------------------

    def journals(self) -> list[JournalName]:
        """By creator's epoch and serial number."""
        names = [parse_journal_name(name) for name in self._files.list(self.path)]
        found = [name for name in names if name is not None]
        return sorted(found, key=lambda name: (name.epoch, name.serial))

    def earlier_journals(self) -> list[JournalName]:
        """Those of earlier epochs. Raises LogNotPrimaryError if there is any other: we stood still after our claim.

        Without this a recovery that wakes late would take the spares of its successor for left-overs.
        """
        names = self.journals()
        if names and names[-1].epoch >= self._epoch:
            raise LogNotPrimaryError(
                f"another process has taken the log over epoch={self._epoch} owner_epoch={names[-1].epoch}"
            )
        return names

    def remove_file(self, path: str) -> None:
        """Not durable by itself: whether a file that nothing needs is still there after a crash makes no difference."""
        self._remove_if_present(path)

    def _remove_if_present(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._files.remove(path)

    # --- evidence ----------------------------------------------------------------------------

    @property
    def is_disabled(self) -> bool:
        return self._files.exists(self.join("disabled"))

    def check_enabled(self) -> None:
        """Raises LogDisabledError."""
        path = self.join("disabled")
        if not self.is_disabled:
            return
        file = self._files.open(path)
        try:
            why = file.read_at(0, _REASON_BYTES_MAX).decode(errors="replace")
        finally:
            file.close()
        raise LogDisabledError(
            f"the log was disabled to keep the evidence of a fault: {why or 'it is not known which'}. Look, then"
            f" `segmentstore log enable` path={self.path!r}"
        )

    def disable(self, why: str) -> None:
        """Does nothing for an owner that was fenced: what it missed was another's to remove. The first reason stays."""
        if self._epoch and not self._files.exists(self._own_epoch_path):
            return
        self._files.make_directories(self.path)
        file = self._files.open(self.join("disabled"), create=True)
        try:
            if not file.size():
                # That it is there is what counts, also on a full disk.
                with suppress(OSError):
                    file.write_at(0, [why.encode(errors="replace")[:_REASON_BYTES_MAX]])
                    file.sync_data()
        finally:
            file.close()
        self._files.sync_directory(self.path)

    def enable(self) -> None:
        self._remove_if_present(self.join("disabled"))
        self._files.sync_directory(self.path)


def parse_journal_name(name: str) -> JournalName | None:
    """None for a file that is no journal."""
    prefix, _, serial = name.rpartition("-")
    epoch = _number_after(prefix, "journal-")
    if epoch is None or not serial.isdecimal():
        return None
    return JournalName(epoch, int(serial))


def _number_after(name: str, prefix: str) -> int | None:
    digits = name.removeprefix(prefix)
    return int(digits) if name.startswith(prefix) and digits.isdecimal() else None


def encode_identity(identity: LogIdentity) -> bytes:
    """The content of the identity file. One that follows none is readable for versions that know no other."""
    fields = b""
    version = _IDENTITY_VERSION
    if identity.follows:
        version = _IDENTITY_VERSION_THAT_FOLLOWS
        fields = _IDENTITY_FOLLOWS.pack(identity.follows)
        if identity.follows_changes is not None:
            version = _IDENTITY_VERSION_WITH_CHANGES
            fields += _IDENTITY_CHANGES.pack(identity.follows_changes)
    fields = _IDENTITY_HEADER.pack(_IDENTITY_MAGIC, version, identity.log_id) + fields
    return fields + _IDENTITY_CHECKSUM.pack(crc32c.crc32c(fields))


def decode_identity(content: bytes) -> LogIdentity | None:
    """None when the content is no identity."""
    fields, checksum = content[: -_IDENTITY_CHECKSUM.size], content[-_IDENTITY_CHECKSUM.size :]
    if len(fields) < _IDENTITY_HEADER.size or checksum != _IDENTITY_CHECKSUM.pack(
        crc32c.crc32c(fields)
    ):
        return None
    magic, version, log_id = _IDENTITY_HEADER.unpack_from(fields)
    rest = fields[_IDENTITY_HEADER.size :]
    if magic != _IDENTITY_MAGIC:
        return None
    if version == _IDENTITY_VERSION and not rest:
        return LogIdentity(log_id)
    if version == _IDENTITY_VERSION_THAT_FOLLOWS and len(rest) == _IDENTITY_FOLLOWS.size:
        return LogIdentity(log_id, follows=rest)
    if (
        version == _IDENTITY_VERSION_WITH_CHANGES
        and len(rest) == _IDENTITY_FOLLOWS.size + _IDENTITY_CHANGES.size
    ):
        (changes,) = _IDENTITY_CHANGES.unpack_from(rest, _IDENTITY_FOLLOWS.size)
        return LogIdentity(log_id, follows=rest[: _IDENTITY_FOLLOWS.size], follows_changes=changes)
    return None
