"""One standalone store as a cluster of one node: what faults of it need no more, kill -9 and restart, is tried on it.

python -m tests.integration.cluster.standalone_store DIR     start it, and write DIR/processes.json
"""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from segmentstore.runtime.local_processes import free_ports

ROOT = Path(__file__).parents[3]


def start(directory: Path) -> Path:
    """The file that tells of the process, which is ready. Its ports are those of its first start."""
    path = directory / "processes.json"
    directory.mkdir(parents=True, exist_ok=True)
    rows = json.loads(path.read_text()) if path.exists() else _planned(directory)
    node, controller = rows
    command: list[str] = [
        *(sys.executable, "-m", "segmentstore.cli", "standalone"),
        *("--data", str(directory / "data"), "--http", node["http"], "--wire", node["wire"]),
        *("--controller", controller["grpc"]),
        *("--set", "writer.flush_interval_seconds=300ms"),
    ]
    with (directory / "log").open("ab") as log, (directory / "ready").open("wb") as ready:
        process = subprocess.Popen(
            command, stdout=ready, stderr=log, cwd=ROOT, start_new_session=True
        )
    for row in rows:
        row["pid"] = process.pid
    made = path.with_suffix(".new")
    made.write_text(json.dumps(rows))
    made.replace(path)
    return path


def _planned(directory: Path) -> list[dict[str, Any]]:
    words = [sys.executable, "-m", "tests.integration.cluster.standalone_store", str(directory)]
    again = f"cd {shlex.quote(str(ROOT))} && {shlex.join(words)}"
    # Not of those that the kernel gives to clients: one could have them between a kill and the next start.
    servers = ("http", "wire", "grpc")
    addresses = {
        name: f"127.0.0.1:{port}" for name, port in zip(servers, free_ports(3), strict=True)
    }
    return [
        {"name": name, "role": name, "pid": 0, **addresses, "start": again}
        for name in ("node", "controller")
    ]


if __name__ == "__main__":
    start(Path(sys.argv[1]))
