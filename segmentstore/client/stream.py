"""A stream: what its controller does with it, its segments, and the ways to write to it and to read it."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from segmentstore.client.byte_segment import ByteSegment, SegmentInfo
from segmentstore.client.controller import (
    BegunTransaction,
    ControllerClient,
    StreamName,
    TransactionState,
)
from segmentstore.client.errors import (
    DeadlineExceededError,
    NotFoundError,
    TransactionClosedError,
)
from segmentstore.client.event_writer import EventWriter
from segmentstore.client.segment_calls import SegmentCalls
from segmentstore.client.stream_config import StreamConfig
from segmentstore.client.stream_reader import StreamReader
from segmentstore.client.stream_segments import SegmentRange, StreamCut, Successor
from segmentstore.client.transaction import (
    StagedTransactions,
    Transaction,
    transaction_number,
)
from segmentstore.codec.stream_names import segment_name, transaction_epoch_of
from segmentstore.contracts.errors import InvalidRequestError, SegmentStoreError

_LEASE_SECONDS_MAX: Final = 600.0
"""The longest that our controllers grant; others may grant less."""
_NEW_SEGMENTS_MAX: Final = 100_000
"""What the 4 MiB hold that gRPC's servers take as one request; their key ranges are made here."""


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """What a stream is at the moment."""

    name: str
    config: StreamConfig
    head: StreamCut
    tail: StreamCut
    is_sealed: bool


class Stream:
    """Cheap to make; nothing to close. `async with` is for its writers, readers and transactions."""

    def __init__(
        self, name: StreamName, *, controller: ControllerClient, calls: SegmentCalls
    ) -> None:
        self.name = name
        self._controller = controller
        self._calls = calls

    async def create(self, config: StreamConfig | None = None) -> None:
        """Raises AlreadyExistsError, NotFoundError for the scope, InvalidRequestError for the name."""
        await self._controller.create_stream(self.name, config or StreamConfig())

    async def update(self, config: StreamConfig) -> None:
        """Replace the configuration, tags included; the stream is scaled to its number of segments.

        Raises NotFoundError, StreamSealedError.
        """
        await self._controller.update_stream(self.name, config)

    async def seal(self) -> None:
        """Take no more events. Sealing twice is fine."""
        await self._controller.seal_stream(self.name)

    async def truncate(self, cut: StreamCut) -> None:
        """Drop everything before the cut, which becomes the head.

        Raises NotFoundError, StreamSealedError, StateConflictError for a cut that lies before the head or past the end.
        """
        self._check_cut(cut)
        await self._controller.truncate_stream(self.name, cut.offsets)

    async def delete(self) -> None:
        """Remove a sealed stream for good. Raises StateConflictError, NotFoundError."""
        await self._controller.delete_stream(self.name)

    async def config(self) -> StreamConfig:
        """Raises NotFoundError."""
        return await self._controller.stream_config(self.name)

    async def info(self) -> StreamInfo:
        """Configuration, head and tail. Raises NotFoundError."""
        config = await self.config()
        ranges = await self.segments()
        return StreamInfo(str(self.name), config, await self.head(), await self.tail(), not ranges)

    async def segments(self) -> Sequence[SegmentRange]:
        """The segments that take events now, by key range; none if the stream is sealed."""
        return await self._controller.current_segments(self.name)

    async def segment_info(self, segment_id: int) -> SegmentInfo:
        """One segment's offsets."""
        return await self.segment(segment_id).info()

    def segment(self, segment_id: int) -> ByteSegment:
        """One segment as bytes."""
        return ByteSegment(segment_name(self.name.scope, self.name.stream, segment_id), self._calls)

    async def head(self) -> StreamCut:
        """Where the stream begins."""
        return StreamCut(str(self.name), await self._controller.head_offsets(self.name))

    async def tail(self) -> StreamCut:
        """Where the stream ends now; without segments if it is sealed."""
        offsets: dict[int, int] = {}
        for each in await self.segments():
            offsets[each.segment_id] = (await self.segment_info(each.segment_id)).length
        return StreamCut(str(self.name), offsets)

    async def scale(self, sealed: Sequence[int], ranges: Sequence[tuple[float, float]]) -> None:
        """Replace active segments by new ones that cover the same keys, and wait until it is done.

        Raises StateConflictError if the segments are not active or the ranges do not fit them, DeadlineExceededError if
        the scale goes on behind `request_seconds`.
        """
        epoch = await self._controller.scale(self.name, sealed, ranges)
        settings = self._calls.settings
        try:
            async with asyncio.timeout(settings.request_seconds):
                # The controller sends no notice of the end: it has to be asked.
                while not await self._controller.is_scale_finished(  # noqa: ASYNC110
                    self.name, epoch
                ):
                    await asyncio.sleep(settings.transaction_poll_seconds)
        except TimeoutError as error:
            raise DeadlineExceededError(f"scale is not finished yet stream={self.name}") from error

    async def scale_to(self, segments: int) -> None:
        """Replace all active segments by so many of equal width, until an update says another number.

        Raises as `scale`, and InvalidRequestError for less than one, and for more than one request names.
        """
        if segments < 1:
            raise InvalidRequestError(f"a stream has at least one segment segments={segments}")
        if segments > _NEW_SEGMENTS_MAX:
            raise InvalidRequestError(
                f"a stream is scaled to at most {_NEW_SEGMENTS_MAX} segments at once segments={segments}"
            )
        active = [each.segment_id for each in await self.segments()]
        bounds = [index / segments for index in range(segments + 1)]
        await self.scale(active, list(pairwise(bounds)))

    def writer(self) -> EventWriter:
        """Writes events; hold it in `async with`."""
        return EventWriter(
            target=_StreamTarget(self.name, self._controller),
            calls=self._calls.with_own_connections(),
        )

    def read(
        self, start: StreamCut | None = None, *, stop_at: StreamCut | None = None
    ) -> StreamReader:
        """Reads all events from a cut (or the head) on, following the tail or up to another cut."""
        for cut in (start, stop_at):
            if cut is not None:
                self._check_cut(cut)
        return StreamReader(
            stream=self.name,
            start=start.offsets if start is not None else None,
            stop_at=stop_at.offsets if stop_at is not None else None,
            controller=self._controller,
            calls=self._calls.with_own_connections(),
        )

    def transaction(self, *, lease_seconds: float | None = None) -> Transaction:
        """A new transaction, begun by its `async with` and committed at the end of it."""
        return self._transaction(lease_seconds, None)

    def staged(self) -> StagedTransactions:
        """Many transactions that are committed as one, for jobs of several processes."""
        return StagedTransactions(self.name, controller=self._controller, calls=self._calls)

    async def resume_transaction(
        self, transaction_id: str, *, lease_seconds: float | None = None
    ) -> Transaction:
        """An open transaction that was begun elsewhere; its lease is this one from the entry of its `async with` on.

        None: the longest that controllers grant, or else that of the settings. No call tells how long the lease is that
        it has, and a shorter one would end a transaction that is to be committed elsewhere, later. One that is too old
        for another lease (a day) goes on with the last one, and can be written and committed while that lasts.

        Raises TransactionClosedError, NotFoundError.
        """
        number = transaction_number(transaction_id)
        state = await self._controller.transaction_state(self.name, number)
        if state is TransactionState.UNKNOWN:
            raise NotFoundError("transaction", transaction_id)
        if state is not TransactionState.OPEN:
            raise TransactionClosedError(transaction_id, state.value)
        epoch = transaction_epoch_of(number)
        ranges = await self._controller.epoch_segments(self.name, epoch)
        begun = BegunTransaction(number, ranges)
        if lease_seconds is None:
            granted = self._calls.settings.transaction_lease_seconds
            return self._transaction(_LEASE_SECONDS_MAX, begun, lease_seconds_granted=granted)
        return self._transaction(lease_seconds, begun)

    async def transaction_state(self, transaction_id: str) -> TransactionState:
        """Whether a transaction is open, or how far its commit or abort is."""
        return await self._controller.transaction_state(
            self.name, transaction_number(transaction_id)
        )

    async def begin_transaction(self, *, lease_seconds: float) -> str:
        """Begin a transaction whose lease nothing extends; its id. It ends with its lease unless it is resumed."""
        begun = await self._controller.begin_transaction(self.name, lease_seconds)
        return f"{begun.transaction_id:032x}"

    async def commit_transaction(self, transaction_id: str) -> None:
        """Commit without having written anything here. Raises NotFoundError, TransactionClosedError."""
        await self._controller.commit_transaction(self.name, transaction_number(transaction_id))

    async def abort_transaction(self, transaction_id: str) -> None:
        """Abort a transaction that was begun elsewhere. Raises NotFoundError, TransactionClosedError."""
        await self._controller.abort_transaction(self.name, transaction_number(transaction_id))

    async def completed_transactions(self) -> Mapping[str, TransactionState]:
        """Transactions that ended, as far as the controller remembers them."""
        found = await self._controller.completed_transactions(self.name)
        return {f"{number:032x}": state for number, state in found.items()}

    def _transaction(
        self,
        lease_seconds: float | None,
        resumed: BegunTransaction | None,
        *,
        lease_seconds_granted: float | None = None,
    ) -> Transaction:
        default = self._calls.settings.transaction_lease_seconds
        return Transaction(
            stream=self.name,
            lease_seconds=default if lease_seconds is None else lease_seconds,
            resumed=resumed,
            controller=self._controller,
            calls=self._calls.with_own_connections(),
            lease_seconds_granted=lease_seconds_granted,
        )

    def _check_cut(self, cut: StreamCut) -> None:
        if cut.stream != str(self.name):
            raise InvalidRequestError(
                f"cut is of another stream cut={cut.stream} stream={self.name}"
            )


class _StreamTarget:
    """A stream as a writer sees it."""

    def __init__(self, stream: StreamName, controller: ControllerClient) -> None:
        self.name = str(stream)
        self._stream = stream
        self._controller = controller

    async def ranges(self) -> Sequence[SegmentRange]:
        return await self._controller.current_segments(self._stream)

    def segment_name(self, segment_id: int) -> str:
        return segment_name(self._stream.scope, self._stream.stream, segment_id)

    async def successors(
        self,
        segment_id: int,
        error: SegmentStoreError,  # noqa: ARG002  # the signature of WriteTarget.successors
    ) -> Sequence[Successor]:
        return await self._controller.successors(self._stream, segment_id)
