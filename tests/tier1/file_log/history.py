"""What a test knows about a log: what was submitted, acknowledged and truncated; and the judgement of a recovery."""

import asyncio
from dataclasses import dataclass, field
from random import Random

from segmentstore.contracts.durable_data_log import DurableDataLog
from segmentstore.contracts.errors import LogFullError
from segmentstore.contracts.identifiers import LogAddress

Entries = list[tuple[LogAddress, bytes]]

IDLE_SECONDS = 0.03
"""Long enough for a mark in the settings of these tests."""


@dataclass(slots=True)
class History:
    """Payloads are unique: each begins with its number."""

    submitted: list[bytes] = field(default_factory=list)
    acknowledged: dict[LogAddress, bytes] = field(default_factory=dict)
    truncation_asked: int = 0
    truncation_done: int = 0
    served: Entries = field(default_factory=list)
    """What the latest recovery returned: no later one may contradict it (L6)."""

    def snapshot(self) -> "History":
        return History(
            list(self.submitted),
            dict(self.acknowledged),
            self.truncation_asked,
            self.truncation_done,
            list(self.served),
        )

    def payload(self, length: int, random: Random) -> bytes:
        payload = b"%08d" % len(self.submitted) + random.randbytes(max(0, length - 8))
        self.submitted.append(payload)
        return payload

    def submit(
        self, log: DurableDataLog, payload: bytes, *, internal: bool = False
    ) -> "asyncio.Future[LogAddress]":
        half = len(payload) // 2
        future = log.append([payload[:half], payload[half:]], internal=internal)
        future.add_done_callback(lambda done: self._on_done(done, payload))
        return future

    def _on_done(self, done: "asyncio.Future[LogAddress]", payload: bytes) -> None:
        if not done.cancelled() and done.exception() is None:
            self.acknowledged[done.result()] = payload

    async def truncate(self, log: DurableDataLog, up_to: LogAddress) -> None:
        self.truncation_asked = max(self.truncation_asked, up_to)
        await log.truncate(up_to)
        self.truncation_done = max(self.truncation_done, up_to)

    def judge(self, recovered: Entries) -> None:
        """Nothing acknowledged or served is missing or altered; nothing is there that nobody wrote."""
        addresses = [address for address, _ in recovered]
        assert addresses == sorted(set(addresses)), f"addresses out of order: {addresses}"
        found = dict(recovered)
        must = [*self.acknowledged.items(), *self.served]
        for address, payload in must:
            if address > self.truncation_asked:
                assert found.get(address) == payload, (
                    f"entry {address} was promised: {payload[:8]!r}, found {found.get(address, b'nothing')[:8]!r}; "
                    f"recovered {[(a, p[:8]) for a, p in recovered]}"
                )
        numbers = [int(payload[:8]) for payload in found.values()]
        assert numbers == sorted(set(numbers)), f"entries changed order: {numbers}"
        for number, payload in zip(numbers, found.values(), strict=True):
            assert self.submitted[number] == payload, f"entry {number} was altered"
        assert not addresses or addresses[0] > self.truncation_done, (
            f"entry {addresses[0]} was truncated up to {self.truncation_done}"
        )


async def work(log: DurableDataLog, history: History, random: Random, *, rounds: int) -> None:
    """Appends of all sizes, several in flight, with truncations beside them and idle times between."""
    own: list[LogAddress] = []
    for _ in range(rounds):
        futures = []
        for _ in range(random.choice((1, 1, 2, 5))):
            futures.append(history.submit(log, history.payload(_length(log, random), random)))
            if random.random() < 0.3:
                await asyncio.sleep(0)
        if random.random() < 0.3 and own:
            await history.truncate(log, random.choice(own[-4:]))
        for result in await asyncio.gather(*futures, return_exceptions=True):
            if isinstance(result, int):
                own.append(result)
            elif not isinstance(result, LogFullError):
                raise result
        if random.random() < 0.15:
            await asyncio.sleep(IDLE_SECONDS)


def _length(log: DurableDataLog, random: Random) -> int:
    largest = log.write_settings.entry_bytes_max
    return random.choice((8, 100, 3000, 4096 - 128, largest, random.randrange(8, largest)))
