"""Conditions of requests: on reading they are judged here, on writing the engine judges them at the commit."""

from collections.abc import Mapping

from segmentstore.s3.call import Call
from segmentstore.s3.failures import S3Failure, not_implemented
from segmentstore.s3.instants import http_date, parse_http_date
from tier2.volumes.index_record import IndexRecord
from tier2.volumes.mutations import Condition

_FAILED = "At least one of the conditions of the request does not hold."


class NotModified(Exception):  # noqa: N818 - an answer: 304
    """The client has what it asks for."""

    def __init__(self, record: IndexRecord) -> None:
        super().__init__("not modified")
        self.headers: Mapping[str, str] = {
            "ETag": f'"{record.etag}"',
            "Last-Modified": http_date(record.created_ms),
        }


def etags(text: str) -> list[str]:
    """Of a header that names some: without quotes and weakness."""
    return [etag.strip().removeprefix("W/").strip('"') for etag in text.split(",")]


def check_read(call: Call, record: IndexRecord) -> None:
    """Raises S3Failure (PreconditionFailed), NotModified."""
    match_ = call.header("If-Match")
    if match_ is not None:
        if not _matches(match_, record):
            raise S3Failure("PreconditionFailed", _FAILED)
    elif _changed_since(call.header("If-Unmodified-Since"), record) is True:
        raise S3Failure("PreconditionFailed", _FAILED)
    none_match = call.header("If-None-Match")
    if none_match is not None:
        if _matches(none_match, record):
            raise NotModified(record)
    elif _changed_since(call.header("If-Modified-Since"), record) is False:
        raise NotModified(record)


def check_copy_source(call: Call, record: IndexRecord) -> None:
    """The x-amz-copy-source-if-* headers. Raises S3Failure (PreconditionFailed)."""
    prefix = "x-amz-copy-source-if-"
    match_, none_match = call.header(prefix + "match"), call.header(prefix + "none-match")
    unmodified = _changed_since(call.header(prefix + "unmodified-since"), record)
    modified = _changed_since(call.header(prefix + "modified-since"), record)
    failed = (
        (match_ is not None and not _matches(match_, record))
        or (match_ is None and unmodified is True)
        or (none_match is not None and _matches(none_match, record))
        or (none_match is None and modified is False)
    )
    if failed:
        raise S3Failure("PreconditionFailed", _FAILED)


def write_condition(call: Call) -> Condition:
    """Of a put or a completion. Raises S3Failure (NotImplemented)."""
    match_, none_match = call.header("If-Match"), call.header("If-None-Match")
    if none_match is not None and none_match.strip() != "*":
        raise not_implemented("If-None-Match with an etag on a write")
    if match_ is None:
        return Condition(absent=none_match is not None)
    named = etags(match_)
    if len(named) != 1 or named[0] == "*":
        raise not_implemented("If-Match with anything but one etag on a write")
    return Condition(absent=none_match is not None, etag=named[0])


def _matches(text: str, record: IndexRecord) -> bool:
    return text.strip() == "*" or record.etag in etags(text)


def _changed_since(text: str | None, record: IndexRecord) -> bool | None:
    moment_ms = None if text is None else parse_http_date(text)
    if moment_ms is None:
        return None
    return record.created_ms // 1000 > moment_ms // 1000
