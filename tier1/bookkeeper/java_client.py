"""Ledgers of a BookKeeper cluster, by its official Java client, which runs in this process.

What the client of BookKeeper does about a lost bookie is a setting of ours, `replaces_at_once`. DESIGN.md says what was
measured, and why it is off.

Invariants:

- The n-th entry that append() took is the n-th that Java gets for that ledger (G1).
- The first failure of a writer is the failure of every later append (G2).
- Each error of BookKeeper becomes one of ours by _error() alone.
"""

import asyncio
import logging
from asyncio import Future
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from segmentstore.contracts.errors import (
    AppendTooLargeError,
    DurableDataLogError,
    LogCorruptedError,
)
from segmentstore.contracts.identifiers import BufferView
from segmentstore.runtime.cancellation import fail_unless_done
from tier1.bookkeeper.java_bridge import (
    ENTRY_HEADER_BYTES,
    CallFailedError,
    GiveBack,
    JavaBridge,
    again,
)
from tier1.bookkeeper.jvm import JvmSettings, start_jvm
from tier1.bookkeeper.ledgers import (
    LabelledLedger,
    LedgerFencedError,
    LedgerId,
    LedgerNotFoundError,
    LedgerReader,
    LedgerUnavailableError,
    LedgerWriter,
    Quorum,
    TooFewBookiesError,
)

_LOG = logging.getLogger(__name__)

# org.apache.bookkeeper.client.api.BKException.Code
_DIGEST_DOES_NOT_MATCH: Final = -5
_NOT_ENOUGH_BOOKIES: Final = -6
_NO_SUCH_LEDGER: Final = -7
_LEDGER_RECOVERY: Final = -10
_LEDGER_CLOSED: Final = -11
_NO_SUCH_ENTRY: Final = -13
_NO_SUCH_LEDGER_IN_METADATA: Final = -25
_LEDGER_FENCED: Final = -101
_UNAUTHORIZED: Final = -102
# Ours.
_NO_MEMORY: Final = -9998

_GRACE_SECONDS: Final = 5.0

_MISSING_OR_DAMAGED: Final = (_DIGEST_DOES_NOT_MATCH, _NO_SUCH_LEDGER, _NO_SUCH_ENTRY)
"""What a read says of entries when bookies answered, but none with the entry."""


@dataclass(frozen=True, slots=True)
class JavaClientSettings:
    """How the client treats bookies, ZooKeeper and memory."""

    zookeeper_session_seconds: float = 10.0
    bookie_seconds_max: float = 5.0
    """A bookie that has not answered a write or a read for so long is taken for lost."""
    second_copy_seconds: float = 0.5
    """A read that one bookie has not answered for so long is sent to the next one as well."""
    append_seconds_max: float = 30.0
    """An append that no ack quorum has answered for so long fails, and its ledger with it."""
    call_seconds_max: float = 60.0
    """A ledger that is not created, opened, read, closed or deleted by then is given up, for now."""
    walk_seconds_max: float = 3600.0
    """Going through all ledgers of the cluster may take so long."""
    replaces_at_once: bool = False
    """A lost bookie is replaced in its ledgers at once: that needs ZooKeeper, and holds their appends back until then.
    Else only when the others are no ack quorum; until then entries have fewer copies."""
    entry_bytes_max: int = 4 << 20
    """The largest entry that is sent. Bookies take 5 MB if they are not told otherwise."""
    staging_bytes: int = 8 << 20
    """Memory that this process and its JVM share, for entries on their way; as much again for entries that are read."""
    hand_over_bytes: int = 128 << 10
    """So much is handed over at once; less, at the end of the loop's turn."""
    speaks_v2: bool = True
    """BookKeeper's protocol of fixed fields, not the one of protobuf: half the processor time of a small append. It
    fences, recovers and checks digests alike; Pulsar's brokers speak it as well."""
    unsent_bytes_max: int = 128 << 20
    """Of one bookie that takes nothing: an entry beyond it is not sent there, as if the bookie had failed it. More than
    all logs of the process may have on their way, or a burst would look like bookies that take nothing."""
    io_threads: int = 2
    worker_threads: int = 2
    jvm: JvmSettings = field(default_factory=JvmSettings)

    def __post_init__(self) -> None:
        assert self.entry_bytes_max + ENTRY_HEADER_BYTES <= self.staging_bytes, (
            f"the largest entry has to fit into the staging buffer entry_bytes_max={self.entry_bytes_max}"
            f" staging_bytes={self.staging_bytes}"
        )


class JavaLedgerClient:
    """Implements LedgerClient. Made by connect()."""

    def __init__(self, bridge: JavaBridge, java: Any, settings: JavaClientSettings) -> None:
        self._bridge = bridge
        self._java = java
        self._settings = settings

    @classmethod
    async def connect(
        cls,
        servers: str,
        *,
        ledgers_path: str = "/ledgers",
        password: bytes,
        settings: JavaClientSettings | None = None,
    ) -> "JavaLedgerClient":
        """A client of the cluster whose ZooKeeper is at `servers`, as in "host1:2181,host2:2181".

        Raises InvalidRequestError if something is not installed, LedgerUnavailableError.
        """
        settings = settings if settings is not None else JavaClientSettings()
        java = start_jvm(settings.jvm)
        try:
            bridge = await JavaBridge.connect(
                java,
                partial(_configuration, java, servers, ledgers_path, settings),
                password=password,
                staging_bytes=settings.staging_bytes,
                hand_over_bytes=settings.hand_over_bytes,
                call_seconds_max=settings.call_seconds_max,
            )
        except CallFailedError as error:
            raise LedgerUnavailableError(
                f"no BookKeeper cluster answers servers={servers} ledgers_path={ledgers_path} error={error}"
            ) from error
        _LOG.info("connected to BookKeeper servers=%s ledgers_path=%s", servers, ledgers_path)
        return cls(bridge, java, settings)

    async def create(self, quorum: Quorum, *, labels: dict[str, bytes]) -> LedgerWriter:
        bridge = self._bridge

        def start(number: int) -> None:
            values = _map_of(self._java, labels)
            bridge.java.create(number, quorum.ensemble, quorum.write, quorum.ack, values)

        number, found = await self._call(
            start,
            "ledger is not created",
            give_back=lambda number, _: bridge.close_unregistered_writer(number),
        )
        return JavaLedgerWriter(self, bridge, number, LedgerId(int(found)), quorum, self._settings)

    async def open_fenced(self, ledger_id: LedgerId) -> LedgerReader:
        return await self._open(ledger_id, fences=True)

    async def open_unfenced(self, ledger_id: LedgerId) -> LedgerReader:
        return await self._open(ledger_id, fences=False)

    async def _open(self, ledger_id: LedgerId, *, fences: bool) -> LedgerReader:
        _, handle = await self._call(
            lambda number: self._bridge.java.open(number, ledger_id, fences),
            f"ledger is not opened ledger={ledger_id}",
            give_back=lambda _, handle: handle.closeAsync(),
        )
        last, length = int(handle.getLastAddConfirmed()), int(handle.getLength())
        return JavaLedgerReader(
            self, self._bridge, handle, ledger_id, last, length, has_fenced=fences
        )

    async def delete(self, ledger_id: LedgerId) -> None:
        with suppress(LedgerNotFoundError):
            await self._call(
                lambda number: self._bridge.java.delete(number, ledger_id),
                f"ledger is not deleted ledger={ledger_id}",
            )

    async def find_labelled(self, labels: Mapping[str, bytes]) -> list[LabelledLedger]:
        def start(number: int) -> None:
            self._bridge.java.findLabelled(number, _map_of(self._java, labels))

        _, found = await self._call(
            start, "ledgers are not looked through", seconds_max=self._settings.walk_seconds_max
        )
        return [
            LabelledLedger(
                LedgerId(int(each.getKey())),
                {
                    str(label.getKey()): bytes(label.getValue())
                    for label in each.getValue().entrySet()
                },
            )
            for each in found.entrySet()
        ]

    async def living_bookies(self) -> int:
        _, count = await self._call(
            lambda number: self._bridge.java.countWritableBookies(number), "bookies are not known"
        )
        return int(count)

    async def close(self) -> None:
        try:
            await self._bridge.close()
        except CallFailedError as error:
            _LOG.warning("the client of BookKeeper did not close cleanly: %s", error)

    async def _call(
        self,
        start: Callable[[int], object],
        what: str,
        *,
        seconds_max: float | None = None,
        give_back: GiveBack | None = None,
    ) -> tuple[int, Any]:
        try:
            return await self._bridge.call(start, seconds_max=seconds_max, give_back=give_back)
        except CallFailedError as error:
            raise error_of(error.code, f"{what} error={error}") from error


class JavaLedgerWriter:
    """Implements LedgerWriter."""

    def __init__(
        self,
        client: JavaLedgerClient,
        bridge: JavaBridge,
        number: int,
        ledger_id: LedgerId,
        quorum: Quorum,
        settings: JavaClientSettings,
    ) -> None:
        self._client = client
        self._bridge = bridge
        self._number = number
        self._ledger_id = ledger_id
        self._quorum = quorum
        self._settings = settings
        self._outstanding: deque[Future[int]] = deque()
        self._acknowledged = 0
        self._failure: DurableDataLogError | None = None
        self._closing = asyncio.Lock()
        self._is_closed = False
        self._drained: Future[int] | None = None
        self._seen = -1
        self._seen_at = 0.0
        bridge.register_writer(number, self)

    @property
    def ledger_id(self) -> LedgerId:
        return self._ledger_id

    @property
    def quorum(self) -> Quorum:
        return self._quorum

    def append(self, entry: Sequence[BufferView]) -> "Future[int]":
        future = self._bridge.new_future()
        length = sum(map(len, entry))
        if self._failure is not None:
            fail_unless_done(future, again(self._failure))
        elif length > self._settings.entry_bytes_max:
            fail_unless_done(
                future,
                AppendTooLargeError(length=length, length_max=self._settings.entry_bytes_max),
            )
        else:
            # Before it is handed over: the bridge may fail in that, and all that is outstanding with it.
            self._outstanding.append(future)
            self._bridge.append(self._number, entry, length)
        return future

    async def close(self) -> None:
        async with self._closing:
            if self._is_closed:
                return
            try:
                await self._wait_for_outstanding()
            except asyncio.CancelledError:
                self.fail(LedgerUnavailableError(f"closing was given up ledger={self._ledger_id}"))
                raise
            if self._failure is not None:
                raise again(self._failure)
            self._failure = LedgerFencedError(f"ledger is closed ledger={self._ledger_id}")
            try:
                await self._client._call(
                    lambda number: self._bridge.java.closeWriter(number, self._number),
                    f"ledger is not closed ledger={self._ledger_id}",
                )
            except DurableDataLogError as error:
                self._failure = error
                raise
            finally:
                self._bridge.forget_writer(self._number)
            self._is_closed = True

    async def _wait_for_outstanding(self) -> None:
        while self._outstanding:
            self._drained = self._bridge.new_future()
            await self._drained

    # --- told by the bridge -----------------------------------------------------------------------

    def report(self, acknowledged: int, code: int) -> None:
        outstanding = self._outstanding
        for entry in range(self._acknowledged, acknowledged):
            future = outstanding.popleft()
            if not future.done():
                future.set_result(entry)
        self._acknowledged = acknowledged
        if code:
            what = f"ledger takes no more entries ledger={self._ledger_id} entries={acknowledged}"
            self.fail(error_of(code, f"{what} error={code}"))
        elif not outstanding:
            self._wake()

    def look_for_progress(self, now: float) -> None:
        # BookKeeper fails an append that takes too long, but not while it is replacing a bookie.
        if not self._outstanding or self._seen != self._acknowledged:
            self._seen, self._seen_at = self._acknowledged, now
        elif now - self._seen_at >= self._settings.append_seconds_max + _GRACE_SECONDS:
            seconds = now - self._seen_at
            self.fail(
                LedgerUnavailableError(
                    f"no entry was acknowledged for {seconds:.0f} s ledger={self._ledger_id}"
                )
            )

    def fail(self, error: DurableDataLogError) -> None:
        if self._failure is None:
            self._failure = error
            self._bridge.forget_writer(self._number)
        outstanding, self._outstanding = self._outstanding, deque()
        for future in outstanding:
            fail_unless_done(future, again(error))
        self._wake()

    def _wake(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(0)


class JavaLedgerReader:
    """Implements LedgerReader."""

    def __init__(
        self,
        client: JavaLedgerClient,
        bridge: JavaBridge,
        handle: Any,
        ledger_id: LedgerId,
        last_entry: int,
        length: int,
        *,
        has_fenced: bool = True,
    ) -> None:
        self._client = client
        self._bridge = bridge
        self._handle = handle
        self._ledger_id = ledger_id
        self._last_entry = last_entry
        self._length = length
        self._has_fenced = has_fenced
        self._is_closed = False

    @property
    def ledger_id(self) -> LedgerId:
        return self._ledger_id

    @property
    def last_entry(self) -> int:
        return self._last_entry

    @property
    def length(self) -> int:
        return self._length

    async def read(self, first: int, last: int) -> list[memoryview]:
        assert 0 <= first <= last <= self._last_entry, (
            f"there are no such entries first={first} last={last} last_entry={self._last_entry}"
        )
        what = f"entries are not read ledger={self._ledger_id} first={first} last={last}"
        try:
            _, batch = await self._bridge.call(
                lambda number: self._bridge.java.read(number, self._handle, first, last),
                give_back=lambda _, batch: batch.close(),
            )
            return await self._bridge.take_entries(batch)
        except CallFailedError as error:
            if error.code in _MISSING_OR_DAMAGED:
                raise await self._why_not_read(first, last, f"{what} error={error}") from error
            raise error_of(error.code, f"{what} error={error}") from error

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            await self._client._call(
                lambda number: self._bridge.java.closeReader(number, self._handle),
                f"reader is not closed ledger={self._ledger_id}",
            )

    async def _why_not_read(self, first: int, last: int, what: str) -> DurableDataLogError:
        """Damage it is only if no bookie that may have the entries is away, and the ledger was not deleted."""
        try:
            # As before: one that was opened to look may be written.
            client = self._client
            reopen = client.open_fenced if self._has_fenced else client.open_unfenced
            other = await reopen(self._ledger_id)
        except LedgerNotFoundError as error:
            return error
        await other.close()
        _, are_all_here = await self._client._call(
            lambda number: self._bridge.java.areBookiesHere(number, self._handle, first, last), what
        )
        if are_all_here:
            return LogCorruptedError(what)
        return LedgerUnavailableError(f"{what}, and bookies that may have them are away")


def error_of(code: int, message: str) -> DurableDataLogError:
    """Ours, for one of BookKeeper's."""
    if code in (_LEDGER_FENCED, _LEDGER_CLOSED):
        return LedgerFencedError(message)
    if code in (_NOT_ENOUGH_BOOKIES, _LEDGER_RECOVERY):
        return TooFewBookiesError(message)
    if code in (_NO_SUCH_LEDGER, _NO_SUCH_LEDGER_IN_METADATA):
        return LedgerNotFoundError(message)
    if code == _UNAUTHORIZED:
        return LogCorruptedError(f"the ledger was made with another password: {message}")
    if code == _NO_MEMORY:
        return LedgerUnavailableError(
            f"the JVM has no room for an entry outside of its heap: {message}"
        )
    if code == _DIGEST_DOES_NOT_MATCH:
        return LogCorruptedError(message)
    return LedgerUnavailableError(message)


def _map_of(java: Any, labels: Mapping[str, bytes]) -> Any:
    values = java.JClass("java.util.HashMap")()
    for name, value in labels.items():
        values.put(java.JString(name), java.JArray(java.JByte)(value))
    return values


def _configuration(java: Any, servers: str, ledgers_path: str, settings: JavaClientSettings) -> Any:
    """A ClientConfiguration. The cluster's own layout says how it keeps its metadata."""
    values = java.JClass("org.apache.bookkeeper.conf.ClientConfiguration")()
    values.setMetadataServiceUri(f"zk+null://{servers.replace(',', ';')}{ledgers_path}")
    values.setZkTimeout(int(settings.zookeeper_session_seconds * 1000))
    values.setAddEntryTimeout(max(1, round(settings.bookie_seconds_max)))
    values.setReadEntryTimeout(max(1, round(settings.bookie_seconds_max)))
    second_copy = max(1, round(settings.second_copy_seconds * 1000))
    values.setFirstSpeculativeReadTimeout(second_copy)
    values.setSpeculativeReadTimeout(second_copy)
    values.setMaxSpeculativeReadTimeout(second_copy)
    values.setFirstSpeculativeReadLACTimeout(second_copy)
    values.setMaxSpeculativeReadLACTimeout(second_copy)
    values.setAddEntryQuorumTimeout(max(1, round(settings.append_seconds_max)))
    values.setDelayEnsembleChange(not settings.replaces_at_once)
    # What is on its way is bounded by the log. The client would block the loop.
    values.setThrottleValue(0)
    values.setNumIOThreads(settings.io_threads)
    values.setNumWorkerThreads(settings.worker_threads)
    values.setUseV2WireProtocol(settings.speaks_v2)
    # A bookie that stands still takes nothing from its connection; without this, all that is sent to it is kept.
    values.setClientWriteBufferHighWaterMark(settings.unsent_bytes_max)
    values.setClientWriteBufferLowWaterMark(settings.unsent_bytes_max // 2)
    values.setWaitTimeoutOnBackpressureMillis(0)
    return values
