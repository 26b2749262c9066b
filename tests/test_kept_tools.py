"""A tool that several test processes want at once is made by one of them."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.kept_tools import made_by_one


def test_whoever_comes_second_waits_and_finds_it_made(tmp_path: Path) -> None:
    place = tmp_path / "cache" / "tool"
    makers: list[int] = []

    def want(number: int) -> None:
        with made_by_one(place):
            if not place.exists():
                makers.append(number)
                time.sleep(0.1)
                place.touch()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(want, range(4)))
    assert len(makers) == 1


def test_who_fails_lets_another_try(tmp_path: Path) -> None:
    place = tmp_path / "tool"
    with pytest.raises(OSError, match="no network"), made_by_one(place):
        raise OSError("no network")
    with made_by_one(place):
        place.touch()
    assert place.exists()
