"""What readers and the owner of one container's Tier 2 share: store and names, counters, caches, settings, threads."""

from asyncio import get_running_loop
from collections.abc import Callable
from concurrent.futures import Executor
from typing import ParamSpec, TypeVar

from segmentstore.contracts.identifiers import ContainerId
from segmentstore.contracts.object_store import ObjectStore
from tier2.container_objects import ContainerObjects, ObjectNames, StorageCounters
from tier2.manifest.manifest import Manifest
from tier2.manifest.view import ManifestView
from tier2.read.chunk_reader import ChunkReader
from tier2.settings import StorageSettings
from tier2.sst.sst_reader import SstReader

P = ParamSpec("P")
T = TypeVar("T")


class Components:
    """Built once for each container; nothing in it knows a manifest."""

    def __init__(
        self,
        *,
        object_store: ObjectStore,
        container_id: ContainerId,
        settings: StorageSettings,
        executor: Executor | None,
        readers: Executor | None = None,
    ) -> None:
        """`readers`: threads for callers that wait for a chunk's bytes; without it they share the executor."""
        self.object_store = object_store
        self.container_id = container_id
        self.settings = settings
        self.executor = executor
        self.names = ObjectNames(container_id)
        self.counters = StorageCounters()
        self.objects = ContainerObjects(
            object_store=object_store,
            names=self.names,
            counters=self.counters,
            put_attempts_max=settings.put_attempts_max,
        )
        self.files = SstReader(
            objects=self.objects,
            counters=self.counters,
            cache_bytes=settings.sst_cache_bytes,
            executor=executor,
        )
        self.chunk_reader = ChunkReader(
            objects=self.objects,
            counters=self.counters,
            index_cache_bytes=settings.chunk_index_cache_bytes // 2,
            whole_chunk_read_bytes_max=settings.whole_chunk_read_bytes_max,
            executor=readers or executor,
        )

    async def offload(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run pure work in the executor, whatever its size."""
        return await get_running_loop().run_in_executor(
            self.executor, lambda: function(*args, **kwargs)
        )

    def view(self, manifest: Manifest) -> ManifestView:
        return ManifestView(manifest, self.files, self.executor)

    def check(self) -> None:
        self.files.check()
        self.chunk_reader.check()
