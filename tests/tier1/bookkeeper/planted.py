"""Bugs to plant in the log on BookKeeper: each breaks one rule, and every one must be found out.

A bug is other rules for the log, or one method replaced while the patch lasts.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from segmentstore.contracts.identifiers import LogAddress
from tests.tier1.bookkeeper.random_life import LifeSettings
from tests.tier1.bookkeeper.simulated_ledgers import SimulatedLedgerClient
from tier1.bookkeeper.ledger_appends import LedgerAppends
from tier1.bookkeeper.ledger_maker import LedgerEnd
from tier1.bookkeeper.ledgers import LedgerClient, LedgerId, LedgerReader
from tier1.bookkeeper.log_record import LedgerInLog, LogRecord, entry_of
from tier1.bookkeeper.settings import LedgerRules


class ForgetsToFence(LedgerRules):
    """The newest ledger of the owner before is read as it is."""

    async def open_former(self, ledgers: LedgerClient, ledger_id: LedgerId) -> LedgerReader:
        assert isinstance(ledgers, SimulatedLedgerClient), ledgers
        return await ledgers.open_unfenced(ledger_id)


class KeepsTheEpochToItself(LedgerRules):
    """A new owner leaves the record as it is: it and the owner before take each other's changes for their own."""

    def claimed(self, found: LogRecord, *, epoch: int, nonce: bytes, owner: str) -> LogRecord:
        if found.epoch:
            return found
        return super().claimed(found, epoch=epoch, nonce=nonce, owner=owner)


class DeletesTheNewestLedger(LedgerRules):
    """A truncation takes away every ledger that it reaches."""

    def is_dispensable(self, ledger: LedgerInLog, *, up_to: LogAddress, is_newest: bool) -> bool:
        return ledger.sequence <= entry_of(up_to)[0]


class SweepsWhatTheOwnerIsAboutToRecord(LedgerRules):
    """Every ledger that the record does not name is swept away."""

    def is_left_behind(self, record: LogRecord, ledger_id: LedgerId, *, epoch: int) -> bool:
        return all(ledger.ledger_id != ledger_id for ledger in record.ledgers)


def _write_to_two_ledgers(patch: pytest.MonkeyPatch) -> None:
    """The next ledger takes entries while the one before has some under way, and the record says where that ends."""

    async def roll_over(self: LedgerAppends) -> None:
        next_writer = await self._create_ahead()
        if next_writer is None or self._ledger_failure is not None:
            return
        former_writer = self._writer
        end = LedgerEnd(self._ledger.ledger_id, self._entries - 1, self._bytes)
        ahead = await self._maker.enter_ahead(next_writer)
        under_way, self._in_flight = self._in_flight, type(self._in_flight)()
        for accepted in under_way:
            assert accepted.sent is not None, accepted
            accepted.sent.add_done_callback(
                lambda sent, accepted=accepted: (  # type: ignore[misc]  # a default binds it
                    None if sent.cancelled() or sent.exception() else self._complete(accepted)
                )
            )
        self._use(next_writer, ahead)
        await self._maker.let_go(former_writer)
        await self._maker.end(end)

    patch.setattr(LedgerAppends, "_roll_over", roll_over)


def _record_before_acknowledgements(patch: pytest.MonkeyPatch) -> None:
    """The record says where the ledger ends while appends to it are under way."""

    async def roll_over(self: LedgerAppends) -> None:
        next_writer = await self._create_ahead()
        if next_writer is None or self._ledger_failure is not None:
            return
        self._hold("the next ledger")
        end = LedgerEnd(self._ledger.ledger_id, self._entries - 1, self._bytes)
        ledger = await self._maker.enter(next_writer, ends=(end,))
        await self._drain()
        if self._in_flight:
            self._ahead = next_writer
            return
        self._use(next_writer, ledger)
        self._release()

    patch.setattr(LedgerAppends, "_roll_over", roll_over)


def owners_that_die_between_ledgers(life: LifeSettings) -> LifeSettings:
    """Every few entries fill a ledger, syncs take long, and the power fails for owners and bookies at once."""
    return replace(
        life,
        log=replace(life.log, ledger_bytes_max=2000, retry_seconds_max=100.0),
        owners=15,
        rounds=25,
        entry_bytes_max=2000,
        message_seconds=0.0005,
        sync_seconds=0.2,
        trouble_seconds_mean=1000.0,
        blackout=0.8,
    )


@dataclass(frozen=True, slots=True)
class PlantedBug:
    """What is broken. `world` changes a seed's world to show it."""

    rules: LedgerRules | None = None
    patch: Callable[[pytest.MonkeyPatch], None] | None = None
    world: Callable[[LifeSettings], LifeSettings] | None = None


BUGS: dict[str, PlantedBug] = {
    "the ledger of the owner before is not fenced": PlantedBug(rules=ForgetsToFence()),
    "the epoch of a new owner is not written down": PlantedBug(rules=KeepsTheEpochToItself()),
    "two ledgers take entries": PlantedBug(patch=_write_to_two_ledgers),
    "the record says where a ledger ends before its entries are acknowledged": PlantedBug(
        patch=_record_before_acknowledgements, world=owners_that_die_between_ledgers
    ),
    "a sweep deletes what the owner is about to record": PlantedBug(
        rules=SweepsWhatTheOwnerIsAboutToRecord()
    ),
    "a truncation deletes the newest ledger": PlantedBug(rules=DeletesTheNewestLedger()),
}
