"""Scopes and streams as the service shows them, with what Tier 2 already has of each segment.

Invariants:

- Which segments there are and how far they go is the service's word; how much of that lies in Tier 2 is Tier 2's.
- The order comes from the controller: a successor is told with all of its predecessors.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from segmentstore.client.byte_segment import SegmentInfo
from segmentstore.client.controller import StreamName
from segmentstore.client.errors import NotFoundError
from segmentstore.client.store import Store
from segmentstore.client.stream_segments import SegmentRange, Successor
from segmentstore.codec.stream_names import (
    creation_epoch_of,
    is_user_name,
    parse_segment,
    segment_name,
)
from segmentstore.contracts.errors import InvalidRequestError, SegmentNotFoundError
from segmentstore.runtime.waiting import gather_all
from segmentstore.spark.service_connection import ServiceAddress, connect_service
from segmentstore.spark.streams.segment_graph import (
    StreamMetadata,
    StreamMissingError,
    StreamSegmentMetadata,
)
from segmentstore.spark.tier2_access import Tier2Reader

_AT_ONCE: Final = 16
"""Segments asked for together."""


@dataclass(frozen=True, slots=True)
class _Edges:
    """A segment's place in the order of its stream."""

    range: SegmentRange
    successors: Sequence[Successor]


class ServiceStreamCatalog:
    """Of one store."""

    def __init__(self, *, store: Store, view: Tier2Reader | None) -> None:
        """Without `view` nothing counts as published."""
        self._store = store
        self._controller = store.controller
        self._view = view

    async def scopes(self) -> list[str]:
        """Names of the scopes, in order. Raises ClientError."""
        return list(await self._store.scopes())

    async def streams(self, scope: str) -> list[str]:
        """Names of a scope's streams that users made, in order. Raises StreamMissingError, ClientError."""
        try:
            found = await self._controller.list_streams(scope)
        except NotFoundError as error:
            raise StreamMissingError(f"scope does not exist name={scope}") from error
        return sorted(name for name in found if is_user_name(name))

    async def stream_metadata(self, scope: str, stream: str) -> StreamMetadata:
        """One stream from its head on. Raises StreamMissingError, ClientError, StorageError."""
        name = StreamName(scope, stream)
        try:
            config = await self._controller.stream_config(name)
            head = await self._controller.head_offsets(name)
            active = await self._controller.current_segments(name)
            edges = await self._edges(name, head, active)
        except NotFoundError as error:
            raise StreamMissingError(f"stream does not exist name={name}") from error
        # Ids grow with epochs, so predecessors come first.
        order = sorted(edges)
        infos = await self._infos([segment_name(scope, stream, each) for each in order])
        predecessors: dict[int, tuple[int, ...]] = {}
        for each in edges.values():
            for successor in each.successors:
                if successor.range.segment_id not in head:
                    predecessors[successor.range.segment_id] = tuple(
                        sorted(set(successor.predecessors) & edges.keys())
                    )
        segments = [
            await self._segment(
                segment_name(scope, stream, each),
                edges[each].range,
                info,
                head=head.get(each, 0),
                successors=tuple(
                    sorted(
                        successor.range.segment_id
                        for successor in edges[each].successors
                        if successor.range.segment_id not in head
                    )
                ),
                predecessors=predecessors.get(each, ()),
            )
            for each, info in zip(order, infos, strict=True)
        ]
        return StreamMetadata(
            scope=scope,
            stream=stream,
            segments=segments,
            head=dict(head),
            tags=config.tags,
            is_sealed=not active,
        )

    async def segment_metadata_of(self, name: str) -> StreamMetadata:
        """A single segment as a stream of its own. Raises StreamMissingError, ClientError, StorageError."""
        try:
            parts = parse_segment(name)
        except InvalidRequestError as error:
            raise InvalidRequestError(
                "the service tells only where segments of streams are; read this one from Tier 2 with mode=offline"
                f" segment={name!r}"
            ) from error
        info = (await self._infos([name]))[0]
        if info is None:
            raise StreamMissingError(f"segment does not exist name={name!r}")
        segment = await self._segment(
            name,
            SegmentRange(parts.segment_id, 0.0, 1.0),
            info,
            head=0,
            successors=(),
            predecessors=(),
        )
        return StreamMetadata(
            scope=parts.scope,
            stream=parts.stream,
            segments=[segment],
            head={segment.segment_id: segment.start_offset},
            is_sealed=info.is_sealed,
        )

    async def _edges(
        self, name: StreamName, head: Mapping[int, int], active: Sequence[SegmentRange]
    ) -> dict[int, _Edges]:
        ranges: dict[int, SegmentRange] = {}
        # What follows a segment that still takes events is not decided yet.
        edges = {each.segment_id: _Edges(each, ()) for each in active}
        for epoch in sorted(set(map(creation_epoch_of, head))):
            for each in await self._controller.epoch_segments(name, epoch):
                ranges[each.segment_id] = each
        waiting = [each for each in sorted(head) if each not in edges]
        while waiting:
            some, waiting = waiting[:_AT_ONCE], waiting[_AT_ONCE:]
            found = await gather_all(self._controller.successors(name, each) for each in some)
            for segment_id, successors in zip(some, found, strict=True):
                edges[segment_id] = _Edges(ranges[segment_id], successors)
                for successor in successors:
                    following = successor.range.segment_id
                    ranges[following] = successor.range
                    if following not in edges and following not in waiting:
                        waiting.append(following)
        return edges

    async def _infos(self, names: Sequence[str]) -> list[SegmentInfo | None]:
        """In order; None for a segment that is gone."""
        infos: list[SegmentInfo | None] = []
        for start in range(0, len(names), _AT_ONCE):
            found = await asyncio.gather(
                *(self._store.segment(name).info() for name in names[start : start + _AT_ONCE]),
                return_exceptions=True,
            )
            for info in found:
                if isinstance(info, SegmentNotFoundError):
                    infos.append(None)
                elif isinstance(info, BaseException):
                    raise info
                else:
                    infos.append(info)
        return infos

    async def _segment(
        self,
        name: str,
        key_range: SegmentRange,
        info: SegmentInfo | None,
        *,
        head: int,
        successors: tuple[int, ...],
        predecessors: tuple[int, ...],
    ) -> StreamSegmentMetadata:
        record = None if self._view is None else await self._view.find(name)
        length = 0 if info is None else info.length
        start = 0 if info is None else info.start_offset
        return StreamSegmentMetadata(
            segment_id=key_range.segment_id,
            name=name,
            epoch=creation_epoch_of(key_range.segment_id),
            low=key_range.low,
            high=key_range.high,
            start_offset=min(max(head, start), length),
            end_offset=length,
            # The service was asked first: Tier 2 may have more by now.
            published_end=0 if record is None else min(record.length, length),
            is_sealed=info is not None and info.is_sealed,
            container_id=-1 if self._view is None else self._view.container_id(name),
            successors=successors,
            predecessors=predecessors,
        )


@asynccontextmanager
async def open_service_catalog(
    where: ServiceAddress, view: Tier2Reader | None
) -> AsyncIterator[tuple[Store, ServiceStreamCatalog]]:
    """A client of the service, and its streams. Connections are made when they are needed."""
    async with connect_service(where) as store:
        yield store, ServiceStreamCatalog(store=store, view=view)
