"""Bugs to plant in the controller: each breaks one promise while the patch lasts."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import pytest

from segmentstore.codec.controller_api import controller_pb2 as api
from segmentstore.codec.controller_records.reader_group_records import (
    ConsumedCutRecord,
    ReaderGroupRecord,
)
from segmentstore.codec.controller_records.stream_records import (
    EpochRecord,
    RetentionPolicy,
    StreamSegment,
    StreamStateRecord,
    TruncationRecord,
)
from segmentstore.codec.controller_records.transaction_records import (
    CommitFenceRecord,
    TransactionState,
)
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.controller import retention, subscribers
from segmentstore.controller.metadata.metadata_table import MetadataTable, NamePage
from segmentstore.controller.retention import RetentionLimits, limits_of
from segmentstore.controller.streams.scaling import EpochTransition
from segmentstore.controller.streams.stream_cuts import Cut
from segmentstore.controller.streams.stream_history import StreamHistory
from segmentstore.controller.streams.stream_queries import StreamQueries, Successor
from segmentstore.controller.streams.stream_segments import StreamSegments
from segmentstore.controller.streams.streams import Streams
from segmentstore.controller.streams.truncation import Truncation
from segmentstore.controller.subscribers import Subscribers
from segmentstore.controller.transactions import staged_commits
from segmentstore.controller.transactions.completion import TransactionCompleter
from segmentstore.controller.transactions.merges import Merged, Merges
from segmentstore.controller.transactions.transaction_states import (
    StreamTransactions,
    TransactionStates,
)
from segmentstore.controller.transactions.transaction_table import (
    FenceName,
    TransactionChange,
    TransactionName,
    TransactionTable,
)
from segmentstore.host.controller_supervisor import ControllerSupervisor
from tests.controller.random_runs.settings import Theme

Fence = tuple[FenceName, CommitFenceRecord | None, CommitFenceRecord]
Patch = Callable[[pytest.MonkeyPatch], None]


def _answer_commits_before_they_are_durable(patch: pytest.MonkeyPatch) -> None:
    original = TransactionTable.replace

    async def replace(
        self: TransactionTable,
        changes: dict[TransactionName, TransactionChange],
        *,
        fence: Fence | None = None,
    ) -> None:
        if fence is not None:
            await original(self, changes, fence=fence)
            return
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
        recorded: Mapping[int, Mapping[int, int]],
        ended: Collection[int] = (),
    ) -> dict[int, Merged]:
        some = sources.segments[:1]
        first = EpochRecord(sources.epoch, sources.reference_epoch, sources.created_ms, some)
        return await original(
            self,
            history,
            sources=first,
            targets=targets,
            transaction_ids=transaction_ids,
            recorded=recorded,
            ended=ended,
        )

    patch.setattr(Merges, "merge", merge)


def _use_segment_numbers_again(patch: pytest.MonkeyPatch) -> None:
    async def first_number(self: Streams, history: StreamHistory) -> int:
        return 0

    patch.setattr(Streams, "_first_number", first_number)


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


def _forget_what_an_application_committed(patch: pytest.MonkeyPatch) -> None:
    original = TransactionTable.replace

    async def replace(
        self: TransactionTable,
        changes: dict[TransactionName, TransactionChange],
        *,
        fence: Fence | None = None,
    ) -> None:
        await original(self, changes)

    patch.setattr(TransactionTable, "replace", replace)
    patch.setattr(staged_commits, "_known", lambda states, commit: [])


def _commit_some_of_the_stages(patch: pytest.MonkeyPatch) -> None:
    original = Merges.join

    async def join(
        self: Merges,
        history: StreamHistory,
        *,
        sources: EpochRecord,
        stages: Sequence[int],
        transaction_id: int,
    ) -> None:
        await original(
            self, history, sources=sources, stages=stages[1:], transaction_id=transaction_id
        )

    patch.setattr(Merges, "join", join)


def _say_too_early_that_nothing_follows(patch: pytest.MonkeyPatch) -> None:
    original = StreamQueries._known_successors

    async def known_successors(
        self: StreamQueries, history: StreamHistory, state: StreamStateRecord, segment_id: int
    ) -> Sequence[Successor]:
        return await original(self, history, state, segment_id) or ()

    patch.setattr(StreamQueries, "_known_successors", known_successors)


def _seal_before_it_is_told_what_follows(patch: pytest.MonkeyPatch) -> None:
    """And whoever asks is answered by what was told so far."""
    original = EpochTransition.publish_successors

    async def publish(
        self: EpochTransition, history: StreamHistory, before: EpochRecord, after: EpochRecord
    ) -> None:
        await self.seal_replaced(history, before, after)
        await original(self, history, before, after)

    patch.setattr(EpochTransition, "publish_successors", publish)
    _say_too_early_that_nothing_follows(patch)


def _delete_what_a_cut_runs_around(patch: pytest.MonkeyPatch) -> None:
    def is_garbage(
        self: Truncation, segment: StreamSegment, head: list[StreamSegment], previous: object
    ) -> bool:
        return segment not in head and any(
            segment.creation_epoch < other.creation_epoch
            for other in head
            if segment.overlaps(other)
        )

    patch.setattr(Truncation, "_is_garbage", is_garbage)


def _truncate_ahead_of_a_cut(patch: pytest.MonkeyPatch) -> None:
    original = StreamSegments.truncate

    async def truncate(self: StreamSegments, name: str, offset: int) -> None:
        info = (await self.info([name]))[0]
        await original(self, name, offset if info is None else info.length)

    patch.setattr(StreamSegments, "truncate", truncate)


def _delete_before_the_head_is_recorded(patch: pytest.MonkeyPatch) -> None:
    original = Truncation._check

    async def check(self: Truncation, history: StreamHistory, cut: Cut, head: Cut) -> None:
        await original(self, history, cut, head)
        record = TruncationRecord(dict(cut), dict(head))
        await self._delete_behind(history, record)
        # The process may die here, and the intent is in no table yet.
        await asyncio.sleep(0.5)

    patch.setattr(Truncation, "_check", check)


def _retain_without_regard_to_subscribers(patch: pytest.MonkeyPatch) -> None:
    async def lowest_cut(self: Subscribers, history: StreamHistory) -> None:
        return None

    patch.setattr(Subscribers, "lowest_cut", lowest_cut)


def _keep_less_than_the_policy_says(patch: pytest.MonkeyPatch) -> None:
    def limits(policy: RetentionPolicy) -> RetentionLimits | None:
        found = limits_of(policy)
        return found and replace(found, keep=found.keep // 4)

    patch.setattr(retention, "limits_of", limits)


def _lose_a_subscriber(patch: pytest.MonkeyPatch) -> None:
    original = Subscribers.update_cut

    async def update_cut(
        self: Subscribers, request: api.SubscriberStreamCut
    ) -> api.UpdateSubscriberStatus:
        answer = await original(self, request)
        info = request.streamCut.streamInfo
        scope, _, group = request.subscriber.partition("/")
        await self.unsubscribe(info.scope, info.stream, scope=scope, group=group)
        return answer

    patch.setattr(Subscribers, "update_cut", update_cut)


def _live_on_without_the_containers(patch: pytest.MonkeyPatch) -> None:
    """A controller goes on with what it remembers, whoever had its tables meanwhile."""

    def containers_of_tables(self: ControllerSupervisor) -> set[ContainerId]:
        return set()

    patch.setattr(ControllerSupervisor, "_containers_of_tables", containers_of_tables)


def _forget_what_a_commit_has_merged_when_it_is_truncated(patch: pytest.MonkeyPatch) -> None:
    async def record_merges(
        self: TransactionCompleter, history: StreamHistory, segment_ids: Sequence[int]
    ) -> None:
        return None

    patch.setattr(TransactionCompleter, "record_merges", record_merges)


def _count_what_a_group_consumed_before_its_reset(patch: pytest.MonkeyPatch) -> None:
    def counts_for(consumed: ConsumedCutRecord, record: ReaderGroupRecord) -> bool:
        return consumed.group_id == record.group_id

    patch.setattr(subscribers, "_counts_for", counts_for)


def _drop_what_has_the_name_of_an_ended_stream(patch: pytest.MonkeyPatch) -> None:
    def drop_if_empty(self: TransactionStates, stream: StreamTransactions) -> None:
        if stream.is_empty:
            self._streams.pop((stream.scope, stream.stream), None)

    patch.setattr(TransactionStates, "drop_if_empty", drop_if_empty)


BUGS: dict[str, Patch] = {
    "forgets what an application committed": _forget_what_an_application_committed,
    "commits some of the stages": _commit_some_of_the_stages,
    "says too early that nothing follows": _say_too_early_that_nothing_follows,
    "seals before it is told what follows": _seal_before_it_is_told_what_follows,
    "deletes what a cut runs around": _delete_what_a_cut_runs_around,
    "truncates ahead of a cut": _truncate_ahead_of_a_cut,
    "deletes before the head is recorded": _delete_before_the_head_is_recorded,
    "retains without regard to subscribers": _retain_without_regard_to_subscribers,
    "keeps less than the policy says": _keep_less_than_the_policy_says,
    "loses a subscriber": _lose_a_subscriber,
    "answers commits before they are durable": _answer_commits_before_they_are_durable,
    "commits a part of a transaction": _commit_a_part,
    "uses segment numbers again": _use_segment_numbers_again,
    "leaves segments of aborted transactions": _leave_the_segments_of_aborted_transactions,
    "loses a name between two pages": _lose_a_name_between_two_pages,
    "lives on without its containers": _live_on_without_the_containers,
}

OF_THEMES: dict[str, tuple[Theme, Patch]] = {
    "forgets what a commit has merged when it is truncated": (
        Theme.TRUNCATIONS,
        _forget_what_a_commit_has_merged_when_it_is_truncated,
    ),
    "counts what a group consumed before its reset": (
        Theme.RESETS,
        _count_what_a_group_consumed_before_its_reset,
    ),
    "drops what has the name of an ended stream": (
        Theme.RECREATIONS,
        _drop_what_has_the_name_of_an_ended_stream,
    ),
}
"""Bugs that are looked for in worlds about one thing, because those about everything come to them too seldom."""

OF_POLICIES = frozenset(
    {
        "deletes before the head is recorded",
        "retains without regard to subscribers",
        "keeps less than the policy says",
        "loses a subscriber",
    }
)
"""Bugs that are looked for in runs whose streams have policies; others in runs where clients truncate."""

OF_CONTAINERS = frozenset({"lives on without its containers"})
"""Bugs that are looked for in runs whose containers are taken over and given back."""
