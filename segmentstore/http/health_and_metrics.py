"""`/health`, `/metrics`, and the counts of requests that `/metrics` polls.

`/health` says 200 while every expected container runs, 503 otherwise. Whatever else is wrong (a full log, Tier 2 that
does not answer, damage, clocks) is in the body, also of a 200: nothing of it would be mended by a restart.

`/metrics` is in the Prometheus text format, made from snapshots at the moment it is asked for:

    segmentstore_container_<name>{container="n"}       every number of SegmentContainer.metrics()
    segmentstore_http_requests_total{verb,status}
    segmentstore_http_request_duration_seconds{verb}   histogram
    segmentstore_http_<name>                           every other number of the HTTP server
    segmentstore_<name>                                numbers of the process's other servers

A name that ends in `_total` is a counter, every other one a gauge. Nothing else in this project imports the exporter.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from segmentstore.contracts.containers import ContainerHealth
from segmentstore.runtime.latency_histogram import LatencyHistogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LATENCY_BOUNDS_SECONDS = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1,
    2.5,
    10,
)

ContainerMetrics = Mapping[int, Mapping[str, float]]
"""Per container id, what SegmentContainer.metrics() gives."""


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """A snapshot of the node, made by its host."""

    containers: Sequence[ContainerHealth]
    containers_expected: int
    """How many containers should run here."""
    complaints: Sequence[str] = field(default_factory=tuple)
    """What is wrong with the node as a whole, in sentences; they do not make it less ready."""

    not_compiled: Sequence[str] = ()
    """Native pieces whose twins in Python serve."""

    @property
    def ready(self) -> bool:
        """Every container that should be here runs, be its log full or its writers slowed down."""
        ready = sum(1 for container in self.containers if container.ready)
        return ready >= self.containers_expected


def health_as_json(health: NodeHealth, complaints: Sequence[str]) -> dict[str, object]:
    """The body of `/health`; `complaints` are those of the HTTP server itself."""
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
        "not_compiled": list(health.not_compiled),
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


class RequestStatistics:
    """Requests by verb and status, durations by verb, requests under way. Verbs and statuses are few and ours."""

    def __init__(self) -> None:
        self.requests: dict[tuple[str, int], int] = {}
        self.latencies: dict[str, LatencyHistogram] = {}
        self.in_flight = 0

    def finished(self, verb: str, status: int, seconds: float) -> None:
        """One request was answered. Waits of long polls are part of their duration."""
        key = (verb, status)
        self.requests[key] = self.requests.get(key, 0) + 1
        histogram = self.latencies.get(verb)
        if histogram is None:
            histogram = self.latencies[verb] = LatencyHistogram(LATENCY_BOUNDS_SECONDS)
        histogram.record(seconds)


class MetricsExposition:
    """Polls snapshots and writes them down."""

    def __init__(
        self,
        *,
        containers: Callable[[], ContainerMetrics],
        requests: RequestStatistics,
        gauges: Callable[[], Mapping[str, float]],
        node: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        self._containers = containers
        self._requests = requests
        self._gauges = gauges
        self._node = node
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_MetricsCollector(self))

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def families(self) -> Iterator[Metric]:
        """Everything there is, family by family."""
        yield from self._container_families()
        requests = CounterMetricFamily(
            "segmentstore_http_requests", "Requests answered.", labels=["verb", "status"]
        )
        for (verb, status), count in sorted(self._requests.requests.items()):
            requests.add_metric([verb, str(status)], count)
        yield requests
        durations = HistogramMetricFamily(
            "segmentstore_http_request_duration_seconds",
            "From the parsed header to the answer, waits of live readers included.",
            labels=["verb"],
        )
        for verb, histogram in sorted(self._requests.latencies.items()):
            buckets: list[tuple[str, float]] = []
            total = 0
            for bound, count in zip(histogram.bounds_seconds, histogram.counts, strict=False):
                total += count
                buckets.append((str(bound), total))
            buckets.append(("+Inf", total + histogram.counts[-1]))
            durations.add_metric([verb], buckets, histogram.sum_seconds)
        yield durations
        for name, value in sorted(self._gauges().items()):
            family = _metric_family(f"segmentstore_http_{name}", "Of the HTTP server.", [])
            family.add_metric([], value)
            yield family

        for name, value in sorted(self._node().items()):
            family = _metric_family(f"segmentstore_{name}", "Of the process.", [])
            family.add_metric([], value)
            yield family

    def _container_families(self) -> Iterator[Metric]:
        containers = self._containers()
        names = sorted({name for numbers in containers.values() for name in numbers})
        for name in names:
            family = _metric_family(
                f"segmentstore_container_{name}", "Of one segment container.", ["container"]
            )
            for container, numbers in sorted(containers.items()):
                if name in numbers:
                    family.add_metric([str(container)], numbers[name])
            yield family


class _MetricsCollector(Collector):
    def __init__(self, exposition: "MetricsExposition") -> None:
        self._exposition = exposition

    def collect(self) -> Iterator[Metric]:
        yield from self._exposition.families()


def _metric_family(
    name: str, documentation: str, labels: list[str]
) -> CounterMetricFamily | GaugeMetricFamily:
    if name.endswith("_total"):
        return CounterMetricFamily(name.removesuffix("_total"), documentation, labels=labels)
    return GaugeMetricFamily(name, documentation, labels=labels)
