"""An event too large for one append: collected in a transient segment, then merged in as one piece.

Invariants:

- Readers see all of the event or nothing: the merge is atomic.
- Pieces are conditional on the length before them, so a repeated piece is refused instead of stored twice.
- A merge whose answer was lost is asked for again; a source that is gone by then was merged.
- Whatever breaks before the merge, the next attempt begins with a new transient segment: nothing is half there.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from segmentstore.client.backoff import Backoff
from segmentstore.client.errors import (
    ConnectionLostError,
    DeadlineExceededError,
    ServiceUnavailableError,
)
from segmentstore.client.refusals import error_of
from segmentstore.client.segment_calls import SegmentCalls
from segmentstore.client.wire_connection import WireConnection
from segmentstore.codec.wire_protocol.appends import (
    AppendSetup,
    ConditionalBlockEnd,
    CreateTransientSegment,
    DataAppended,
    SetupAppend,
)
from segmentstore.codec.wire_protocol.command import Command
from segmentstore.codec.wire_protocol.segments import (
    MergeSegments,
    SegmentCreated,
    SegmentsMerged,
)
from segmentstore.contracts.errors import SegmentNotFoundError

_PIECE_BYTES: Final = 4 << 20
_ATTEMPTS_MAX: Final = 5


async def append_large_event(calls: SegmentCalls, segment: str, content: bytes) -> None:
    """Append framed bytes of any length as one event.

    Raises SegmentSealedError and SegmentNotFoundError of `segment` (nothing was stored: go to a successor), and
    whatever SegmentCalls raises.
    """
    await _merge(calls, segment, await _collected(calls, segment, content))


async def _collected(calls: SegmentCalls, segment: str, content: bytes) -> str:
    backoff = Backoff(calls.settings, calls.random)
    attempts = 1
    while True:
        try:
            async with asyncio.timeout(calls.settings.append_seconds):
                return await _collect(calls, segment, content)
        except TimeoutError as error:
            raise DeadlineExceededError(
                f"large event is not stored in time segment={segment!r}"
            ) from error
        except (ConnectionLostError, ServiceUnavailableError):
            if attempts == _ATTEMPTS_MAX:
                raise
        attempts += 1
        calls.locator.forget(segment)
        await asyncio.sleep(backoff.next_seconds())


async def _collect(calls: SegmentCalls, segment: str, content: bytes) -> str:
    writer_id = calls.random.randbytes(16)
    created = await calls.ask(
        segment,
        lambda request_id: CreateTransientSegment(request_id, writer_id, segment, ""),
        SegmentCreated,
    )
    connection = await calls.connection(segment)
    transient = created.segment

    await _ask(
        connection,
        lambda request_id: SetupAppend(request_id, writer_id, transient, ""),
        AppendSetup,
    )
    for number, start in enumerate(range(0, len(content), _PIECE_BYTES), start=1):
        piece = content[start : start + _PIECE_BYTES]
        append = partial(ConditionalBlockEnd, writer_id, number, start, piece)
        await _ask(connection, append, DataAppended)
    return transient


async def _ask(
    connection: WireConnection, command: Callable[[int], Command], answer: type[Command]
) -> None:
    reply = await connection.request(command)  # bounded by the deadline around _collect
    if not isinstance(reply, answer):
        raise error_of(reply)


async def _merge(calls: SegmentCalls, segment: str, transient: str) -> None:
    try:
        await calls.ask(
            segment,
            lambda request_id: MergeSegments(request_id, segment, transient, ""),
            SegmentsMerged,
        )
    except SegmentNotFoundError as error:
        if error.name != transient:
            raise
