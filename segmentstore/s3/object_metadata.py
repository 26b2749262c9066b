"""What a client says of an object besides its bytes, as it is kept in the engine's record.

    metadata["m:NAME"]    x-amz-meta-NAME
    metadata["h:NAME"]    a header that is given back as it came: Cache-Control, Content-Disposition, ...
    metadata["c:NAME"]    a checksum of the bytes (checksums.py)
    metadata["u:parts"]   how long the parts are that it was put together of: LENGTHxCOUNT for each run of equal ones,
                          as in 5242880x3,1000x1. Left out where that is long: it is then an object of one part, as
                          one that came by one request is, or by a copy.

Names that begin otherwise are notes about one version (multipart.py): shown to no client, and not copied.
The content type and the etag have fields of their own in the record.

Invariant: metadata that no header can have is neither taken nor shown. A query, where clients that presign put it, can
have more: what was kept of that before is left out of the answer, which says how much that is.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from segmentstore.s3.checksums import HEADER_PREFIX
from segmentstore.s3.errors import S3Error
from segmentstore.s3.request import Call
from segmentstore.s3.request_target import shown_version_id
from segmentstore.s3.xml_documents import http_date, iso_date
from tier2.volumes.multipart import Part
from tier2.volumes.objects import IndexRecord

DEFAULT_CONTENT_TYPE = "binary/octet-stream"

_USER, _HEADER, _CHECKSUM = "m:", "h:", "c:"
_USER_PREFIX = "x-amz-meta-"
_PARTS_METADATA = "u:parts"
_PARTS_NOTE_CHARACTERS_MAX = 500
"""Kept in the index, for each object: clients send parts of one length, but for the last one."""
_MISSING_HEADER = "x-amz-missing-meta"
_END_OF_NAME = re.compile("[!#$%&'*+.^_`|~0-9A-Za-z-]*")
"""Of a header, behind the prefix."""
_NOT_IN_VALUE = re.compile("[\x00-\x08\x0a-\x1f\x7f]")
_KEPT_HEADERS = (
    "Cache-Control",
    "Content-Disposition",
    "Content-Encoding",
    "Content-Language",
    "Expires",
)
_OVERRIDES = {
    "response-content-type": "Content-Type",
    "response-content-language": "Content-Language",
    "response-expires": "Expires",
    "response-cache-control": "Cache-Control",
    "response-content-disposition": "Content-Disposition",
    "response-content-encoding": "Content-Encoding",
}


@dataclass(frozen=True, slots=True)
class ObjectDescription:
    """Content type and metadata, in the form of the engine."""

    content_type: str
    metadata: Mapping[str, str] = field(default_factory=dict)

    def with_checksums(self, checksums: Mapping[str, str]) -> dict[str, str]:
        """The metadata, with checksums of the bytes."""
        return {
            **self.metadata,
            **{f"{_CHECKSUM}{name}": value for name, value in checksums.items()},
        }


def description_of_request(call: Call, *, metadata_bytes_max: int) -> ObjectDescription:
    """Raises S3Error: MetadataTooLarge, InvalidArgument."""
    metadata: dict[str, str] = {}
    user_bytes = 0
    for lower, value in call.own_headers():
        if lower.startswith(_USER_PREFIX):
            short = lower[len(_USER_PREFIX) :]
            if not _fits_into_header(short, value):
                raise S3Error(
                    "InvalidArgument", "Metadata has a name or a value that no header can have."
                )
            kept = metadata.get(_USER + short)
            metadata[_USER + short] = value if kept is None else f"{kept},{value}"
            user_bytes += len(short) + len(value.encode("utf-8", "surrogateescape"))
    if user_bytes > metadata_bytes_max:
        raise S3Error("MetadataTooLarge", f"User metadata has at most {metadata_bytes_max} bytes.")
    for name in _KEPT_HEADERS:
        given = call.header(name)
        if given is not None and name == "Content-Encoding":
            given = _without_transfer_coding(given)
        if given:
            metadata[_HEADER + name] = given
    content_type = call.header("Content-Type") or DEFAULT_CONTENT_TYPE
    for text in (content_type, *metadata, *metadata.values()):
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            raise S3Error("InvalidArgument", "Headers of an object are UTF-8.")
    return ObjectDescription(content_type, metadata)


def description_of_record(record: IndexRecord) -> ObjectDescription:
    """What a copy has of it: no checksums, and no notes."""
    metadata = {
        name: value for name, value in record.metadata.items() if name.startswith((_USER, _HEADER))
    }
    return ObjectDescription(record.content_type, metadata)


def checksums_of(record: IndexRecord) -> dict[str, str]:
    """By algorithm."""
    return {
        name[len(_CHECKSUM) :]: value
        for name, value in record.metadata.items()
        if name.startswith(_CHECKSUM)
    }


@dataclass(frozen=True, slots=True)
class PartOfObject:
    """What a client gets that asks for a part by its number."""

    start: int
    end: int
    count: int
    """Of the parts of the object; 0: it was not put together of parts."""


def note_of_parts(parts: Sequence[Part]) -> dict[str, str]:
    """For the metadata of an object that is put together of them."""
    runs = ((length, sum(1 for _ in run)) for length, run in groupby(part.length for part in parts))
    text = ",".join(f"{length}x{count}" for length, count in runs)
    return {_PARTS_METADATA: text} if len(text) <= _PARTS_NOTE_CHARACTERS_MAX else {}


def part_of_object(record: IndexRecord, number: int) -> PartOfObject:
    """`number`: from 1 on, whatever numbers they were sent with. Raises S3Error (InvalidPartNumber)."""
    note = record.metadata.get(_PARTS_METADATA, "")
    if not note:
        lengths = [(record.size, 1)]
    else:
        lengths = [
            (int(length), int(times))
            for length, times in (run.split("x") for run in note.split(","))
        ]
    before, start = 0, 0
    for length, times in lengths:
        if number <= before + times:
            start += (number - before - 1) * length
            return PartOfObject(
                start, start + length, sum(times for _, times in lengths) if note else 0
            )
        before += times
        start += times * length
    raise S3Error("InvalidPartNumber", "The requested partnumber is not satisfiable")


def version_text(record: IndexRecord) -> str:
    """The version id as clients see it."""
    return shown_version_id(record.version_id)


def object_headers(
    record: IndexRecord, call: Call, *, versioned: bool, part: PartOfObject | None = None
) -> dict[str, str]:
    """Headers of an answer that shows an object or a part of it; `part`: the one that is asked for by its number."""
    headers = {
        "Accept-Ranges": "bytes",
        "Content-Type": record.content_type or DEFAULT_CONTENT_TYPE,
        "ETag": f'"{record.etag}"',
        "Last-Modified": http_date(record.created_ms),
    }
    headers.update(_kept_headers(record))
    if versioned:
        headers["x-amz-version-id"] = version_text(record)
    if record.retention_mode is not None:
        headers["x-amz-object-lock-mode"] = record.retention_mode.value
        headers["x-amz-object-lock-retain-until-date"] = iso_date(record.retain_until_ms)
    if record.legal_hold:
        headers["x-amz-object-lock-legal-hold"] = "ON"
    # A client would hold the checksum of the whole against the part that it gets.
    whole = call.header("Range") is None and (part is None or part.count < 2)
    if whole and (call.header("x-amz-checksum-mode") or "").upper() == "ENABLED":
        headers.update(checksum_headers(checksums_of(record)))
    if part is not None and part.count:
        headers["x-amz-mp-parts-count"] = str(part.count)
    for parameter, name in _OVERRIDES.items():
        if parameter in call.query:
            headers[name] = _header_value(call.query[parameter])
    return headers


def checksum_headers(checksums: Mapping[str, str]) -> dict[str, str]:
    """With their type: a multipart object has a checksum of checksums."""
    headers = {HEADER_PREFIX + name: value for name, value in checksums.items()}
    if headers:
        headers["x-amz-checksum-type"] = checksum_type(checksums)
    return headers


def checksum_type(checksums: Mapping[str, str]) -> str:
    """As it is written in answers."""
    composite = any("-" in value for value in checksums.values())
    return "COMPOSITE" if composite else "FULL_OBJECT"


def _kept_headers(record: IndexRecord) -> Iterator[tuple[str, str]]:
    missing = 0
    for name, value in record.metadata.items():
        if name.startswith(_USER):
            short = name[len(_USER) :]
            if _fits_into_header(short, value):
                yield _USER_PREFIX + short, value
            else:
                missing += 1
        elif name.startswith(_HEADER):
            yield name[len(_HEADER) :], value
    if missing:
        yield _MISSING_HEADER, str(missing)


def _fits_into_header(short: str, value: str) -> bool:
    """`short`: the name, behind the prefix."""
    return _END_OF_NAME.fullmatch(short) is not None and _NOT_IN_VALUE.search(value) is None


def _header_value(text: str) -> str:
    if any(letter < " " or letter == "\x7f" for letter in text):
        raise S3Error("InvalidArgument", "A header cannot hold that value.")
    return text


def _without_transfer_coding(encoding: str) -> str:
    names = (name.strip() for name in encoding.split(","))
    return ", ".join(name for name in names if name and name.lower() != "aws-chunked")
