"""What goes wrong on a machine while its processes live; each trouble schedules its own end.

The ends run in an empty context: they belong to the world, and come whoever dies meanwhile.
"""

import errno
import math
from collections.abc import Callable, Sequence
from contextvars import Context
from random import Random

from tests.sim.clock import SimulatedWallClock
from tests.sim.disk import SimulatedDisk
from tests.sim.loop import SimLoop
from tests.sim.object_store import MountedObjectStore, SimulatedObjectStore
from tests.sim.settings import TroubleSettings

_DISK_CALLS = ("sync", "sync", "sync", "write", "create", "sync_directory", "rename", "read")
"""What fails when the disk does: mostly syncs."""


class Troubles:
    """Begins and ends them. `views`: what the living processes see of the store."""

    def __init__(
        self,
        *,
        loop: SimLoop,
        disk: SimulatedDisk,
        store: SimulatedObjectStore | None,
        wall_clock: SimulatedWallClock,
        settings: TroubleSettings,
        views: Callable[[], Sequence[MountedObjectStore]],
    ) -> None:
        """`store` is None where Tier 2 lies on the disk."""
        self._loop = loop
        self._disk = disk
        self._store = store
        self._wall_clock = wall_clock
        self._settings = settings
        self._views = views
        self.last_ends_at = 0.0

    def begin(self, kind: str, random: Random) -> str:
        """A word for the trace, "" if it does not apply here."""
        match kind:
            case "failing_sync":
                call = random.choice(_DISK_CALLS)
                skip = random.choice((0, 0, 1, 5))
                self._disk.faults.plan(call, errno.EIO, skip=skip, times=random.choice((1, 1, 3)))
                return f"{call} fails after {skip}"
            case "disk_full":
                left = random.choice((0, 4096, 16 * 4096))
                self._disk.capacity_bytes = self._disk.used_bytes() + left
                return f"{left} bytes left, {self._until(random, 20, self._free_disk):.3f} s"
            case "clock_step":
                step = random.choice((-1, 1)) * random.choice((10, 10_000, 86_400_000 * 400))
                self._wall_clock.step(step)
                return f"{step} ms"
            case _:
                return self._begin_at_store(kind, random)

    def _begin_at_store(self, kind: str, random: Random) -> str:
        store = self._store
        if store is None:
            return ""
        longest = self._settings.store_down_seconds_max
        match kind:
            case "store_down":
                store.down = True
                return f"{self._until(random, longest, self._store_is_back):.3f} s"
            case "store_full":
                store.capacity_bytes = store.used_bytes + random.choice((0, 1000, 10_000))
                return f"{self._until(random, min(longest, 60.0), self._store_has_room):.3f} s"
            case "cut_off":
                views = self._views()
                if not views:
                    return ""
                view = random.choice(views)
                view.reachable = False
                seconds = self._until(random, longest, lambda: setattr(view, "reachable", True))
                return f"{view.name} {seconds:.3f} s"
        raise ValueError(f"unknown trouble {kind}")

    def _until(self, random: Random, longest: float, end: Callable[[], object]) -> float:
        """Long ones are rare: the logarithm is uniform."""
        seconds = float(0.05 * (longest / 0.05) ** random.random())
        self.last_ends_at = max(self.last_ends_at, self._loop.time() + seconds)
        self._loop.call_later(seconds, end, context=Context())
        return seconds

    def _free_disk(self) -> None:
        self._disk.capacity_bytes = None

    def _store_is_back(self) -> None:
        if self._store is not None:
            self._store.down = False

    def _store_has_room(self) -> None:
        if self._store is not None:
            self._store.capacity_bytes = math.inf

    def settle(self) -> None:
        """Nothing is broken any more, whatever was to last longer."""
        self._disk.faults.clear()
        self._free_disk()
        if self._store is not None:
            self._store.settle()
        for view in self._views():
            view.reachable = True
