"""Multipart uploads: begin, send parts, copy parts, complete, abort; and ListParts and ListMultipartUploads.

Where the parts are kept, and become an object in one step: `tier2/volumes/multipart.py`.

Kept with an upload: which checksum it was begun with (`ChecksumPlan`). Kept with an object, so that the same completion
can be answered again:

    metadata["upload_id"]    by the engine: which upload it was
    metadata["u:order"]      SHA-256 of what the completion said of its parts, in hexadecimal digits

and, so that it can be read by its parts (`object_metadata.py`), how long these are.

Invariants:

- A checksum that a completion names of its object is proved by those of the parts, or it is refused.
- A completion gets the answer of an earlier one only if it says the same of every part.
- What a completion says of its parts, up to 10,000 of them, is looked at beside the loop.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from aiohttp import web

from segmentstore.runtime.clock import WallClock
from segmentstore.s3.buckets import Buckets
from segmentstore.s3.checksums import (
    ALGORITHMS,
    COMPOSABLE,
    HEADER_PREFIX,
    JOINABLE,
    checksum_tag,
    composite_checksum,
    joined_checksum,
    text_of,
)
from segmentstore.s3.errors import S3Error
from segmentstore.s3.listing import common_prefix_of
from segmentstore.s3.object_copying import ObjectCopyHandlers
from segmentstore.s3.object_lock import requested_lock
from segmentstore.s3.object_metadata import (
    ObjectDescription,
    checksum_headers,
    checksum_type,
    checksums_of,
    description_of_request,
    note_of_parts,
    version_text,
)
from segmentstore.s3.object_writing import VersionWriter
from segmentstore.s3.request import (
    OWNER,
    Call,
    requested_algorithm,
    requested_key_encoding,
    requested_page_size,
    requested_part_number,
    write_condition,
)
from segmentstore.s3.request_body import BodyReader, CheckedBody
from segmentstore.s3.request_target import object_key, objects_prefix
from segmentstore.s3.settings import EndpointSettings
from segmentstore.s3.xml_documents import (
    Element,
    branch,
    document,
    iso_date,
    leaf,
    xml_response,
)
from tier2.volumes.multipart import MultipartUploads, Part, Upload
from tier2.volumes.objects import Description, IndexRecord, UploadNotFoundError

_CHECKSUM_TYPE_HEADER = "x-amz-checksum-type"
_COMPOSITE_TYPE, _FULL_OBJECT_TYPE = "COMPOSITE", "FULL_OBJECT"
_ALGORITHM_NOTE, _COMPOSITE_NOTE = "checksum_algorithm", "checksum_composite"
_ORDER_METADATA = "u:order"
_INITIATOR = OWNER.replace("Owner>", "Initiator>")


class MultipartHandlers:
    """The handlers that change uploads; `UploadListingHandlers` shows them."""

    def __init__(
        self,
        *,
        uploads: MultipartUploads,
        versions: VersionWriter,
        copying: ObjectCopyHandlers,
        buckets: Buckets,
        bodies: BodyReader,
        wall_clock: WallClock,
        settings: EndpointSettings,
    ) -> None:
        self._uploads = uploads
        self._versions = versions
        self._copying = copying
        self._buckets = buckets
        self._bodies = bodies
        self._wall_clock = wall_clock
        self._settings = settings

    async def create(self, call: Call) -> web.StreamResponse:
        async with self._buckets.writing(call.bucket) as bucket:
            lock = requested_lock(call, bucket, self._wall_clock)
            description = description_of_request(
                call, metadata_bytes_max=self._settings.metadata_bytes_max
            )
            plan = requested_checksum_plan(call)
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
            upload = self._upload(call)
            number = requested_part_number(call, self._settings.parts_max)
            body: CheckedBody
            if self._bodies.is_held(call):
                async with self._bodies.read(call, self._settings.object_bytes_max) as body:
                    part = await self._uploads.put_part(
                        upload,
                        number,
                        body.buffers,
                        md5=body.md5.hex(),
                        checksum=_kept_checksum(upload, body),
                    )
            else:
                async with self._uploads.incoming(upload) as incoming:
                    body = await self._bodies.stream(
                        call, self._settings.object_bytes_max, incoming.append
                    )
                    part = await self._uploads.put_incoming_part(
                        upload,
                        number,
                        incoming,
                        md5=body.md5.hex(),
                        checksum=_kept_checksum(upload, body),
                    )
        headers = {HEADER_PREFIX + name: value for name, value in body.checksums.items()}
        return web.Response(headers={"ETag": f'"{part.md5}"', **headers})

    async def copy_part(self, call: Call) -> web.StreamResponse:
        async with self._buckets.writing(call.bucket):
            upload = self._upload(call)
            number = requested_part_number(call, self._settings.parts_max)
            source = await self._copying.source(call)
            start, end = self._copying.range_of_part(call, source)
            algorithm = checksum_plan_of(upload).algorithm
            running = ALGORITHMS[algorithm]() if algorithm in ALGORITHMS else None
            md5 = hashlib.md5(usedforsecurity=False)

            def hash_(content: bytes) -> None:
                md5.update(content)
                if running is not None:
                    running.update(content)

            async with self._uploads.incoming(upload) as incoming:

                async def take(content: bytes) -> None:
                    await self._copying.aside(partial(hash_, content))
                    await incoming.append([content])

                await self._copying.read(source, start, end, take)
                value = "" if running is None else text_of(running)
                part = await self._uploads.put_incoming_part(
                    upload,
                    number,
                    incoming,
                    md5=md5.hexdigest(),
                    checksum=(algorithm, value) if value else None,
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
            raise S3Error("OperationAborted", "The upload is being completed.")
        await self._uploads.abort(upload)
        return web.Response(status=204)

    async def complete(self, call: Call) -> web.StreamResponse:
        document_ = await self._bodies.read_document(
            call, "CompleteMultipartUpload", checksums_are_of_body=False
        )
        order = await self._copying.aside(partial(Order.of, document_))
        async with self._buckets.writing(call.bucket):
            record = await self._completed(call, order)
            bucket = self._buckets.get(call.bucket)
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

    async def _completed(self, call: Call, order: "Order") -> IndexRecord:
        """The object of the upload: made now, or by the same request before, whose answer may have been lost."""
        try:
            turn = self._upload(call).turn
        except UploadNotFoundError:
            record = await self._made_before(call, order)
            if record is None:
                raise
            return record
        # A client that gave up waiting for a large completion asks again while it goes on.
        async with turn:
            return await self._made_before(call, order) or await self._make(call, order)

    async def _made_before(self, call: Call, order: "Order") -> IndexRecord | None:
        """Conditions are not judged again: they held when it was made."""
        record = await self._uploads.completed(
            object_key(call.bucket, call.target.key), call.query.get("uploadId", "")
        )
        if record is not None:
            order.require_same(record)
            _require_object_size(call, record.size)
            require_object_checksums(call, checksums_of(record), len(order.parts))
        return record

    async def _make(self, call: Call, order: "Order") -> IndexRecord:
        upload = self._upload(call)
        condition = write_condition(call)
        known = dict(upload.parts)

        def choose() -> tuple[list[Part], dict[str, str], str]:
            parts = self._chosen_parts(known, order)
            _require_object_size(call, sum(part.length for part in parts))
            return parts, object_checksums(checksum_plan_of(upload), parts), _object_etag(parts)

        parts, checksums, etag = await self._copying.aside(choose)
        require_object_checksums(call, checksums, len(parts))
        described = upload.record.description
        kept = ObjectDescription(described.content_type, described.metadata)
        return await self._versions.put_parts(
            partial(self._buckets.get, call.bucket),
            upload,
            parts,
            metadata=kept.with_checksums(checksums) | order.note() | note_of_parts(parts),
            etag=etag,
            condition=condition,
        )

    def _upload(self, call: Call) -> Upload:
        return upload_of(call, self._uploads)

    def _chosen_parts(self, known: Mapping[int, Part], order: "Order") -> list[Part]:
        """Raises S3Error: MalformedXML, InvalidPart, InvalidPartOrder, EntityTooSmall, EntityTooLarge."""
        parts: list[Part] = []
        for element in order.parts:
            text = element.text_of("PartNumber")
            if not text.isascii() or not text.isdigit() or len(text) > 7:
                raise S3Error("MalformedXML", "A part has a number.")
            part = known.get(int(text))
            etag = element.text_of("ETag").strip('"')
            if part is None or part.md5 != etag or not _checksum_agrees(part, element):
                raise S3Error(
                    "InvalidPart", f"Part {text} was not uploaded, or is another one than that."
                )
            if parts and parts[-1].number >= part.number:
                raise S3Error("InvalidPartOrder", "Parts are listed in ascending order.")
            if parts and parts[-1].length < self._settings.part_bytes_min:
                raise S3Error(
                    "EntityTooSmall",
                    f"Part {parts[-1].number} is smaller than {self._settings.part_bytes_min} bytes.",
                )
            parts.append(part)
        if not parts:
            raise S3Error("MalformedXML", "A completion names at least one part.")
        if sum(part.length for part in parts) > self._settings.joined_bytes_max:
            raise S3Error(
                "EntityTooLarge",
                f"An object has at most {self._settings.joined_bytes_max} bytes here.",
            )
        return parts


def _kept_checksum(upload: Upload, body: CheckedBody) -> tuple[str, str] | None:
    """The one of those that the client sent which the object will need; any other, if that is not among them."""
    algorithm = checksum_plan_of(upload).algorithm
    if algorithm not in body.checksums:
        return next(iter(body.checksums.items()), None)
    return algorithm, body.checksums[algorithm]


def upload_of(call: Call, uploads: MultipartUploads) -> Upload:
    """Of this bucket and key. Raises UploadNotFoundError."""
    upload = uploads.get(call.query.get("uploadId", ""))
    if upload.record.key != object_key(call.bucket, call.target.key):
        raise UploadNotFoundError(f"an upload is of another key id={upload.upload_id}")
    return upload


def _checksum_agrees(part: Part, element: Element) -> bool:
    """Whether what is said of the part is what was proved of it: nothing else can be told to be right."""
    proved = {} if part.checksum is None else {checksum_tag(part.checksum[0]): part.checksum[1]}
    return all(
        proved.get(fact.name) == fact.text.strip()
        for fact in element.children
        if fact.name.startswith("Checksum")
    )


def _require_object_size(call: Call, size: int) -> None:
    """Raises S3Error if the object has another size than its client says."""
    claimed = call.header("x-amz-mp-object-size")
    if claimed is not None and claimed.strip() != str(size):
        raise S3Error(
            "InvalidRequest", f"The parts have {size} bytes, x-amz-mp-object-size says {claimed}."
        )


def _object_etag(parts: Sequence[Part]) -> str:
    whole = hashlib.md5(b"".join(bytes.fromhex(part.md5) for part in parts), usedforsecurity=False)
    return f"{whole.hexdigest()}-{len(parts)}"


@dataclass(frozen=True, slots=True)
class ChecksumPlan:
    """Which checksum the object will have, as it was announced when the upload was begun."""

    algorithm: str
    """In lower case; empty: none was announced."""
    composite: bool
    """Whether the object gets the checksum of its parts' checksums, or that of all its bytes."""

    def notes(self) -> dict[str, str]:
        """To keep with the upload."""
        return {_ALGORITHM_NOTE: self.algorithm, _COMPOSITE_NOTE: "yes" if self.composite else "no"}


def requested_checksum_plan(call: Call) -> ChecksumPlan:
    """Of the request that begins an upload. Raises S3Error (InvalidRequest)."""
    algorithm = requested_algorithm(call)
    kind = call.header(_CHECKSUM_TYPE_HEADER)
    if not algorithm:
        if kind:
            raise S3Error("InvalidRequest", f"{_CHECKSUM_TYPE_HEADER} needs a checksum algorithm.")
        return ChecksumPlan("", composite=True)
    kind = kind or (_COMPOSITE_TYPE if algorithm in COMPOSABLE else _FULL_OBJECT_TYPE)
    if algorithm not in {_COMPOSITE_TYPE: COMPOSABLE, _FULL_OBJECT_TYPE: JOINABLE}.get(kind, ()):
        raise S3Error(
            "InvalidRequest",
            f"The checksum type cannot be used with the {algorithm} checksum algorithm.",
        )
    return ChecksumPlan(algorithm, composite=kind == _COMPOSITE_TYPE)


def checksum_plan_of(upload: Upload) -> ChecksumPlan:
    """As it was announced."""
    notes = upload.record.notes
    return ChecksumPlan(notes.get(_ALGORITHM_NOTE, ""), notes.get(_COMPOSITE_NOTE) == "yes")


def object_checksums(plan: ChecksumPlan, parts: Sequence[Part]) -> dict[str, str]:
    """By algorithm: what follows from the parts, if all of them have a checksum of the announced kind. O(parts)."""
    algorithm = plan.algorithm
    known = [
        (part.checksum[1], part.length)
        for part in parts
        if part.checksum is not None and part.checksum[0] == algorithm
    ]
    if algorithm not in ALGORITHMS or len(known) < len(parts):
        return {}
    if plan.composite:
        return {algorithm: composite_checksum(algorithm, [value for value, _ in known])}
    return {algorithm: joined_checksum(algorithm, known)} if algorithm in JOINABLE else {}


def require_object_checksums(call: Call, found: dict[str, str], count: int) -> None:
    """What the completion of `count` parts says of the object has to be what was found. Raises S3Error."""
    kind = call.header(_CHECKSUM_TYPE_HEADER)
    if kind and found and kind != checksum_type(found):
        raise S3Error("InvalidRequest", "The checksum of the object is of another type.")
    for algorithm in ALGORITHMS:
        claimed = call.header(HEADER_PREFIX + algorithm)
        if claimed is None:
            continue
        if algorithm not in found:
            raise S3Error(
                "InvalidRequest",
                f"The {algorithm} checksum of the object cannot be proved: the upload has to be begun with "
                f"x-amz-checksum-algorithm {algorithm.upper()}, and every part sent with its own.",
            )
        # The count may be left out.
        if found[algorithm] not in {claimed, f"{claimed}-{count}"}:
            raise S3Error(
                "BadDigest", f"The {algorithm} checksum is not that of the parts put together."
            )


@dataclass(frozen=True, slots=True)
class Order:
    """Of which parts a completion makes an object."""

    parts: Sequence[Element]
    digest: str
    """Of what is said of them."""

    @classmethod
    def of(cls, document_: Element) -> "Order":
        """O(parts), of some microseconds each."""
        parts = list(document_.all("Part"))
        hasher = hashlib.sha256()
        for part in parts:
            facts = sorted((fact.name, fact.text.strip().strip('"')) for fact in part.children)
            hasher.update(repr(facts).encode())
        return cls(parts, hasher.hexdigest())

    def note(self) -> dict[str, str]:
        """For the metadata of the object."""
        return {_ORDER_METADATA: self.digest}

    def require_same(self, record: IndexRecord) -> None:
        """Raises S3Error (InvalidPart) unless this is what the object was made of."""
        if record.metadata.get(_ORDER_METADATA) != self.digest:
            raise S3Error("InvalidPart", "The upload is completed already, of other parts.")


class UploadListingHandlers:
    """Shows uploads."""

    def __init__(
        self, *, uploads: MultipartUploads, buckets: Buckets, settings: EndpointSettings
    ) -> None:
        self._uploads = uploads
        self._buckets = buckets
        self._settings = settings

    async def parts(self, call: Call) -> web.StreamResponse:
        self._buckets.get(call.bucket)
        upload = upload_of(call, self._uploads)
        limit = requested_page_size(call, "max-parts", self._settings.page_entries_max)
        marker = 0
        if call.query.get("part-number-marker"):
            marker = requested_page_size(call, "part-number-marker", self._settings.parts_max)
        found = [part for number, part in sorted(upload.parts.items()) if number > marker]
        shown = found[:limit]
        rows = []
        for part in shown:
            facts = [
                leaf("PartNumber", part.number),
                leaf("LastModified", iso_date(part.stored_ms)),
                leaf("ETag", f'"{part.md5}"'),
                leaf("Size", part.length),
            ]
            if part.checksum is not None:
                algorithm, value = part.checksum
                facts.append(leaf(f"Checksum{algorithm.upper()}", value))
            rows.append(branch("Part", *facts))
        # A page of nothing has no marker to go on from.
        truncated = bool(shown) and len(found) > len(shown)
        head = [
            leaf("Bucket", call.bucket),
            leaf("Key", call.target.key),
            leaf("UploadId", upload.upload_id),
            leaf("PartNumberMarker", marker),
            leaf("MaxParts", limit),
            leaf("IsTruncated", truncated),
        ]
        if truncated:
            head.append(leaf("NextPartNumberMarker", shown[-1].number))
        algorithm = checksum_plan_of(upload).algorithm
        if algorithm:
            head.append(leaf("ChecksumAlgorithm", algorithm.upper()))
        return xml_response(
            document(
                "ListPartsResult", *head, _INITIATOR, OWNER, *rows, leaf("StorageClass", "STANDARD")
            )
        )

    async def uploads(self, call: Call) -> web.StreamResponse:
        self._buckets.get(call.bucket)
        write = requested_key_encoding(call)
        limit = requested_page_size(call, "max-uploads", self._settings.page_entries_max)
        prefix = call.query.get("prefix", "").encode()
        bucket = objects_prefix(call.bucket)
        delimiter = call.query.get("delimiter", "").encode()
        marker, id_marker = call.query.get("key-marker", ""), call.query.get("upload-id-marker", "")
        rows: list[str] = []
        groups: list[bytes] = []
        last: tuple[bytes, str] = (b"", "")
        truncated = False
        found = self._uploads.with_prefix(bucket + prefix)
        for upload in _uploads_behind(found, bucket, marker.encode(), id_marker):
            key = upload.record.key[len(bucket) :]
            group = common_prefix_of(key, prefix, delimiter)
            if group is not None and (group in groups[-1:] or group == marker.encode()):
                continue
            if len(rows) + len(groups) >= limit:
                # A page of nothing has no marker to go on from.
                truncated = limit > 0
                break
            if group is None:
                rows.append(branch("Upload", leaf("Key", write(key)), *_upload_facts(upload)))
                last = (key, upload.upload_id)
            else:
                groups.append(group)
                last = (group, "")
        head = [
            leaf("Bucket", call.bucket),
            leaf("KeyMarker", write(marker.encode())),
            leaf("UploadIdMarker", id_marker),
            leaf("Prefix", write(prefix)),
            leaf("MaxUploads", limit),
            leaf("IsTruncated", truncated),
        ]
        if delimiter:
            head.append(leaf("Delimiter", write(delimiter)))
        if call.query.get("encoding-type"):
            head.append(leaf("EncodingType", "url"))
        if truncated:
            head.append(leaf("NextKeyMarker", write(last[0])))
            head.append(leaf("NextUploadIdMarker", last[1]))
        prefixes = [branch("CommonPrefixes", leaf("Prefix", write(group))) for group in groups]
        return xml_response(document("ListMultipartUploadsResult", *head, *rows, *prefixes))


def _upload_facts(upload: Upload) -> list[str]:
    return [
        leaf("UploadId", upload.upload_id),
        _INITIATOR,
        OWNER,
        leaf("StorageClass", "STANDARD"),
        leaf("Initiated", iso_date(upload.record.begun_ms)),
    ]


def _uploads_behind(
    uploads: list[Upload], bucket: bytes, marker: bytes, id_marker: str
) -> list[Upload]:
    """Keys behind the marker, and of the marker's own key what comes behind the upload that was shown last.

    All of that key if the one that was shown last is gone: a client that aborts what a page shows, and asks for the
    next one, may see an upload twice, but none is left out.
    """
    if not marker:
        return uploads
    place = bucket + marker
    same = [upload for upload in uploads if upload.record.key == place] if id_marker else []
    ids = [upload.upload_id for upload in same]
    shown = ids.index(id_marker) + 1 if id_marker in ids else 0
    return same[shown:] + [upload for upload in uploads if upload.record.key > place]
