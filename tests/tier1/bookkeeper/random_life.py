"""One log with many owners on a cluster in which everything breaks: a world of a seed, and the model that judges it.

Owners open the log, read it, append, roll over, truncate. They are killed, alone or with all bookies; they stand still
while others take the log over, wake up and go on. Bookies die, come back, hang, are full; one may be lost for ever.
ZooKeeper is gone for a while, loses requests and answers, and does late what it was asked. Then everything is well
again, and the last owner must find what was promised, go on, and get rid of everything that is not needed.

From the command line: `python -m tests.tier1.bookkeeper.random_life --seed N [--count M]`.
"""

import asyncio
import sys
from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from random import Random

from segmentstore.contracts.errors import DurableDataLogError, ErrorKind
from segmentstore.contracts.identifiers import LogAddress
from tests.sim.loop import SimLoop
from tests.sim.node import Node
from tests.sim.run import seed_parser, try_seeds
from tests.sim.simulation import Run, run_simulation
from tests.tier1.bookkeeper.history import Entries, History, LogBreachError, Owner
from tests.tier1.bookkeeper.simulated_ledgers import SimulatedBookies
from tests.tier1.bookkeeper.simulated_metadata import MemoryMetadataStore
from tests.tier1.bookkeeper.simulated_network import Network
from tier1.bookkeeper.ledgers import Quorum
from tier1.bookkeeper.log import BookKeeperDurableDataLog
from tier1.bookkeeper.retries import MAY_PASS
from tier1.bookkeeper.settings import BookKeeperLogSettings, LedgerRules
from tier1.bookkeeper.unrecorded_ledgers import delete_unrecorded_ledgers

PATH = "/log"
_CALM_SECONDS = 200.0


@dataclass(frozen=True, slots=True)
class LifeSettings:
    """What a seed decided beforehand."""

    log: BookKeeperLogSettings
    bookies: int
    owners: int
    rounds: int
    """Of appends of one owner."""
    entry_bytes_max: int
    message_seconds: float
    sync_seconds: float
    trouble_seconds_mean: float
    lost_request: float
    lost_answer: float
    late: float
    loses_a_bookie: bool
    blackout: float
    """Probability that an owner ends with all bookies at once."""


def draw_life(random: Random) -> LifeSettings:
    """The world of a seed."""
    bookies = random.choice((3, 4, 4, 5))
    spread = bookies >= 4 and random.random() < 0.2
    trouble = random.random() < 0.6
    return LifeSettings(
        log=BookKeeperLogSettings(
            quorum=Quorum(4, 3, 2) if spread else Quorum(3, 3, 2),
            quorum_with_few_bookies=Quorum(2, 2, 2) if random.random() < 0.5 else None,
            entry_bytes_max=2000,
            outstanding_bytes_max=100_000,
            ledger_bytes_max=random.choice((2000, 2000, 5000, 50_000)),
            ledger_age_seconds_max=random.choice((0.5, 3.0, 1000.0)),
            retry_seconds_first=0.02,
            retry_pause_seconds_max=random.choice((0.1, 1.0)),
            retry_seconds_max=random.choice((2.0, 20.0, 100.0)),
            look_again_seconds=random.choice((0.1, 1.0)),
            read_bytes_max=random.choice((1, 3000)),
            read_entries_max=random.choice((1, 3, 64)),
        ),
        bookies=bookies,
        owners=random.choice((3, 6, 10)),
        rounds=random.choice((3, 10, 25)),
        entry_bytes_max=random.choice((30, 300, 2000)),
        message_seconds=random.choice((0.0005, 0.005, 0.02)),
        sync_seconds=random.choice((0.0, 0.002, 0.02, 0.2)),
        trouble_seconds_mean=random.choice((0.05, 0.3, 1.0)) if trouble else 1000.0,
        lost_request=random.choice((0.0, 0.0, 0.05)),
        lost_answer=random.choice((0.0, 0.0, 0.1)),
        late=random.choice((0.0, 0.0, 0.05)),
        loses_a_bookie=random.random() < 0.5,
        blackout=random.choice((0.0, 0.1, 0.3)),
    )


class Life:
    """The log, its owners and the cluster of one seed."""

    def __init__(self, loop: SimLoop, settings: LifeSettings, rules: LedgerRules | None) -> None:
        self._loop = loop
        self._random = loop.random
        self._settings = settings
        self._rules = rules
        self._network = Network(
            loop.random,
            message_seconds=settings.message_seconds,
            lost_request=settings.lost_request,
            lost_answer=settings.lost_answer,
            late=settings.late,
        )
        self.bookies = SimulatedBookies(
            settings.bookies, network=self._network, sync_seconds=settings.sync_seconds
        )
        self.metadata = MemoryMetadataStore(self._network)
        self.history = History()
        self._nodes: list[Node] = []
        self._is_lost = False
        self.acknowledged = 0

    async def run(self) -> int:
        """How many appends were acknowledged."""
        trouble = self._loop.create_task(self._make_trouble())
        for number in range(self._settings.owners):
            await self._boot(number)
            if trouble.done():
                trouble.result()
        trouble.cancel()
        self._settle()
        await asyncio.sleep(2 * self._network.late_seconds_max)
        self._loop.crash(self._nodes[-1])
        await self._last_owner()
        return self.acknowledged

    # --- owners ----------------------------------------------------------------------------------

    async def _boot(self, number: int) -> None:
        """A new process opens the log; what becomes of the one before it, chance decides."""
        random = self._random
        if self._nodes:
            before = self._nodes[-1]
            fate = random.random()
            if random.random() < self._settings.blackout:
                self._loop.crash(before)
                for bookie in self.bookies.bookies:
                    self.bookies.kill(bookie.number)
                    self._loop.call_later(random.random(), self.bookies.restart, bookie.number)
            elif fate < 0.4:
                self._loop.crash(before)
            elif fate < 0.7:
                self._loop.pause(before)
                self._loop.call_later(random.expovariate(1), lambda: self._loop.resume(before))
        self._nodes.append(self._loop.start(f"owner{number}", self._own(f"owner{number}")))
        mean = random.choice((0.05, 0.5, 3.0))
        await asyncio.sleep(random.expovariate(1 / mean))

    def _new_log(self, name: str) -> BookKeeperDurableDataLog:
        return BookKeeperDurableDataLog(
            PATH,
            ledgers=self.bookies.client(),
            metadata=self.metadata,
            random=Random(self._random.getrandbits(64)),
            settings=self._settings.log,
            owner=name,
            rules=self._rules,
        )

    async def _own(self, name: str) -> None:
        """Open, read, append; again after a failure that may pass, as another owner."""
        for attempt in range(3):
            owner = self.history.owner(f"{name}.{attempt}")
            log = self._new_log(owner.name)
            try:
                await self._open_and_read(log, owner)
                await self._work(log, owner, self._settings.rounds)
                log.check()
            except DurableDataLogError as error:
                self._loop.trace(owner.name, "ended", type(error).__name__, error)
                self._judge_end(owner, error)
                if error.kind is ErrorKind.FENCED:
                    return
            finally:
                await log.close()

    def _judge_end(self, owner: Owner, error: DurableDataLogError) -> None:
        if error.kind is ErrorKind.CORRUPT:
            raise LogBreachError(f"{owner.name} found damage: {error}") from error
        if error.kind is ErrorKind.FENCED and len(self.history.owners) == 1:
            raise LogBreachError(f"{owner.name} was fenced by no one: {error}") from error

    async def _open_and_read(self, log: BookKeeperDurableDataLog, owner: Owner) -> None:
        self.history.opened(owner, await log.initialize())
        self._loop.trace(owner.name, "opened", owner.epoch)
        entries: Entries = []
        behind = log.record.truncated_up_to
        async with aclosing(log.read()) as found:
            async for entry in found:
                entries.append((entry.address, bytes(entry.payload)))
        self.history.served(owner, entries, behind=behind)
        self._loop.trace(owner.name, "read", len(entries))

    async def _work(self, log: BookKeeperDurableDataLog, owner: Owner, rounds: int) -> None:
        random = self._random
        known = [address for address, _ in owner.served or []]
        for _ in range(rounds):
            futures = []
            for _ in range(random.choice((1, 2, 5, 20))):
                length = random.randint(1, self._settings.entry_bytes_max)
                payload = self.history.payload(owner, length)
                half = len(payload) // 2
                future = log.append([payload[:half], payload[half:]])
                future.add_done_callback(
                    lambda done, payload=payload: self._on_done(owner, done, payload)  # type: ignore[misc]  # a default binds it
                )
                futures.append(future)
                if random.random() < 0.2:
                    await asyncio.sleep(0)
            if known and random.random() < 0.3:
                await self._truncate(log, random.choice(known[-10:]))
            for result in await asyncio.gather(*futures, return_exceptions=True):
                if isinstance(result, BaseException):
                    raise result
                known.append(result)
            if random.random() < 0.3:
                await asyncio.sleep(random.expovariate(2))

    async def _truncate(self, log: BookKeeperDurableDataLog, up_to: LogAddress) -> None:
        self.history.truncation_asked = max(self.history.truncation_asked, up_to)
        await log.truncate(up_to)

    def _on_done(self, owner: Owner, done: "asyncio.Future[LogAddress]", payload: bytes) -> None:
        if not done.cancelled() and done.exception() is None:
            self.acknowledged += 1
            self.history.acknowledged(owner, done.result(), payload)

    # --- trouble ---------------------------------------------------------------------------------

    async def _make_trouble(self) -> None:
        random = self._random
        while True:
            await asyncio.sleep(random.expovariate(1 / self._settings.trouble_seconds_mean))
            number = random.randrange(len(self.bookies.bookies))
            lasts = random.choice((0.1, 1.0, 10.0)) * random.random()
            what = random.choice(
                ("kill", "kill", "hang", "stall", "full", "metadata", "lose", "sweep")
            )
            self._loop.trace("trouble", what, number, f"{lasts:.3f}")
            match what:
                case "kill":
                    self.bookies.kill(number)
                    self._loop.call_later(lasts, self.bookies.restart, number)
                case "hang":
                    self.bookies.hang(number, lasts)
                case "stall":
                    for bookie in self.bookies.bookies:
                        self.bookies.hang(bookie.number, lasts)
                case "full":
                    self.bookies.bookies[number].is_read_only = True
                    self._loop.call_later(lasts, self._free, number)
                case "metadata":
                    self._network.metadata_down = True
                    self._loop.call_later(lasts, self._metadata_is_back)
                case "sweep":
                    with suppress(*MAY_PASS):
                        await self._sweep()
                case "lose":
                    if self._settings.loses_a_bookie and not self._is_lost:
                        self._is_lost = True
                        self.bookies.lose(number)
                        self.bookies.add()

    async def _sweep(self) -> None:
        """As an operator does it, whoever owns the log at this moment."""
        unrecorded = delete_unrecorded_ledgers(
            PATH, ledgers=self.bookies.client(), metadata=self.metadata, rules=self._rules
        )
        async with aclosing(unrecorded) as found:
            async for ledger in found:
                if ledger.entries:
                    raise LogBreachError(f"a ledger has entries and is in no record: {ledger}")

    def _free(self, number: int) -> None:
        self.bookies.bookies[number].is_read_only = False

    def _metadata_is_back(self) -> None:
        self._network.metadata_down = False

    def _settle(self) -> None:
        self._loop.trace("calm")
        self._network.metadata_down = False
        self._network.lost_request = self._network.lost_answer = self._network.late = 0.0
        for bookie in self.bookies.bookies:
            bookie.is_read_only = False
            bookie.hung_until = 0.0
            self.bookies.restart(bookie.number)
        for node in self._nodes[:-1]:
            self._loop.crash(node)

    # --- calm ------------------------------------------------------------------------------------

    async def _last_owner(self) -> None:
        """It opens, finds everything, goes on, truncates; the next finds what is left, and nothing else is kept."""
        for number in range(2):
            owner = self.history.owner(f"last{number}")
            log = self._new_log(owner.name)
            async with asyncio.timeout(_CALM_SECONDS):
                await self._open_and_read(log, owner)
                if number == 0:
                    await self._work(log, owner, 5)
                    newest = await log.append([self.history.payload(owner, 50)])
                    await self._truncate(log, newest)
                else:
                    await log.append([self.history.payload(owner, 50)])
                    found = [address for address, _ in owner.served or []]
                    if any(address <= self.history.truncation_asked for address in found):
                        raise LogBreachError(f"a truncation was forgotten: {found}")
                    await asyncio.sleep(10 + 10 * self._settings.log.look_again_seconds)
                    await self._sweep()
                    self._require_tidy(log)
                log.check()
                await log.close()

    def _require_tidy(self, log: BookKeeperDurableDataLog) -> None:
        recorded = [ledger.ledger_id for ledger in log.record.ledgers]
        for ledger_id, ledger in self.bookies.ledgers.items():
            if ledger_id not in recorded:
                raise LogBreachError(f"a ledger is kept that nothing needs: {ledger}")
        if len(recorded) > 2:
            raise LogBreachError(f"ledgers are kept behind a truncation: {log.record}")


def live(
    seed: int,
    *,
    rules: LedgerRules | None = None,
    world: Callable[[LifeSettings], LifeSettings] | None = None,
    verbose: bool = False,
) -> Run[int]:
    """One seed. Raises LogBreachError for a broken promise."""

    async def main(loop: SimLoop) -> int:
        settings = draw_life(loop.random)
        return await Life(loop, world(settings) if world else settings, rules).run()

    return run_simulation(seed, main, verbose=verbose)


def main() -> int:
    """The command line."""
    given = seed_parser("python -m tests.tier1.bookkeeper.random_life", __doc__).parse_args()
    replay = "python -m tests.tier1.bookkeeper.random_life --verbose --seed "
    return try_seeds(given, lambda seed: live(seed, verbose=given.verbose), replay)


if __name__ == "__main__":
    sys.exit(main())
