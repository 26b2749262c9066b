"""ListObjects, ListObjectsV2 and ListObjectVersions: pages of keys.

Entries come in order; keys that share a prefix up to a delimiter are rolled up.

Invariants:

- A page is a walk over the order of the keys; behind a rolled-up prefix it jumps, so a directory of a million keys
  costs one row.
- A page says where the next one starts, by a place between keys that no client needs to understand.
"""

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aiohttp import web

from segmentstore.s3.buckets import Buckets
from segmentstore.s3.errors import S3Error
from segmentstore.s3.object_metadata import version_text
from segmentstore.s3.request import (
    OWNER,
    Call,
    requested_key_encoding,
    requested_page_size,
)
from segmentstore.s3.request_target import BEYOND, objects_prefix, stored_version_id
from segmentstore.s3.settings import EndpointSettings
from segmentstore.s3.xml_documents import branch, document, iso_date, leaf, xml_response
from tier2.volumes.engine import VolumeEngine
from tier2.volumes.objects import IndexRecord, KeyVersions

_LISTED_ROWS_MAX = 1000
_LISTED_ROWS_MIN = 16
_SCAN_KEYS_MIN, _SCAN_KEYS_MAX = 4, 128
"""At once: few until it turns out that keys have few versions."""


@dataclass(frozen=True, slots=True)
class Page:
    """One page."""

    objects: Sequence[tuple[bytes, IndexRecord]]
    prefixes: Sequence[bytes]
    next_after: bytes | None
    """Keys behind it are on the next page; None if this is the last one."""
    last_entry: bytes
    """The last key or prefix that is shown."""


def common_prefix_of(key: bytes, prefix: bytes, delimiter: bytes) -> bytes | None:
    """What stands for a key, if it is not shown itself."""
    if not delimiter:
        return None
    found = key.find(delimiter, len(prefix))
    return None if found < 0 else key[: found + len(delimiter)]


def place_after_marker(marker: bytes, prefix: bytes, delimiter: bytes) -> bytes:
    """Where to go on after a key or a rolled-up prefix that a client saw last."""
    is_prefix = bool(delimiter) and marker.startswith(prefix) and marker.endswith(delimiter)
    if is_prefix and common_prefix_of(marker, prefix, delimiter) == marker:
        return marker + BEYOND
    return marker


class Listing:
    """Lists current versions of a bucket."""

    def __init__(self, *, engine: VolumeEngine) -> None:
        self._engine = engine

    async def page(
        self, bucket: str, *, prefix: bytes, delimiter: bytes, after: bytes, limit: int
    ) -> Page:
        """At most `limit` entries. O(entries), each a row of the index."""
        root = objects_prefix(bucket)
        objects: list[tuple[bytes, IndexRecord]] = []
        prefixes: list[bytes] = []
        last_entry = b""
        next_after = after
        # With a delimiter most rows may be rolled up: few are asked for until that turns out to be otherwise.
        ask = _LISTED_ROWS_MIN if delimiter else _LISTED_ROWS_MAX
        while limit:
            count = min(ask, max(limit - len(objects) - len(prefixes) + 1, _LISTED_ROWS_MIN))
            shown = len(prefixes)
            start_after = root + after if after else b""
            rows = await self._engine.list(root + prefix, start_after=start_after, limit=count)
            for row in rows:
                key = row.key[len(root) :]
                group = common_prefix_of(key, prefix, delimiter)
                if group is not None and prefixes and group == prefixes[-1]:
                    continue
                if len(objects) + len(prefixes) == limit:
                    return Page(objects, prefixes, next_after, last_entry)
                if group is None:
                    objects.append((key, row.record))
                    last_entry = next_after = key
                else:
                    prefixes.append(group)
                    last_entry, next_after = group, group + BEYOND
            if len(rows) < count:
                break
            after = max(next_after, rows[-1].key[len(root) :])
            ask = _LISTED_ROWS_MIN if len(prefixes) > shown else min(_LISTED_ROWS_MAX, ask * 4)
        return Page(objects, prefixes, None, last_entry)


class ListingHandlers:
    """Lists buckets' contents."""

    def __init__(
        self,
        *,
        listing: Listing,
        engine: VolumeEngine,
        buckets: Buckets,
        settings: EndpointSettings,
    ) -> None:
        self._listing = listing
        self._engine = engine
        self._buckets = buckets
        self._settings = settings

    async def objects(self, call: Call) -> web.StreamResponse:
        """Version 1: a marker that clients choose."""
        write, limit = self._asked(call)
        prefix, delimiter = _query_bytes(call, "prefix"), _query_bytes(call, "delimiter")
        marker = _query_bytes(call, "marker")
        page = await self._listing.page(
            call.bucket,
            prefix=prefix,
            delimiter=delimiter,
            after=place_after_marker(marker, prefix, delimiter),
            limit=limit,
        )
        head = [
            leaf("Name", call.bucket),
            leaf("Prefix", write(prefix)),
            leaf("Marker", write(marker)),
            *_page_facts(call, limit, page, write, delimiter),
        ]
        if page.next_after is not None:
            head.append(leaf("NextMarker", write(page.last_entry)))
        rows = [_object_row(key, record, write, OWNER) for key, record in page.objects]
        return xml_response(
            document("ListBucketResult", *head, *rows, *_prefix_rows(page.prefixes, write))
        )

    async def objects_v2(self, call: Call) -> web.StreamResponse:
        write, limit = self._asked(call)
        prefix, delimiter = _query_bytes(call, "prefix"), _query_bytes(call, "delimiter")
        start_after = _query_bytes(call, "start-after")
        token = call.query.get("continuation-token")
        after = (
            place_after_marker(start_after, prefix, delimiter)
            if token is None
            else _place_of_token(token)
        )
        page = await self._listing.page(
            call.bucket, prefix=prefix, delimiter=delimiter, after=after, limit=limit
        )
        head = [
            leaf("Name", call.bucket),
            leaf("Prefix", write(prefix)),
            leaf("KeyCount", len(page.objects) + len(page.prefixes)),
            *_page_facts(call, limit, page, write, delimiter),
        ]
        if start_after:
            head.append(leaf("StartAfter", write(start_after)))
        if token is not None:
            head.append(leaf("ContinuationToken", token))
        if page.next_after is not None:
            head.append(leaf("NextContinuationToken", urlsafe_b64encode(page.next_after).decode()))
        owner = OWNER if call.query.get("fetch-owner") == "true" else ""
        rows = [_object_row(key, record, write, owner) for key, record in page.objects]
        return xml_response(
            document("ListBucketResult", *head, *rows, *_prefix_rows(page.prefixes, write))
        )

    async def versions(self, call: Call) -> web.StreamResponse:
        """All versions and markers, newest first within a key."""
        write, limit = self._asked(call)
        prefix, delimiter = _query_bytes(call, "prefix"), _query_bytes(call, "delimiter")
        marker, version_marker = (
            _query_bytes(call, "key-marker"),
            call.query.get("version-id-marker", ""),
        )
        if version_marker and not marker:
            raise S3Error("InvalidArgument", "A version-id marker comes with a key marker.")
        page = _VersionPage(write, limit)
        start_at = (
            marker if version_marker else place_after_marker(marker, prefix, delimiter) + b"\0"
        )
        start_at = start_at if marker else b""
        keys_max = _SCAN_KEYS_MIN
        root = objects_prefix(call.bucket)
        behind = stored_version_id(version_marker)
        while limit:
            rolled = len(page.prefixes)
            found = await self._engine.list_all_versions(
                root + prefix,
                start_at=root + start_at,
                limit=keys_max,
                # One more than there is room for says that there are more.
                versions_max=page.room + 1,
                behind=behind if version_marker and start_at == marker else None,
            )
            for row in found:
                key = row.key[len(root) :]
                group = common_prefix_of(key, prefix, delimiter)
                if row.records and not page.take(key, row, group):
                    break
                start_at = key + b"\0" if group is None else group + BEYOND
            if page.truncated or len(found) < keys_max:
                break
            keys_max = min(2 * keys_max, _SCAN_KEYS_MAX)
            if len(page.prefixes) > rolled:
                keys_max = _SCAN_KEYS_MIN
        head = [
            leaf("Name", call.bucket),
            leaf("Prefix", write(prefix)),
            leaf("KeyMarker", write(marker)),
            leaf("VersionIdMarker", version_marker),
            leaf("MaxKeys", limit),
            leaf("IsTruncated", page.truncated),
        ]
        if delimiter:
            head.append(leaf("Delimiter", write(delimiter)))
        if call.query.get("encoding-type"):
            head.append(leaf("EncodingType", "url"))
        if page.truncated:
            head.append(leaf("NextKeyMarker", write(page.last_key)))
            if page.last_version:
                head.append(leaf("NextVersionIdMarker", page.last_version))
        prefixes = _prefix_rows(page.prefixes, write)
        return xml_response(document("ListVersionsResult", *head, *page.rows, *prefixes))

    def _asked(self, call: Call) -> tuple[Callable[[bytes], str], int]:
        self._buckets.get(call.bucket)
        limit = requested_page_size(call, "max-keys", self._settings.page_entries_max)
        return requested_key_encoding(call), limit


class _VersionPage:
    """Collects entries up to a limit."""

    def __init__(self, write: Callable[[bytes], str], limit: int) -> None:
        self._write = write
        self._limit = limit
        self.rows: list[str] = []
        self.prefixes: list[bytes] = []
        self.truncated = False
        self.last_key = b""
        self.last_version = ""

    @property
    def room(self) -> int:
        """How many entries it can still take."""
        return self._limit - len(self.rows) - len(self.prefixes)

    def take(self, key: bytes, row: KeyVersions, group: bytes | None) -> bool:
        """Whether there was room for all of it. `key`: within the bucket."""
        if group is not None:
            if self.prefixes and self.prefixes[-1] == group:
                return True
            if self._is_full():
                return False
            self.prefixes.append(group)
            self.last_key, self.last_version = group, ""
            return True
        for number, record in enumerate(row.records):
            if self._is_full():
                return False
            is_latest = row.with_current and not number
            self.rows.append(_version_row(key, record, self._write, is_latest=is_latest))
            self.last_key, self.last_version = key, version_text(record)
        return True

    def _is_full(self) -> bool:
        self.truncated = self.room <= 0
        return self.truncated


def _page_facts(
    call: Call, limit: int, page: Page, write: Callable[[bytes], str], delimiter: bytes
) -> list[str]:
    facts = [leaf("MaxKeys", limit), leaf("IsTruncated", page.next_after is not None)]
    if delimiter:
        facts.append(leaf("Delimiter", write(delimiter)))
    if call.query.get("encoding-type"):
        facts.append(leaf("EncodingType", "url"))
    return facts


def _object_row(key: bytes, record: IndexRecord, write: Callable[[bytes], str], owner: str) -> str:
    return branch("Contents", leaf("Key", write(key)), *_object_facts(record), owner)


def _version_row(
    key: bytes, record: IndexRecord, write: Callable[[bytes], str], *, is_latest: bool
) -> str:
    named = [
        leaf("Key", write(key)),
        leaf("VersionId", version_text(record)),
        leaf("IsLatest", is_latest),
    ]
    if record.delete_marker:
        return branch(
            "DeleteMarker", *named, leaf("LastModified", iso_date(record.created_ms)), OWNER
        )
    return branch("Version", *named, *_object_facts(record), OWNER)


def _object_facts(record: IndexRecord) -> list[str]:
    return [
        leaf("LastModified", iso_date(record.created_ms)),
        leaf("ETag", f'"{record.etag}"'),
        leaf("Size", record.size),
        leaf("StorageClass", "STANDARD"),
    ]


def _prefix_rows(prefixes: Sequence[bytes], write: Callable[[bytes], str]) -> list[str]:
    return [branch("CommonPrefixes", leaf("Prefix", write(prefix))) for prefix in prefixes]


def _query_bytes(call: Call, name: str) -> bytes:
    text = call.query.get(name, "").encode()
    if b"\0" in text:
        raise S3Error("InvalidArgument", f"{name} cannot hold a zero byte.")
    return text


def _place_of_token(token: str) -> bytes:
    try:
        place = urlsafe_b64decode(token.encode())
    except (binascii.Error, ValueError) as error:
        raise S3Error("InvalidArgument", "The continuation token is not ours.") from error
    if not place or b"\0" in place:
        raise S3Error("InvalidArgument", "The continuation token is not ours.")
    return place
