"""CopyObject, and the source of UploadPartCopy. The engine keeps equal bytes once, so a copy costs a record.

Invariant: of a source no more than a window is in memory, however long it is.
"""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar
from urllib.parse import unquote

from aiohttp import web

from segmentstore.contracts.errors import ObjectNotFoundError
from segmentstore.runtime.clock import WallClock
from segmentstore.s3.buckets import Buckets
from segmentstore.s3.checksums import ALGORITHMS, checksum_tag, text_of
from segmentstore.s3.errors import S3Error
from segmentstore.s3.object_lock import requested_lock
from segmentstore.s3.object_metadata import (
    ObjectDescription,
    checksum_type,
    checksums_of,
    description_of_record,
    description_of_request,
    version_text,
)
from segmentstore.s3.object_writing import VersionWriter
from segmentstore.s3.request import (
    Call,
    check_copy_source,
    parse_range,
    requested_algorithm,
    resolve_range,
    write_condition,
)
from segmentstore.s3.request_body import MemoryBudget
from segmentstore.s3.request_target import checked_key, decode_text, object_key, stored_version_id
from segmentstore.s3.settings import EndpointSettings
from segmentstore.s3.xml_documents import document, iso_date, leaf, xml_response
from tier2.volumes.engine import VolumeEngine
from tier2.volumes.objects import Description, IndexRecord, UploadNotFoundError

_SOURCE = "x-amz-copy-source"
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class CopySource:
    """The version that is copied from."""

    bucket: str
    key: str
    version_id: str | None
    record: IndexRecord


class ObjectCopyHandlers:
    """Copies within the endpoint."""

    def __init__(
        self,
        *,
        engine: VolumeEngine,
        versions: VersionWriter,
        buckets: Buckets,
        budget: MemoryBudget,
        wall_clock: WallClock,
        executor: Executor | None,
        settings: EndpointSettings,
    ) -> None:
        self._engine = engine
        self._versions = versions
        self._buckets = buckets
        self._budget = budget
        self._wall_clock = wall_clock
        self._executor = executor
        self._settings = settings

    async def copy(self, call: Call) -> web.StreamResponse:
        async with self._buckets.writing(call.bucket) as bucket:
            requested_lock(call, bucket, self._wall_clock)
            condition = write_condition(call)
            source = await self.source(call)
            kept = self._description(call, source)
            self.require_size(source.record.size)
            checksums = await self._checksums(call, source)
            # As the bucket is now, not as it was when the copy began.
            bucket = self._buckets.get(call.bucket)
            lock = requested_lock(call, bucket, self._wall_clock)
            description = Description(
                content_type=kept.content_type,
                metadata=kept.with_checksums(checksums),
                etag=source.record.etag,
                version_id=self._versions.id_of_put(bucket),
                retention=lock.retention,
                legal_hold=lock.legal_hold,
            )
            try:
                record = await self._versions.copy(
                    object_key(call.bucket, call.target.key),
                    object_key(source.bucket, source.key),
                    source.record,
                    description,
                    condition=condition,
                )
            except ObjectNotFoundError:
                raise _source_changed() from None
        headers = self.source_headers(source)
        if bucket.versioning:
            headers["x-amz-version-id"] = version_text(record)
        result = document(
            "CopyObjectResult",
            leaf("LastModified", iso_date(record.created_ms)),
            leaf("ETag", f'"{record.etag}"'),
            *(leaf(checksum_tag(name), value) for name, value in checksums.items()),
            *([leaf("ChecksumType", checksum_type(checksums))] if checksums else []),
        )
        return xml_response(result, headers=headers)

    async def source(self, call: Call) -> CopySource:
        """Of x-amz-copy-source, with its conditions checked. Raises S3Error."""
        path, _, query = (call.header(_SOURCE) or "").partition("?versionId=")
        # Decoded as a whole and once: some clients encode the slash between bucket and key as well, and a key that is
        # decoded twice is another key.
        bucket, _, key = decode_text(path).removeprefix("/").partition("/")
        if not bucket or not key:
            raise S3Error("InvalidArgument", f"{_SOURCE} has to be BUCKET/KEY.")
        checked_key(key)
        self._buckets.get(bucket)
        version_id = unquote(query) or None
        engine_version = None if version_id is None else stored_version_id(version_id)
        try:
            record = await self._engine.head(object_key(bucket, key), version_id=engine_version)
        except ObjectNotFoundError:
            code = "NoSuchKey" if version_id is None else "NoSuchVersion"
            raise S3Error(code, "The source of the copy does not exist.") from None
        if record.delete_marker:
            raise S3Error("InvalidRequest", "The source of a copy cannot be a delete marker.")
        check_copy_source(call, record)
        return CopySource(bucket, key, engine_version, record)

    async def read(
        self,
        source: CopySource,
        start: int,
        end: int,
        take: Callable[[bytes], Awaitable[None]],
    ) -> None:
        """`take` gets the bytes [start, end) of the source, a window at a time.

        Raises S3Error if it changed since it was found, and what `take` raises.
        """
        record, window = source.record, self._settings.window_bytes
        key = object_key(source.bucket, source.key)
        async with self._budget.hold(min(window, end - start)):
            try:
                # By its own id, also by the empty one: it is copied although a version with another id takes its place.
                async with self._engine.opened(key, version_id=record.version_id) as opened:
                    if opened.record.sequence != record.sequence:
                        raise _source_changed()
                    while start < end:
                        content = await opened.read(start, min(window, end - start))
                        start += len(content)
                        await take(content)
            except UploadNotFoundError:
                raise
            except ObjectNotFoundError:
                raise _source_changed() from None

    async def aside(self, call: Callable[[], _Result]) -> _Result:
        """Beside the loop, where bodies are hashed."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, call)

    async def _checksums(self, call: Call, source: CopySource) -> dict[str, str]:
        """Those of the source, or the one that is asked for. Raises S3Error."""
        algorithm = requested_algorithm(call)
        if not algorithm:
            return checksums_of(source.record)
        running = ALGORITHMS[algorithm]()

        async def take(content: bytes) -> None:
            await self.aside(partial(running.update, content))

        await self.read(source, 0, source.record.size, take)
        return {algorithm: text_of(running)}

    def range_of_part(self, call: Call, source: CopySource) -> tuple[int, int]:
        """[start, end) of an UploadPartCopy. Raises S3Error."""
        text = call.header("x-amz-copy-source-range")
        size = source.record.size
        if text is None:
            start, end = 0, size
        else:
            asked = parse_range(text)
            if asked is None or None in asked:
                raise S3Error("InvalidArgument", "The range has to be bytes=FIRST-LAST.")
            first, last = asked
            if last is not None and last >= size:
                # A read may end where the object ends. A part that is shorter than asked for makes another object.
                raise S3Error(
                    "InvalidArgument",
                    f"The range {text} is not in the source, which has {size} bytes.",
                )
            start, end = resolve_range((first, last), size)
        self.require_size(end - start)
        return start, end

    def require_size(self, size: int) -> None:
        """Raises S3Error (EntityTooLarge)."""
        limit = self._settings.object_bytes_max
        if size > limit:
            raise S3Error(
                "EntityTooLarge",
                f"At most {limit} bytes are copied in one request: use a multipart upload whose "
                f"parts are copied from ranges of the source.",
            )

    @staticmethod
    def source_headers(source: CopySource) -> dict[str, str]:
        """What the answer says of the source."""
        if not source.record.versioned:
            return {}
        return {"x-amz-copy-source-version-id": version_text(source.record)}

    def _description(self, call: Call, source: CopySource) -> ObjectDescription:
        directive = call.header("x-amz-metadata-directive") or "COPY"
        if directive not in {"COPY", "REPLACE"}:
            raise S3Error("InvalidArgument", "Unknown metadata directive.")
        if directive == "REPLACE":
            return description_of_request(
                call, metadata_bytes_max=self._settings.metadata_bytes_max
            )
        same = (source.bucket, source.key) == (call.bucket, call.target.key)
        if same and source.version_id is None:
            raise S3Error(
                "InvalidRequest",
                "This copy request is illegal because it is trying to copy an object to itself "
                "without changing the object's metadata.",
            )
        return description_of_record(source.record)


def _source_changed() -> S3Error:
    return S3Error("OperationAborted", "The source was overwritten during the copy.")
