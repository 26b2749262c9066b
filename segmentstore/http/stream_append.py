"""POST /v1/stream/{name}: append, append and close, or close.

The hot path of the package. Its order (what is refused before what) is the protocol's:

    1 header syntax 400 -> 2 empty body, or none of a type 400 -> 3 absent 404, deleted 410 -> 4 closed -> 5 content
    type 409 -> 6 producer 403, 400, duplicate 204, gap 409 -> 7 Stream-Seq 409 -> 8 JSON 400

StreamAppend parses, decides and appends. decide_append() is steps 5 to 8: what the protocol's state says of one append.
check_producer() is step 6: what a stream does with the (id, epoch, sequence) of an idempotent producer. Both are pure.

- A request is decided by *pending* attributes and submitted in the same stretch, with no await in between; the
  attributes it changes travel in the operation of its bytes, as compare-and-set on what it was decided by.
- A refusal or a duplicate is answered only behind a barrier, and only if it also holds for what has committed:
  what it was decided by may itself have failed.
- A client that goes away does not cancel its commit.

A plain append (no producer, no Stream-Seq, no close; the type that was accepted last; bytes stored as they come) has
nothing to be decided by, so that steps 1 to 8 come down to a look at the headers and `append()`.

Idempotent producers:

| known record | request | decision |
|---|---|---|
| none | sequence 0, any epoch | accept |
| none | sequence > 0 | gap, 0 expected |
| epoch e | epoch < e | stale epoch |
| epoch e | epoch > e, sequence 0 | accept, the record starts again |
| epoch e | epoch > e, sequence > 0 | bad start of an epoch |
| epoch e, last n | sequence <= n | duplicate |
| epoch e, last n | sequence = n + 1 | accept |
| epoch e, last n | sequence > n + 1 | gap, n + 1 expected |

A duplicate is known by its numbers alone; its body is not compared.
"""

import asyncio
import re
from asyncio import AbstractEventLoop
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from enum import Enum

from aiohttp import web

from segmentstore.contracts.errors import (
    BadAttributeUpdateError,
    InvalidRequestError,
    SegmentNotFoundError,
    SegmentSealedError,
    SegmentStoreError,
)
from segmentstore.contracts.identifiers import AttributeKey, AttributeValue
from segmentstore.contracts.segments import (
    AttributeUpdate,
    AttributeUpdateType,
    Segment,
    SegmentProperties,
    media_type_of,
)
from segmentstore.http import header_names
from segmentstore.http.json_messages import lines_of_body
from segmentstore.http.offsets import offset_token
from segmentstore.http.requests import BodyReader, is_true
from segmentstore.http.responses import (
    SECURITY_HEADERS,
    HttpDate,
    PlainAppendResponse,
    Refusal,
    bad_request,
    busy,
    conflict,
)
from segmentstore.http.settings import HttpSettings
from segmentstore.http.stream_attributes import (
    CLOSER_KEY,
    PRODUCER_COUNT_KEY,
    STREAM_SEQUENCE_KEY,
    Closer,
    ProducerRecord,
    closer_of,
    producer_key,
    producer_record,
)
from segmentstore.http.stream_directory import StreamDirectory, StreamHandle
from segmentstore.runtime.cancellation import await_shielded
from segmentstore.runtime.clock import WallClock
from segmentstore.runtime.handle_cache import PinnedHandle

_APPEND_ATTEMPTS_MAX = 8
NUMBER_MAX = (1 << 53) - 1
"""What a JavaScript client can count exactly."""
_PRODUCER_NUMBER = re.compile("[0-9]{1,16}")


@dataclass(frozen=True, slots=True)
class ProducerClaim:
    """The producer headers of one request."""

    producer_id: str
    epoch: int
    sequence: int

    @property
    def record(self) -> ProducerRecord:
        """What the stream remembers once the request is accepted."""
        return ProducerRecord(self.epoch, self.sequence)


@dataclass(slots=True)
class AppendRequest:
    """What one POST asks for, parsed."""

    content_type: str | None
    close: bool
    claim: ProducerClaim | None
    sequence: bytes | None
    body: bytes = b""
    payload: bytes = b""
    """What is stored for the body."""
    invalid_body: InvalidRequestError | None = None
    """JSON that does not parse is refused last, after duplicates."""
    producer_key: AttributeKey | None = None


@dataclass(frozen=True, slots=True)
class AppendDecision:
    """What the protocol's state says of a request: submit `updates`, or answer."""

    updates: list[AttributeUpdate]
    refusal: Refusal | None = None
    duplicate_of: ProducerRecord | None = None

    @property
    def accepted(self) -> bool:
        return self.refusal is None and self.duplicate_of is None


ACCEPTED = AppendDecision([])
"""Nothing speaks against the request, and nothing is changed but bytes."""


class StreamAppend:
    """Handles POST."""

    def __init__(
        self,
        *,
        directory: StreamDirectory,
        bodies: BodyReader,
        settings: HttpSettings,
        wall_clock: WallClock,
        executor: Executor | None,
    ) -> None:
        self._directory = directory
        self._handles = directory.handles
        self._bodies = bodies
        self._settings = settings
        self._executor = executor
        self._date = HttpDate(wall_clock)

    async def handle(self, request: web.BaseRequest, name: str) -> web.StreamResponse:
        pinned = self._handles.acquire_nowait(name)
        if pinned is not None:
            try:
                if is_plain(request.headers, pinned.handle):
                    body = self._bodies.read_nowait(request, self._settings.append_bytes_max)
                    if body:
                        return await self._append_plain(request, name, pinned, body)
            finally:
                self._handles.release(pinned)
        return await self._decide_and_append(request, name)

    async def _append_plain(
        self,
        request: web.BaseRequest,
        name: str,
        pinned: PinnedHandle[StreamHandle],
        body: bytes,
    ) -> web.StreamResponse:
        segment = pinned.handle.segment
        try:
            length = await await_shielded(segment.append(body))
        except SegmentStoreError as error:
            self._handles.discard(pinned)
            if not isinstance(error, SegmentNotFoundError | SegmentSealedError):
                raise
            # Nothing was appended. What the answer is, or whether there is a new segment, takes the whole decision.
            return await self._append(name, self._parse_headers(request), body)
        finally:
            self._bodies.budget.give_back(len(body))
        return PlainAppendResponse(
            next_offset=offset_token(segment.segment_id, length), date=self._date.text()
        )

    async def _decide_and_append(self, request: web.BaseRequest, name: str) -> web.StreamResponse:
        asked = self._parse_headers(request)
        body = self._bodies.read_nowait(request, self._settings.append_bytes_max)
        if body is None:
            async with self._bodies.read(request, self._settings.append_bytes_max) as body:
                return await self._append(name, asked, body)
        try:
            return await self._append(name, asked, body)
        finally:
            self._bodies.budget.give_back(len(body))

    def _parse_headers(self, request: web.BaseRequest) -> AppendRequest:
        headers = request.headers
        claim = None
        if (
            header_names.PRODUCER_ID in headers
            or header_names.PRODUCER_EPOCH in headers
            or header_names.PRODUCER_SEQ in headers
        ):
            claim = producer_claim(
                headers.get(header_names.PRODUCER_ID),
                headers.get(header_names.PRODUCER_EPOCH),
                headers.get(header_names.PRODUCER_SEQ),
                producer_id_bytes_max=self._settings.producer_id_bytes_max,
            )
        sequence_text = headers.get(header_names.STREAM_SEQ)
        sequence = None
        if sequence_text is not None:
            sequence = sequence_text.encode("utf-8", "surrogateescape")
            if len(sequence) > self._settings.stream_sequence_bytes_max:
                raise bad_request(f"Stream-Seq is too long bytes={len(sequence)}")
        return AppendRequest(
            content_type=headers.get(header_names.CONTENT_TYPE),
            close=is_true(headers.get(header_names.STREAM_CLOSED)),
            claim=claim,
            sequence=sequence,
            producer_key=None if claim is None else producer_key(claim.producer_id),
        )

    async def _append(self, name: str, asked: AppendRequest, body: bytes) -> web.Response:
        if not body and not asked.close:
            raise bad_request("nothing to append: the body is empty and Stream-Closed is not true")
        if body and not asked.content_type:
            raise bad_request("a body needs a Content-Type")
        asked.body = asked.payload = body
        loop = asyncio.get_running_loop()
        for _ in range(_APPEND_ATTEMPTS_MAX):
            pinned = self._handles.acquire_nowait(name)
            if pinned is None:
                pinned = await self._open(name)
            try:
                answer = await self._attempt(name, pinned.handle, asked, loop)
            except SegmentStoreError as error:
                # The handle may be the reason (its container stopped, its segment was recreated).
                self._handles.discard(pinned)
                if not isinstance(error, SegmentNotFoundError):
                    raise
                answer = None
            finally:
                self._handles.release(pinned)
            if answer is not None:
                return answer
        raise busy("the stream changes too fast for a decision", self._settings.retry_after_seconds)

    async def _open(self, name: str) -> PinnedHandle[StreamHandle]:
        async with self._directory.open(name):
            return await self._handles.acquire(name)

    async def _attempt(
        self, name: str, stream: StreamHandle, asked: AppendRequest, loop: AbstractEventLoop
    ) -> web.Response | None:
        """An answer, or None if the world changed under the decision and it must be made again."""
        configuration = stream.configuration
        if configuration.may_expire:
            await self._directory.access(stream.segment.info(), configuration)
        mismatch = False
        if asked.body:
            if asked.content_type != stream.content_type_accepted:
                mismatch = media_type_of(asked.content_type or "") != configuration.media_type
                if not mismatch:
                    stream.content_type_accepted = asked.content_type or ""
            if configuration.is_json and not mismatch and asked.payload is asked.body:
                await self._split_json(asked, loop)
        segment = stream.segment
        decision = ACCEPTED
        if mismatch or asked.invalid_body or asked.claim or asked.sequence is not None:
            await self._load(segment, asked)
            # From here to append() there is no await: what was decided by is what is changed.
            decision = self._decide(segment, asked, mismatch=mismatch)
            if not decision.accepted:
                return await self._answer_decision(name, segment, asked, mismatch=mismatch)
        updates = decision.updates
        if asked.close and asked.claim is not None:
            closer = Closer(asked.claim.producer_id, asked.claim.record)
            updates = [*updates, AttributeUpdate(CLOSER_KEY, closer.encode())]
        future = segment.append(asked.payload, attribute_updates=updates, seal=asked.close)
        try:
            length = await await_shielded(future)
        except SegmentSealedError:
            properties = await self._directory.segments.info(name)
            if properties.segment_id != segment.segment_id:
                raise SegmentNotFoundError(name) from None
            return self._answer_closed(properties, asked)
        except BadAttributeUpdateError:
            return None
        self._directory.expiry.touch_written(segment, configuration)
        return self._answer_appended(segment, asked, length)

    async def _split_json(self, asked: AppendRequest, loop: AbstractEventLoop) -> None:
        try:
            if len(asked.body) <= self._settings.json_inline_bytes_max:
                asked.payload = lines_of_body(asked.body, empty_array_allowed=False)
            else:
                asked.payload = await loop.run_in_executor(
                    self._executor, lambda: lines_of_body(asked.body, empty_array_allowed=False)
                )
        except InvalidRequestError as error:
            asked.invalid_body = error

    async def _load(self, segment: Segment, asked: AppendRequest) -> None:
        """Make sure that the attributes to decide by are known or known to be absent."""
        keys = [key for key in (STREAM_SEQUENCE_KEY, asked.producer_key) if key is not None]
        try:
            for key in keys:
                segment.pending_attribute(key)
        except KeyError:
            await segment.load_attributes([*keys, PRODUCER_COUNT_KEY])

    def _decide(self, segment: Segment, asked: AppendRequest, *, mismatch: bool) -> AppendDecision:
        """Steps 5 to 8 against pending state. Synchronous."""
        known = {
            key: segment.pending_attribute(key)
            for key in (STREAM_SEQUENCE_KEY, PRODUCER_COUNT_KEY, asked.producer_key)
            if key is not None
        }
        return decide_append(
            known,
            asked,
            mismatch=mismatch,
            producers_max=self._settings.producers_per_stream_max,
        )

    async def _answer_decision(
        self, name: str, segment: Segment, asked: AppendRequest, *, mismatch: bool
    ) -> web.Response | None:
        """Behind the barrier, decide once more by what has committed, closed streams first (step 4)."""
        await await_shielded(segment.barrier())
        properties = await self._directory.segments.info(name)
        if properties.segment_id != segment.segment_id:
            raise SegmentNotFoundError(name)
        if properties.sealed:
            return self._answer_closed(properties, asked)
        keys = [STREAM_SEQUENCE_KEY, PRODUCER_COUNT_KEY]
        if asked.producer_key is not None:
            keys.append(asked.producer_key)
        committed = await segment.load_attributes(keys)
        decision = decide_append(
            committed,
            asked,
            mismatch=mismatch,
            producers_max=self._settings.producers_per_stream_max,
        )
        if decision.refusal is not None:
            raise decision.refusal
        if decision.duplicate_of is None:
            return None
        headers = {
            **SECURITY_HEADERS,
            "Stream-Next-Offset": offset_token(properties.segment_id, properties.length),
            "Producer-Epoch": str(decision.duplicate_of.epoch),
            "Producer-Seq": str(decision.duplicate_of.sequence),
        }
        return web.Response(status=204, headers=headers)

    def _answer_closed(self, properties: SegmentProperties, asked: AppendRequest) -> web.Response:
        headers = {
            "Stream-Next-Offset": offset_token(properties.segment_id, properties.length),
            "Stream-Closed": "true",
        }
        claim = asked.claim
        if claim is not None:
            closer = closer_of(properties.core_attributes.get(CLOSER_KEY))
            if closer != Closer(claim.producer_id, claim.record):
                raise conflict("stream is closed", headers)
            headers["Producer-Epoch"] = str(claim.epoch)
            headers["Producer-Seq"] = str(claim.sequence)
        elif asked.body:
            raise conflict("stream is closed", headers)
        return web.Response(status=204, headers={**SECURITY_HEADERS, **headers})

    def _answer_appended(self, segment: Segment, asked: AppendRequest, length: int) -> web.Response:
        headers = {
            **SECURITY_HEADERS,
            "Stream-Next-Offset": offset_token(segment.segment_id, length),
        }
        status = 204
        if asked.claim is not None:
            headers["Producer-Epoch"] = str(asked.claim.epoch)
            headers["Producer-Seq"] = str(asked.claim.sequence)
            status = 200 if asked.body else 204
        if asked.close:
            headers["Stream-Closed"] = "true"
        return web.Response(status=status, headers=headers)


def is_plain(headers: Mapping[str, str], stream: StreamHandle) -> bool:
    """Whether a request with a body asks for nothing but to append it as it is."""
    return (
        stream.takes_plain_bytes
        and headers.get(header_names.CONTENT_TYPE) == stream.content_type_accepted
        and header_names.STREAM_CLOSED not in headers
        and header_names.STREAM_SEQ not in headers
        and header_names.PRODUCER_ID not in headers
        and header_names.PRODUCER_EPOCH not in headers
        and header_names.PRODUCER_SEQ not in headers
    )


def producer_claim(
    producer_id: str | None,
    epoch: str | None,
    sequence: str | None,
    *,
    producer_id_bytes_max: int,
) -> ProducerClaim | None:
    """Parse the three headers: all or none. Raises Refusal (400)."""
    if producer_id is None and epoch is None and sequence is None:
        return None
    if producer_id is None or epoch is None or sequence is None:
        raise bad_request("Producer-Id, Producer-Epoch and Producer-Seq belong together")
    if not producer_id:
        raise bad_request("Producer-Id is empty")
    # Headers arrive decoded with surrogates for bytes that are not UTF-8.
    if any("\ud800" <= character <= "\udfff" for character in producer_id):
        raise bad_request("Producer-Id is not UTF-8")
    length = len(producer_id.encode())
    if length > producer_id_bytes_max:
        raise bad_request(
            f"Producer-Id is too long bytes={length} bytes_max={producer_id_bytes_max}"
        )
    return ProducerClaim(
        producer_id,
        _producer_number("Producer-Epoch", epoch),
        _producer_number("Producer-Seq", sequence),
    )


def _producer_number(name: str, text: str) -> int:
    if _PRODUCER_NUMBER.fullmatch(text) is None or int(text) > NUMBER_MAX:
        raise bad_request(f"{name} is not a number from 0 to {NUMBER_MAX} value={text[:32]!r}")
    return int(text)


def decide_append(
    known: Mapping[AttributeKey, AttributeValue | None] | Mapping[AttributeKey, AttributeValue],
    asked: AppendRequest,
    *,
    mismatch: bool,
    producers_max: int,
) -> AppendDecision:
    """Steps 5 to 8 against some state of the attributes. Pure."""
    if mismatch:
        return AppendDecision(
            [], conflict(f"content type does not match given={asked.content_type!r}")
        )
    updates: list[AttributeUpdate] = []
    if asked.claim is not None and asked.producer_key is not None:
        value = known.get(asked.producer_key)
        record = producer_record(value)
        decision = check_producer(record, asked.claim)
        if decision is ProducerDecision.DUPLICATE:
            return AppendDecision([], duplicate_of=record)
        if decision is not ProducerDecision.ACCEPT:
            return AppendDecision([], producer_refusal(decision, record, asked.claim))
        if record is None:
            count = known.get(PRODUCER_COUNT_KEY) or 0
            if isinstance(count, int) and count >= producers_max:
                return AppendDecision(
                    [],
                    conflict(
                        "the stream remembers no further producer: append with the Producer-Id of one that it knows,"
                        f" without any, or to another stream producers_max={producers_max}"
                    ),
                )
            updates.append(AttributeUpdate(PRODUCER_COUNT_KEY, 1, AttributeUpdateType.ACCUMULATE))
        updates.append(
            AttributeUpdate(
                asked.producer_key,
                asked.claim.record.encode(),
                AttributeUpdateType.REPLACE_IF_EQUALS,
                comparison=value,
            )
        )
    if asked.sequence is not None:
        last = known.get(STREAM_SEQUENCE_KEY)
        if isinstance(last, bytes) and asked.sequence <= last:
            return AppendDecision([], conflict("Stream-Seq is not greater than the last one"))
        updates.append(
            AttributeUpdate(
                STREAM_SEQUENCE_KEY,
                asked.sequence,
                AttributeUpdateType.REPLACE_IF_EQUALS,
                comparison=last,
            )
        )
    if asked.invalid_body is not None:
        return AppendDecision([], bad_request(str(asked.invalid_body)))
    return AppendDecision(updates)


class ProducerDecision(Enum):
    """What to do with a producer's request."""

    ACCEPT = "accept"
    DUPLICATE = "duplicate"
    STALE_EPOCH = "stale_epoch"
    BAD_EPOCH_START = "bad_epoch_start"
    GAP = "gap"


def check_producer(known: ProducerRecord | None, claim: ProducerClaim) -> ProducerDecision:
    """By the table of idempotent producers, at the top of this file."""
    if known is None:
        return ProducerDecision.ACCEPT if claim.sequence == 0 else ProducerDecision.GAP
    if claim.epoch < known.epoch:
        return ProducerDecision.STALE_EPOCH
    if claim.epoch > known.epoch:
        return ProducerDecision.ACCEPT if claim.sequence == 0 else ProducerDecision.BAD_EPOCH_START
    if claim.sequence <= known.sequence:
        return ProducerDecision.DUPLICATE
    return ProducerDecision.ACCEPT if claim.sequence == known.sequence + 1 else ProducerDecision.GAP


def expected_sequence(known: ProducerRecord | None) -> int:
    """The sequence that a gap lacks."""
    return 0 if known is None else known.sequence + 1


def producer_refusal(
    decision: ProducerDecision, known: ProducerRecord | None, claim: ProducerClaim
) -> Refusal:
    """The answer to a claim that is neither accepted nor a duplicate."""
    match decision:
        case ProducerDecision.STALE_EPOCH:
            assert known is not None, f"no record, yet stale claim={claim}"
            return Refusal(
                403,
                f"a newer epoch of this producer exists epoch={known.epoch} given={claim.epoch}",
                kind="conflict",
                headers={"Producer-Epoch": str(known.epoch)},
            )
        case ProducerDecision.BAD_EPOCH_START:
            return bad_request(f"a new epoch begins with sequence 0 given={claim.sequence}")
        case ProducerDecision.GAP:
            expected = expected_sequence(known)
            return Refusal(
                409,
                f"a request is missing expected={expected} received={claim.sequence}",
                kind="conflict",
                headers={
                    "Producer-Expected-Seq": str(expected),
                    "Producer-Received-Seq": str(claim.sequence),
                },
            )
        case ProducerDecision.ACCEPT | ProducerDecision.DUPLICATE:
            raise AssertionError(f"not a refusal decision={decision} claim={claim}")
