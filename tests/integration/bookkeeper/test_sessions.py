"""Nodes and leaders over a real ZooKeeper are killed, stopped and continued; ZooKeeper itself is ended and started.

What is measured on the way is printed (`-s`); docs/cluster.md has the figures.
"""

import asyncio
import json
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from segmentstore.cluster.records import NODES_PATH
from segmentstore.coordination.coordination_store import CoordinationStore
from tests.integration.bookkeeper.cluster import Cluster
from tests.integration.bookkeeper.cluster_process import VALUE_PATH

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SESSION = 4.0
LONG_SESSION = 20.0
"""Of one that must not be lost by a stalled disk or a busy machine: the longest that ZooKeeper gives."""
_SECONDS_MAX = 180.0


@dataclass
class Child:
    """One process of cluster_process.py, and what it has written."""

    process: Process
    said: list[dict[str, Any]] = field(default_factory=list)

    def facts(self, what: str) -> list[dict[str, Any]]:
        return [each for each in self.said if each["what"] == what]

    def send(self, number: int) -> float:
        """When it was sent, on the clock of all processes."""
        self.process.send_signal(number)
        return time.monotonic()

    async def listen(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            self.said.append(json.loads(line))


@asynccontextmanager
async def child(cluster: Cluster, role: str, name: str, seconds: float) -> AsyncIterator[Child]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.integration.bookkeeper.cluster_process",
        role,
        cluster.ensemble.servers,
        cluster.root,
        str(seconds),
        name,
        stdout=PIPE,
    )
    made = Child(process)
    listening = asyncio.ensure_future(made.listen())
    try:
        yield made
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        await listening


async def until(is_so: Callable[[], bool]) -> float:
    """When it was so, on the clock of all processes."""
    async with asyncio.timeout(_SECONDS_MAX):
        while not is_so():
            await asyncio.sleep(0.02)
    return time.monotonic()


async def until_gone(store: CoordinationStore, name: str) -> float:
    async with asyncio.timeout(_SECONDS_MAX):
        while any(each.startswith(name) for each in await store.children(NODES_PATH)):
            await asyncio.sleep(0.02)
    return time.monotonic()


def tell(words: str) -> None:
    sys.stdout.write(f"measured: {words}\n")


async def test_h84_nothing_of_a_stopped_leader_lands_when_another_leads(cluster: Cluster) -> None:
    store = await cluster.session(session_seconds=LONG_SESSION)
    async with child(cluster, "controller", "a", LONG_SESSION) as first:
        await until(lambda: bool(first.facts("leads")))
        async with child(cluster, "controller", "b", LONG_SESSION) as second:
            await asyncio.sleep(2.0)
            assert not second.facts("leads"), "two lead"
            stopped = first.send(signal.SIGSTOP)
            leads = await until(lambda: bool(second.facts("leads")))
            tell(
                f"SIGSTOP of a leader until another leads {leads - stopped:.1f} s,"
                f" session {LONG_SESSION} s"
            )
            assert second.facts("leads")[0]["epoch"] == first.facts("leads")[0]["epoch"] + 1
            await asyncio.sleep(1.0)
            first.send(signal.SIGCONT)
            await asyncio.sleep(SESSION)
            assert second.process.returncode is None, "a write of the first came between"
            assert len(second.facts("leads")) == 1
            found = await store.get(VALUE_PATH)
            assert found is not None
            assert json.loads(found.value)["epoch"] == second.facts("leads")[0]["epoch"]
            # It is a candidate again, and leads when the second has gone.
            second.send(signal.SIGKILL)
            await until(lambda: len(first.facts("leads")) == 2)


async def test_h83_a_killed_node_is_gone_with_its_session_and_a_stopped_one_has_lost_its_lease_before(
    cluster: Cluster,
) -> None:
    store = await cluster.session(session_seconds=LONG_SESSION)
    async with child(cluster, "node", "killed", SESSION) as killed:
        await until(lambda: bool(killed.facts("registered")))
        at = killed.send(signal.SIGKILL)
        seconds = await until_gone(store, "killed") - at
        tell(f"SIGKILL of a node until it is gone {seconds:.1f} s, session {SESSION} s")
    async with child(cluster, "node", "stopped", SESSION) as stopped:
        await until(lambda: bool(stopped.facts("registered")))
        before = len(stopped.facts("registered"))
        at = stopped.send(signal.SIGSTOP)
        gone = await until_gone(store, "stopped")
        tell(f"SIGSTOP of a node until it is gone {gone - at:.1f} s, session {SESSION} s")
        resumed = stopped.send(signal.SIGCONT)
        await until(lambda: len(stopped.facts("registered")) > before)
        lost = stopped.facts("lost")[-1]["at"]
        registered = stopped.facts("registered")[-1]["at"]
        tell(
            f"SIGCONT until it knows {lost - resumed:.2f} s, is registered anew {registered - resumed:.2f} s"
        )
        nodes = [each["node"] for each in stopped.facts("registered")]
        assert len(set(nodes)) == len(nodes) > before


async def test_h83_a_session_outlives_a_restart_of_zookeeper(cluster: Cluster) -> None:
    ensemble = cluster.ensemble
    # Of it all but four seconds is left to a node on a busy machine to come back.
    async with child(cluster, "node", "node", LONG_SESSION) as node:
        await until(lambda: len(node.facts("heartbeat")) > 10)
        beats = sorted(each["seconds"] for each in node.facts("heartbeat"))
        tell(
            f"heartbeat median {1000 * beats[len(beats) // 2]:.1f} ms, worst {1000 * beats[-1]:.1f} ms"
        )
        began = time.monotonic()
        ensemble.send(ensemble.zookeeper, signal.SIGKILL)
        await until(lambda: not ensemble.runs(ensemble.zookeeper))
        await ensemble.start_zookeeper()
        seconds = time.monotonic() - began
        await asyncio.sleep(5.0)
        is_kept = len(node.facts("registered")) == 1 and not node.facts("lost")
        tell(f"ZooKeeper was gone for {seconds:.1f} s: session kept: {is_kept}")
        store = await cluster.session(session_seconds=LONG_SESSION)
        async with asyncio.timeout(_SECONDS_MAX):
            while node.facts("registered")[-1]["node"] not in await store.children(NODES_PATH):
                await asyncio.sleep(0.1)
        if seconds < 4.0:
            assert is_kept
