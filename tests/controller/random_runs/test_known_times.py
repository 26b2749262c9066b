"""The model of watermarks finds what is wrong: few runs write enough of them for a planted bug to be found there."""

import pytest

from segmentstore.codec.controller_records.stream_records import SegmentWithRange
from segmentstore.codec.controller_records.watermark_records import Watermark
from tests.controller.random_runs.known_times import Glance, KnownTimes, KnownWriter, Note
from tests.sim.attempts import ModelBreachError

WHOLE = SegmentWithRange(0, 0.0, 1.0)


def _watermark(time: int, offset: int) -> Watermark:
    return Watermark(time, time, {WHOLE: offset})


def _known(*, asked: int) -> KnownTimes:
    """One watermark at time 10; before it was there, a writer had noted time 20 at offset 50."""
    times = KnownTimes()
    note = Note(20, {WHOLE: 50})
    times.writers["w"] = KnownWriter("w", note, asked_time=asked)
    times.learn([], times.glance(1.0), now=1.0, silent_seconds=5.0)
    times.learn([(0, 9, _watermark(10, 30))], times.glance(2.0), now=2.0, silent_seconds=5.0)
    return times


def _learn(times: KnownTimes, watermark: Watermark, *, at: int = 9, now: float = 3.0) -> None:
    times.learn([(at, at + 9, watermark)], Glance(now, {}), now=now, silent_seconds=5.0)


def test_a_watermark_that_fits_is_taken() -> None:
    _learn(_known(asked=20), _watermark(20, 50))


@pytest.mark.parametrize(
    "watermark",
    [
        _watermark(21, 50),
        _watermark(20, 49),
        _watermark(10, 50),
        Watermark(20, 19, {WHOLE: 50}),
        Watermark(20, 20, {SegmentWithRange(0, 0.0, 0.5): 50}),
    ],
    ids=["later than noted", "before the position", "again", "turned round", "not whole"],
)
def test_a_watermark_that_does_not_fit_is_found(watermark: Watermark) -> None:
    with pytest.raises(ModelBreachError):
        _learn(_known(asked=20), watermark)


def test_a_watermark_that_waits_for_nobody_is_found_until_the_writer_has_been_silent() -> None:
    for now, is_early in ((4.0, True), (9.0, False)):
        times = _known(asked=20)
        times.learn([], times.glance(2.5), now=2.5, silent_seconds=5.0)
        times.learn(
            [(0, 9, _watermark(10, 30)), (9, 18, _watermark(20, 50))],
            times.glance(3.0),
            now=3.0,
            silent_seconds=5.0,
        )
        if is_early:
            with pytest.raises(ModelBreachError):
                _learn(times, _watermark(30, 60), at=18, now=now)
        else:
            _learn(times, _watermark(30, 60), at=18, now=now)


def test_a_watermark_that_changes_is_found() -> None:
    with pytest.raises(ModelBreachError):
        _learn(_known(asked=20), _watermark(11, 30), at=0)
