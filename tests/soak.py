"""Every test that draws its world from a seed, on other seeds.

`make soak` runs it. Each file is run in processes of a few hundred seeds: a simulation keeps its dead for ever, so
memory grows with its seeds. Prints what failed, and a sentence for each file; exits with 1 if anything failed. The
simulation of whole nodes has a command of its own (tests/sim/run.py) and is passed over.
"""

import argparse
import os
import subprocess
import sys
import time

PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
APART = "tests/sim"
NOTHING_COLLECTED = 5


def pytest(*arguments: str, seeds: int, first: int) -> subprocess.CompletedProcess[str]:
    """Run pytest on these seeds, to its end."""
    environment = {**os.environ, "SOAK_SEEDS": str(seeds), "SOAK_FROM": str(first)}
    return subprocess.run(
        [*PYTEST, *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def files_with_seeds(paths: list[str]) -> list[str]:
    """The files of tests that draw from seeds, in order."""
    found = pytest("--collect-only", f"--ignore={APART}", *paths, seeds=1, first=0)
    if found.returncode not in (0, NOTHING_COLLECTED):
        sys.exit(found.stdout)
    names = [line.partition("::")[0] for line in found.stdout.splitlines() if "::" in line]
    return list(dict.fromkeys(names))


def soak(name: str, *, seeds: int, first: int, together: int, options: list[str]) -> bool:
    """Whether the tests of a file pass on all of these seeds."""
    began = time.monotonic()
    closings = []
    passed = True
    for start in range(first, first + seeds, together):
        count = min(together, first + seeds - start)
        done = pytest("--tb=short", *options, name, seeds=count, first=start)
        lines = done.stdout.strip().splitlines()
        closings.append(lines[-1] if lines else f"exit code {done.returncode}")
        if done.returncode:
            passed = False
            print(done.stdout, flush=True)
    print(f"{name}: {time.monotonic() - began:.0f} s: {'; '.join(closings)}", flush=True)
    return passed


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many each test gets")
    parser.add_argument("--from", type=int, default=100_000, dest="first", help="the first of them")
    parser.add_argument("--together", type=int, default=250, help="how many in one process")
    parser.add_argument("--parallel", default="0", help="workers of pytest-xdist, or auto")
    parser.add_argument("paths", nargs="*", default=["tests"], help="files or folders of tests")
    given = parser.parse_args()
    passed = [
        soak(
            name,
            seeds=given.seeds,
            first=given.first,
            together=given.together,
            options=["-n", given.parallel],
        )
        for name in files_with_seeds(given.paths)
    ]
    print(f"{sum(passed)} files passed, {len(passed) - sum(passed)} failed")
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
