"""The whole store as one SegmentApi: every verb goes to the container that owns the name.

Invariants:

- A name is checked before it is hashed, and always goes to the same container (H60, H62).
- Verbs touch exactly one container; `list_segments` and `flush(None)` touch all of them, or fail: a part of the
  answer is never passed off as the whole.
- A merge across containers is refused, with the way out in the message; it is never a copy in disguise (H61).
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from heapq import merge as merge_sorted
from itertools import islice, takewhile

from segmentstore.codec.container_hash import container_of, primary_name
from segmentstore.contracts.containers import SegmentContainer
from segmentstore.contracts.errors import InvalidRequestError, MergeRefusedError
from segmentstore.contracts.identifiers import AttributeKey, AttributeValue
from segmentstore.contracts.segments import AttributeUpdate, Segment, SegmentProperties
from segmentstore.host.container_registry import ContainerRegistry
from segmentstore.host.segment_names import check_segment_name

LIST_LIMIT_MAX = 10_000


class SegmentStore:
    """Routes by name. Owns nothing; the containers are the registry's."""

    def __init__(self, *, registry: ContainerRegistry) -> None:
        self._registry = registry

    def open_segment(self, name: str) -> AbstractAsyncContextManager[Segment]:
        return self._container(name).open_segment(name)

    async def create(
        self, name: str, attributes: Sequence[AttributeUpdate] = ()
    ) -> SegmentProperties:
        return await self._container(name).create(name, attributes)

    async def update_attributes(self, name: str, updates: Sequence[AttributeUpdate]) -> None:
        await self._container(name).update_attributes(name, updates)

    async def attributes(
        self, name: str, keys: Sequence[AttributeKey] | None = None
    ) -> Mapping[AttributeKey, AttributeValue]:
        return await self._container(name).attributes(name, keys)

    async def seal(self, name: str) -> int:
        return await self._container(name).seal(name)

    async def truncate(self, name: str, offset: int) -> None:
        await self._container(name).truncate(name, offset)

    async def merge(
        self,
        target: str,
        source: str,
        *,
        attribute_updates: Sequence[AttributeUpdate] = (),
        seal_source: bool = False,
    ) -> int:
        if not self._local(target, [source]):
            raise self._foreign(target, source)
        return await self._container(target).merge(
            target, source, attribute_updates=attribute_updates, seal_source=seal_source
        )

    async def merge_all(
        self, target: str, sources: Sequence[str], *, seal_sources: bool = False
    ) -> Sequence[int]:
        local = self._local(target, sources)
        lengths = await self._container(target).merge_all(target, local, seal_sources=seal_sources)
        if len(local) < len(sources):
            raise self._foreign(target, sources[len(local)])
        return lengths

    async def forget_merged(self, target: str, sources: Sequence[str]) -> None:
        await self._container(target).forget_merged(target, sources)

    async def delete(self, name: str) -> None:
        await self._container(name).delete(name)

    async def info(self, name: str) -> SegmentProperties:
        return await self._container(name).info(name)

    async def flush(self, name: str | None = None) -> None:
        """Of one segment's container, or of all containers side by side."""
        if name is not None:
            await self._container(name).flush(name)
            return
        containers = self._registry.all_running()
        results = await asyncio.gather(
            *(container.flush() for container in containers), return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def list_segments(
        self, prefix: str = "", start_after: str = "", limit: int = 1000
    ) -> Sequence[SegmentProperties]:
        """Segments of all containers in name order (by code point), at most `limit` of them."""
        if not 1 <= limit <= LIST_LIMIT_MAX:
            raise InvalidRequestError(
                f"a listing has 1 to {LIST_LIMIT_MAX} segments a page limit={limit}"
            )
        pages = [
            await container.list_segments(prefix, start_after, limit)
            for container in self._registry.all_running()
        ]
        return list(islice(merge_sorted(*pages, key=lambda segment: segment.name), limit))

    def _local(self, target: str, sources: Sequence[str]) -> Sequence[str]:
        """The first sources up to one that lives in another container than the target. Raises InvalidRequestError."""
        for name in (target, *sources):
            check_segment_name(name)
        count = self._registry.container_count
        home, target_container = primary_name(target), container_of(target, count)
        return list(
            takewhile(
                # Nearly always the same name: hashing it again takes longer than all the rest.
                lambda source: (
                    primary_name(source) == home or container_of(source, count) == target_container
                ),
                sources,
            )
        )

    def _foreign(self, target: str, source: str) -> MergeRefusedError:
        count = self._registry.container_count
        return MergeRefusedError(
            "the two segments live in different containers, so they cannot be merged as one step; a source named "
            f"'{target}#transaction.<32 hex digits>' lives with its target "
            f"target_container={container_of(target, count)} source_container={container_of(source, count)}"
        )

    def _container(self, name: str) -> SegmentContainer:
        check_segment_name(name)
        return self._registry.get(container_of(name, self._registry.container_count))
