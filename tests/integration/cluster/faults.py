"""Faults of a cluster under load; what they cost its clients, and that they cost no acknowledged operation.

    python -m tests.integration.cluster.faults DIR/processes.json                   each fault once; minutes
    python -m tests.integration.cluster.faults DIR/processes.json --rounds 5 --only kill_node stop_node
    python -m tests.integration.cluster.faults DIR/processes.json --keep DIR        wrong histories as JSON

Each fault runs under clients of its own (workload.py), before, while and behind it. Then the cluster has to be whole
again: nodes are ready, and each segment takes an append. Last of all everything is read, and the history is checked:
there is one order of all operations that explains every answer (tests/linearizability). A line says how many
operations were checked, the longest time between two acknowledged appends to one segment, and, where a node was lost,
when the first and the last of its segments took an append again.
"""

import argparse
import asyncio
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import aiohttp

from tests.integration.cluster.history import History
from tests.integration.cluster.http_calls import url_of
from tests.integration.cluster.processes import Processes
from tests.integration.cluster.workload import Workload, WorkloadSettings, running
from tests.linearizability.checker import Violation, violations

_LOOK_SECONDS = 0.1
_RECOVER_SECONDS_MAX = 150.0


@dataclass(frozen=True, slots=True)
class FaultSettings:
    """Times in seconds."""

    before_seconds: float = 4.0
    after_seconds: float = 3.0
    session_seconds: float = 10.0
    """Of nodes and controllers in ZooKeeper: what is stopped for longer has lost it."""
    s3_seconds: float = 60.0
    """How long Tier 2 is away."""


@dataclass(slots=True)
class FaultRun:
    """What a fault has in its hands, and what it leaves for the report."""

    processes: Processes
    workload: Workload
    settings: FaultSettings
    random: Random
    session: aiohttp.ClientSession
    lost_at: float = 0.0
    lost_segments: Sequence[str] = ()

    async def segments_on(self, node: str) -> list[str]:
        """The long-lived segments whose containers the node has."""
        health = await self.health(node)
        here = {
            each["container"] for each in health.get("containers", []) if each["state"] == "running"
        }
        return [name for name in self.workload.segments if await self._container_of(name) in here]

    async def health(self, name: str) -> dict[str, list[dict[str, object]]]:
        """What a process says of itself; empty if it does not answer."""
        try:
            async with (
                asyncio.timeout(5),
                self.session.get(f"http://{self.processes.row(name).http}/health") as response,
            ):
                values = json.loads(await response.read())
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return {}
        assert isinstance(values, dict), values
        return values

    async def _container_of(self, name: str) -> object:
        node = self.random.choice(self.processes.rows("node"))
        url = url_of(node.http, name, "info")
        async with asyncio.timeout(20), self.session.get(url) as response:
            values = json.loads(await response.read())
        return values.get("container")

    async def lose(self, node: str) -> None:
        """The node's segments are those of which the failover is measured, from now on."""
        self.lost_segments = await self.segments_on(node)
        self.lost_at = asyncio.get_running_loop().time()

    async def until_taken_over(self) -> None:
        """Until the segments of the node that was lost take appends again."""
        async with asyncio.timeout(_RECOVER_SECONDS_MAX):
            while max(self.failover_seconds(), default=0.0) == float("inf"):
                await asyncio.sleep(_LOOK_SECONDS)

    def failover_seconds(self) -> list[float]:
        """Of each segment of the node that was lost."""
        history = self.workload.history
        return [history.seconds_until_append(each, self.lost_at) for each in self.lost_segments]

    async def until_ready(self, node: str) -> None:
        """Until a node that was started says that it is.

        One of several nodes is, for this, when no container of it starts or ends: it may have none, and is not told
        apart there from one that lacks those of others.
        """
        is_alone = len(self.processes.rows("node")) == 1
        async with asyncio.timeout(_RECOVER_SECONDS_MAX):
            while True:
                health = await self.health(node)
                states = {each["state"] for each in health.get("containers", [])}
                if health.get("ready") or (
                    health and not is_alone and states <= {"running", "stopped"}
                ):
                    return
                await asyncio.sleep(_LOOK_SECONDS)

    async def until_whole(self) -> None:
        """Until every node is ready, and each segment has taken an append that was sent after this call."""
        for node in self.processes.rows("node"):
            await self.until_ready(node.name)
        began = asyncio.get_running_loop().time()
        history = self.workload.history
        async with asyncio.timeout(_RECOVER_SECONDS_MAX):
            while any(
                history.seconds_until_append(each, began) == float("inf")
                for each in self.workload.segments
            ):
                await asyncio.sleep(_LOOK_SECONDS)

    async def leader(self) -> str:
        """The controller that leads; the first one if none says so."""
        controllers = self.processes.rows("controller")
        for each in controllers:
            if (await self.health(each.name)).get("leads"):
                return each.name
        return controllers[0].name

    def any_node(self) -> str:
        return self.random.choice(self.processes.rows("node")).name


async def nothing(run: FaultRun) -> None:
    """The cluster is left alone."""
    await asyncio.sleep(3)


async def kill_node(run: FaultRun) -> None:
    """A node dies by SIGKILL; it is started again when others have its containers, or at once if it is the only one."""
    node = run.any_node()
    await run.lose(node)
    await run.processes.kill(node)
    if len(run.processes.rows("node")) > 1:
        await run.until_taken_over()
    await run.processes.start(node)


async def kill_node_and_start(run: FaultRun) -> None:
    """A node dies by SIGKILL, and is started again at once."""
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
    leader = await run.leader()
    await run.processes.kill(leader)
    await asyncio.sleep(5)
    await run.processes.start(leader)


async def two_leaders(run: FaultRun) -> None:
    """The controller that leads stands still until another one leads, and goes on."""
    leader = await run.leader()
    run.processes.send(leader, signal.SIGSTOP)
    try:
        await asyncio.sleep(run.settings.session_seconds + 5)
    finally:
        run.processes.send(leader, signal.SIGCONT)
    await asyncio.sleep(3)


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
    bookie = run.random.choice(run.processes.rows("bookie")).name
    await run.processes.kill(bookie)
    await asyncio.sleep(4)
    await run.processes.start(bookie)


async def lose_zookeeper(run: FaultRun) -> None:
    """ZooKeeper dies by SIGKILL, and is back within some seconds. A bookie that ended by that is started again."""
    (zookeeper,) = run.processes.rows("zookeeper")
    await run.processes.kill(zookeeper.name)
    await asyncio.sleep(1)
    await run.processes.start(zookeeper.name)
    await asyncio.sleep(run.settings.session_seconds)
    # One whose session is over, and whose old registration is still there, gives up.
    for bookie in run.processes.rows("bookie"):
        await run.processes.start(bookie.name)


async def lose_s3(run: FaultRun) -> None:
    """The server of Tier 2 is away for a while."""
    (s3,) = run.processes.rows("s3")
    await run.processes.kill(s3.name)
    await asyncio.sleep(run.settings.s3_seconds)
    await run.processes.start(s3.name)


async def rolling_restart(run: FaultRun) -> None:
    """Each node is ended by SIGTERM and started again, one after the other."""
    for node in run.processes.rows("node"):
        await run.processes.end(node.name)
        await run.processes.start(node.name)
        await run.until_ready(node.name)


async def fill_bookie(run: FaultRun) -> None:
    """The disk of a bookie, one of 200 MB, becomes full for twenty seconds, which ends it. Needs the right to mount."""
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


@asynccontextmanager
async def _on_a_small_disk(processes: Processes, bookie: str) -> AsyncIterator[Path]:
    directory = processes.path.parent / "bookkeeper" / bookie
    aside = directory.with_name(f"{bookie}.aside")
    await processes.kill(bookie)
    directory.rename(aside)
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=200m", "none", str(directory)]
    subprocess.run(mount, check=True, capture_output=True)
    try:
        shutil.copytree(aside, directory, dirs_exist_ok=True)
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
)


@dataclass(frozen=True, slots=True)
class Report:
    """Of one fault."""

    fault: str
    history: History
    longest_pause_seconds: float
    failover_seconds: Sequence[float]
    violations: Sequence[Violation]
    seconds: float
    unknown: int = field(default=0)

    def __str__(self) -> str:
        failover = ""
        if self.failover_seconds:
            first, last = min(self.failover_seconds), max(self.failover_seconds)
            failover = f" failover={first:.2f}..{last:.2f} s"
        verdict = "" if not self.violations else f" VIOLATIONS={len(self.violations)}"
        return (
            f"{self.fault:<22} checked={self.history.checked_count} unknown={self.unknown}"
            f" refused={self.history.left_out} longest_pause={self.longest_pause_seconds:.2f} s"
            f"{failover} seconds={self.seconds:.0f}{verdict}"
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
    settings = settings or FaultSettings()
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with (
        aiohttp.ClientSession() as session,
        running(
            processes, settings=work or WorkloadSettings(), random=random, prefix=prefix
        ) as workload,
    ):
        run = FaultRun(processes, workload, settings, random, session)
        await run.until_whole()
        await asyncio.sleep(settings.before_seconds)
        since = loop.time()
        await fault(run)
        await run.until_whole()
        await asyncio.sleep(settings.after_seconds)
    history = workload.history
    found = await asyncio.to_thread(violations, history.operations)
    pauses = [history.longest_pause_seconds(each, since - 1) for each in workload.segments]
    return Report(
        fault.__name__,
        history,
        max(pauses),
        run.failover_seconds(),
        found,
        loop.time() - began,
        len(history.operations) - history.checked_count,
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


async def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.integration.cluster.faults")
    parser.add_argument("processes", type=Path)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--session-seconds", type=float, default=10.0)
    parser.add_argument("--only", nargs="*", choices=[each.__name__ for each in FAULTS], default=())
    parser.add_argument("--http-only", action="store_true", help="neither streams nor tables")
    parser.add_argument("--keep", type=Path, default=Path("histories"))
    given = parser.parse_args(arguments)
    processes = Processes(given.processes)
    work = WorkloadSettings(table_clients=0) if given.http_only else WorkloadSettings()
    random = Random(given.seed)
    failed = 0
    for number in range(given.rounds):
        for fault in FAULTS:
            if given.only and fault.__name__ not in given.only:
                continue
            prefix = f"faults/{given.seed}-{number}/{fault.__name__}"
            settings = FaultSettings(session_seconds=given.session_seconds)
            try:
                report = await report_of(
                    fault, processes, random=random, prefix=prefix, settings=settings, work=work
                )
            except (AssertionError, TimeoutError, BaseExceptionGroup) as error:
                failed += 1
                print(f"{fault.__name__:<22} FAILED {error!r}", flush=True)  # noqa: T201
                continue
            print(report, flush=True)  # noqa: T201
            for each in report.violations:
                failed += 1
                print(each, f"kept in {kept(report, given.keep)}", sep="\n", flush=True)  # noqa: T201
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
