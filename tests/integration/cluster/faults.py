"""Faults of a cluster under load; what they cost its clients, and that they cost no acknowledged operation.

    python -m tests.integration.cluster.faults DIR/processes.json                   each fault once; minutes
    python -m tests.integration.cluster.faults DIR/processes.json --rounds 5 --only kill_node stop_node
    python -m tests.integration.cluster.faults DIR/processes.json --rounds 20 --cuts 1   each partition in one direction
    python -m tests.integration.cluster.faults DIR/processes.json --keep DIR        wrong histories as JSON

Each fault runs under clients of its own (workload.py), before, while and behind it. Then the cluster has to be whole
again: nodes are ready, and each segment takes an append. Last of all everything is read, and the history is checked:
there is one order of all operations that explains every answer (tests/linearizability). A line says how many
operations were checked, the longest time between two acknowledged appends to one segment, and, where a node was lost,
when the first and the last of its segments took an append again.

Over all faults of a round Pravega's Java client writes and reads events and transactions (pravega_load.py), and a Kafka
client records (kafka_load.py). Behind each fault they have to go on, while the next one works; behind the last one each
event and each record was there once, in its order.
"""

import argparse
import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from random import Random

import aiohttp

from tests.integration.bookkeeper.registered_bookies import registered
from tests.integration.cluster.clock_faults import step_clock_of_leader, step_clock_of_node
from tests.integration.cluster.cluster_health import LOOK_SECONDS, RECOVER_SECONDS_MAX
from tests.integration.cluster.cpu_waits import cpu_waits
from tests.integration.cluster.fault_run import PROMISED_PAUSE_SECONDS, FaultRun, FaultSettings
from tests.integration.cluster.history import History
from tests.integration.cluster.kafka_load import KafkaLoad, kafka_load
from tests.integration.cluster.partition_faults import (
    cut_bookie_from_zookeeper,
    cut_leader_from_zookeeper,
    cut_node_from_bookies,
    cut_node_from_bookies_for_long,
    cut_node_from_s3,
    cut_node_from_s3_for_long,
    cut_node_from_zookeeper,
    cut_node_off,
)
from tests.integration.cluster.pravega_load import PravegaLoad, pravega_loads
from tests.integration.cluster.processes import Processes
from tests.integration.cluster.shimmed_processes import ShimmedProcess, all_shimmed
from tests.integration.cluster.workload import WorkloadSettings, running
from tests.linearizability.checker import Violation, violations


async def nothing(run: FaultRun) -> None:
    """The cluster is left alone."""
    await asyncio.sleep(3)


async def kill_node(run: FaultRun) -> None:
    """A node dies by SIGKILL; it is started again when others have its containers, or at once if it is the only one."""
    run.pause_seconds_max = PROMISED_PAUSE_SECONDS
    node = run.any_node()
    await run.lose(node)
    await run.processes.kill(node)
    if len(run.processes.rows("node")) > 1:
        await run.until_taken_over()
    await run.processes.start(node)


async def kill_node_and_start(run: FaultRun) -> None:
    """A node dies by SIGKILL, and is started again at once."""
    run.pause_seconds_max = PROMISED_PAUSE_SECONDS
    node = run.any_node()
    await run.lose(node)
    await run.processes.kill(node)
    await run.processes.start(node)


async def stop_node(run: FaultRun) -> None:
    """A node stands still until its session is over, and is asked all the time; then it goes on, and answers."""
    node = run.any_node()
    await run.lose(node)
    run.processes.send(node, signal.SIGSTOP)
    asking = asyncio.create_task(_ask_the_stopped(run, node))
    try:
        await asyncio.sleep(run.settings.session_seconds + 5)
        await run.until_taken_over()
    finally:
        run.processes.send(node, signal.SIGCONT)
    await asking


async def _ask_the_stopped(run: FaultRun, node: str) -> None:
    """Requests that wait in its sockets; their answers, if there are any, are in the history."""
    seconds = run.settings.session_seconds + 4
    client = run.workload.client(node, seconds_max=60.0)
    async with asyncio.TaskGroup() as group:
        for _ in range(int(seconds / 0.25)):
            name = run.random.choice(run.workload.segments)
            group.create_task(run.workload.any_call(client, name))
            await asyncio.sleep(0.25)


async def kill_leader(run: FaultRun) -> None:
    """The controller that leads dies by SIGKILL, and comes back after some seconds."""
    run.pause_seconds_max = PROMISED_PAUSE_SECONDS
    leader = await run.leader()
    await run.processes.kill(leader)
    await asyncio.sleep(5)
    await run.processes.start(leader)


async def two_leaders(run: FaultRun) -> None:
    """The controller that leads stands still until another one leads and has decided; then it goes on.

    A node dies just before it is stopped, so that it may have that decision before it, which another one makes
    meanwhile. Behind it one leads.
    """
    leader, node = await run.until_one_leads(), run.any_node()
    await run.lose(node)
    await run.processes.kill(node)
    await asyncio.sleep(run.settings.session_seconds * run.random.random())
    run.processes.send(leader, signal.SIGSTOP)
    try:
        await run.until_one_leads(other_than=leader)
        await run.until_taken_over()
        await run.processes.start(node)
        await run.until_it_has_containers(node)
    finally:
        run.processes.send(leader, signal.SIGCONT)
    await asyncio.sleep(3)
    async with asyncio.timeout(RECOVER_SECONDS_MAX):
        # One that leads may be slow to say so, and one that leads no more to notice.
        while len(leading := await _leading(run)) != 1:
            await asyncio.sleep(LOOK_SECONDS)
    assert leading != [leader], "the one that was stopped leads, and was not elected again"


async def _leading(run: FaultRun) -> list[str]:
    """Controllers that say that they lead."""
    return [
        each.name
        for each in run.processes.rows("controller")
        if (await run.health(each.name)).get("leads")
    ]


async def kill_leader_and_node(run: FaultRun) -> None:
    """The controller that leads and a node die together, by SIGKILL."""
    leader, node = await run.leader(), run.any_node()
    await run.lose(node)
    await run.processes.kill(node)
    await run.processes.kill(leader)
    await run.until_taken_over()
    await run.processes.start(leader)
    await run.processes.start(node)


async def kill_bookie(run: FaultRun) -> None:
    """A bookie dies by SIGKILL, and comes back after some seconds."""
    run.pause_seconds_max = PROMISED_PAUSE_SECONDS
    bookie = run.random.choice(run.processes.rows("bookie")).name
    await run.processes.kill(bookie)
    await asyncio.sleep(4)
    await run.processes.start(bookie)


async def lose_zookeeper(run: FaultRun) -> None:
    """ZooKeeper dies by SIGKILL, and is back within some seconds. A bookie that ended by that is started again."""
    (zookeeper,) = run.processes.rows("zookeeper")
    loop = asyncio.get_running_loop()
    killed_at = loop.time()
    await run.processes.kill(zookeeper.name)
    await asyncio.sleep(1)
    await run.processes.start(zookeeper.name)
    await run.until_it_works(zookeeper.name)
    gone_seconds = loop.time() - killed_at
    # Sessions and leases outlive it if it was back soon; its JVM may need longer on a busy machine.
    run.notes.append(f"ZooKeeper listens again behind {gone_seconds:.1f} s")
    if gone_seconds <= _ZOOKEEPER_SECONDS_MAX:
        run.pause_seconds_max = PROMISED_PAUSE_SECONDS
    await asyncio.sleep(run.settings.session_seconds)
    # One whose session is over, and whose old registration is still there, gives up; perhaps not at once.
    bookies = run.processes.rows("bookie")
    servers, ports = f"127.0.0.1:{zookeeper.port}", [each.port for each in bookies]
    async with asyncio.timeout(RECOVER_SECONDS_MAX):
        while await asyncio.to_thread(registered, servers, ports) < len(ports):
            for bookie in bookies:
                await run.processes.start(bookie.name)
            await asyncio.sleep(1)


async def lose_s3(run: FaultRun) -> None:
    """The server of Tier 2 is away for a while."""
    run.pause_seconds_max = PROMISED_PAUSE_SECONDS
    (s3,) = run.processes.rows("s3")
    await run.processes.kill(s3.name)
    await asyncio.sleep(run.settings.s3_seconds)
    await run.processes.start(s3.name)


async def rolling_restart(run: FaultRun) -> None:
    """Each node is ended by SIGTERM, which drains it first, and started again, one after the other."""
    for node in run.processes.rows("node"):
        await run.processes.end(node.name)
        await run.processes.start(node.name)
        await run.until_ready(node.name)


async def fill_bookie(run: FaultRun) -> None:
    """The disk of a bookie, with 100 MB free, is full for twenty seconds, which ends it. Needs the right to mount."""
    bookie = run.random.choice(run.processes.rows("bookie")).name
    async with _on_a_small_disk(run.processes, bookie) as directory:
        ballast = directory / "ballast"
        with ballast.open("wb") as file:
            try:
                while True:
                    file.write(bytes(1 << 20))
                    file.flush()
            except OSError:
                pass
        await asyncio.sleep(20)
        ballast.unlink()
        await asyncio.sleep(3)


_FREE_BYTES = 100 << 20


@asynccontextmanager
async def _on_a_small_disk(processes: Processes, bookie: str) -> AsyncIterator[Path]:
    directory = processes.path.parent / "bookkeeper" / bookie
    aside = directory.with_name(f"{bookie}.aside")
    await processes.kill(bookie)
    directory.rename(aside)
    directory.mkdir()
    size = sum(each.stat().st_size for each in aside.rglob("*") if each.is_file()) + _FREE_BYTES
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(directory)]
    subprocess.run(mount, check=True, capture_output=True)
    # Until all is copied, what is aside is the only copy that is whole.
    shutil.copytree(aside, directory, dirs_exist_ok=True)
    try:
        await processes.start(bookie)
        await asyncio.sleep(5)
        yield directory
    finally:
        await processes.kill(bookie)
        shutil.rmtree(aside)
        shutil.copytree(directory, aside)
        subprocess.run(["umount", "--lazy", str(directory)], check=True, capture_output=True)
        directory.rmdir()
        aside.rename(directory)
        await processes.start(bookie)


Fault = Callable[[FaultRun], Awaitable[None]]
FAULTS: Sequence[Fault] = (
    nothing,
    kill_node,
    kill_node_and_start,
    stop_node,
    kill_leader,
    two_leaders,
    kill_leader_and_node,
    kill_bookie,
    lose_zookeeper,
    lose_s3,
    rolling_restart,
    fill_bookie,
    cut_node_from_zookeeper,
    cut_node_from_bookies,
    cut_node_from_bookies_for_long,
    cut_node_from_s3,
    cut_node_from_s3_for_long,
    cut_node_off,
    cut_bookie_from_zookeeper,
    cut_leader_from_zookeeper,
    step_clock_of_node,
    step_clock_of_leader,
)
SHIMMED: Sequence[Fault] = FAULTS[FAULTS.index(cut_node_from_zookeeper) :]
"""They set a process's clock, or cut its connections."""


_WITHOUT_UNKNOWN = frozenset((nothing.__name__, rolling_restart.__name__))
"""Here each request of a client that waits is answered; if that nothing was done, another node is asked next."""
_PATIENT_SECONDS = 120.0
_PATIENT_SILENCE_SECONDS = 60.0
"""No process stands still here, but the machine may be slow."""
_ZOOKEEPER_SECONDS_MAX = 3.0
"""That it may be gone for, where a pause is promised."""


@dataclass(frozen=True, slots=True)
class Report:
    """Of one fault."""

    fault: str
    history: History
    longest_pause_seconds: float
    cpu_wait_seconds: float
    """Of the longest pause, behind the time of a session: what its processes waited for a processor (cpu_waits.py)."""
    pause_seconds_max: float
    failover_seconds: Sequence[float]
    seconds: float
    fault_seconds: float
    """From its beginning until the cluster was whole again."""
    load: float
    """Of this machine: processes that wanted to run, in the mean of the last minute."""
    notes: Sequence[str] = ()
    violations: Sequence[Violation] = ()

    @property
    def own_pause_seconds(self) -> float:
        """The longest pause without what the machine added to it."""
        return self.longest_pause_seconds - self.cpu_wait_seconds

    @property
    def is_too_long(self) -> bool:
        """Whether a pause was longer than is promised, and not for want of a processor."""
        return self.own_pause_seconds > self.pause_seconds_max

    @property
    def failed_requests(self) -> Mapping[str, int]:
        """Of a fault that must not have any: what was said of requests whose outcome is unknown."""
        return self.history.lost if self.fault in _WITHOUT_UNKNOWN else {}

    def __str__(self) -> str:
        failover = ""
        if self.failover_seconds:
            first, last = min(self.failover_seconds), max(self.failover_seconds)
            failover = f" failover={first:.2f}..{last:.2f} s"
        verdict = "" if not self.violations else f" VIOLATIONS={len(self.violations)}"
        refused = "".join(f"\n    {count} x {kind}" for kind, count in self.history.refused_kinds())
        notes = "".join(f"\n    {note}" for note in self.notes)
        return (
            f"{self.fault:<31} checked={self.history.checked_count} unknown={self.history.unknown_count}"
            f" refused={self.history.refused.total()} longest_pause={self.longest_pause_seconds:.2f} s"
            f" cpu_wait={self.cpu_wait_seconds:.2f} s{failover} seconds={self.seconds:.0f}"
            f" fault={self.fault_seconds:.0f} load={self.load:.0f}"
            f"{verdict}{notes}{refused}"
        )


async def report_of(
    fault: Fault,
    processes: Processes,
    *,
    random: Random,
    prefix: str,
    settings: FaultSettings | None = None,
    work: WorkloadSettings | None = None,
) -> Report:
    """One fault under load, checked."""
    tried = await report_of_unchecked(
        fault, processes, random=random, prefix=prefix, settings=settings, work=work
    )
    return replace(tried, violations=await asyncio.to_thread(violations, tried.history.operations))


async def report_of_unchecked(
    fault: Fault,
    processes: Processes,
    *,
    random: Random,
    prefix: str,
    settings: FaultSettings | None = None,
    work: WorkloadSettings | None = None,
    shimmed: Mapping[str, ShimmedProcess] | None = None,
) -> Report:
    """One fault under load; its history is not checked yet. `shimmed`: processes that have their shims already."""
    settings = settings or FaultSettings()
    work = work or WorkloadSettings()
    if fault.__name__ in _WITHOUT_UNKNOWN:
        work = replace(
            work,
            http_seconds_max=_PATIENT_SECONDS,
            call_seconds_max=_PATIENT_SECONDS,
            silence_seconds=_PATIENT_SILENCE_SECONDS,
        )
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with (
        aiohttp.ClientSession() as session,
        cpu_waits(processes) as waits,
        running(processes, settings=work, random=random, prefix=prefix) as workload,
    ):
        run = FaultRun(processes, session, workload, settings, random, shimmed or {})
        await run.until_whole()
        await asyncio.sleep(settings.before_seconds)
        await run.until_more_is_answered(settings.operations_min)
        since = loop.time()
        await fault(run)
        await run.until_whole()
        fault_seconds = loop.time() - since
        await asyncio.sleep(settings.after_seconds)
        await run.until_more_is_answered(settings.operations_min)
    history = workload.history
    pauses = [history.longest_pause(each, since - 1) for each in workload.segments]
    paused, resumed = max(pauses, key=lambda pause: pause[1] - pause[0])
    # Until a session is over all wait for that, whether they have a processor or not.
    session_over = min(paused + settings.session_seconds, resumed)
    return Report(
        fault.__name__,
        history,
        resumed - paused,
        waits.seconds_between(session_over, resumed),
        run.pause_seconds_max,
        run.failover_seconds(),
        loop.time() - began,
        fault_seconds,
        os.getloadavg()[0],
        run.notes,
    )


def kept(report: Report, directory: Path) -> Path:
    """The file with the operations on the targets that have a violation, one a line."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{report.fault}.jsonl"
    targets = {each.target for each in report.violations}
    lines = [
        json.dumps({"target": each.target, **each.as_json()})
        for each in report.history.operations
        if each.target in targets
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


@dataclass(slots=True)
class _Round:
    """Each of some faults once; what they came to is printed."""

    name: str
    processes: Processes
    random: Random
    settings: FaultSettings
    work: WorkloadSettings
    keep: Path
    shimmed: Mapping[str, ShimmedProcess]
    checker: Executor
    """Histories are checked in a process beside the faults: it is one thread, and would slow the clients down."""
    checked: int = 0
    failed: int = 0
    longest_pause_seconds: float = 0.0

    async def run(self, faults: Sequence[Fault], *, with_pravega: bool, with_kafka: bool) -> None:
        loads: list[PravegaLoad | KafkaLoad] = []
        async with AsyncExitStack() as stack:
            if with_pravega:
                pravega = pravega_loads(
                    self.processes.controllers,
                    scope=f"round-{self.name}",
                    directory=self.processes.path.parent / "pravega",
                    seconds_max=600.0 + 400.0 * len(faults),
                )
                loads += await stack.enter_async_context(pravega)
            if with_kafka:
                kafka = kafka_load(self.processes.kafka, topic=f"round-{self.name}")
                loads.append(await stack.enter_async_context(kafka))
            await self._run(faults, loads)
            for each in loads:
                await each.finish()
                self.checked += each.read
                _say(str(each))

    async def _run(self, faults: Sequence[Fault], loads: Sequence[PravegaLoad | KafkaLoad]) -> None:
        """While the next fault runs each history is checked, and each load has to go on.

        Pravega's client pauses up to half a minute between its attempts: to wait for that takes a third of a round.
        """
        behind: list[asyncio.Task[None]] = []
        try:
            for fault in faults:
                report = await self._try(fault)
                # What has failed ends the round here, where no process is on its way down or up.
                await asyncio.gather(*(each for each in behind if each.done()))
                behind += [asyncio.create_task(each.until_it_goes_on()) for each in loads]
                if report is not None:
                    behind.append(asyncio.create_task(self._check(report)))
            await asyncio.gather(*behind)
        finally:
            for each in behind:
                each.cancel()
            await asyncio.gather(*behind, return_exceptions=True)

    async def _try(self, fault: Fault) -> Report | None:
        try:
            return await report_of_unchecked(
                fault,
                self.processes,
                random=self.random,
                prefix=f"faults/{self.name}/{fault.__name__}",
                settings=self.settings,
                work=self.work,
                shimmed=self.shimmed,
            )
        except _FAILURES as error:
            self.fail(fault.__name__, error)
            return None

    async def _check(self, report: Report) -> None:
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self.checker, violations, report.history.operations)
        self._note(replace(report, violations=found))

    def fail(self, name: str, error: BaseException) -> None:
        self.failed += 1
        _say(f"{name:<31} FAILED {''.join(traceback.format_exception(error))}")

    def _note(self, report: Report) -> None:
        self.checked += report.history.checked_count
        self.longest_pause_seconds = max(self.longest_pause_seconds, report.longest_pause_seconds)
        _say(str(report))
        if report.failed_requests:
            self.failed += 1
            _say(f"failed requests: {report.failed_requests}")
        if report.is_too_long:
            self.failed += 1
            _say(f"longer than is promised: {report.own_pause_seconds:.2f} s")
        for each in report.violations:
            self.failed += 1
            _say(f"{each}\nkept in {kept(report, self.keep)}")


_FAILURES = (AssertionError, TimeoutError, BaseExceptionGroup)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.integration.cluster.faults")
    parser.add_argument("processes", type=Path)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--session-seconds", type=float, default=10.0)
    parser.add_argument(
        "--s3-seconds",
        type=float,
        nargs="+",
        default=[120.0],
        help="that Tier 2 is away, in the first round, the second, ...; the last one for all behind it",
    )
    parser.add_argument(
        "--pause-seconds",
        type=float,
        default=WorkloadSettings().pause_seconds,
        help="of each client of segments and tables between two calls",
    )
    parser.add_argument("--cuts", type=int, choices=(1, 2, 3), default=3, help="of each partition")
    parser.add_argument("--only", nargs="*", choices=[each.__name__ for each in FAULTS], default=())
    parser.add_argument("--http-only", action="store_true", help="neither streams nor tables")
    parser.add_argument("--without-pravega", action="store_true", help="without its Java client")
    parser.add_argument("--without-kafka", action="store_true", help="without a Kafka client")
    parser.add_argument("--keep", type=Path, default=Path("histories"))
    given = parser.parse_args(arguments)
    processes = Processes(given.processes)
    work = WorkloadSettings(pause_seconds=given.pause_seconds)
    if given.http_only:
        work = replace(work, table_clients=0)
    random = Random(given.seed)
    chosen = [each for each in FAULTS if not given.only or each.__name__ in given.only]
    settings = FaultSettings(
        before_seconds=1.0,
        after_seconds=1.0,
        session_seconds=given.session_seconds,
        cuts=given.cuts,
    )
    passed_in_a_row = 0
    this_task = asyncio.current_task()
    assert this_task is not None, "a coroutine that runs is in a task"
    # Ended from outside it ends what it started as well: Pravega's clients, proxies and shims.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this_task.cancel)
    async with AsyncExitStack() as stack:
        checker = stack.enter_context(ProcessPoolExecutor(1, get_context("spawn")))
        shimmed: Mapping[str, ShimmedProcess] = {}
        if any(each in SHIMMED for each in chosen):
            shimmed = await stack.enter_async_context(all_shimmed(processes))
        for number in range(given.rounds):
            name = f"{int(time.time())}-{number}"
            s3_seconds = given.s3_seconds[min(number, len(given.s3_seconds) - 1)]
            one_round = _Round(
                name,
                processes,
                random,
                replace(settings, s3_seconds=s3_seconds),
                work,
                given.keep,
                shimmed,
                checker,
            )
            began = time.monotonic()
            try:
                await one_round.run(
                    chosen,
                    with_pravega=not given.without_pravega,
                    with_kafka=not given.without_kafka and bool(processes.kafka),
                )
            except _FAILURES as error:
                one_round.fail("round", error)
            passed_in_a_row = 0 if one_round.failed else passed_in_a_row + 1
            _say(
                f"round {number + 1} of {given.rounds}: faults={len(chosen)} checked={one_round.checked}"
                f" failed={one_round.failed} longest_pause={one_round.longest_pause_seconds:.2f} s"
                f" seconds={time.monotonic() - began:.0f} rounds_passed_in_a_row={passed_in_a_row}"
            )
    return 0 if passed_in_a_row == given.rounds else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
