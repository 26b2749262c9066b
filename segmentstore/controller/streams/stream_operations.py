"""One operation at a time per stream, and every begun operation comes to its end.

An operation writes its intent (a state that says what is under way) in one batch with the stream's name in the index
`pending`, does its steps on segments, and writes its completion in one batch that takes the name out again. Between
any two steps the process may die. The next task that holds the stream, be it a verb, the loop below or the start of
another process, finds the state and drives the same steps again.

Invariants:

- No caller sees or changes a stream through `exclusive` while its state is on the way to another.
- A stream whose state is on the way stands in `pending`.
- An operation that fails or is cancelled is resumed by `run`, with growing pauses, for as long as it takes.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final

from segmentstore.codec.controller_records.stream_records import StreamState
from segmentstore.contracts.errors import ErrorKind, SegmentStoreError
from segmentstore.controller.errors import ScopeNotFoundError, too_many_waiters
from segmentstore.controller.metadata.metadata_store import (
    PENDING_INDEX,
    MetadataStore,
)
from segmentstore.controller.settings import StreamSettings
from segmentstore.controller.streams.stream_history import StreamHistory, state_key
from segmentstore.runtime.backoff import Backoff
from segmentstore.runtime.keyed_locks import KeyedLocks

_LOG = logging.getLogger(__name__)

NAMES_PER_READ = 100

SETTLED: Final = (StreamState.ACTIVE, StreamState.SEALED)

_REFUSALS: Final = (ErrorKind.INVALID, ErrorKind.NOT_FOUND, ErrorKind.CONFLICT)

Resumption = Callable[[StreamHistory], Awaitable[None]]
"""Drives a stream from a state that is under way to a settled one (or to its end), whatever was done already."""


class StreamOperations:
    """Exclusive access to streams, and the resumption of what was interrupted."""

    def __init__(self, *, metadata: MetadataStore, settings: StreamSettings) -> None:
        self._metadata = metadata
        self._settings = settings
        self._locks = KeyedLocks[str](
            waiters_max=settings.waiters_per_stream_max, refusal=too_many_waiters
        )
        self._resumptions: dict[StreamState, Resumption] = {}
        self._unfinished: dict[tuple[str, str], None] = {}
        """In the order in which they were interrupted."""
        self._driven: dict[tuple[str, str], None] = {}
        """Those that a task drives at this moment."""
        self._failures: dict[tuple[str, str], str] = {}
        """Why the last attempt at each failed."""
        self._interrupted = asyncio.Event()

    @property
    def unfinished_count(self) -> int:
        """Operations that were interrupted and not yet resumed."""
        return len(self._unfinished)

    def register(self, state: StreamState, resumption: Resumption) -> None:
        """Say what drives streams in this state. Before the start, once per state."""
        assert state not in SETTLED, f"nothing is under way in this state state={state.name}"
        assert state not in self._resumptions, f"registered already state={state.name}"
        self._resumptions[state] = resumption

    async def history(self, scope: str, stream: str) -> StreamHistory:
        """A stream's records, for reading what may change meanwhile. Raises ScopeNotFoundError."""
        table = await self._metadata.scope_table(scope)
        return StreamHistory(table=table, scope=scope, stream=stream)

    @asynccontextmanager
    async def exclusive(self, scope: str, stream: str) -> AsyncIterator[StreamHistory]:
        """Hold a stream whose state is settled, or that does not exist.

        What was under way is finished first. Raises ScopeNotFoundError, RetryLaterError (too many wait), and what the
        interfaces raise while finishing.
        """
        async with self._locks.held(f"{scope}/{stream}"):
            history = await self.history(scope, stream)
            try:
                # What was broken off may be an intent that is still on its way: the look would not find it.
                await history.table.wait_until_settled(state_key(stream))
                await self._settle(history)
                yield history
            except BaseException as error:
                self._note_interruption((scope, stream), error)
                raise
            finally:
                self._driven.pop((scope, stream), None)

    @asynccontextmanager
    async def unsettled(self, scope: str, stream: str) -> AsyncIterator[StreamHistory]:
        """Hold a stream as it is, for repairing what its operation needs. Raises as `exclusive`."""
        async with self._locks.held(f"{scope}/{stream}"):
            yield await self.history(scope, stream)

    async def drive(self, history: StreamHistory) -> None:
        """Do what the state says is under way. The caller holds the stream and has just written that state."""
        await self._settle(history)

    async def resume(self, scope: str) -> None:
        """Take up every operation that the records of the scope say is under way.

        Those that cannot be finished now stay with `run`. Raises ScopeNotFoundError, and what the scope's table raises.
        """
        after, more = "", True
        while more:
            table = await self._metadata.scope_table(scope)
            pending = await table.names(PENDING_INDEX, after=after, count=NAMES_PER_READ)
            for stream in pending.names:
                await self._resume_one(scope, stream)
                after = stream
            more = pending.more

    def complaints(self) -> Mapping[tuple[str, str], str]:
        """Streams with an operation that could not be finished, and why."""
        return dict(self._failures)

    async def run(self) -> None:
        """Take up interrupted operations until cancelled."""
        backoff = Backoff(
            seconds_first=self._settings.resume_pause_seconds,
            seconds_max=self._settings.resume_pause_seconds_max,
        )
        while True:
            await self._interrupted.wait()
            self._interrupted.clear()
            for scope, stream in list(self._unfinished):
                await self._resume_one(scope, stream)
            if not self._unfinished:
                backoff.reset()
                continue
            self._interrupted.set()
            await asyncio.sleep(backoff.next_seconds())

    def check(self) -> None:
        """No task drives a stream whose lock is free; O(streams in use)."""
        self._locks.check()
        for scope, stream in self._driven:
            assert self._locks.is_held(f"{scope}/{stream}"), f"driven and not held {scope}/{stream}"

    async def _resume_one(self, scope: str, stream: str) -> None:
        self._unfinished.pop((scope, stream), None)
        try:
            # Where something is on its way others do not wait for it behind this one.
            (await self.history(scope, stream)).table.require_settled()
            async with self.exclusive(scope, stream):
                pass
        except ScopeNotFoundError:
            self._failures.pop((scope, stream), None)
            return
        except SegmentStoreError as error:
            self._failures[(scope, stream)] = f"{type(error).__name__}: {error}"
            # Also if it was not even looked at, because its scope's table does not answer.
            self._unfinished[(scope, stream)] = None
            self._interrupted.set()
            _LOG.warning("stream=%s/%s an operation stays unfinished: %s", scope, stream, error)
        else:
            self._failures.pop((scope, stream), None)

    def _note_interruption(self, stream: tuple[str, str], error: BaseException) -> None:
        refused = isinstance(error, SegmentStoreError) and error.kind in _REFUSALS
        if refused and stream not in self._driven:
            return
        # An intent whose outcome is unknown counts as well: looking again costs one read.
        self._unfinished[stream] = None
        self._interrupted.set()

    async def _settle(self, history: StreamHistory) -> None:
        # Deleting is followed by nothing, every other state by a settled one: more than a few rounds is our bug.
        for _ in range(len(StreamState)):
            record = (await history.any_state()).record
            if record is None or record.state in SETTLED:
                self._driven.pop((history.scope, history.stream), None)
                return
            self._driven[(history.scope, history.stream)] = None
            resumption = self._resumptions.get(record.state)
            assert resumption is not None, f"no verb resumes this state state={record.state.name}"
            await resumption(history)
        raise AssertionError(f"stream does not settle stream={history.name!r}")
