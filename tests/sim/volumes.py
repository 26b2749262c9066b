"""Tier 2 in the volumes, on the simulated disk: the real engine, with an index in memory in the place of LMDB.

In some worlds the index ends with its process, so that every start makes it anew from the volumes (H68); in the others
it outlives processes, and loses its newest batches when the power fails, so that every start reads the tails.
"""

from collections.abc import Callable, Iterable, Sequence
from random import Random

from tests.sim.disk import DeadProcessError, Mount
from tests.sim.settings import NodeSettings
from tests.tier2.volumes.memory_index import MemoryIndex
from tier2.volumes.index_database import IndexDatabase, NewRow, Row
from tier2.volumes.settings import VolumeSettings


def volume_settings(node: NodeSettings) -> VolumeSettings:
    """Volumes of a few chunks, which compaction joins all the time."""
    chunk = node.chunk_bytes_max
    return VolumeSettings(
        volume_bytes_max=max(8192, 4 * chunk),
        inline_bytes_max=200,
        piece_bytes=max(64, chunk // 4),
        group_bytes_max=4 * chunk,
        group_records_max=16,
        queued_bytes_max=16 * max(1024, chunk),
        index_buffer_rows=20,
        index_buffer_bytes=16 * 1024,
        reserve_bytes=8192,
        compaction_reserve_bytes=8192,
        compaction_small_count=3,
        compaction_interval_seconds=2.0,
        compaction_batch_bytes=8192,
    )


class VolumeIndexes:
    """The indexes of one machine's volumes."""

    def __init__(self, *, kept: bool) -> None:
        """`kept`: they outlive processes."""
        self._kept = MemoryIndex() if kept else None

    def opener(self, mount: Mount) -> Callable[[str], IndexDatabase]:
        """Opens the index for that process."""
        return lambda _: _IndexOfProcess(self._kept or MemoryIndex(), mount)

    def lose_power(self, random: Random) -> None:
        """The newest batches may never have happened."""
        if self._kept is not None:
            self._kept.lose_unsynced(random)


class _IndexOfProcess:
    """Calls of a dead process change nothing any more."""

    def __init__(self, index: MemoryIndex, mount: Mount) -> None:
        self._index = index
        self._mount = mount

    def get(self, key: bytes) -> bytes | None:
        return self._living().get(key)

    def get_certain(self, key: bytes) -> bytes | None:
        return self._living().get_certain(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._living().get_many(keys)

    def scan(self, first: bytes, before: bytes, limit: int) -> Sequence[Row]:
        return self._living().scan(first, before, limit)

    def apply(self, changes: Iterable[tuple[bytes, bytes | None]]) -> None:
        self._living().apply(changes)

    def add(self, rows: Sequence[NewRow]) -> Sequence[NewRow]:
        return self._living().add(rows)

    def load(self) -> None:
        self._living().load()

    def loaded(self) -> None:
        self._living().loaded()

    def sync(self) -> None:
        self._living().sync()

    def close(self) -> None:
        """Nothing to release."""

    def _living(self) -> MemoryIndex:
        if not self._mount.alive:
            raise DeadProcessError("the process of this index is dead")
        return self._index
