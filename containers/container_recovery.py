"""One recovery of a container: its log and its root, brought to the state in which the parts can begin.

What replay finds in Tier 2 already is kept as checksums, for the storage writer to compare; what does not fit into
memory is flushed on the way (containers.replay_flush).
"""

from concurrent.futures import Executor

from containers.container_parts import RecoveredState
from containers.log.recovery import Recovery, RecoverySummary
from containers.log.replayed_overlap import ReplayedOverlap
from containers.replay_flush import ReplayFlush
from containers.writer.settings import WriterSettings


class ContainerRecovery:
    """Fills an empty state, once."""

    def __init__(
        self, *, state: RecoveredState, settings: WriterSettings, executor: Executor | None
    ) -> None:
        self.overlap = ReplayedOverlap()
        """Filled by run()."""
        flush = ReplayFlush(
            metadata=state.metadata,
            memory_log=state.memory_log,
            overlap=self.overlap,
            storage=state.storage,
            settings=settings,
            executor=executor,
        )
        self._recovery = Recovery(
            log=state.log,
            storage=state.storage,
            metadata=state.metadata,
            memory_log=state.memory_log,
            read_index=state.read_index,
            markers=state.markers,
            expect_in_storage=self.overlap.add,
            flush=flush.flush,
        )

    async def run(self) -> RecoverySummary:
        """Raises what Recovery.run() raises."""
        return await self._recovery.run()
