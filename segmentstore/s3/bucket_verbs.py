"""Verbs about buckets and their settings."""

from aiohttp import web

from segmentstore.s3.body_reader import BodyReader
from segmentstore.s3.bucket_record import ENABLED, SUSPENDED
from segmentstore.s3.buckets import Buckets
from segmentstore.s3.call import Call
from segmentstore.s3.failures import S3Failure
from segmentstore.s3.instants import iso_date
from segmentstore.s3.listing_verbs import OWNER, entries_asked
from segmentstore.s3.object_keys import objects_prefix
from segmentstore.s3.object_lock import parse_mode
from segmentstore.s3.responses import xml_response
from segmentstore.s3.settings import EndpointSettings
from segmentstore.s3.xml_reading import Element, parse
from segmentstore.s3.xml_writing import branch, document, leaf
from tier2.volumes.multipart import MultipartUploads

_YEARS_MAX, _DAYS_MAX = 100, 36_500


class BucketVerbs:
    """Lists, makes, changes and removes buckets."""

    def __init__(
        self,
        *,
        buckets: Buckets,
        uploads: MultipartUploads,
        bodies: BodyReader,
        settings: EndpointSettings,
    ) -> None:
        self._buckets = buckets
        self._uploads = uploads
        self._bodies = bodies
        self._settings = settings

    async def list_buckets(self, call: Call) -> web.StreamResponse:
        """In pages if the client asks for them; the token is the last name that it saw."""
        prefix, after = call.query.get("prefix", ""), call.query.get("continuation-token", "")
        region = call.query.get("bucket-region", "") or self._settings.region
        found = [
            (name, record)
            for name, record in sorted(self._buckets.records.items())
            if name.startswith(prefix) and name > after and region == self._settings.region
        ]
        shown = found[: max(1, entries_asked(call, "max-buckets", len(found)))]
        rows = [
            branch("Bucket", leaf("Name", name), leaf("CreationDate", iso_date(record.created_ms)))
            for name, record in shown
        ]
        facts = [leaf("Prefix", prefix)] if prefix else []
        if len(shown) < len(found):
            facts.append(leaf("ContinuationToken", shown[-1][0]))
        return xml_response(
            document("ListAllMyBucketsResult", OWNER, branch("Buckets", *rows), *facts)
        )

    async def create(self, call: Call) -> web.StreamResponse:
        await self._document(call, "CreateBucketConfiguration", optional=True)
        lock = call.flag("x-amz-bucket-object-lock-enabled")
        await self._buckets.create(call.bucket, lock=lock)
        return web.Response(headers={"Location": f"/{call.bucket}"})

    async def head(self, call: Call) -> web.StreamResponse:
        self._buckets.get(call.bucket)
        return web.Response(headers={"x-amz-bucket-region": self._settings.region})

    async def delete(self, call: Call) -> web.StreamResponse:
        await self._buckets.delete(call.bucket)
        for upload in self._uploads.with_prefix(objects_prefix(call.bucket)):
            await self._uploads.abort(upload)
        return web.Response(status=204)

    async def location(self, call: Call) -> web.StreamResponse:
        self._buckets.get(call.bucket)
        region = "" if self._settings.region == "us-east-1" else self._settings.region
        return xml_response(document("LocationConstraint", region))

    # --- versioning ------------------------------------------------------------------------------

    async def get_versioning(self, call: Call) -> web.StreamResponse:
        status = self._buckets.get(call.bucket).versioning
        facts = [leaf("Status", status)] if status else []
        return xml_response(document("VersioningConfiguration", *facts))

    async def put_versioning(self, call: Call) -> web.StreamResponse:
        order = await self._document(call, "VersioningConfiguration")
        record = self._buckets.get(call.bucket)
        status = order.text_of("Status")
        if status not in {ENABLED, SUSPENDED} or order.text_of("MfaDelete", "Disabled") == ENABLED:
            raise S3Failure("MalformedXML", "The versioning status is Enabled or Suspended.")
        if record.lock and status == SUSPENDED:
            raise S3Failure("InvalidBucketState", "A bucket with object lock stays versioned.")
        await self._buckets.change(call.bucket, versioning=status)
        return web.Response()

    # --- object lock -----------------------------------------------------------------------------

    async def get_lock(self, call: Call) -> web.StreamResponse:
        record = self._buckets.get(call.bucket)
        if not record.lock:
            raise S3Failure(
                "ObjectLockConfigurationNotFoundError",
                "Object Lock configuration does not exist for this bucket",
            )
        facts = [leaf("ObjectLockEnabled", ENABLED)]
        if record.default_mode:
            days, years = record.default_days, record.default_years
            length = leaf("Days", days) if days else leaf("Years", years)
            retention = branch("DefaultRetention", leaf("Mode", record.default_mode), length)
            facts.append(branch("Rule", retention))
        return xml_response(document("ObjectLockConfiguration", *facts))

    async def put_lock(self, call: Call) -> web.StreamResponse:
        order = await self._document(call, "ObjectLockConfiguration")
        record = self._buckets.get(call.bucket)
        if order.text_of("ObjectLockEnabled", ENABLED) != ENABLED:
            raise S3Failure("MalformedXML", "Object lock cannot be anything but Enabled.")
        if record.versioning != ENABLED:
            raise S3Failure("InvalidBucketState", "Object lock needs a versioned bucket.")
        mode, days, years = "", 0, 0
        rule = order.find("Rule")
        retention = None if rule is None else rule.find("DefaultRetention")
        if retention is not None:
            mode = parse_mode(retention.text_of("Mode")).value
            days, years = _count(retention, "Days"), _count(retention, "Years")
            if bool(days) == bool(years) or days > _DAYS_MAX or years > _YEARS_MAX:
                raise S3Failure("MalformedXML", "A default retention has days or years.")
        await self._buckets.change(
            call.bucket, lock=True, default_mode=mode, default_days=days, default_years=years
        )
        return web.Response()

    async def _document(self, call: Call, root: str, *, optional: bool = False) -> Element:
        async with self._bodies.read(call, self._settings.document_bytes_max) as body:
            if optional and not body.length:
                return Element(root)
            return parse(body.joined(), root)


def _count(element: Element, name: str) -> int:
    text = element.text_of(name, "0")
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise S3Failure("MalformedXML", f"{name} has to be a number.")
    return int(text)
