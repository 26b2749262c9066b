"""Goal: a reader that stopped is found out in time, and none is taken for dead because this process did not look.

Method: looks at given times, at beats that the test moves.
"""

from dataclasses import replace

from segmentstore.client.reader_group_state import ReaderRecord
from segmentstore.client.silent_readers import SeenReader, SilentReaders


class Looks:
    """Of one reader at "a" and "b", which beat with each look unless they are stopped."""

    def __init__(self) -> None:
        self.silent = SilentReaders(period_seconds=1.0, timeout_seconds=15.0)
        self.others = {name: ReaderRecord(incarnation=at) for at, name in enumerate("ab")}
        self.now = 100.0

    def look(self, after: float, *, stopped: str = "") -> str:
        self.now += after
        for name, record in self.others.items():
            if name not in stopped:
                record.beat += 1
        return "".join(each.reader_id for each in self.silent.look(self.others, now=self.now))


def test_a_reader_that_stops_is_dead_when_its_time_is_over_and_no_sooner() -> None:
    looks = Looks()
    looks.look(0.0)
    found = [looks.look(1.0, stopped="a") for _ in range(16)]
    assert found == [""] * 15 + ["a"]


def test_looks_that_are_a_little_late_count_in_full() -> None:
    looks = Looks()
    looks.look(0.0)
    found = [looks.look(1.9, stopped="a") for _ in range(8)]
    assert found == [""] * 7 + ["a"]


def test_what_this_process_stood_still_is_left_out() -> None:
    """All of them were stopped, say with their machine; or it is an answer from before that is looked at."""
    looks = Looks()
    looks.look(0.0)
    assert looks.look(60.0, stopped="ab") == ""
    assert looks.look(1.0, stopped="a") == ""


def test_a_state_that_could_not_be_read_for_long_makes_none_of_them_dead() -> None:
    looks = Looks()
    looks.look(0.0)
    for _ in range(3):
        assert looks.look(20.0, stopped="ab") == ""
    assert looks.look(1.0) == ""
    found = [looks.look(1.0, stopped="b") for _ in range(16)]
    assert found == [""] * 15 + ["b"]


def test_many_looks_are_no_more_than_the_time_that_passes() -> None:
    """A checkpoint looks, too."""
    looks = Looks()
    looks.look(0.0)
    for _ in range(149):
        assert looks.look(0.1, stopped="a") == ""


def test_a_reader_that_began_again_is_another() -> None:
    looks = Looks()
    looks.look(0.0)
    for _ in range(10):
        looks.look(1.0, stopped="a")
    looks.others["a"] = ReaderRecord(incarnation=7, beat=looks.others["a"].beat)
    for _ in range(10):
        assert looks.look(1.0, stopped="a") == ""


def test_of_readers_that_have_left_nothing_is_kept() -> None:
    looks = Looks()
    for _ in range(10):
        looks.look(1.0)
    del looks.others["a"]
    looks.look(1.0)
    assert len(looks.silent._silent) == 1


def test_a_verdict_is_over_when_the_reader_beats() -> None:
    record = ReaderRecord(incarnation=3, beat=5)
    seen = SeenReader("a", 3, 5)
    assert seen.is_still_so({"a": record})
    assert not seen.is_still_so({"a": replace(record, beat=6)})
    assert not seen.is_still_so({"a": replace(record, incarnation=4)})
    assert not seen.is_still_so({})
