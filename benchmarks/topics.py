"""Topics through Kafka's own tools beside Kafka 4.2, which syncs each batch before it answers (`flush.messages=1`).

One topic of one partition at each, `acks=all`, the tools of one release; the two systems take turns, and medians of the
rounds are compared. A broker has 1 GB of heap and was warmed up; the JVMs of the tools take what servers leave of
the two cores, so that seconds of the server's CPU for a gigabyte say more than rates. Ours is the whole store: with
Tier 2 on the same disk, which Kafka's broker does not have.

A producer that is faster than its server fills its buffer of 64 MB, and a record then waits for as long as that takes
to drain: with large batches p50 and p99 say the rate once more. At 1,000 records a second the first two seconds are
left out: the first record waits 250 ms for the start of its client, and with those behind it was p99, with either
server. What is consumed has the joining of a group in it, for which Kafka's broker takes some 2.5 s longer, as it waits
for more members by default; what is fetched has not.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from benchmarks.peers.systems import KafkaBroker, consume_records, produce_records
from benchmarks.workbench import Row, median, print_rows, row

ROUNDS = 3
WARM_RECORDS = 60_000
_LARGE_BATCHES = 262_144
_READY_SECONDS = 60


class Case:
    """One way to produce, and what is wanted of it beside Kafka."""

    def __init__(
        self,
        name: str,
        *,
        size: int,
        count: int,
        batch_bytes: int | None,
        per_second: int = -1,
        warm_up: int = 0,
        rate: float,
        p99: float,
    ) -> None:
        self.name = name
        self.size = size
        self.count = count
        self.batch_bytes = batch_bytes
        self.per_second = per_second
        self.warm_up = warm_up
        """Of `count`: in no figure but the server's CPU."""
        self.rate = rate
        """At least so many times the peer's."""
        self.p99 = p99
        """At most so many times the peer's."""


CASES = (
    Case(
        "100 B, batches of 256 KB",
        size=100,
        count=2_000_000,
        batch_bytes=_LARGE_BATCHES,
        rate=1.3,
        p99=0.3,
    ),
    Case(
        "1 KB, batches of 256 KB",
        size=1_000,
        count=400_000,
        batch_bytes=_LARGE_BATCHES,
        rate=1.6,
        p99=0.3,
    ),
    Case("1 KB, default batches", size=1_000, count=100_000, batch_bytes=None, rate=2.0, p99=0.5),
    Case(
        "100 B, 1,000 a second",
        size=100,
        count=10_000,
        batch_bytes=None,
        per_second=1_000,
        warm_up=2_000,
        rate=1.0,
        p99=1.0,
    ),
)
CONSUMED = {"100 B, batches of 256 KB": 0.9, "1 KB, batches of 256 KB": 2.0}
"""Cases whose topics are read as well, and how many times the peer's rate is wanted."""
CPU = 0.4
"""Of the peer's seconds for a gigabyte at most."""

Figures = dict[str, float]


class OurStore:
    """A store in one process with a server of Kafka's protocol."""

    def __init__(self, directory: Path) -> None:
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "segmentstore.cli", "standalone", "--data", str(directory)),
                *("--http", "127.0.0.1:0", "--wire", "off", "--controller", "off"),
                *("--kafka", "127.0.0.1:0"),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        ready = self._process.stdout.readline()
        assert "kafka=" in ready, ready
        self.address = ready.split("kafka=")[1].split()[0]
        self.pid = self._process.pid

    def create_topic(self, topic: str) -> None:
        subprocess.run(
            [
                *(sys.executable, "-m", "segmentstore.cli", "topic", "create", topic),
                *("--kafka", self.address),
            ],
            check=True,
            stdout=subprocess.DEVNULL,
        )

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


def main() -> list[Row]:
    """The rows of `python -m benchmarks topics`."""
    measured: dict[str, list[dict[str, Figures]]] = {"kafka": [], "ours": []}
    for number in range(ROUNDS):
        for system in measured:
            with tempfile.TemporaryDirectory() as directory:
                place = Path(directory) / system
                server = KafkaBroker(place) if system == "kafka" else OurStore(place)
                try:
                    measured[system].append(_round(server))
                finally:
                    server.stop()
            print(f"  round {number + 1}: {system} {measured[system][-1]}", flush=True)
    rows = [
        entry
        for case in CASES
        for entry in _rows_of(
            case,
            {
                system: {
                    figure: median([each[case.name][figure] for each in rounds])
                    for figure in rounds[0][case.name]
                }
                for system, rounds in measured.items()
            },
        )
    ]
    print_rows(rows)
    return rows


def _round(server: KafkaBroker | OurStore) -> dict[str, Figures]:
    server.create_topic("warm")
    produce_records(
        server.address, "warm", size=1_000, count=WARM_RECORDS, batch_bytes=_LARGE_BATCHES
    )
    outcome: dict[str, Figures] = {}
    for number, case in enumerate(CASES):
        topic = f"case-{number}"
        server.create_topic(topic)
        before = _cpu_seconds(server.pid)
        figures = produce_records(
            server.address,
            topic,
            size=case.size,
            count=case.count,
            batch_bytes=case.batch_bytes,
            per_second=case.per_second,
            warm_up=case.warm_up,
        )
        used = _cpu_seconds(server.pid) - before
        figures["cpu_seconds_per_gb"] = used / (case.size * case.count / 1e9)
        if case.name in CONSUMED:
            figures |= consume_records(server.address, topic, count=case.count)
        outcome[case.name] = figures
    return outcome


def _rows_of(case: Case, figures: Mapping[str, Figures]) -> list[Row]:
    ours, kafka = figures["ours"], figures["kafka"]
    rows = [
        row(
            f"{case.name}: produced, wanted {case.rate} x Kafka",
            ours["events_per_second"],
            "1/s",
            kafka["events_per_second"],
        ),
        row(f"{case.name}: p50", ours["p50_ms"], "ms", kafka["p50_ms"]),
        row(f"{case.name}: p99, wanted {case.p99} x", ours["p99_ms"], "ms", kafka["p99_ms"]),
        row(
            f"{case.name}: server's CPU, wanted {CPU} x",
            ours["cpu_seconds_per_gb"],
            "s/GB",
            kafka["cpu_seconds_per_gb"],
        ),
    ]
    if case.name in CONSUMED:
        rows.append(
            row(
                f"{case.name}: consumed, wanted {CONSUMED[case.name]} x",
                ours["consumed_per_second"],
                "1/s",
                kafka["consumed_per_second"],
            )
        )
        rows.append(
            row(
                f"{case.name}: fetched, behind the joining of a group",
                ours["fetched_per_second"],
                "1/s",
                kafka["fetched_per_second"],
            )
        )
    return rows


def _cpu_seconds(pid: int) -> float:
    """User and system time of a process, its threads included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
