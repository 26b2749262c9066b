"""Transactions: events that appear in the stream all at once, or never.

A `Transaction` has one writer at a time. Stages (`StagedTransactions`) are transactions that many processes write and
one process commits together, once for each version:

    task      stage = await staged.begin(lease_seconds=...); write blocks; flush; close; hand `stage.id` to the driver
    driver    await staged.commit("application", version, ids): returns when all events can be read
    replay    the same commit again, also with other stages: nothing is added

Invariants of a transaction:

- Nothing that was written is readable before the commit, and after an abort nothing ever is.
- At the end of `async with` the transaction is committed; if the body raises it is aborted, and the error goes on.
- While it is open its lease is extended in the background, of a resumed one from the beginning, so it ends by itself
  only when this process dies. A controller that does not answer for a while ends nothing: it is asked again until it
  says what became of the lease.
- `commit` flushes first: what it commits is everything that was written.

Invariants of stages:

- What a version committed is in the stream once, however often and from however many processes commit is called, until
  the stream is deleted (or, `forgettable`, as long as finished transactions are remembered).
- All stages are committed or none. A stage that is not committed is thrown away when its lease ends; its lease is never
  extended.
- A stage's blocks stand in each segment in the order in which they were written, the stages' in the order of the ids.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Self

from segmentstore.client.controller import (
    BegunTransaction,
    ControllerClient,
    StreamName,
    TransactionState,
)
from segmentstore.client.errors import (
    ClosedError,
    DeadlineExceededError,
    NotFoundError,
    TransactionClosedError,
)
from segmentstore.client.event_writer import EventWriter
from segmentstore.client.segment_calls import SegmentCalls
from segmentstore.client.stream_segments import KeySpace, SegmentRange, Successor
from segmentstore.codec.stream_names import segment_name, transaction_segment
from segmentstore.contracts.errors import ErrorKind, InvalidRequestError, SegmentStoreError
from segmentstore.runtime.backoff import Backoff
from segmentstore.runtime.task_set import TaskSet

_LOG = logging.getLogger(__name__)

_COMMIT_POLL_SECONDS_FIRST = 0.004
_ID_BITS = 128


class _TransactionTarget:
    """The segments of one transaction, which end with it: nothing follows them."""

    def __init__(self, stream: StreamName, *, controller: ControllerClient) -> None:
        self.name = str(stream)
        self.transaction_id = 0
        self._stream = stream
        self._controller = controller
        self._ranges: Sequence[SegmentRange] = ()

    @property
    def id(self) -> str:
        """32 hex digits."""
        return f"{self.transaction_id:032x}"

    def began(self, begun: BegunTransaction) -> None:
        """It has an id and segments now."""
        self.transaction_id, self._ranges = begun.transaction_id, begun.ranges

    async def state(self) -> TransactionState:
        """What the controller says."""
        return await self._controller.transaction_state(self._stream, self.transaction_id)

    async def ranges(self) -> Sequence[SegmentRange]:
        return self._ranges

    def segment_name(self, segment_id: int) -> str:
        parent = segment_name(self._stream.scope, self._stream.stream, segment_id)
        return transaction_segment(parent, self.transaction_id)

    async def successors(
        self,
        segment_id: int,  # noqa: ARG002  # the signature of WriteTarget.successors
        error: SegmentStoreError,
    ) -> Sequence[Successor]:
        raise TransactionClosedError(self.id, (await self.state()).value) from error


class Transaction:
    """Made by `stream.transaction()` or `stream.resume_transaction(id)`; hold it in `async with`."""

    def __init__(
        self,
        *,
        stream: StreamName,
        lease_seconds: float,
        resumed: BegunTransaction | None,
        controller: ControllerClient,
        calls: SegmentCalls,
        lease_seconds_granted: float | None = None,
    ) -> None:
        """`calls` are the transaction's own: it closes their connections. `resumed` was begun elsewhere.

        `lease_seconds_granted` is asked for where a resumed one is not granted `lease_seconds`.
        """
        self._stream = stream
        self._lease_seconds = lease_seconds
        self._lease_seconds_granted = lease_seconds_granted
        self._controller = controller
        self._settings = calls.settings
        self._target = _TransactionTarget(stream, controller=controller)
        if resumed is not None:
            self._target.began(resumed)
        self._is_resumed = resumed is not None
        self._is_ended = False
        self._failure: SegmentStoreError | None = None
        self._tasks = TaskSet(on_failure=self._lease_failed)
        self._writer = EventWriter(target=self._target, calls=calls)

    @property
    def id(self) -> str:
        """32 hex digits, to resume it elsewhere."""
        return self._target.id

    async def __aenter__(self) -> Self:
        is_extended = True
        if self._is_resumed:
            is_extended = await self._renew_lease()
        else:
            self._target.began(
                await self._controller.begin_transaction(self._stream, self._lease_seconds)
            )
        await self._writer.open()
        if is_extended:
            self._tasks.start(self._extend_lease(), name=f"lease of transaction {self.id}")
        return self

    async def _renew_lease(self) -> bool:
        """Of the lease that it was begun with there may be little left, and no call tells how much."""
        try:
            return await self._ask_for_lease()
        except InvalidRequestError:
            if self._lease_seconds_granted is None:
                raise
            self._lease_seconds = self._lease_seconds_granted
            return await self._ask_for_lease()

    async def _ask_for_lease(self) -> bool:
        """False if it is too old for another one: then it may be written and committed while the last one lasts."""
        is_extended = await self._controller.extend_lease(
            self._stream, self._target.transaction_id, self._lease_seconds
        )
        if not is_extended:
            _LOG.warning(
                "a transaction is too old for another lease: it is aborted when its lease ends stream=%s id=%s",
                self._stream,
                self.id,
            )
        return is_extended

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if self._is_ended:
                return
            if error is None:
                await self.commit()
            else:
                await self._abort_quietly()
        finally:
            await self.detach()

    async def write(self, event: bytes, *, key: str | None = None) -> None:
        """As EventWriter.write. Raises TransactionClosedError."""
        self._check_open()
        await self._writer.write(event, key=key)

    async def flush(self) -> None:
        """Wait until everything written so far is stored, though not readable yet."""
        self._check_open()
        await self._writer.flush()

    async def commit(self) -> None:
        """Flush, commit, and wait until the events are readable.

        Raises TransactionClosedError, and DeadlineExceededError if the commit is decided but takes too long.
        """
        self._check_open()
        await self._writer.flush()
        await self._controller.commit_transaction(self._stream, self._target.transaction_id)
        self._is_ended = True
        await self.detach()
        await self._wait_until(TransactionState.COMMITTED)

    async def abort(self) -> None:
        """Throw away what was written. Raises TransactionClosedError."""
        self._check_open()
        await self._controller.abort_transaction(self._stream, self._target.transaction_id)
        self._is_ended = True
        await self.detach()

    async def state(self) -> TransactionState:
        """What the controller says."""
        return await self._target.state()

    async def detach(self) -> None:
        """Leave the transaction as it is: open until its lease ends, for another process to resume."""
        self._is_ended = True
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._writer.close)
            stack.push_async_callback(self._tasks.close)

    def _check_open(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._is_ended:
            raise TransactionClosedError(self.id, "ended")

    async def _abort_quietly(self) -> None:
        """The body's error matters more than an abort that fails: the lease ends the transaction as well."""
        try:
            await self._controller.abort_transaction(self._stream, self._target.transaction_id)
        except SegmentStoreError:
            return

    async def _wait_until(self, wanted: TransactionState) -> None:
        try:
            async with asyncio.timeout(self._settings.request_seconds):
                while (state := await self.state()) is not wanted:
                    if state in {TransactionState.ABORTING, TransactionState.ABORTED}:
                        raise TransactionClosedError(self.id, state.value)
                    if state is TransactionState.UNKNOWN:
                        return  # committed, and forgotten by now
                    await asyncio.sleep(self._settings.transaction_poll_seconds)
        except TimeoutError as error:
            raise DeadlineExceededError(
                f"transaction is decided but not merged yet id={self.id}"
            ) from error

    async def _extend_lease(self) -> None:
        pause = self._lease_seconds / 3
        while True:
            await asyncio.sleep(pause)
            try:
                if not await self._ask_for_lease():
                    return
            except ClosedError:
                raise
            except SegmentStoreError as error:
                # Whether it is still open only the controller can say, when it is back: it may grant a lease anew.
                if error.kind is not ErrorKind.UNAVAILABLE:
                    raise
                pause = min(self._lease_seconds / 3, self._settings.retry_seconds_max)
            else:
                pause = self._lease_seconds / 3

    def _lease_failed(self, error: BaseException) -> None:
        if isinstance(error, NotFoundError):
            self._failure = TransactionClosedError(self.id, "unknown")
        elif isinstance(error, SegmentStoreError):
            self._failure = error
        else:
            self._failure = TransactionClosedError(self.id, f"lease was not extended: {error!r}")


@dataclass(frozen=True, slots=True)
class StagedCommit:
    """What became of a commit."""

    is_duplicate: bool
    """The version was committed before this call, maybe by an attempt of it whose answer was lost: nothing was added,
    and stages that are not part of it are thrown away."""
    transaction_ids: tuple[str, ...]
    """The transactions that the stages became, as far as they are remembered."""


class StagedTransactions:
    """Those of one stream; made by `stream.staged()`.

    Every method raises what the controller's channel raises, and InvalidRequestError for an id that is none.
    """

    def __init__(
        self, stream: StreamName, *, controller: ControllerClient, calls: SegmentCalls
    ) -> None:
        self._stream = stream
        self._controller = controller
        self._calls = calls

    async def begin(self, *, lease_seconds: float) -> "Stage":
        """A new stage, to be held in `async with`. Raises NotFoundError, StateConflictError for a sealed stream."""
        begun = await self._controller.begin_stage(self._stream, lease_seconds)
        return Stage(
            stream=self._stream,
            begun=begun,
            controller=self._controller,
            calls=self._calls.with_own_connections(),
        )

    async def commit(
        self,
        application_id: str,
        version: int,
        stage_ids: Sequence[str],
        *,
        forgettable: bool = False,
        wait_seconds: float | None = None,
    ) -> StagedCommit:
        """Commit the stages as a version of the application, and wait until their events can be read.

        A version that is not above the application's last one is a duplicate. Raises StateConflictError (a stage is not
        open any more, or the stream is sealed: nothing was committed), DeadlineExceededError (decided, but not merged
        after `wait_seconds`, or `append_seconds` of the settings).
        """
        commit = partial(
            self._controller.commit_stages,
            self._stream,
            [transaction_number(each) for each in stage_ids],
            application_id=application_id,
            version=version,
            forgettable=forgettable,
        )
        settings = self._calls.settings
        polling = Backoff(
            seconds_first=_COMMIT_POLL_SECONDS_FIRST,
            seconds_max=settings.transaction_poll_seconds,
        )
        first = answer = await commit()
        try:
            async with asyncio.timeout(
                settings.append_seconds if wait_seconds is None else wait_seconds
            ):
                while not answer.is_completed:
                    await asyncio.sleep(polling.next_seconds())
                    answer = await commit()
        except TimeoutError as error:
            raise DeadlineExceededError(
                f"stages are committed but not merged yet stream={self._stream}"
                f" application={application_id!r} version={version}"
            ) from error
        return StagedCommit(
            first.is_duplicate, tuple(f"{each:032x}" for each in answer.transaction_ids)
        )

    async def abort(self, stage_id: str) -> None:
        """Throw a stage away. Of a stage that was committed, or that ended before, nothing changes."""
        with suppress(NotFoundError, TransactionClosedError):
            await self._controller.abort_transaction(self._stream, transaction_number(stage_id))

    async def last_version(self, application_id: str) -> int | None:
        """The version that the application committed last, None if there is none."""
        return await self._controller.last_version(self._stream, application_id)


class Stage:
    """Takes blocks of framed events; the end of its `async with` flushes, and leaves the stage to be committed."""

    def __init__(
        self,
        *,
        stream: StreamName,
        begun: BegunTransaction,
        controller: ControllerClient,
        calls: SegmentCalls,
    ) -> None:
        """`calls` are the stage's own: it closes their connections."""
        KeySpace(begun.ranges).check()
        target = _TransactionTarget(stream, controller=controller)
        target.began(begun)
        self.id = target.id
        self.ranges: Sequence[SegmentRange] = sorted(begun.ranges, key=lambda each: each.low)
        """The segments of the stage and their parts of the key space, in ascending order."""
        self._positions = {each.segment_id: each.low for each in self.ranges}
        self._writer = EventWriter(target=target, calls=calls)

    async def __aenter__(self) -> Self:
        await self._writer.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._writer.__aexit__(kind, error, traceback)

    async def write(self, segment_id: int, block: bytes, *, events: int) -> None:
        """Let whole framed events in behind all others of the segment; waits only for room.

        Several events may have `event_bytes_max` together, and should have as much as a block; a single event may have
        any length. Raises the stage's failure.
        """
        position = self._positions[segment_id]
        await self._writer.write_block(block, events=events, position=position)

    async def flush(self) -> None:
        """Wait until everything written so far is stored, though not readable yet. Raises the stage's failure."""
        await self._writer.flush()

    def check(self) -> None:
        """O(unacknowledged)."""
        self._writer.check()


def transaction_number(transaction_id: str) -> int:
    """The number that an id stands for. Raises InvalidRequestError."""
    try:
        number = int(transaction_id, 16)
    except ValueError:
        number = -1
    if number < 0 or number.bit_length() > _ID_BITS:
        raise InvalidRequestError(f"a transaction id has 32 hex digits given={transaction_id!r}")
    return number
