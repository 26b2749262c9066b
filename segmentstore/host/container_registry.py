"""What runs on this host: from a container id to the container, or to the reason why it is not there.

Invariants:

- `get` gives only containers that have recovered and have not ended. `reads_of` gives for one that stays down what Tier
  2 has of it, which is for readers alone.
- A container id is in one of three states: absent (with a reason), starting, running. Only one that is absent has
  something in its place for readers. One that is absent and expected starts here, unless it is kept down.
- The registry decides nothing and starts nothing; the container manager does.
"""

from collections.abc import Collection, Mapping, Sequence
from math import inf

from segmentstore.contracts.containers import (
    ContainerHealth,
    ContainerListener,
    ContainerState,
    SegmentContainer,
)
from segmentstore.contracts.errors import ContainerNotFoundError
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.contracts.segments import SegmentReads
from segmentstore.runtime.waiting import Change

NOT_ASSIGNED = "not assigned to this host"


class ContainerRegistry:
    """The containers of one host, by id."""

    def __init__(self, *, container_count: int) -> None:
        self._container_count = container_count
        self._running: dict[ContainerId, SegmentContainer] = {}
        self._starting: dict[ContainerId, SegmentContainer] = {}
        self._reasons: dict[ContainerId, str] = {}
        self._failed: dict[ContainerId, ContainerHealth] = {}
        self._published: dict[ContainerId, SegmentReads] = {}
        self._listeners: list[ContainerListener] = []
        self._expected: set[ContainerId] = set()
        """They start here, and again when they have failed, unless another process takes them: those are kept down."""
        self._recovery_ended = Change()

    @property
    def container_count(self) -> int:
        return self._container_count

    def get(self, container_id: ContainerId) -> SegmentContainer:
        """The running container. Raises ContainerNotFoundError, which says why it is not here."""
        container = self._running.get(container_id)
        if container is None:
            raise ContainerNotFoundError(
                container_id, self._reasons.get(container_id, NOT_ASSIGNED)
            )
        return container

    def reads_of(self, container_id: ContainerId) -> SegmentReads:
        """The running container, or what is read in the place of one that stays down. Raises ContainerNotFoundError."""
        container = self._running.get(container_id) or self._published.get(container_id)
        return self.get(container_id) if container is None else container

    def serves(self, container_id: ContainerId) -> bool:
        """Whether what this process says of the container will not be otherwise in a moment: it runs, or what Tier 2
        has of it is read."""
        return container_id in self._running or container_id in self._published

    def is_to_come(self, container_id: ContainerId) -> bool:
        """Whether it does not run, and starts or is expected to."""
        return container_id not in self._running and (
            container_id in self._starting or container_id in self._expected
        )

    async def wait_while_starting(self, container_id: ContainerId) -> None:
        """Until it runs, or will not soon; returns at once if it neither starts nor is expected to."""
        while self.is_to_come(container_id):
            # Without an end of the wait: that of one would wake all.
            await self._recovery_ended.wait(inf)

    def running(self) -> Sequence[ContainerId]:
        """Ids of the running containers, ascending."""
        return sorted(self._running)

    def all_running(self) -> Sequence[SegmentContainer]:
        """Every container of the store, by id. Raises ContainerNotFoundError if one of them does not run here."""
        return [self.get(ContainerId(number)) for number in range(self._container_count)]

    def expect(self, containers: Collection[ContainerId]) -> None:
        """They start here as long as this process is there, unless they are kept down."""
        self._expected.update(containers)

    def set_starting(self, container: SegmentContainer) -> None:
        """The container is recovering."""
        container_id = container.container_id
        assert container_id not in self._running, f"starts while it runs container={container_id}"
        assert container_id not in self._starting, f"starts twice container={container_id}"
        self._starting[container_id] = container
        self._failed.pop(container_id, None)
        self._published.pop(container_id, None)
        self._reasons[container_id] = "recovering"

    def set_running(self, container: SegmentContainer) -> None:
        """The container has recovered and takes requests."""
        container_id = container.container_id
        started = self._starting.pop(container_id, None)
        assert started is container, f"runs without having started container={container_id}"
        self._running[container_id] = container
        del self._reasons[container_id]
        self._recovery_ended.tell()
        self._notify(container_id, runs=True)

    def watch(self, tell: ContainerListener) -> None:
        """Have it called whenever a container takes requests, and when it takes none any more."""
        self._listeners.append(tell)

    def set_absent(self, container: SegmentContainer, *, reason: str, failed: bool) -> None:
        """The container is about to end, or has ended; requests are answered with the reason."""
        container_id = container.container_id
        if self._starting.pop(container_id, None) is not None:
            self._recovery_ended.tell()
        ran = self._running.pop(container_id, None)
        self._reasons[container_id] = reason
        if failed:
            self._failed[container_id] = container.health()
        if ran is not None:
            self._notify(container_id, runs=False)

    def set_kept_down(
        self, container_id: ContainerId, *, reason: str, published: SegmentReads | None
    ) -> None:
        """The container has failed and is not started again; `published` answers readers in its place, if anything."""
        assert container_id not in self._running, f"it runs container={container_id}"
        assert container_id not in self._starting, f"it starts container={container_id}"
        self._reasons[container_id] = reason
        self._expected.discard(container_id)
        self._recovery_ended.tell()
        if published is not None:
            self._published[container_id] = published

    def health(self) -> Sequence[ContainerHealth]:
        """One entry for every container of the store, by id."""
        return [self._health_of(ContainerId(number)) for number in range(self._container_count)]

    def complaints(self) -> Sequence[str]:
        """What the running containers say though they work; what several say the same way, once."""
        said = [self._running[container_id].health().complaint for container_id in self.running()]
        return [complaint for complaint in dict.fromkeys(said) if complaint]

    def settle_clocks(self) -> None:
        """A person says that the present time is right."""
        for container in self._running.values():
            container.settle_clocks()

    def metrics(self) -> Mapping[int, Mapping[str, float]]:
        """Metrics of the running containers, by id."""
        return {
            container_id: self._running[container_id].metrics() for container_id in self.running()
        }

    def check(self) -> None:
        """O(number of containers)."""
        both = [container_id for container_id in self._running if container_id in self._starting]
        assert not both, f"starting and running at once containers={both}"
        replaced = [c for c in self._published if c in self._running or c in self._starting]
        assert not replaced, f"what Tier 2 has is read beside the container containers={replaced}"
        for container_id, container in [*self._running.items(), *self._starting.items()]:
            assert container.container_id == container_id, (
                f"filed under a wrong id id={container_id} container={container.container_id}"
            )
            assert 0 <= container_id < self._container_count, (
                f"no such container id={container_id} count={self._container_count}"
            )

    def _notify(self, container_id: ContainerId, *, runs: bool) -> None:
        for tell in self._listeners:
            tell(container_id, runs=runs)

    def _health_of(self, container_id: ContainerId) -> ContainerHealth:
        present = self._running.get(container_id) or self._starting.get(container_id)
        if present is not None:
            return present.health()
        if container_id in self._failed:
            return self._failed[container_id]
        return ContainerHealth(
            container_id=container_id,
            state=ContainerState.STOPPED,
            ready=False,
            epoch=0,
            throttle="",
            throttle_delay_seconds=0.0,
            storage_state="ok",
            active_segments=0,
            unflushed_bytes=0,
            cause=self._reasons.get(container_id, NOT_ASSIGNED),
        )
