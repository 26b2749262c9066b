"""Bugs to plant in the controller: each breaks one promise while the patch lasts."""

from collections.abc import Callable, Sequence

import pytest

from segmentstore.codec.stream_records.epoch_record import EpochRecord
from segmentstore.codec.stream_records.transaction_record import (
    TransactionState,
)
from segmentstore.controller.metadata.metadata_table import MetadataTable, NamePage
from segmentstore.controller.streams.creation import Creation
from segmentstore.controller.streams.stream_history import StreamHistory
from segmentstore.controller.streams.stream_segments import StreamSegments
from segmentstore.controller.transactions.merges import Merged, Merges
from segmentstore.controller.transactions.transaction_table import (
    TransactionChange,
    TransactionName,
    TransactionTable,
)

Patch = Callable[[pytest.MonkeyPatch], None]


def _answer_commits_before_they_are_durable(patch: pytest.MonkeyPatch) -> None:
    original = TransactionTable.replace

    async def replace(
        self: TransactionTable, changes: dict[TransactionName, TransactionChange]
    ) -> None:
        decided = [after for _, after in changes.values()]
        if any(after and after.state is TransactionState.COMMITTING for after in decided):
            return
        kept = {name: (await self.read(name), after) for name, (_, after) in changes.items()}
        await original(self, kept)

    patch.setattr(TransactionTable, "replace", replace)


def _commit_a_part(patch: pytest.MonkeyPatch) -> None:
    original = Merges.merge

    async def merge(
        self: Merges,
        history: StreamHistory,
        *,
        sources: EpochRecord,
        targets: EpochRecord,
        transaction_ids: Sequence[int],
    ) -> dict[int, Merged]:
        some = sources.segments[:1]
        first = EpochRecord(sources.epoch, sources.reference_epoch, sources.created_ms, some)
        return await original(
            self, history, sources=first, targets=targets, transaction_ids=transaction_ids
        )

    patch.setattr(Merges, "merge", merge)


def _use_segment_numbers_again(patch: pytest.MonkeyPatch) -> None:
    async def first_number(self: Creation, history: StreamHistory) -> int:
        return 0

    patch.setattr(Creation, "_first_number", first_number)


def _leave_the_segments_of_aborted_transactions(patch: pytest.MonkeyPatch) -> None:
    original = StreamSegments.delete

    async def delete(self: StreamSegments, names: Sequence[str]) -> None:
        await original(self, [name for name in names if "#transaction." not in name])

    patch.setattr(StreamSegments, "delete", delete)


def _lose_a_name_between_two_pages(patch: pytest.MonkeyPatch) -> None:
    original = MetadataTable.names

    async def names(self: MetadataTable, index: str, *, after: str = "", count: int) -> NamePage:
        page = await original(self, index, after=after, count=count)
        return NamePage(page.names[1:] if after and index == "streams" else page.names, page.more)

    patch.setattr(MetadataTable, "names", names)


BUGS: dict[str, Patch] = {
    "answers commits before they are durable": _answer_commits_before_they_are_durable,
    "commits a part of a transaction": _commit_a_part,
    "uses segment numbers again": _use_segment_numbers_again,
    "leaves segments of aborted transactions": _leave_the_segments_of_aborted_transactions,
    "loses a name between two pages": _lose_a_name_between_two_pages,
}
