"""The records of transactions, of a commit that crosses a scale, and of the versions that applications have committed.

Times are those of the wall clock, in ms; only the timestamp is in whatever unit the stream's writers use.

## Transaction: TransactionRecord

    version 1 or 2; unsigned state, lease in ms; signed time of creation, time of completion;
    unsigned commit number; text writer; signed timestamp;
    offsets: target segment -> its length behind this transaction's bytes;
    version 2 only: list of stages, transaction that it joins, each id content of 16 bytes, the latter empty if there is
    none

- A record without stages and without a transaction to join is written as version 1.
- A commit number orders the commits of one stream and is 0 before the commit.

## Rolling plan: RollingPlanRecord

    version 1; unsigned transactions' epoch, active epoch; list of transaction ids, each content of 16 bytes

## Commit fence: CommitFenceRecord

Which version of an application's commits a stream has taken last.

    version 1; text application id; signed version; flag lasting; signed time of the commit

- A lasting fence is kept for as long as its stream; another one for as long as finished transactions are remembered.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum

from segmentstore.codec.controller_records.record_fields import FieldReader, FieldWriter

NO_TIMESTAMP = -(1 << 63)
"""The writer noted no time with its commit."""

_TRANSACTION_VERSION = 1
_STAGED_TRANSACTION_VERSION = 2
_ROLLING_PLAN_VERSION = 1
_COMMIT_FENCE_VERSION = 1
_TRANSACTION_ID_BYTES = 16


class TransactionState(IntEnum):
    """Where a transaction stands. Persistent, and the numbers of the protocol: never renumber."""

    OPEN = 1
    COMMITTING = 2
    COMMITTED = 3
    ABORTING = 4
    ABORTED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionRecord:
    """One transaction; its id, and with it its epoch, stands in its key."""

    state: TransactionState
    lease_ms: int
    created_ms: int
    completed_ms: int = 0
    commit_number: int = 0
    writer: str = ""
    timestamp: int = NO_TIMESTAMP
    merged: Mapping[int, int] = field(default_factory=dict)
    stages: tuple[int, ...] = ()
    """Transactions that are merged into this one before it is merged into the stream, in order."""
    joins: int | None = None
    """The transaction of which this one is a stage."""

    def encode(self) -> bytes:
        is_staged = bool(self.stages) or self.joins is not None
        fields = FieldWriter(_STAGED_TRANSACTION_VERSION if is_staged else _TRANSACTION_VERSION)
        fields.unsigned(self.state)
        fields.unsigned(self.lease_ms)
        fields.signed(self.created_ms)
        fields.signed(self.completed_ms)
        fields.unsigned(self.commit_number)
        fields.text(self.writer)
        fields.signed(self.timestamp)
        fields.offsets(self.merged)
        if is_staged:
            fields.list_of(self.stages, lambda item: fields.content(_id_bytes(item)))
            fields.content(b"" if self.joins is None else _id_bytes(self.joins))
        return fields.end()

    @staticmethod
    def decode(content: bytes) -> "TransactionRecord":
        fields = FieldReader(
            content, what="transaction record", version_max=_STAGED_TRANSACTION_VERSION
        )
        common = TransactionRecord(
            state=fields.choice(TransactionState),
            lease_ms=fields.unsigned(),
            created_ms=fields.signed(),
            completed_ms=fields.signed(),
            commit_number=fields.unsigned(),
            writer=fields.text(),
            timestamp=fields.signed(),
            merged=fields.offsets(),
        )
        if fields.version < _STAGED_TRANSACTION_VERSION:
            fields.end()
            return common
        stages = fields.list_of(lambda: _id_of(fields.content()))
        joins = fields.content()
        fields.end()
        return replace(common, stages=stages, joins=_id_of(joins) if joins else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RollingPlanRecord:
    """A commit whose transactions wrote to segments that were replaced since."""

    transaction_epoch: int
    active_epoch: int
    """The epoch that was active when the plan was made; the plan adds the two behind it."""
    transaction_ids: tuple[int, ...]
    """In the order of their commits."""

    def encode(self) -> bytes:
        fields = FieldWriter(_ROLLING_PLAN_VERSION)
        fields.unsigned(self.transaction_epoch)
        fields.unsigned(self.active_epoch)
        fields.list_of(self.transaction_ids, lambda item: fields.content(_id_bytes(item)))
        return fields.end()

    @staticmethod
    def decode(content: bytes) -> "RollingPlanRecord":
        fields = FieldReader(content, what="rolling plan", version_max=_ROLLING_PLAN_VERSION)
        record = RollingPlanRecord(
            transaction_epoch=fields.unsigned(),
            active_epoch=fields.unsigned(),
            transaction_ids=fields.list_of(lambda: _id_of(fields.content())),
        )
        fields.end()
        return record


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitFenceRecord:
    """Commits of this version and below are replays."""

    application_id: str
    version: int
    is_lasting: bool
    committed_ms: int

    def encode(self) -> bytes:
        fields = FieldWriter(_COMMIT_FENCE_VERSION)
        fields.text(self.application_id)
        fields.signed(self.version)
        fields.flag(self.is_lasting)
        fields.signed(self.committed_ms)
        return fields.end()

    @staticmethod
    def decode(content: bytes) -> "CommitFenceRecord":
        fields = FieldReader(content, what="commit fence record", version_max=_COMMIT_FENCE_VERSION)
        record = CommitFenceRecord(
            application_id=fields.text(),
            version=fields.signed(),
            is_lasting=fields.flag(),
            committed_ms=fields.signed(),
        )
        fields.end()
        return record


def _id_bytes(transaction_id: int) -> bytes:
    return transaction_id.to_bytes(_TRANSACTION_ID_BYTES, "big")


def _id_of(content: bytes) -> int:
    return int.from_bytes(content, "big")
