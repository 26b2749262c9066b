"""ListParts and ListMultipartUploads."""

from aiohttp import web

from segmentstore.s3.buckets import Buckets
from segmentstore.s3.call import Call
from segmentstore.s3.checksum_plan import checksum_plan_of
from segmentstore.s3.instants import iso_date
from segmentstore.s3.listing import rolled_up
from segmentstore.s3.listing_verbs import OWNER, entries_asked, text_encoding
from segmentstore.s3.multipart_verbs import upload_of
from segmentstore.s3.object_keys import objects_prefix
from segmentstore.s3.responses import xml_response
from segmentstore.s3.settings import EndpointSettings
from segmentstore.s3.xml_writing import branch, document, leaf
from tier2.volumes.multipart import MultipartUploads
from tier2.volumes.upload_record import Upload

_INITIATOR = OWNER.replace("Owner>", "Initiator>")


class UploadListing:
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
        limit = entries_asked(call, "max-parts", self._settings.page_entries_max)
        marker = 0
        if call.query.get("part-number-marker"):
            marker = entries_asked(call, "part-number-marker", self._settings.parts_max)
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
        truncated = len(found) > len(shown)
        head = [
            leaf("Bucket", call.bucket),
            leaf("Key", call.target.key),
            leaf("UploadId", upload.upload_id),
            leaf("PartNumberMarker", marker),
            leaf("MaxParts", limit),
            leaf("IsTruncated", truncated),
        ]
        if truncated and shown:
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
        write = text_encoding(call)
        limit = entries_asked(call, "max-uploads", self._settings.page_entries_max)
        prefix = call.query.get("prefix", "").encode()
        bucket = objects_prefix(call.bucket)
        delimiter = call.query.get("delimiter", "").encode()
        marker, id_marker = call.query.get("key-marker", ""), call.query.get("upload-id-marker", "")
        rows: list[str] = []
        groups: list[bytes] = []
        last: tuple[bytes, str] = (b"", "")
        truncated = False
        found = self._uploads.with_prefix(bucket + prefix)
        for upload in _behind(found, bucket, marker.encode(), id_marker):
            key = upload.record.key[len(bucket) :]
            group = rolled_up(key, prefix, delimiter)
            if group is not None and (group in groups[-1:] or group == marker.encode()):
                continue
            if len(rows) + len(groups) >= limit:
                truncated = True
                break
            if group is None:
                rows.append(branch("Upload", leaf("Key", write(key)), *_facts(upload)))
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


def _facts(upload: Upload) -> list[str]:
    return [
        leaf("UploadId", upload.upload_id),
        _INITIATOR,
        OWNER,
        leaf("StorageClass", "STANDARD"),
        leaf("Initiated", iso_date(upload.record.begun_ms)),
    ]


def _behind(uploads: list[Upload], bucket: bytes, marker: bytes, id_marker: str) -> list[Upload]:
    """Keys behind the marker, and of the marker's own key what comes behind the upload that was shown last.

    All of that key if the one that was shown last is gone: who aborts what a page shows, and asks for the next one, may
    see an upload twice, but none is left out.
    """
    if not marker:
        return uploads
    place = bucket + marker
    same = [upload for upload in uploads if upload.record.key == place] if id_marker else []
    ids = [upload.upload_id for upload in same]
    shown = ids.index(id_marker) + 1 if id_marker in ids else 0
    return same[shown:] + [upload for upload in uploads if upload.record.key > place]
