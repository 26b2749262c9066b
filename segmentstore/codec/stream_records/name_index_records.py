"""The two records of a sorted list of names that is too long for one value: a root and pages.

    root: version 1 | flag closed | unsigned next page number | list of (text first name, unsigned page number)
    page: version 1 | list of text names

Invariants:

- The names of a page grow; all names of a page lie at or above its first name in the root and below the next page's
  (the first page also takes what lies below it).
- Page numbers are never used twice in one index.
- A closed index has no pages and takes no names.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from segmentstore.codec.stream_records.record_fields import FieldReader, FieldWriter

_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class IndexRoot:
    """Which page holds which names."""

    pages: tuple[tuple[str, int], ...] = ()
    """First name and page number, in the order of the names."""
    next_page_number: int = 0
    closed: bool = False

    def encode(self) -> bytes:
        writer = FieldWriter(_VERSION)
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
        reader = FieldReader(content, what="index root", version_max=_VERSION)
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
        writer = FieldWriter(_VERSION)
        writer.list_of(self.names, writer.text)
        return writer.end()

    @classmethod
    def decode(cls, content: bytes) -> "IndexPage":
        """Raises CorruptedDataError."""
        reader = FieldReader(content, what="index page", version_max=_VERSION)
        names = reader.list_of(reader.text)
        reader.end()
        return cls(names)

    def check(self) -> None:
        """Names are in order and not repeated; O(names)."""
        for left, right in pairwise(self.names):
            assert left < right, f"names are out of order left={left!r} right={right!r}"
