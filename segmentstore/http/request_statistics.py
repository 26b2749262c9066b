"""Counts of what the server answered: plain numbers that `/metrics` polls."""

from bisect import bisect_left

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


class LatencyHistogram:
    """Durations of one verb, in buckets of LATENCY_BOUNDS_SECONDS and one above."""

    __slots__ = ("counts", "sum_seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(LATENCY_BOUNDS_SECONDS) + 1)
        self.sum_seconds = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(LATENCY_BOUNDS_SECONDS, seconds)] += 1
        self.sum_seconds += seconds


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
            histogram = self.latencies[verb] = LatencyHistogram()
        histogram.add(seconds)
