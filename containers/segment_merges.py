"""Merges by name: of one source, or of many into one target behind one another.

Invariants:
- a source that is gone counts as merged only if the target remembers it (H74);
- of many, the log has the first so many at any moment, in the order given: what is refused stops those behind it;
- many share the log's frames: what waits for the log is each slice of them, not each of them.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack

from containers.attributes.judgement import validate_updates
from containers.segment_handle import SegmentHandle
from segmentstore.contracts.errors import SegmentNotFoundError, SegmentStoreError
from segmentstore.contracts.segments import AttributeUpdate

MERGED_TOGETHER_MAX = 256
"""Sources that are pinned together, and taken in within one turn of the loop (H23)."""


class SegmentMerges:
    """The merging verbs of one container."""

    def __init__(
        self, *, open_segment: Callable[[str], AbstractAsyncContextManager[SegmentHandle]]
    ) -> None:
        self._open_segment = open_segment

    async def merge(
        self,
        target: str,
        source: str,
        *,
        attribute_updates: Sequence[AttributeUpdate],
        seal_source: bool,
    ) -> int:
        """See contracts.segments.SegmentApi.merge."""
        validate_updates(attribute_updates)
        async with self._open_segment(target) as into:
            into.require_no_table()
            try:
                async with self._open_segment(source) as handle:
                    handle.require_no_table()
                    return await asyncio.shield(
                        into.merge(
                            handle, attribute_updates=attribute_updates, seal_source=seal_source
                        )
                    )
            except SegmentNotFoundError as error:
                return await _remembered(into, source, error)

    async def merge_all(
        self, target: str, sources: Sequence[str], *, seal_sources: bool
    ) -> list[int]:
        """See contracts.segments.SegmentApi.merge_all."""
        lengths: list[int] = []
        async with self._open_segment(target) as into:
            into.require_no_table()
            while len(lengths) < len(sources):
                some = sources[len(lengths) : len(lengths) + MERGED_TOGETHER_MAX]
                lengths += await self._merge_first(into, some, seal_sources=seal_sources)
        return lengths

    async def _merge_first(
        self, into: SegmentHandle, sources: Sequence[str], *, seal_sources: bool
    ) -> list[int]:
        """Merge the first source, and as many behind it as can be had with it. Raises why the first one is refused."""
        first = sources[0]
        try:
            async with AsyncExitStack() as opened:
                handles: list[SegmentHandle] = []
                for name in sources:
                    try:
                        handle = await opened.enter_async_context(self._open_segment(name))
                        handle.require_no_table()
                    except SegmentStoreError:
                        if not handles:
                            raise
                        # Refused when its turn has come: those before it are merged first.
                        break
                    handles.append(handle)
                return await into.merge_first(handles, seal_sources=seal_sources)
        except SegmentNotFoundError as error:
            return [await _remembered(into, first, error)]


async def _remembered(into: SegmentHandle, source: str, error: SegmentNotFoundError) -> int:
    """The target's length behind an earlier merge of the source. Raises the error if it remembers none."""
    if error.name != source:
        raise error
    length = await into.merged_length(source)
    if length is None:
        raise error
    return length
