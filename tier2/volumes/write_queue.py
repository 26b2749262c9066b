"""The queue of changes: their order, the hashing of contents, which thread commits the next batch, and the answers.

Changes are made in batches: everything that is ready when the last batch ends is the next one. `HashingQueue` keeps the
order and hashes contents beside the batch under way; `WriteQueue` bounds what waits, commits and answers.

Invariants:

- One batch is under way at a time, and nothing else writes the database beside it: the thread that holds the commit
  lock (`WriteQueue._commit_lock`) does either. Code that takes from the queue, or writes the database, without the lock
  breaks this.
- A change joins the queue synchronously, in the order of the calls, and leaves it in that order.
- The disk does not wait for the loop: the thread that has committed a batch goes on with the next by itself, if that is
  ready; a thread that has hashed contents commits them, if no other thread commits. What becomes ready while a thread
  releases the lock is seen: that thread looks once more after it.
- No waiting window: a lone change is a batch of one.
- The queue is bounded by bytes, those of contents that are being hashed included; more callers wait for room, in order.
- A caller that goes away changes nothing: its change is made all the same, unless its bytes are being checked then.
- A put that finds its bytes in the index leaves the queue until they are checked, then joins it again
  (deduplication.py).
- When a batch fails, every change of it fails with one error, outcome unknown; the next batch has a new volume. A put
  whose bytes could not be hashed, or whose description is refused, fails alone, before its batch.
- `changed` is called after every batch that is not compaction's alone: there may be something to compact; urgently, if
  the disk is full.
- The database of the index gets what was committed after a delay, also when nothing follows.
- When a callback of this queue fails, or its worker, the engine ends (engine_failure.py): no batch begins any more.
"""

import asyncio
import logging
from asyncio import AbstractEventLoop, Future
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from typing import ParamSpec, TypeVar

from segmentstore.contracts.errors import (
    SegmentStoreError,
    StorageError,
    StorageUnavailableError,
)
from segmentstore.runtime.cancellation import complete_unless_done, fail_unless_done
from segmentstore.runtime.clock import WallClock
from segmentstore.runtime.guarded_callback import guarded
from tier2.volumes.deduplication import DuplicateCheckQueue
from tier2.volumes.engine_failure import EngineFailure
from tier2.volumes.group_commit import GroupCommit
from tier2.volumes.mutations import (
    OF_COMPACTION,
    DuplicateFound,
    Mutation,
    NewObject,
    Put,
    SmallPut,
    UnhashedPut,
    draft_of,
)
from tier2.volumes.objects import ALWAYS, ContentDigest, IndexRecord, digest_all, digest_by_name
from tier2.volumes.settings import VolumeSettings
from tier2.volumes.volume_files import storage_error_of
from tier2.volumes.write_batch import Outcome, PreparedBatch, QueuedMutation, new_object

_LOGGER = logging.getLogger(__name__)
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

_BATCHES_PER_CALL_MAX = 16
"""Others use the executor, too."""
_HASHING_BYTES_MAX = 4 << 20
"""Of one hashing pass, but for the last content of it."""


class WriteQueue:
    """start(), submit()..., close()."""

    def __init__(
        self,
        *,
        commit: GroupCommit,
        check: Callable[[Put, DuplicateFound], Put],
        executor: Executor | None,
        readers: Executor | None,
        wall_clock: WallClock,
        settings: VolumeSettings,
        failure: EngineFailure,
        changed: Callable[[bool], None] | None = None,
    ) -> None:
        """`check` is called in the readers."""
        self._failure = failure
        failure.tell(self._end_all)
        self._commit = commit
        self._changed = changed
        self._executor = executor
        self._wall_clock = wall_clock
        self._settings = settings
        self._queue = HashingQueue(
            executor=executor,
            wall_clock=wall_clock,
            settings=settings,
            prepare=commit.prepare,
            hashed=self._commit_ready,
            fail=failure.fail,
        )
        self._checks = DuplicateCheckQueue(
            check=check, executor=readers, checked=self._see_checked, fail=failure.fail
        )
        self._commit_lock: deque[None] = deque([None])
        """Empty while a thread holds it: taken and released by single steps of a deque, and no thread waits for it."""
        self._queued_bytes = 0
        self._unanswered: dict[QueuedMutation, None] = {}
        """Changes that have joined: ready, in a batch, or being hashed or checked."""
        self._room_changed = asyncio.Event()
        self._waiting_for_room = 0
        self._worker: asyncio.Task[None] | None = None
        self._flush_timer: asyncio.TimerHandle | None = None
        self._flush_due = False
        self._closing = False

    def start(self) -> None:
        assert self._worker is None, "the queue is started already"
        self._worker = asyncio.create_task(self._work(), name="volumes: group commit")

    async def close(self) -> None:
        """Everything in the queue is made, then the volume is closed. Idempotent."""
        self._closing = True
        self._room_changed.set()
        self._queue.wake()
        if self._worker is not None:
            await self._worker
            while not self._commit_lock:  # the worker has failed beside a batch
                await self._queue.changed()
            self._worker = None
        if self._flush_timer is not None:
            self._flush_timer.cancel()
        await self._run(self._commit.close)

    async def submit(self, mutation: Mutation | UnhashedPut | SmallPut) -> IndexRecord | None:
        """The mutation's record once it is durable and indexed. Raises what refused it, or StorageError."""
        if self._waiting_for_room or not self._has_room():
            await self._wait_for_room()
        # A caller that gives up waiting cancels the future; the change stays in the queue.
        return await self._join(mutation)

    def submit_at_once(
        self, mutation: Mutation | UnhashedPut | SmallPut
    ) -> "Future[IndexRecord | None] | None":
        """As `submit`, without a coroutine in between; None, and nothing is done, if a change has to wait for room."""
        if self._waiting_for_room or not self._has_room():
            return None
        return self._join(mutation)

    async def _wait_for_room(self) -> None:
        self._waiting_for_room += 1
        try:
            # All are woken in the order in which they came, and the first ones take what there is.
            while not (self._has_room() or self._closing or self._failure.cause is not None):
                self._room_changed.clear()
                await self._room_changed.wait()
        finally:
            self._waiting_for_room -= 1

    async def submit_all(self, mutations: Sequence[Mutation]) -> None:
        """Changes without bytes of their own, side by side in the queue. Raises what refused the first one."""
        for future in [self._join(mutation) for mutation in mutations]:
            await future

    def _join(self, mutation: Mutation | UnhashedPut | SmallPut) -> "Future[IndexRecord | None]":
        refusal = self._failure.refusal()
        if refusal is not None:
            raise refusal
        if self._closing or self._worker is None:
            raise StorageUnavailableError("the volumes are closed", state="unavailable")
        future: Future[IndexRecord | None] = asyncio.get_running_loop().create_future()
        waiting = QueuedMutation(mutation, future)
        self._queue.join(waiting)
        self._queued_bytes += waiting.size
        self._unanswered[waiting] = None
        return future

    def _has_room(self) -> bool:
        return self._queued_bytes < self._settings.queued_bytes_max

    async def _work(self) -> None:
        try:
            await self._make_batches()
        except Exception as bug:  # noqa: BLE001  # the top of a task: its owner ends
            self._failure.fail(bug)

    async def _make_batches(self) -> None:
        while not (self._closing and not self._unanswered and self._commit_lock):
            await self._queue.changed()
            # Also while the queue never empties: readers beside this process see only what the database has.
            if self._flush_due and self._acquires_lock():
                self._flush_due = False
                try:
                    await self._run(self._commit.flush_index)
                finally:
                    self._release_lock()
            if self._queue.has_ready and self._commit_lock:
                await self._make()

    async def _make(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            call = loop.run_in_executor(self._executor, self._commit_ready, loop)
        except RuntimeError as error:  # the executor is shut down
            if self._acquires_lock():
                batch = self._queue.take_batch()
                self._answer(batch, [_store_error_of(error) for _ in _mutations_of(batch)])
                self._release_lock()
            self._queue.wake()
        else:
            await call

    def _acquires_lock(self) -> bool:
        try:
            self._commit_lock.pop()
        except IndexError:
            return False
        return True

    def _release_lock(self) -> None:
        self._commit_lock.append(None)

    def _commit_ready(self, loop: AbstractEventLoop) -> None:
        """In the executor: what is ready, one batch after the other, if no other thread holds the lock."""
        batches_left = _BATCHES_PER_CALL_MAX
        while (
            batches_left
            and self._queue.has_ready
            and not self._flush_due
            and self._failure.cause is None
            and self._acquires_lock()
        ):
            try:
                batches_left = self._commit_batches(batches_left, loop)
            finally:
                self._release_lock()
                loop.call_soon_threadsafe(self._queue.wake)

    def _commit_batches(self, batches_left: int, loop: AbstractEventLoop) -> int:
        """How many batches this thread may still make."""
        ended: list[tuple[list[QueuedMutation], list[Outcome]]] = []
        answer = guarded(self._answer, self._failure.fail)

        def tell() -> None:
            while ended:
                loop.call_soon_threadsafe(answer, *ended.pop())

        try:
            while batches_left and not self._flush_due and self._failure.cause is None:
                batch = self._queue.take_batch()
                # The loop has to wake, and until then this batch is judged: neither waits for the other.
                tell()
                if not batch:
                    break
                batches_left -= 1
                ended.append((batch, self._outcomes_of(batch)))
        finally:
            tell()
        return batches_left

    def _outcomes_of(self, batch: list[QueuedMutation]) -> list[Outcome]:
        """Of those that could be hashed."""
        try:
            self._queue.hash_small(batch)
            mutations = _mutations_of(batch)
            if not mutations:
                return []
            return self._commit.commit(
                mutations,
                self._wall_clock.now_ms(),
                ahead=[one.ahead for one in batch if one.error is None],
            )
        except (OSError, SegmentStoreError) as error:
            failure = _store_error_of(error)
        except Exception as error:
            _LOGGER.critical("the volumes stop: a write batch failed", exc_info=error)
            failure = _store_error_of(error)
        return [failure for one in batch if one.error is None]

    def _answer(self, batch: list[QueuedMutation], outcomes: list[Outcome]) -> None:
        found = iter(outcomes)
        for waiting in batch:
            outcome = next(found) if waiting.error is None else _store_error_of(waiting.error)
            if isinstance(outcome, DuplicateFound):
                self._checks.join(waiting, outcome)
                continue
            _complete_future(waiting.future, outcome)
            self._leave(waiting)
        if self._waiting_for_room:
            self._room_changed.set()
        if not outcomes:
            return
        if self._changed is not None and not all(
            isinstance(waiting.mutation, OF_COMPACTION)
            for waiting in batch
            if waiting.error is None
        ):
            self._changed(self._commit.full)
        if self._flush_timer is None:
            self._flush_timer = asyncio.get_running_loop().call_later(
                self._settings.index_delay_seconds,
                guarded(self._flush_soon, self._failure.fail),
            )

    def _see_checked(self, waiting: QueuedMutation, outcome: Put | BaseException | None) -> None:
        if isinstance(outcome, Put):
            waiting.mutation = outcome
            waiting.ahead = None
            self._queue.join(waiting)
            return
        if outcome is not None:
            _complete_future(waiting.future, _store_error_of(outcome))
        self._leave(waiting)
        if self._waiting_for_room:
            self._room_changed.set()
        self._queue.wake()

    def _leave(self, waiting: QueuedMutation) -> None:
        """It is answered, or its caller does not wait any more."""
        # Once: after a failure of the engine all have left, and a batch that was under way may still end.
        if waiting in self._unanswered:
            del self._unanswered[waiting]
            self._queued_bytes -= waiting.size

    def _end_all(self, error: StorageError) -> None:
        """The engine ends: all that wait are told, and the worker looks up."""
        for waiting in list(self._unanswered):
            fail_unless_done(waiting.future, error)
            self._leave(waiting)
        self._room_changed.set()
        self._queue.wake()

    def _flush_soon(self) -> None:
        self._flush_timer = None
        self._flush_due = True
        self._queue.wake()

    async def _run(
        self,
        call: Callable[_Arguments, _Result],
        *args: _Arguments.args,
        **kwargs: _Arguments.kwargs,
    ) -> _Result:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, partial(call, *args, **kwargs))


def _mutations_of(batch: list[QueuedMutation]) -> list[Mutation]:
    """What is to be made of it: without the puts that came to nothing before their batch."""
    made: list[Mutation] = []
    for waiting in batch:
        mutation = waiting.mutation
        if waiting.error is None:
            assert not isinstance(mutation, UnhashedPut | SmallPut), f"not hashed {mutation.key=}"
            made.append(mutation)
    return made


def _complete_future(
    future: "Future[IndexRecord | None]", outcome: IndexRecord | SegmentStoreError | None
) -> None:
    if isinstance(outcome, SegmentStoreError):
        fail_unless_done(future, outcome)
    else:
        complete_unless_done(future, outcome)


def _store_error_of(error: BaseException) -> SegmentStoreError:
    if isinstance(error, SegmentStoreError):
        return error
    return storage_error_of(error, "the volumes cannot be written")


class HashingQueue:
    """Where changes wait for their batch, and where the contents of puts are hashed meanwhile.

        queue, in the order of the calls -> hashing pass: contents are hashed -> ready: batches are cut off its front

    join() first; then changed() tells one worker to look, and the thread that holds the commit lock calls take_batch().

    Invariants:

    - Changes leave in the order in which they joined: what needs no hashing does not overtake what does.
    - Disk and hash work side by side: contents are hashed while a batch is under way.
    - No content waits for others: a hashing pass takes what has come by the iteration of the loop in which it begins.
    - A hashing pass is bounded, so a change that joins behind it waits little longer than for a batch of that size.
    - A caller that goes away takes nothing from the others of its hashing pass.
    - Only the thread that holds the commit lock takes from what is ready. Only one thread adds to it: during a hashing
      pass the thread that hashes, which need not wait for the loop to look; else the loop. Each does so by single steps
      of a deque, which need no lock.
    """

    def __init__(
        self,
        *,
        executor: Executor | None,
        wall_clock: WallClock,
        settings: VolumeSettings,
        prepare: Callable[[Sequence[Put], int], PreparedBatch],
        hashed: Callable[[AbstractEventLoop], None],
        fail: Callable[[Exception], None],
    ) -> None:
        """`prepare` and `hashed` are called in the executor; `fail` when a callback of this queue fails.

        prepare: of puts, at a time, beside a batch under way: what may be done before theirs. May raise StorageError.
        hashed: a hashing pass has ended, and its changes are ready.
        """
        self._executor = executor
        self._wall_clock = wall_clock
        self._settings = settings
        self._prepare = prepare
        self._hashed = hashed
        self._fail = fail
        self._queue: deque[QueuedMutation] = deque()
        self._hashing: list[QueuedMutation] = []
        self._hashing_is_due = False
        self._ready: deque[QueuedMutation] = deque()
        self._changed = asyncio.Event()

    def join(self, waiting: QueuedMutation) -> None:
        """Behind all that joined before."""
        self._queue.append(waiting)
        if type(waiting.mutation) is not UnhashedPut:
            self._pass_hashed()
            self._changed.set()
            return
        if not self._hashing and not self._hashing_is_due:
            self._hashing_is_due = True
            asyncio.get_running_loop().call_soon(guarded(self._begin_hashing, self._fail))

    def wake(self) -> None:
        """`changed` returns soon."""
        self._changed.set()

    @property
    def has_ready(self) -> bool:
        """A batch could be cut. For any thread."""
        return bool(self._ready)

    async def changed(self) -> None:
        """Something may have become ready, or `wake` was called, since this returned the last time. For one worker."""
        await self._changed.wait()
        self._changed.clear()

    def hash_small(self, batch: Sequence[QueuedMutation]) -> None:
        """Of what was cut: the puts that joined without being hashed. In any thread."""
        small: list[QueuedMutation] = []
        wanted: list[SmallPut] = []
        for one in batch:
            if type(one.mutation) is SmallPut:
                small.append(one)
                wanted.append(one.mutation)
        if small:
            _note_hashed(small, _hash_small_puts(wanted, self._wall_clock.now_ms(), self._settings))

    def _pass_hashed(self) -> None:
        """Whatever is in front of the queue and needs no hashing is ready."""
        if self._hashing:
            return
        queue = self._queue
        while queue and type(queue[0].mutation) is not UnhashedPut:
            self._ready.append(queue.popleft())

    def take_batch(self) -> list[QueuedMutation]:
        """What is ready at the front, as much as a batch may have.

        Called in the thread that holds the commit lock.
        """
        settings = self._settings
        ready = self._ready
        batch: list[QueuedMutation] = []
        size = 0
        while ready and len(batch) < settings.group_records_max:
            first = ready[0]
            size += first.size
            if batch and size > settings.group_bytes_max:
                break
            batch.append(first)
            ready.popleft()
        return batch

    # --- hashing ---------------------------------------------------------------------------------

    def _begin_hashing(self) -> None:
        self._hashing_is_due = False
        self._pass_hashed()
        if self._hashing or not self._queue:
            return
        contents: list[QueuedMutation] = []
        size = 0
        while self._queue and size < _HASHING_BYTES_MAX:
            waiting = self._queue.popleft()
            self._hashing.append(waiting)
            if type(waiting.mutation) is UnhashedPut:
                contents.append(waiting)
                size += waiting.size
        loop = asyncio.get_running_loop()
        try:
            call = loop.run_in_executor(self._executor, self._hash_in_thread, contents, loop)
        except RuntimeError as error:  # the executor is shut down
            self._give_up(contents, error)
        else:
            call.add_done_callback(guarded(partial(self._see_end, contents), self._fail))

    def _hash_in_thread(self, contents: list[QueuedMutation], loop: AbstractEventLoop) -> None:
        wanted = [one.mutation for one in contents if isinstance(one.mutation, UnhashedPut)]
        now_ms = self._wall_clock.now_ms()
        outcomes = _hash_puts(wanted, now_ms, self._settings)
        puts = [one for one in outcomes if isinstance(one, Put)]
        # What fails here fails again in the batch, and is reported there.
        with suppress(OSError, SegmentStoreError):
            ahead = self._prepare(puts, now_ms)
            for waiting in contents:
                waiting.ahead = ahead
        self._note_outcomes(contents, outcomes)
        # The next hashing pass begins while this thread makes the batch.
        loop.call_soon_threadsafe(guarded(self._end_hashing, self._fail))
        self._hashed(loop)

    def _note_outcomes(
        self, contents: list[QueuedMutation], outcomes: Sequence[Put | BaseException]
    ) -> None:
        """Once for each hashing pass, in any thread: all of it is ready."""
        _note_hashed(contents, outcomes)
        self._ready.extend(self._hashing)

    def _see_end(self, contents: list[QueuedMutation], call: "Future[None]") -> None:
        error = asyncio.CancelledError() if call.cancelled() else call.exception()
        if error is None:
            return
        if type(contents[0].mutation) is not UnhashedPut or contents[0].error is not None:
            raise error  # It hashed them, and failed behind that: the engine ends.
        self._give_up(contents, error)

    def _give_up(self, contents: list[QueuedMutation], error: BaseException) -> None:
        self._note_outcomes(contents, [error] * len(contents))
        self._end_hashing()

    def _end_hashing(self) -> None:
        self._hashing = []
        self._begin_hashing()
        self._changed.set()


def _note_hashed(share: Sequence[QueuedMutation], outcomes: Sequence[Put | BaseException]) -> None:
    for waiting, outcome in zip(share, outcomes, strict=True):
        if isinstance(outcome, Put):
            waiting.mutation = outcome
        else:
            waiting.error = outcome


def _hash_puts(
    wanted: Sequence[UnhashedPut], now_ms: int, settings: VolumeSettings
) -> list[Put | SegmentStoreError]:
    hashed = [one.content for one in wanted if not one.unique]
    found = iter(digest_all(hashed, settings.piece_bytes))
    return [
        _hashed_put(
            one,
            digest_by_name(one.key, one.content, settings.piece_bytes)
            if one.unique
            else next(found),
            now_ms,
            settings,
        )
        for one in wanted
    ]


def _hash_small_puts(
    wanted: Sequence[SmallPut], now_ms: int, settings: VolumeSettings
) -> list[Put]:
    """As `_hash_puts`, of what has only what `draft_of` need not look at."""
    piece_bytes, inline_bytes_max = settings.piece_bytes, settings.inline_bytes_max
    contents = [(one.content,) for one in wanted]
    puts: list[Put] = []
    for one, found in zip(wanted, digest_all(contents, piece_bytes), strict=True):
        key, content, content_type, etag, size = one
        content_hash = found.content_hash
        # By position: names cost a third more.
        draft = IndexRecord(
            size,
            0,
            content_hash,
            etag or content_hash[:16].hex(),
            now_ms,
            piece_bytes,
            found.pieces,
            content_type,
            {},
            "",
            None,
            0,
            False,
            False,
            False,
            size <= inline_bytes_max,
        )
        new: NewObject = (
            key,
            content_type,
            draft.etag,
            content_hash,
            found.pieces[0],
            size,
            now_ms,
            content if draft.inline else None,
            (content,),
        )
        puts.append(Put(key, draft, (content,), ALWAYS, False, None, False, new))
    return puts


def _hashed_put(
    one: UnhashedPut, found: ContentDigest, now_ms: int, settings: VolumeSettings
) -> Put | SegmentStoreError:
    try:
        draft = draft_of(found, one.description, now_ms=now_ms, settings=settings)
    except SegmentStoreError as error:
        return error
    # By position: names cost a third more.
    put = Put(one.key, draft, one.content, one.condition, one.bypass_governance, None, one.unique)
    put.new = new_object(put)
    return put
