"""Which frames count: the chain of a crashed log, case by case (H39, H40, H43, H44, H50)."""

from collections.abc import Sequence
from typing import Any

import pytest

from segmentstore.contracts.errors import LogCorruptedError
from tests.sim.disk import SimulatedDisk
from tier1.file_log.frames import (
    PAGE_BYTES,
    FrameEntry,
    FrameHeader,
    FrameKind,
    body_bytes,
    encode_frame,
)
from tier1.file_log.log import frames_read_together
from tier1.file_log.recovery import (
    FoundFrame,
    RecoveredChain,
    RecoveryPlan,
    ScannedJournal,
    link_frames,
    plan_recovery,
    scan_journal,
)
from tier1.file_log.settings import DurabilityRules

RULES = DurabilityRules()
EPOCH, ENTRIES, MARK = FrameKind.EPOCH, FrameKind.ENTRIES, FrameKind.MARK


def frame(
    number: int,
    kind: FrameKind = ENTRIES,
    *,
    synced: int,
    page: int,
    epoch: int = 1,
    generation: int = 1,
    previous: tuple[int, int] | None = None,
    oldest: int = 1,
    truncated: int = 0,
    address: int | None = None,
    path: str = "a",
) -> FoundFrame:
    """A frame of one page; entries have one entry, whose address is the frame number."""
    previous_epoch, previous_number = previous or (epoch, number - 1)
    header = FrameHeader(
        kind=kind,
        log_id=bytes(16),
        epoch=epoch,
        generation=generation,
        number=number,
        previous_epoch=previous_epoch,
        previous_number=previous_number,
        synced_number=synced,
        oldest_number=oldest,
        truncated_up_to=truncated,
        last_address=number if address is None else address,
        page=page,
        entry_count=1 if kind is ENTRIES else 0,
        body_bytes=100,
    )
    return FoundFrame(header, path)


def link(*frames: FoundFrame, broken: Sequence[FoundFrame] = ()) -> RecoveredChain:
    """`broken` frames have a valid header and a bad body."""
    found = [*frames, *broken]
    paths = sorted({one.path for one in found})
    journals = [
        ScannedJournal(
            path, 64 * PAGE_BYTES, tuple(f for f in found if f.path == path), frozenset()
        )
        for path in paths
    ]
    return link_frames(journals, rules=RULES, reads_back=lambda one: one not in broken)


def numbers(frames: Sequence[FoundFrame]) -> list[int]:
    return [one.header.number for one in frames]


FIRST = frame(1, EPOCH, synced=0, page=0, previous=(0, 0), address=0)


def test_no_frames_make_an_empty_chain() -> None:
    assert link() == RecoveredChain()


def test_the_epoch_frame_alone_is_a_log() -> None:
    assert numbers(link(FIRST).frames) == [1]


def test_a_first_start_that_tore_its_epoch_frame_leaves_an_empty_log() -> None:
    chain = link(broken=[FIRST])
    assert (chain.frames, chain.highest_number) == ((), 1)


def test_h44_the_tail_is_cut_at_the_first_broken_frame() -> None:
    chain = link(FIRST, frame(2, synced=1, page=1), broken=[frame(3, synced=2, page=2)])
    assert (numbers(chain.frames), chain.cut_frames, chain.highest_number) == ([1, 2], 1, 3)


def test_h44_a_whole_frame_behind_a_missing_one_is_a_legal_crash_and_is_cut() -> None:
    """Mark 3 and entries 4 were both un-synced; the page of 3 is lost, that of 4 is not."""
    chain = link(FIRST, frame(2, synced=1, page=1), frame(4, synced=2, page=3))
    assert (numbers(chain.frames), chain.cut_frames) == ([1, 2], 1)


def test_h44_a_missing_frame_that_a_later_one_calls_synced_is_damage() -> None:
    with pytest.raises(LogCorruptedError, match="number=3"):
        link(FIRST, frame(2, synced=1, page=1), frame(4, MARK, synced=3, page=3))


def test_h44_a_missing_frame_in_the_middle_is_damage() -> None:
    with pytest.raises(LogCorruptedError, match="number=2"):
        link(FIRST, frame(3, synced=2, page=2), frame(4, synced=3, page=3))


def test_h43_frames_of_the_files_former_life_end_it() -> None:
    """File b was recycled: behind frame 9 of its third generation lies frame 5 of its second."""
    chain = link(
        frame(7, synced=6, page=0, generation=2, oldest=7, path="a"),
        frame(8, synced=7, page=1, generation=2, oldest=7, path="a"),
        frame(9, synced=8, page=0, generation=3, oldest=7, path="b"),
        frame(5, synced=4, page=1, generation=1, path="b"),
        frame(6, synced=5, page=2, generation=1, path="b"),
    )
    assert numbers(chain.frames) == [7, 8, 9]
    assert chain.cut_frames == 0


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (frame(3, synced=2, page=3), "not adjacent"),
        (frame(4, synced=2, page=2), "number skipped"),
        (frame(3, synced=2, page=2, generation=2), "another life in the same file"),
        (frame(3, synced=2, page=0, generation=3, path="b"), "a life was skipped"),
        (frame(3, synced=2, page=1, generation=2, path="b"), "not at the start of the next file"),
    ],
)
def test_h43_nothing_else_continues_a_frame(wrong: FoundFrame, why: str) -> None:
    before = frame(2, synced=1, page=1)
    assert not RULES.continues(before.header, wrong.header), why


def test_h50_files_before_the_oldest_needed_frame_may_be_gone_or_left() -> None:
    newer = [
        frame(8, synced=7, page=0, generation=3, oldest=6, truncated=5, path="c"),
        frame(6, synced=5, page=0, generation=2, oldest=1, path="b"),
        frame(7, synced=6, page=1, generation=2, oldest=1, path="b"),
        frame(9, MARK, synced=8, page=1, generation=3, oldest=6, truncated=5, path="c", address=8),
    ]
    assert numbers(link(*newer).frames) == [6, 7, 8, 9]
    # An un-synced removal came back, the one after it did not: a gap below the oldest needed frame is none.
    left_over = frame(2, synced=1, page=1, path="a")
    assert numbers(link(left_over, *newer).frames) == [6, 7, 8, 9]


def test_h50_the_oldest_needed_file_must_be_there() -> None:
    with pytest.raises(LogCorruptedError, match="number=7"):
        link(
            frame(8, synced=7, page=0, generation=3, oldest=6, path="c"),
            frame(9, MARK, synced=8, page=1, generation=3, oldest=6, path="c", address=8),
        )


def test_h50_the_newest_frame_may_be_the_only_one_that_is_needed() -> None:
    """Once frame 9 was synced, all before it could go, although no frame says yet that 9 is synced."""
    alone = frame(9, synced=8, page=0, generation=4, oldest=9, truncated=8, path="d")
    assert numbers(link(alone).frames) == [9]
    with pytest.raises(LogCorruptedError, match="number=8"):
        link(broken=[alone])


SECOND_EPOCH = frame(6, EPOCH, synced=2, page=0, epoch=2, previous=(1, 2), address=5, path="b")


def test_h40_a_new_epoch_says_where_the_one_before_ended() -> None:
    """Frame 3 landed after the second epoch had begun without it; it stays unseen for ever."""
    old = [
        FIRST,
        frame(2, synced=1, page=1),
        frame(3, synced=2, page=2),
        frame(4, synced=3, page=3),
    ]
    chain = link(*old, SECOND_EPOCH, frame(7, synced=6, page=1, epoch=2, path="b"))
    assert numbers(chain.frames) == [1, 2, 6, 7]
    assert chain.cut_frames == 0


def test_h40_a_recovery_that_did_not_finish_never_was() -> None:
    chain = link(
        FIRST, frame(2, synced=1, page=1), frame(3, synced=2, page=2), broken=[SECOND_EPOCH]
    )
    assert numbers(chain.frames) == [1, 2, 3]
    assert chain.highest_number == 6


def test_h40_a_recovery_that_was_overtaken_never_was() -> None:
    third = frame(7, EPOCH, synced=3, page=0, epoch=3, previous=(1, 3), address=5, path="c")
    chain = link(FIRST, frame(2, synced=1, page=1), frame(3, synced=2, page=2), SECOND_EPOCH, third)
    assert numbers(chain.frames) == [1, 2, 3, 7]


def test_an_epoch_frame_that_is_lost_behind_later_frames_is_damage() -> None:
    with pytest.raises(LogCorruptedError, match="number=6"):
        link(FIRST, frame(2, synced=1, page=1), frame(7, synced=6, page=1, epoch=2, path="b"))


# --- which frames a file holds --------------------------------------------------------------------


def encoded(
    number: int, *, page: int, generation: int = 2, epoch: int = 1, payload: bytes = b""
) -> bytes:
    """A whole frame with one entry, as a journal holds it."""
    entry = FrameEntry(number, (payload,), len(payload))
    header = FrameHeader(
        kind=ENTRIES,
        log_id=bytes(16),
        epoch=epoch,
        generation=generation,
        number=number,
        previous_epoch=epoch,
        previous_number=number - 1,
        synced_number=number - 1,
        oldest_number=1,
        truncated_up_to=0,
        last_address=number,
        page=page,
        entry_count=1,
        body_bytes=body_bytes(1, len(payload)),
    )
    return b"".join(encode_frame(header, [entry]))


def scanned(*frames: bytes) -> list[FoundFrame]:
    """What is found in a journal that holds these frames, one behind the other."""
    files = SimulatedDisk().mount("reader")
    journal = files.open("/a", create=True)
    journal.write_at(0, [b"".join(frames)])
    journal.close()
    return list(scan_journal(files, "/a", log_id=bytes(16)).frames)


def test_h43_an_older_frame_hides_no_newer_one_that_lies_in_its_pages() -> None:
    """The page of frame 8 never came to the disk: a long frame of the file's former life begins there.

    Frame 9 lies in the pages of that one. It says that frame 8 was synced: unseen, frame 8 would be cut as never
    acknowledged.
    """
    former = encoded(2, page=1, generation=1, payload=bytes(3 * PAGE_BYTES))
    found = scanned(
        encoded(7, page=0), former[:PAGE_BYTES], encoded(9, page=2), encoded(10, page=3)
    )
    assert numbers(found) == [7, 2, 9, 10]


def test_h43_what_a_client_stored_is_no_frame_although_it_is_the_copy_of_one() -> None:
    """The header says all that a header has to say at that page, a later epoch included; it lies inside of a frame."""
    forged = encoded(9, page=2, epoch=5)
    before_payload = encoded(2, page=1, payload=b"x" * 100).index(b"x" * 100)
    outer = encoded(2, page=1, payload=bytes(PAGE_BYTES - before_payload) + forged)
    assert outer[PAGE_BYTES : PAGE_BYTES + len(forged)] == forged
    behind = encoded(3, page=1 + len(outer) // PAGE_BYTES)
    assert numbers(scanned(encoded(1, page=0), outer, behind)) == [1, 2, 3]


# --- what a new epoch does with it ---------------------------------------------------------------


def plan(chain: RecoveredChain, copy_bytes_max: int = 0) -> RecoveryPlan:
    return plan_recovery(chain, rules=RULES, copy_bytes_max=copy_bytes_max)


def test_h39_frames_above_the_last_known_sync_are_copied() -> None:
    chain = link(FIRST, frame(2, synced=1, page=1), frame(3, synced=2, page=2))
    made = plan(chain)
    assert (numbers(made.in_place), numbers(made.copied)) == ([2], [3])


def test_frames_that_a_mark_vouches_for_stay_in_place() -> None:
    chain = link(
        FIRST,
        frame(2, synced=1, page=1),
        frame(3, synced=2, page=2),
        frame(4, MARK, synced=3, page=3, address=3),
    )
    made = plan(chain)
    assert (numbers(made.in_place), numbers(made.copied)) == ([2, 3], [])


def test_h39_copies_of_an_epoch_that_was_never_synced_are_copied_again() -> None:
    second = frame(6, EPOCH, synced=2, page=0, epoch=2, previous=(1, 2), address=3, path="b")
    copies = FoundFrame(
        second.header._replace(entry_count=1),
        "b",
    )
    made = plan(link(FIRST, frame(2, synced=1, page=1), frame(3, synced=2, page=2), copies))
    assert (numbers(made.in_place), numbers(made.copied)) == ([2], [6])


def test_truncated_entries_are_neither_kept_nor_copied() -> None:
    chain = link(
        FIRST,
        frame(2, synced=1, page=1),
        frame(3, synced=2, page=2),
        frame(4, MARK, synced=3, page=3, truncated=2, address=3),
    )
    made = plan(chain)
    assert (numbers(made.in_place), numbers(made.copied)) == ([3], [])


def test_small_files_are_copied_whole_so_that_restarts_do_not_pile_up() -> None:
    chain = link(
        FIRST,
        frame(2, synced=1, page=1),
        frame(3, synced=2, page=0, generation=2, path="b"),
        frame(4, MARK, synced=3, page=1, generation=2, path="b", address=3),
    )
    assert numbers(plan(chain, 100).copied) == [3]
    assert numbers(plan(chain, 200).copied) == [2, 3]
    assert numbers(plan(chain, 199).in_place) == [2]


class LookedAt:
    """A frame that counts how often its length is asked for."""

    def __init__(self, length: int) -> None:
        self._length = length
        self.looks = 0

    @property
    def header(self) -> "LookedAt":
        return self

    @property
    def length(self) -> int:
        self.looks += 1
        return self._length


@pytest.mark.parametrize(
    ("length", "count", "groups"),
    [
        (PAGE_BYTES, 600, [256, 256, 88]),
        (1 << 19, 5, [2, 2, 1]),
        (5 << 20, 2, [1, 1]),
        (PAGE_BYTES, 256, [256]),
        (PAGE_BYTES, 0, []),
    ],
)
def test_what_is_read_of_a_log_is_picked_in_one_look_at_each_frame(
    length: int, count: int, groups: list[int]
) -> None:
    frames: list[Any] = [LookedAt(length) for _ in range(count)]
    read = list(frames_read_together(frames))
    assert list(map(len, read)) == groups
    assert [frame for group in read for frame in group] == frames
    assert all(frame.looks == 1 for frame in frames)
