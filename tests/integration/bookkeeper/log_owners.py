"""Owners of one log on a real BookKeeper, each with clients of its own, as if it were another process."""

from dataclasses import dataclass
from random import Random

from segmentstore.contracts.durable_data_log import DurableDataLog
from tests.integration.bookkeeper.cluster import Cluster
from tier1.bookkeeper.java_client import JavaLedgerClient
from tier1.bookkeeper.log import BookKeeperDurableDataLog
from tier1.bookkeeper.settings import BookKeeperLogSettings
from tier1.bookkeeper.zookeeper import ZooKeeperMetadataStore

PATH = "/containers/0000"

SMALL = BookKeeperLogSettings(
    entry_bytes_max=128 * 1024,
    outstanding_bytes_max=4 << 20,
    ledger_bytes_max=256 * 1024,
    look_again_seconds=0.5,
)
"""Ledgers of a few entries, so that a test meets several."""


@dataclass(slots=True)
class Process:
    """What an owner reaches the cluster by."""

    ledgers: JavaLedgerClient
    metadata: ZooKeeperMetadataStore

    def log(
        self, *, settings: BookKeeperLogSettings = SMALL, owner: str = ""
    ) -> BookKeeperDurableDataLog:
        return BookKeeperDurableDataLog(
            PATH,
            ledgers=self.ledgers,
            metadata=self.metadata,
            random=Random(owner),
            settings=settings,
            owner=owner,
        )


async def started(cluster: Cluster) -> Process:
    return Process(await cluster.client(), await cluster.store())


class LogOwners:
    """Implements LogWorld: two processes take turns, and one that is killed is followed by another."""

    def __init__(self, cluster: Cluster, processes: list[Process]) -> None:
        self._cluster = cluster
        self._processes = processes
        self._turn = 0
        self._owners: dict[int, int] = {}

    @classmethod
    async def started(cls, cluster: Cluster) -> "LogOwners":
        return cls(cluster, [await started(cluster) for _ in range(2)])

    def log(self) -> BookKeeperDurableDataLog:
        place = self._turn % len(self._processes)
        self._turn += 1
        log = self._processes[place].log(owner=f"owner {self._turn}")
        self._owners[id(log)] = place
        return log

    def take_over(self) -> BookKeeperDurableDataLog:
        return self.log()

    async def kill(self, log: DurableDataLog) -> None:
        place = self._owners[id(log)]
        await self._processes[place].ledgers.close()
        await log.close()
        self._processes[place] = await started(self._cluster)

    def fill(self) -> None:
        """Bookies that are full are like bookies that stand still: they store nothing."""
        self._cluster.stop_bookies()

    def free(self) -> None:
        self._cluster.resume_bookies()
