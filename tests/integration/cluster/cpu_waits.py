"""How long processes were ready to run, and waited for a processor: what of a pause is the machine's, and not theirs.

A failover passes through one node, the controller that leads, and this process, where clients, proxies and what
starts processes are. Each does its work in its first thread; of that thread the kernel counts the seconds in which it
was ready and did not run (the second number of /proc/PID/schedstat). Of nodes and of controllers the one that waited
longest stands for all. JVMs, which do their work in other threads, are not counted, so that the machine's share is
rather larger than what is told here. Without that file nothing is known to have waited.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.integration.cluster.processes import Processes

_LOOK_SECONDS = 0.5
_OWN = "this process"
_ROLES = ("node", "controller")


class CpuWaits:
    """Of the processes of one cluster, since it was made. Times are those of the loop. Made by `cpu_waits`."""

    def __init__(self, processes: Processes, *, proc: Path = Path("/proc")) -> None:
        self._processes = processes
        self._proc = proc
        self._last: dict[str, tuple[int, float]] = {}
        """By name: its process id, and what that had waited when it was looked at last."""
        self._waited: dict[tuple[str, str], float] = {}
        """By role and name, over all processes that had the name."""
        self._samples: list[tuple[float, dict[tuple[str, str], float]]] = []
        self.look()

    def look(self) -> None:
        is_first = not self._samples
        for role, name, pid in self._each():
            waited = self._waited_seconds(pid)
            if waited is None:
                continue
            # All that a process has waited is new, if it was started since the last look.
            before_pid, before = self._last.get(name, (0, waited if is_first else 0.0))
            known = before if before_pid in (pid, 0) else 0.0
            self._last[name] = pid, waited
            key = role, name
            self._waited[key] = self._waited.get(key, 0.0) + waited - known
        self._samples.append((asyncio.get_running_loop().time(), dict(self._waited)))

    def seconds_between(self, since: float, until: float) -> float:
        """By one process of each kind, one after the other; never more than the time between."""
        first = next((waited for at, waited in reversed(self._samples) if at <= since), {})
        last = next((waited for at, waited in self._samples if at >= until), self._waited)
        longest: dict[str, float] = {}
        for key, waited in last.items():
            role, _ = key
            longest[role] = max(longest.get(role, 0.0), waited - first.get(key, 0.0))
        return min(until - since, sum(longest.values()))

    def _each(self) -> Iterator[tuple[str, str, int]]:
        yield _OWN, _OWN, os.getpid()
        for role in _ROLES:
            for row in self._processes.rows(role):
                yield role, row.name, row.pid

    def _waited_seconds(self, pid: int) -> float | None:
        try:
            _, waited, _ = (self._proc / str(pid) / "schedstat").read_text().split()
        except (OSError, ValueError):
            return None
        return int(waited) / 1e9


@asynccontextmanager
async def cpu_waits(processes: Processes) -> AsyncIterator[CpuWaits]:
    """Looked at all the time inside the block, and last of all at its end."""
    waits = CpuWaits(processes)

    async def look() -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            waits.look()

    async with asyncio.TaskGroup() as group:
        looking = group.create_task(look())
        try:
            yield waits
        finally:
            looking.cancel()
            waits.look()
