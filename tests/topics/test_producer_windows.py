"""What is remembered of producers, as the pages that a mark stores: nothing of it is lost, and damage is found."""

import pytest

from segmentstore.codec.record_batch import SentBatch, parse_header
from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.topics.producer_windows import (
    PAGE_BYTES_MAX,
    WINDOW_BATCHES,
    ProducerWindows,
)
from tests.topics.batches import NOW, batch_of


def windows() -> ProducerWindows:
    return ProducerWindows(producers_max=100, silent_ms_max=1000)


def filled(producers: int, batches: int) -> ProducerWindows:
    """Each producer with so many batches of two records."""
    made = windows()
    for producer_id in range(producers):
        for number in range(batches):
            batch = batch_of(b"a", b"b", producer=(producer_id, 3, 2 * number))
            made.remember(
                parse_header(batch),
                base_offset=1000 * producer_id + number,
                append_time_ms=-1,
                now_ms=NOW + number,
            )
    return made


@pytest.mark.parametrize("batches", [1, WINDOW_BATCHES, WINDOW_BATCHES + 2])
def test_producers_of_many_pages_come_back_as_they_were(batches: int) -> None:
    made = filled(40, batches)
    pages = made.pages()
    assert len(pages) > 1
    assert all(0 < len(page) <= PAGE_BYTES_MAX for page in pages)
    again = windows()
    again.load(pages)
    assert again.snapshot() == made.snapshot()
    assert again.pages() == pages, "each is stored once, with its time"


def test_a_page_that_is_cut_is_found() -> None:
    (page,) = filled(2, 2).pages()
    whole_producers = (0, len(page) // 2, len(page))
    for length in range(len(page)):
        if length not in whole_producers:
            with pytest.raises(CorruptedDataError, match="is cut"):
                windows().load([page[:length]])


@pytest.mark.parametrize("count", [0, WINDOW_BATCHES + 1])
def test_a_page_with_a_window_that_cannot_be_is_found(count: int) -> None:
    (page,) = filled(1, WINDOW_BATCHES).pages()
    damaged = bytearray(page + bytes(24))
    damaged[18] = count
    with pytest.raises(CorruptedDataError, match="no window"):
        windows().load([bytes(damaged)])


def test_the_next_batch_and_one_that_is_sent_again_are_expected_and_no_other() -> None:
    made = filled(2, 2)
    expected = {
        (epoch, sequence)
        for epoch in range(2, 5)
        for sequence in range(7)
        if made.expects(SentBatch(producer_id=1, epoch=epoch, sequence=sequence))
    }
    assert expected == {(3, 0), (3, 2), (3, 4)}
    assert not made.expects(SentBatch(producer_id=2, epoch=3, sequence=0)), "it is not known"
