"""Real processes on a real disk: a lock holds while its owner lives, however still it stands; kill -9 loses nothing."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from segmentstore.contracts.errors import LogInUseError
from tests.contracts.durable_data_log_suite import entries
from tests.tier1.file_log.log_process import open_log

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@asynccontextmanager
async def log_owner(path: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that has initialised the log and appends to it."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.tier1.file_log.log_process",
        str(path),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_h47_a_second_process_is_refused_while_the_first_runs_and_while_it_is_stopped(
    tmp_path: Path,
) -> None:
    path = tmp_path / "log"
    async with log_owner(path) as process:
        with pytest.raises(LogInUseError, match=f"pid {process.pid}"):
            await open_log(str(path)).initialize()
        os.kill(process.pid, signal.SIGSTOP)
        try:
            with pytest.raises(LogInUseError, match=f"pid {process.pid}"):
                await open_log(str(path)).initialize()
        finally:
            os.kill(process.pid, signal.SIGCONT)


async def test_kill_9_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "log"
    acknowledged: dict[int, bytes] = {}
    for _ in range(3):
        async with log_owner(path) as process:
            assert process.stdout is not None
            for _ in range(50):
                address, number = (await process.stdout.readline()).split()
                acknowledged[int(address)] = number
            process.kill()
            rest, _ = await process.communicate()
            for line in rest.splitlines():
                if len(parts := line.split()) == 2 and rest.endswith(b"\n"):
                    acknowledged[int(parts[0])] = parts[1]
    log = open_log(str(path))
    await log.initialize()
    found = {int(address): payload for address, payload in await entries(log)}
    await log.close()
    assert {address: found.get(address) for address in acknowledged} == acknowledged
