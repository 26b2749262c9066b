"""Reads of a partition for which the storage is too slow."""

from collections.abc import Callable

import pytest

from segmentstore.topics.partition import Partition


def make_reads_slow(monkeypatch: pytest.MonkeyPatch, count: int) -> Callable[[], int]:
    """The next `count` reads end with a time-out, as by the server's own bound; gives how many of them are left."""
    fetch, left = Partition.fetch, count

    async def slow_at_first(partition: Partition, offset: int, max_bytes: int) -> bytes:
        nonlocal left
        if left:
            left -= 1
            raise TimeoutError
        return await fetch(partition, offset, max_bytes)

    monkeypatch.setattr(Partition, "fetch", slow_at_first)
    return lambda: left
