"""What both scripts of this folder share: lines of JSON on stdout, and the order of keyed events.

They run in the interpreter that has the wheel, apart from this project: they import nothing of it.
"""

import json
import sys
import threading
from collections.abc import Iterable

_lock = threading.Lock()


def line(**facts: object) -> None:
    """One line, whole, at once."""
    with _lock:
        sys.stdout.write(json.dumps(facts) + "\n")
        sys.stdout.flush()


class KeyOrder:
    """Events "key:number" as they are read: each key's numbers must come as 0, 1, 2, ..."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}
        self._complaints: list[str] = []
        self.count = 0

    def add(self, event: bytes) -> None:
        key, _, number = event.decode().partition(":")
        wanted = self._next.get(key, 0)
        if int(number) != wanted:
            self._complaints.append(f"{key} wanted={wanted} given={number}")
        self._next[key] = max(wanted, int(number) + 1)
        self.count += 1

    def add_all(self, events: Iterable[bytes]) -> "KeyOrder":
        for event in events:
            self.add(event)
        return self

    def check(self, wanted: int) -> None:
        assert not self._complaints, (
            f"events lost, repeated or out of order: {self._complaints[:5]}"
        )
        assert self.count == wanted, f"events read wanted={wanted} given={self.count}"
