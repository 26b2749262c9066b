"""The machine that runs the real node with its logs on BookKeeper: simulated bookies and a ZooKeeper elsewhere.

All else is as in `machine.py`. What breaks a disk's syncs there, breaks bookies and ZooKeeper here; a full disk is
bookies that are full; when the power fails, it fails for the bookies as well.
"""

from contextvars import Context
from dataclasses import replace
from random import Random

from segmentstore.contracts.durable_data_log import DurableDataLog
from tests.sim.loop import SimLoop
from tests.sim.machine import NodeMachine, Process
from tests.sim.node import Node
from tests.sim.node_settings import log_settings
from tests.sim.settings import Swarm
from tests.tier1.bookkeeper.simulated_ledgers import SimulatedBookies, SimulatedLedgerClient
from tests.tier1.bookkeeper.simulated_metadata import MemoryMetadataStore
from tests.tier1.bookkeeper.simulated_network import Network
from tier1.bookkeeper.ledgers import Quorum
from tier1.bookkeeper.log import BookKeeperDurableDataLog
from tier1.bookkeeper.settings import BookKeeperLogSettings, LedgerRules

_BOOKIES = 4
_TROUBLE_SECONDS_MAX = 20.0


class BookKeeperMachine(NodeMachine):
    """A NodeMachine whose processes log to a cluster that outlives them."""

    def __init__(self, loop: SimLoop, swarm: Swarm, *, rules: LedgerRules | None = None) -> None:
        super().__init__(loop, swarm)
        self._ledger_rules = rules
        self._cluster_random = Random(f"bookies of {swarm}")
        random = self._cluster_random
        self._network = Network(
            random,
            message_seconds=random.choice((0.0002, 0.001, 0.005)),
            timeout_seconds=2.0,
            lost_answer=random.choice((0.0, 0.02)),
            late=random.choice((0.0, 0.02)),
        )
        self.bookies = SimulatedBookies(
            _BOOKIES, network=self._network, sync_seconds=random.choice((0.0, 0.001, 0.01))
        )
        self.metadata = MemoryMetadataStore(self._network)
        self._log_settings = self._draw_log_settings(random)
        self._clients: dict[int, SimulatedLedgerClient] = {}
        self._ends_at = 0.0

    def _draw_log_settings(self, random: Random) -> BookKeeperLogSettings:
        files = log_settings(self._swarm.node)
        return BookKeeperLogSettings(
            quorum_with_few_bookies=Quorum(2, 2, 2) if random.random() < 0.5 else None,
            entry_bytes_max=files.entry_bytes_max,
            outstanding_bytes_max=files.outstanding_bytes_max,
            ledger_bytes_max=max(files.entry_bytes_max, random.choice((2000, 20_000))),
            ledger_age_seconds_max=random.choice((0.5, 100.0)),
            retry_seconds_first=0.05,
            retry_pause_seconds_max=1.0,
            retry_seconds_max=random.choice((5.0, 60.0)),
            look_again_seconds=random.choice((0.2, 2.0)),
            read_bytes_max=files.entry_bytes_max * random.choice((1, 10)),
        )

    def new_log(self, node: Node, process: Process, container_id: int) -> DurableDataLog:
        client = self._clients.setdefault(node.birth, self.bookies.client())
        return BookKeeperDurableDataLog(
            f"/containers/{container_id:04}",
            ledgers=client,
            metadata=self.metadata,
            random=process.random,
            settings=self._log_settings,
            owner=node.name,
            rules=self._ledger_rules,
        )

    def lose_power(self) -> None:
        super().lose_power()
        for bookie in self.bookies.bookies:
            self.bookies.kill(bookie.number)
            self._later(2.0 * self._cluster_random.random(), self.bookies.restart, bookie.number)

    # --- trouble ----------------------------------------------------------------------------------

    def break_something(self, kind: str, random: Random) -> str:
        match kind:
            case "failing_sync":
                return self._break_cluster(random)
            case "disk_full":
                self.bookies.fill()
                return f"bookies {self._until(random, self.bookies.free):.3f} s"
        return super().break_something(kind, random)

    def _break_cluster(self, random: Random) -> str:
        number = random.randrange(_BOOKIES)
        match random.choice(("kill", "kill", "hang", "metadata")):
            case "kill":
                self.bookies.kill(number)
                seconds = self._until(random, self.bookies.restart, number)
                return f"bookie {number} dead {seconds:.3f} s"
            case "hang":
                seconds = random.random() * _TROUBLE_SECONDS_MAX
                self.bookies.hang(number, seconds)
                return f"bookie {number} hangs {seconds:.3f} s"
        self._network.metadata_down = True
        return f"ZooKeeper gone {self._until(random, self._metadata_is_back):.3f} s"

    def _metadata_is_back(self) -> None:
        self._network.metadata_down = False

    def _until(self, random: Random, end: object, *arguments: object) -> float:
        seconds = float(0.05 * (_TROUBLE_SECONDS_MAX / 0.05) ** random.random())
        self._ends_at = max(self._ends_at, self._loop.time() + seconds)
        self._later(seconds, end, *arguments)
        return seconds

    def _later(self, seconds: float, call: object, *arguments: object) -> None:
        """In the world: it comes whoever dies meanwhile."""
        assert callable(call), call
        self._loop.call_later(seconds, call, *arguments, context=Context())

    def trouble_ends_at(self) -> float:
        return max(self._ends_at, super().trouble_ends_at())

    def settle(self) -> None:
        super().settle()
        self._metadata_is_back()
        self._network.lost_answer = self._network.late = 0.0
        self.bookies.free()
        for bookie in self.bookies.bookies:
            bookie.hung_until = 0.0
            self.bookies.restart(bookie.number)


def busy_ledgers(swarm: Swarm) -> Swarm:
    """Many appends in flight, small frames and frequent crashes; Tier 2 answers, and is far behind the log."""
    node = replace(swarm.node, frames_in_flight_max=8, frame_operations_max=2)
    work = replace(swarm.work, pipeline_max=10, think_seconds_mean=0.001)
    trouble = replace(swarm.trouble, event_seconds_mean=0.3, crash=1.0, pause=1.0, power_loss=1.0)
    return Swarm(node, work, trouble)
