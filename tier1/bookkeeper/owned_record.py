"""The record of a log as its owner changes it: by compare-and-set, and with answers that may be lost.

Invariants:

- A change is made to what this owner has just read, and only if nothing was written since: of two owners the one with
  the smaller epoch changes nothing any more, and is told so (LogNotPrimaryError).
- Each change reads the record first, and knows its own by epoch and nonce. The version alone proves nothing: those of a
  record that was deleted by hand and made anew begin again, and come past the one that an owner of it saw last.
- This program deletes no record. Where a log is set aside an empty value stays (vacate_record): a change that was under
  way names a version that does not come again, also when the next log is made there.
- A record never goes back: one with an earlier epoch, or fewer changes, than its owner has seen is an older state that
  was put back, with an old copy of ZooKeeper's data. It lacks ledgers that have entries, so the owner stops.
- A write whose answer was lost may have happened, or may yet. Steps are made so that taking one again changes nothing.
- Others than the owner change one thing only, whether the log is disabled: that is taken over, not undone.

Only one attempt is under way at a time; who waits for an answer that does not come holds up the other changes for as
long as the metadata store lets a reading and a writing take.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from random import Random

from segmentstore.contracts.errors import (
    DurableDataLogError,
    LogCorruptedError,
    LogDisabledError,
    LogInUseError,
    LogNotPrimaryError,
)
from segmentstore.runtime.entropy import random_id
from tier1.bookkeeper.log_record import (
    RECORD_BYTES_MAX,
    LogRecord,
    decode_record,
    encode_record,
)
from tier1.bookkeeper.metadata_store import (
    MetadataChangedError,
    MetadataStore,
    MetadataUnavailableError,
    VersionedValue,
)
from tier1.bookkeeper.retries import RetriedPart, Retries
from tier1.bookkeeper.settings import BookKeeperLogSettings, LedgerRules

Step = Callable[[LogRecord], LogRecord]

_VACANT = b""
"""At the path of a log that was set aside."""
_REBASES_MAX = 100
"""How often others may come between the reading and the writing of one change."""


class OwnedRecord:
    """claim(), then change() and check_owner() until another owner has claimed it."""

    def __init__(
        self,
        path: str,
        *,
        metadata: MetadataStore,
        settings: BookKeeperLogSettings,
        rules: LedgerRules,
        random: Random,
        owner: str,
    ) -> None:
        self.path = path
        self._metadata = metadata
        self._settings = settings
        self._rules = rules
        self._random = random
        self._owner = owner
        self._record: LogRecord | None = None
        self._turn = asyncio.Lock()
        self._epoch = 0
        self._nonce = b""

    @property
    def record(self) -> LogRecord:
        """As this owner wrote it last, or found it."""
        assert self._record is not None, "the record is known after claim()"
        return self._record

    @property
    def is_claimed(self) -> bool:
        return self._epoch > 0

    def retries(self, part: RetriedPart = RetriedPart.OTHER) -> Retries:
        """For a step of the log, or for all that its appends or its recovery wait for."""
        return Retries(self._settings, self._random, part)

    # --- becoming the owner ----------------------------------------------------------------------

    async def claim(self, *, epoch_floor: int) -> LogRecord:
        """Fence the changes of every earlier owner; the record has the ledgers that the last of them left.

        The epoch is above the floor and every epoch before. Raises LogDisabledError, LogInUseError if another claims
        the log at this moment, LogCorruptedError, MetadataUnavailableError.
        """
        retries = self.retries(RetriedPart.RECOVERY)
        found, version = await self._read_or_create(retries)
        if found.disabled:
            raise _disabled(found, self.path)
        earlier_epoch = found.epoch
        nonce = self._random.randbytes(8)
        epoch = max(epoch_floor, found.epoch) + 1
        for _ in range(_REBASES_MAX):
            wanted = self._rules.claimed(found, epoch=epoch, nonce=nonce, owner=self._owner)
            try:
                await self._metadata.compare_and_set(
                    self.path, encode_record(wanted), version=version
                )
                break
            except MetadataUnavailableError as error:
                await retries.pause(error)
            except MetadataChangedError:
                pass
            found, version = await self._read_or_create(retries)
            if (found.epoch, found.nonce) == (epoch, nonce):
                wanted = found
                break  # our own write, whose answer was lost
            if found.epoch > earlier_epoch:
                raise LogInUseError(
                    f"another process claims the log at this moment owner={found.owner!r} epoch={found.epoch}"
                    f" path={self.path!r}"
                )
            if found.disabled:
                raise _disabled(found, self.path)
        else:
            raise _contended(self.path)
        self._record = wanted
        self._epoch, self._nonce = wanted.epoch, wanted.nonce
        return wanted

    async def _read_or_create(self, retries: Retries) -> tuple[LogRecord, int]:
        for _ in range(_REBASES_MAX):
            try:
                found = await self._metadata.get(self.path)
                record = _decoded(found, self.path)
                if found is not None and record is not None:
                    return record, found.version
                fresh = LogRecord(random_id(self._random))
                # Read again: another process may have made it first, and a new record has no owner yet.
                await _replace(self.path, found, fresh, metadata=self._metadata)
            except MetadataChangedError:
                continue
            except MetadataUnavailableError as error:
                await retries.pause(error)
        raise _contended(self.path)

    # --- being the owner -------------------------------------------------------------------------

    async def change(self, step: Step, part: RetriedPart = RetriedPart.OTHER) -> LogRecord:
        """Take the step, once; waits while the metadata store is not there, as long as the settings say for the part.

        Raises LogNotPrimaryError, MetadataUnavailableError, LogCorruptedError.
        """
        retries = self.retries(part)
        while True:
            try:
                return await self.try_change(step)
            except MetadataUnavailableError as error:
                await retries.pause(error)

    async def try_change(self, step: Step) -> LogRecord:
        """As change(), in one attempt: after MetadataUnavailableError the step may have been taken, or may be yet."""
        async with self._turn:
            for _ in range(_REBASES_MAX):
                version = await self._read()
                wanted = step(self.record)
                if wanted == self.record:
                    return wanted
                wanted = replace(wanted, change=self.record.change + 1)
                value = encode_record(wanted)
                if len(value) > RECORD_BYTES_MAX:
                    raise record_is_large(wanted, self.path)
                try:
                    await self._metadata.compare_and_set(self.path, value, version=version)
                except MetadataChangedError:
                    continue
                self._record = wanted
                return wanted
        raise _contended(self.path)

    async def check_owner(self) -> None:
        """Raises LogNotPrimaryError if another owner has claimed the log, LogCorruptedError, MetadataUnavailableError.

        It takes nothing over from what it reads, so it does not wait for a change that is under way.
        """
        seen = self._record
        record, _ = await self._get()
        self._require_own(record, seen)

    async def read(self) -> LogRecord:
        """As it is, owned by this process or another. Raises MetadataUnavailableError, LogCorruptedError."""
        return (await self._get())[0]

    async def _get(self) -> tuple[LogRecord, int]:
        found = await self._metadata.get(self.path)
        record = _decoded(found, self.path)
        if found is None or record is None:
            raise LogCorruptedError(f"the record of the log is gone path={self.path!r}")
        return record, found.version

    async def _read(self) -> int:
        """The version of the record, which is still ours."""
        record, version = await self._get()
        self._require_own(record, self._record)
        self._record = record
        return version

    def _require_own(self, record: LogRecord, seen: LogRecord | None) -> None:
        """`seen`: as it was known when it was asked for."""
        if (
            seen is not None
            and record.log_id == seen.log_id
            and (record.epoch, record.change) < (seen.epoch, seen.change)
        ):
            raise LogCorruptedError(
                "an older state of the record of the log was put back, as with an old copy of ZooKeeper's data: it does"
                " not name the ledgers that were made since; end the processes of the store, and put the newest copy"
                f" back epoch={record.epoch} change={record.change} seen_epoch={seen.epoch} seen_change={seen.change}"
                f" path={self.path!r}"
            )
        if (record.epoch, record.nonce) != (self._epoch, self._nonce):
            raise LogNotPrimaryError(
                f"another process has taken the log over epoch={self._epoch} owner_epoch={record.epoch}"
                f" owner={record.owner!r} path={self.path!r}"
            )


async def edit_record(
    path: str, step: Callable[[LogRecord | None], LogRecord | None], *, metadata: MetadataStore
) -> None:
    """A change by one who does not own the log: it is disabled or enabled, or made as one that follows a lost log.

    `step` is given None if there is no record, and gives None if there is nothing to do. Raises
    MetadataUnavailableError if the change may have been made.
    """
    for _ in range(_REBASES_MAX):
        found = await metadata.get(path)
        record = _decoded(found, path)
        wanted = step(record)
        if wanted is None or wanted == record:
            return
        try:
            await _replace(path, found, wanted, metadata=metadata)
        except MetadataChangedError:
            continue
        return
    raise _contended(path)


async def read_record(path: str, *, metadata: MetadataStore) -> LogRecord | None:
    """For tools, which own nothing. None if there is no such log."""
    return _decoded(await metadata.get(path), path)


async def vacate_record(path: str, *, metadata: MetadataStore, version: int) -> None:
    """There is no log from then on, until one is made. Raises MetadataChangedError, MetadataUnavailableError."""
    await metadata.compare_and_set(path, _VACANT, version=version)


def is_vacant(found: VersionedValue | None) -> bool:
    """Whether no log is there, not even a damaged one."""
    return found is None or found.value == _VACANT


def _decoded(found: VersionedValue | None, path: str) -> LogRecord | None:
    if found is None or is_vacant(found):
        return None
    return decode_record(found.value, path=path)


async def _replace(
    path: str, found: VersionedValue | None, wanted: LogRecord, *, metadata: MetadataStore
) -> None:
    if found is None:
        await metadata.create(path, encode_record(wanted))
    else:
        await metadata.compare_and_set(path, encode_record(wanted), version=found.version)


def record_is_large(record: LogRecord, path: str) -> DurableDataLogError:
    """It has no room for more ledgers, or keeps it for other ones."""
    return DurableDataLogError(
        "the record of the log is too large for another ledger: it shrinks when Tier 2 takes what the log has, and"
        f" bookies delete what it gave up ledgers={len(record.ledgers)} garbage={len(record.garbage)}"
        f" bytes={record.encoded_bytes} bytes_max={RECORD_BYTES_MAX} path={path!r}"
    )


def _disabled(record: LogRecord, path: str) -> LogDisabledError:
    return LogDisabledError(
        f"the log was disabled to keep the evidence of a fault: {record.disabled}. Look, then"
        f" `segmentstore log enable` path={path!r}"
    )


def _contended(path: str) -> DurableDataLogError:
    return DurableDataLogError(f"others change the record of the log all the time path={path!r}")
