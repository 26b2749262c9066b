"""Options of a write: what users may say, and what they hear if it makes no sense."""

import pytest

from segmentstore.client.stream_config import RetentionPolicy, ScalingPolicy
from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.spark.options import RECORD_TAG
from segmentstore.spark.sink.sink_options import SinkContent, parse_sink_options

LEAST = {"controller": "tcp://127.0.0.1:9090", "stream": "s/a"}


def test_a_write_needs_the_service_and_a_stream() -> None:
    options = parse_sink_options(LEAST)
    assert (options.scope, options.stream, options.stream_name) == ("s", "a", "s/a")
    assert options.content is SinkContent.AUTO
    assert options.staging_lease_seconds == 6 * 3600
    for missing in LEAST:
        with pytest.raises(InvalidRequestError):
            parse_sink_options({name: LEAST[name] for name in LEAST if name != missing})


def test_keys_come_in_any_case_and_spark_adds_some_of_its_own() -> None:
    options = parse_sink_options(
        {**LEAST, "ROUTINGKEYCOLUMN": "sensor", "stagingLease": "15m", "checkpointLocation": "/c"}
    )
    assert options.routing_key_column == "sensor"
    assert options.staging_lease_seconds == 900


def test_a_version_has_an_application() -> None:
    options = parse_sink_options({**LEAST, "txnAppId": "job", "txnVersion": "0"})
    assert (options.transaction_app_id, options.transaction_version) == ("job", 0)
    for half in ({"txnAppId": "job"}, {"txnVersion": "3"}):
        with pytest.raises(InvalidRequestError, match="go together"):
            parse_sink_options({**LEAST, **half})


def test_a_stream_is_created_as_the_options_say() -> None:
    options = parse_sink_options(
        {
            **LEAST,
            "createIfMissing": "true",
            "content": "record",
            "segments": "4",
            "scaling": "events",
            "scalingRate": "100",
            "retentionTime": "7d",
        }
    )
    config = options.stream_config
    assert config.scaling == ScalingPolicy.by_event_rate(100, factor=2, segments_min=4)
    assert config.retention == RetentionPolicy.by_time(7 * 86_400)
    assert config.tags == (RECORD_TAG,)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"segment": "x"}, "unknown option segment"),
        ({"stream": "a"}, "stream=SCOPE/STREAM"),
        ({"scope": "t"}, "another scope"),
        ({"content": "bytes"}, "content is one of"),
        ({"txnAppId": "x" * 241, "txnVersion": "1"}, "at most 240"),
        ({"txnAppId": "x", "txnVersion": "-1"}, "txnVersion is a whole number"),
        ({"stagingLease": "1s"}, "stagingLease is between"),
        ({"stagingLease": "8d"}, "stagingLease is between"),
        ({"createIfMissing": "yes"}, "true or false"),
        ({"segments": "2"}, "goes with createIfMissing=true"),
        ({"createIfMissing": "true", "scalingRate": "5"}, "goes with scalingRate"),
        ({"createIfMissing": "true", "scaling": "events"}, "goes with scalingRate"),
        ({"createIfMissing": "true", "scalingFactor": "1"}, "at least 2"),
        ({"createIfMissing": "true", "retentionTime": "soon"}, "a time such as"),
        (
            {"createIfMissing": "true", "retentionTime": "1h", "retentionBytes": "1g"},
            "exclude each other",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        parse_sink_options({**LEAST, **given})
