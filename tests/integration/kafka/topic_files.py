"""Files of topics, as any tool sees them below the data directory of a server."""

import time
from pathlib import Path
from typing import Final

import pytest

from segmentstore.codec.topic_files import RecordFileName
from tests.integration.kafka.kafka_server import KafkaServerProcess

FILE_OPTIONS: Final = ["--tier2=filesystem", "--set=kafka.file_seconds=0.2"]
"""Whatever is older than a fifth of a second becomes a file, which is a file of the system too."""

_SECONDS_MAX = 300.0
"""No promise, only an end. What a killed process left in batches, of a partition that nothing asks for, becomes a file
with the first pass of retention: a minute behind the next start."""


def files_of(server: KafkaServerProcess, topic: str) -> list[tuple[RecordFileName, Path]]:
    root = server.data_directory / "tier2" / "objects"
    found = []
    for path in sorted(root.rglob("*.seg")):
        name = RecordFileName.parsed(str(path.relative_to(root)))
        if name is not None and name.topic == topic:
            found.append((name, path))
    return found


def wait_for_files(server: KafkaServerProcess, topic: str, end: int) -> list[Path]:
    """Until every record below `end` is in a file, by the names of the files."""
    until = time.monotonic() + _SECONDS_MAX
    while time.monotonic() < until:
        found = files_of(server, topic)
        if found and max(name.last_offset for name, _ in found) >= end - 1:
            return [path for _, path in found]
        time.sleep(0.05)
    pytest.fail(f"no file up to {end}: {files_of(server, topic)}")
