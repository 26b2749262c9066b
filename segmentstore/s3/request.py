"""One request on its way through the handlers: its headers, conditions, range and paging parameters.

Conditions are judged here on reading; on writing the engine judges them at the commit. A Range header names one range
of bytes, from the front or from the end.

Headers of S3 that would change what a request means, and that this endpoint does not do, are refused, whatever the
request is.

Invariant: one that is taken is either done, or means here what leaving it out means. The table `_HEADER_RULES` says
which is which; a header may stand in the query too, where clients that presign put it.

    storage class          STANDARD is what there is
    access control lists   a client that has the key has everything: `private`, and all of it the bucket owner's
    server side encryption what the disk does; no client may be told that objects are encrypted here
    owners                 a guard: only the one owner that listings show is it
    request payer          nothing is paid
    tags                   there are none to copy or to replace
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from urllib.parse import quote

from aiohttp import web

from segmentstore.s3.authentication import Authenticated
from segmentstore.s3.checksums import (
    ALGORITHMS,
    CHECKSUM_HEADERS,
    HEADER_PREFIX,
)
from segmentstore.s3.errors import S3Error, not_implemented
from segmentstore.s3.request_target import RequestTarget
from segmentstore.s3.xml_documents import branch, http_date, leaf, parse_http_date
from tier2.volumes.objects import ALWAYS, Condition, IndexRecord

OWNER_ID = "segmentstore"
OWNER = branch("Owner", leaf("ID", OWNER_ID), leaf("DisplayName", OWNER_ID))
OWN_PREFIX = "x-amz-"
"""What the names of S3's own headers begin with."""
_NAMES_OF_SIGNATURES = frozenset(
    {
        "x-amz-algorithm",
        "x-amz-content-sha256",
        "x-amz-credential",
        "x-amz-date",
        "x-amz-expires",
        "x-amz-security-token",
        "x-amz-signature",
        "x-amz-signedheaders",
    }
)
_NO_VALUES: frozenset[str] = frozenset()


class _HeaderRefusal(Enum):
    NOT_IMPLEMENTED = auto()
    STORAGE_CLASS = auto()
    OWNER = auto()


@dataclass(frozen=True, slots=True)
class _HeaderRule:
    taken: frozenset[str] = _NO_VALUES
    """Values that mean the same as none."""
    refusal: _HeaderRefusal = _HeaderRefusal.NOT_IMPLEMENTED


_ALWAYS_REFUSED = _HeaderRule()
_OWNER_GUARD = _HeaderRule(frozenset({OWNER_ID}), _HeaderRefusal.OWNER)
_HEADER_RULES: Mapping[str, _HeaderRule] = {
    "x-amz-storage-class": _HeaderRule(frozenset({"STANDARD"}), _HeaderRefusal.STORAGE_CLASS),
    "x-amz-acl": _HeaderRule(frozenset({"private", "bucket-owner-full-control"})),
    "x-amz-object-ownership": _HeaderRule(frozenset({"BucketOwnerEnforced"})),
    "x-amz-server-side-encryption-bucket-key-enabled": _HeaderRule(frozenset({"false"})),
    "x-amz-tagging": _ALWAYS_REFUSED,
    "x-amz-tagging-directive": _HeaderRule(frozenset({"COPY", "REPLACE"})),
    "x-amz-website-redirect-location": _ALWAYS_REFUSED,
    "x-amz-write-offset-bytes": _ALWAYS_REFUSED,
    "x-amz-rename-source": _ALWAYS_REFUSED,
    "x-amz-request-payer": _HeaderRule(frozenset({"requester"})),
    "x-amz-expected-bucket-owner": _OWNER_GUARD,
    "x-amz-source-expected-bucket-owner": _OWNER_GUARD,
    "x-amz-bucket-object-lock-token": _ALWAYS_REFUSED,
}
_REFUSED_PREFIXES = (
    "x-amz-grant-",
    "x-amz-server-side-encryption",
    "x-amz-copy-source-server-side-encryption",
    "x-amz-if-match-",
    "x-amz-rename-source-",
)
_SETTINGS_OF_CHECKSUMS = frozenset({"algorithm", "type", "mode"})
_GUARDS_OF_READS = ("If-Modified-Since", "If-Unmodified-Since", "If-Range")
_SHOWN_NAME_PATTERN = re.compile(r"[a-z0-9-]{1,100}")
_CONDITION_FAILED = "At least one of the conditions of the request does not hold."
_RANGE_PATTERN = re.compile(r"bytes=(\d{0,19})-(\d{0,19})")


@dataclass(slots=True)
class ExpectContinue:
    """The `100 Continue` that a client waits for before it sends a body (`Expect: 100-continue`)."""

    request: web.BaseRequest
    given: bool = False

    @property
    def is_due(self) -> bool:
        """Whether the client still waits for it."""
        return self.request.headers.get("Expect", "").lower() == "100-continue" and not self.given

    async def give(self) -> None:
        """Once, if the client asked."""
        if not self.is_due:
            return
        self.given = True
        await self.request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        # What was written is no part of the answer that follows.
        self.request.writer.output_size = 0


@dataclass(slots=True)
class Call:
    """A request whose signature is right."""

    request: web.BaseRequest
    target: RequestTarget
    authenticated: Authenticated
    request_id: str
    expect_continue: ExpectContinue

    @property
    def bucket(self) -> str:
        return self.target.bucket

    @property
    def query(self) -> dict[str, str]:
        return self.target.query

    def header(self, name: str) -> str | None:
        """What the client says by that name; one of S3's own may stand in the query instead."""
        given = self.request.headers.get(name)
        if given is None and name.lower().startswith(OWN_PREFIX):
            return self._moved.get(name.lower())
        return given

    def flag(self, name: str) -> bool:
        """A header that says true."""
        return (self.header(name) or "").lower() == "true"

    def own_headers(self) -> Iterator[tuple[str, str]]:
        """Those of S3 itself, with names in lower case, each as often as the client says it in the place it chose."""
        for name, value in self.request.headers.items():
            if name.lower().startswith(OWN_PREFIX):
                yield name.lower(), value
        for name, value in self._moved.items():
            if name not in self.request.headers:
                yield name, value

    @property
    def _moved(self) -> dict[str, str]:
        """Headers that the client moved into the query, as many do when they presign."""
        named = ((name.lower(), value) for name, value in self.query.items())
        return {name: value for name, value in named if name.startswith(OWN_PREFIX)}


def requested_algorithm(call: Call) -> str:
    """In lower case; empty: none. Raises S3Error (InvalidRequest)."""
    algorithm = (call.header("x-amz-checksum-algorithm") or "").lower()
    if algorithm and algorithm not in ALGORITHMS:
        raise S3Error("InvalidRequest", "The checksum algorithm is none that is known here.")
    return algorithm


def requested_page_size(call: Call, name: str, most: int) -> int:
    """A page size. Raises S3Error."""
    text = call.query.get(name, "")
    if not text:
        return most
    if not text.isascii() or not text.isdigit() or len(text) > 10 or int(text) > 0x7FFFFFFF:
        raise S3Error("InvalidArgument", f"{name} has to be a number from 0 to 2147483647.")
    return min(int(text), most)


def requested_part_number(call: Call, most: int) -> int:
    """Raises S3Error."""
    text = call.query.get("partNumber", "")
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 8 else 0
    if not 0 < number <= most:
        raise S3Error("InvalidArgument", f"Part number must be an integer between 1 and {most}")
    return number


def requested_key_encoding(call: Call) -> Callable[[bytes], str]:
    """How keys are written in the answer. Raises S3Error."""
    encoding = call.query.get("encoding-type")
    if encoding is None or not encoding:
        return bytes.decode
    if encoding != "url":
        raise S3Error("InvalidArgument", "Invalid Encoding Method specified in Request")
    return lambda key: quote(key, safe="/*-._")


def refuse_unsupported_headers(call: Call) -> None:
    """Raises S3Error: InvalidStorageClass, AccessDenied (another owner), InvalidRequest, NotImplemented."""
    for source in (call.request.headers, call.query):
        for name, value in source.items():
            lower = name.lower()
            if lower.startswith(OWN_PREFIX) and value:
                _refuse_header(lower, value)
    for name, value in call.query.items():
        lower = name.lower()
        if not lower.startswith(OWN_PREFIX) or lower in _NAMES_OF_SIGNATURES:
            continue
        if call.request.headers.get(lower, value) != value:
            shown = lower if _SHOWN_NAME_PATTERN.fullmatch(lower) else "x-amz-..."
            raise S3Error("InvalidRequest", f"The header {shown} says another thing in the query.")
    if call.request.method not in {"GET", "HEAD"}:
        _refuse_guards(call)


def require_known_checksum(name: str) -> None:
    """`name`: of a header, or a trailing one, in lower case. Raises S3Error if it is a checksum of another kind."""
    if not name.startswith(HEADER_PREFIX) or name in CHECKSUM_HEADERS:
        return
    if name.removeprefix(HEADER_PREFIX) not in _SETTINGS_OF_CHECKSUMS:
        shown = name if _SHOWN_NAME_PATTERN.fullmatch(name) else "x-amz-checksum-..."
        raise S3Error("InvalidRequest", f"The checksum {shown} cannot be verified here.")


def _refuse_header(name: str, value: str) -> None:
    require_known_checksum(name)
    rule = _HEADER_RULES.get(name) or (
        _ALWAYS_REFUSED if name.startswith(_REFUSED_PREFIXES) else None
    )
    if rule is None or value in rule.taken:
        return
    match rule.refusal:
        case _HeaderRefusal.STORAGE_CLASS:
            raise S3Error("InvalidStorageClass", "The storage class STANDARD is what there is.")
        case _HeaderRefusal.OWNER:
            raise S3Error("AccessDenied", f"The owner of all buckets here is {OWNER_ID}.")
        case _HeaderRefusal.NOT_IMPLEMENTED:
            raise not_implemented(
                f"The header {name} with that value" if rule.taken else f"The header {name}"
            )


def _refuse_guards(call: Call) -> None:
    """Conditions that a write would not keep, and the part of an object that it would not be."""
    for name in _GUARDS_OF_READS:
        if call.header(name):
            raise not_implemented(f"{name} on a request that changes something")
    if call.header("Content-Range"):
        raise not_implemented("Writing a part of an object by Content-Range")
    if call.request.method == "DELETE" and call.header("If-None-Match"):
        raise not_implemented("If-None-Match on a delete")


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
    return [_etag(each) for each in text.split(",")]


def _etag(text: str) -> str:
    return text.strip().removeprefix("W/").strip('"')


def check_read(call: Call, record: IndexRecord) -> None:
    """Raises S3Error (PreconditionFailed), NotModified."""
    match_ = call.header("If-Match")
    if match_ is not None:
        if not _etag_matches(match_, record):
            raise S3Error("PreconditionFailed", _CONDITION_FAILED)
    elif _changed_since(call.header("If-Unmodified-Since"), record) is True:
        raise S3Error("PreconditionFailed", _CONDITION_FAILED)
    none_match = call.header("If-None-Match")
    if none_match is not None:
        if _etag_matches(none_match, record):
            raise NotModified(record)
    elif _changed_since(call.header("If-Modified-Since"), record) is False:
        raise NotModified(record)


def check_copy_source(call: Call, record: IndexRecord) -> None:
    """The x-amz-copy-source-if-* headers. Raises S3Error (PreconditionFailed)."""
    prefix = "x-amz-copy-source-if-"
    match_, none_match = call.header(prefix + "match"), call.header(prefix + "none-match")
    unmodified = _changed_since(call.header(prefix + "unmodified-since"), record)
    modified = _changed_since(call.header(prefix + "modified-since"), record)
    failed = (
        (match_ is not None and not _etag_matches(match_, record))
        or (match_ is None and unmodified is True)
        or (none_match is not None and _etag_matches(none_match, record))
        or (none_match is None and modified is False)
    )
    if failed:
        raise S3Error("PreconditionFailed", _CONDITION_FAILED)


def write_condition(call: Call) -> Condition:
    """Of a put or a completion. Raises S3Error (NotImplemented)."""
    match_, none_match = call.header("If-Match"), call.header("If-None-Match")
    if none_match is not None and none_match.strip() != "*":
        raise not_implemented("If-None-Match with an etag on a write")
    if match_ is None:
        return Condition(absent=none_match is not None)
    named = etags(match_)
    if len(named) != 1 or named[0] == "*":
        raise not_implemented("If-Match with anything but one etag on a write")
    return Condition(absent=none_match is not None, etag=named[0])


def delete_condition(call: Call) -> Condition:
    """Of a deletion. Raises S3Error (NotImplemented)."""
    match_ = call.header("If-Match")
    if match_ is not None and len(etags(match_)) != 1:
        # As for a put: S3 takes one. To take the first of them alone would delete, or spare, something else.
        raise not_implemented("If-Match with anything but one etag on a delete")
    return condition_on_etag(match_)


def condition_on_etag(text: str | None) -> Condition:
    """Of what a deletion names; in quotes a star is an etag like any other, of no object."""
    if text is None:
        return ALWAYS
    if text.strip() == "*":
        return Condition(present=True)
    return Condition(etag=_etag(text))


def _etag_matches(text: str, record: IndexRecord) -> bool:
    return text.strip() == "*" or record.etag in etags(text)


def _changed_since(text: str | None, record: IndexRecord) -> bool | None:
    moment_ms = None if text is None else parse_http_date(text)
    if moment_ms is None:
        return None
    return record.created_ms // 1000 > moment_ms // 1000


def parse_range(text: str | None) -> tuple[int | None, int | None] | None:
    """(first, last), (first, None) for the rest, (None, count) for a suffix; None for the whole object.

    What is no range of bytes is ignored, as RFC 9110 has it. Raises S3Error for several ranges at once.
    """
    if text is None:
        return None
    compact = text.replace(" ", "")
    if compact.startswith("bytes=") and "," in compact:
        raise S3Error("InvalidRequest", "Please ask for one range at a time.")
    found = _RANGE_PATTERN.fullmatch(compact)
    if found is None:
        return None
    first, last = found.groups()
    if not first and not last:
        return None
    if first and last and int(first) > int(last):
        return None
    return (int(first) if first else None, int(last) if last else None)


def resolve_range(asked: tuple[int | None, int | None], size: int) -> tuple[int, int]:
    """[start, end) of an object of that size. Raises S3Error (InvalidRange)."""
    first, last = asked
    if first is None:
        assert last is not None, "a suffix has a length"
        start, end = max(0, size - last), size
    else:
        start, end = first, size if last is None else min(size, last + 1)
    if start >= end:
        raise S3Error(
            "InvalidRange",
            "The range of bytes that was asked for is not in the object.",
            {"Content-Range": f"bytes */{size}"},
        )
    return start, end
