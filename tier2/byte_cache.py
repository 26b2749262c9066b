"""A cache bounded by the memory its values occupy. The least recently used value leaves first.

- The sum of the sizes never exceeds the bound; a value larger than the bound is not kept at all.
- Values are immutable, so that a caller that got one may go on with it after it left the cache.
"""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class ByteCache(Generic[K, V]):
    """Least recently used values within `bytes_max`. Every operation is O(1), amortised."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self.used_bytes = 0

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: K) -> bool:
        """Whether it is kept; that it was asked does not make it younger."""
        return key in self._values

    def get(self, key: K) -> V | None:
        found = self._values.get(key)
        if found is None:
            return None
        self._values.move_to_end(key)
        return found[0]

    def put(self, key: K, value: V, size: int) -> None:
        self.remove(key)
        if size > self._bytes_max:
            return
        self._values[key] = (value, size)
        self.used_bytes += size
        while self.used_bytes > self._bytes_max:
            _, (_, oldest_size) = self._values.popitem(last=False)
            self.used_bytes -= oldest_size

    def remove(self, key: K) -> None:
        found = self._values.pop(key, None)
        if found is not None:
            self.used_bytes -= found[1]

    def clear(self) -> None:
        self._values.clear()
        self.used_bytes = 0

    def check(self) -> None:
        """Proves that the sizes add up and fit. O(n)."""
        total = sum(size for _, size in self._values.values())
        assert total == self.used_bytes, f"sizes={total} used_bytes={self.used_bytes}"
        assert total <= self._bytes_max, f"used_bytes={total} bytes_max={self._bytes_max}"
