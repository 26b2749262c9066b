"""`python -m benchmarks [NAME ...]`: run benchmarks, print their tables, append their rows to results/history.jsonl.

Each benchmark runs in a process of its own: memory that one leaves behind would slow the next one down.
"""

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

HISTORY = Path(__file__).parent / "results" / "history.jsonl"

BENCHMARKS: Mapping[str, str] = {
    "container_append": "append:container_append",
    "file_log": "file_log:main",
    "file_append": "append:file_append",
    "client": "client:main",
    "tail_read": "tail_read:main",
    "tier2_cold_read": "tier2:tier2_cold_read",
    "tier2_drain": "tier2:tier2_drain",
    "writer_drain": "writer_drain:main",
    "recovery": "recovery:main",
    "http_append": "http_append:main",
    "sorted_index": "sorted_index:main",
    "volumes": "volumes:volumes",
    "spark_planning": "spark_planning:main",
    "record_files": "record_files:main",
}
"""What `make bench` runs, in this order: the name in the history, and the function of a module that measures it."""

LONG_BENCHMARKS: Mapping[str, str] = {
    "tier2_care": "tier2_care:main",
    "s3_endpoint": "s3:s3_endpoint",
    "s3_drain": "s3:s3_drain",
    "volumes_million": "volumes:volumes_million",
    "many_segments": "many_segments:main",
    "bookkeeper": "bookkeeper:main",
    "slow_tier2": "slow_tier2:main",
    "tables": "tables:main",
    "cluster": "cluster:main",
    "topics": "topics:main",
    "processes": "processes:main",
    "spark_scan": "spark_scan:main",
    "spark_scale": "spark_scale:main",
}
"""Minutes each: run by name, or with --all."""

_CHILD = (
    "import json; from benchmarks.{module} import {function};"
    " rows = {function}(); print('ROWS ' + json.dumps(rows))"
)


def run_one(name: str) -> list[dict[str, object]] | None:
    """The rows of one benchmark, None if it failed."""
    print(f"{name}", flush=True)
    module, _, function = {**BENCHMARKS, **LONG_BENCHMARKS}[name].partition(":")
    child = subprocess.run(
        [sys.executable, "-c", _CHILD.format(module=module, function=function)],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    rows: list[dict[str, object]] | None = None
    for line in child.stdout.splitlines():
        if line.startswith("ROWS "):
            rows = json.loads(line[5:])
        else:
            print(line)
    if child.returncode != 0:
        print(f"  {name} failed with exit code {child.returncode}", flush=True)
        return None
    return rows


def commit() -> str:
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=False,
        cwd=Path(__file__).parent,
    )
    return found.stdout.strip() or "unknown"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*BENCHMARKS, *LONG_BENCHMARKS, []])
    parser.add_argument("--all", action="store_true", help="the long ones as well")
    arguments = parser.parse_args()
    names = arguments.names or [*BENCHMARKS, *(LONG_BENCHMARKS if arguments.all else ())]
    failed = 0
    HISTORY.parent.mkdir(exist_ok=True)
    for name in names:
        rows = run_one(name)
        if rows is None:
            failed += 1
            continue
        with HISTORY.open("a") as history:
            for one in rows:
                entry = {
                    "at": int(time.time()),
                    "commit": commit(),
                    "python": platform.python_version(),
                    "benchmark": name,
                    **one,
                }
                history.write(json.dumps(entry) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
