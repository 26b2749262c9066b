"""What the engine's listing leaves out: keys with all their versions, delete markers among them.

It reads the index through its door, as the engine does, in the executor; it changes nothing.
"""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from segmentstore.contracts.errors import StorageError
from segmentstore.s3.object_keys import BEYOND, objects_prefix
from tier2.volumes.index_database import IndexDatabase
from tier2.volumes.index_record import IndexRecord
from tier2.volumes.index_rows import (
    current_key,
    decode_object_row,
    versions_end,
    versions_first,
)

_VERSIONS_MAX = 1 << 20
_LOOKUPS_MAX = 8


@dataclass(frozen=True, slots=True)
class KeyVersions:
    """A key with all of its versions, newest first."""

    key: bytes
    """Within its bucket."""
    records: Sequence[IndexRecord]


class VersionScan:
    """Reads the index of an open engine."""

    def __init__(self, *, index: IndexDatabase, executor: Executor | None) -> None:
        self._index = index
        self._executor = executor

    async def keys(
        self, bucket: str, prefix: bytes, *, start_at: bytes, limit: int
    ) -> Sequence[KeyVersions]:
        """Keys with that prefix, from `start_at` on, in their order."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._executor, self._keys, bucket, prefix, start_at, limit
        )

    async def is_empty(self, bucket: str) -> bool:
        """Whether no version and no marker is left in a bucket."""
        return not await self.keys(bucket, b"", start_at=b"", limit=1)

    def _keys(
        self, bucket: str, prefix: bytes, start_at: bytes, limit: int
    ) -> Sequence[KeyVersions]:
        root = objects_prefix(bucket)
        first = current_key(root + max(prefix, start_at))
        rows = self._index.scan(first, current_key(root + prefix + BEYOND), limit)
        return [
            KeyVersions(row_key[1 + len(root) :], self._versions(row_key, content))
            for row_key, content in rows
        ]

    def _versions(self, row_key: bytes, content: bytes | None) -> list[IndexRecord]:
        """Looked at again while the current version changes meanwhile; none if all of them went."""
        key = row_key[1:]
        for _ in range(_LOOKUPS_MAX):
            earlier = self._index.scan(versions_first(key), versions_end(key), _VERSIONS_MAX)
            before, content = content, self._index.get(row_key)
            if content == before:
                rows = [] if content is None else [content]
                rows += [row for _, row in earlier]
                return [decode_object_row(row).record for row in rows]
        raise StorageError(f"an object changes faster than it can be listed key={key!r}")
