"""The machine that runs the real node: file logs on a simulated disk, Tier 2 in a simulated store, or on that
disk too: in files, or in volumes.

A process is a mount of the disk, a view of the store, a cache and threads; its containers share them as in production.
"""

from dataclasses import dataclass
from random import Random

from containers.cache.cache_manager import CacheManager
from containers.cache.cache_storage import CacheStorage
from containers.segment_container import StreamSegmentContainer
from segmentstore.contracts.durable_data_log import DurableDataLog
from segmentstore.contracts.errors import ObjectNotFoundError, StorageUnavailableError
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.contracts.object_store import ObjectStore
from tests.sim.clock import SimulatedWallClock
from tests.sim.disk import Mount, SimulatedDisk
from tests.sim.loop import SimLoop
from tests.sim.node import Node, SimExecutor
from tests.sim.node_settings import (
    CACHE_BYTES,
    cache_settings,
    container_settings,
    log_settings,
    storage_settings,
)
from tests.sim.object_store import MountedObjectStore, SimulatedObjectStore
from tests.sim.settings import Swarm
from tests.sim.troubles import Troubles
from tests.sim.volumes import VolumeIndexes, volume_settings
from tier1.file_log.frame_flush import InlineSyncPolicy
from tier1.file_log.log import FileDurableDataLog
from tier1.file_log.settings import DurabilityRules
from tier2.object_stores.filesystem import FilesystemObjectStore
from tier2.object_stores.lazy_object_store import LazyObjectStore
from tier2.object_stores.volumes import LateVolumes
from tier2.store_reader import ContainerReader
from tier2.tiered_storage import TieredStorage

_STORE_ID = b"the-store-of-sim"
_TIER2_PATH = "/data/tier2"


@dataclass(frozen=True, slots=True)
class Process:
    """What the containers of one process share, and what trouble needs to find."""

    mount: Mount
    view: MountedObjectStore
    objects: ObjectStore
    volumes: LateVolumes | None
    cache: CacheManager
    log_threads: SimExecutor | None
    storage_threads: SimExecutor | None
    random: Random
    pace: InlineSyncPolicy | None


class NodeMachine:
    """Disk, object store and clock outlive the processes."""

    has_second_tier = True
    has_tables = True
    confirms_answers = True

    def __init__(
        self, loop: SimLoop, swarm: Swarm, *, rules: DurabilityRules | None = None
    ) -> None:
        self._loop = loop
        self._swarm = swarm
        self._rules = rules
        self.disk = SimulatedDisk()
        self.store = SimulatedObjectStore(loop, loop.random, swarm.trouble.store)
        self.wall_clock = SimulatedWallClock(loop)
        self._processes: dict[int, Process] = {}
        self._volume_indexes = VolumeIndexes(kept=swarm.node.volume_index_kept)
        self._auditor: tuple[Mount, ObjectStore] | None = None
        self._troubles = Troubles(
            loop=loop,
            disk=self.disk,
            store=None if self._tier2_on_disk else self.store,
            wall_clock=self.wall_clock,
            settings=swarm.trouble,
            views=self._living_views,
        )

    # --- processes --------------------------------------------------------------------------------

    def build(self, node: Node, container_id: int) -> StreamSegmentContainer:
        swarm = self._swarm.node
        process = self.process(node)
        log = self.new_log(node, process, container_id)
        storage = TieredStorage(
            object_store=process.objects,
            store_id=_STORE_ID,
            container_id=ContainerId(container_id),
            container_count=swarm.container_count,
            settings=storage_settings(swarm),
            wall_clock=self.wall_clock,
            random=process.random,
            executor=process.storage_threads,
        )
        return StreamSegmentContainer(
            container_id=ContainerId(container_id),
            log=log,
            storage=storage,
            cache=process.cache,
            wall_clock=self.wall_clock,
            random=process.random,
            executor=process.storage_threads,
            settings=container_settings(swarm),
            lease=None,
        )

    def new_log(self, node: Node, process: Process, container_id: int) -> DurableDataLog:
        """A log object of that process, not initialised."""
        return FileDurableDataLog(
            f"/data/log/{container_id:04}",
            files=process.mount,
            executor=process.log_threads,
            random=process.random,
            settings=log_settings(self._swarm.node),
            owner=node.name,
            pace=process.pace,
            rules=self._rules,
        )

    def process(self, node: Node) -> Process:
        """The process of that node; it begins with its first container."""
        if node.birth not in self._processes:
            self._processes[node.birth] = self._new_process(node)
        return self._processes[node.birth]

    def _new_process(self, node: Node) -> Process:
        swarm = self._swarm.node
        random = Random(self._loop.random.getrandbits(64))
        mount = self.disk.mount(node.name)
        view = self.store.mount(node)
        workers = swarm.executor_workers
        storage_threads = SimExecutor(workers) if workers else None
        objects: ObjectStore = view
        volumes: LateVolumes | None = None
        if swarm.objects_in_volumes:
            volumes = LateVolumes(
                _TIER2_PATH,
                files=mount,
                executor=storage_threads,
                wall_clock=self.wall_clock,
                random=random,
                settings=volume_settings(swarm),
                open_index=self._volume_indexes.opener(mount),
            )
            objects = LazyObjectStore(volumes)
        elif swarm.objects_in_files:
            objects = LazyObjectStore(
                FilesystemObjectStore(
                    _TIER2_PATH, files=mount, executor=storage_threads, random=random
                )
            )
        return Process(
            mount=mount,
            view=view,
            objects=objects,
            volumes=volumes,
            cache=CacheManager(
                storage=CacheStorage(budget_bytes=CACHE_BYTES, arena_bytes=CACHE_BYTES),
                settings=cache_settings(swarm),
            ),
            log_threads=SimExecutor(workers + 1) if workers else None,
            storage_threads=storage_threads,
            random=random,
            # Where threads are scarce, lone frames are written on the loop.
            pace=InlineSyncPolicy(now=self._loop.time, fast_writes_min=2) if workers == 1 else None,
        )

    def killed(self, node: Node) -> None:
        process = self._processes.get(node.birth)
        if process is not None:
            process.mount.kill()

    def lose_power(self) -> None:
        self.disk.lose_power(self._loop.random)
        self._volume_indexes.lose_power(self._loop.random)

    # --- trouble ----------------------------------------------------------------------------------

    def break_something(self, kind: str, random: Random) -> str:
        return self._troubles.begin(kind, random)

    def trouble_ends_at(self) -> float:
        return self._troubles.last_ends_at

    def settle(self) -> None:
        self._troubles.settle()

    def _living_views(self) -> list[MountedObjectStore]:
        return [process.view for process in self._processes.values() if process.mount.alive]

    @property
    def _tier2_on_disk(self) -> bool:
        return self._swarm.node.objects_in_files or self._swarm.node.objects_in_volumes

    # --- checks -----------------------------------------------------------------------------------

    async def open_storage(self, container_id: int) -> ContainerReader | None:
        """Tier 2 from the root alone, as somebody sees it who has nothing else."""
        swarm = self._swarm.node
        objects: ObjectStore = self.store.mount()
        if swarm.objects_in_volumes:
            objects = self._living_volumes()
        elif swarm.objects_in_files:
            objects = self._auditors_files()
        reader = ContainerReader(
            object_store=objects,
            container_id=ContainerId(container_id),
            settings=storage_settings(swarm),
            executor=None,
        )
        try:
            await reader.refresh()
        except ObjectNotFoundError:
            return None
        return reader

    def _living_volumes(self) -> ObjectStore:
        """Of the process that has them; a fresh view, past everything that its containers remember."""
        for process in self._processes.values():
            if process.mount.alive and process.volumes is not None and process.volumes.is_open:
                return process.volumes
        raise StorageUnavailableError("nobody has the volumes", state="unavailable")

    def _auditors_files(self) -> ObjectStore:
        """One process looks at the files of Tier 2 until the power fails, then another."""
        if self._auditor is None or not self._auditor[0].alive:
            mount = self.disk.mount("auditor")
            random = Random(self._loop.random.getrandbits(64))
            files = FilesystemObjectStore(_TIER2_PATH, files=mount, executor=None, random=random)
            self._auditor = (mount, LazyObjectStore(files))
        return self._auditor[1]

    def check(self) -> None:
        for process in self._processes.values():
            if process.mount.alive:
                process.cache.check()
