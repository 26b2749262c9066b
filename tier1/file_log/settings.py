"""What an operator may tune about the file log, and the three decisions on which its durability hangs.

The decisions stand apart, each alone in one method, so that a test can break exactly one of them and see that the
simulation finds out.
"""

from dataclasses import dataclass

from tier1.file_log.frames import PAGE_BYTES, FrameHeader, frame_bytes

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class FileLogSettings:
    """Sizes are bytes, times are seconds. Small values make a simulated world turn its corners quickly."""

    entry_bytes_max: int = MIB
    """Largest entry that append() takes."""
    outstanding_bytes_max: int = 16 * MIB
    """What the caller may have in flight; also bounds the pending queue, which never refuses."""
    batch_bytes_max: int = 4 * MIB
    """Payload of one frame, unless a single entry is larger."""
    ahead_bytes_min: int = MIB // 2
    """With so much payload waiting a frame is planned while another is written; with less it waits for company."""
    journal_bytes_first: int = 8 * MIB
    """Size of an epoch's first journal file: small, because the start waits while it is filled with zeros."""
    journal_bytes_max: int = 64 * MIB
    """Each further file is twice as large as the one before, up to this."""
    spare_journals: int = 2
    """Files filled ahead of need. Once there are recycled files nothing is filled any more."""
    recycled_journals_max: int = 16
    """Freed files beyond this many spares are unlinked instead of recycled; fewer are kept when space is scarce."""
    fill_step_bytes: int = 4 * MIB
    """Zeros written and synced by one executor job, so that filling never holds a thread for long."""
    reserve_bytes: int = 32 * MIB
    """Journal space that only internal entries may use once no further file can be made."""
    free_bytes_min: int = 256 * MIB
    """No journal is made when less than this would be left on the disk: flushes and compaction need it."""
    space_poll_seconds: float = 1.0
    """How often a full log looks whether space is back."""
    mark_delay_seconds: float = 0.5
    """Idle time after which a mark frame vouches for the last synced frame."""
    copy_bytes_max: int = 2 * MIB
    """Recovery copies this much of the newest entries forward even if synced, so that restarts leave few files."""
    takeover: bool = False
    """Take the log over from a living process that does not answer: the lock is tried, the epoch decides."""

    def __post_init__(self) -> None:
        largest_frame = frame_bytes(1, max(self.entry_bytes_max, self.batch_bytes_max))
        if self.journal_bytes_first < largest_frame + 4 * PAGE_BYTES:
            raise ValueError(
                f"journal_bytes_first is too small for one frame "
                f"journal_bytes_first={self.journal_bytes_first} frame_bytes_max={largest_frame}"
            )
        if self.journal_bytes_max < self.journal_bytes_first:
            raise ValueError(
                f"journal_bytes_max is below journal_bytes_first "
                f"journal_bytes_max={self.journal_bytes_max} journal_bytes_first={self.journal_bytes_first}"
            )
        if self.journal_bytes_first % PAGE_BYTES or self.journal_bytes_max % PAGE_BYTES:
            raise ValueError(f"journal sizes are multiples of page_bytes={PAGE_BYTES}")


class DurabilityRules:
    """What the file log does in production; there is no other choice to configure."""

    def acknowledges_before_sync(self) -> bool:
        """Never: an acknowledgement means synced."""
        return False

    def continues(self, previous: FrameHeader, frame: FrameHeader) -> bool:
        """Whether `frame`, found right behind `previous`, follows it and is no left-over of an earlier generation."""
        if frame.generation == previous.generation:
            adjacent = frame.page == previous.end_page
        else:
            adjacent = frame.page == 0 and frame.generation == previous.generation + 1
        return (
            adjacent
            and frame.epoch == previous.epoch
            and frame.number == previous.number + 1
            and frame.previous_number == previous.number
        )

    def is_durable(self, frame: FrameHeader, synced_number: int) -> bool:
        """Whether a recovered frame may stay in its file; others are copied and synced before they are seen."""
        return frame.number <= synced_number
