"""Pages of keys: entries in order, with keys that share a prefix up to a delimiter rolled up.

Invariants:

- A page is a walk over the order of the keys; behind a rolled-up prefix it jumps, so a directory of a million keys
  costs one row.
- A page says where the next one starts, by a place between keys that no client needs to understand.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from segmentstore.s3.object_keys import BEYOND, objects_prefix
from tier2.volumes.engine import VolumeEngine
from tier2.volumes.index_record import IndexRecord

_ROWS_MAX = 1000
_ROWS_MIN = 16


@dataclass(frozen=True, slots=True)
class Page:
    """One page."""

    objects: Sequence[tuple[bytes, IndexRecord]]
    prefixes: Sequence[bytes]
    next_after: bytes | None
    """Keys behind it are on the next page; None if this is the last one."""
    last_entry: bytes
    """The last key or prefix that is shown."""


def rolled_up(key: bytes, prefix: bytes, delimiter: bytes) -> bytes | None:
    """What stands for a key, if it is not shown itself."""
    if not delimiter:
        return None
    found = key.find(delimiter, len(prefix))
    return None if found < 0 else key[: found + len(delimiter)]


def place_behind(marker: bytes, prefix: bytes, delimiter: bytes) -> bytes:
    """Where to go on after a key or a rolled-up prefix that a client saw last."""
    is_prefix = bool(delimiter) and marker.startswith(prefix) and marker.endswith(delimiter)
    if is_prefix and rolled_up(marker, prefix, delimiter) == marker:
        return marker + BEYOND
    return marker


class Listing:
    """Lists current versions of a bucket."""

    def __init__(self, *, engine: VolumeEngine) -> None:
        self._engine = engine

    async def page(
        self, bucket: str, *, prefix: bytes, delimiter: bytes, after: bytes, limit: int
    ) -> Page:
        """At most `limit` entries. O(entries), each a row of the index."""
        root = objects_prefix(bucket)
        objects: list[tuple[bytes, IndexRecord]] = []
        prefixes: list[bytes] = []
        last_entry = b""
        next_after = after
        # With a delimiter most rows may be rolled up: few are asked for until that turns out to be otherwise.
        ask = _ROWS_MIN if delimiter else _ROWS_MAX
        while limit:
            count = min(ask, max(limit - len(objects) - len(prefixes) + 1, _ROWS_MIN))
            shown = len(prefixes)
            start_after = root + after if after else b""
            rows = await self._engine.list(root + prefix, start_after=start_after, limit=count)
            for row in rows:
                key = row.key[len(root) :]
                group = rolled_up(key, prefix, delimiter)
                if group is not None and prefixes and group == prefixes[-1]:
                    continue
                if len(objects) + len(prefixes) == limit:
                    return Page(objects, prefixes, next_after, last_entry)
                if group is None:
                    objects.append((key, row.record))
                    last_entry = next_after = key
                else:
                    prefixes.append(group)
                    last_entry, next_after = group, group + BEYOND
            if len(rows) < count:
                break
            after = max(next_after, rows[-1].key[len(root) :])
            ask = _ROWS_MIN if len(prefixes) > shown else min(_ROWS_MAX, ask * 4)
        return Page(objects, prefixes, None, last_entry)
