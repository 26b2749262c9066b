"""Goal: records and headers are counted as the parser makes them, whatever else is in a request."""

from random import Random

import pytest

from segmentstore.codec.topics_api import topics_pb2 as api
from segmentstore.topics.api.request_objects import MalformedError, objects_in

MANY = 1_000


def request_of(random: Random) -> api.ProduceRequest:
    records = [
        api.Record(
            key=random.randbytes(random.choice((0, 3, 200))) if random.random() < 0.7 else None,
            value=random.randbytes(random.choice((0, 127, 128, 20_000))),
            timestamp_ms=random.choice((None, -1, 0, 1 << 40)),
            headers=[
                api.Header(name="x" * random.choice((0, 300)), value=random.randbytes(2))
                for _ in range(random.choice((0, 0, 1, 5)))
            ],
        )
        for _ in range(random.randrange(20))
    ]
    return api.ProduceRequest(
        topic="t" * random.choice((0, 1, 200)),
        partition=random.choice((None, 0, 1 << 31)),
        records=api.Records(records=records),
        producer=api.Producer(producer_id=1 << 62, epoch=-1),
        base_sequence=random.choice((0, -1)),
    )


def test_records_and_headers_are_counted_as_the_parser_makes_them() -> None:
    random = Random(3)
    for _ in range(100):
        request = request_of(random)
        content = request.SerializeToString()
        # A field that comes again goes on with the list; one that is not known, or is of another kind, is no record.
        content += random.choice((b"", request.SerializeToString(), b"\x18\x05", b"\xfa\x07\x01x"))
        records = api.ProduceRequest.FromString(content).records.records
        expected = len(records) + sum(len(each.headers) for each in records)
        assert objects_in(content, count_max=MANY) == expected
        assert objects_in(content, count_max=expected // 2) == min(expected, expected // 2 + 1)


@pytest.mark.parametrize(
    "content",
    [
        b"\x1a\x02\x0a\x00",
        b"\x9a\x80\x00\x84\x00\x8a\x00\x80\x00",
        b"\x1b\x08\x01\x1c\x1a\x02\x0a\x00",
        b"\x19" + bytes(8) + b"\x1d" + bytes(4) + b"\x1a\x02\x0a\x00",
    ],
    ids=["plain", "long numbers", "a group", "fixed numbers"],
)
def test_a_record_is_counted_however_it_is_written(content: bytes) -> None:
    assert len(api.ProduceRequest.FromString(content).records.records) == 1
    assert objects_in(content, count_max=MANY) == 1


@pytest.mark.parametrize(
    "content", [b"\x1a", b"\x1a\x02\x0a", b"\x1a\x01\x0a\x00", b"\x08", b"\x1f", b"\xff" * 11]
)
def test_what_is_no_message_is_told_or_left_to_the_parser(content: bytes) -> None:
    with pytest.raises(MalformedError):
        objects_in(content, count_max=MANY)
