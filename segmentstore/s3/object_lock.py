"""Retention and legal hold of one version: headers of a put, documents of their own, and the handlers of these."""

from dataclasses import dataclass

from aiohttp import web

from segmentstore.runtime.clock import WallClock
from segmentstore.s3.buckets import BucketRecord, Buckets, parse_mode
from segmentstore.s3.errors import S3Error
from segmentstore.s3.object_reading import ObjectReadHandlers, requested_version
from segmentstore.s3.request import Call
from segmentstore.s3.request_body import BodyReader
from segmentstore.s3.request_target import object_key
from segmentstore.s3.xml_documents import (
    Element,
    document,
    iso_date,
    leaf,
    parse_iso_date,
    xml_response,
)
from tier2.volumes.engine import VolumeEngine
from tier2.volumes.objects import RetentionMode

_MODE_HEADER = "x-amz-object-lock-mode"
_UNTIL_HEADER = "x-amz-object-lock-retain-until-date"
_HOLD_HEADER = "x-amz-object-lock-legal-hold"
_BYPASS_HEADER = "x-amz-bypass-governance-retention"
_NO_LOCK_OF_BUCKET = "Bucket is missing Object Lock Configuration"
_NO_LOCK_OF_OBJECT = "The specified object does not have a ObjectLock configuration"


@dataclass(frozen=True, slots=True)
class RequestedLock:
    """What a new version is locked with."""

    retention: tuple[RetentionMode, int] | None
    legal_hold: bool


def requested_lock(call: Call, bucket: BucketRecord, wall_clock: WallClock) -> RequestedLock:
    """From the headers, or the bucket's default. Raises S3Error."""
    mode, until, hold = (
        call.header(_MODE_HEADER),
        call.header(_UNTIL_HEADER),
        call.header(_HOLD_HEADER),
    )
    if not bucket.lock:
        if mode or until or hold:
            raise S3Error("InvalidRequest", _NO_LOCK_OF_BUCKET)
        return RequestedLock(None, legal_hold=False)
    now_ms = wall_clock.now_ms()
    if bool(mode) != bool(until):
        raise S3Error("InvalidArgument", f"{_MODE_HEADER} and {_UNTIL_HEADER} come together.")
    if mode and until:
        retention: tuple[RetentionMode, int] | None = (
            parse_mode(mode),
            _future_date(until, now_ms),
        )
    else:
        retention = bucket.default_retention(now_ms)
    return RequestedLock(retention, legal_hold=parse_hold(hold or "OFF"))


def require_lock(bucket: BucketRecord) -> None:
    """Raises S3Error."""
    if not bucket.lock:
        raise S3Error("InvalidRequest", _NO_LOCK_OF_BUCKET)


def bypasses_governance(call: Call) -> bool:
    """Every client that has the key may."""
    return call.flag(_BYPASS_HEADER)


class ObjectLockHandlers:
    """Shows and changes locks."""

    def __init__(
        self,
        *,
        engine: VolumeEngine,
        reading: ObjectReadHandlers,
        buckets: Buckets,
        bodies: BodyReader,
        wall_clock: WallClock,
    ) -> None:
        self._engine = engine
        self._reading = reading
        self._buckets = buckets
        self._bodies = bodies
        self._wall_clock = wall_clock

    async def get_retention(self, call: Call) -> web.StreamResponse:
        require_lock(self._buckets.get(call.bucket))
        record = await self._reading.find(call)
        if record.retention_mode is None:
            raise S3Error("NoSuchObjectLockConfiguration", _NO_LOCK_OF_OBJECT)
        return xml_response(
            document(
                "Retention",
                leaf("Mode", record.retention_mode.value),
                leaf("RetainUntilDate", iso_date(record.retain_until_ms)),
            )
        )

    async def put_retention(self, call: Call) -> web.StreamResponse:
        order = await self._bodies.read_document(call, "Retention")
        retention = parse_retention(order, self._wall_clock.now_ms())
        async with self._buckets.writing(call.bucket) as bucket:
            require_lock(bucket)
            await self._reading.find(call)
            await self._engine.change_lock(
                object_key(call.bucket, call.target.key),
                version_id=requested_version(call.query),
                retention=retention,
                bypass_governance=bypasses_governance(call),
            )
        return web.Response()

    async def get_legal_hold(self, call: Call) -> web.StreamResponse:
        require_lock(self._buckets.get(call.bucket))
        record = await self._reading.find(call)
        return xml_response(
            document("LegalHold", leaf("Status", "ON" if record.legal_hold else "OFF"))
        )

    async def put_legal_hold(self, call: Call) -> web.StreamResponse:
        order = await self._bodies.read_document(call, "LegalHold")
        hold = parse_hold(order.text_of("Status"))
        async with self._buckets.writing(call.bucket) as bucket:
            require_lock(bucket)
            await self._reading.find(call)
            await self._engine.change_lock(
                object_key(call.bucket, call.target.key),
                version_id=requested_version(call.query),
                legal_hold=hold,
            )
        return web.Response()


def parse_hold(text: str) -> bool:
    """Raises S3Error."""
    if text not in {"ON", "OFF"}:
        raise S3Error("InvalidArgument", "A legal hold is ON or OFF.")
    return text == "ON"


def parse_retention(document: Element, now_ms: int) -> tuple[RetentionMode | None, int]:
    """Of a Retention document; an empty one ends it. Raises S3Error."""
    mode, until = document.text_of("Mode"), document.text_of("RetainUntilDate")
    if not mode and not until:
        return None, 0
    if not mode or not until:
        raise S3Error("MalformedXML", "A retention has a mode and a date.")
    return parse_mode(mode), _future_date(until, now_ms)


def _future_date(text: str, now_ms: int) -> int:
    try:
        until_ms = parse_iso_date(text)
    except ValueError as error:
        raise S3Error("InvalidArgument", "The date of the retention cannot be read.") from error
    if until_ms <= now_ms:
        raise S3Error("InvalidArgument", "The retain until date must be in the future!")
    return until_ms
