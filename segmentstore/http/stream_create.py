"""PUT /v1/stream/{name}: create a stream, with first bytes, closed, expiring or forked if so asked.

- Of several creates of one name exactly one answers 201 (H63); the others compare configurations: 200 or 409.
- First bytes, a seal or a fork's inheritance come in operations behind the create. Until the last of them has committed
  the segment is marked `initialising` and counts as absent, so a crash leaves nothing that a client could see.
"""

import asyncio
import re
from concurrent.futures import Executor
from dataclasses import dataclass, replace

from aiohttp import web
from multidict import CIMultiDictProxy

from segmentstore.contracts.errors import (
    InvalidRequestError,
    SegmentExistsError,
    SegmentNotFoundError,
)
from segmentstore.contracts.segments import AttributeUpdate
from segmentstore.http import header_names
from segmentstore.http.bodies import BodyReader
from segmentstore.http.instants import instant_ms
from segmentstore.http.json_messages import lines_of_body
from segmentstore.http.offsets import offset_token
from segmentstore.http.refusals import bad_request, busy, conflict
from segmentstore.http.responses import SECURITY_HEADERS
from segmentstore.http.settings import HttpSettings
from segmentstore.http.stream_append import is_true
from segmentstore.http.stream_attributes import (
    INITIALISING_KEY,
    StreamConfiguration,
    media_type_of,
)
from segmentstore.http.stream_directory import OpenStream, StreamDirectory
from segmentstore.http.stream_forks import ForkPlan, ForkRequest, StreamForks

_ATTEMPTS_MAX = 4
_SECONDS = re.compile("0|[1-9][0-9]{0,14}")
_MEDIA_TYPE = re.compile("[!#$%&'*+.^_`|~0-9A-Za-z-]+/[!#$%&'*+.^_`|~0-9A-Za-z-]+")


@dataclass(frozen=True, slots=True)
class CreateRequest:
    """What one PUT asks for, parsed."""

    configuration: StreamConfiguration
    content_type_given: bool
    expiry_given: bool
    close: bool
    fork: ForkRequest | None


class StreamCreate:
    """Handles PUT."""

    def __init__(
        self,
        *,
        directory: StreamDirectory,
        forks: StreamForks,
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
        async with (
            self._bodies.read(request, self._settings.append_bytes_max) as body,
            self._directory.locks.hold(name),
        ):
            for _ in range(_ATTEMPTS_MAX):
                async with self._directory.open_locked(name) as existing:
                    if existing is not None:
                        return _answer_existing(existing, asked)
                if await self._directory.forks.is_deleted(name):
                    raise conflict("stream was deleted; its forks still need its name")
                try:
                    return await self._create(request, name, asked, body)
                except SegmentExistsError:
                    await self._remove_half_created(name)
        raise busy("the name is taken and freed too fast", self._settings.retry_after_seconds)

    def _parse_headers(self, headers: CIMultiDictProxy[str]) -> CreateRequest:
        content_type = headers.get(header_names.CONTENT_TYPE, "").strip()
        if content_type:
            check_content_type(content_type, self._settings.content_type_bytes_max)
        time_to_live = headers.get(header_names.STREAM_TTL)
        expires_at = headers.get(header_names.STREAM_EXPIRES_AT)
        if time_to_live is not None and expires_at is not None:
            raise bad_request("Stream-TTL and Stream-Expires-At exclude each other")
        if time_to_live is not None and _SECONDS.fullmatch(time_to_live) is None:
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
        self, request: web.BaseRequest, name: str, asked: CreateRequest, body: bytes
    ) -> web.Response:
        if asked.fork is None:
            return await self._store(request, name, asked.configuration, asked, body, plan=None)
        async with self._forks.plan(
            asked.fork,
            asked.configuration,
            content_type_given=asked.content_type_given,
            expiry_given=asked.expiry_given,
        ) as plan:
            return await self._store(request, name, plan.configuration, asked, body, plan=plan)

    async def _store(
        self,
        request: web.BaseRequest,
        name: str,
        configuration: StreamConfiguration,
        asked: CreateRequest,
        body: bytes,
        *,
        plan: ForkPlan | None,
    ) -> web.Response:
        payload = body
        if body and configuration.is_json:
            payload = await asyncio.get_running_loop().run_in_executor(
                self._executor, lambda: lines_of_body(body, empty_array_allowed=True)
            )
        updates = configuration.updates()
        in_one_step = not payload and not asked.close and plan is None
        if not in_one_step:
            updates.append(AttributeUpdate(INITIALISING_KEY, 1))
        created = await self._segments.create(name, updates)
        length = 0
        if not in_one_step:
            async with self._segments.open_segment(name) as segment:
                if plan is not None:
                    await self._forks.inherit(plan, segment)
                finished = AttributeUpdate(INITIALISING_KEY, None)
                length = await asyncio.shield(
                    segment.append(payload, attribute_updates=[finished], seal=asked.close)
                )
        self._directory.expiry.touch(created, configuration)
        headers = _headers(configuration, created.segment_id, length, closed=asked.close)
        headers["Location"] = f"{request.scheme}://{request.host}{request.rel_url.raw_path}"
        return web.Response(status=201, headers=headers)

    async def _remove_half_created(self, name: str) -> None:
        """What a crashed create left behind; the name's lock is held, so no create of ours is under way."""
        try:
            properties = await self._segments.info(name)
            if INITIALISING_KEY in properties.core_attributes:
                await self._segments.delete(name)
        except SegmentNotFoundError:
            return


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


def _headers(
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
    headers = _headers(has, properties.segment_id, properties.length, closed=properties.sealed)
    return web.Response(status=200, headers=headers)
