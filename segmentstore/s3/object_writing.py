"""PutObject, DeleteObject and DeleteObjects."""

import asyncio
from dataclasses import dataclass

from aiohttp import web

from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.runtime.clock import WallClock
from segmentstore.s3.body_reader import BodyReader
from segmentstore.s3.bucket_record import BucketRecord
from segmentstore.s3.buckets import Buckets
from segmentstore.s3.call import Call
from segmentstore.s3.conditions import etags, write_condition
from segmentstore.s3.failures import S3Failure, failure_of, not_implemented
from segmentstore.s3.object_description import (
    checksum_headers,
    description_of_request,
    version_text,
)
from segmentstore.s3.object_keys import object_key
from segmentstore.s3.object_lock import bypasses_governance, lock_of_put
from segmentstore.s3.object_reading import asked_version
from segmentstore.s3.request_target import KEY_BYTES_MAX, check_key
from segmentstore.s3.responses import xml_response
from segmentstore.s3.settings import EndpointSettings
from segmentstore.s3.versions import VersionWriter
from segmentstore.s3.xml_reading import Element, parse
from segmentstore.s3.xml_writing import branch, document, leaf
from tier2.volumes.index_record import IndexRecord
from tier2.volumes.mutations import ALWAYS, Condition

_UNKEPT_GUARDS = ("Size", "LastModifiedTime")


@dataclass(frozen=True, slots=True)
class _Deletion:
    key: str
    version_id: str | None
    condition: Condition
    unkept: str = ""
    """A guard that this endpoint does not have."""


class ObjectWriting:
    """The verbs that store and remove."""

    def __init__(
        self,
        *,
        versions: VersionWriter,
        buckets: Buckets,
        bodies: BodyReader,
        wall_clock: WallClock,
        settings: EndpointSettings,
    ) -> None:
        self._versions = versions
        self._buckets = buckets
        self._bodies = bodies
        self._wall_clock = wall_clock
        self._settings = settings

    async def put(self, call: Call) -> web.StreamResponse:
        settings = self._settings
        async with self._buckets.writing(call.bucket) as bucket:
            lock = lock_of_put(call, bucket, self._wall_clock)
            condition = write_condition(call)
            description = description_of_request(
                call, metadata_bytes_max=settings.metadata_bytes_max
            )
            async with self._bodies.read(call, settings.object_bytes_max) as body:
                record = await self._versions.put(
                    bucket,
                    object_key(call.bucket, call.target.key),
                    body.buffers,
                    body.digest,
                    content_type=description.content_type,
                    metadata=description.with_checksums(body.checksums),
                    etag=body.md5.hex(),
                    lock=lock,
                    condition=condition,
                )
        headers = {"ETag": f'"{record.etag}"', **checksum_headers(body.checksums)}
        if bucket.versioning:
            headers["x-amz-version-id"] = version_text(record)
        return web.Response(headers=headers)

    async def delete(self, call: Call) -> web.StreamResponse:
        match_ = call.header("If-Match")
        deletion = _Deletion(
            key=call.target.key,
            version_id=asked_version(call.query),
            condition=_condition(None if match_ is None else etags(match_)[0]),
        )
        async with self._buckets.writing(call.bucket) as bucket:
            record = await self._delete(call, bucket, deletion)
        headers = {}
        if bucket.versioning and record is not None:
            headers["x-amz-version-id"] = version_text(record)
            if record.delete_marker:
                headers["x-amz-delete-marker"] = "true"
        return web.Response(status=204, headers=headers)

    async def delete_many(self, call: Call) -> web.StreamResponse:
        async with self._bodies.read(call, self._settings.document_bytes_max) as body:
            order = parse(body.joined(), "Delete")
        deletions = [_deletion(element) for element in order.all("Object")]
        if not 0 < len(deletions) <= self._settings.deletions_max:
            raise S3Failure(
                "MalformedXML", f"A Delete names 1 to {self._settings.deletions_max} objects."
            )
        async with self._buckets.writing(call.bucket) as bucket:
            # All at once: the engine makes groups of them, and waits for the disk once a group.
            rows = await asyncio.gather(
                *(self._delete_one(call, bucket, deletion) for deletion in deletions)
            )
        quiet = order.text_of("Quiet").lower() == "true"
        shown = (row for row in rows if not quiet or row.startswith("<Error>"))
        return xml_response(document("DeleteResult", *shown))

    async def _delete_one(self, call: Call, bucket: BucketRecord, deletion: _Deletion) -> str:
        named = [leaf("Key", deletion.key)]
        if deletion.version_id is not None:
            named.append(leaf("VersionId", deletion.version_id or "null"))
        try:
            check_key(deletion.key)
            if deletion.unkept:
                raise not_implemented(f"Deleting by {deletion.unkept}")
            record = await self._delete(call, bucket, deletion)
        except (S3Failure, SegmentStoreError) as error:
            failure = error if isinstance(error, S3Failure) else failure_of(error)
            facts = (leaf("Code", failure.code), leaf("Message", failure.message))
            return branch("Error", *named, *facts)
        if record is not None and record.delete_marker:
            named.append(leaf("DeleteMarker", True))
            named.append(leaf("DeleteMarkerVersionId", version_text(record)))
        return branch("Deleted", *named)

    async def _delete(
        self, call: Call, bucket: BucketRecord, deletion: _Deletion
    ) -> IndexRecord | None:
        return await self._versions.delete(
            bucket,
            object_key(call.bucket, deletion.key),
            version_id=deletion.version_id,
            condition=deletion.condition,
            bypass_governance=bypasses_governance(call),
        )


def _condition(etag: str | None) -> Condition:
    if etag is None:
        return ALWAYS
    return Condition(present=True) if etag == "*" else Condition(etag=etag)


def _deletion(element: Element) -> _Deletion:
    key_element = element.find("Key")
    key = "" if key_element is None else key_element.text
    if not 0 < len(key.encode()) <= KEY_BYTES_MAX:
        raise S3Failure("MalformedXML", f"A key has 1 to {KEY_BYTES_MAX} bytes.")
    version = element.text_of("VersionId") or None
    return _Deletion(
        key=key,
        version_id="" if version == "null" else version,
        condition=_condition(element.text_of("ETag").strip('"') or None),
        unkept=next((name for name in _UNKEPT_GUARDS if element.text_of(name)), ""),
    )
