"""The buckets: all of them in memory, each with a small object of its own in the engine.

Invariants:

- The process that holds the engine is the only one that changes buckets, so memory is the truth once start() has read.
- A bucket goes only when nothing is in it, and nobody writes into it meanwhile: verbs that write hold it.
- Changes of buckets are made one at a time.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

from segmentstore.runtime.clock import WallClock
from segmentstore.s3.bucket_record import (
    BucketRecord,
    decode_bucket_record,
    encode_bucket_record,
    is_bucket_name,
)
from segmentstore.s3.failures import S3Failure
from segmentstore.s3.object_keys import BUCKETS, bucket_key, objects_prefix
from segmentstore.s3.settings import EndpointSettings
from segmentstore.s3.version_scan import VersionScan
from tier2.volumes.engine import VolumeEngine


class Buckets:
    """start() first."""

    def __init__(
        self,
        *,
        engine: VolumeEngine,
        scan: VersionScan,
        wall_clock: WallClock,
        settings: EndpointSettings,
    ) -> None:
        self._engine = engine
        self._scan = scan
        self._wall_clock = wall_clock
        self._settings = settings
        self._records: dict[str, BucketRecord] = {}
        self._writers: dict[str, int] = {}
        self._changing = asyncio.Lock()

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
        """Raises S3Failure (NoSuchBucket)."""
        found = self._records.get(name)
        if found is None:
            raise S3Failure("NoSuchBucket", "The specified bucket does not exist.")
        return found

    @asynccontextmanager
    async def writing(self, name: str) -> AsyncIterator[BucketRecord]:
        """The bucket stays while the block lasts. Raises S3Failure."""
        record = self.get(name)
        self._writers[name] = self._writers.get(name, 0) + 1
        try:
            yield record
        finally:
            self._writers[name] -= 1
            if not self._writers[name]:
                del self._writers[name]

    async def create(self, name: str, *, lock: bool) -> None:
        """Raises S3Failure."""
        if not is_bucket_name(name):
            raise S3Failure("InvalidBucketName", "The specified bucket is not valid.")
        async with self._changing:
            if name in self._records:
                raise S3Failure("BucketAlreadyOwnedByYou", "The bucket exists, and is yours.")
            if len(self._records) >= self._settings.buckets_max:
                raise S3Failure("TooManyBuckets", "There are as many buckets as there can be.")
            record = BucketRecord(
                created_ms=self._wall_clock.now_ms(),
                versioning="Enabled" if lock else "",
                lock=lock,
            )
            await self._store(name, record)

    async def change(self, name: str, **changes: str | int | bool) -> None:
        """Other values of the record. Raises S3Failure."""
        async with self._changing:
            await self._store(name, replace(self.get(name), **changes))  # type: ignore[arg-type]  # by name

    async def delete(self, name: str) -> None:
        """Raises S3Failure (BucketNotEmpty)."""
        async with self._changing:
            record = self.get(name)
            if name in self._writers:
                raise S3Failure("BucketNotEmpty", "The bucket is being written to.")
            # From here on nobody can begin to write; what is there already shows in the scan.
            del self._records[name]
            try:
                # The line makes puts whose callers are gone all the same. No object has this key: its deletion does
                # nothing but come behind them.
                await self._engine.delete(objects_prefix(name))
                is_empty = await self._scan.is_empty(name)
            except BaseException:
                self._records[name] = record
                raise
            if not is_empty:
                self._records[name] = record
                raise S3Failure("BucketNotEmpty", "The bucket is not empty.")
            # Gone from memory even if this fails or is given up: an empty bucket that comes back with the next start
            # harms nobody, objects in a bucket whose record is gone would be lost.
            await self._engine.delete(bucket_key(name))

    async def _store(self, name: str, record: BucketRecord) -> None:
        await self._engine.put(bucket_key(name), [encode_bucket_record(record)])
        self._records[name] = record
