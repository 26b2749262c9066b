"""The public conformance suite of Durable Streams, run against a server of ours.

Goal: code that we did not write says that we speak the protocol. Method: install the pinned npm packages into a cache
directory outside the repository (once per lock file), start a server in this process, let vitest talk to it, and count
what its JSON report says. The suite has 338 tests; 6 concern subscriptions and skip themselves.
"""

import asyncio
import hashlib
import json
import os
import shutil
import time
from pathlib import Path

import pytest

from segmentstore.http.settings import HttpSettings
from tests.http.node import running_node
from tests.integration.durable_streams.steady_clock import SteadyClock
from tests.integration.durable_streams.stores import STORES

HERE = Path(__file__).parent
FILES = ("package.json", "package-lock.json", "conformance.test.mjs")
PASSED, SKIPPED, TOTAL = 332, 6, 338
TEST_SECONDS_MAX = 60
"""For one test of the suite, instead of the runner's five: the machine runs other tests beside it."""

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def require_node() -> None:
    """Without Node.js nothing is proven: said by name, and in CI it is a failure."""
    if shutil.which("node") and shutil.which("npm"):
        return
    sentence = "Node.js is missing: the HTTP conformance suite was not run"
    if os.environ.get("CI"):
        pytest.fail(sentence)
    pytest.skip(sentence)


async def call(*arguments: str, directory: Path, seconds: float, **environment: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *arguments,
        cwd=directory,
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(seconds):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return output.decode(errors="replace")


async def installed_suite() -> Path:
    """A directory that holds the pinned packages and our test file."""
    digest = hashlib.sha256(b"".join((HERE / name).read_bytes() for name in FILES)).hexdigest()
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    directory = cache / "segmentstore" / f"durable-streams-{digest[:16]}"
    if (directory / "installed").exists():
        return directory
    directory.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        shutil.copyfile(HERE / name, directory / name)
    output = await call("npm", "ci", "--no-audit", "--no-fund", directory=directory, seconds=300)
    assert (directory / "node_modules" / "vitest").is_dir(), f"npm ci failed: {output[-2000:]}"
    (directory / "installed").touch()
    return directory


@pytest.mark.parametrize("store", sorted(STORES))
async def test_the_public_conformance_suite_of_durable_streams_passes(
    store: str, tmp_path: Path
) -> None:
    require_node()
    directory = await installed_suite()
    report_path = tmp_path / "report.json"
    # Expires-At is sent by the suite's own clock, and two tests wait out a long poll within five seconds.
    # And the clock that takes no notice of standstills is behind that of the loop for a while.
    settings = HttpSettings(
        port=0, long_poll_seconds=0.7, cors_origins=("*",), clock_difference_seconds_max=60.0
    )
    async with STORES[store](tmp_path / "data") as segments:
        clock = SteadyClock(time.time_ns() // 1_000_000)
        async with (
            running_node(segments, settings, clock=clock) as node,
            asyncio.TaskGroup() as tasks,
        ):
            ticking = tasks.create_task(clock.run(), name="clock of the server")
            output = await call(
                "node",
                "node_modules/vitest/vitest.mjs",
                "run",
                "conformance.test.mjs",
                "--reporter=json",
                f"--outputFile={report_path}",
                f"--testTimeout={TEST_SECONDS_MAX * 1000}",
                directory=directory,
                seconds=400,
                CONFORMANCE_TEST_URL=node.url,
            )
            ticking.cancel()
    assert report_path.exists(), f"vitest wrote no report: {output[-2000:]}"
    report = json.loads(report_path.read_text())
    failures = [
        f"{test['fullName']}: {(test['failureMessages'] or [''])[0][:300]}"
        for file in report["testResults"]
        for test in file["assertionResults"]
        if test["status"] == "failed"
    ]
    assert not failures, "\n".join(failures)
    counts = (report["numPassedTests"], report["numPendingTests"], report["numTotalTests"])
    assert counts == (PASSED, SKIPPED, TOTAL), f"counts={counts} output={output[-1000:]}"
