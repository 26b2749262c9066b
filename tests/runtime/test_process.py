"""The garbage collector while a program is loaded."""

import gc

import pytest

from segmentstore.runtime.process import collections_put_off


def test_nothing_is_collected_meanwhile_and_everything_afterwards() -> None:
    gc.collect()
    before = gc.get_stats()[0]["collections"]
    with collections_put_off():
        kept = [[each] for each in range(10 * gc.get_threshold()[0])]
        assert gc.get_stats()[0]["collections"] == before
    assert gc.isenabled()
    kept += [[each] for each in range(10 * gc.get_threshold()[0])]
    assert gc.get_stats()[0]["collections"] > before


def test_a_program_that_cannot_be_loaded_leaves_the_collector_at_work() -> None:
    with pytest.raises(ImportError), collections_put_off():
        raise ImportError
    assert gc.isenabled()
