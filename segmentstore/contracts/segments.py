"""What users of the store work with: properties, attribute updates, read results, and the verbs.

`SegmentApi` is spoken by one container and by the whole store alike, so that the HTTP and wire servers need not know
how many containers there are.

What a segment may be called (check_segment_name):

- 1 to 512 bytes of UTF-8, no NUL, no surrogate halves; everything else is the user's.
- `<target>#transaction.<32 hex digits>` is a transaction of `<target>`: it lives in the same container, so it can be
  merged into it.
"""

from asyncio import Future
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Final, NamedTuple, Protocol

from segmentstore.contracts.errors import (
    ContainerNotFoundError,
    InvalidRequestError,
    SegmentNotFoundError,
)
from segmentstore.contracts.identifiers import (
    CONTENT_TYPE,
    INITIALISING,
    AttributeKey,
    AttributeValue,
    BufferView,
    SegmentId,
    SequenceNumber,
)

NAME_BYTES_MAX = 512
EVENT_HEADER_BYTES = 8
"""In front of every event that is declared as one; an event may be empty behind it."""


class AttributeUpdateType(IntEnum):
    """How an update meets the current value. Persistent: never renumber."""

    NONE = 0
    """Set it; refused if it has a value."""
    REPLACE = 1
    """Set it, whatever it was. A value of None removes it."""
    REPLACE_IF_GREATER = 2
    """Set it if absent or if the new number is greater; refused otherwise."""
    ACCUMULATE = 3
    """Add to the current number (0 if absent)."""
    REPLACE_IF_EQUALS = 4
    """Set it if the current value equals `comparison` (None: is absent); refused otherwise."""


class AttributeUpdate(NamedTuple):
    """One change of one attribute, applied in the same operation as the bytes it comes with.

    A tuple, because nearly every append makes one: a frozen dataclass takes four times as long.
    """

    key: AttributeKey
    value: AttributeValue | None
    type: AttributeUpdateType = AttributeUpdateType.REPLACE
    comparison: AttributeValue | None = None


JSON_MEDIA_TYPE: Final = "application/json"


def media_type_of(content_type: str) -> str:
    """What two content types are compared by: parameters dropped, lower case."""
    return content_type.partition(";")[0].strip().lower()


@dataclass(frozen=True, slots=True)
class SegmentProperties:
    """Committed state of a segment, as `/info` shows it."""

    name: str
    segment_id: SegmentId
    container_id: int
    start_offset: int
    length: int
    storage_length: int
    sealed: bool
    sealed_in_storage: bool
    last_modified_ms: int
    core_attributes: Mapping[AttributeKey, AttributeValue] = field(default_factory=dict)
    active: bool = True
    """False if answered from Tier 2 without activating it (listings)."""
    container_down: str = ""
    """Why the container is down: then this is what Tier 2 has published of the segment, and the container may know of
    more bytes, of a seal, a truncation or a deletion. "" if the container says it."""

    @property
    def may_have_more(self) -> bool:
        """Whether bytes behind `length`, or a seal, may be known to the container alone, which is down."""
        return bool(self.container_down) and not self.sealed

    def is_end(self, offset: int) -> bool:
        """Whether the segment is known to have no byte at or behind `offset` now."""
        return offset >= self.length and not self.may_have_more

    def require_container(self) -> None:
        """Before saying what only the container may say. Raises ContainerNotFoundError if it is down."""
        if self.container_down:
            raise ContainerNotFoundError(self.container_id, self.container_down)

    @property
    def is_half_created(self) -> bool:
        """A create is about to fill the segment, or has left it behind: it counts as absent, and may be removed."""
        return INITIALISING in self.core_attributes

    def require_created(self) -> None:
        """Before anything is done that would go with a segment that is half created. Raises SegmentNotFoundError."""
        if self.is_half_created:
            # Where the container is down, the segment may have been filled since it was published.
            self.require_container()
            raise SegmentNotFoundError(self.name)

    def require_no_messages(self) -> None:
        """Before bytes come or go that may be no whole messages. Raises InvalidRequestError for a JSON stream."""
        content_type = self.core_attributes.get(CONTENT_TYPE)
        if (
            isinstance(content_type, bytes)
            and media_type_of(content_type.decode()) == JSON_MEDIA_TYPE
        ):
            raise InvalidRequestError(
                "a JSON stream is written and truncated over HTTP (/v1/stream), which keeps its messages whole"
                f" name={self.name!r}"
            )


class PublishingProgress(NamedTuple):
    """How far Tier 2 is behind the log, of one segment. The numbers are of its container's operations; they only grow,
    also over recoveries, unless the container was recovered from Tier 2 alone."""

    committed: SequenceNumber
    """Every change of the segment that was acknowledged is at or below it."""
    published: SequenceNumber
    """What a recovery from Tier 2 alone finds of the segment has every change of it up to there."""
    storage_is_full: bool
    """Tier 2 refused the latest publication, because it is full: none goes on until something is deleted there."""

    def has_published(self, number: SequenceNumber) -> bool:
        """Whether all changes are published up to what was `committed` behind one that was acknowledged. (Where there
        was none since the segment became active, that may be so and not be said.)"""
        return number <= self.published


class ReadResultEntryKind(Enum):
    """Where the bytes of a read result entry come from, or why there are none."""

    CACHE = "cache"
    STORAGE = "storage"
    FUTURE = "future"
    """The offset is the end of an open segment: content() waits for the next append."""
    END_OF_SEGMENT = "end_of_segment"
    """The offset is the end of a sealed segment: nothing will ever follow."""
    TRUNCATED = "truncated"
    """The offset lies below the start offset."""


class ReadResultEntry(Protocol):
    """One step of a read."""

    @property
    def kind(self) -> ReadResultEntryKind: ...

    @property
    def offset(self) -> int: ...

    async def content(self) -> bytes:
        """Bytes from `offset` on, owned by the caller; at least one byte.

        b"" only for END_OF_SEGMENT, or for a FUTURE whose segment was sealed while waiting. Raises
        SegmentTruncatedError (TRUNCATED), SegmentNotFoundError (deleted or merged away while
        waiting), ContainerStoppedError, StorageError.
        """


class ReadOnlySegment(Protocol):
    """One segment open for reading. It may be what Tier 2 has of it while its container is down (`container_down` of
    its properties): then whatever only the container could say raises ContainerNotFoundError."""

    @property
    def name(self) -> str: ...

    @property
    def segment_id(self) -> SegmentId: ...

    def is_sure(self) -> bool:
        """Whether what it says needs no confirm(): its host knows that no other owner has been given its container.

        Raises ContainerNotFoundError if its host knows that another one may have.
        """

    async def confirm(self) -> None:
        """Returns when what info() said before is known to be the word of the container's owner at that time, or later.

        For one that stays open: opening confirms what info() says then. Raises ContainerNotFoundError if it may not be.
        """

    def info(self) -> SegmentProperties:
        """Committed state now, as far as is known here: see confirm(). Raises ContainerNotFoundError as is_sure()."""

    def read_nowait(self, offset: int, length_max: int) -> bytes | None:
        """Committed bytes from `offset` on, as many as the cache holds there (at most length_max); None if the first
        one is not in memory, or at the end, or if only read() can say what is there. Raises SegmentTruncatedError,
        BadOffsetError, SegmentNotFoundError."""

    def views_nowait(self, offset: int, length_max: int) -> Sequence[memoryview]:
        """As read_nowait(), in pieces that are not copied, none where that says None. They are the cache's memory: look
        at them before giving up the loop, later they may hold other bytes."""

    def readable(self, offset: int) -> "Future[None]":
        """Done when `offset` < length, or the segment was sealed, deleted or merged away, or its container stopped:
        look again then. One waiter of the bounded number; raises TooManyWaitersError. Cancel it to leave.
        """

    def read(self, offset: int, max_length: int) -> AsyncGenerator[ReadResultEntry, None]:
        """Entries from `offset` on until max_length bytes were delivered or an entry without bytes came.

        Hold it in `aclosing`. Raises BadOffsetError (from the first step) for an offset past the length, or negative.
        """


class Segment(ReadOnlySegment, Protocol):
    """One active segment, its name resolved once and pinned until the context manager ends."""

    def append(
        self,
        data: BufferView,
        *,
        offset: int | None = None,
        attribute_updates: Sequence[AttributeUpdate] = (),
        seal: bool = False,
        events: int | None = None,
    ) -> "Future[int]":
        """Submit bytes, attribute updates and a seal as one operation: all of it or nothing.

        `events` declares that `data` is exactly so many whole events, each behind its header; the
        segment's EVENT_COUNT grows by it in the same operation. None: bytes of unknown structure.

        Synchronous and ordered: two calls are applied in call order. `offset` makes it conditional on the length.
        `data` may be empty if there is anything else. A `bytes` object is kept by reference; a memoryview is
        copied before the call returns, so a receive buffer is free again at once. The future gives the segment's length
        behind this append, when it is durable and readable. It fails with BadOffsetError, SegmentSealedError,
        BadAttributeUpdateError (all delivered only when what they were judged against has committed),
        AppendTooLargeError, StoreFullError, SegmentNotFoundError (deleted), ContainerStoppedError (outcome unknown).
        """

    def barrier(self) -> "Future[int]":
        """Done when everything submitted before it on this segment is committed or refused; gives the length."""

    def publishing(self) -> PublishingProgress:
        """How far it is in Tier 2, as of now. Asking forces no flush: each change is published some time later."""

    def pending_attribute(self, key: AttributeKey) -> AttributeValue | None:
        """The value after everything submitted so far; None if absent.

        Raises KeyError if it is neither known nor known to be absent: await load_attributes() first.
        Only for deciding what to submit next; answers to users wait for barrier().
        """

    async def load_attributes(
        self, keys: Sequence[AttributeKey]
    ) -> Mapping[AttributeKey, AttributeValue]:
        """Committed values of those that exist; fetches unknown ones from Tier 2."""


class SegmentReads(Protocol):
    """What can be read, also of a container that is down for good. For readers alone: a caller that decides by what it
    reads (a merge, a deletion, an append) asks SegmentApi, which answers for containers that run."""

    def open_segment(self, name: str) -> AbstractAsyncContextManager[ReadOnlySegment]:
        """Raises SegmentNotFoundError, ContainerNotFoundError, InvalidRequestError."""

    async def info(self, name: str) -> SegmentProperties: ...


async def read_available(segment: ReadOnlySegment, offset: int, length_max: int) -> bytes:
    """What can be read of the segment now, from `offset` on, up to `length_max` bytes; b"" at the end.

    Raises SegmentTruncatedError, BadOffsetError, SegmentNotFoundError, StorageError.
    """
    if length_max <= 0:
        return b""
    pieces: list[bytes] = []
    length = 0
    async with aclosing(segment.read(offset, length_max)) as entries:
        async for entry in entries:
            if entry.kind in (ReadResultEntryKind.FUTURE, ReadResultEntryKind.END_OF_SEGMENT):
                break
            pieces.append(await entry.content())
            length += len(pieces[-1])
            if length >= length_max:
                break
    content = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    return content if len(content) <= length_max else content[:length_max]


class SegmentApi(Protocol):
    """The verbs of the service, by name. Every verb that changes something returns when that is durable."""

    def open_segment(self, name: str) -> AbstractAsyncContextManager[Segment]:
        """Resolve, activate and pin. Raises SegmentNotFoundError, ContainerNotFoundError, InvalidRequestError."""

    async def create(
        self, name: str, attributes: Sequence[AttributeUpdate] = ()
    ) -> SegmentProperties:
        """Raises SegmentExistsError. Of several concurrent creates exactly one wins."""

    async def update_attributes(self, name: str, updates: Sequence[AttributeUpdate]) -> None: ...

    async def attributes(
        self, name: str, keys: Sequence[AttributeKey] | None = None
    ) -> Mapping[AttributeKey, AttributeValue]:
        """Committed values, core and extended; all of them for None."""

    async def seal(self, name: str) -> int:
        """Final length. Sealing twice is fine."""

    async def truncate(self, name: str, offset: int) -> None:
        """Bytes below `offset` are gone. Going back is a no-op; past the length is BadOffsetError."""

    async def merge(
        self,
        target: str,
        source: str,
        *,
        attribute_updates: Sequence[AttributeUpdate] = (),
        seal_source: bool = False,
    ) -> int:
        """Append the sealed source to the target and remove it, atomically; the target's new length.

        The target's attribute updates are part of the same operation, and so is remembering the source:
        until `forget_merged`, merging a source that the target remembers gives the length behind that merge again.
        `seal_source` merges an open source as it is, sealing it in the same stretch.
        Raises MergeRefusedError (other container, same segment), SegmentNotFoundError (target, or a source that the
        target does not remember), SegmentNotSealedError, SegmentTruncatedError (the source), SegmentSealedError (the
        target), BadAttributeUpdateError.
        """

    async def merge_all(
        self, target: str, sources: Sequence[str], *, seal_sources: bool = False
    ) -> Sequence[int]:
        """As merge() of one source after the other, without attribute updates; the target's length behind each of them.

        Many of them wait for the log together. Each merge is atomic, all of them are not: at any moment, and behind a
        crash, the first so many are merged. The first source that is refused stops those behind it; what merge() would
        raise is raised once those before it are durable, and the target remembers them: it may be called again.
        """

    async def forget_merged(self, target: str, sources: Sequence[str]) -> None:
        """The merges are recorded elsewhere: drop the target's memory of them."""

    async def delete(self, name: str) -> None: ...

    async def info(self, name: str) -> SegmentProperties: ...

    async def flush(self, name: str | None = None) -> None:
        """Returns when everything acknowledged before (of the segment's container, or of all) is in Tier 2."""

    async def list_segments(
        self, prefix: str = "", start_after: str = "", limit: int = 1000
    ) -> Sequence[SegmentProperties]:
        """Existing segments in name order, both those in memory and those only in Tier 2."""


SYSTEM_PREFIX = "_system/"
"""Names below it belong to the store itself: the controller keeps its records there."""


def is_system_name(name: str) -> bool:
    """Whether clients may not read or write the segment by its name: what is in it is only the store's to change."""
    return name.startswith(SYSTEM_PREFIX)


def check_segment_name(name: str) -> None:
    """Raises InvalidRequestError with a sentence."""
    if not name:
        raise InvalidRequestError("a segment name is empty; it has 1 to 512 bytes of UTF-8")
    try:
        length = len(name.encode())
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"a segment name is not valid Unicode: half a surrogate pair position={error.start}"
        ) from error
    if length > NAME_BYTES_MAX:
        raise InvalidRequestError(
            f"a segment name is too long length={length} length_max={NAME_BYTES_MAX}"
        )
    if "\0" in name:
        raise InvalidRequestError(
            f"a segment name has a NUL character position={name.index(chr(0))}"
        )
