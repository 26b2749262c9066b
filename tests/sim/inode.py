"""A file of the simulated disk: its pages, and which of them are certain.

Invariants:
- `page_history` names exactly the pages that were written and not synced since;
- a page that is in no history reads as it would after a power cut, unless a failed sync dropped it silently.
"""

from dataclasses import dataclass, field


@dataclass(eq=False, slots=True)
class Inode:
    """A file's content: what reads see, what is certain, and every page version in between."""

    pages: dict[int, bytes] = field(default_factory=dict)
    size: int = 0
    durable_pages: dict[int, bytes] = field(default_factory=dict)
    durable_size: int = 0
    page_history: dict[int, list[tuple[int, bytes]]] = field(default_factory=dict)
    """Un-synced versions of each page with the boundary that wrote them, oldest first."""
    size_history: list[tuple[int, int]] = field(default_factory=list)
    holder: object = None
    """The open file that has the lock."""

    def settle(self, pages: range | None = None) -> None:
        """These pages, or all, are certain now, and so is the size."""
        for page in self.page_history if pages is None else pages:
            self.durable_pages[page] = self.pages[page]
        self.durable_size = self.size
        self.forget(pages)

    def forget(self, pages: range | None = None) -> None:
        """Nothing of these pages, or of all, is waiting to be synced any more."""
        if pages is None:
            self.page_history = {}
        else:
            for page in pages:
                self.page_history.pop(page, None)
        self.size_history = []
