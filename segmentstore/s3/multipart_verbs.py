"""Multipart uploads: begin, send parts, copy parts, look, complete, abort."""

import hashlib
from collections.abc import Sequence
from functools import partial

from aiohttp import web

from segmentstore.runtime.clock import WallClock
from segmentstore.s3.body_reader import BodyBudget, BodyReader
from segmentstore.s3.bucket_record import BucketRecord
from segmentstore.s3.buckets import Buckets
from segmentstore.s3.call import Call
from segmentstore.s3.checksum_plan import (
    announced_plan,
    checksum_plan_of,
    object_checksums,
    require_object_checksums,
)
from segmentstore.s3.checksums import HEADER_PREFIX, checksum_tag
from segmentstore.s3.completed_upload import note_of_order, require_same_order
from segmentstore.s3.conditions import write_condition
from segmentstore.s3.failures import S3Failure
from segmentstore.s3.instants import iso_date
from segmentstore.s3.object_copying import ObjectCopying
from segmentstore.s3.object_description import (
    ObjectDescription,
    checksum_headers,
    checksum_type,
    checksums_of,
    description_of_request,
    version_text,
)
from segmentstore.s3.object_keys import object_key
from segmentstore.s3.object_lock import lock_of_put
from segmentstore.s3.responses import xml_response
from segmentstore.s3.settings import EndpointSettings
from segmentstore.s3.versions import VersionWriter
from segmentstore.s3.xml_reading import Element, parse
from segmentstore.s3.xml_writing import document, leaf
from tier2.volumes.description import Description
from tier2.volumes.index_record import IndexRecord
from tier2.volumes.multipart import MultipartUploads, UploadNotFoundError
from tier2.volumes.part_files import Part
from tier2.volumes.upload_record import Upload


class MultipartVerbs:
    """The verbs that change uploads; `upload_listing` shows them."""

    def __init__(
        self,
        *,
        uploads: MultipartUploads,
        versions: VersionWriter,
        copying: ObjectCopying,
        buckets: Buckets,
        bodies: BodyReader,
        budget: BodyBudget,
        wall_clock: WallClock,
        settings: EndpointSettings,
    ) -> None:
        self._uploads = uploads
        self._versions = versions
        self._copying = copying
        self._buckets = buckets
        self._bodies = bodies
        self._budget = budget
        self._wall_clock = wall_clock
        self._settings = settings

    async def create(self, call: Call) -> web.StreamResponse:
        async with self._buckets.writing(call.bucket) as bucket:
            lock = lock_of_put(call, bucket, self._wall_clock)
            description = description_of_request(
                call, metadata_bytes_max=self._settings.metadata_bytes_max
            )
            plan = announced_plan(call)
            upload = await self._uploads.begin(
                object_key(call.bucket, call.target.key),
                Description(
                    content_type=description.content_type,
                    metadata=description.metadata,
                    retention=lock.retention,
                    legal_hold=lock.legal_hold,
                ),
                notes=plan.notes(),
            )
        headers: dict[str, str] = {}
        if plan.algorithm:
            headers["x-amz-checksum-algorithm"] = plan.algorithm.upper()
            headers["x-amz-checksum-type"] = "COMPOSITE" if plan.composite else "FULL_OBJECT"
        result = document(
            "InitiateMultipartUploadResult",
            leaf("Bucket", call.bucket),
            leaf("Key", call.target.key),
            leaf("UploadId", upload.upload_id),
        )
        return xml_response(result, headers=headers)

    async def put_part(self, call: Call) -> web.StreamResponse:
        async with self._buckets.writing(call.bucket):
            upload, number = self._upload(call), self._part_number(call)
            async with self._bodies.read(call, self._settings.object_bytes_max) as body:
                algorithm = checksum_plan_of(upload).algorithm
                chosen = (
                    algorithm if algorithm in body.checksums else next(iter(body.checksums), "")
                )
                checksum = (chosen, body.checksums[chosen]) if chosen else None
                part = await self._uploads.put_part(
                    upload, number, body.buffers, md5=body.md5.hex(), checksum=checksum
                )
        headers = {HEADER_PREFIX + name: value for name, value in body.checksums.items()}
        return web.Response(headers={"ETag": f'"{part.md5}"', **headers})

    async def copy_part(self, call: Call) -> web.StreamResponse:
        async with self._buckets.writing(call.bucket):
            upload, number = self._upload(call), self._part_number(call)
            source = await self._copying.source(call)
            start, end = self._copying.range_of_part(call, source)
            async with self._budget.hold(end - start):
                content = await self._copying.read(source, start, end - start)
                algorithm = checksum_plan_of(upload).algorithm
                md5, value = await self._copying.digests_of_part(content, algorithm)
                checksum = (algorithm, value) if value else None
                part = await self._uploads.put_part(
                    upload, number, [content], md5=md5, checksum=checksum
                )
        result = document(
            "CopyPartResult",
            leaf("LastModified", iso_date(part.stored_ms)),
            leaf("ETag", f'"{part.md5}"'),
            *([leaf(checksum_tag(algorithm), value)] if value else []),
        )
        return xml_response(result, headers=self._copying.source_headers(source))

    async def abort(self, call: Call) -> web.StreamResponse:
        self._buckets.get(call.bucket)
        upload = self._upload(call)
        if upload.completing:
            raise S3Failure("OperationAborted", "The upload is being completed.")
        await self._uploads.abort(upload)
        return web.Response(status=204)

    async def complete(self, call: Call) -> web.StreamResponse:
        async with self._bodies.read(
            call, self._settings.document_bytes_max, checksums_are_of_body=False
        ) as body:
            order = parse(body.joined(), "CompleteMultipartUpload")
        async with self._buckets.writing(call.bucket) as bucket:
            record = await self._completed(call, bucket, order)
        checksums = checksums_of(record)
        headers = {"x-amz-version-id": version_text(record)} if bucket.versioning else {}
        headers.update(checksum_headers(checksums))
        host = call.header("Host") or ""
        result = document(
            "CompleteMultipartUploadResult",
            leaf("Location", f"http://{host}{call.target.raw_path}"),
            leaf("Bucket", call.bucket),
            leaf("Key", call.target.key),
            leaf("ETag", f'"{record.etag}"'),
            *(leaf(checksum_tag(name), value) for name, value in checksums.items()),
            *([leaf("ChecksumType", checksum_type(checksums))] if checksums else []),
        )
        return xml_response(result, headers=headers)

    async def _completed(self, call: Call, bucket: BucketRecord, order: Element) -> IndexRecord:
        """The object of the upload: made now, or by the same request before, whose answer may have been lost."""
        try:
            turn = self._upload(call).turn
        except UploadNotFoundError:
            record = await self._made_before(call, order)
            if record is None:
                raise
            return record
        # Who gave up waiting for a large completion asks again while it goes on.
        async with turn:
            return await self._made_before(call, order) or await self._make(call, bucket, order)

    async def _made_before(self, call: Call, order: Element) -> IndexRecord | None:
        """Conditions are not judged again: they held when it was made."""
        record = await self._uploads.completed(
            object_key(call.bucket, call.target.key), call.query.get("uploadId", "")
        )
        if record is not None:
            require_same_order(record, order)
            _require_size(call, record.size)
            require_object_checksums(call, checksums_of(record), len(list(order.all("Part"))))
        return record

    async def _make(self, call: Call, bucket: BucketRecord, order: Element) -> IndexRecord:
        upload = self._upload(call)
        condition = write_condition(call)
        parts = self._chosen_parts(upload, order)
        _require_size(call, sum(part.length for part in parts))
        checksums = await self._copying.aside(
            partial(object_checksums, checksum_plan_of(upload), parts)
        )
        require_object_checksums(call, checksums, len(parts))
        described = upload.record.description
        kept = ObjectDescription(described.content_type, described.metadata)
        return await self._versions.put_parts(
            bucket,
            upload,
            parts,
            metadata=kept.with_checksums(checksums) | note_of_order(order),
            etag=_etag(parts),
            condition=condition,
        )

    def _upload(self, call: Call) -> Upload:
        return upload_of(call, self._uploads)

    def _part_number(self, call: Call) -> int:
        text = call.query.get("partNumber", "")
        number = int(text) if text.isascii() and text.isdigit() and len(text) < 8 else 0
        if not 0 < number <= self._settings.parts_max:
            raise S3Failure(
                "InvalidArgument",
                f"Part number must be an integer between 1 and {self._settings.parts_max}",
            )
        return number

    def _chosen_parts(self, upload: Upload, order: Element) -> list[Part]:
        """Raises S3Failure: MalformedXML, InvalidPart, InvalidPartOrder, EntityTooSmall, EntityTooLarge."""
        parts: list[Part] = []
        for element in order.all("Part"):
            text = element.text_of("PartNumber")
            if not text.isascii() or not text.isdigit() or len(text) > 7:
                raise S3Failure("MalformedXML", "A part has a number.")
            part = upload.parts.get(int(text))
            etag = element.text_of("ETag").strip('"')
            if part is None or part.md5 != etag or not _checksum_agrees(part, element):
                raise S3Failure(
                    "InvalidPart", f"Part {text} was not uploaded, or is another one than that."
                )
            if parts and parts[-1].number >= part.number:
                raise S3Failure("InvalidPartOrder", "Parts are listed in ascending order.")
            if parts and parts[-1].length < self._settings.part_bytes_min:
                raise S3Failure(
                    "EntityTooSmall",
                    f"Part {parts[-1].number} is smaller than {self._settings.part_bytes_min} bytes.",
                )
            parts.append(part)
        if not parts:
            raise S3Failure("MalformedXML", "A completion names at least one part.")
        if sum(part.length for part in parts) > self._settings.joined_bytes_max:
            raise S3Failure(
                "EntityTooLarge",
                f"An object has at most {self._settings.joined_bytes_max} bytes here.",
            )
        return parts


def upload_of(call: Call, uploads: MultipartUploads) -> Upload:
    """Of this bucket and key. Raises UploadNotFoundError."""
    upload = uploads.get(call.query.get("uploadId", ""))
    if upload.record.key != object_key(call.bucket, call.target.key):
        raise UploadNotFoundError(f"an upload is of another key id={upload.upload_id}")
    return upload


def _checksum_agrees(part: Part, element: Element) -> bool:
    if part.checksum is None:
        return True
    algorithm, value = part.checksum
    return element.text_of(checksum_tag(algorithm), value) == value


def _require_size(call: Call, size: int) -> None:
    """Raises S3Failure if the object has another size than its client says."""
    claimed = call.header("x-amz-mp-object-size")
    if claimed is not None and claimed.strip() != str(size):
        raise S3Failure(
            "InvalidRequest", f"The parts have {size} bytes, x-amz-mp-object-size says {claimed}."
        )


def _etag(parts: Sequence[Part]) -> str:
    whole = hashlib.md5(b"".join(bytes.fromhex(part.md5) for part in parts), usedforsecurity=False)
    return f"{whole.hexdigest()}-{len(parts)}"
