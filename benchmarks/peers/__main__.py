"""`python -m benchmarks.peers [--quick] [--rounds 3] [--only NAME ...] [--systems NAME ...] [--directory DIR]`

Needs a JDK (17 or later), Maven and its repository, Python 3.11 for the wheel, 30 GB of free disk and two idle cores;
all rounds take about half an hour, `--quick` (one short round, nothing recorded) about five minutes.
"""

import argparse
import json
import platform
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.__main__ import HISTORY, commit
from benchmarks.peers.cases import chosen
from benchmarks.peers.report import compare, draw, history_rows, table
from benchmarks.peers.runs import ON_REQUEST, SYSTEMS, run_rounds

CHART = HISTORY.with_name("peers.svg")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round; nothing is recorded")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="parts of case names")
    parser.add_argument(
        "--systems", nargs="+", choices=[*SYSTEMS, *ON_REQUEST], default=list(SYSTEMS)
    )
    parser.add_argument("--directory", type=Path, help="where the servers keep their data")
    arguments = parser.parse_args()
    rounds = 1 if arguments.quick else arguments.rounds
    with tempfile.TemporaryDirectory(dir=arguments.directory, prefix="peers-") as directory:
        results = run_rounds(
            chosen(arguments.only),
            arguments.systems,
            rounds=rounds,
            quick=arguments.quick,
            directory=Path(directory),
        )
    comparisons = compare(results)
    print(table(comparisons))
    if comparisons and not arguments.quick:
        at = int(time.time())
        with HISTORY.open("a") as history:
            for row in history_rows(comparisons):
                entry = {
                    "at": at,
                    "commit": commit(),
                    "python": platform.python_version(),
                    "benchmark": "peers",
                    **row,
                }
                history.write(json.dumps(entry) + "\n")
        if not arguments.only:
            CHART.write_text(draw(comparisons, caption=time.strftime("%Y-%m-%d", time.gmtime(at))))
    return 0 if comparisons else 1


if __name__ == "__main__":
    sys.exit(main())
