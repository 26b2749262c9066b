"""Which streams have forks: a stream that is deleted while forks of it exist answers 410 until the last fork is gone.

A fork copies its inherited bytes, so it needs nothing of its source. What remains is the source's name: it stays taken.
The registry of a source is a small segment of its own (under a prefix that users cannot reach), because the source
itself may be sealed when it is forked and is really removed when it is deleted. Its name is `__ds/forks/` and the
SHA-256 of the source's name in hexadecimal digits, so that a name of the greatest length has room for one.

- The registry exists from the first fork on; it counts forks up before the copy begins and down after a fork is gone.
- A crash in between leaves the count too high: the name of a deleted source then stays taken. Never data.
"""

import hashlib
from contextlib import suppress

from segmentstore.contracts.errors import SegmentExistsError, SegmentNotFoundError
from segmentstore.contracts.identifiers import AttributeKey, AttributeValue
from segmentstore.contracts.segments import AttributeUpdate, AttributeUpdateType, SegmentApi
from segmentstore.http.names import RESERVED_PART
from segmentstore.http.stream_attributes import (
    DELETED_KEY,
    FORK_COUNT_KEY,
    FORK_ORIGIN_KEY,
    ForkOrigin,
    configuration_of,
)

_PREFIX = RESERVED_PART + "/forks/"


def _registry_of(source: str) -> str:
    return _PREFIX + hashlib.sha256(source.encode()).hexdigest()


class ForkRegistry:
    """Counts forks by the name of their source."""

    def __init__(self, *, segments: SegmentApi) -> None:
        self._segments = segments

    async def is_deleted(self, name: str) -> bool:
        """Whether the stream was deleted and its name is still taken by its forks."""
        attributes = await self._attributes(name)
        return attributes is not None and DELETED_KEY in attributes

    async def count_up(self, source: str) -> None:
        """A fork of the source begins."""
        with suppress(SegmentExistsError):
            await self._segments.create(_registry_of(source))
        await self._accumulate(source, 1)

    async def count_down(self, source: str) -> ForkOrigin | None:
        """A fork of the source is gone; if that frees the source's name, what the source itself was forked from."""
        attributes = await self._attributes(source)
        if attributes is None:
            return None
        count = attributes.get(FORK_COUNT_KEY)
        if isinstance(count, int) and count > 1:
            await self._accumulate(source, -1)
            return None
        await self._segments.delete(_registry_of(source))
        if DELETED_KEY not in attributes:
            return None
        return configuration_of(attributes).fork_origin

    async def delete_source(self, name: str, origin: ForkOrigin | None) -> bool:
        """Before a stream is deleted: keep its name taken if it has forks. True if it has."""
        if await self._attributes(name) is None:
            return False
        updates = [AttributeUpdate(DELETED_KEY, 1)]
        if origin is not None:
            updates.append(AttributeUpdate(FORK_ORIGIN_KEY, origin.encode()))
        await self._segments.update_attributes(_registry_of(name), updates)
        return True

    async def _accumulate(self, source: str, change: int) -> None:
        update = AttributeUpdate(FORK_COUNT_KEY, change, AttributeUpdateType.ACCUMULATE)
        await self._segments.update_attributes(_registry_of(source), [update])

    async def _attributes(self, name: str) -> dict[AttributeKey, AttributeValue] | None:
        try:
            return dict(await self._segments.attributes(_registry_of(name)))
        except SegmentNotFoundError:
            return None
