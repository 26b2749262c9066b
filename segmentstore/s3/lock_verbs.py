"""Retention and legal hold of one version."""

from aiohttp import web

from segmentstore.runtime.clock import WallClock
from segmentstore.s3.body_reader import BodyReader
from segmentstore.s3.buckets import Buckets
from segmentstore.s3.call import Call
from segmentstore.s3.failures import S3Failure
from segmentstore.s3.instants import iso_date
from segmentstore.s3.object_keys import object_key
from segmentstore.s3.object_lock import (
    bypasses_governance,
    parse_hold,
    parse_retention,
    require_lock,
)
from segmentstore.s3.object_reading import ObjectReading, asked_version
from segmentstore.s3.responses import xml_response
from segmentstore.s3.settings import EndpointSettings
from segmentstore.s3.xml_reading import Element, parse
from segmentstore.s3.xml_writing import document, leaf
from tier2.volumes.engine import VolumeEngine

_NONE = "The specified object does not have a ObjectLock configuration"


class LockVerbs:
    """Shows and changes locks."""

    def __init__(
        self,
        *,
        engine: VolumeEngine,
        reading: ObjectReading,
        buckets: Buckets,
        bodies: BodyReader,
        wall_clock: WallClock,
        settings: EndpointSettings,
    ) -> None:
        self._engine = engine
        self._reading = reading
        self._buckets = buckets
        self._bodies = bodies
        self._wall_clock = wall_clock
        self._settings = settings

    async def get_retention(self, call: Call) -> web.StreamResponse:
        require_lock(self._buckets.get(call.bucket))
        record = await self._reading.find(call)
        if record.retention_mode is None:
            raise S3Failure("NoSuchObjectLockConfiguration", _NONE)
        return xml_response(
            document(
                "Retention",
                leaf("Mode", record.retention_mode.value),
                leaf("RetainUntilDate", iso_date(record.retain_until_ms)),
            )
        )

    async def put_retention(self, call: Call) -> web.StreamResponse:
        order = await self._document(call, "Retention")
        retention = parse_retention(order, self._wall_clock.now_ms())
        async with self._buckets.writing(call.bucket) as bucket:
            require_lock(bucket)
            await self._reading.find(call)
            await self._engine.change_lock(
                object_key(call.bucket, call.target.key),
                version_id=asked_version(call.query),
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
        order = await self._document(call, "LegalHold")
        hold = parse_hold(order.text_of("Status"))
        async with self._buckets.writing(call.bucket) as bucket:
            require_lock(bucket)
            await self._reading.find(call)
            await self._engine.change_lock(
                object_key(call.bucket, call.target.key),
                version_id=asked_version(call.query),
                legal_hold=hold,
            )
        return web.Response()

    async def _document(self, call: Call, root: str) -> Element:
        async with self._bodies.read(call, self._settings.document_bytes_max) as body:
            return parse(body.joined(), root)
