"""The way from the event loop to BookKeeper's Java client in this process, and back.

    loop                                                Java
    append(entry) -> copied into the staging buffer
    once a turn   -> LedgerBridge.append(bytes) ------> an entry for each, CRC32C, to the bookies
                                                        bookies answer, in any order
    reader of a pipe <- one byte ---------------------- Completions: which writers got how far, which calls ended

One call into Java costs as much as copying some kilobytes, so small entries are handed over together; and what has been
acknowledged is one number for each writer, however many entries that are.

The staging buffer holds for each entry, little-endian: the number of its writer (4 bytes), its length (4 bytes), and
its bytes. It is memory that both sides see. An argument of Java's type byte[] would be copied at a tenth of the rate.

Invariants:

- All state belongs to the loop. Calls are started in one thread, because the first of a kind loads classes; they end on
  the loop as appends do, so no thread waits for a bookie or for ZooKeeper.
- Java gets the entries of a writer in the order of append(), and behind one that it did not take no other.
- A call whose waiter left goes on to its end in Java, and what it gives is given back: the garbage collector frees
  neither entries nor ledgers that are open.
- A call ends within `call_seconds_max`: what goes wrong in a thread of Java may be told to nothing that waits for it.
- After fail() each call and each writer has failed, and none begins.
"""

import asyncio
import logging
import os
import struct
from asyncio import Future
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from segmentstore.contracts.errors import DurableDataLogError
from segmentstore.contracts.identifiers import BufferView
from segmentstore.runtime.cancellation import fail_unless_done, run_blocking
from segmentstore.runtime.guarded_callback import guarded
from tier1.bookkeeper.ledgers import LedgerUnavailableError

_LOG = logging.getLogger(__name__)
_HEADER: Final = struct.Struct("<ii")
ENTRY_HEADER_BYTES: Final = _HEADER.size
_NUMBERS_EACH: Final = 3
_Result = TypeVar("_Result")

_LOOK_SECONDS: Final = 1.0

GiveBack = Callable[[int, Any], object]
"""Told the number and the result of a call that ended well, and whose waiter had left."""


class BridgedWriter(Protocol):
    """What the bridge tells a writer."""

    def report(self, acknowledged: int, code: int) -> None:
        """So many of its entries are acknowledged; the code of its failure, or 0."""

    def fail(self, error: DurableDataLogError) -> None:
        """Nothing more is acknowledged."""

    def look_for_progress(self, now: float) -> None:
        """Called every second, with the loop's time."""


class CallFailedError(Exception):
    """BookKeeper, or something below it, failed a call: its code, and what it says."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    """A call that Java has not ended. When `ended` is done already, its waiter has left."""

    ended: Future[Any]
    give_back: GiveBack | None


class JavaBridge:
    """Over one LedgerBridge of Java. Made by connect()."""

    def __init__(
        self,
        bridge: Any,
        java: Any,
        *,
        thread: ThreadPoolExecutor,
        pipe: int,
        stage: bytearray,
        hand_over_bytes: int,
        call_seconds_max: float,
    ) -> None:
        self._bridge = bridge
        self._java = java
        self._thread = thread
        self._loop = asyncio.get_running_loop()
        self._last_number = 0
        self._calls: dict[int, _Call] = {}
        self._writers: dict[int, BridgedWriter] = {}
        self._failure: DurableDataLogError | None = None
        self._stage = stage
        self._stage_view = memoryview(stage)
        self._staged = 0
        self._hand_over_bytes = hand_over_bytes
        self._is_scheduled = False
        # Whatever goes wrong in it: of every ledger an entry may be missing then, and none may get the next.
        self._hand_over = guarded(self._hand_staged_over, self._stop)
        self._read_buffer = bytearray(len(stage))
        self._shared_read_buffer = java.nio.convertToDirectBuffer(self._read_buffer)
        self._pipe = pipe
        self._loop.add_reader(pipe, guarded(self._look, self._stop))
        self._call_seconds_max = call_seconds_max
        self._look_for_progress_later = guarded(self._look_for_progress, self._stop)
        self._next_look = self._loop.call_later(_LOOK_SECONDS, self._look_for_progress_later)

    @classmethod
    async def connect(
        cls,
        java: Any,
        configure: Callable[[], Any],
        *,
        password: bytes,
        staging_bytes: int,
        hand_over_bytes: int,
        call_seconds_max: float,
    ) -> "JavaBridge":
        """Over a new client with the ClientConfiguration that `configure` makes. Raises CallFailedError."""
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="bookkeeper")
        stage = bytearray(staging_bytes)
        pipe, pipe_end = os.pipe()
        os.set_blocking(pipe, False)

        started: list[Any] = []

        def start() -> None:
            shared = java.nio.convertToDirectBuffer(stage)
            bridge_class = java.JClass("segmentstore.bookkeeper.LedgerBridge")
            started.append(bridge_class(configure(), password, shared, f"/dev/fd/{pipe_end}"))

        try:
            await run_blocking(thread, start)
        except BaseException as error:
            os.close(pipe)
            try:
                if started:
                    # It was cancelled meanwhile. Java's client would live for as long as the process.
                    with suppress(java.JException):
                        await run_blocking(thread, started[0].close)
            finally:
                thread.shutdown(wait=False)
            if isinstance(error, java.JException):
                raise _foreign(error) from error
            raise
        finally:
            os.close(pipe_end)
        return cls(
            started[0],
            java,
            thread=thread,
            pipe=pipe,
            stage=stage,
            hand_over_bytes=hand_over_bytes,
            call_seconds_max=call_seconds_max,
        )

    async def close(self) -> None:
        """Idempotent. Blocks no more than the thread; raises CallFailedError if Java's client does not close."""
        if self._pipe < 0:
            return
        self.fail(LedgerUnavailableError("the client of BookKeeper is closed"))
        self._next_look.cancel()
        self._loop.remove_reader(self._pipe)
        os.close(self._pipe)
        self._pipe = -1
        try:
            await self.run(self._bridge.close)
        finally:
            self._thread.shutdown(wait=False)

    @property
    def java(self) -> Any:
        """The LedgerBridge."""
        return self._bridge

    # --- appends ----------------------------------------------------------------------------------

    def new_future(self) -> "Future[int]":
        return self._loop.create_future()

    def register_writer(self, number: int, writer: BridgedWriter) -> None:
        """From now on it is told what becomes of its entries."""
        self._writers[number] = writer

    def forget_writer(self, number: int) -> None:
        """Nothing is reported of it any more. Idempotent."""
        if self._writers.pop(number, None) is not None:
            self._bridge.forgetWriter(number)

    def close_unregistered_writer(self, number: int) -> None:
        """A ledger that was made and that nothing takes; how its closing ends is told to none."""
        self._last_number += 1
        self._bridge.closeWriter(self._last_number, number)
        self._bridge.forgetWriter(number)

    def append(self, writer: int, entry: Sequence[BufferView], length: int) -> None:
        """Copy the entry; Java gets it before the loop's next turn ends. The bridge has not failed."""
        at = self._staged
        if at + ENTRY_HEADER_BYTES + length > len(self._stage):
            self._hand_over()
            at = 0
        _HEADER.pack_into(self._stage, at, writer, length)
        at += ENTRY_HEADER_BYTES
        view = self._stage_view
        for piece in entry:
            end = at + len(piece)
            view[at:end] = piece
            at = end
        self._staged = at
        if at >= self._hand_over_bytes:
            self._hand_over()
        elif not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._hand_over)

    def _hand_staged_over(self) -> None:
        self._is_scheduled = False
        staged, self._staged = self._staged, 0
        if staged and self._failure is None:
            self._bridge.append(staged)

    # --- calls ------------------------------------------------------------------------------------

    async def call(
        self,
        start: Callable[[int], object],
        *,
        seconds_max: float | None = None,
        give_back: GiveBack | None = None,
    ) -> tuple[int, Any]:
        """Start a call of Java and wait for its end: its number, its result. `seconds_max`: not those of every call.

        `give_back` gets the result, on the loop, if this has raised. Raises CallFailedError, or the error that fail()
        was given.
        """
        if self._failure is not None:
            raise again(self._failure)
        self._last_number += 1
        number = self._last_number
        call = self._calls[number] = _Call(self._loop.create_future(), give_back)
        has_begun = False

        def begin() -> None:
            nonlocal has_begun
            start(number)
            has_begun = True

        seconds = self._call_seconds_max if seconds_max is None else seconds_max
        try:
            async with asyncio.timeout(seconds):
                await self.run(begin)
                result = await call.ended
            if self._failure is not None:
                # Between the end of the call and this turn: what it gave, a writer say, would be told of nothing.
                raise again(self._failure)
            return number, result
        except BaseException as error:
            if not has_begun:
                self._calls.pop(number, None)
            self._leave(number, call)
            if isinstance(error, TimeoutError):
                raise CallFailedError(0, f"no answer in {seconds:.0f} s") from None
            raise

    def _leave(self, number: int, call: _Call) -> None:
        """Nothing takes its result any more; it may have come in this turn of the loop."""
        ended = call.ended
        if not ended.cancel() and not ended.cancelled() and ended.exception() is None:
            self._give_back(number, call, ended.result())

    def _give_back(self, number: int, call: _Call, result: Any) -> None:
        # A client that is closed has let go of everything.
        if call.give_back is not None and self._pipe >= 0:
            try:
                call.give_back(number, result)
            except self._java.JException as error:
                _LOG.warning("the result of a call is not given back: %s", _foreign(error))

    async def run(self, step: Callable[[], _Result]) -> _Result:
        """In the thread. Raises CallFailedError for an exception of Java."""
        try:
            return await run_blocking(self._thread, step)
        except self._java.JException as error:
            raise _foreign(error) from error

    async def take_entries(self, batch: Any) -> list[memoryview]:
        """The entries of an EntryBatch, which is closed."""
        return await self.run(partial(self._copy_entries, batch))

    def _copy_entries(self, batch: Any) -> list[memoryview]:
        # In the thread: it alone uses the buffer for reading.
        try:
            lengths = _numbers(batch.lengths())
            content = memoryview(bytearray(sum(lengths)))
            at = 0
            while count := int(batch.fill(self._shared_read_buffer)):
                content[at : at + count] = memoryview(self._read_buffer)[:count]
                at += count
            assert at == len(content), f"entries do not have their lengths {at} {len(content)}"
        finally:
            batch.close()
        ends = 0
        entries = []
        for length in lengths:
            entries.append(content[ends : ends + length].toreadonly())
            ends += length
        return entries

    # --- what ended -------------------------------------------------------------------------------

    def _look(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._pipe, 64)
        numbers = _numbers(self._bridge.drain())
        for at in range(0, len(numbers), _NUMBERS_EACH):
            number, acknowledged, code = numbers[at : at + _NUMBERS_EACH]
            if number < 0:
                self._end_call(-number, code)
            elif (writer := self._writers.get(number)) is not None:
                writer.report(acknowledged, code)

    def _end_call(self, number: int, code: int) -> None:
        call = self._calls.pop(number, None)
        if code:
            message = str(self._bridge.takeMessage(number))
            if call is not None:
                fail_unless_done(call.ended, CallFailedError(code, message))
            return
        result = self._bridge.take(number)
        if call is None:
            return
        if call.ended.done():
            self._give_back(number, call, result)
        else:
            call.ended.set_result(result)

    def fail(self, error: DurableDataLogError) -> None:
        """Nothing is handed over any more; who waits gets the error. Only the first counts."""
        if self._failure is not None:
            return
        self._failure = error
        for call in self._calls.values():
            fail_unless_done(call.ended, again(error))
        for writer in list(self._writers.values()):
            writer.fail(error)

    def _look_for_progress(self) -> None:
        now = self._loop.time()
        for writer in list(self._writers.values()):
            writer.look_for_progress(now)
        self._next_look = self._loop.call_later(_LOOK_SECONDS, self._look_for_progress_later)

    def _stop(self, bug: Exception) -> None:
        self.fail(LedgerUnavailableError(f"the client of BookKeeper failed: {bug!r}"))


def again(error: DurableDataLogError) -> DurableDataLogError:
    """The same for another waiter: one exception would gather the stacks of them all."""
    return type(error)(*error.args)


def _foreign(error: Any) -> CallFailedError:
    """For an exception that Java raised in a call of ours: what is at its bottom says why."""
    while error.getCause() is not None:
        error = error.getCause()
    return CallFailedError(0, f"{error.getClass().getSimpleName()}: {error.getMessage()}")


def _numbers(array: Any) -> tuple[int, ...]:
    """Of a long[]: its view has a format that Python does not index, and its iterator takes 40 times as long."""
    view = memoryview(array)
    return struct.unpack(f"={view.nbytes // 8}q", view.tobytes())
