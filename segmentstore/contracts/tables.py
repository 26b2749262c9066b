"""Table segments: keys, values and versions over a segment, as the wire and the controller use them.

A table segment is a segment whose bytes are records (one per update or removal) and whose index says, per key, where
its newest record is. The *version* of an entry is the offset at which its record was first written; it only grows.
Everything of one batch happens or nothing, judged against the state before the batch.

| layout | key length | order of iteration | deltas |
|---|---|---|---|
| hash | any, 0 < length <= KEY_BYTES_MAX | any, but stable while nothing changes | yes |
| fixed | exactly `key_length` | unsigned byte order, by range | no |
"""

from asyncio import Future
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final, Protocol

from segmentstore.contracts.errors import SegmentStoreError

KEY_BYTES_MAX: Final = 8 * 1024
ENTRY_BYTES_MAX: Final = 1024 * 1024
"""Key and value of one entry together."""
BATCH_BYTES_MAX: Final = 32 * 1024 * 1024

NO_VERSION: Final = -(1 << 63)
"""As an expected version: whatever it is."""
NOT_EXISTS: Final = -1
"""As an expected version: the key must not exist."""


@dataclass(frozen=True, slots=True)
class TableKey:
    """A key and the version it is expected to have."""

    key: bytes
    version: int = NO_VERSION


@dataclass(frozen=True, slots=True)
class TableEntry:
    """A key, its value, and its version: the present one in answers, the expected one in updates."""

    key: bytes
    value: bytes
    version: int = NO_VERSION


@dataclass(frozen=True, slots=True)
class TableInfo:
    """Committed state of a table segment."""

    name: str
    key_length: int
    """0 for the hash layout."""
    start_offset: int
    length: int
    entry_count: int


@dataclass(frozen=True, slots=True)
class TableKeyPage:
    """Some keys of an iteration with their versions; `token` continues it, b"" means that it is finished.

    A token is a key: the iteration goes on behind it. So the last key of any page is one as well.
    """

    keys: Sequence[TableKey]
    token: bytes


@dataclass(frozen=True, slots=True)
class TableEntryPage:
    """Some entries of an iteration; `token` continues it, b"" means that it is finished.

    A token is a key: the iteration goes on behind it. So the last key of any page is one as well.
    """

    entries: Sequence[TableEntry]
    token: bytes


@dataclass(frozen=True, slots=True)
class TableDelta:
    """What changed from a position on: the newest value of each distinct key, removed keys left out."""

    entries: Sequence[TableEntry]
    """Never empty while live entries remain behind the position."""
    should_clear: bool
    """The position lies below the start offset, or behind the end, as that of a former table of the name may: what was
    known before is void, and the entries are those from the start offset on."""
    reached_end: bool
    last_position: int
    """Where the next call goes on."""


class Table(Protocol):
    """One table segment, pinned until its context manager ends.

    `update`, `update_each` and `remove` submit synchronously and in order, like Segment.append; their futures complete
    when the batch is durable and readable. They fail with TableVersionError, TableKeyNotFoundError, BadOffsetError (all
    delivered only when what they were judged against has committed), SegmentSealedError, InvalidRequestError
    (sizes), SegmentNotFoundError, StoreFullError, ContainerStoppedError (outcome unknown).
    """

    @property
    def name(self) -> str: ...

    @property
    def key_length(self) -> int: ...

    async def confirm(self) -> None:
        """Returns when what info() said before is known to be the word of the container's owner at that time, or later.

        Raises ContainerNotFoundError if it may not be.
        """

    def info(self) -> TableInfo:
        """Committed state now, as far as is known here: confirm() before it is told."""

    def update(
        self, entries: Sequence[TableEntry], *, offset: int | None = None
    ) -> "Future[Sequence[int]]":
        """Set entries; the new version of each, in order. A key may repeat: its last value stays."""

    def update_each(
        self, entries: Sequence[TableEntry]
    ) -> "Future[Sequence[int | SegmentStoreError]]":
        """As an update of each entry in turn, each by itself: what is refused changes nothing and holds back no other.

        The outcome of each, in order: its new version, or the TableVersionError or TableKeyNotFoundError. Whatever else
        goes wrong is an error of the whole, InvalidRequestError for a single entry among it.
        """

    def remove(self, keys: Sequence[TableKey], *, offset: int | None = None) -> "Future[None]":
        """Remove keys. Without an expected version a missing key is no error."""

    def get_nowait(self, keys: Sequence[bytes]) -> Sequence[TableEntry | None] | None:
        """Committed entries in the order of the keys, None for a missing one; None if not all of it is in memory, or
        if it has to be confirmed first."""

    async def get(self, keys: Sequence[bytes]) -> Sequence[TableEntry | None]:
        """As get_nowait, fetching from Tier 2 what is not in memory."""

    async def read_keys(
        self,
        *,
        count: int,
        token: bytes = b"",
        first: bytes | None = None,
        last: bytes | None = None,
    ) -> TableKeyPage:
        """Up to `count` keys from where `token` says, or fewer, yet not none, if they are long: a token says that there
        may be more. `first` and `last` (both inclusive) bound the fixed layout."""

    async def read_entries(
        self,
        *,
        count: int,
        token: bytes = b"",
        first: bytes | None = None,
        last: bytes | None = None,
    ) -> TableEntryPage:
        """As read_keys, with values."""

    async def read_delta(self, *, position: int, count: int) -> TableDelta:
        """Changes from `position` on, up to `count` distinct keys. Raises InvalidRequestError for the fixed layout."""


class TableApi(Protocol):
    """The verbs of tables, by segment name."""

    def open_table(self, name: str) -> AbstractAsyncContextManager[Table]:
        """Raises SegmentNotFoundError, NotATableError, ContainerNotFoundError, InvalidRequestError."""

    async def create_table(self, name: str, *, key_length: int = 0) -> None:
        """Hash layout for 0, fixed layout otherwise. Raises SegmentExistsError."""

    async def delete_table(self, name: str, *, must_be_empty: bool) -> None:
        """Raises TableNotEmptyError, SegmentNotFoundError, NotATableError."""
