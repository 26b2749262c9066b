"""Bugs to plant: each breaks one decision of DurabilityRules, and every one must be found out."""

from tier1.file_log.frames import FrameHeader
from tier1.file_log.settings import DurabilityRules


class AcknowledgesBeforeSync(DurabilityRules):
    def acknowledges_before_sync(self) -> bool:
        return True


class ReplaysFormerLives(DurabilityRules):
    """No generation check: whatever lies behind the last frame of a recycled file is taken for its continuation."""

    def continues(self, previous: FrameHeader, frame: FrameHeader) -> bool:
        return True


class ServesTheUnsyncedTail(DurabilityRules):
    """What was read from the page cache is served as it lies there."""

    def is_durable(self, frame: FrameHeader, synced_number: int) -> bool:
        return True
