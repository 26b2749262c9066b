"""The record of a log in the metadata store: which ledgers it has, who owns it, how far it is truncated; its bytes.

Invariants (LogRecord.check(), before every encoding and behind every decoding):

- Sequences of ledgers grow, and none is above `last_sequence`, which never goes back: addresses do not return.
- Only the two newest ledgers may be open, both of one owner. The closed ones say where they end.
- A ledger is in the list, or is garbage that may be deleted, never both; a deleted one does not come back.

The address of an entry is the sequence of its ledger in this log, and below it the entry's id: sequence << 32 | id.

The bytes, little endian:

    "SLBK"  version u32 = 1  log id 16 bytes  flags u32  follows 16 bytes  follows_changes u64
    epoch u64  nonce 8 bytes  change u64  truncated_up_to u64  last_sequence u32
    ledgers u32  garbage u32  owner bytes u32  disabled bytes u32
    owner UTF-8, disabled UTF-8
    each ledger: id i64  sequence u32  epoch u64  last_entry i64  length u64  ensemble u8  write u8  ack u8
    each piece of garbage: ledger id i64
    CRC32C of all before it, u32

flags: 1 it follows another log; 2 follows_changes is known; other bits are zero. last_entry: -1 for a closed ledger
without entries, -2 for an open one.
"""

import struct
from dataclasses import dataclass, replace

import crc32c

from segmentstore.contracts.errors import LogCorruptedError
from segmentstore.contracts.identifiers import LogAddress
from tier1.bookkeeper.ledgers import LedgerId, Quorum

OPEN = -2
"""`last_entry` of a ledger that is appended to, or was until its owner died."""
NO_ADDRESS = LogAddress(0)
"""Below that of every entry."""
RECORD_BYTES_MAX = 900_000
"""ZooKeeper refuses values of 1 MiB."""

_MAGIC = b"SLBK"
_VERSION = 1
_FOLLOWS = 1
_FOLLOWS_CHANGES = 2
_HEADER = struct.Struct("<4sI16sI16sQQ8sQQIIIII")
_LEDGER = struct.Struct("<qIQqQBBB")
_GARBAGE = struct.Struct("<q")
_CHECKSUM = struct.Struct("<I")
_ENTRY_BITS = 32
_ENTRY_MASK = (1 << _ENTRY_BITS) - 1
_TEXT_BYTES_MAX = 2048
ENTRIES_MAX = 1 << 31
"""Of one ledger; far below what an address can name."""


def address_of(sequence: int, entry: int) -> LogAddress:
    """The address of an entry of the log's ledger of that sequence."""
    assert 0 <= entry <= _ENTRY_MASK, f"an address has no room for entry={entry}"
    return LogAddress(sequence << _ENTRY_BITS | entry)


def entry_of(address: LogAddress) -> tuple[int, int]:
    """The sequence of the ledger, and the id of the entry in it."""
    return address >> _ENTRY_BITS, address & _ENTRY_MASK


EPOCH_LABEL = "epoch"


def ledger_labels(path: str, record: "LogRecord") -> dict[str, bytes]:
    """What a ledger that the present owner makes for the log is labelled with."""
    return {
        "application": b"segmentstore",
        "log": path.encode(),
        "log_id": record.log_id.hex().encode(),
        EPOCH_LABEL: str(record.epoch).encode(),
    }


@dataclass(frozen=True, slots=True)
class LedgerInLog:
    """One ledger of the list."""

    ledger_id: LedgerId
    sequence: int
    epoch: int
    """Of the owner that made it."""
    quorum: Quorum
    last_entry: int = OPEN
    length: int = 0
    """Bytes of its entries; 0 while it is open."""

    @property
    def is_open(self) -> bool:
        return self.last_entry == OPEN

    @property
    def last_address(self) -> LogAddress | None:
        """None if it has no entry."""
        return address_of(self.sequence, self.last_entry) if self.last_entry >= 0 else None


@dataclass(frozen=True, slots=True)
class LogRecord:
    """What the metadata store holds of a log. Changed only through compare-and-set."""

    log_id: bytes
    follows: bytes = b""
    follows_changes: int | None = None
    epoch: int = 0
    nonce: bytes = bytes(8)
    """Drawn by each owner: of two that claimed the same epoch, which one wrote this."""
    change: int = 0
    """Counts what this owner wrote."""
    truncated_up_to: LogAddress = NO_ADDRESS
    last_sequence: int = 0
    ledgers: tuple[LedgerInLog, ...] = ()
    garbage: tuple[LedgerId, ...] = ()
    """Ledgers that the log no longer needs, and that may exist still."""
    owner: str = ""
    """For people."""
    disabled: str = ""
    """Why no process may open the log; empty: it may be opened."""

    @property
    def stored_bytes(self) -> int:
        """Of the closed ledgers."""
        return sum(ledger.length for ledger in self.ledgers)

    @property
    def encoded_bytes(self) -> int:
        """What encode_record() makes of it, at most."""
        texts = min(len(self.owner.encode()), _TEXT_BYTES_MAX) + min(
            len(self.disabled.encode()), _TEXT_BYTES_MAX
        )
        lists = len(self.ledgers) * _LEDGER.size + len(self.garbage) * _GARBAGE.size
        return _HEADER.size + texts + lists + _CHECKSUM.size

    def with_ledger(self, ledger: LedgerInLog) -> "LogRecord":
        """The list with a new newest ledger; unchanged if it is there already."""
        if any(each.ledger_id == ledger.ledger_id for each in self.ledgers):
            return self
        return replace(
            self,
            ledgers=(*self.ledgers, ledger),
            last_sequence=max(self.last_sequence, ledger.sequence),
        )

    def with_closed(self, ledger_id: LedgerId, *, last_entry: int, length: int) -> "LogRecord":
        """The list with that ledger's end written down."""
        ledgers = tuple(
            replace(each, last_entry=last_entry, length=length)
            if each.ledger_id == ledger_id
            else each
            for each in self.ledgers
        )
        return replace(self, ledgers=ledgers)

    def check(self) -> None:
        """Prove the invariants."""
        sequences = [ledger.sequence for ledger in self.ledgers]
        assert sequences == sorted(set(sequences)), f"sequences out of order: {sequences}"
        assert not sequences or sequences[-1] <= self.last_sequence, (sequences, self.last_sequence)
        still_open = [ledger for ledger in self.ledgers if ledger.is_open]
        newest = self.ledgers[-len(still_open) :] if still_open else ()
        assert len(still_open) <= 2, f"more than two ledgers are open: {still_open}"
        assert tuple(still_open) == newest, f"ledgers below the newest are open: {still_open}"
        assert len({ledger.epoch for ledger in still_open}) <= 1, (
            f"ledgers of two owners are open: {still_open}"
        )
        ids = [ledger.ledger_id for ledger in self.ledgers]
        assert len({*ids, *self.garbage}) == len(ids) + len(self.garbage), (ids, self.garbage)
        assert len(self.log_id) == 16, f"a log id has 16 bytes: {self.log_id!r}"


def encode_record(record: LogRecord) -> bytes:
    """The value for the metadata store."""
    record.check()
    owner = record.owner.encode()[:_TEXT_BYTES_MAX]
    disabled = record.disabled.encode()[:_TEXT_BYTES_MAX]
    flags = (_FOLLOWS if record.follows else 0) | (
        _FOLLOWS_CHANGES if record.follows_changes is not None else 0
    )
    fields = [
        _HEADER.pack(
            _MAGIC,
            _VERSION,
            record.log_id,
            flags,
            record.follows,
            record.follows_changes or 0,
            record.epoch,
            record.nonce,
            record.change,
            record.truncated_up_to,
            record.last_sequence,
            len(record.ledgers),
            len(record.garbage),
            len(owner),
            len(disabled),
        ),
        owner,
        disabled,
    ]
    fields += [_encode_ledger(ledger) for ledger in record.ledgers]
    fields += [_GARBAGE.pack(ledger_id) for ledger_id in record.garbage]
    content = b"".join(fields)
    return content + _CHECKSUM.pack(crc32c.crc32c(content))


def _encode_ledger(ledger: LedgerInLog) -> bytes:
    return _LEDGER.pack(
        ledger.ledger_id,
        ledger.sequence,
        ledger.epoch,
        ledger.last_entry,
        ledger.length,
        ledger.quorum.ensemble,
        ledger.quorum.write,
        ledger.quorum.ack,
    )


def decode_record(value: bytes, *, path: str) -> LogRecord:
    """What encode_record() was given. Raises LogCorruptedError for anything else."""
    content, checksum = value[: -_CHECKSUM.size], value[-_CHECKSUM.size :]
    if len(content) < _HEADER.size or content[:4] != _MAGIC:
        raise LogCorruptedError(f"this is no record of a log bytes={len(value)} path={path!r}")
    if checksum != _CHECKSUM.pack(crc32c.crc32c(content)):
        raise LogCorruptedError(f"the record of the log fails its checksum path={path!r}")
    (
        _,
        version,
        log_id,
        flags,
        follows,
        follows_changes,
        epoch,
        nonce,
        change,
        truncated_up_to,
        last_sequence,
        ledger_count,
        garbage_count,
        owner_bytes,
        disabled_bytes,
    ) = _HEADER.unpack_from(content)
    if version != _VERSION or flags & ~(_FOLLOWS | _FOLLOWS_CHANGES):
        raise LogCorruptedError(
            f"the record of the log is of a newer release version={version} flags={flags} path={path!r}"
        )
    texts = _HEADER.size
    ledgers = texts + owner_bytes + disabled_bytes
    garbage = ledgers + ledger_count * _LEDGER.size
    if garbage + garbage_count * _GARBAGE.size != len(content):
        raise LogCorruptedError(
            f"the record of the log has another length than it says path={path!r}"
        )
    record = LogRecord(
        log_id=log_id,
        follows=follows if flags & _FOLLOWS else b"",
        follows_changes=follows_changes if flags & _FOLLOWS_CHANGES else None,
        epoch=epoch,
        nonce=nonce,
        change=change,
        truncated_up_to=LogAddress(truncated_up_to),
        last_sequence=last_sequence,
        ledgers=tuple(
            _decode_ledger(*row) for row in _LEDGER.iter_unpack(content[ledgers:garbage])
        ),
        garbage=tuple(LedgerId(row[0]) for row in _GARBAGE.iter_unpack(content[garbage:])),
        owner=content[texts : texts + owner_bytes].decode(errors="replace"),
        disabled=content[texts + owner_bytes : ledgers].decode(errors="replace"),
    )
    try:
        record.check()
    except AssertionError as error:
        raise LogCorruptedError(
            f"the record of the log contradicts itself: {error} path={path!r}"
        ) from error
    return record


def _decode_ledger(
    ledger_id: int,
    sequence: int,
    epoch: int,
    last_entry: int,
    length: int,
    ensemble: int,
    write: int,
    ack: int,
) -> LedgerInLog:
    return LedgerInLog(
        ledger_id=LedgerId(ledger_id),
        sequence=sequence,
        epoch=epoch,
        quorum=Quorum(ensemble, write, ack),
        last_entry=last_entry,
        length=length,
    )
