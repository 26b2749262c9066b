import io
import json
import logging
from collections.abc import Iterator

import pytest

from segmentstore.runtime.process import configure_logging


@pytest.fixture(autouse=True)
def _restored_root() -> Iterator[None]:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield
    root.handlers[:], level = before
    root.setLevel(level)


def lines(level: str = "info", *, json_lines: bool = False) -> list[str]:
    stream = io.StringIO()
    configure_logging(level=level, json_lines=json_lines, stream=stream)
    logger = logging.getLogger("segmentstore.test")
    logger.debug("unseen %d", 1)
    logger.info("two\nlines count=%d", 2)
    try:
        raise ValueError("why")
    except ValueError:
        logger.exception("broken container=3")
    return stream.getvalue().splitlines()


def test_a_text_line_has_time_level_logger_and_message_and_never_breaks() -> None:
    first = lines()[0]
    time, rest = first.split(" ", 1)
    assert time.endswith("Z")
    assert len(time) == len("2026-11-21T09:30:00.123Z")
    assert rest == r"INFO segmentstore.test two\nlines count=2"


def test_json_lines_are_one_object_each_with_the_traceback_inside() -> None:
    info, error = [json.loads(line) for line in lines(json_lines=True)]
    assert (info["level"], info["message"]) == ("info", "two\nlines count=2")
    assert error["message"] == "broken container=3"
    assert "ValueError: why" in error["traceback"]


def test_lines_below_the_level_are_left_out() -> None:
    assert not [line for line in lines("error") if "count=2" in line]
    assert [line for line in lines("debug") if "unseen 1" in line]


def test_configuring_twice_does_not_double_the_lines() -> None:
    lines()
    assert len([line for line in lines() if "count=2" in line]) == 1
