"""Deletes the segments of transactions that are aborted.

Invariant: what stays is only what a transaction never had. An epoch that the stream does not have belonged to a stream
of the same name that is gone; the segments of its transactions went with it.
"""

from collections.abc import Iterable

from segmentstore.codec.stream_names import transaction_epoch_of, transaction_segment
from segmentstore.controller.errors import EpochNotFoundError
from segmentstore.controller.streams.stream_history import StreamHistory
from segmentstore.controller.streams.stream_segments import StreamSegments


class Aborts:
    """May be done again."""

    def __init__(self, *, segments: StreamSegments) -> None:
        self._segments = segments

    async def delete(self, history: StreamHistory, transaction_ids: Iterable[int]) -> None:
        """None of their segments exists afterwards."""
        by_epoch: dict[int, list[int]] = {}
        for transaction_id in transaction_ids:
            by_epoch.setdefault(transaction_epoch_of(transaction_id), []).append(transaction_id)
        for epoch in sorted(by_epoch):
            try:
                parents = await history.epoch(epoch)
            except EpochNotFoundError:
                continue
            await self._segments.delete(
                [
                    transaction_segment(history.segment_name(parent.segment_id), transaction_id)
                    for transaction_id in by_epoch[epoch]
                    for parent in parents.segments
                ]
            )
