"""Headers of S3 that would change what a request means, and that this endpoint does not do: refused, for every verb.

Invariant: one that is taken is either done, or means here what leaving it out means. The table says which is which; a
header may stand in the query too, where clients that presign put it.

    storage class          STANDARD is what there is
    access control lists   whoever has the key has everything: `private`, and all of it the bucket owner's
    server side encryption what the disk does; nobody may be told that objects are encrypted here
    owners                 a guard: only the one owner that listings show is it
    request payer          nobody pays
    tags                   there are none to copy or to replace
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

from segmentstore.s3.call import Call
from segmentstore.s3.checksums import CHECKSUM_HEADERS, HEADER_PREFIX
from segmentstore.s3.failures import S3Failure, not_implemented

OWNER_ID = "segmentstore"
_NONE: frozenset[str] = frozenset()


class _Refusal(Enum):
    NOT_IMPLEMENTED = auto()
    STORAGE_CLASS = auto()
    OWNER = auto()


@dataclass(frozen=True, slots=True)
class _Rule:
    taken: frozenset[str] = _NONE
    """Values that mean the same as none."""
    refusal: _Refusal = _Refusal.NOT_IMPLEMENTED


_REFUSED = _Rule()
_OWNER = _Rule(frozenset({OWNER_ID}), _Refusal.OWNER)
_HEADERS: Mapping[str, _Rule] = {
    "x-amz-storage-class": _Rule(frozenset({"STANDARD"}), _Refusal.STORAGE_CLASS),
    "x-amz-acl": _Rule(frozenset({"private", "bucket-owner-full-control"})),
    "x-amz-object-ownership": _Rule(frozenset({"BucketOwnerEnforced"})),
    "x-amz-server-side-encryption-bucket-key-enabled": _Rule(frozenset({"false"})),
    "x-amz-tagging": _REFUSED,
    "x-amz-tagging-directive": _Rule(frozenset({"COPY", "REPLACE"})),
    "x-amz-website-redirect-location": _REFUSED,
    "x-amz-write-offset-bytes": _REFUSED,
    "x-amz-rename-source": _REFUSED,
    "x-amz-request-payer": _Rule(frozenset({"requester"})),
    "x-amz-expected-bucket-owner": _OWNER,
    "x-amz-source-expected-bucket-owner": _OWNER,
    "x-amz-bucket-object-lock-token": _REFUSED,
}
_PREFIXES = (
    "x-amz-grant-",
    "x-amz-server-side-encryption",
    "x-amz-copy-source-server-side-encryption",
    "x-amz-if-match-",
    "x-amz-rename-source-",
)
_SETTINGS_OF_CHECKSUMS = frozenset({"algorithm", "type", "mode"})
_GUARDS_OF_READS = ("If-Modified-Since", "If-Unmodified-Since", "If-Range")
_NAMES_ARE_SEEN = re.compile(r"[a-z0-9-]{1,100}")


def refuse_foreign_headers(call: Call) -> None:
    """Raises S3Failure: InvalidStorageClass, AccessDenied (another owner), InvalidRequest, NotImplemented."""
    for source in (call.request.headers, call.query):
        for name, value in source.items():
            lower = name.lower()
            if lower.startswith("x-amz-") and value:
                _refuse(lower, value)
    if call.request.method not in {"GET", "HEAD"}:
        _refuse_guards(call)


def require_known_checksum(name: str) -> None:
    """`name`: of a header, or a trailing one, in lower case. Raises S3Failure if it is a checksum of another kind."""
    if not name.startswith(HEADER_PREFIX) or name in CHECKSUM_HEADERS:
        return
    if name.removeprefix(HEADER_PREFIX) not in _SETTINGS_OF_CHECKSUMS:
        shown = name if _NAMES_ARE_SEEN.fullmatch(name) else "x-amz-checksum-..."
        raise S3Failure("InvalidRequest", f"The checksum {shown} cannot be verified here.")


def _refuse(name: str, value: str) -> None:
    require_known_checksum(name)
    rule = _HEADERS.get(name) or (_REFUSED if name.startswith(_PREFIXES) else None)
    if rule is None or value in rule.taken:
        return
    match rule.refusal:
        case _Refusal.STORAGE_CLASS:
            raise S3Failure("InvalidStorageClass", "The storage class STANDARD is what there is.")
        case _Refusal.OWNER:
            raise S3Failure("AccessDenied", f"The owner of all buckets here is {OWNER_ID}.")
        case _Refusal.NOT_IMPLEMENTED:
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
