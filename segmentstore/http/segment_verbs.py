"""/v1/segments: the verbs of a segment that the stream protocol lacks.

A name may hold slashes, so the verb is always the *last* part of the path and the name everything before it; DELETE
alone has no verb, so there the name is the whole rest. A segment called `a/info` has its `/v1/segments/a/info/info`.

    GET    /v1/segments?prefix=&after=&limit=   list, in name order; "next" is the `after` of the next page
    PUT    {name}/create                        body: nothing, or {"attributes": [updates]}
    POST   {name}/append?offset=                raw body; `offset` makes it conditional on the length.
                                                Segment-Attributes: JSON array of updates, Segment-Seal: true
                                                (bytes, updates and seal are one operation: all of it or nothing)
    GET    {name}/read?offset=&length=          raw bytes, streamed
    POST   {name}/truncate                      {"offset": n}
    POST   {name}/merge                         {"source": "name"}: the sealed source goes to the end of {name}
    POST   {name}/seal
    POST   {name}/flush                         returns when all that was acknowledged is in Tier 2
    GET    {name}/info                          all metadata
    GET    {name}/attributes   PATCH            {"updates": [updates]}
    DELETE {name}

    POST   /v1/flush                            the same for everything that this node holds, its own records included;
                                                503 if one of its containers does not run

Segments below "_system/" are the store's own records: they are listed, and have `info` and `flush`, and nothing else.

A segment that a create of a stream has not filled yet, or never will, is none here either: what is done to it would go
with it when its name is created anew.

Segments that are JSON streams take raw appends, merges and truncates only as far as their messages stay whole.

A read is of any size, in bounded pieces:

- The answer's length is fixed when it begins (Content-Length), from what exists then; it never waits for more.
- One window of bytes is held per reader; one that takes nothing for `write_seconds_max` is cut off.
- If bytes vanish under the reader (truncated, deleted), the connection is cut: a short body is never a whole one.
  What the first of them meets is the answer: it begins only when they are there.

Attributes as JSON: keys and values are bytes or numbers in the store and text in a request.

    bytes that are UTF-8 and do not begin with "hex:"    the text itself
    all other bytes                                      "hex:" and their hexadecimal digits
    numbers (64-bit, signed)                             JSON numbers

An update is an object: {"key", "value" (null removes), "type": a name of AttributeUpdateType in lower case
(default "replace"), "comparison" (for "replace_if_equals")}.

A segment may have any number of attributes: they become JSON some at a time, and others are served in between.
"""

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice

from aiohttp import web

from segmentstore.contracts.errors import (
    BadOffsetError,
    ContainerNotFoundError,
    InvalidRequestError,
    SegmentNotFoundError,
    SegmentStoreError,
    SegmentTruncatedError,
)
from segmentstore.contracts.identifiers import (
    ATTRIBUTE_KEY_BYTES_MAX,
    ATTRIBUTE_VALUE_BYTES_MAX,
    CORE_ATTRIBUTE_PREFIX,
    AttributeKey,
    AttributeValue,
    is_core_attribute,
)
from segmentstore.contracts.segments import (
    AttributeUpdate,
    AttributeUpdateType,
    ReadOnlySegment,
    SegmentApi,
    SegmentProperties,
    SegmentReads,
    read_available,
)
from segmentstore.http import header_names
from segmentstore.http.cross_origin import CrossOrigin
from segmentstore.http.health_and_metrics import NodeHealth
from segmentstore.http.requests import (
    BodyReader,
    check_name,
    is_reserved,
    is_true,
    json_number,
    name_of_path,
    parse_count,
    parse_json,
    refuse_system_name,
)
from segmentstore.http.responses import (
    CONTENT_HEADERS,
    SECURITY_HEADERS,
    bad_request,
    begun,
    busy,
    conflict,
    json_bytes_response,
    json_response,
    method_not_allowed,
    not_found,
    outcome_unknown,
)
from segmentstore.http.settings import HttpSettings
from segmentstore.http.stream_attributes import configuration_of, is_reserved_key
from segmentstore.http.stream_directory import StreamDirectory, StreamHandle
from segmentstore.runtime.cancellation import await_shielded
from segmentstore.runtime.handle_cache import PinnedHandle

UPDATES_MAX = 1_000
"""Updates of one request."""
_SHOWN_PER_TURN = 256
"""Attributes; each takes about two microseconds."""
_VERBS_OF_SYSTEM_SEGMENTS = frozenset({"flush", "info"})
_HEX_MARK = "hex:"
_ATTRIBUTE_NUMBER_MIN, _ATTRIBUTE_NUMBER_MAX = -(1 << 63), (1 << 63) - 1
_UPDATE_FIELDS = frozenset({"key", "value", "type", "comparison"})

Verb = Callable[[web.BaseRequest, str], Coroutine[None, None, web.StreamResponse]]


class SegmentVerbs:
    """Handles everything under /v1/segments."""

    def __init__(
        self,
        *,
        segments: SegmentApi,
        reads: SegmentReads,
        directory: StreamDirectory,
        bodies: BodyReader,
        cross_origin: CrossOrigin,
        health: Callable[[], NodeHealth],
        settings: HttpSettings,
    ) -> None:
        self._segments = segments
        self._reads = reads
        self._directory = directory
        self._handles = directory.handles
        self._bodies = bodies
        self._cross_origin = cross_origin
        self._health = health
        self._settings = settings
        self._verbs: Mapping[str, Mapping[str, Verb]] = {
            "append": {"POST": self._append},
            "attributes": {"GET": self._attributes, "PATCH": self._update_attributes},
            "create": {"PUT": self._create},
            "flush": {"POST": self._flush},
            "info": {"GET": self._info},
            "merge": {"POST": self._merge},
            "read": {"GET": self._read},
            "seal": {"POST": self._seal},
            "truncate": {"POST": self._truncate},
        }

    def route(self, request: web.BaseRequest, rest: str) -> tuple[str, str, Verb]:
        """The verb, as the statistics call it, the name, and what answers; `rest` is the raw path behind the prefix."""
        if request.method == "DELETE":
            name = self._name(rest)
            refuse_system_name(name)
            return "segment_delete", name, self._delete
        raw_name, _, verb = rest.rpartition("/")
        methods = self._verbs.get(verb)
        if methods is None or not raw_name:
            known = ", ".join(sorted(self._verbs))
            raise not_found(f"the last part of the path is no verb; verbs are {known}")
        handler = methods.get(request.method)
        if handler is None:
            raise method_not_allowed(verb, sorted(methods))
        name = self._name(raw_name)
        if verb not in _VERBS_OF_SYSTEM_SEGMENTS:
            refuse_system_name(name)
        return f"segment_{verb}", name, handler

    async def list_segments(self, request: web.BaseRequest) -> web.Response:
        """A page of segments."""
        if request.method != "GET":
            raise method_not_allowed("list", ["GET"])
        prefix, after, limit = self.page_of(request)
        page = await self._segments.list_segments(prefix, after, limit)
        return json_response(200, self.shown_page(page, limit))

    def page_of(self, request: web.BaseRequest) -> tuple[str, str, int]:
        """Prefix, the name behind which the page begins, and how many it may hold. Raises Refusal (400)."""
        limit_max = self._settings.list_segments_max
        limit = min(parse_count(request.query.get("limit"), "limit", limit_max), limit_max)
        if limit == 0:
            raise bad_request("limit is 0")
        return request.query.get("prefix", ""), request.query.get("after", ""), limit

    def shown_page(self, page: Sequence[SegmentProperties], limit: int) -> dict[str, object]:
        """As it is answered."""
        shown = [
            properties_as_json(item)
            for item in page
            if not is_reserved(item.name) and not item.is_half_created
        ]
        next_name = page[-1].name if len(page) == limit else None
        return {"segments": shown, "next": next_name}

    async def flush_all(self, _request: web.BaseRequest) -> web.StreamResponse:
        """Deletions, and what belongs to no user's segment, are flushed as well."""
        health = self._health()
        for container in health.containers:
            if not container.ready:
                raise ContainerNotFoundError(
                    container.container_id, container.cause or container.state.value
                )
        if not health.ready:
            raise busy("not all containers run", round(self._settings.retry_after_seconds))
        await self._segments.flush()
        return web.Response(status=204, headers=SECURITY_HEADERS)

    def _name(self, raw_name: str) -> str:
        name = name_of_path(raw_name)
        if is_reserved(name):
            raise bad_request(f"name is reserved name={name!r}")
        return name

    async def _properties(self, name: str) -> SegmentProperties:
        """Raises SegmentNotFoundError also for a segment that is half created."""
        properties = await self._segments.info(name)
        properties.require_created()
        return properties

    async def _create(self, request: web.BaseRequest, name: str) -> web.Response:
        asked = await self._bodies.read_json_object(request, optional=("attributes",))
        updates = updates_of_json(asked.get("attributes"))
        properties = await self._directory.create_segment(name, updates)
        return json_response(201, properties_as_json(properties))

    async def _append(self, request: web.BaseRequest, name: str) -> web.Response:
        offset_text = request.query.get("offset")
        offset = None if offset_text is None else parse_count(offset_text, "offset", 0)
        updates_text = request.headers.get(header_names.SEGMENT_ATTRIBUTES)
        updates = [] if updates_text is None else updates_of_json(parse_json(updates_text))
        seal = is_true(request.headers.get(header_names.SEGMENT_SEAL))
        async with self._bodies.read(request, self._settings.append_bytes_max) as body:
            if not body and not updates and not seal:
                raise bad_request("nothing to append: no body, no attribute updates, no seal")
            append = partial(self._append_to, body=body, offset=offset, updates=updates, seal=seal)
            length: int | None = None
            kept = self._handles.acquire_nowait(name)
            if kept is not None:
                # One that something else deleted says so, and took nothing; there may be another of its name by now.
                with suppress(SegmentNotFoundError):
                    length = await append(kept)
            if length is None:
                length = await append(await self._handles.acquire(name))
        return json_response(200, {"length": length, "offset": length - len(body)})

    async def _append_to(
        self,
        pinned: PinnedHandle[StreamHandle],
        *,
        body: bytes,
        offset: int | None,
        updates: Sequence[AttributeUpdate],
        seal: bool,
    ) -> int:
        """The new length. Lets go of the handle."""
        stream = pinned.handle
        try:
            if stream.configuration.may_expire:
                await self._directory.access(stream.segment.info(), stream.configuration)
            if body and stream.configuration.is_json:
                name = stream.segment.name
                if (await self._segments.info(name)).segment_id != stream.segment.segment_id:
                    raise SegmentNotFoundError(name)
                raise conflict(
                    "segment is a JSON stream; append to it at /v1/stream, which keeps messages whole"
                )
            length = await await_shielded(
                stream.segment.append(body, offset=offset, attribute_updates=updates, seal=seal)
            )
            self._directory.expiry.touch_written(stream.segment, stream.configuration)
        except SegmentStoreError:
            self._handles.discard(pinned)
            raise
        finally:
            self._handles.release(pinned)
        return length

    async def _read(self, request: web.BaseRequest, name: str) -> web.StreamResponse:
        async with self._reads.open_segment(name) as segment:
            properties = segment.info()
            properties.require_created()
            configuration = configuration_of(properties.core_attributes)
            if configuration.may_expire:
                await self._directory.access(properties, configuration)
            offset = parse_count(request.query.get("offset"), "offset", properties.start_offset)
            if offset >= properties.length and properties.may_have_more:
                properties.require_container()
            if offset > properties.length:
                raise BadOffsetError(name, expected=properties.length, given=offset)
            if offset < properties.start_offset:
                raise SegmentTruncatedError(name, start_offset=properties.start_offset)
            available = properties.length - offset
            length = min(available, parse_count(request.query.get("length"), "length", available))
            end = offset + length
            first = await self._piece(segment, offset, end)
            response = web.StreamResponse(
                status=200,
                headers={
                    **CONTENT_HEADERS,
                    "Content-Type": "application/octet-stream",
                    "Content-Disposition": "attachment",
                    "Content-Length": str(length),
                    "Cache-Control": "no-store",
                    "Segment-Offset": str(offset),
                    "Segment-Length": str(properties.length),
                    "Segment-Sealed": "true" if properties.sealed else "false",
                },
            )
            if properties.container_down:
                response.headers["Segment-Published-Only"] = "true"
            self._cross_origin.add_to(request, response)
            async with begun(request, response):
                await self._stream(response, segment, offset, end, first)
        return response

    async def _stream(
        self,
        response: web.StreamResponse,
        segment: ReadOnlySegment,
        offset: int,
        end: int,
        piece: bytes,
    ) -> None:
        while piece:
            async with asyncio.timeout(self._settings.write_seconds_max):
                await response.write(piece)
            offset += len(piece)
            piece = await self._piece(segment, offset, end)

    async def _piece(self, segment: ReadOnlySegment, offset: int, end: int) -> bytes:
        """What follows; nothing at the end."""
        if offset >= end:
            return b""
        piece = await read_available(
            segment, offset, min(self._settings.window_bytes, end - offset)
        )
        assert piece, f"no bytes before the end offset={offset} end={end}"
        return piece

    async def _truncate(self, request: web.BaseRequest, name: str) -> web.Response:
        asked = await self._bodies.read_json_object(request, required=("offset",))
        offset = json_number(asked, "offset")
        async with self._segments.open_segment(name) as segment:
            properties = segment.info()
            properties.require_created()
            is_json = configuration_of(properties.core_attributes).is_json
            if is_json and properties.start_offset < offset <= properties.length:
                before = await read_available(segment, offset - 1, 1)
                if before != b"\n":
                    raise conflict(f"offset lies inside a message of a JSON stream offset={offset}")
            await self._segments.truncate(name, offset)
            try:
                # A container on its way to another node takes no further request; what is open says how it stands.
                properties = segment.info()
            except SegmentStoreError as error:
                # A refusal would say that nothing was done.
                raise outcome_unknown(
                    f"the segment is truncated, and no container says how: {error}",
                    self._settings.retry_after_seconds,
                ) from error
        return json_response(200, properties_as_json(properties))

    async def _merge(self, request: web.BaseRequest, name: str) -> web.Response:
        asked = await self._bodies.read_json_object(request, optional=("source",))
        source = asked.get("source")
        if not isinstance(source, str) or not source:
            raise bad_request('merge needs {"source": a name}')
        check_name(source)
        if is_reserved(source):
            raise bad_request(f"name is reserved name={source!r}")
        refuse_system_name(source)
        formats = [
            configuration_of((await self._properties(each)).core_attributes).is_json
            for each in (name, source)
        ]
        if formats[0] != formats[1]:
            raise conflict("only one of the two is a JSON stream; messages would not stay whole")
        length = await self._directory.merge_segment(name, source)
        # No request asks for it here again: a source that is gone is an error. Kept, it would be there for ever.
        with suppress(SegmentStoreError):
            await self._segments.forget_merged(name, [source])
        return json_response(200, {"length": length})

    async def _seal(self, _request: web.BaseRequest, name: str) -> web.Response:
        await self._properties(name)
        return json_response(200, {"length": await self._segments.seal(name)})

    async def _flush(self, _request: web.BaseRequest, name: str) -> web.Response:
        await self._segments.flush(name)
        properties = await self._properties(name)
        return json_response(200, {"storage_length": properties.storage_length})

    async def _info(self, _request: web.BaseRequest, name: str) -> web.Response:
        properties = await self._reads.info(name)
        properties.require_created()
        shown = properties_as_json(properties)
        if properties.container_down:
            return json_response(200, {**shown, "container_down": properties.container_down})
        shown["attributes"] = len(await self._segments.attributes(name))
        for container in self._health().containers:
            if container.container_id == properties.container_id:
                shown["throttle"] = container.throttle
                shown["throttle_delay_seconds"] = container.throttle_delay_seconds
        return json_response(200, shown)

    async def _attributes(self, _request: web.BaseRequest, name: str) -> web.Response:
        await self._properties(name)
        left = iter((await self._segments.attributes(name)).items())
        members: list[str] = []
        while some := dict(islice(left, _SHOWN_PER_TURN)):
            members.append(json.dumps(attributes_as_json(some))[1:-1])
            await asyncio.sleep(0)
        return json_bytes_response(200, f"{{{', '.join(members)}}}".encode())

    async def _update_attributes(self, request: web.BaseRequest, name: str) -> web.Response:
        asked = await self._bodies.read_json_object(request, optional=("updates",))
        updates = updates_of_json(asked.get("updates"))
        if not updates:
            raise bad_request('a change of attributes needs {"updates": [...]}')
        await self._properties(name)
        await self._segments.update_attributes(name, updates)
        return json_response(200, {"updated": len(updates)})

    async def _delete(self, _request: web.BaseRequest, name: str) -> web.Response:
        await self._directory.delete_segment(name)
        return json_response(200, {"deleted": name})


def properties_as_json(properties: SegmentProperties) -> dict[str, object]:
    """One segment's metadata; sizes in bytes."""
    return {
        "name": properties.name,
        "segment_id": properties.segment_id,
        "container": properties.container_id,
        "start_offset": properties.start_offset,
        "length": properties.length,
        "storage_length": properties.storage_length,
        "sealed": properties.sealed,
        "sealed_in_storage": properties.sealed_in_storage,
        "last_modified_ms": properties.last_modified_ms,
        "active": properties.active,
        "content_type": configuration_of(properties.core_attributes).content_type,
    }


def attributes_as_json(
    attributes: Mapping[AttributeKey, AttributeValue],
) -> dict[str, int | str]:
    """For an answer."""
    return {
        text_of_bytes(key): text_of_bytes(value) if isinstance(value, bytes) else value
        for key, value in attributes.items()
    }


def text_of_bytes(value: bytes) -> str:
    """The text form; bytes_of_text() gives the bytes back."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return _HEX_MARK + value.hex()
    return _HEX_MARK + value.hex() if text.startswith(_HEX_MARK) else text


def updates_of_json(updates: object) -> list[AttributeUpdate]:
    """Read a parsed JSON array of updates; None gives none. Raises InvalidRequestError."""
    if updates is None:
        return []
    if not isinstance(updates, list):
        raise InvalidRequestError("attribute updates are not a JSON array")
    if len(updates) > UPDATES_MAX:
        raise InvalidRequestError(
            f"too many attribute updates count={len(updates)} count_max={UPDATES_MAX}"
        )
    return [_parse_update(update) for update in updates]


def _parse_update(update: object) -> AttributeUpdate:
    if not isinstance(update, dict) or not isinstance(update.get("key"), str):
        raise InvalidRequestError('an attribute update is an object with a text "key"')
    unknown = sorted(set(update) - _UPDATE_FIELDS)
    if unknown:
        raise InvalidRequestError(f"attribute update has unknown fields fields={unknown}")
    key = bytes_of_text(update["key"])
    if not 1 <= len(key) <= ATTRIBUTE_KEY_BYTES_MAX:
        raise InvalidRequestError(
            f"attribute key has a bad length bytes={len(key)} bytes_max={ATTRIBUTE_KEY_BYTES_MAX}"
        )
    if is_reserved_key(key):
        raise InvalidRequestError(f"attribute belongs to the stream protocol key={update['key']!r}")
    if is_core_attribute(AttributeKey(key)):
        raise InvalidRequestError(
            "a core attribute is set by the store itself; keys of 16 bytes that begin with"
            f" hex:{CORE_ATTRIBUTE_PREFIX.hex()} are not for requests to set key={update['key']!r}"
        )
    type_name = update.get("type", "replace")
    try:
        update_type = AttributeUpdateType[str(type_name).upper()]
    except KeyError as error:
        raise InvalidRequestError(f"no such attribute update type={type_name!r}") from error
    value = _parse_attribute_value(update.get("value"))
    if update_type is AttributeUpdateType.ACCUMULATE and not isinstance(value, int):
        raise InvalidRequestError("accumulate needs a number")
    if update_type is AttributeUpdateType.REPLACE_IF_GREATER and not isinstance(value, int):
        raise InvalidRequestError("replace_if_greater needs a number")
    comparison = _parse_attribute_value(update.get("comparison"))
    return AttributeUpdate(AttributeKey(key), value, update_type, comparison)


def _parse_attribute_value(value: object) -> AttributeValue | None:
    if value is None:
        return None
    if isinstance(value, str):
        encoded = bytes_of_text(value)
        if len(encoded) > ATTRIBUTE_VALUE_BYTES_MAX:
            raise InvalidRequestError(
                f"attribute value is too long bytes={len(encoded)}"
                f" bytes_max={ATTRIBUTE_VALUE_BYTES_MAX}"
            )
        return encoded
    if isinstance(value, int) and not isinstance(value, bool):
        if _ATTRIBUTE_NUMBER_MIN <= value <= _ATTRIBUTE_NUMBER_MAX:
            return value
        raise InvalidRequestError(f"attribute number does not fit 64 bits value={value}")
    raise InvalidRequestError("an attribute value is a number, text or null")


def bytes_of_text(text: str) -> bytes:
    """Raises InvalidRequestError for broken hexadecimal digits."""
    try:
        return (
            bytes.fromhex(text[len(_HEX_MARK) :]) if text.startswith(_HEX_MARK) else text.encode()
        )
    except ValueError as error:
        raise InvalidRequestError(f"attribute text is malformed value={text[:64]!r}") from error
