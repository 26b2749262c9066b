"""The short way to a lone frame decides as the long one does (H50, H52)."""

from typing import cast

import pytest

from tests.tier1.file_log.worlds import SMALL
from tier1.file_log.frame_planner import FramePlanner, PendingEntries
from tier1.file_log.frames import PAGE_BYTES, FrameHeader, FrameKind, decode_header
from tier1.file_log.journals import Journal, JournalPool

LOG_ID = b"planner-of-a-log"
PAGES = 8


def planner_of(*journals: Journal) -> FramePlanner:
    """It never asks the pool: lone frames stay in the file that is being written."""
    first = FrameHeader(
        kind=FrameKind.EPOCH,
        log_id=LOG_ID,
        epoch=1,
        generation=1,
        number=20,
        previous_epoch=0,
        previous_number=0,
        synced_number=0,
        oldest_number=1,
        truncated_up_to=0,
        last_address=20,
        page=0,
        entry_count=0,
        body_bytes=0,
    )
    return FramePlanner(
        first=first,
        journals=journals,
        pending=PendingEntries(),
        pool=cast(JournalPool, None),
        settings=SMALL,
    )


def journal(number: int, *, last_address: int = 0) -> Journal:
    return Journal(
        path=f"journal-{number}",
        size_bytes=PAGES * PAGE_BYTES,
        first_number=number,
        last_address=last_address,
    )


def test_h52_lone_entries_leave_the_last_pages_of_a_file_to_marks() -> None:
    last = journal(20)
    planner = planner_of(last)
    planned = 0
    while last.entry_room() >= PAGE_BYTES:
        assert planner.plan_single_page(21 + planned, [b"lone"], 4) is not None
        planned += 1
    assert planned == PAGES - 2
    assert planner.plan_single_page(21 + planned, [b"lone"], 4) is None
    assert last.mark_room(truncation=False)
    planner.check()


@pytest.mark.parametrize(("up_to", "oldest"), [(0, 1), (4, 1), (5, 6), (9, 6), (10, 20), (20, 20)])
def test_h50_a_lone_frame_calls_the_first_file_with_live_entries_the_oldest_needed(
    up_to: int, oldest: int
) -> None:
    planner = planner_of(
        journal(1, last_address=5), journal(6, last_address=10), journal(20, last_address=20)
    )
    if up_to:
        planner._truncated_up_to = up_to
    frame = planner.plan_single_page(21, [b"lone"], 4)
    assert frame is not None
    header = decode_header(frame.content, log_id=LOG_ID, page=0)
    assert header is not None
    assert (header.oldest_number, header.truncated_up_to) == (oldest, up_to)
    assert frame.oldest_number == oldest
