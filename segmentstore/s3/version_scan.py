"""What the engine's listing leaves out: keys with all their versions, delete markers among them.

It reads the index through its door, as the engine does, in the executor; it changes nothing.

Invariant: of a key no more versions are read than somebody asks for. A key may have a million of them.
"""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial

from segmentstore.contracts.errors import StorageError
from segmentstore.s3.request_target import BEYOND, NULL_VERSION, objects_prefix
from tier2.volumes.index import (
    current_key,
    decode_object_row,
    decode_sequence,
    version_id_key,
    version_key,
    versions_end,
    versions_first,
)
from tier2.volumes.index_database import IndexDatabase
from tier2.volumes.objects import IndexRecord

_LOOKUPS_MAX = 8


@dataclass(frozen=True, slots=True)
class KeyVersions:
    """A key with its versions, or those of them that were asked for, newest first."""

    key: bytes
    """Within its bucket."""
    records: Sequence[IndexRecord]
    with_current: bool
    """Whether the first of them is the current one."""


class VersionScan:
    """Reads the index of an open engine."""

    def __init__(self, *, index: IndexDatabase, executor: Executor | None) -> None:
        self._index = index
        self._executor = executor

    async def keys(
        self,
        bucket: str,
        prefix: bytes,
        *,
        start_at: bytes,
        limit: int,
        versions_max: int,
        behind: str = "",
    ) -> Sequence[KeyVersions]:
        """Keys with that prefix, from `start_at` on, in their order, and at most so many versions of each.

        `behind`: a version id (`null` for none) of the key `start_at`, of which those before it are left out, if it is
        there still.
        """
        loop = asyncio.get_running_loop()
        look = partial(self._keys, bucket, prefix, start_at, limit, versions_max, behind)
        return await loop.run_in_executor(self._executor, look)

    async def is_empty(self, bucket: str) -> bool:
        """Whether no version and no marker is left in a bucket."""
        return not await self.keys(bucket, b"", start_at=b"", limit=1, versions_max=1)

    def _keys(
        self,
        bucket: str,
        prefix: bytes,
        start_at: bytes,
        limit: int,
        versions_max: int,
        behind: str,
    ) -> Sequence[KeyVersions]:
        root = objects_prefix(bucket)
        first = current_key(root + max(prefix, start_at))
        rows = self._index.scan(first, current_key(root + prefix + BEYOND), limit)
        return [
            self._versions(
                row_key,
                content,
                len(root),
                versions_max,
                behind if row_key == current_key(root + start_at) else "",
            )
            for row_key, content in rows
        ]

    def _versions(
        self, row_key: bytes, content: bytes | None, root_bytes: int, versions_max: int, behind: str
    ) -> KeyVersions:
        """Looked at again while the current version changes meanwhile; none if all of them went."""
        key = row_key[1:]
        for _ in range(_LOOKUPS_MAX):
            first = self._place_behind(key, content, behind) if behind else None
            earlier = self._index.scan(
                first or versions_first(key), versions_end(key), versions_max
            )
            before, content = content, self._index.get(row_key)
            if content == before:
                with_current = first is None and content is not None
                rows = [content] if first is None and content is not None else []
                rows += [row for _, row in earlier]
                records = [decode_object_row(row).record for row in rows[:versions_max]]
                return KeyVersions(key[root_bytes:], records, with_current)
        raise StorageError(f"an object changes faster than it can be listed key={key!r}")

    def _place_behind(self, key: bytes, content: bytes | None, behind: str) -> bytes | None:
        """Where the versions behind that one begin; None if it is gone: the current one is the first then."""
        version_id = "" if behind == NULL_VERSION else behind
        if content is not None and decode_object_row(content).record.version_id == version_id:
            return versions_first(key)
        number = self._index.get(version_id_key(key, version_id))
        return None if number is None else version_key(key, decode_sequence(number)) + b"\0"
