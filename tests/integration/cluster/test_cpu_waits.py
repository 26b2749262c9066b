"""What processes waited for a processor: of each kind the one that waited longest, across restarts."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.integration.cluster.cpu_waits import CpuWaits, cpu_waits
from tests.integration.cluster.processes import Processes

SPINS = "while True: pass"
NODE, OTHER, CONTROLLER = 101, 102, 103


class Machine:
    """A file of processes, and what the kernel counts of them."""

    def __init__(self, directory: Path) -> None:
        self.proc = directory / "proc"
        self.processes = Processes(directory / "processes.json")
        self.has({"node0": NODE, "node1": OTHER, "controller0": CONTROLLER})
        self.waited({os.getpid(): 1.0, NODE: 5.0, OTHER: 6.0, CONTROLLER: 7.0})

    def has(self, pids: Mapping[str, int]) -> None:
        rows = [{"name": n, "role": n.rstrip("01"), "pid": pid} for n, pid in pids.items()]
        self.processes.path.write_text(json.dumps(rows))

    def waited(self, seconds: Mapping[int, float]) -> None:
        for pid, waited in seconds.items():
            file = self.proc / str(pid) / "schedstat"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"123456789 {round(waited * 1e9)} 42\n")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


async def later() -> float:
    """Another time than that of the look before."""
    await asyncio.sleep(0.01)
    return asyncio.get_running_loop().time()


async def test_one_of_each_kind_stands_for_all_since_the_first_look(machine: Machine) -> None:
    began = await later() - 1000
    waits = CpuWaits(machine.processes, proc=machine.proc)
    machine.waited({os.getpid(): 1.5, NODE: 7.0, OTHER: 6.5, CONTROLLER: 7.25})
    await later()
    waits.look()
    ended = await later()
    assert waits.seconds_between(began, ended) == pytest.approx(0.5 + 2.0 + 0.25)


async def test_a_process_that_was_started_again_has_waited_from_its_start(machine: Machine) -> None:
    waits = CpuWaits(machine.processes, proc=machine.proc)
    began = await later() - 1000
    machine.has({"node0": 201, "node1": OTHER, "controller0": CONTROLLER})
    waits.look()  # it has ended, or the kernel has not counted anything of it
    machine.waited({201: 3.0})
    waits.look()
    machine.waited({201: 4.0})
    await later()
    waits.look()
    assert waits.seconds_between(began, await later()) == pytest.approx(4.0)


async def test_only_what_was_waited_between_counts_and_never_more_than_that_time(
    machine: Machine,
) -> None:
    waits = CpuWaits(machine.processes, proc=machine.proc)
    machine.waited({NODE: 50.0})
    await later()
    waits.look()
    began = await later()
    waits.look()
    machine.waited({NODE: 50.0 + 1e-4})
    await later()
    waits.look()
    assert waits.seconds_between(began, await later()) == pytest.approx(1e-4)
    machine.waited({NODE: 1000.0})
    waits.look()
    ended = await later()
    assert waits.seconds_between(began, ended) == pytest.approx(ended - began)


async def test_without_the_kernels_count_nothing_has_waited(tmp_path: Path) -> None:
    processes = Machine(tmp_path).processes
    waits = CpuWaits(processes, proc=tmp_path / "none")
    waits.look()
    assert waits.seconds_between(0.0, await later()) == 0.0


async def test_a_process_that_shares_its_processor_waits_for_it(tmp_path: Path) -> None:
    if not Path("/proc/self/schedstat").exists():
        pytest.skip("this kernel does not count it")
    processor = min(os.sched_getaffinity(0))
    started = [subprocess.Popen([sys.executable, "-c", SPINS]) for _ in range(2)]
    try:
        for each in started:
            os.sched_setaffinity(each.pid, {processor})
        processes = Processes(tmp_path / "processes.json")
        rows = [{"name": "node0", "role": "node", "pid": started[0].pid}]
        processes.path.write_text(json.dumps(rows))
        loop = asyncio.get_running_loop()
        async with cpu_waits(processes) as waits:
            began = loop.time()
            async with asyncio.timeout(60):
                while waits.seconds_between(began, loop.time()) < 0.2:
                    await asyncio.sleep(0.05)
    finally:
        for each in started:
            each.kill()
            each.wait()
