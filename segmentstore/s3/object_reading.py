"""GetObject, HeadObject and GetObjectAttributes.

Invariants:

- An answer is one version from its first byte to its last, whatever takes its place meanwhile: what does not fit into
  the first window is read from the version that is held open. What changes before the first byte is sent is looked up
  again.
- An answer holds at most two windows: the one that is sent, and the one that is read meanwhile. All of them together
  hold no more than their budget.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass

from aiohttp import web

from segmentstore.contracts.errors import ObjectNotFoundError, SegmentStoreError
from segmentstore.s3.buckets import Buckets
from segmentstore.s3.checksums import checksum_tag
from segmentstore.s3.errors import S3Error
from segmentstore.s3.object_metadata import (
    PartOfObject,
    checksum_type,
    checksums_of,
    object_headers,
    part_of_object,
    version_text,
)
from segmentstore.s3.request import (
    Call,
    check_read,
    etags,
    parse_range,
    requested_part_number,
    resolve_range,
)
from segmentstore.s3.request_body import MemoryBudget
from segmentstore.s3.request_target import object_key, stored_version_id
from segmentstore.s3.settings import EndpointSettings
from segmentstore.s3.xml_documents import branch, document, http_date, leaf, xml_response
from tier2.volumes.engine import OpenedObject, VolumeEngine
from tier2.volumes.objects import IndexRecord, StoredObject

_LOGGER = logging.getLogger(__name__)
_ATTRIBUTES_HEADER = "x-amz-object-attributes"
_LOOKS_MAX = 20
"""Each finds another object than the one before it."""


def requested_version(query: Mapping[str, str]) -> str | None:
    """The engine's name of the version that a query names, if it names one. Raises S3Error."""
    text = query.get("versionId")
    if text is None:
        return None
    if not text:
        raise S3Error("InvalidArgument", "Version id cannot be the empty string")
    return stored_version_id(text)


class ObjectReadHandlers:
    """The verbs that show an object."""

    def __init__(
        self,
        *,
        engine: VolumeEngine,
        buckets: Buckets,
        budget: MemoryBudget,
        settings: EndpointSettings,
    ) -> None:
        """`budget`: of what answers hold."""
        self._budget = budget
        self._engine = engine
        self._buckets = buckets
        self._settings = settings

    async def head(self, call: Call) -> web.StreamResponse:
        versioned = bool(self._buckets.get(call.bucket).versioning)
        record = await self.find(call)
        check_read(call, record)
        asked = self._asked_bytes(call, record)
        headers = object_headers(record, call, versioned=versioned, part=asked.part)
        headers.update(asked.content_range(record))
        headers["Content-Length"] = str(asked.end - asked.start)
        return web.Response(status=asked.status, headers=headers)

    async def attributes(self, call: Call) -> web.StreamResponse:
        """What HeadObject says, as a document of those facts that are asked for."""
        versioned = bool(self._buckets.get(call.bucket).versioning)
        named = (value for name, value in call.own_headers() if name == _ATTRIBUTES_HEADER)
        asked = {each.strip() for value in named for each in value.split(",")}
        record = await self.find(call)
        checksums, count = checksums_of(record), part_of_object(record, 1).count
        # The checksum of checksums stands here without the count of the parts.
        shown = [
            leaf(checksum_tag(name), value.partition("-")[0]) for name, value in checksums.items()
        ]
        facts = {
            "ETag": leaf("ETag", record.etag),
            "Checksum": branch("Checksum", *shown, leaf("ChecksumType", checksum_type(checksums)))
            if shown
            else "",
            "ObjectParts": branch("ObjectParts", leaf("PartsCount", count)) if count else "",
            "StorageClass": leaf("StorageClass", "STANDARD"),
            "ObjectSize": leaf("ObjectSize", record.size),
        }
        if not asked or not asked <= set(facts):
            raise S3Error(
                "InvalidArgument", f"{_ATTRIBUTES_HEADER} names some of {', '.join(facts)}."
            )
        headers = {"Last-Modified": http_date(record.created_ms)}
        if versioned:
            headers["x-amz-version-id"] = version_text(record)
        rows = (fact for name, fact in facts.items() if name in asked)
        return xml_response(document("GetObjectAttributesResponse", *rows), headers=headers)

    async def get(self, call: Call) -> web.StreamResponse:
        for _ in range(_LOOKS_MAX):
            with suppress(_Overtaken):
                return await self._answer(call)
        raise S3Error("OperationAborted", "The object is overwritten faster than it can be read.")

    async def _answer(self, call: Call) -> web.StreamResponse:
        """Raises S3Error, and _Overtaken while nothing is sent."""
        versioned = bool(self._buckets.get(call.bucket).versioning)
        if _is_plain(call):
            # The whole of most objects comes with one look.
            first = await self._read(call, 0, self._settings.first_window_bytes)
            record = first.record
            asked = _AskedBytes(0, record.size)
        else:
            record = await self.find(call)
            check_read(call, record)
            asked = self._asked_bytes(call, record)
            count = min(asked.end - asked.start, self._settings.first_window_bytes)
            first = await self._read(call, asked.start, count)
            _require_same(record, first.record)
        start, end, status = asked.start, asked.end, asked.status
        headers = object_headers(record, call, versioned=versioned, part=asked.part)
        headers.update(asked.content_range(record))
        if len(first.content) == end - start:
            return web.Response(status=status, headers=headers, body=first.content)
        headers["Content-Length"] = str(end - start)
        held = min(end - start, 2 * self._settings.window_bytes)
        async with self._budget.hold(held), self._opened(call) as opened:
            _require_same(record, opened.record)
            return await self._stream(call, status, headers, first, opened, (start, end))

    async def find(self, call: Call) -> IndexRecord:
        """The version that is asked for. Raises S3Error."""
        version_id = requested_version(call.query)
        key = object_key(call.bucket, call.target.key)
        try:
            record = await self._engine.head(key, version_id=version_id)
        except ObjectNotFoundError:
            raise await self._missing(call, key, version_id) from None
        _refuse_marker(record)
        return record

    async def _read(self, call: Call, start: int, length: int) -> StoredObject:
        """Raises S3Error."""
        version_id = requested_version(call.query)
        key = object_key(call.bucket, call.target.key)
        try:
            read = await self._engine.get_range(key, start, length, version_id=version_id)
        except ObjectNotFoundError:
            raise await self._missing(call, key, version_id) from None
        _refuse_marker(read.record)
        return read

    @asynccontextmanager
    async def _opened(self, call: Call) -> AsyncIterator[OpenedObject]:
        """What is there now. Raises _Overtaken if it went."""
        version_id = requested_version(call.query)
        key = object_key(call.bucket, call.target.key)
        async with AsyncExitStack() as stack:
            try:
                opened = await stack.enter_async_context(
                    self._engine.opened(key, version_id=version_id)
                )
            except ObjectNotFoundError:
                raise _Overtaken from None
            yield opened

    async def _missing(self, call: Call, key: bytes, version_id: str | None) -> S3Error:
        if version_id is not None:
            return S3Error("NoSuchVersion", "The specified version does not exist.")
        headers = {}
        if self._buckets.get(call.bucket).versioning:
            # One row, not all versions: keys that are put and deleted again and again have thousands.
            for found in await self._engine.list(key, limit=1, markers=True):
                if found.key == key and found.record.delete_marker:
                    headers = {
                        "x-amz-delete-marker": "true",
                        "x-amz-version-id": version_text(found.record),
                    }
        return S3Error("NoSuchKey", "The specified key does not exist.", headers)

    def _asked_bytes(self, call: Call, record: IndexRecord) -> "_AskedBytes":
        """By the number of a part, by a range, or all of them. Raises S3Error."""
        if "partNumber" in call.query:
            if call.header("Range") is not None:
                raise S3Error(
                    "InvalidRequest",
                    "Cannot specify both Range header and partNumber query parameter",
                )
            number = requested_part_number(call, self._settings.parts_max)
            part = part_of_object(record, number)
            # No Content-Range could say where a part without bytes is.
            return _AskedBytes(part.start, part.end, is_partial=part.start < part.end, part=part)
        if_range = call.header("If-Range")
        same_date = if_range == http_date(record.created_ms)
        if if_range is None or same_date or record.etag in etags(if_range):
            asked = parse_range(call.header("Range"))
            # The end of an object without bytes is all of it, though no Content-Range could say so.
            is_empty_end = asked is not None and asked[0] is None and asked[1] and not record.size
            if asked is not None and not is_empty_end:
                return _AskedBytes(*resolve_range(asked, record.size), is_partial=True)
        return _AskedBytes(0, record.size)

    async def _stream(
        self,
        call: Call,
        status: int,
        headers: Mapping[str, str],
        first: StoredObject,
        opened: OpenedObject,
        bounds: tuple[int, int],
    ) -> web.StreamResponse:
        start, end = bounds
        response = web.StreamResponse(status=status, headers=headers)
        await response.prepare(call.request)
        window, position = first.content, start + len(first.content)
        failures: list[Exception] = []
        try:
            while position < end:
                length = min(end - position, self._settings.window_bytes)
                async with asyncio.TaskGroup() as tasks:
                    reading = tasks.create_task(opened.read(position, length))
                    async with asyncio.timeout(self._settings.window_seconds_max):
                        await response.write(window)
                window = reading.result()
                position += len(window)
            async with asyncio.timeout(self._settings.window_seconds_max):
                await response.write(window)
        except* (SegmentStoreError, OSError) as group:
            failures += group.exceptions
        if failures:
            # The status is out: a body that is too short is the one way left to say that it is not whole.
            _LOGGER.info("answer cut short path=%.200r why=%s", call.target.raw_path, failures[0])
            if call.request.transport is not None:
                call.request.transport.abort()
            return response
        await response.write_eof()
        return response


def _is_plain(call: Call) -> bool:
    """Whether all of an object is asked for, whatever it is."""
    return (
        "partNumber" not in call.query
        and parse_range(call.header("Range")) is None
        and not any(name.lower().startswith("if-") for name in call.request.headers)
    )


@dataclass(frozen=True, slots=True)
class _AskedBytes:
    """[start, end) of an object."""

    start: int
    end: int
    is_partial: bool = False
    """Whether that is what was asked for, though it may be all of them."""
    part: PartOfObject | None = None

    @property
    def status(self) -> int:
        return 206 if self.is_partial else 200

    def content_range(self, record: IndexRecord) -> dict[str, str]:
        """The header of that name."""
        if not self.is_partial:
            return {}
        return {"Content-Range": f"bytes {self.start}-{self.end - 1}/{record.size}"}


class _Overtaken(Exception):  # noqa: N818 - no error: another look finds what is there
    """Another version has taken the place of the one that was found, and nothing is sent yet."""


def _require_same(expected: IndexRecord, found: IndexRecord) -> None:
    if found.sequence != expected.sequence:
        raise _Overtaken


def _refuse_marker(record: IndexRecord) -> None:
    if record.delete_marker:
        raise S3Error(
            "MethodNotAllowed",
            "The version is a delete marker.",
            {"x-amz-delete-marker": "true", "x-amz-version-id": version_text(record)},
        )
