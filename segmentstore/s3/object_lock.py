"""Retention and legal hold: as headers of a put, and as documents of their own."""

from dataclasses import dataclass

from segmentstore.runtime.clock import WallClock
from segmentstore.s3.bucket_record import BucketRecord
from segmentstore.s3.call import Call
from segmentstore.s3.failures import S3Failure
from segmentstore.s3.instants import parse_iso_date
from segmentstore.s3.xml_reading import Element
from tier2.volumes.index_record import RetentionMode

_MODE = "x-amz-object-lock-mode"
_UNTIL = "x-amz-object-lock-retain-until-date"
_HOLD = "x-amz-object-lock-legal-hold"
_BYPASS = "x-amz-bypass-governance-retention"
_NO_LOCK = "Bucket is missing Object Lock Configuration"


@dataclass(frozen=True, slots=True)
class LockOfPut:
    """What a new version is locked with."""

    retention: tuple[RetentionMode, int] | None
    legal_hold: bool


def lock_of_put(call: Call, bucket: BucketRecord, wall_clock: WallClock) -> LockOfPut:
    """From the headers, or the bucket's default. Raises S3Failure."""
    mode, until, hold = call.header(_MODE), call.header(_UNTIL), call.header(_HOLD)
    if not bucket.lock:
        if mode or until or hold:
            raise S3Failure("InvalidRequest", _NO_LOCK)
        return LockOfPut(None, legal_hold=False)
    now_ms = wall_clock.now_ms()
    if bool(mode) != bool(until):
        raise S3Failure("InvalidArgument", f"{_MODE} and {_UNTIL} come together.")
    if mode and until:
        retention: tuple[RetentionMode, int] | None = (parse_mode(mode), _future(until, now_ms))
    else:
        retention = bucket.default_retention(now_ms)
    return LockOfPut(retention, legal_hold=parse_hold(hold or "OFF"))


def require_lock(bucket: BucketRecord) -> None:
    """Raises S3Failure."""
    if not bucket.lock:
        raise S3Failure("InvalidRequest", _NO_LOCK)


def bypasses_governance(call: Call) -> bool:
    """Whoever has the key may."""
    return call.flag(_BYPASS)


def parse_mode(text: str) -> RetentionMode:
    """Raises S3Failure."""
    try:
        return RetentionMode(text)
    except ValueError as error:
        raise S3Failure("InvalidArgument", "Unknown object lock mode.") from error


def parse_hold(text: str) -> bool:
    """Raises S3Failure."""
    if text not in {"ON", "OFF"}:
        raise S3Failure("InvalidArgument", "A legal hold is ON or OFF.")
    return text == "ON"


def parse_retention(document: Element, now_ms: int) -> tuple[RetentionMode | None, int]:
    """Of a Retention document; an empty one ends it. Raises S3Failure."""
    mode, until = document.text_of("Mode"), document.text_of("RetainUntilDate")
    if not mode and not until:
        return None, 0
    if not mode or not until:
        raise S3Failure("MalformedXML", "A retention has a mode and a date.")
    return parse_mode(mode), _future(until, now_ms)


def _future(text: str, now_ms: int) -> int:
    try:
        until_ms = parse_iso_date(text)
    except ValueError as error:
        raise S3Failure("InvalidArgument", "The date of the retention cannot be read.") from error
    if until_ms <= now_ms:
        raise S3Failure("InvalidArgument", "The retain until date must be in the future!")
    return until_ms
