"""What `/health` says: 200 while every expected container takes appends, 503 otherwise, and why."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from segmentstore.contracts.containers import ContainerHealth


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """A snapshot of the node, made by its host."""

    containers: Sequence[ContainerHealth]
    containers_expected: int
    """How many containers should run here."""
    complaints: Sequence[str] = field(default_factory=tuple)
    """What is wrong with the node as a whole, in sentences; they do not make it less ready."""

    @property
    def ready(self) -> bool:
        """Every container that should be here takes appends."""
        ready = sum(1 for container in self.containers if container.ready)
        return ready >= self.containers_expected


def health_as_json(health: NodeHealth, complaints: Sequence[str]) -> dict[str, object]:
    """The body of `/health`; `complaints` are those of the HTTP room itself."""
    slowed = [container.throttle for container in health.containers if container.throttle]
    storage = [
        (container.storage_state, container.storage_cause)
        for container in health.containers
        if container.storage_state != "ok"
    ]
    storage_state, storage_cause = storage[0] if storage else ("ok", "")
    return {
        "ready": health.ready,
        "containers_expected": health.containers_expected,
        "throttle": slowed[0] if slowed else "",
        "storage_state": storage_state,
        "storage_cause": storage_cause,
        "complaints": [*health.complaints, *complaints],
        "containers": [container_as_json(container) for container in health.containers],
    }


def container_as_json(container: ContainerHealth) -> dict[str, object]:
    """One container of `/health`."""
    return {
        "container": container.container_id,
        "state": container.state.value,
        "ready": container.ready,
        "epoch": container.epoch,
        "throttle": container.throttle,
        "throttle_delay_seconds": container.throttle_delay_seconds,
        "storage_state": container.storage_state,
        "storage_cause": container.storage_cause,
        "active_segments": container.active_segments,
        "unflushed_bytes": container.unflushed_bytes,
        "cause": container.cause,
    }
