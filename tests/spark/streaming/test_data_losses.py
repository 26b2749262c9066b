import logging
import pickle

import pytest

from segmentstore.spark.scan.data_loss import DataLossError, DataLossPolicy
from segmentstore.spark.streams.segment_graph import OffsetRange, StreamMissingError
from tests.spark.streaming.memory_streams import NAME, MemoryStreams


def segment_from(start: int) -> MemoryStreams:
    streams = MemoryStreams()
    streams.put(0, [b"e" * 12] * 5, start_offset=start)
    return streams


@pytest.mark.parametrize(
    "wanted", [OffsetRange(0, 20, 60), OffsetRange(0, 60, 120), OffsetRange(0, 0, 20)]
)
def test_what_is_not_all_there_is_loss_that_crosses_processes(wanted: OffsetRange) -> None:
    segment = segment_from(40).streams[NAME].segments[0]
    with pytest.raises(DataLossError, match="head=40 tail=100") as caught:
        DataLossPolicy(fail_on_data_loss=True).compare(segment, wanted)
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)


def test_what_is_there_is_no_loss() -> None:
    losses = DataLossPolicy(fail_on_data_loss=True)
    losses.compare(segment_from(40).streams[NAME].segments[0], OffsetRange(0, 40, 100))
    assert losses.count == 0


def test_each_loss_that_is_passed_over_is_told_once_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    losses = DataLossPolicy(fail_on_data_loss=False)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            losses.segment_is_gone(NAME, OffsetRange(7, 10, 30))
            losses.stream_is_gone("plant/gone")
    assert losses.count == len(caplog.records) == 2
    assert "segment_id=7 range=[10, 30)" in caplog.text


def test_a_stream_that_is_gone_says_which() -> None:
    with pytest.raises(StreamMissingError, match="plant/gone"):
        DataLossPolicy(fail_on_data_loss=True).stream_is_gone("plant/gone")
