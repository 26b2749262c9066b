"""Moves what transactions wrote into the segments of their stream.

Invariants:

- Into one segment, transactions are merged in the order given: wherever it breaks off, the first ones are merged.
- A source that is missing counts as merged only where a segment remembers it: the target itself, or an earlier
  segment of the same number, if the stream was scaled between two attempts; or where that was recorded before the
  segment was truncated away. Otherwise its bytes are lost, which is an error and never a success.
- A segment's number decides the target: transactions of number n are merged into a segment of number n, which is in
  the same container.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import aclosing

from segmentstore.codec.controller_records.stream_records import EpochRecord, StreamSegment
from segmentstore.codec.stream_names import number_of, segment_name, transaction_segment
from segmentstore.contracts.errors import ErrorKind, SegmentNotFoundError, SegmentSealedError
from segmentstore.contracts.segments import SegmentApi
from segmentstore.controller.errors import ControllerError
from segmentstore.controller.streams.stream_history import StreamHistory
from segmentstore.runtime.waiting import gather_all

Merged = dict[int, int]
"""Target segment -> its length behind the transaction's bytes."""


class TransactionSegmentLostError(ControllerError):
    """A committing transaction's segment is gone and no segment of the stream remembers to have taken it in."""

    kind = ErrorKind.CORRUPT


class Merges:
    """Merges transactions that wrote to the segments of one epoch."""

    def __init__(self, *, segments: SegmentApi) -> None:
        self._segments = segments

    async def merge(
        self,
        history: StreamHistory,
        *,
        sources: EpochRecord,
        targets: EpochRecord,
        transaction_ids: Sequence[int],
        recorded: Mapping[int, Mapping[int, int]],
        ended: Collection[int] = (),
    ) -> dict[int, Merged]:
        """For each transaction where its bytes went. `targets` has the segment numbers of `sources`.

        `recorded` says what of each transaction was recorded as merged before. Of the `ended` ones bytes may be gone.

        Raises TransactionSegmentLostError, SegmentSealedError and SegmentNotFoundError (of a target).
        """
        target_of = {segment.number: segment.segment_id for segment in targets.segments}
        chains = await gather_all(
            self._merge_into(
                history,
                source,
                target_of[source.number],
                targets,
                [
                    each
                    for each in transaction_ids
                    if not _has_number(recorded.get(each, {}), source.number)
                ],
                ended,
            )
            for source in sources.segments
        )
        merged: dict[int, Merged] = {each: dict(recorded.get(each, {})) for each in transaction_ids}
        for chain in chains:
            for transaction_id, (target, length) in chain.items():
                merged[transaction_id][target] = length
        return merged

    async def join(
        self,
        history: StreamHistory,
        *,
        sources: EpochRecord,
        stages: Sequence[int],
        transaction_id: int,
    ) -> None:
        """Merge stages into the segments of the transaction, which exist; all of them wrote to the epoch `sources`.

        Raises TransactionSegmentLostError.
        """
        await gather_all(
            self._join_into(history, parent.segment_id, stages, transaction_id)
            for parent in sources.segments
        )

    async def replace_lost_stages(
        self,
        history: StreamHistory,
        *,
        sources: EpochRecord,
        stages: Sequence[int],
        transaction_id: int,
    ) -> list[str]:
        """As `replace_lost`, for stages of a transaction whose segments exist."""
        created: list[str] = []
        for parent in sources.segments:
            target = self._source_name(history, parent.segment_id, transaction_id)
            for stage in stages:
                source = self._source_name(history, parent.segment_id, stage)
                try:
                    await self._segments.info(source)
                except SegmentNotFoundError:
                    try:
                        await self._segments.merge(target, source)
                    except SegmentNotFoundError:
                        await self._segments.create(source)
                        created.append(source)
        return created

    async def forget(
        self, history: StreamHistory, sources: EpochRecord, merged: Mapping[int, Merged]
    ) -> None:
        """The commits are recorded: the segments need not remember these transactions any longer."""
        parents = {segment.number: segment.segment_id for segment in sources.segments}
        forgotten: dict[int, list[str]] = {}
        for transaction_id, targets in merged.items():
            for target in targets:
                source = self._source_name(history, parents[number_of(target)], transaction_id)
                forgotten.setdefault(target, []).append(source)
        await gather_all(
            self._forget_in(history.segment_name(target), names)
            for target, names in forgotten.items()
        )

    async def replace_lost(
        self,
        history: StreamHistory,
        *,
        sources: EpochRecord,
        last_epoch: int,
        transaction_id: int,
        recorded: Mapping[int, int],
    ) -> list[str]:
        """Create empty what is missing of a committing transaction and was not merged; the names.

        Only where it is known and told that data was lost: the commit goes on without it.
        """
        created: list[str] = []
        for parent in sources.segments:
            if _has_number(recorded, parent.number):
                continue
            try:
                await self.find_merged(history, parent, transaction_id, last_epoch=last_epoch)
            except TransactionSegmentLostError:
                source = self._source_name(history, parent.segment_id, transaction_id)
                await self._segments.create(source)
                created.append(source)
        return created

    async def find_merged(
        self, history: StreamHistory, parent: StreamSegment, transaction_id: int, *, last_epoch: int
    ) -> tuple[int, int] | None:
        """Which segment took in what a transaction wrote beside `parent`, and its length behind that; None: none did.

        Raises TransactionSegmentLostError if its bytes are neither there nor merged.
        """
        try:
            await self._segments.info(self._source_name(history, parent.segment_id, transaction_id))
        except SegmentNotFoundError as error:
            return await self._merged_before(history, parent, error, last_epoch=last_epoch)
        return None

    async def require_sources(
        self,
        history: StreamHistory,
        *,
        sources: EpochRecord,
        last_epoch: int,
        recorded: Mapping[int, Mapping[int, int]],
    ) -> None:
        """Raises TransactionSegmentLostError unless every transaction's bytes are there or merged."""
        await asyncio.gather(
            *(
                self.find_merged(history, parent, transaction_id, last_epoch=last_epoch)
                for transaction_id, merged in recorded.items()
                for parent in sources.segments
                if not _has_number(merged, parent.number)
            )
        )

    async def _join_into(
        self, history: StreamHistory, parent: int, stages: Sequence[int], transaction_id: int
    ) -> None:
        target = self._source_name(history, parent, transaction_id)
        sources = [self._source_name(history, parent, stage) for stage in stages]
        try:
            # Those merged already are missing and remembered.
            await self._segments.merge_all(target, sources, seal_sources=True)
        except SegmentNotFoundError as error:
            if error.name == target:
                raise
            raise TransactionSegmentLostError(
                f"a stage's segment is gone and was not merged name={error.name!r}"
            ) from error

    async def _merge_into(
        self,
        history: StreamHistory,
        parent: StreamSegment,
        target: int,
        targets: EpochRecord,
        transaction_ids: Sequence[int],
        ended: Collection[int],
    ) -> dict[int, tuple[int, int]]:
        name = history.segment_name(target)
        places: dict[int, tuple[int, int]] = {}
        left = list(transaction_ids)
        while left:
            sources = [self._source_name(history, parent.segment_id, each) for each in left]
            lengths, gone = await self._merge_present(name, sources)
            for transaction_id, length in zip(left, lengths, strict=False):
                places[transaction_id] = (target, length)
            del left[: len(lengths)]
            if gone is None:
                continue
            transaction_id = left.pop(0)
            try:
                places[transaction_id] = await self._merged_before(
                    history, parent, gone, last_epoch=targets.epoch - 1
                )
            except TransactionSegmentLostError:
                if transaction_id not in ended:
                    raise
        return places

    async def _merge_present(
        self, target: str, sources: Sequence[str]
    ) -> tuple[Sequence[int], SegmentNotFoundError | None]:
        """The target's lengths behind the first sources, and what was said of one that is gone behind them."""
        gone: SegmentNotFoundError | None = None
        while True:
            try:
                return await self._segments.merge_all(target, sources, seal_sources=True), gone
            except SegmentNotFoundError as error:
                if error.name == target:
                    raise
                gone = error
                # They are merged, and remembered: asked again for their lengths.
                sources = sources[: sources.index(error.name)]

    async def _merged_before(
        self,
        history: StreamHistory,
        parent: StreamSegment,
        gone: SegmentNotFoundError,
        *,
        last_epoch: int,
    ) -> tuple[int, int]:
        """Where an earlier attempt, made before a scale, has merged the source that is gone."""
        candidates: list[int] = []
        async with aclosing(history.segments_born(parent.creation_epoch, last_epoch)) as segments:
            async for segment in segments:
                if segment.number == parent.number and segment.segment_id not in candidates:
                    candidates.append(segment.segment_id)
        for candidate in reversed(candidates):
            try:
                length = await self._segments.merge(history.segment_name(candidate), gone.name)
            except (SegmentNotFoundError, SegmentSealedError):
                continue
            return candidate, length
        raise TransactionSegmentLostError(
            f"a transaction's segment is gone and was not merged name={gone.name!r}"
        ) from gone

    async def _forget_in(self, target: str, sources: Sequence[str]) -> None:
        try:
            await self._segments.forget_merged(target, sources)
        except SegmentNotFoundError:
            # The target was truncated away, and its memory with it.
            return

    def _source_name(self, history: StreamHistory, parent: int, transaction_id: int) -> str:
        return transaction_segment(
            segment_name(history.scope, history.stream, parent), transaction_id
        )


def _has_number(merged: Mapping[int, int], number: int) -> bool:
    """Whether what was merged went into a segment of that number, among others."""
    return any(number_of(segment_id) == number for segment_id in merged)
