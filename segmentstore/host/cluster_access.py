"""A look at a cluster for commands: ZooKeeper alone, without a Java virtual machine and without a data directory.

Bookies register themselves in ZooKeeper below the path of the ledgers; those that are full or read-only are counted
elsewhere, and are none that take writes.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

from segmentstore.coordination.coordination_store import CoordinationStore
from segmentstore.host.data_directory import DirectoryIdentity, LogPlace
from segmentstore.host.log_cluster import connect_coordination, connect_metadata, log_cluster
from segmentstore.host.setting_sources import ResolvedSettings
from segmentstore.host.settings import BOOKKEEPER_SCHEME, SettingsError
from segmentstore.host.store_record import StoreRecordError, find_store_record

_BOOKIES_PATH = "available"
_READ_ONLY = "readonly"


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """What a command about a cluster works with."""

    store: CoordinationStore
    """Values below the root of the store."""
    identity: DirectoryIdentity
    bookies_needed: int
    """By a ledger, as this process is set."""
    _bookies: CoordinationStore

    async def bookies(self) -> int:
        """How many take writes. Raises CoordinationUnavailableError."""
        names = await self._bookies.children(_BOOKIES_PATH)
        return len([name for name in names if name != _READ_ONLY])


def cluster_place(resolved: ResolvedSettings) -> LogPlace:
    """Where the cluster is, by the settings alone. Raises SettingsError if they do not say."""
    settings = resolved.settings
    if not settings.tier1.kind.startswith(BOOKKEEPER_SCHEME):
        raise SettingsError(
            [
                f"a cluster is named with --cluster bookkeeper://ZK1[:PORT],ZK2/LEDGERS, not {settings.tier1.kind!r}"
            ]
        )
    return LogPlace(settings.tier1.kind, settings.bookkeeper.root)


@asynccontextmanager
async def open_cluster_access(resolved: ResolvedSettings) -> AsyncIterator[ClusterAccess]:
    """Closed behind the caller. Raises SettingsError, StoreRecordError, CoordinationUnavailableError."""
    settings = resolved.settings.bookkeeper
    names = log_cluster(cluster_place(resolved), settings)
    async with AsyncExitStack() as stack:
        store = await connect_coordination(names, settings)
        stack.push_async_callback(store.close)
        bookies = await connect_coordination(replace(names, root=names.ledgers_path), settings)
        stack.push_async_callback(bookies.close)
        metadata = await connect_metadata(names, settings)
        stack.push_async_callback(metadata.close)
        identity = await find_store_record(metadata, names)
        if identity is None:
            raise StoreRecordError(
                "no node of this cluster was ever started: the first one begins the store, below the root that it is"
                f" given {names.facts}"
            )
        yield ClusterAccess(store, identity, settings.ensemble_count, bookies)
