"""A sorted set of names inside a metadata table, in pages, so that listing costs what it shows and not the whole table.

Invariants:

- A change of names rewrites the pages that hold them, and the root only when a page is born or goes away; all of it
  stands in the caller's batch, under the versions read here.
- A batch that adds the first name rewrites the root, so it cannot pass a batch that closes the empty index, or needs it
  to be empty.
- Names are listed in order; a listing that continues behind a name neither repeats nor loses a name that stays.

The functions are pure; `MetadataTable` reads and writes.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from segmentstore.codec.controller_records import record_keys
from segmentstore.codec.controller_records.scope_records import IndexPage, IndexRoot
from segmentstore.controller.metadata.batch import RecordKey

NAMES_PER_PAGE_MAX = 256


def root_key(index: str) -> RecordKey[IndexRoot]:
    """Where the root of an index stands."""
    return RecordKey(record_keys.index_root(index), IndexRoot.decode)


def page_key(index: str, number: int) -> RecordKey[IndexPage]:
    """Where a page of an index stands."""
    return RecordKey(record_keys.index_page(index, number), IndexPage.decode)


def page_of(root: IndexRoot, name: str) -> int | None:
    """The position in `root.pages` of the page that holds the name if any does; None without pages."""
    if not root.pages:
        return None
    return max(0, bisect_right(root.pages, name, key=lambda page: page[0]) - 1)


def pages_of(root: IndexRoot, names: Iterable[str]) -> list[int]:
    """Numbers of the pages that a change of these names touches, in order."""
    positions = sorted({place for name in names if (place := page_of(root, name)) is not None})
    return [root.pages[position][1] for position in positions]


@dataclass(frozen=True, slots=True)
class IndexChange:
    """What a change of names writes: None for a page that goes away."""

    root: IndexRoot | None
    """None: the root stays as it is."""
    pages: dict[int, IndexPage | None]


def change_names(
    root: IndexRoot,
    pages: dict[int, IndexPage],
    *,
    added: Sequence[str],
    removed: Sequence[str],
) -> IndexChange:
    """The root and pages after the change; `pages` holds those that `pages_of` named."""
    names = {number: list(page.names) for number, page in pages.items()}
    after = list(root.pages)
    next_number = root.next_page_number
    for name in removed:
        place = page_of(root, name)
        if place is None:
            continue
        held = names[root.pages[place][1]]
        position = bisect_left(held, name)
        if position < len(held) and held[position] == name:
            del held[position]
    for name in added:
        place = page_of(root, name)
        # Every name of an empty index goes to one new page, split below if they are many.
        held = names.setdefault(next_number, []) if place is None else names[root.pages[place][1]]
        position = bisect_left(held, name)
        if position == len(held) or held[position] != name:
            held.insert(position, name)
    if not root.pages and next_number in names:
        after = [(names[next_number][0], next_number)]
        next_number += 1
    changed: dict[int, IndexPage | None] = {}
    for number, held in names.items():
        place = next(at for at, page in enumerate(after) if page[1] == number)
        if not held:
            del after[place]
            changed[number] = None
            continue
        pieces = [
            held[start : start + NAMES_PER_PAGE_MAX // 2]
            for start in range(0, len(held), NAMES_PER_PAGE_MAX // 2)
        ]
        if len(held) <= NAMES_PER_PAGE_MAX:
            pieces = [held]
        before = pages.get(number)
        if before is None or before.names != tuple(pieces[0]):
            changed[number] = IndexPage(tuple(pieces[0]))
        if len(pieces) > 1:
            # Names below the first one came to this page too: the root has to say so before others follow it.
            after[place] = (pieces[0][0], number)
        for offset, piece in enumerate(pieces[1:], start=1):
            after.insert(place + offset, (piece[0], next_number))
            changed[next_number] = IndexPage(tuple(piece))
            next_number += 1
    root_after = IndexRoot(tuple(after), next_number, root.closed)
    return IndexChange(None if root_after == root else root_after, changed)
