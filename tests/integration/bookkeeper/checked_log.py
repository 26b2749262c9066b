"""Owners that append to one log all the time, and the proof that nothing of it was lost, repeated or moved.

Each entry says who sent it, and as which of its own. An owner knows what was acknowledged, and where. At the end the
log is read: each acknowledged entry is at its address, once; the entries of an owner are in the order in which it sent
them; nothing is there that was not sent.
"""

import asyncio
import struct
from dataclasses import dataclass, field

from segmentstore.contracts.durable_data_log import DurableDataLog
from segmentstore.contracts.errors import DurableDataLogError, LogNotPrimaryError
from segmentstore.contracts.identifiers import LogAddress
from tests.contracts.durable_data_log_suite import entries

_NAME = struct.Struct("<II")
_SECONDS_MAX = 300.0


@dataclass(slots=True)
class CheckedOwner:
    """Appends with so many on their way until it is told to stop, or has lost the log."""

    log: DurableDataLog
    number: int
    outstanding: int = 16
    entry_bytes: int = 2000
    sent: int = 0
    acknowledged: dict[int, LogAddress] = field(default_factory=dict)
    longest_wait_seconds: float = 0.0
    failures: list[DurableDataLogError] = field(default_factory=list)
    is_stopping: bool = False

    async def run(self) -> None:
        await asyncio.gather(*(self._append_in_turn() for _ in range(self.outstanding)))

    async def _append_in_turn(self) -> None:
        loop = asyncio.get_running_loop()
        while not self.is_stopping:
            number, began = self.sent, loop.time()
            self.sent += 1
            payload = _NAME.pack(self.number, number).ljust(self.entry_bytes, b".")
            try:
                self.acknowledged[number] = await self.log.append([payload])
            except DurableDataLogError as error:
                self.failures.append(error)
                return
            self.longest_wait_seconds = max(self.longest_wait_seconds, loop.time() - began)

    async def until_more(self, count: int) -> None:
        """Until so many more are acknowledged than now."""
        goal = len(self.acknowledged) + count
        async with asyncio.timeout(_SECONDS_MAX):
            while len(self.acknowledged) < goal:
                assert not self.failures, self.failures[0]
                await asyncio.sleep(0.01)

    @property
    def has_lost_the_log(self) -> bool:
        return any(isinstance(error, LogNotPrimaryError) for error in self.failures)

    def check(self) -> None:
        """Nothing but another owner made an append fail."""
        others = [error for error in self.failures if not isinstance(error, LogNotPrimaryError)]
        assert not others, others[0]


async def check_log(log: DurableDataLog, owners: list[CheckedOwner]) -> int:
    """How many entries an opened log has. O(entries)."""
    found = await entries(log)
    places: dict[tuple[int, int], LogAddress] = {}
    last_address = LogAddress(0)
    last_of: dict[int, int] = {}
    for address, payload in found:
        owner, number = _NAME.unpack_from(payload)
        assert payload == _NAME.pack(owner, number).ljust(owners[owner].entry_bytes, b".")
        assert address > last_address, f"addresses do not grow {last_address} {address}"
        assert (owner, number) not in places, f"repeated owner={owner} entry={number}"
        assert number < owners[owner].sent, f"never sent owner={owner} entry={number}"
        assert number == last_of.get(owner, -1) + 1, (
            f"out of order owner={owner} entry={number} behind={last_of.get(owner)}"
        )
        assert owner >= max(last_of, default=0), f"owner {owner} wrote behind owner {max(last_of)}"
        places[owner, number] = last_address = address
        last_of[owner] = number
    for owner in owners:
        for number, address in owner.acknowledged.items():
            assert places.get((owner.number, number)) == address, (
                f"lost owner={owner.number} entry={number} address={address}"
            )
    return len(found)
