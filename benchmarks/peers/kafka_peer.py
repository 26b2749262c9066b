"""Kafka 4.2.0 on one broker, driven by its own tools. `flush.messages=1` syncs each batch before it is acknowledged,
which is what this store and Pravega promise."""

import re
import subprocess
import time
from pathlib import Path

from tests.integration.java_libraries import class_path
from tests.integration.pravega_clients.store_process import free_ports

POM = Path(__file__).parent / "kafka" / "pom.xml"
TOPIC = "synced"
_CLUSTER_ID = "c2VnbWVudHN0b3JlLXBlZQ"
_SECONDS_MAX = 150.0
_RESULT = re.compile(r"([\d.]+) records/sec .*?([\d.]+) ms 50th, .*?([\d.]+) ms 99th")

_SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{broker}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.dirs={directory}/logs
"""


class KafkaBroker:
    """Formatted, started, with one topic of one partition that syncs."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        broker, controller = free_ports(2)
        self._address = f"127.0.0.1:{broker}"
        settings = directory / "server.properties"
        settings.write_text(
            _SETTINGS.format(broker=broker, controller=controller, directory=directory)
        )
        self._tool("kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(settings))
        with (directory / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [*_java("-Xms1g", "-Xmx1g"), "kafka.Kafka", str(settings)],
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            self._make_topic()
        except BaseException:
            self.stop()
            raise

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return self._address

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def write(self, *, size: int, count: int) -> dict[str, float]:
        """One producer as fast as it can, with batches as large as Pravega's client makes them."""
        output = self._tool(
            "org.apache.kafka.tools.ProducerPerformance",
            *("--topic", TOPIC, "--num-records", str(count), "--record-size", str(size)),
            *("--throughput", "-1", "--producer-props", f"bootstrap.servers={self._address}"),
            *("acks=all", "batch.size=262144", "linger.ms=1", "buffer.memory=67108864"),
        )
        found = _RESULT.search(output.splitlines()[-1])
        assert found is not None, output[-500:]
        per_second, p50, p99 = map(float, found.groups())
        return {
            "events_per_second": per_second,
            "megabytes_per_second": per_second * size / 1e6,
            "p50_ms": p50,
            "p99_ms": p99,
        }

    def _make_topic(self) -> None:
        deadline = time.monotonic() + 60
        options = ("--partitions", "1", "--replication-factor", "1", "--config", "flush.messages=1")
        while True:
            try:
                self._tool(
                    "org.apache.kafka.tools.TopicCommand",
                    *("--bootstrap-server", self._address, "--create", "--topic", TOPIC, *options),
                )
            except subprocess.CalledProcessError:
                if time.monotonic() > deadline:
                    raise
            else:
                return

    def _tool(self, name: str, *arguments: str) -> str:
        done = subprocess.run(
            [*_java("-Xms256m", "-Xmx512m"), name, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_SECONDS_MAX,
            check=True,
        )
        return done.stdout.strip()


def _java(*options: str) -> list[str]:
    return ["java", *options, "-classpath", class_path(POM)]
