"""A million small objects in the volumes, and the straight line to a billion. Minutes."""

import asyncio

from benchmarks.volumes import run_billion
from benchmarks.workbench import Row, print_rows
from segmentstore.runtime.process import loop_factory


def main() -> list[Row]:
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        rows = runner.run(run_billion())
    print_rows(rows)
    return rows


if __name__ == "__main__":
    main()
