"""Key-value tables: fixed-length keys, values, versions, conditional updates, iteration in key order.

Invariants:

- Every entry has a version that changes with each update; `insert`, `replace` and `remove(version=...)` succeed only if
  the entry is still as the caller saw it.
- Several updates in one call are all done or none; they must be in one partition, that is, share the primary part of
  their keys (or the table has a single partition).
- A table that was deleted and created again has other segments: no request reaches the new one by what is known of the
  old one. Then the new one is looked up and asked, unless the request names a version, which belongs to the old one.
- Versions of a table's segments begin anew with each table of its name. The versions that are given here say of which
  one they are, in the bits above the 64 of the segment's own: how many segments tables of that name had before it. So a
  version of an earlier table is refused, however often and by whomever it is shown.
- Unconditional updates are repeated when a connection breaks, because the last value wins anyway; conditional ones are
  not, and fail with OutcomeUnknownError. TableConditionError is said only of an update that was not made.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from segmentstore.client.controller import ControllerClient, TableConfig
from segmentstore.client.errors import NotFoundError, TableConditionError
from segmentstore.client.segment_calls import SegmentCalls
from segmentstore.client.stream_segments import KeySpace
from segmentstore.codec.routing_hash import table_position
from segmentstore.codec.stream_names import number_of, table_segment
from segmentstore.codec.wire_protocol.command import Command
from segmentstore.codec.wire_protocol.tables import (
    IteratorArguments,
    ReadTable,
    ReadTableEntries,
    RemoveTableKeys,
    TableEntriesRead,
    TableEntriesUpdated,
    TableKeysRemoved,
    TableRead,
    UpdateTableEntries,
)
from segmentstore.contracts.errors import InvalidRequestError, SegmentNotFoundError
from segmentstore.contracts.tables import NO_VERSION, NOT_EXISTS, TableEntry, TableKey

Answer = TypeVar("Answer")

_VERSION_BITS = 64
_FIRST_NUMBER = 1
"""Of the first segment of the first table of a name."""


@dataclass(frozen=True, slots=True)
class _Shape:
    """One table of the name: what is known of it until a segment of it is gone."""

    config: TableConfig
    space: KeySpace

    @property
    def _base(self) -> int:
        first = min(map(number_of, self.space.segment_ids))
        return max(0, first - _FIRST_NUMBER) << _VERSION_BITS

    def shown(self, version: int) -> int:
        """The version of a segment as users see it."""
        return version if version == NOT_EXISTS else self._base + version

    def own(self, version: int, name: str) -> int:
        """The segment's version. Raises TableConditionError if it is of another table."""
        if version in (NO_VERSION, NOT_EXISTS):
            return version
        own = version - self._base
        if not 0 <= own < 1 << _VERSION_BITS:
            raise TableConditionError(name)
        return own


@dataclass(frozen=True, slots=True)
class Update:
    """One entry to set. Without an expected version whatever is there is overwritten."""

    key: bytes
    value: bytes
    version: int = NO_VERSION
    """NOT_EXISTS: only if there is no such key."""


class Table:
    """Cheap to make; nothing to close."""

    def __init__(
        self, scope: str, name: str, *, controller: ControllerClient, calls: SegmentCalls
    ) -> None:
        self.scope = scope
        self.name = name
        self._controller = controller
        self._calls = calls
        self._shape: _Shape | None = None

    async def create(
        self, *, key_length: int, secondary_key_length: int = 0, partitions: int = 1
    ) -> None:
        """Make an empty table; lengths in bytes, each key has both parts. Raises AlreadyExistsError, NotFoundError."""
        await self._controller.create_table(
            self.scope,
            self.name,
            TableConfig(
                primary_key_length=key_length,
                secondary_key_length=secondary_key_length,
                partitions=partitions,
            ),
        )

    async def delete(self) -> None:
        """Remove the table and all it holds. Raises NotFoundError."""
        await self._controller.delete_table(self.scope, self.name)
        self._shape = None

    async def config(self) -> TableConfig:
        """Raises NotFoundError."""
        return (await self._known_shape()).config

    async def get(self, key: bytes) -> TableEntry | None:
        """The entry with its version, or None."""
        return (await self.get_all([key]))[0]

    async def get_all(self, keys: Sequence[bytes]) -> Sequence[TableEntry | None]:
        """An entry, or None, for each key in order; keys of several partitions are read one partition after another."""
        return await self._ask(partial(self._get_all, keys))

    async def _get_all(self, keys: Sequence[bytes]) -> Sequence[TableEntry | None]:
        shape = await self._known_shape()
        found: dict[bytes, TableEntry | None] = {}
        partitions: dict[str, list[bytes]] = {}
        for key in keys:
            partitions.setdefault(self._partition(key, shape), []).append(key)
        for segment, part in partitions.items():
            wanted = [TableKey(key) for key in part]
            answer = await self._calls.ask(
                segment,
                partial(_read_table, segment, wanted),
                TableRead,
            )
            for key, entry in zip(part, answer.entries, strict=True):
                found[key] = None if entry.version == NOT_EXISTS else _shown(entry, shape)
        return [found[key] for key in keys]

    async def put(self, key: bytes, value: bytes) -> int:
        """Set a value whatever was there; the new version."""
        return (await self.update([Update(key, value)]))[0]

    async def insert(self, key: bytes, value: bytes) -> int:
        """Set a value if there is none; the version. Raises TableConditionError."""
        return (await self.update([Update(key, value, NOT_EXISTS)]))[0]

    async def replace(self, key: bytes, value: bytes, *, version: int) -> int:
        """Set a value if the entry still has this version; the new one. Raises TableConditionError."""
        return (await self.update([Update(key, value, version)]))[0]

    async def update(self, updates: Sequence[Update]) -> Sequence[int]:
        """Do all of the updates or none; their new versions.

        Raises TableConditionError, InvalidRequestError for keys of several partitions, SegmentNotFoundError if one
        names a version and the table is gone.
        """
        of_any_table = all(each.version in (NO_VERSION, NOT_EXISTS) for each in updates)
        return await self._ask(partial(self._update, updates), of_any_table=of_any_table)

    async def _update(self, updates: Sequence[Update]) -> Sequence[int]:
        shape = await self._known_shape()
        segment = self._only_partition([each.key for each in updates], shape)
        entries = [
            TableEntry(each.key, each.value, shape.own(each.version, segment)) for each in updates
        ]
        answer = await self._calls.ask(
            segment,
            lambda request_id: UpdateTableEntries(request_id, segment, "", entries),
            TableEntriesUpdated,
            repeatable=all(each.version == NO_VERSION for each in updates),
        )
        return [shape.shown(version) for version in answer.versions]

    async def remove(self, key: bytes, *, version: int | None = None) -> None:
        """Remove an entry; without a version a missing one is no error. Raises TableConditionError."""
        await self.remove_all([TableKey(key, NO_VERSION if version is None else version)])

    async def remove_all(self, keys: Sequence[TableKey]) -> None:
        """Remove all of the entries or none. Raises as `update`."""
        of_any_table = all(each.version == NO_VERSION for each in keys)
        await self._ask(partial(self._remove_all, keys), of_any_table=of_any_table)

    async def _remove_all(self, keys: Sequence[TableKey]) -> None:
        shape = await self._known_shape()
        segment = self._only_partition([each.key for each in keys], shape)
        own = [TableKey(each.key, shape.own(each.version, segment)) for each in keys]
        await self._calls.ask(
            segment,
            lambda request_id: RemoveTableKeys(request_id, segment, "", own),
            TableKeysRemoved,
            repeatable=all(each.version == NO_VERSION for each in keys),
        )

    async def entries(
        self, first: bytes | None = None, last: bytes | None = None
    ) -> AsyncGenerator[TableEntry, None]:
        """The entries from `first` to `last`, both included, in key order within each partition.

        Hold it in `contextlib.aclosing`. Entries that change meanwhile are seen as before or as after the change.
        """
        shape = await self._known_shape()
        lowest, highest = (byte * shape.config.key_length for byte in (b"\0", b"\xff"))
        for segment_id in shape.space.segment_ids:
            segment = table_segment(self.scope, self.name, number=number_of(segment_id))
            begin: bytes | None = first if first is not None else lowest
            while begin is not None:
                try:
                    page = await self._page(segment, begin, last if last is not None else highest)
                except SegmentNotFoundError:
                    self._shape = None
                    raise
                for entry in page:
                    yield _shown(entry, shape)
                begin = _key_behind(page[-1].key) if page else None

    async def _page(self, segment: str, first: bytes, last: bytes) -> Sequence[TableEntry]:
        answer = await self._calls.ask(
            segment,
            lambda request_id: ReadTableEntries(
                request_id,
                segment,
                "",
                self._calls.settings.page_size,
                IteratorArguments(b"", b"", first, last),
            ),
            TableEntriesRead,
        )
        return answer.entries

    async def _ask(
        self, attempt: Callable[[], Awaitable[Answer]], *, of_any_table: bool = True
    ) -> Answer:
        try:
            return await attempt()
        except SegmentNotFoundError:
            # The table was deleted; perhaps there is another one of its name.
            self._shape = None
            if not of_any_table:
                raise
        return await attempt()

    async def _known_shape(self) -> _Shape:
        if self._shape is None:
            config = await self._controller.table_config(self.scope, self.name)
            ranges = await self._controller.table_segments(self.scope, self.name)
            if not ranges:
                raise NotFoundError("table", f"{self.scope}/{self.name}")
            self._shape = _Shape(config, KeySpace(ranges))
        return self._shape

    def _only_partition(self, keys: Sequence[bytes], shape: _Shape) -> str:
        found = {self._partition(key, shape): None for key in keys}
        if len(found) != 1:
            raise InvalidRequestError(
                f"one update takes the keys of one partition keys={len(keys)} partitions={len(found)}"
            )
        return next(iter(found))

    def _partition(self, key: bytes, shape: _Shape) -> str:
        config = shape.config
        if len(key) != config.key_length:
            raise InvalidRequestError(
                f"key has another length than the table's keys length={len(key)} "
                f"key_length={config.key_length}"
            )
        segment_id = shape.space.segment_of(table_position(key[: config.primary_key_length]))
        return table_segment(self.scope, self.name, number=number_of(segment_id))


def _read_table(segment: str, keys: Sequence[TableKey], request_id: int) -> Command:
    return ReadTable(request_id, segment, "", keys)


def _shown(entry: TableEntry, shape: _Shape) -> TableEntry:
    return TableEntry(entry.key, entry.value, shape.shown(entry.version))


def _key_behind(key: bytes) -> bytes | None:
    """The next key of the same length in byte order; None behind the last one."""
    number = int.from_bytes(key, "big") + 1
    return None if number >> 8 * len(key) else number.to_bytes(len(key), "big")
