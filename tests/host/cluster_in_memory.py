"""A BookKeeper cluster in memory, in the place of the one that the settings name, for services in this process."""

from dataclasses import dataclass, field

import pytest

from segmentstore.host import log_cluster
from segmentstore.host.settings import BookKeeperSettings
from segmentstore.host.store_record import LogCluster
from tests.tier1.bookkeeper.simulated_ledgers import SimulatedBookies
from tests.tier1.bookkeeper.simulated_metadata import MemoryMetadataStore
from tier1.bookkeeper.ledgers import LedgerClient
from tier1.bookkeeper.metadata_store import MetadataStore, MetadataUnavailableError

PLACE = "bookkeeper://zk1/ledgers"


@dataclass
class ClusterInMemory:
    """Bookies, and a metadata store for each root; they outlive the services."""

    bookies: SimulatedBookies = field(default_factory=SimulatedBookies)
    roots: dict[str, MemoryMetadataStore] = field(default_factory=dict)
    is_away: bool = False

    @property
    def metadata(self) -> MemoryMetadataStore:
        """Below the root that the settings name if nobody says another."""
        return self.root("/segmentstore")

    def root(self, name: str) -> MemoryMetadataStore:
        return self.roots.setdefault(name, MemoryMetadataStore())

    def stand_in(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """For every cluster that a service or a tool of this process connects to from now on."""

        async def metadata(names: LogCluster, settings: BookKeeperSettings) -> MetadataStore:
            if self.is_away:
                raise MetadataUnavailableError(f"no ZooKeeper answers servers={names.servers}")
            return self.root(names.root)

        async def ledgers(names: LogCluster, settings: BookKeeperSettings) -> LedgerClient:
            return self.bookies.client()

        monkeypatch.setattr(log_cluster, "connect_metadata", metadata)
        monkeypatch.setattr(log_cluster, "connect_ledgers", ledgers)
