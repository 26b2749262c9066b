"""Clients of a real BookKeeper, as of several processes."""

import signal
from itertools import count

from segmentstore.coordination.zookeeper import ZooKeeperStore
from tier1.bookkeeper.java_client import JavaClientSettings, JavaLedgerClient
from tier1.bookkeeper.local_ensemble import LEDGERS_PATH, LocalEnsemble
from tier1.bookkeeper.zookeeper import ZooKeeperMetadataStore

PASSWORD = b"of the tests"
PATIENT = JavaClientSettings(
    zookeeper_session_seconds=20.0,
    bookie_seconds_max=30.0,
    append_seconds_max=120.0,
    call_seconds_max=180.0,
)
"""For tests in which no bookie stands still: a disk that stalls for longer than the usual five seconds loses none. Logs
go on in another ledger then; who has one ledger alone cannot."""
_roots = count()


class Cluster:
    """Implements ValueWorld."""

    def __init__(self, ensemble: LocalEnsemble) -> None:
        self.ensemble = ensemble
        self.root = f"/tests/{next(_roots)}"
        self._opened: list[JavaLedgerClient | ZooKeeperMetadataStore | ZooKeeperStore] = []

    async def client(
        self, *, password: bytes = PASSWORD, settings: JavaClientSettings | None = None
    ) -> JavaLedgerClient:
        client = await JavaLedgerClient.connect(
            self.ensemble.servers, ledgers_path=LEDGERS_PATH, password=password, settings=settings
        )
        self._opened.append(client)
        return client

    async def store(self, *, session_seconds: float = 10.0) -> ZooKeeperMetadataStore:
        store = await ZooKeeperMetadataStore.connect(
            self.ensemble.servers, root=self.root, session_seconds=session_seconds
        )
        self._opened.append(store)
        return store

    async def session(self, *, session_seconds: float = 10.0) -> ZooKeeperStore:
        store = await ZooKeeperStore.connect_session(
            self.ensemble.servers, root=self.root, session_seconds=session_seconds
        )
        self._opened.append(store)
        return store

    async def close(self) -> None:
        while self._opened:
            await self._opened.pop().close()

    def stop_bookies(self) -> None:
        """All of them stand still."""
        for bookie in self.ensemble.bookies:
            self.ensemble.send(bookie, signal.SIGSTOP)

    def resume_bookies(self) -> None:
        for bookie in self.ensemble.bookies:
            self.ensemble.send(bookie, signal.SIGCONT)
