"""Attempts of tasks that die in the middle and are made again: each row is read once, and written once."""

import hashlib
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from segmentstore.client import Store
from segmentstore.spark.jvm.jar_build import jvm_jar
from tests.integration.spark.dying_source import MARKS
from tests.integration.spark.live_streams import LiveStreams
from tests.integration.spark.topic_process import topic_process
from tests.spark.live_store import LiveStore

pytestmark = [pytest.mark.integration, pytest.mark.slow]

ROOT = Path(__file__).parents[3]
EVENT_BYTES = 8000
EVENTS = [b"%d " % number + bytes(EVENT_BYTES) for number in range(3000)]


def test_rows_are_read_and_written_once_when_the_processes_of_tasks_are_killed(
    tmp_path: Path,
) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    with topic_process(tmp_path) as process:
        live = LiveStreams(LiveStore(process.server, process.tier2))
        live.create("plant/from", segments=2)
        live.create("plant/to", segments=3)

        async def fill(store: Store) -> None:
            async with store.stream("plant/from").writer() as writer:
                for number, event in enumerate(EVENTS):
                    await writer.write(event, key=str(number))

        live.run(fill)
        live.flush()
        # Its readers need several requests.
        process.create("to", 2, compression_type="uncompressed")
        words = [live.place, live.controller, "plant/from", "plant/to", str(jvm_jar())]
        words += [process.kafka, "to"]
        done = subprocess.run(
            [sys.executable, "-m", "tests.integration.spark.retried_tasks", *words],
            cwd=ROOT,
            env=os.environ
            | {
                "PYSPARK_PYTHON": sys.executable,
                "PYTHONPATH": str(ROOT),
                "SPARK_LOCAL_IP": "127.0.0.1",
                MARKS: str(marks),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        found = json.loads(done.stdout)
        expected = Counter(hashlib.sha256(event).hexdigest() for event in EVENTS)
        assert Counter(found["python"]) == expected
        assert Counter(found["java"]) == expected
        assert Counter(live.read("plant/to")) == Counter(EVENTS)
        assert Counter(found["topic"]) == expected
        stored = [each.value for some in process.consume("to").values() for each in some]
        assert Counter(stored) == Counter(EVENTS)
    begun = {each.name for each in marks.iterdir()}
    for what in ("read", "map", "write", "read-topic", "write-topic"):
        assert f"{what}-0-0" in begun, begun
        assert f"{what}-0-1" in begun, begun
