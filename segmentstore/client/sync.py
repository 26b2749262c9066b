"""The client for code without a loop: the same objects, every call waits.

```python
with connect("tcp://127.0.0.1:9090") as store:
    with store.writer("plant/readings") as writer:
        writer.write(b"21.5", key="sensor-7")
    with store.read("plant/readings") as events:
        for event in events:
            print(event.data)
```

Invariants:

- A store has one loop of its own, an `asyncio.Runner` in the calling thread, which turns only during calls. There is
  no thread behind it: nothing happens at the same time as the caller's code, so nothing needs a lock, and a fork or an
  exit of the interpreter meets no hidden work.
- The price: what works in the background elsewhere (acknowledgements, the lease of a transaction, the beat of a group's
  reader) moves on only during calls. Between two calls less time may pass than `transaction_lease_seconds` and
  `reader_timeout_seconds`; programs that compute for longer use the asyncio client.
- The loop turns once before `run` begins its work, and hears of connections that have ended since the last call: a
  request that may not be repeated goes to none of these, and its outcome is not unknown because of that.
- A store belongs to one thread of one process, and cannot be used inside a running loop. A call that meets another one,
  or comes behind a fork, is refused with a RuntimeError before anything is done: the other call would do it, or both
  processes would use the same connections, and the same numbers for different events. A child that leaves the `with`
  closes nothing: all of it is its parent's.

The other choice, a loop in a thread of its own, would keep leases alive; it also would hand every event and every error
over between threads, which costs more than the event for small ones.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from functools import partial
from typing import Self, TypeVar

from segmentstore.client import store as asynchronous
from segmentstore.client.event import Event
from segmentstore.client.event_writer import EventWriter
from segmentstore.client.reader_group import GroupReader
from segmentstore.client.settings import ClientSettings, Tls
from segmentstore.client.stream_reader import StreamReader
from segmentstore.client.stream_segments import StreamCut
from segmentstore.client.transaction import Transaction

Result = TypeVar("Result")
Held = TypeVar("Held")


class CallRunner:
    """The loop of one store, which one call at a time turns, in the process that made it."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self._runner = runner
        self._process_id = os.getpid()
        self._turns: list[object] = [object()]
        """Empty during a call. To take one is atomic, whatever threads do."""

    @property
    def is_of_this_process(self) -> bool:
        """False behind a fork."""
        return os.getpid() == self._process_id

    def run(self, work: Coroutine[None, None, Result]) -> Result:
        """What the work gives. Raises RuntimeError: the work is not begun."""
        if not self.is_of_this_process:
            work.close()
            raise RuntimeError("the client is that of the process before the fork: connect anew")
        try:
            turn = self._turns.pop()
        except IndexError:
            # The runner itself finds out when the work is in the loop already, where the other call would do it.
            work.close()
            raise RuntimeError(
                "another call is under way: a client belongs to one thread"
            ) from None
        try:
            return self._runner.run(work)
        finally:
            self._turns.append(turn)


@contextmanager
def open_runner() -> Iterator[CallRunner]:
    """One with a loop of its own."""
    runner = asyncio.Runner()
    calls = CallRunner(runner)
    try:
        yield calls
    finally:
        if calls.is_of_this_process:
            runner.close()


class SyncWriter:
    """As EventWriter, or as the transaction it writes to."""

    def __init__(self, writer: EventWriter | Transaction, runner: CallRunner) -> None:
        self._writer = writer
        self._runner = runner

    def write(self, event: bytes, *, key: str | None = None) -> None:
        """Let an event in; it is stored some time before `flush` returns."""
        self._runner.run(self._writer.write(event, key=key))

    def write_all(self, events: Iterator[tuple[str | None, bytes]]) -> None:
        """Keys and events in one call, which is many times faster than one call an event."""

        async def write() -> None:
            for key, event in events:
                await self._writer.write(event, key=key)

        self._runner.run(write())

    def flush(self) -> None:
        """Wait until everything is stored."""
        self._runner.run(self._writer.flush())


class SyncReader:
    """Iterates over events; `take` has a deadline."""

    def __init__(self, reader: StreamReader | GroupReader, runner: CallRunner) -> None:
        self._reader = reader
        self._runner = runner

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        event = self._runner.run(self._next())
        if event is None:
            raise StopIteration
        return event

    def take(self, seconds: float) -> Event | None:
        """The next event if it comes in time; None otherwise, and at the end of a sealed stream."""

        async def take() -> Event | None:
            try:
                async with asyncio.timeout(seconds):
                    return await self._next()
            except TimeoutError:
                return None

        return self._runner.run(take())

    def checkpoint(self) -> None:
        """Of a group's reader: see there."""
        assert isinstance(self._reader, GroupReader), "only a reader of a group has checkpoints"
        self._runner.run(self._reader.checkpoint())

    async def _next(self) -> Event | None:
        # StopAsyncIteration cannot leave a coroutine.
        try:
            return await anext(self._reader)
        except StopAsyncIteration:
            return None


async def behind_news(work: Callable[[], Awaitable[Result]]) -> Result:
    """The work, once the loop has heard of connections that have ended since the last call."""
    await asyncio.sleep(0)
    return await work()


class SyncStore:
    """Made by `connect`; hold it in `with`."""

    def __init__(self, store: asynchronous.Store, runner: CallRunner) -> None:
        self._store = store
        self._runner = runner

    def run(self, work: Callable[[asynchronous.Store], Coroutine[None, None, Result]]) -> Result:
        """Anything the asyncio client can do: `store.run(lambda store: store.stream("s/t").create())`."""
        return self._runner.run(behind_news(partial(work, self._store)))

    def writer(self, stream: str) -> AbstractContextManager[SyncWriter]:
        """Writes events; leaving the `with` stores them all."""
        return self._held(
            self._store.stream(stream).writer, lambda writer: SyncWriter(writer, self._runner)
        )

    def transaction(
        self, stream: str, *, lease_seconds: float | None = None
    ) -> AbstractContextManager[SyncWriter]:
        """Commits at the end of the `with`, aborts if its body raises."""
        return self._held(
            lambda: self._store.stream(stream).transaction(lease_seconds=lease_seconds),
            lambda transaction: SyncWriter(transaction, self._runner),
        )

    def read(
        self, stream: str, start: StreamCut | None = None, *, stop_at: StreamCut | None = None
    ) -> AbstractContextManager[SyncReader]:
        """Reads a stream alone."""
        return self._held(
            lambda: self._store.stream(stream).read(start, stop_at=stop_at),
            lambda reader: SyncReader(reader, self._runner),
        )

    def group_reader(self, group: str, reader_id: str) -> AbstractContextManager[SyncReader]:
        """Reads a share of a group's streams."""
        return self._held(
            lambda: self._store.reader_group(group).reader(reader_id),
            lambda reader: SyncReader(reader, self._runner),
        )

    @contextmanager
    def _held(
        self,
        make: Callable[[], AbstractAsyncContextManager[Held]],
        wrap: Callable[[Held], Result],
    ) -> Iterator[Result]:
        held = make()
        entered = self._runner.run(_awaited(held.__aenter__()))
        try:
            yield wrap(entered)
        except BaseException as error:
            if self._runner.is_of_this_process:
                self._runner.run(_awaited(held.__aexit__(type(error), error, error.__traceback__)))
            raise
        if self._runner.is_of_this_process:
            self._runner.run(_awaited(held.__aexit__(None, None, None)))


@contextmanager
def connect(
    controller: str,
    *,
    settings: ClientSettings | None = None,
    segment_store: str | None = None,
    tls: Tls | None = None,
    authorization: Callable[[], str] | None = None,
) -> Iterator[SyncStore]:
    """As the asyncio client's `connect`."""
    with open_runner() as runner:
        store = asynchronous.connect(
            controller,
            settings=settings,
            segment_store=segment_store,
            tls=tls,
            authorization=authorization,
        )
        runner.run(_awaited(store.__aenter__()))
        try:
            yield SyncStore(store, runner)
        finally:
            if runner.is_of_this_process:
                runner.run(_awaited(store.__aexit__(None, None, None)))


async def _awaited(work: Awaitable[Result]) -> Result:
    return await work
