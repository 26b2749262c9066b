"""Runs in the interpreter that has the wheel: events one by one with the writer's default settings.

python wheel_latency.py CONTROLLER_URI SECONDS
"""

# mypy: disable-error-code="import-not-found"

import json
import os
import sys
import time

import pravega_client as pravega

WARM_SECONDS = 2.0


def main() -> None:
    uri, seconds = sys.argv[1], float(sys.argv[2])
    manager = pravega.StreamManager(uri)
    manager.create_scope("wheel")
    manager.create_stream("wheel", "s", 1)
    writer = manager.create_writer("wheel", "s")
    durations: list[float] = []
    begin = time.perf_counter() + WARM_SECONDS
    while (now := time.perf_counter()) < begin + seconds:
        writer.write_event_bytes(b"x" * 100, routing_key="key")
        if now >= begin:
            durations.append(time.perf_counter() - now)
    writer.flush()
    durations.sort()
    figures = {
        "p50_ms": durations[len(durations) // 2] * 1e3,
        "p99_ms": durations[len(durations) * 99 // 100] * 1e3,
    }
    print(json.dumps(figures), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
