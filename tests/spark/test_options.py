import pytest

from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.spark.options import Content, ReadMode, parse_options
from segmentstore.spark.schema import BYTES_COLUMNS, EVENT_COLUMNS
from segmentstore.spark.streams.stream_source import position_of


def test_keys_come_in_any_case_and_values_with_units() -> None:
    options = parse_options(
        {
            "TIER2": "/data",
            "stream": "plant/readings",
            "maxbytesperpartition": "64m",
            "MinPartitions": "7",
            "failOnDataLoss": "FALSE",
            "startingTimestamp": "2026-11-21T00:00:00Z",
            "endingTimestamp": "1795219200001",
            "columns": "offset, value",
        }
    )
    assert (options.scope, options.stream) == ("plant", "readings")
    assert (options.max_bytes_per_partition, options.min_partitions) == (64 << 20, 7)
    assert not options.fail_on_data_loss
    assert options.starting_timestamp_ms == 1_795_219_200_000
    assert options.ending_timestamp_ms == 1_795_219_200_001
    assert options.columns == ("offset", "value")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1048576", 1 << 20),
        ("512b", 512),
        ("64k", 64 << 10),
        ("64m", 64 << 20),
        ("64MB", 64 << 20),
        ("64MiB", 64 << 20),
        ("1.5 g", 3 << 29),
        ("2tb", 2 << 40),
    ],
)
def test_a_size_means_what_it_means_in_spark(text: str, size: int) -> None:
    options = parse_options({"tier2": "/", "stream": "a/b", "maxBytesPerPartition": text})
    assert options.max_bytes_per_partition == size


@pytest.mark.parametrize("text", ["0", "m", "-1m", "1.5b", "64x", "64 mbit"])
def test_what_is_no_size_is_refused_and_units_are_explained(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="k, m, g and t are powers of 1024"):
        parse_options({"tier2": "/", "stream": "a/b", "maxBytesPerPartition": text})


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("2026-11-21T00:00:00.001+00:00", 1_795_219_200_001),
        ("2026-11-21T00:00:00.000400Z", 1_795_219_200_001),
        ("1969-12-31T23:59:58.999", -1_001),
        ("1969-12-31T23:59:58.998001", -1_001),
    ],
)
def test_a_time_is_the_first_millisecond_that_is_not_before_it(text: str, time_ms: int) -> None:
    options = parse_options({"tier2": "/", "stream": "a/b", "startingTimestamp": text})
    assert options.starting_timestamp_ms == time_ms


def test_what_is_not_said_has_its_default() -> None:
    options = parse_options({"tier2": "/data", "scope": "plant"})
    assert options.columns == tuple(EVENT_COLUMNS)
    assert options.mode is ReadMode.AUTO
    assert options.content is Content.AUTO
    assert options.fail_on_data_loss


def test_content_bytes_has_columns_of_its_own() -> None:
    options = parse_options({"tier2": "/d", "segment": "logs/app", "content": "bytes"})
    assert options.columns == tuple(BYTES_COLUMNS)
    with pytest.raises(InvalidRequestError, match="columns are some of segment, offset"):
        parse_options({"tier2": "/d", "segment": "l", "content": "bytes", "columns": "value"})


def test_the_service_is_asked_only_with_a_controller_and_not_offline() -> None:
    words = {"tier2": "/d", "scope": "plant", "controller": "tcp://h:1"}
    assert parse_options(words).uses_service
    assert not parse_options(words | {"mode": "offline"}).uses_service
    assert not parse_options({"tier2": "/d", "scope": "plant"}).uses_service


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"tier3": "/d"}, "unknown option tier3"),
        ({"scope": "s"}, "nowhere to read from"),
        ({"scope": "s", "mode": "offline", "controller": "tcp://h:1"}, "nowhere to read from"),
        ({"tier2": "/d"}, "nothing to read"),
        ({"tier2": "/d", "stream": "t"}, "say scope/t"),
        ({"tier2": "/d", "stream": "a/t", "scope": "b"}, "another scope"),
        ({"tier2": "/d", "stream": "a/t", "segment": "x"}, "without scope and stream"),
        ({"tier2": "/d", "stream": "a/t", "content": "bytes"}, "single segment"),
        ({"tier2": "/d", "stream": "a/t", "content": "text"}, "content is one of auto, raw"),
        ({"tier2": "/d", "stream": "a/t", "columns": "offset,offset"}, "at most once"),
        ({"tier2": "/d", "stream": "a/t", "verifyChecksums": "no"}, "one of needed, all"),
        ({"tier2": "/d", "stream": "a/t", "minPartitions": "0"}, "minPartitions"),
        ({"tier2": "/d", "stream": "a/t", "maxBytesPerPartition": "1 parsec"}, "is a size"),
        ({"tier2": "/d", "stream": "a/t", "startingTimestamp": "noon"}, "Unix milliseconds"),
        (
            {"tier2": "/d", "stream": "a/t", "endingOffsets": "latest", "endingTimestamp": "1"},
            "exclude each other",
        ),
        ({"tier2": "/d", "scope": "a", "startingOffsets": '{"0": 1}'}, "earliest or latest"),
        (
            {"controller": "tcp://h:1", "stream": "a/t", "startingTimestamp": "5"},
            "startingTimestamp is looked up in Tier 2",
        ),
        (
            {"controller": "tcp://h:1", "stream": "a/t", "endingTimestamp": "5"},
            "endingTimestamp is looked up in Tier 2",
        ),
        ({"tier2": "/d", "stream": "a/t", "minBytesPerTrigger": "-1"}, "is a size"),
    ],
)
def test_contradictions_are_refused_with_a_sentence(words: dict[str, str], sentence: str) -> None:
    with pytest.raises(InvalidRequestError, match=sentence):
        parse_options(words)


@pytest.mark.parametrize("words", [{"stream": "s/t"}, {"scope": "s"}])
def test_earliest_and_latest_are_words_in_any_case(words: dict[str, str]) -> None:
    options = parse_options(
        words | {"tier2": "/d", "startingOffsets": "Latest", "endingOffsets": "LATEST"}
    )
    assert position_of(options.starting_offsets) is None
    assert position_of(options.ending_offsets) is None


def test_the_default_of_the_least_bytes_of_a_trigger_can_be_said() -> None:
    words = {"tier2": "/d", "stream": "s/t", "minBytesPerTrigger": "0"}
    assert parse_options(words).min_bytes_per_trigger == 0
