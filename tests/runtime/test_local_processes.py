"""Processes that outlive the one that started them, and ports for them."""

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from segmentstore.runtime.local_processes import (
    LOOPBACK,
    LocalProcess,
    free_ports,
    is_listening,
    start_process,
)

SLEEP = "import time; print('up', flush=True); time.sleep(60)"
DEAF = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEP}"


def started(tmp_path: Path, program: str) -> LocalProcess:
    log = tmp_path / "log"
    process = start_process(
        [sys.executable, "-c", program], log=log, environment=os.environ, is_detached=True
    )
    while "up" not in log.read_text():
        assert process.runs
    return process


def dying(*, until: Path) -> str:
    """Its first thread ends, and leaves another behind until that file is there: so a JVM is for a moment that SIGKILL
    has met.
    """
    return f"""
import ctypes, os, threading, time

def stay():
    while not os.path.exists({str(until)!r}):
        time.sleep(0.01)

threading.Thread(target=stay).start()
print("up", flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""


async def test_a_process_runs_until_it_is_ended(tmp_path: Path) -> None:
    process = started(tmp_path, SLEEP)
    await process.end(seconds_max=30)
    assert not process.runs


async def test_a_process_that_has_ended_before_it_is_looked_at_runs_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spawn = os.posix_spawnp

    def spawn_until_it_has_ended(*given: Any, **named: Any) -> int:
        pid = spawn(*given, **named)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        return pid

    monkeypatch.setattr(os, "posix_spawnp", spawn_until_it_has_ended)
    process = start_process(
        ["true"], log=tmp_path / "log", environment=os.environ, is_detached=False
    )
    assert not process.runs
    async with asyncio.timeout(30):
        await process.end(seconds_max=0)


async def test_a_process_that_is_stopped_by_a_signal_runs(tmp_path: Path) -> None:
    process = started(tmp_path, SLEEP)
    process.send(signal.SIGSTOP)
    assert process.runs
    await process.end(signal.SIGKILL, seconds_max=30)


async def test_a_process_that_does_not_end_in_time_is_killed(tmp_path: Path) -> None:
    process = started(tmp_path, DEAF)
    await process.end(seconds_max=0.1)
    assert not process.runs


def test_a_process_is_ending_while_threads_of_it_are_left(tmp_path: Path) -> None:
    may_end = tmp_path / "may end"
    process = started(tmp_path, dying(until=may_end))
    try:
        wait_for(lambda: process.is_ending)
        assert process.runs, "what it holds is not free yet"
    finally:
        may_end.touch()
    wait_for(lambda: not process.is_ending)
    assert not process.runs


def test_a_process_is_ending_from_its_kill_on(tmp_path: Path) -> None:
    """Else what starts it again behind the kill would take it for one that runs."""
    for _ in range(20):
        process = started(tmp_path, SLEEP)
        process.send(signal.SIGKILL)
        assert process.is_ending or not process.runs
        while process.runs:
            time.sleep(0.001)
        (tmp_path / "log").unlink()


def wait_for(holds: Callable[[], bool]) -> None:
    while not holds():
        time.sleep(0.01)


def test_a_pid_that_another_process_has_now_is_no_process_of_ours() -> None:
    process = LocalProcess(os.getpid(), started=1)
    assert not process.runs
    process.send(signal.SIGKILL)


def test_there_is_no_process_with_pid_0() -> None:
    assert not LocalProcess().runs


def test_free_ports_are_different_and_nothing_listens_there() -> None:
    first, second = free_ports(2)
    assert first != second
    assert not is_listening(first)
    with socket.create_server((LOOPBACK, first)):
        assert is_listening(first)
        assert first not in free_ports(2)


def test_processes_with_pids_beside_one_another_choose_ports_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen: list[int] = []
    for pid in range(40_000, 40_006):
        monkeypatch.setattr(os, "getpid", lambda pid=pid: pid)
        chosen += free_ports(20)
    assert len(set(chosen)) == len(chosen)
