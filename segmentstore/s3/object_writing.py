"""PutObject, DeleteObject and DeleteObjects: new versions and delete markers, by the versioning of their bucket.

    never enabled   one version without an id; a delete removes it
    Enabled         every put and every marker has an id of its own; nothing is replaced
    Suspended       puts and markers have the id "null" (the engine's empty id) and replace what has it

All of it is judged at the commit, in one change each (tier2/volumes/write_batch.py).
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from random import Random

from aiohttp import web

from segmentstore.contracts.errors import ObjectChangedError, ObjectNotFoundError, SegmentStoreError
from segmentstore.runtime.clock import WallClock
from segmentstore.s3.buckets import ENABLED, BucketRecord, Buckets
from segmentstore.s3.errors import S3Error, not_implemented, s3_error_of
from segmentstore.s3.object_lock import bypasses_governance, requested_lock
from segmentstore.s3.object_metadata import (
    ObjectDescription,
    checksum_headers,
    description_of_request,
    version_text,
)
from segmentstore.s3.object_reading import requested_version
from segmentstore.s3.request import Call, condition_on_etag, delete_condition, write_condition
from segmentstore.s3.request_body import Body, BodyReader, CheckedBody
from segmentstore.s3.request_target import (
    S3_KEY_BYTES_MAX,
    check_key,
    object_key,
    shown_version_id,
    stored_version_id,
)
from segmentstore.s3.settings import EndpointSettings
from segmentstore.s3.xml_documents import Element, branch, document, leaf, xml_response
from tier2.volumes.engine import VolumeEngine
from tier2.volumes.multipart import IncomingPart, MultipartUploads, Part, Upload
from tier2.volumes.objects import Condition, Description, IndexRecord

_UNKEPT_GUARDS = ("Size", "LastModifiedTime")
_NULL_VERSION_ID = ""


class VersionWriter:
    """Puts and deletes in the engine."""

    def __init__(self, *, engine: VolumeEngine, uploads: MultipartUploads, random: Random) -> None:
        """`random` makes version ids: system_random() in production."""
        self._engine = engine
        self._uploads = uploads
        self._random = random

    async def put(
        self,
        key: bytes,
        body: Body,
        description: Description,
        *,
        condition: Condition,
    ) -> IndexRecord:
        """A body that is held.

        Raises S3Error (NoSuchKey for If-Match without an object), and what the engine raises.
        """
        async with self._told_if_absent(key):
            return await self._engine.put_digested(
                key, body.buffers, body.digest, description, condition=condition
            )

    async def put_incoming(
        self,
        key: bytes,
        incoming: IncomingPart,
        body: CheckedBody,
        described: Callable[[], Description],
        *,
        condition: Condition,
    ) -> IndexRecord:
        """A body that came into a file. `described` is asked when the bytes are stored: that may take minutes.

        Raises as `put`, and what `described` raises.
        """
        async with self._told_if_absent(key):
            return await self._uploads.put_incoming(
                key, incoming, body.digest, described, condition=condition
            )

    async def copy(
        self,
        key: bytes,
        source_key: bytes,
        source: IndexRecord,
        description: Description,
        *,
        condition: Condition,
    ) -> IndexRecord:
        """The bytes of another version. Raises as `put`, and ObjectNotFoundError if they are gone."""
        async with self._told_if_absent(key):
            return await self._engine.copy(
                key, source_key, source, description, condition=condition
            )

    async def put_parts(
        self,
        bucket: Callable[[], BucketRecord],
        upload: Upload,
        parts: Sequence[Part],
        *,
        metadata: Mapping[str, str],
        etag: str,
        condition: Condition,
    ) -> IndexRecord:
        """The upload is completed, of these parts; a version of it has its id.

        `bucket` is asked when the parts are read: that may take minutes.

        Raises as `put`, and what `MultipartUploads.complete` raises.
        """
        description = replace(
            upload.record.description,
            metadata=metadata,
            etag=etag,
        )
        async with self._told_if_absent(upload.record.key):
            return await self._uploads.complete(
                upload,
                parts,
                description,
                condition=condition,
                is_version=lambda: bucket().versioning == ENABLED,
            )

    async def delete(
        self,
        bucket: BucketRecord,
        key: bytes,
        *,
        version_id: str | None,
        condition: Condition,
        bypass_governance: bool,
    ) -> IndexRecord | None:
        """The marker that was made, the version that was removed, or None if there was nothing."""
        if version_id is not None or not bucket.versioning:
            return await self._engine.delete(
                key,
                version_id=version_id,
                condition=condition,
                bypass_governance=bypass_governance,
            )
        return await self._engine.delete(
            key,
            marker_id=self._new_id() if bucket.versioning == ENABLED else _NULL_VERSION_ID,
            condition=condition,
            bypass_governance=bypass_governance,
        )

    @asynccontextmanager
    async def _told_if_absent(self, key: bytes) -> AsyncIterator[None]:
        """A change of the key in the block: if its condition fails for want of an object, that is said."""
        try:
            yield
        except ObjectChangedError:
            try:
                await self._engine.head(key)
            except ObjectNotFoundError:
                raise S3Error("NoSuchKey", "The specified key does not exist.") from None
            raise

    def id_of_put(self, bucket: BucketRecord) -> str | None:
        """Of the version that a put makes."""
        return self._new_id() if bucket.versioning == ENABLED else None

    def _new_id(self) -> str:
        return self._random.randbytes(16).hex()


@dataclass(frozen=True, slots=True)
class _Deletion:
    key: str
    version_id: str | None
    condition: Condition
    unkept: str = ""
    """A guard that this endpoint does not have."""


class ObjectWriteHandlers:
    """The verbs that store and remove."""

    def __init__(
        self,
        *,
        versions: VersionWriter,
        uploads: MultipartUploads,
        buckets: Buckets,
        bodies: BodyReader,
        wall_clock: WallClock,
        settings: EndpointSettings,
    ) -> None:
        self._versions = versions
        self._uploads = uploads
        self._buckets = buckets
        self._bodies = bodies
        self._wall_clock = wall_clock
        self._settings = settings

    async def put(self, call: Call) -> web.StreamResponse:
        settings = self._settings
        async with self._buckets.writing(call.bucket) as bucket:
            # What cannot be is refused before the body is asked for.
            requested_lock(call, bucket, self._wall_clock)
            condition = write_condition(call)
            kept = description_of_request(call, metadata_bytes_max=settings.metadata_bytes_max)
            key = object_key(call.bucket, call.target.key)
            body: CheckedBody
            if self._bodies.is_held(call):
                async with self._bodies.read(call, settings.object_bytes_max) as body:
                    description = self._description(call, kept, body)
                    record = await self._versions.put(key, body, description, condition=condition)
            else:
                async with self._uploads.incoming() as incoming:
                    body = await self._bodies.stream(
                        call, settings.object_bytes_max, incoming.append
                    )
                    described = partial(self._description, call, kept, body)
                    record = await self._versions.put_incoming(
                        key, incoming, body, described, condition=condition
                    )
        headers = {"ETag": f'"{record.etag}"', **checksum_headers(body.checksums)}
        if self._buckets.get(call.bucket).versioning:
            headers["x-amz-version-id"] = version_text(record)
        return web.Response(headers=headers)

    def _description(self, call: Call, kept: ObjectDescription, body: CheckedBody) -> Description:
        """Of what was sent. Raises S3Error."""
        # As the bucket is now, not as it was when the body began: a change that was answered meanwhile counts.
        bucket = self._buckets.get(call.bucket)
        lock = requested_lock(call, bucket, self._wall_clock)
        return Description(
            content_type=kept.content_type,
            metadata=kept.with_checksums(body.checksums),
            etag=body.md5.hex(),
            version_id=self._versions.id_of_put(bucket),
            retention=lock.retention,
            legal_hold=lock.legal_hold,
        )

    async def delete(self, call: Call) -> web.StreamResponse:
        deletion = _Deletion(
            key=call.target.key,
            version_id=requested_version(call.query),
            condition=delete_condition(call),
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
        order = await self._bodies.read_document(call, "Delete")
        deletions = [_requested_deletion(element) for element in order.all("Object")]
        if not 0 < len(deletions) <= self._settings.deletions_max:
            raise S3Error(
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
            named.append(leaf("VersionId", shown_version_id(deletion.version_id)))
        try:
            check_key(deletion.key)
            if deletion.unkept:
                raise not_implemented(f"Deleting by {deletion.unkept}")
            record = await self._delete(call, bucket, deletion)
        except (S3Error, SegmentStoreError) as error:
            failure = error if isinstance(error, S3Error) else s3_error_of(error)
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


def _requested_deletion(element: Element) -> _Deletion:
    key_element = element.find("Key")
    key = "" if key_element is None else key_element.text
    if not 0 < len(key.encode()) <= S3_KEY_BYTES_MAX:
        raise S3Error("MalformedXML", f"A key has 1 to {S3_KEY_BYTES_MAX} bytes.")
    version = element.text_of("VersionId") or None
    return _Deletion(
        key=key,
        version_id=None if version is None else stored_version_id(version),
        condition=condition_on_etag(element.text_of("ETag") or None),
        unkept=next((name for name in _UNKEPT_GUARDS if element.text_of(name)), ""),
    )
