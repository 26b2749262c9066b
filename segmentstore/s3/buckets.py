"""Buckets: the record of each, all of them in memory and in the engine, and the handlers of requests about them.

The record of a bucket is a small object in the engine, a JSON object of format 1:

    {"format": 1, "created_ms": 0, "versioning": "" | "Enabled" | "Suspended", "lock": false,
     "default_mode": "" | "GOVERNANCE" | "COMPLIANCE", "default_days": 0, "default_years": 0}

Invariants:

- A bucket with object lock is versioned; a default retention has days or years, not both.
- The process that holds the engine is the only one that changes buckets, so memory is the truth once start() has read.
- A bucket goes only when nothing is in it, and no request writes into it meanwhile: handlers that write hold it. While
  that is being found out it is there for all clients, and requests that write wait for what is decided.
- Uploads go before their bucket: none of them shows in a later bucket of that name.
- Changes of buckets are made one at a time, each as one task from the engine to memory: a caller that leaves takes
  nothing of it back, so what reads say is what the next start finds.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace

from aiohttp import web

from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.runtime.cancellation import ChangeTasks
from segmentstore.runtime.clock import WallClock
from segmentstore.s3.errors import S3Error
from segmentstore.s3.request import OWNER, Call, requested_page_size
from segmentstore.s3.request_body import BodyReader
from segmentstore.s3.request_target import BUCKETS, bucket_key, objects_prefix
from segmentstore.s3.settings import EndpointSettings
from segmentstore.s3.xml_documents import (
    Element,
    branch,
    document,
    iso_date,
    leaf,
    xml_response,
)
from tier2.volumes.engine import VolumeEngine
from tier2.volumes.multipart import MultipartUploads
from tier2.volumes.objects import RetentionMode

ENABLED, SUSPENDED = "Enabled", "Suspended"
_BUCKET_RECORD_FORMAT = 1
_BUCKET_NAME_PATTERN = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_IP_ADDRESS_PATTERN = re.compile(r"\d+\.\d+\.\d+\.\d+")
_DAY_MS = 24 * 3600 * 1000
_YEAR_DAYS = 365
_RETENTION_YEARS_MAX, _RETENTION_DAYS_MAX = 100, 36_500


@dataclass(frozen=True, slots=True)
class BucketRecord:
    """A bucket."""

    created_ms: int
    versioning: str = ""
    """Empty: never enabled."""
    lock: bool = False
    default_mode: str = ""
    default_days: int = 0
    default_years: int = 0

    def default_retention(self, now_ms: int) -> tuple[RetentionMode, int] | None:
        """What a new version gets that names no retention itself: mode and Unix milliseconds."""
        if not self.default_mode:
            return None
        days = self.default_days + self.default_years * _YEAR_DAYS
        return RetentionMode(self.default_mode), now_ms + days * _DAY_MS


def is_bucket_name(name: str) -> bool:
    """By the rules of S3, as far as they are about form."""
    return (
        bool(_BUCKET_NAME_PATTERN.fullmatch(name))
        and ".." not in name
        and not _IP_ADDRESS_PATTERN.fullmatch(name)
    )


def encode_bucket_record(record: BucketRecord) -> bytes:
    """See the module."""
    return json.dumps({"format": _BUCKET_RECORD_FORMAT, **asdict(record)}).encode()


def decode_bucket_record(content: bytes) -> BucketRecord:
    """Raises CorruptedDataError."""
    try:
        fields = json.loads(content)
        if fields.pop("format") != _BUCKET_RECORD_FORMAT:
            raise ValueError("another format")
        return BucketRecord(**fields)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptedDataError(f"not the record of a bucket: {content[:200]!r}") from error


class Buckets:
    """All buckets, by name; start() first."""

    def __init__(
        self,
        *,
        engine: VolumeEngine,
        wall_clock: WallClock,
        settings: EndpointSettings,
    ) -> None:
        self._engine = engine
        self._wall_clock = wall_clock
        self._settings = settings
        self._records: dict[str, BucketRecord] = {}
        self._writers: dict[str, int] = {}
        self._going: dict[str, asyncio.Event] = {}
        """Buckets of which it is not decided yet whether they go."""
        self._changing = asyncio.Lock()
        self._changes = ChangeTasks()

    async def close(self) -> None:
        """What is under way is over: the engine may be closed then. Idempotent."""
        await self._changes.join()

    async def start(self) -> None:
        """Read the records. Raises StorageError."""
        listed = await self._engine.list(BUCKETS, limit=self._settings.buckets_max)
        for row in listed:
            found = await self._engine.get(row.key)
            self._records[row.key[len(BUCKETS) :].decode()] = decode_bucket_record(found.content)

    @property
    def records(self) -> Mapping[str, BucketRecord]:
        return self._records

    def get(self, name: str) -> BucketRecord:
        """Raises S3Error (NoSuchBucket)."""
        found = self._records.get(name)
        if found is None:
            raise S3Error("NoSuchBucket", "The specified bucket does not exist.")
        return found

    @asynccontextmanager
    async def writing(self, name: str) -> AsyncIterator[BucketRecord]:
        """The bucket stays while the block lasts. Raises S3Error."""
        while (going := self._going.get(name)) is not None:
            await going.wait()
        record = self.get(name)
        self._writers[name] = self._writers.get(name, 0) + 1
        try:
            yield record
        finally:
            self._writers[name] -= 1
            if not self._writers[name]:
                del self._writers[name]

    async def create(self, name: str, *, lock: bool) -> None:
        """Raises S3Error."""
        if not is_bucket_name(name):
            raise S3Error("InvalidBucketName", "The specified bucket is not valid.")
        await self._changes.run(self._create(name, lock=lock))

    async def _create(self, name: str, *, lock: bool) -> None:
        async with self._changing:
            if name in self._records:
                raise S3Error("BucketAlreadyOwnedByYou", "The bucket exists, and is yours.")
            if len(self._records) >= self._settings.buckets_max:
                raise S3Error("TooManyBuckets", "There are as many buckets as there can be.")
            record = BucketRecord(
                created_ms=self._wall_clock.now_ms(),
                versioning="Enabled" if lock else "",
                lock=lock,
            )
            await self._store(name, record)

    async def change(
        self,
        name: str,
        may_change: Callable[[BucketRecord], None] = lambda _: None,
        /,
        **changes: str | int | bool,
    ) -> None:
        """Other values of the record. `may_change` raises S3Error if the record, as no other change is at it, forbids
        that. Raises S3Error."""
        await self._changes.run(self._change(name, may_change, changes))

    async def _change(
        self,
        name: str,
        may_change: Callable[[BucketRecord], None],
        changes: Mapping[str, str | int | bool],
    ) -> None:
        async with self._changing:
            record = self.get(name)
            may_change(record)
            await self._store(name, replace(record, **changes))  # type: ignore[arg-type]  # by name

    async def delete(
        self, name: str, *, end_uploads: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """`end_uploads` is called when nothing is in the bucket. Raises S3Error (BucketNotEmpty)."""
        await self._changes.run(self._delete(name, end_uploads))

    async def _delete(self, name: str, end_uploads: Callable[[], Awaitable[None]] | None) -> None:
        async with self._changing:
            self.get(name)
            if name in self._writers:
                raise S3Error("BucketNotEmpty", "The bucket is being written to.")
            # From here on no request begins to write; what is there already shows in the listing.
            going = self._going[name] = asyncio.Event()
            try:
                # The queue makes puts whose callers are gone all the same. No object has this key: its deletion does
                # nothing but come behind them.
                await self._engine.delete(objects_prefix(name))
                if await self._engine.list_all_versions(
                    objects_prefix(name), limit=1, versions_max=1
                ):
                    raise S3Error("BucketNotEmpty", "The bucket is not empty.")
                if end_uploads is not None:
                    await end_uploads()
                # Gone from memory even if this fails: an empty bucket that comes back with the next start does
                # no harm, objects in a bucket whose record is gone would be lost.
                del self._records[name]
                await self._engine.delete(bucket_key(name))
            finally:
                del self._going[name]
                going.set()

    async def _store(self, name: str, record: BucketRecord) -> None:
        await self._engine.put(bucket_key(name), [encode_bucket_record(record)])
        self._records[name] = record


class BucketHandlers:
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
        shown = found[: max(1, requested_page_size(call, "max-buckets", len(found)))]
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
        await self._bodies.read_document(call, "CreateBucketConfiguration", optional=True)
        lock = call.flag("x-amz-bucket-object-lock-enabled")
        await self._buckets.create(call.bucket, lock=lock)
        return web.Response(headers={"Location": f"/{call.bucket}"})

    async def head(self, call: Call) -> web.StreamResponse:
        self._buckets.get(call.bucket)
        return web.Response(headers={"x-amz-bucket-region": self._settings.region})

    async def delete(self, call: Call) -> web.StreamResponse:
        async def end_uploads() -> None:
            for upload in self._uploads.with_prefix(objects_prefix(call.bucket)):
                await self._uploads.abort(upload)

        await self._buckets.delete(call.bucket, end_uploads=end_uploads)
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
        order = await self._bodies.read_document(call, "VersioningConfiguration")
        record = self._buckets.get(call.bucket)
        status = order.text_of("Status")
        if status not in {ENABLED, SUSPENDED} or order.text_of("MfaDelete", "Disabled") == ENABLED:
            raise S3Error("MalformedXML", "The versioning status is Enabled or Suspended.")

        def may_change(record: BucketRecord) -> None:
            if record.lock and status == SUSPENDED:
                raise S3Error("InvalidBucketState", "A bucket with object lock stays versioned.")

        may_change(record)
        await self._buckets.change(call.bucket, may_change, versioning=status)
        return web.Response()

    # --- object lock -----------------------------------------------------------------------------

    async def get_lock(self, call: Call) -> web.StreamResponse:
        record = self._buckets.get(call.bucket)
        if not record.lock:
            raise S3Error(
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
        order = await self._bodies.read_document(call, "ObjectLockConfiguration")
        record = self._buckets.get(call.bucket)
        if order.text_of("ObjectLockEnabled", ENABLED) != ENABLED:
            raise S3Error("MalformedXML", "Object lock cannot be anything but Enabled.")

        def may_change(record: BucketRecord) -> None:
            if record.versioning != ENABLED:
                raise S3Error("InvalidBucketState", "Object lock needs a versioned bucket.")

        may_change(record)
        mode, days, years = "", 0, 0
        rule = order.find("Rule")
        retention = None if rule is None else rule.find("DefaultRetention")
        if retention is not None:
            mode = parse_mode(retention.text_of("Mode")).value
            days, years = (
                _count_in_document(retention, "Days"),
                _count_in_document(retention, "Years"),
            )
            if (
                bool(days) == bool(years)
                or days > _RETENTION_DAYS_MAX
                or years > _RETENTION_YEARS_MAX
            ):
                raise S3Error("MalformedXML", "A default retention has days or years.")
        await self._buckets.change(
            call.bucket,
            may_change,
            lock=True,
            default_mode=mode,
            default_days=days,
            default_years=years,
        )
        return web.Response()


def parse_mode(text: str) -> RetentionMode:
    """Raises S3Error."""
    try:
        return RetentionMode(text)
    except ValueError as error:
        raise S3Error("InvalidArgument", "Unknown object lock mode.") from error


def _count_in_document(element: Element, name: str) -> int:
    text = element.text_of(name, "0")
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise S3Error("MalformedXML", f"{name} has to be a number.")
    return int(text)
