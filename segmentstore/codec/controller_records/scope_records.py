"""The records of a scope, of the sorted indexes of names in it, and of segment numbers that are used up.

## Scope: ScopeRecord

One record in the table of all scopes while the scope exists. What deleted scopes have used up is kept in records of the
same form, one for all names that share a hash.

    version 1 | unsigned state | unsigned incarnation | unsigned first segment number | signed created ms

- The incarnation grows with every creation of a scope of that name; name and incarnation are those of the scope's own
  table, so that a scope created again never meets the records of the one before.
- Streams of this incarnation number their segments from `first_segment_number` on, which lies above every number that
  an earlier incarnation used: names of segments are never used twice.

## Index: IndexRoot and IndexPage

A sorted list of names that is too long for one value: one index root, and pages.

    root: version 1 | flag closed | unsigned next page number | list of (text first name, unsigned page number)
    page: version 1 | list of text names

- The names of a page grow; all names of a page lie at or above its first name in the root and below the next page's
  (the first page also takes what lies below it).
- Page numbers are never used twice in one index.
- A closed index has no pages and takes no names.

## Segment number: SegmentNumberRecord

The next free segment number: above the deleted streams of a scope whose names share a hash, or above all of them.

    version 1 | unsigned number

- It outlives the streams, and only grows. A stream created again under such a name starts from here, so no name of a
  segment is ever used twice.
"""

from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import Final

from segmentstore.codec.controller_records.record_fields import FieldReader, FieldWriter

_SCOPE_VERSION: Final = 1
_INDEX_ROOT_VERSION: Final = 1
_INDEX_PAGE_VERSION: Final = 1
_SEGMENT_NUMBER_VERSION: Final = 1


class ScopeState(IntEnum):
    """Persistent: never renumber."""

    ACTIVE = 1
    DELETING = 2
    DELETED = 3


class ScopeItemState(IntEnum):
    """Where a reader group or a key-value table stands. Persistent: never renumber."""

    CREATING = 1
    """Some of its streams or segments may not exist yet."""
    ACTIVE = 2
    DELETING = 3
    """Some of its streams or segments may be gone already."""


@dataclass(frozen=True, slots=True)
class ScopeRecord:
    """One scope."""

    state: ScopeState
    incarnation: int
    first_segment_number: int
    created_ms: int

    def encode(self) -> bytes:
        writer = FieldWriter(_SCOPE_VERSION)
        writer.unsigned(self.state)
        writer.unsigned(self.incarnation)
        writer.unsigned(self.first_segment_number)
        writer.signed(self.created_ms)
        return writer.end()

    @classmethod
    def decode(cls, content: bytes) -> "ScopeRecord":
        """Raises CorruptedDataError."""
        reader = FieldReader(content, what="scope record", version_max=_SCOPE_VERSION)
        record = cls(
            reader.choice(ScopeState), reader.unsigned(), reader.unsigned(), reader.signed()
        )
        reader.end()
        return record


@dataclass(frozen=True, slots=True)
class IndexRoot:
    """Which page holds which names."""

    pages: tuple[tuple[str, int], ...] = ()
    """First name and page number, in the order of the names."""
    next_page_number: int = 0
    closed: bool = False

    def encode(self) -> bytes:
        writer = FieldWriter(_INDEX_ROOT_VERSION)
        writer.flag(self.closed)
        writer.unsigned(self.next_page_number)
        writer.unsigned(len(self.pages))
        for first_name, number in self.pages:
            writer.text(first_name)
            writer.unsigned(number)
        return writer.end()

    @classmethod
    def decode(cls, content: bytes) -> "IndexRoot":
        """Raises CorruptedDataError."""
        reader = FieldReader(content, what="index root", version_max=_INDEX_ROOT_VERSION)
        closed = reader.flag()
        next_page_number = reader.unsigned()
        pages = reader.list_of(lambda: (reader.text(), reader.unsigned()))
        reader.end()
        return cls(pages, next_page_number, closed)

    def check(self) -> None:
        """Pages are in order, numbered once, and a closed index has none; O(pages)."""
        for (left, _), (right, _) in pairwise(self.pages):
            assert left < right, f"pages are out of order left={left!r} right={right!r}"
        numbers = sorted(number for _, number in self.pages)
        assert len(set(numbers)) == len(numbers), f"page numbers repeat numbers={numbers}"
        assert not numbers or numbers[-1] < self.next_page_number, f"page from the future {self}"
        assert not (self.closed and self.pages), "a closed index has pages"


@dataclass(frozen=True, slots=True)
class IndexPage:
    """Some names, in order."""

    names: tuple[str, ...]

    def encode(self) -> bytes:
        writer = FieldWriter(_INDEX_PAGE_VERSION)
        writer.list_of(self.names, writer.text)
        return writer.end()

    @classmethod
    def decode(cls, content: bytes) -> "IndexPage":
        """Raises CorruptedDataError."""
        reader = FieldReader(content, what="index page", version_max=_INDEX_PAGE_VERSION)
        names = reader.list_of(reader.text)
        reader.end()
        return cls(names)

    def check(self) -> None:
        """Names are in order and not repeated; O(names)."""
        for left, right in pairwise(self.names):
            assert left < right, f"names are out of order left={left!r} right={right!r}"


@dataclass(frozen=True, slots=True)
class SegmentNumberRecord:
    """A lower bound of the numbers to use."""

    number: int

    def encode(self) -> bytes:
        writer = FieldWriter(_SEGMENT_NUMBER_VERSION)
        writer.unsigned(self.number)
        return writer.end()

    @classmethod
    def decode(cls, content: bytes) -> "SegmentNumberRecord":
        """Raises CorruptedDataError."""
        reader = FieldReader(content, what="segment number", version_max=_SEGMENT_NUMBER_VERSION)
        record = cls(reader.unsigned())
        reader.end()
        return record
