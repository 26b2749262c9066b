"""Bugs to plant in the log on BookKeeper: each breaks one rule, and every one must be found out.

A bug is other rules for the log, or one method replaced while the patch lasts.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from segmentstore.contracts.identifiers import LogAddress
from tests.tier1.bookkeeper.simulated_ledgers import SimulatedLedgerClient
from tier1.bookkeeper.ledger_appends import LedgerAppends
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


def _write_to_two_ledgers(patch: pytest.MonkeyPatch) -> None:
    """The next ledger takes entries while the one before has some under way, and before the record names it."""

    async def roll_over(self: LedgerAppends) -> None:
        next_writer = await self._create_ahead()
        if next_writer is None or self._ledger_failure is not None:
            return
        former, former_writer = self._ledger, self._writer
        last_entry, length = self._entries - 1, self._bytes
        ahead = LedgerInLog(
            next_writer.ledger_id, former.sequence + 1, former.epoch, next_writer.quorum
        )
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
        await self._maker.enter(next_writer, former=former, last_entry=last_entry, length=length)

    patch.setattr(LedgerAppends, "_roll_over", roll_over)


def _record_before_closing(patch: pytest.MonkeyPatch) -> None:
    """The record says where the ledger ends while appends to it are under way."""

    async def roll_over(self: LedgerAppends) -> None:
        next_writer = await self._create_ahead()
        if next_writer is None:
            return
        if self._ledger_failure is not None:
            await self._replace(next_writer)
            return
        self._hold("the next ledger")
        former_writer = self._writer
        ledger = await self._maker.enter(
            next_writer, former=self._ledger, last_entry=self._entries - 1, length=self._bytes
        )
        await self._maker.let_go(former_writer)
        self._acknowledge()
        if any((self._ledger_failure, self._in_flight)):
            await self._replace(next_writer)
            return
        self._use(next_writer, ledger)
        self._release()

    patch.setattr(LedgerAppends, "_roll_over", roll_over)


@dataclass(frozen=True, slots=True)
class PlantedBug:
    """What is broken."""

    rules: LedgerRules | None = None
    patch: Callable[[pytest.MonkeyPatch], None] | None = None


BUGS: dict[str, PlantedBug] = {
    "the ledger of the owner before is not fenced": PlantedBug(rules=ForgetsToFence()),
    "the epoch of a new owner is not written down": PlantedBug(rules=KeepsTheEpochToItself()),
    "two ledgers take entries": PlantedBug(patch=_write_to_two_ledgers),
    "the record names the next ledger before the former is closed": PlantedBug(
        patch=_record_before_closing
    ),
    "a truncation deletes the newest ledger": PlantedBug(rules=DeletesTheNewestLedger()),
}
