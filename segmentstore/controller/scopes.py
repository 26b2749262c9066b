"""Creating, listing and deleting scopes.

Deleting: the record says DELETING; the indexes of everything that a scope may hold are closed in one batch, which fails
if one of them holds a name (then the record says ACTIVE again); the highest segment number is saved in the record; the
table goes; the record goes. A crash between any two steps leaves the scope in the index `pending` of the table
of scopes, and the same steps are done again.

Invariants:

- A scope is deleted only while it holds nothing, and nothing can be created in it from that moment on.
- The incarnation and the segment numbers that a deleted scope has used up are kept, in one record for all names that
  share a hash: one for each name would stay for ever.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace

from segmentstore.codec.controller_records.scope_records import ScopeRecord, ScopeState
from segmentstore.codec.stream_names import is_user_name
from segmentstore.contracts.errors import SegmentNotFoundError, SegmentStoreError
from segmentstore.controller.errors import (
    IndexNotEmptyError,
    RetryLaterError,
    ScopeExistsError,
    ScopeNotEmptyError,
    ScopeNotFoundError,
    StreamNotFoundError,
    too_many_waiters,
)
from segmentstore.controller.metadata.batch import Batch, Versioned
from segmentstore.controller.metadata.metadata_store import (
    PENDING_INDEX,
    SCOPES_INDEX,
    MetadataStore,
    deleted_scopes_key,
    scope_key,
)
from segmentstore.controller.metadata.metadata_table import NamePage
from segmentstore.controller.retry_queue import ResourceName, RetryQueue
from segmentstore.controller.settings import StreamSettings
from segmentstore.controller.streams.stream_history import (
    DELETED_NUMBERS_KEY,
    STREAMS_INDEX,
    tag_index,
)
from segmentstore.controller.streams.streams import Streams
from segmentstore.runtime.clock import WallClock
from segmentstore.runtime.keyed_locks import KeyedLocks

Emptying = Callable[[str], Awaitable[None]]
"""Deletes everything of one kind that a scope holds; may be called again."""

_PAGE = 100


class Scopes:
    """The verbs of scopes."""

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        streams: Streams,
        wall_clock: WallClock,
        settings: StreamSettings,
    ) -> None:
        self._metadata = metadata
        self._streams = streams
        self._wall_clock = wall_clock
        self._locks = KeyedLocks[str](
            waiters_max=settings.waiters_per_stream_max, refusal=too_many_waiters
        )
        self._indexes = [STREAMS_INDEX, PENDING_INDEX]
        self._emptyings: list[Emptying] = []
        self._retry_queue = RetryQueue(resume=self._resume)

    def register(self, index: str, emptying: Emptying) -> None:
        """A scope is not empty while `index` holds names; deleting it with all it holds calls `emptying` first."""
        self._indexes.append(index)
        self._emptyings.append(emptying)

    async def create(self, scope: str) -> None:
        """Raises ScopeExistsError."""
        async with self._locks.held(scope):
            known = await self._settled(scope)
            if known.record is not None and known.record.state is ScopeState.ACTIVE:
                raise ScopeExistsError(scope)
            skipped = (await self._metadata.scopes.read(DELETED_NUMBERS_KEY)).record
            deleted = (await self._metadata.scopes.read(deleted_scopes_key(scope))).record
            # Earlier versions kept a record for each name.
            before = [each for each in (known.record, deleted) if each is not None]
            numbers = [each.first_segment_number for each in before]
            record = ScopeRecord(
                ScopeState.ACTIVE,
                1 + max((each.incarnation for each in before), default=0),
                max(*numbers, skipped.number if skipped is not None else 0, 0),
                self._wall_clock.now_ms(),
            )
            await self._metadata.create_scope_table(scope, record.incarnation)
            batch = Batch()
            batch.put(scope_key(scope), record, known)
            batch.list_name(SCOPES_INDEX, scope)
            await self._metadata.scopes.commit(batch)

    async def delete(self, scope: str) -> None:
        """Raises ScopeNotEmptyError, ScopeNotFoundError."""
        async with self._locks.held(scope):
            with self._retry_queue.queued_on_failure(scope):
                await self._delete(scope)

    async def delete_with_content(self, scope: str) -> None:
        """Delete all that the scope holds, then the scope. Raises ScopeNotFoundError, RetryLaterError."""
        await self._metadata.scope_table(scope)
        for emptying in self._emptyings:
            await emptying(scope)
        await self._delete_streams(scope)
        try:
            await self.delete(scope)
        except ScopeNotEmptyError as error:
            raise RetryLaterError(f"scope is being filled meanwhile scope={scope!r}") from error

    async def run(self) -> None:
        """Finish deletions that were broken off, until cancelled."""
        await self._retry_queue.run()

    async def exists(self, scope: str) -> bool:
        """Whether there is a scope of that name."""
        try:
            await self._metadata.scope_table(scope)
        except ScopeNotFoundError:
            return False
        return True

    async def names(self, *, after: str, count: int) -> NamePage:
        """Scopes in order, behind `after`."""
        return await self._metadata.scopes.names(SCOPES_INDEX, after=after, count=count)

    async def streams(self, scope: str, *, after: str, count: int) -> NamePage:
        """Streams of a scope in order, internal ones too. Raises ScopeNotFoundError."""
        return await self.indexed(scope, STREAMS_INDEX, after=after, count=count)

    async def streams_with_tag(self, scope: str, tag: str, *, after: str, count: int) -> NamePage:
        """Streams of a scope that have the tag, in order. Raises ScopeNotFoundError."""
        return await self.indexed(scope, tag_index(tag), after=after, count=count)

    async def indexed(self, scope: str, index: str, *, after: str, count: int) -> NamePage:
        """Names of any index of a scope's table. Raises ScopeNotFoundError."""
        table = await self._metadata.scope_table(scope)
        return await table.names(index, after=after, count=count)

    async def resume_all(self) -> None:
        """Finish every deletion that the records say is under way; what cannot be finished now stays with `run`."""
        pending = self._metadata.scopes.all_names(PENDING_INDEX, per_read=_PAGE)
        async with aclosing(pending) as scopes:
            async for scope in scopes:
                await self._retry_queue.attempt((scope,))

    def complaints(self) -> Mapping[ResourceName, str]:
        """Scopes whose deletion could not be finished, and why."""
        return self._retry_queue.complaints()

    async def _delete(self, scope: str) -> None:
        known = await self._settled(scope)
        if known.record is None or known.record.state is ScopeState.DELETED:
            raise ScopeNotFoundError(scope)
        if not await self._is_empty(scope, known.record.incarnation):
            raise ScopeNotEmptyError(scope)
        batch = Batch()
        batch.put(scope_key(scope), replace(known.record, state=ScopeState.DELETING), known)
        batch.list_name(PENDING_INDEX, scope)
        await self._metadata.scopes.commit(batch)
        try:
            settled = await self._settled(scope)
        except SegmentStoreError as error:
            # Whatever it is: the scope is half deleted, or not at all, and that has to come out.
            self._retry_queue.note_failure((scope,), error)
            raise
        if settled.record is not None and settled.record.state is ScopeState.ACTIVE:
            raise ScopeNotEmptyError(scope)

    async def _resume(self, place: ResourceName) -> None:
        (scope,) = place
        async with self._locks.held(scope):
            # What was broken off may be the intent itself, still on its way.
            self._metadata.scopes.require_settled()
            await self._settled(scope)

    async def _is_empty(self, scope: str, incarnation: int) -> bool:
        table = self._metadata.table_of(scope, incarnation)
        for index in self._indexes:
            if (await table.names(index, count=1)).names:
                return False
        return True

    async def _settled(self, scope: str) -> Versioned[ScopeRecord]:
        """The record, once no deletion is under way. The caller holds the scope."""
        known = await self._metadata.scopes.read(scope_key(scope))
        if known.record is None or known.record.state is not ScopeState.DELETING:
            return known
        record = known.record
        table = self._metadata.table_of(scope, record.incarnation)
        try:
            closing = Batch()
            for index in self._indexes:
                closing.close_index(index)
            await table.commit(closing)
            numbers = (await table.read(DELETED_NUMBERS_KEY)).record
        except IndexNotEmptyError:
            return await self._end_deletion(scope, replace(record, state=ScopeState.ACTIVE), known)
        except SegmentNotFoundError:
            # An earlier attempt saved the number before it deleted the table.
            return await self._end_deletion(scope, replace(record, state=ScopeState.DELETED), known)
        if numbers is not None and numbers.number > record.first_segment_number:
            record = replace(record, first_segment_number=numbers.number)
            saving = Batch()
            saving.put(scope_key(scope), record, known)
            await self._metadata.scopes.commit(saving)
            known = await self._metadata.scopes.read(scope_key(scope))
        await self._metadata.delete_scope_table(scope, record.incarnation)
        return await self._end_deletion(scope, replace(record, state=ScopeState.DELETED), known)

    async def _end_deletion(
        self, scope: str, record: ScopeRecord, known: Versioned[ScopeRecord]
    ) -> Versioned[ScopeRecord]:
        scopes = self._metadata.scopes

        async def end() -> Batch:
            batch = Batch()
            batch.unlist_name(PENDING_INDEX, scope)
            if record.state is not ScopeState.DELETED:
                batch.put(scope_key(scope), record, known)
                return batch
            deleted = await scopes.read(deleted_scopes_key(scope))
            used_up = record
            if deleted.record is not None:
                used_up = replace(
                    record,
                    incarnation=max(record.incarnation, deleted.record.incarnation),
                    first_segment_number=max(
                        record.first_segment_number, deleted.record.first_segment_number
                    ),
                )
            batch.put(deleted_scopes_key(scope), used_up, deleted)
            batch.remove(scope_key(scope), known)
            batch.unlist_name(SCOPES_INDEX, scope)
            return batch

        # The record of deleted scopes is also that of others.
        await scopes.commit_built(end)
        return await scopes.read(scope_key(scope))

    async def _delete_streams(self, scope: str) -> None:
        # Streams of users take their internal ones along; what is left over afterwards belonged to no stream.
        for users_only in (True, False):
            after = ""
            while True:
                page = await self.streams(scope, after=after, count=_PAGE)
                for stream in page.names:
                    if is_user_name(stream) or not users_only:
                        await self._delete_stream(scope, stream)
                if not page.more:
                    break
                after = page.names[-1]

    async def _delete_stream(self, scope: str, stream: str) -> None:
        try:
            await self._streams.seal(scope, stream)
            await self._streams.delete(scope, stream)
        except StreamNotFoundError:
            # It went with another one, or another caller deleted it before.
            return
