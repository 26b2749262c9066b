"""Containers as their host sees them: life cycle, health, and where assignments come from."""

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import Enum
from typing import Final, NewType, Protocol

from segmentstore.contracts.identifiers import ContainerId
from segmentstore.contracts.segments import SegmentApi
from segmentstore.contracts.storage import SnapshotInfo
from segmentstore.contracts.tables import TableApi

HostId = NewType("HostId", str)


class ContainerState(Enum):
    """States of one container object; they go forward only."""

    CREATED = "created"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ContainerHealth:
    """What `/health` shows of one container."""

    container_id: ContainerId
    state: ContainerState
    ready: bool
    """Takes appends now."""
    epoch: int
    throttle: str
    """Why writers are slowed or stopped ("" if they are not): cache_full, tier1_full, tier2_unavailable, ..."""
    throttle_delay_seconds: float
    storage_state: str
    """"ok", or what is wrong with Tier 2 in a word: unavailable, full, unclaimed, throttled, clock_skew, ..."""
    active_segments: int
    unflushed_bytes: int
    cause: str
    """Why it failed, in a sentence; "" if it did not."""
    storage_cause: str = ""
    """What Tier 2 answered last, in a sentence; "" if it is well."""
    complaint: str = ""
    """What a person should know though the container works, in a sentence; "" if there is nothing."""


class ContainerListener(Protocol):
    """Called with no await in between: it may take note, and wake a task."""

    def __call__(self, container_id: ContainerId, *, runs: bool) -> None: ...


BACKUP_HOLD_SECONDS_MAX: Final = 20.0
"""What a container holds for a backup goes on by itself behind that: the maker is gone, or Tier 2 stands still. All
containers are to be held within half of it, and each takes its snapshot within half of it from then on."""


class BackupOwner(Protocol):
    """The backups of one running container: snapshots that are kept in Tier 2. Calls may run beside everything else.

    A backup of several containers that serve is made in steps, each of all of them: flush, hold, make, ask whether
    all are still held, prove, let go.
    """

    async def flush(self) -> None:
        """So that the flush of `make` is short. Raises ContainerNotFoundError without a Tier 2, StorageError."""

    async def hold(self, hold_id: str, tables: Collection[str]) -> None:
        """No merge, and no update of a table of these names, is accepted until `let_go`: they wait.

        Those that were submitted before are durable when it returns. Raises BackupInterruptedError while another hold
        is on, or when this one was let go before it came.
        """

    def is_held(self, hold_id: str) -> bool:
        """Whether the hold has been on since `hold`."""

    def let_go(self, hold_id: str) -> None:
        """What waits goes on."""

    async def make(self, name: str, *, hold_id: str = "") -> SnapshotInfo:
        """Everything acknowledged before the call is in it. A name that is taken gives what is there already.

        What is made under a hold is not proved: it counts behind `prove`. Without one it counts at once.

        Raises InvalidRequestError, ContainerNotFoundError without a Tier 2, StorageError; BackupInterruptedError if
        the hold is not on, or was for too long.
        """

    async def prove(self, name: str, *, hold_id: str) -> None:
        """What was made under the hold is of one moment with what the other containers made.

        Raises BackupInterruptedError if it is not here (any more), StorageError.
        """

    async def drop(self, name: str) -> bool:
        """False if there is none of that name. Raises StorageError."""

    async def list(self) -> Sequence[SnapshotInfo]:
        """By name."""


class SegmentContainer(SegmentApi, TableApi, Protocol):
    """One failure domain. start() recovers, run() works until cancelled or until one part fails, close() ends."""

    @property
    def container_id(self) -> ContainerId: ...

    async def start(self) -> None:
        """Fence, recover, then accept. An error leaves nothing running."""

    async def run(self) -> None:
        """Runs until cancelled, or raises what ended the container; then it has stopped whole (G2)."""

    async def shorten_log(self) -> None:
        """Returns when its next owner would replay only what was logged since the call. It serves all the while.

        Before a close that is not urgent: how long it is away then hangs on it. Raises SegmentStoreError, which costs
        no more than that.
        """

    async def close(self) -> None:
        """Stop in order: refuse new work, finish what is in flight, close the log. Idempotent."""

    @property
    def backups(self) -> BackupOwner:
        """Raises ContainerNotFoundError unless it runs."""

    def health(self) -> ContainerHealth: ...

    def settle_clocks(self) -> None:
        """A person says that the present time is right: what expires by age goes on."""

    def metrics(self) -> dict[str, float]:
        """Gauges and counters by snake_case name with the unit last, e.g. `append_bytes_total`."""


@dataclass(frozen=True, slots=True)
class HostAssignment:
    """Which containers one host has to run, as of a version that only grows."""

    version: int
    since: Mapping[ContainerId, int]
    """Of each container, the version that gave it to this host. A container given to another host in between, or
    to none, has another one, also for a host that never saw the versions in between (K3)."""

    @property
    def containers(self) -> AbstractSet[ContainerId]:
        """What the host has to run."""
        return self.since.keys()

    def keeps(self, container_id: ContainerId, *, since: int) -> bool:
        """Whether a container that was started for `since` is to go on."""
        return self.since.get(container_id) == since


@dataclass(frozen=True, slots=True)
class ContainerFailure:
    """A container that ended by itself, reported once."""

    container_id: ContainerId
    since: int
    """The version of the assignment that had given the container to the host."""
    cause: BaseException


class AssignmentSource(Protocol):
    """The controller as a host sees it. K1 versions only grow. K2 per version a container has at most one host.
    K3 a container's `since` is the version that gave it to its host, and stays for as long as it is that host's."""

    def watch(self, host_id: HostId) -> AsyncGenerator[HostAssignment, None]:
        """The present assignment, then every later one. Hold it in `aclosing`."""

    async def report(
        self,
        host_id: HostId,
        *,
        version: int,
        held: Mapping[ContainerId, int],
        running: Collection[ContainerId],
        failed: Collection[ContainerFailure] = (),
    ) -> None:
        """What runs now and what failed since the last report. A failed container is not restarted
        before a later version assigns it again.

        `version`: of the assignment that the host follows, 0 before the first. `held`: every container that has a task
        in the host, from before its start until its close() has returned, and since when: one that is neither here nor
        in the assignment of this version has gone from the host.
        """
