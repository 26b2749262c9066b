"""What is measured, and what is wanted of it.

A case is one run of the Java client's benchmark (java/src/peers/Bench.java) in a JVM of its own. A target compares one
figure of a case with that of a peer. `ratio` is always ours over theirs; `wanted` bounds it from below for what should
be large and from above for what should be small.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

OURS, PRAVEGA, KAFKA = "segmentstore", "pravega", "kafka"
OURS_TWO_PROCESSES = "segmentstore-2-processes"
OURS_BOOKKEEPER, PRAVEGA_BOOKKEEPER = "segmentstore-bookkeeper", "pravega-bookkeeper"
"""Three copies of the log, on bookies of each system's own."""
PRAVEGA_SAME_BOOKIES = "pravega-same-bookies"
"""Pravega on such bookies as ours has: what of a ratio is the stores', and what the bookies'."""
ON_BOOKIES = (OURS_BOOKKEEPER, PRAVEGA_BOOKKEEPER, PRAVEGA_SAME_BOOKIES)


@dataclass(frozen=True)
class Case:
    """A mode of the benchmark and its options; `quick` replaces some of them in a short run."""

    name: str
    mode: str
    options: Mapping[str, int | str]
    quick: Mapping[str, int] = field(default_factory=lambda: {"seconds": 3, "warm": 2})
    needs: str | None = None
    """A case that has to run just before, because it makes the stream that this one reads."""
    client_heap: str = "1g"
    """Each connection of the Java client takes more than a megabyte of it."""


@dataclass(frozen=True)
class Target:
    """What a figure of ours should be, as a multiple of the peer's."""

    case: str
    figure: str
    wanted: float | None
    """None: only shown beside the other."""
    unit: str
    ours: str = OURS
    peer: str = PRAVEGA
    large: bool = True
    """More is better."""
    peer_case: str | None = None
    """The case of the peer, if it has another name."""

    @property
    def name(self) -> str:
        if self.ours != OURS:
            return f"{self.case}: {self.figure}, {self.ours} vs {self.peer}"
        suffix = "" if self.peer == PRAVEGA else f" vs {self.peer}"
        if self.peer == PRAVEGA and self.peer_case is not None:
            suffix = f" vs its {self.peer_case}"
        return f"{self.case}: {self.figure}{suffix}"

    def is_met(self, ratio: float) -> bool:
        if self.wanted is None:
            return True
        return ratio >= self.wanted if self.large else ratio <= self.wanted


WRITES = ("write 100 B", "write 1 KB", "write 10 KB")
"""What systems on bookies of their own are asked."""

WRITES_ON_BOOKIES: Mapping[str, int] = {"warm": 6, "seconds": 8, "megabytes": 2000}
"""Every byte is written seven times: in three journals, in three ledgers, in Tier 2. There are more young JVMs than
with one bookie, and what their compilers take in the first seconds is a third of all."""

# The megabytes of a write bound the disk that a round takes; they are more than Pravega writes in the time.
CASES: Sequence[Case] = (
    Case("write 100 B", "write", {"size": 100, "warm": 5, "seconds": 8}),
    Case("write 1 KB", "write", {"size": 1000, "warm": 4, "seconds": 6, "megabytes": 5000}),
    Case(
        "write 10 KB",
        "write",
        {"size": 10_000, "inflight": 3355, "warm": 3, "seconds": 5, "megabytes": 6000},
    ),
    Case("write 100 B, 4 segments", "write", {"size": 100, "segments": 4, "warm": 5, "seconds": 8}),
    Case(
        "write 1 KB, 4 segments",
        "write",
        {"size": 1000, "segments": 4, "warm": 4, "seconds": 6, "megabytes": 5000},
    ),
    Case("one in flight", "write", {"size": 100, "inflight": 1, "warm": 3, "seconds": 6}),
    Case("1,000 events/s", "latency", {"size": 100, "rate": 1000, "warm": 5, "seconds": 12}),
    Case(
        "fill 1 KB",
        "write",
        {"size": 1000, "stream": "full-1k", "warm": 0, "seconds": 60, "megabytes": 2000},
        quick={"megabytes": 1500},
    ),
    Case(
        "catch-up 1 KB", "read", {"stream": "full-1k", "seconds": 30}, quick={}, needs="fill 1 KB"
    ),
    Case(
        "fill 10 KB",
        "write",
        {
            "size": 10_000,
            "stream": "full-10k",
            "warm": 0,
            "seconds": 60,
            "megabytes": 2500,
            "inflight": 3355,
        },
        quick={"megabytes": 2500},
    ),
    Case(
        "catch-up 10 KB",
        "read",
        {"stream": "full-10k", "seconds": 30},
        quick={},
        needs="fill 10 KB",
    ),
    Case("byte stream", "bytes", {"megabytes": 1000, "seconds": 20}, quick={"megabytes": 300}),
    Case("table", "tables", {"inflight": 200, "warm": 4, "seconds": 6}),
    Case("transactions", "transactions", {"count": 40, "warm": 10}, quick={"count": 15, "warm": 5}),
    Case(
        "1,000 writers",
        "crowd",
        {"writers": 1000, "segments": 1, "warm": 10, "seconds": 10},
        client_heap="4g",
    ),
)

COLD_CASE = Case("catch-up 1 KB, cold", "read", {"stream": "full-1k", "seconds": 30}, quick={})
"""After a restart, from Tier 2. Held against hot reads of both: this bookie forgets its data when it stops."""

SERVER = "server"
"""The case name under which a round keeps what concerns the server as a whole."""

CPU_PER_GB, CPU_PER_MILLION = "server_cpu_seconds_per_gb", "server_cpu_seconds_per_million_events"
CPU_PER_MILLION_WITH_BOOKIES = "server_and_bookies_cpu_seconds_per_million_events"
RESIDENT, RESIDENT_WITH_BOOKIES = "resident_megabytes", "resident_megabytes_with_bookies"
_CPU_CASES = (
    "write 100 B",
    "write 1 KB",
    "write 10 KB",
    "write 100 B, 4 segments",
    "write 1 KB, 4 segments",
)


def _on_bookies(
    peer: str,
    *,
    throughput: float | None = None,
    p99: float | None = None,
    costs: float | None = None,
) -> list[Target]:
    """Of our store with its log on three bookies beside a Pravega with three."""
    return [
        *(
            Target(case, "events_per_second", throughput, "1/s", OURS_BOOKKEEPER, peer)
            for case in WRITES
        ),
        *(Target(case, "p99_ms", p99, "ms", OURS_BOOKKEEPER, peer, large=False) for case in WRITES),
        *_costs(peer, wanted=costs),
    ]


def _costs(peer: str, *, wanted: float | None = None) -> list[Target]:
    """Processor and memory of the same store; beside our own log in files they are what a JVM in the process costs."""
    return [
        *(
            Target(case, figure, wanted, "s/M", OURS_BOOKKEEPER, peer, large=False)
            for figure in (CPU_PER_MILLION, CPU_PER_MILLION_WITH_BOOKIES)
            for case in WRITES
        ),
        *(
            Target(SERVER, figure, wanted, "MB", OURS_BOOKKEEPER, peer, large=False)
            for figure in (RESIDENT, RESIDENT_WITH_BOOKIES)
        ),
    ]


TARGETS: Sequence[Target] = (
    Target("write 100 B", "events_per_second", 1.5, "1/s"),
    Target("write 1 KB", "megabytes_per_second", 2.5, "MB/s"),
    Target("write 10 KB", "megabytes_per_second", 3.0, "MB/s"),
    Target("write 100 B, 4 segments", "events_per_second", 2.5, "1/s"),
    Target("write 1 KB, 4 segments", "megabytes_per_second", 3.0, "MB/s"),
    *(Target(case, CPU_PER_GB, 0.5, "s/GB", large=False) for case in _CPU_CASES),
    *(Target(case, CPU_PER_MILLION, 0.5, "s/M", large=False) for case in _CPU_CASES[:1]),
    Target("one in flight", "p50_ms", 0.2, "ms", large=False),
    Target("1,000 events/s", "ack_p50_ms", 0.2, "ms", large=False),
    Target("1,000 events/s", "ack_p99_ms", 0.5, "ms", large=False),
    Target("1,000 events/s", "read_p50_ms", 0.3, "ms", large=False),
    Target("1,000 events/s", "read_p99_ms", 1.0, "ms", large=False),
    Target("catch-up 1 KB", "megabytes_per_second", 2.0, "MB/s"),
    Target("catch-up 10 KB", "megabytes_per_second", 1.5, "MB/s"),
    Target("catch-up 1 KB, cold", "megabytes_per_second", 1.0, "MB/s", peer_case="catch-up 1 KB"),
    Target(
        "catch-up 1 KB, cold",
        "megabytes_per_second",
        1.0,
        "MB/s",
        peer=OURS,
        peer_case="catch-up 1 KB",
    ),
    Target("byte stream", "write_megabytes_per_second", 3.0, "MB/s"),
    Target("byte stream", "read_megabytes_per_second", 2.0, "MB/s"),
    Target("table", "puts_per_second", 2.0, "1/s"),
    Target("table", "gets_per_second", 1.3, "1/s"),
    Target("transactions", "begin_p50_ms", 0.2, "ms", large=False),
    Target("transactions", "commit_p50_ms", 0.2, "ms", large=False),
    Target("1,000 writers", "events_per_second", 1.0, "1/s"),
    Target("1,000 writers", "p99_ms", 1.0, "ms", large=False),
    Target(SERVER, RESIDENT, 0.5, "MB", large=False),
    Target(SERVER, "seconds_to_ready", 0.3, "s", large=False),
    Target("write 1 KB", "megabytes_per_second", 3.0, "MB/s", peer=KAFKA),
    Target(
        "wheel, file log", "p50_ms", 1.0, "ms", peer=OURS, large=False, peer_case="wheel, bound"
    ),
    Target("1,000 writers", "events_per_second", 1.0, "1/s", OURS_TWO_PROCESSES),
    Target("1,000 writers", "p99_ms", None, "ms", OURS_TWO_PROCESSES, large=False),
    Target("one in flight", "p50_ms", 1.0, "ms", OURS_TWO_PROCESSES, OURS, large=False),
    *_on_bookies(PRAVEGA_BOOKKEEPER, throughput=1.2, p99=0.7, costs=1.0),
    *_on_bookies(PRAVEGA_SAME_BOOKIES),
    *_costs(OURS),
)


def chosen(names: Sequence[str]) -> list[Case]:
    """Those so named, or whose names contain one of these, each after what it needs; all if none is named."""
    known = {case.name for case in CASES}
    wanted = known & set(names) if names else known
    parts = set(names) - known
    wanted |= {case.name for case in CASES if any(part in case.name for part in parts)}
    wanted |= {case.needs for case in CASES if case.name in wanted and case.needs}
    return [case for case in CASES if case.name in wanted]
