"""`/metrics` in the Prometheus text format, made from snapshots at the moment it is asked for.

    segmentstore_container_<name>{container="n"}       every number of SegmentContainer.metrics()
    segmentstore_http_requests_total{verb,status}
    segmentstore_http_request_duration_seconds{verb}   histogram
    segmentstore_http_<name>                           every other number of the HTTP room
    segmentstore_<name>                                numbers of the process's other faces

A name that ends in `_total` is a counter, every other one a gauge. Nothing else in this project imports the exporter.
"""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from segmentstore.http.request_statistics import LATENCY_BOUNDS_SECONDS, RequestStatistics

ContainerMetrics = Mapping[int, Mapping[str, float]]
"""Per container id, what SegmentContainer.metrics() gives."""

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class _Collector(Collector):
    def __init__(self, exposition: "MetricsExposition") -> None:
        self._exposition = exposition

    def collect(self) -> Iterator[Metric]:
        yield from self._exposition.families()


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
        self._registry.register(_Collector(self))

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
            for bound, count in zip(LATENCY_BOUNDS_SECONDS, histogram.counts, strict=False):
                total += count
                buckets.append((str(bound), total))
            buckets.append(("+Inf", total + histogram.counts[-1]))
            durations.add_metric([verb], buckets, histogram.sum_seconds)
        yield durations
        for name, value in sorted(self._gauges().items()):
            family = _family(f"segmentstore_http_{name}", "Of the HTTP server.", [])
            family.add_metric([], value)
            yield family

        for name, value in sorted(self._node().items()):
            family = _family(f"segmentstore_{name}", "Of the process.", [])
            family.add_metric([], value)
            yield family

    def _container_families(self) -> Iterator[Metric]:
        containers = self._containers()
        names = sorted({name for numbers in containers.values() for name in numbers})
        for name in names:
            family = _family(
                f"segmentstore_container_{name}", "Of one segment container.", ["container"]
            )
            for container, numbers in sorted(containers.items()):
                if name in numbers:
                    family.add_metric([str(container)], numbers[name])
            yield family


def _family(
    name: str, documentation: str, labels: list[str]
) -> CounterMetricFamily | GaugeMetricFamily:
    if name.endswith("_total"):
        return CounterMetricFamily(name.removesuffix("_total"), documentation, labels=labels)
    return GaugeMetricFamily(name, documentation, labels=labels)
