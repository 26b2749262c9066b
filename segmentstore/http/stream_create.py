"""PUT /v1/stream/{name}: create a stream, with first bytes, closed, expiring or forked if so asked.

- Of several creates of one name exactly one answers 201; the others compare configurations: 200 or 409.
- First bytes, a seal or a fork's inheritance come in operations behind the create. Until the last of them has committed
  the segment is marked `initialising` and counts as absent, so a crash leaves nothing that a client could see.

A fork is a new stream that begins with a copy of another one's first bytes.

- The fork keeps its source's byte offsets up to the fork point, and tokens minted for the source (or the source's own
  source) stay valid in the fork up to there.
- Bytes are copied in bounded pieces while the fork is still `initialising`: a part of them alone is never visible.
- A source whose front was truncated cannot be forked: offsets would no longer fit.

Fork point = Stream-Fork-Offset (default: the source's end) + Stream-Fork-Sub-Offset, which counts bytes or, in JSON
mode, messages.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import Executor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from aiohttp import web
from multidict import CIMultiDictProxy

from segmentstore.contracts.errors import (
    InvalidRequestError,
    SegmentExistsError,
    SegmentStoreError,
    is_outcome_unknown,
)
from segmentstore.contracts.identifiers import INITIALISING
from segmentstore.contracts.segments import (
    AttributeUpdate,
    Segment,
    SegmentProperties,
    media_type_of,
    read_available,
)
from segmentstore.http import header_names
from segmentstore.http.json_messages import lines_of_body
from segmentstore.http.offsets import OffsetPlace, RequestedOffset, offset_token, parse_offset
from segmentstore.http.requests import (
    BodyReader,
    is_reserved,
    is_true,
    name_of_path,
    refuse_system_name,
)
from segmentstore.http.responses import SECURITY_HEADERS, Refusal, bad_request, busy, conflict
from segmentstore.http.settings import HttpSettings
from segmentstore.http.stream_attributes import (
    ForkOrigin,
    StreamConfiguration,
    instant_ms,
)
from segmentstore.http.stream_directory import OpenStream, StreamDirectory
from segmentstore.http.stream_ranges import byte_offset, check_message_boundary
from segmentstore.runtime.cancellation import finish_despite_cancellation

_CREATE_ATTEMPTS_MAX = 4
ANCESTORS_MAX = 8
_TIME_TO_LIVE = re.compile("0|[1-9][0-9]{0,14}")
_SUB_OFFSET = re.compile("0|[1-9][0-9]{0,14}")
_MEDIA_TYPE = re.compile("[!#$%&'*+.^_`|~0-9A-Za-z-]+/[!#$%&'*+.^_`|~0-9A-Za-z-]+")


@dataclass(frozen=True, slots=True)
class ForkRequest:
    """The fork headers of a PUT, parsed."""

    source: str
    offset: RequestedOffset | None
    sub_offset: int

    @staticmethod
    def describes(asked: "ForkRequest | None", origin: ForkOrigin | None) -> bool:
        """Whether an existing stream came from what a second PUT asks for."""
        if asked is None or origin is None:
            return asked is None and origin is None
        if asked.source != origin.source or asked.sub_offset != origin.sub_offset:
            return False
        if asked.offset is None or asked.offset.place is OffsetPlace.NOW:
            # The source's end, which is elsewhere by now.
            return True
        offset = asked.offset.offset if asked.offset.place is OffsetPlace.TOKEN else 0
        return offset == origin.offset


@dataclass(frozen=True, slots=True)
class CreateRequest:
    """What one PUT asks for, parsed."""

    configuration: StreamConfiguration
    content_type_given: bool
    expiry_given: bool
    close: bool
    fork: ForkRequest | None


@dataclass(frozen=True, slots=True)
class ForkPlan:
    """A fork that can be made: where its bytes come from and what it will be."""

    source: OpenStream
    origin: ForkOrigin
    configuration: StreamConfiguration

    @property
    def copied(self) -> int:
        """Bytes [0, copied) of the source are inherited."""
        return self.origin.copied


class StreamCreate:
    """Handles PUT.

    A half-created segment that its create could not remove (its container stopped) is removed by the next PUT or
    DELETE of its name.
    """

    def __init__(
        self,
        *,
        directory: StreamDirectory,
        forks: "StreamForks",
        bodies: BodyReader,
        settings: HttpSettings,
        executor: Executor | None,
    ) -> None:
        self._directory = directory
        self._segments = directory.segments
        self._forks = forks
        self._bodies = bodies
        self._settings = settings
        self._executor = executor

    async def handle(self, request: web.BaseRequest, name: str) -> web.Response:
        asked = self._parse_headers(request.headers)
        if asked.fork is not None and asked.fork.source == name:
            raise bad_request(f"a stream cannot be forked from itself name={name!r}")
        async with (
            self._bodies.read(request, self._settings.append_bytes_max) as body,
            # Before the lock: to find the source may take the source's lock.
            self._forks.open_source(asked.fork) as source,
            self._directory.locks.held(name),
        ):
            # A create is several steps. It runs to its end also if its client leaves, so that the count of the
            # source's forks says what there is.
            return await finish_despite_cancellation(
                self._create_locked(request, name, asked, body, source)
            )

    async def _create_locked(
        self,
        request: web.BaseRequest,
        name: str,
        asked: CreateRequest,
        body: bytes,
        source: OpenStream | Exception | None,
    ) -> web.Response:
        for _ in range(_CREATE_ATTEMPTS_MAX):
            async with self._directory.open_locked(name) as existing:
                if existing is not None:
                    return _answer_existing(existing, asked)
            if await self._directory.forks.is_deleted(name):
                raise conflict("stream was deleted; its forks still need its name")
            try:
                return await self._create(request, name, asked, body, source)
            except SegmentExistsError:
                await self._directory.remove_half_created(name)
        raise busy("the name is taken and freed too fast", self._settings.retry_after_seconds)

    def _parse_headers(self, headers: CIMultiDictProxy[str]) -> CreateRequest:
        content_type = headers.get(header_names.CONTENT_TYPE, "").strip()
        if content_type:
            check_content_type(content_type, self._settings.content_type_bytes_max)
        time_to_live = headers.get(header_names.STREAM_TTL)
        expires_at = headers.get(header_names.STREAM_EXPIRES_AT)
        if time_to_live is not None and expires_at is not None:
            raise bad_request("Stream-TTL and Stream-Expires-At exclude each other")
        if time_to_live is not None and _TIME_TO_LIVE.fullmatch(time_to_live) is None:
            raise bad_request(f"Stream-TTL is not a number of seconds value={time_to_live[:32]!r}")
        if expires_at is not None:
            instant_ms(expires_at)
        configuration = StreamConfiguration(
            time_to_live_seconds=None if time_to_live is None else int(time_to_live),
            expires_at=expires_at,
        )
        if content_type:
            configuration = replace(configuration, content_type=content_type)
        return CreateRequest(
            configuration=configuration,
            content_type_given=bool(content_type),
            expiry_given=configuration.may_expire,
            close=is_true(headers.get(header_names.STREAM_CLOSED)),
            fork=self._forks.parse_headers(headers),
        )

    async def _create(
        self,
        request: web.BaseRequest,
        name: str,
        asked: CreateRequest,
        body: bytes,
        source: OpenStream | Exception | None,
    ) -> web.Response:
        configuration, plan = asked.configuration, None
        if asked.fork is not None:
            plan = await self._forks.plan(
                asked.fork,
                configuration,
                source,
                content_type_given=asked.content_type_given,
                expiry_given=asked.expiry_given,
            )
            configuration = plan.configuration
        payload = body
        if body and configuration.is_json:
            payload = await asyncio.get_running_loop().run_in_executor(
                self._executor, lambda: lines_of_body(body, empty_array_allowed=True)
            )
        updates = configuration.updates()
        in_one_step = not payload and not asked.close and plan is None
        if not in_one_step:
            updates.append(AttributeUpdate(INITIALISING, 1))
        created = await self._create_segment(name, updates, plan)
        length = 0
        if not in_one_step:
            try:
                length = await self._fill(name, payload, plan, close=asked.close)
            except SegmentStoreError as error:
                if not is_outcome_unknown(error):
                    await self._directory.remove_half_created(name)
                raise
        self._directory.expiry.touch(
            replace(created, length=length, sealed=asked.close), configuration
        )
        headers = _stream_headers(configuration, created.segment_id, length, closed=asked.close)
        headers["Location"] = f"{request.scheme}://{request.host}{request.rel_url.raw_path}"
        return web.Response(status=201, headers=headers)

    async def _fill(self, name: str, payload: bytes, plan: ForkPlan | None, *, close: bool) -> int:
        """Everything behind the creation of the segment; its length."""
        async with self._segments.open_segment(name) as segment:
            if plan is not None:
                await self._forks.inherit(plan, segment)
            finished = AttributeUpdate(INITIALISING, None)
            return await segment.append(payload, attribute_updates=[finished], seal=close)

    async def _create_segment(
        self, name: str, updates: list[AttributeUpdate], plan: ForkPlan | None
    ) -> SegmentProperties:
        """A fork is counted as long as its segment exists, also half created; what removes it counts it down."""
        forks = self._directory.forks
        if plan is None:
            return await self._segments.create(name, updates)
        await forks.count_up(plan.origin.source, plan.origin.source_id)
        try:
            return await self._segments.create(name, updates)
        except SegmentStoreError as error:
            if not is_outcome_unknown(error):
                await forks.release(plan.origin)
            raise


def check_content_type(content_type: str, bytes_max: int) -> None:
    """Raises InvalidRequestError for what no answer could carry as its Content-Type."""
    if (
        len(content_type) > bytes_max
        or not content_type.isascii()
        or not content_type.isprintable()
    ):
        raise InvalidRequestError(f"content type is malformed value={content_type[:64]!r}")
    if _MEDIA_TYPE.fullmatch(media_type_of(content_type)) is None:
        raise InvalidRequestError(f"content type names no media type value={content_type[:64]!r}")


def _stream_headers(
    configuration: StreamConfiguration, segment_id: int, length: int, *, closed: bool
) -> dict[str, str]:
    headers = {
        **SECURITY_HEADERS,
        "Content-Type": configuration.content_type,
        "Stream-Next-Offset": offset_token(segment_id, length),
    }
    if closed:
        headers["Stream-Closed"] = "true"
    return headers


def _answer_existing(existing: OpenStream, asked: CreateRequest) -> web.Response:
    """200 if the stream is what was asked for; raises the 409 if it is not."""
    has, wanted = existing.configuration, asked.configuration
    properties = existing.properties
    if (asked.fork is None or asked.content_type_given) and has.media_type != wanted.media_type:
        raise conflict(f"stream exists with another content type content_type={has.content_type!r}")
    if (asked.fork is None or asked.expiry_given) and (
        has.time_to_live_seconds,
        has.expires_at,
    ) != (wanted.time_to_live_seconds, wanted.expires_at):
        raise conflict("stream exists with another time to live or expiry")
    if properties.sealed != asked.close:
        raise conflict(f"stream exists and is {'closed' if properties.sealed else 'open'}")
    if not ForkRequest.describes(asked.fork, has.fork_origin):
        raise conflict("stream exists and was forked from elsewhere, or not at all")
    headers = _stream_headers(
        has, properties.segment_id, properties.length, closed=properties.sealed
    )
    return web.Response(status=200, headers=headers)


class StreamForks:
    """Plans and copies forks."""

    def __init__(
        self, *, directory: StreamDirectory, settings: HttpSettings, stream_prefix: str
    ) -> None:
        self._directory = directory
        self._settings = settings
        self._stream_prefix = stream_prefix

    def parse_headers(self, headers: Mapping[str, str]) -> ForkRequest | None:
        """None if no fork is asked for. Raises Refusal (400), InvalidRequestError."""
        source_path = headers.get(header_names.STREAM_FORKED_FROM)
        offset = headers.get(header_names.STREAM_FORK_OFFSET)
        sub_offset = headers.get(header_names.STREAM_FORK_SUB_OFFSET)
        if source_path is None:
            if offset is not None or sub_offset is not None:
                raise bad_request("Stream-Fork-Offset and -Sub-Offset need Stream-Forked-From")
            return None
        if sub_offset is not None and _SUB_OFFSET.fullmatch(sub_offset) is None:
            raise bad_request(f"Stream-Fork-Sub-Offset is no count value={sub_offset[:32]!r}")
        return ForkRequest(
            source=self._source_name(source_path),
            offset=None if offset is None else parse_offset(offset),
            sub_offset=0 if sub_offset is None else int(sub_offset),
        )

    def _source_name(self, source_path: str) -> str:
        path = urlsplit(source_path).path if "://" in source_path else source_path
        if not path.startswith(self._stream_prefix):
            raise bad_request(f"Stream-Forked-From names no stream of this server path={path!r}")
        name = name_of_path(path[len(self._stream_prefix) :])
        if is_reserved(name):
            raise bad_request(f"Stream-Forked-From names a reserved path path={path!r}")
        refuse_system_name(name)
        return name

    @asynccontextmanager
    async def open_source(
        self, asked: ForkRequest | None
    ) -> AsyncIterator[OpenStream | Exception | None]:
        """The source, pinned in the block, or why there is none: an existing fork does not need it any more."""
        async with AsyncExitStack() as stack:
            found: OpenStream | Exception | None = None
            if asked is not None and not self._directory.is_here(asked.source):
                # Its bytes would come over the network, and its count would be another node's to keep.
                found = Refusal(
                    501,
                    f"the source of the fork is at another node now source={asked.source!r}",
                    kind="invalid",
                )
            elif asked is not None:
                try:
                    found = await stack.enter_async_context(self._directory.open(asked.source))
                except Refusal as refusal:
                    found = conflict(str(refusal)) if refusal.status == 410 else refusal
                except SegmentStoreError as error:
                    found = error
            yield found

    async def plan(
        self,
        asked: ForkRequest,
        configuration: StreamConfiguration,
        source: OpenStream | Exception | None,
        *,
        content_type_given: bool,
        expiry_given: bool,
    ) -> ForkPlan:
        """Check everything that can be refused.

        Raises Refusal: 404 (no source), 409 (source deleted, other content type), 400 (fork point past the end).
        """
        assert source is not None, f"a fork without a source source={asked.source!r}"
        if isinstance(source, Exception):
            raise source
        if content_type_given:
            if configuration.media_type != source.configuration.media_type:
                raise conflict("a fork has the content type of its source")
            content_type = configuration.content_type
        else:
            content_type = source.configuration.content_type
        offset, copied = await self._fork_point(asked, source)
        origin = ForkOrigin(
            source=asked.source,
            source_id=source.properties.segment_id,
            offset=offset,
            sub_offset=asked.sub_offset,
            copied=copied,
            ancestors=_ancestors_of_fork(source, copied),
        )
        configuration = replace(configuration, content_type=content_type, fork_origin=origin)
        if not expiry_given:
            configuration = replace(
                configuration,
                time_to_live_seconds=source.configuration.time_to_live_seconds,
                expires_at=source.configuration.expires_at,
            )
        self._directory.expiry.touch(source.properties, source.configuration)
        return ForkPlan(source, origin, configuration)

    async def inherit(self, plan: ForkPlan, fork: Segment) -> None:
        """Copy the inherited bytes into the new segment."""
        offset = 0
        while offset < plan.copied:
            length = min(self._settings.read_bytes_max, plan.copied - offset)
            piece = await read_available(plan.source.segment, offset, length)
            assert piece, f"source ended early offset={offset} copied={plan.copied}"
            await fork.append(piece, offset=offset)
            offset += len(piece)

    async def _fork_point(self, asked: ForkRequest, source: OpenStream) -> tuple[int, int]:
        """(Stream-Fork-Offset, end of the inherited bytes), both in bytes."""
        properties = source.properties
        if properties.start_offset > 0:
            raise conflict(
                "a stream whose front was truncated cannot be forked"
                f" start_offset={properties.start_offset}"
            )
        offset = properties.length
        if asked.offset is not None:
            try:
                offset = byte_offset(asked.offset, properties, source.configuration)
            except Refusal as refusal:
                raise bad_request(f"Stream-Fork-Offset: {refusal}") from refusal
            if source.configuration.is_json:
                await check_message_boundary(source, offset)
        if asked.sub_offset == 0:
            return offset, offset
        if not source.configuration.is_json:
            if offset + asked.sub_offset > properties.length:
                raise bad_request("Stream-Fork-Sub-Offset lies past the end of the source")
            return offset, offset + asked.sub_offset
        return offset, await self._behind_messages(source, offset, asked.sub_offset)

    async def _behind_messages(self, source: OpenStream, offset: int, count: int) -> int:
        """The offset behind `count` messages. Reads them, a piece at a time."""
        while True:
            # What is in memory is read without a wait: others have their turn all the same.
            await asyncio.sleep(0)
            piece = await read_available(source.segment, offset, self._settings.window_bytes)
            if not piece:
                raise bad_request("Stream-Fork-Sub-Offset lies past the end of the source")
            lines = piece.count(b"\n")
            if lines < count:
                count -= lines
                offset += len(piece)
                continue
            position = -1
            for _ in range(count):
                position = piece.index(b"\n", position + 1)
            return offset + position + 1


def _ancestors_of_fork(source: OpenStream, copied: int) -> list[tuple[int, int]]:
    origin = source.configuration.fork_origin
    inherited = [] if origin is None else origin.ancestors
    ancestors = [(ancestor, min(shared, copied)) for ancestor, shared in inherited]
    # Attribute values are small: of a long chain of forks the nearest ancestors are kept.
    return [*ancestors, (int(source.properties.segment_id), copied)][-ANCESTORS_MAX:]
