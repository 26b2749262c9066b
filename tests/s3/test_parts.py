"""Pure parts of the room: ranges, listings' places, the budget of bodies."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.s3.buckets import BucketRecord, decode_bucket_record, encode_bucket_record
from segmentstore.s3.errors import S3Error
from segmentstore.s3.object_metadata import object_headers
from segmentstore.s3.request import parse_range, resolve_range
from segmentstore.s3.request_body import MemoryBudget
from segmentstore.s3.xml_documents import (
    document,
    http_date,
    iso_date,
    leaf,
    parse_http_date,
    parse_iso_date,
)
from tier2.volumes.objects import IndexRecord


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, None),
        ("bytes=0-0", (0, 0)),
        ("bytes=5-", (5, None)),
        ("bytes=-5", (None, 5)),
        ("bytes=-", None),
        ("bytes=5-2", None),
        ("items=0-1", None),
        ("bytes=a-b", None),
        ("bytes = 1 - 2", (1, 2)),
    ],
)
def test_what_is_no_range_is_ignored(text: str | None, expected: Any) -> None:
    assert parse_range(text) == expected


@pytest.mark.parametrize(
    ("asked", "size"), [((0, 0), 0), ((5, 9), 5), ((None, 0), 5), ((None, 3), 0)]
)
def test_a_range_that_is_not_in_the_object_is_refused(
    asked: tuple[int | None, int | None], size: int
) -> None:
    with pytest.raises(S3Error, match="InvalidRange"):
        resolve_range(asked, size)


def test_records_read_back_and_other_bytes_are_none() -> None:
    bucket = BucketRecord(5, "Enabled", lock=True, default_mode="COMPLIANCE", default_years=2)
    assert decode_bucket_record(encode_bucket_record(bucket)) == bucket
    for content in (b"", b"{}", b"[]", b'{"format": 2}', b'{"format": 1, "other": 1}', b"\xff"):
        with pytest.raises(CorruptedDataError):
            decode_bucket_record(content)


def test_an_object_is_shown_without_the_metadata_that_no_header_can_carry() -> None:
    """It was taken out of queries once."""
    metadata = {"m:a": "one\ttwo", "m:b": "one\ntwo", "m:c d": "1", "h:Expires": "0", "u:order": ""}
    record = IndexRecord(1, 1, bytes(32), "e", 1, 1, (0,), metadata=metadata)
    call: Any = SimpleNamespace(header=lambda _name: None, query={})
    headers = object_headers(record, call, versioned=False)
    shown = {name: value for name, value in headers.items() if "meta" in name or name == "Expires"}
    assert shown == {"x-amz-meta-a": "one\ttwo", "Expires": "0", "x-amz-missing-meta": "2"}


def test_instants_read_back() -> None:
    moment_ms = 1_795_262_400_123
    assert parse_iso_date(iso_date(moment_ms)) == moment_ms
    assert parse_http_date(http_date(moment_ms)) == moment_ms // 1000 * 1000
    assert parse_http_date("yesterday") is None


@pytest.mark.parametrize(
    "text",
    [
        "Mon, 01 Jan 99999999999999999999 00:00:00 GMT",
        "Mon, 01 Jan 2024 99999999999999999999:00:00 GMT",
        "Mon, 01 Jan 2024 00:00:00 +99999999999999999999",
        "Fri, 31 Dec 9999 23:59:59 -1400",
    ],
)
def test_an_instant_that_nobody_can_name_is_none(text: str) -> None:
    assert parse_http_date(text) is None


def test_every_instant_that_is_taken_can_be_written_again() -> None:
    latest = "9999-12-31T23:59:59.999Z"
    assert iso_date(parse_iso_date(latest)) == latest
    for text in ("9999-12-31T23:59:59-14:00", "9999-12-31T12:00:00-12:00"):
        with pytest.raises(ValueError, match="out of range"):
            parse_iso_date(text)


def test_a_document_holds_nothing_that_xml_cannot() -> None:
    assert document("A", leaf("B", "<&>\r\x01"), namespace=False).endswith(
        "<A><B>&lt;&amp;&gt;&#13;\N{REPLACEMENT CHARACTER}</B></A>".encode()
    )


async def test_bodies_get_their_room_in_the_order_of_asking() -> None:
    budget = MemoryBudget(bytes_max=10, wait_seconds_max=60)
    order: list[str] = []
    first_may_end = asyncio.Event()

    async def hold(name: str, count: int, until: asyncio.Event | None = None) -> None:
        async with budget.hold(count):
            order.append(name)
            if until is not None:
                await until.wait()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(hold("first", 6, first_may_end))
        await asyncio.sleep(0)
        tasks.create_task(hold("large", 8))
        await asyncio.sleep(0)
        tasks.create_task(hold("small", 1))
        await asyncio.sleep(0)
        assert order == ["first"]
        first_may_end.set()
    assert order == ["first", "large", "small"]
    assert budget.bytes_held == 0


async def test_who_waits_too_long_or_gives_up_takes_nothing() -> None:
    budget = MemoryBudget(bytes_max=10, wait_seconds_max=0)
    async with budget.hold(10):
        with pytest.raises(S3Error, match="SlowDown"):
            async with budget.hold(1):
                pytest.fail("there is no room")
    assert budget.bytes_held == 0
    patient = MemoryBudget(bytes_max=10, wait_seconds_max=60)
    async with patient.hold(10):
        waiting = asyncio.ensure_future(patient.hold(5).__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    async with patient.hold(10):
        assert patient.bytes_held == 10
