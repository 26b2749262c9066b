"""The three decisions on which durability hangs, each alone in one method.

They stand apart so that a test can break exactly one of them and see that the simulation finds out.
"""

from tier1.file_log.frames import FrameHeader


class DurabilityRules:
    """What the file log does in production; there is no other choice to configure."""

    def acknowledges_before_sync(self) -> bool:
        """Never: an acknowledgement means synced."""
        return False

    def continues(self, previous: FrameHeader, frame: FrameHeader) -> bool:
        """Whether `frame`, found right behind `previous`, follows it and is no left-over of a former life (H43)."""
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
        """Whether a recovered frame may stay in its file; others are copied and synced before they are seen (H39)."""
        return frame.number <= synced_number
