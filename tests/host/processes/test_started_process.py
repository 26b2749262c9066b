"""Goal: the parent knows of every process when it has ended, and how, whatever becomes of the launcher.

Method: real processes, which wait for their orders; they and the launcher are killed.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from segmentstore.host.processes.started_process import Launcher, StartedProcess
from segmentstore.runtime.local_processes import start_time


@pytest_asyncio.fixture
async def launcher() -> AsyncIterator[Launcher]:
    launcher = Launcher()
    yield launcher
    await launcher.close()


async def test_processes_are_forks_that_end_each_by_itself_and_the_parent_is_told_how(
    launcher: Launcher,
) -> None:
    first, second, third = [await launcher.fork() for _ in range(3)]
    assert len({first.pid, second.pid, third.pid, launcher.process_id}) == 4
    first.signal(signal.SIGKILL)
    assert await first.wait() == -signal.SIGKILL
    assert not start_time(first.pid)
    second.signal(signal.SIGTERM)
    assert await second.wait() == -signal.SIGTERM
    assert await second.wait() == -signal.SIGTERM
    assert start_time(third.pid), "it goes on"
    # Also before it has begun the session of its own: until then it is in the launcher's.
    assert os.getsid(third.pid) != os.getsid(0), "a terminal signals the parent alone"
    await third.kill()


async def test_a_process_that_outlives_its_launcher_has_ended_only_when_the_kernel_says_so(
    launcher: Launcher,
) -> None:
    before = await launcher.fork()
    killed = launcher.process_id
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    behind = await _fork_again(launcher)
    assert launcher.process_id not in (None, killed)
    waiting = asyncio.create_task(before.wait())
    await asyncio.sleep(0.2)
    assert not waiting.done()
    assert start_time(before.pid)
    before.signal(signal.SIGKILL)
    assert await waiting == 255, "there is no launcher that could say how"
    assert not start_time(before.pid)
    await behind.kill()


async def test_processes_have_the_modules_of_the_parent_and_none_of_the_directory_it_was_started_in(
    launcher: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lmdb.py").write_text("raise SystemExit('a file of the user, which is called so')")
    monkeypatch.chdir(tmp_path)
    process = await launcher.fork()
    await process.kill()


async def _fork_again(launcher: Launcher) -> StartedProcess:
    """That a process has been killed is known a moment later: until then it is asked in vain."""
    while True:
        try:
            return await launcher.fork()
        except OSError:
            await asyncio.sleep(0.01)
