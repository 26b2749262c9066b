"""New versions and delete markers, by the versioning of their bucket.

    never enabled   one version without an id; a delete removes it
    Enabled         every put and every marker has an id of its own; nothing is replaced
    Suspended       puts and markers have the id "null" (the engine's empty id) and replace what has it

All of it is judged by the engine at the commit, in one change each.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random

from segmentstore.contracts.errors import ObjectChangedError, ObjectNotFoundError
from segmentstore.contracts.identifiers import BufferView
from segmentstore.s3.bucket_record import ENABLED, BucketRecord
from segmentstore.s3.failures import S3Failure
from segmentstore.s3.object_lock import LockOfPut
from tier2.volumes.content import ContentDigest
from tier2.volumes.description import Description
from tier2.volumes.engine import VolumeEngine
from tier2.volumes.index_record import IndexRecord
from tier2.volumes.multipart import MultipartUploads
from tier2.volumes.mutations import Condition
from tier2.volumes.part_files import Part
from tier2.volumes.upload_record import Upload

_NULL = ""


class VersionWriter:
    """Puts and deletes in the engine."""

    def __init__(self, *, engine: VolumeEngine, uploads: MultipartUploads, random: Random) -> None:
        """`random` makes version ids: system_random() in production."""
        self._engine = engine
        self._uploads = uploads
        self._random = random

    async def put(
        self,
        bucket: BucketRecord,
        key: bytes,
        content: Sequence[BufferView],
        found: ContentDigest,
        *,
        content_type: str,
        metadata: Mapping[str, str],
        etag: str,
        lock: LockOfPut,
        condition: Condition,
    ) -> IndexRecord:
        """`found` is the digest of the content.

        Raises S3Failure (NoSuchKey for If-Match without an object), and what the engine raises.
        """

        description = Description(
            content_type=content_type,
            metadata=metadata,
            etag=etag,
            version_id=self._id_of_put(bucket),
            retention=lock.retention,
            legal_hold=lock.legal_hold,
        )
        try:
            return await self._engine.put_digested(
                key, content, found, description, condition=condition
            )
        except ObjectChangedError:
            await self._require_present(key)
            raise

    async def put_parts(
        self,
        bucket: BucketRecord,
        upload: Upload,
        parts: Sequence[Part],
        *,
        metadata: Mapping[str, str],
        etag: str,
        condition: Condition,
    ) -> IndexRecord:
        """The upload is completed, of these parts; a version of it has its id.

        Raises as `put`, and what `MultipartUploads.complete` raises.
        """
        description = replace(
            upload.record.description,
            metadata=metadata,
            etag=etag,
            version_id=upload.upload_id if bucket.versioning == ENABLED else None,
        )
        try:
            return await self._uploads.complete(upload, parts, description, condition=condition)
        except ObjectChangedError:
            await self._require_present(upload.record.key)
            raise

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
            marker_id=self._new_id() if bucket.versioning == ENABLED else _NULL,
            condition=condition,
            bypass_governance=bypass_governance,
        )

    async def _require_present(self, key: bytes) -> None:
        try:
            await self._engine.head(key)
        except ObjectNotFoundError:
            raise S3Failure("NoSuchKey", "The specified key does not exist.") from None

    def _id_of_put(self, bucket: BucketRecord) -> str | None:
        return self._new_id() if bucket.versioning == ENABLED else None

    def _new_id(self) -> str:
        return self._random.randbytes(16).hex()
