"""Worlds for tests of the log on BookKeeper: simulated bookies, a metadata store, and processes that own the log."""

from dataclasses import dataclass, field
from random import Random

from segmentstore.contracts.durable_data_log import DurableDataLog
from tests.tier1.bookkeeper.simulated_ledgers import SimulatedBookies, SimulatedLedgerClient
from tests.tier1.bookkeeper.simulated_metadata import MemoryMetadataStore
from tests.tier1.bookkeeper.simulated_network import Network
from tier1.bookkeeper.log import BookKeeperDurableDataLog
from tier1.bookkeeper.settings import BookKeeperLogSettings, LedgerRules

PATH = "/segmentstore/containers/0000"

SMALL = BookKeeperLogSettings(
    entry_bytes_max=64 * 1024,
    outstanding_bytes_max=1 << 20,
    ledger_bytes_max=64 * 1024,
    ledger_age_seconds_max=5.0,
    retry_seconds_first=0.01,
    retry_pause_seconds_max=0.05,
    retry_seconds_max=30.0,
    look_again_seconds=0.05,
    read_bytes_max=100_000,
)
"""Ledgers of a few entries, and short pauses."""


@dataclass(slots=True)
class BookKeeperLogWorld:
    """One log on a cluster; every log object is of a process of its own."""

    settings: BookKeeperLogSettings = SMALL
    network: Network = field(default_factory=lambda: Network(Random(1)))
    sync_seconds: float = 0.0
    rules: LedgerRules | None = None
    path: str = PATH
    bookies: SimulatedBookies = field(init=False)
    metadata: MemoryMetadataStore = field(init=False)
    clients: dict[int, SimulatedLedgerClient] = field(default_factory=dict)
    processes: int = 0

    def __post_init__(self) -> None:
        self.bookies = SimulatedBookies(network=self.network, sync_seconds=self.sync_seconds)
        self.metadata = MemoryMetadataStore(self.network)

    def log(self) -> BookKeeperDurableDataLog:
        self.processes += 1
        client = self.bookies.client()
        log = BookKeeperDurableDataLog(
            self.path,
            ledgers=client,
            metadata=self.metadata,
            random=Random(self.processes),
            settings=self.settings,
            owner=f"process {self.processes}",
            rules=self.rules,
        )
        self.clients[id(log)] = client
        return log

    def take_over(self) -> BookKeeperDurableDataLog:
        return self.log()

    async def kill(self, log: DurableDataLog) -> None:
        self.clients[id(log)].kill()
        await log.close()  # so that its tasks end; no bookie hears of it any more

    def fill(self) -> None:
        self.bookies.fill()

    def free(self) -> None:
        self.bookies.free()
