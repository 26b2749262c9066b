"""Where a container is in its life, and why it ended.

The moves go one way; a container that stopped or failed never runs again (H42).
"""

from collections.abc import Mapping

from segmentstore.contracts.containers import ContainerState

_ALLOWED_MOVES: Mapping[ContainerState, frozenset[ContainerState]] = {
    ContainerState.CREATED: frozenset({ContainerState.STARTING, ContainerState.STOPPED}),
    ContainerState.STARTING: frozenset({ContainerState.RUNNING, ContainerState.FAILED}),
    ContainerState.RUNNING: frozenset({ContainerState.STOPPING, ContainerState.FAILED}),
    ContainerState.STOPPING: frozenset({ContainerState.STOPPED, ContainerState.FAILED}),
    ContainerState.STOPPED: frozenset(),
    ContainerState.FAILED: frozenset(),
}


class ContainerLife:
    """State of one container."""

    __slots__ = ("cause", "state")

    def __init__(self) -> None:
        self.state = ContainerState.CREATED
        self.cause: BaseException | None = None
        """What ended it, if it failed."""

    @property
    def is_running(self) -> bool:
        return self.state is ContainerState.RUNNING

    @property
    def is_closing(self) -> bool:
        """Its owner has ended it, or is about to have."""
        return self.state in (ContainerState.STOPPING, ContainerState.STOPPED)

    @property
    def cause_text(self) -> str:
        return str(self.cause) if self.cause is not None else ""

    def move_to(self, state: ContainerState) -> None:
        assert state in _ALLOWED_MOVES[self.state], f"container moves from {self.state} to {state}"
        self.state = state

    def fail(self, cause: BaseException) -> None:
        self.cause = cause
        self.move_to(ContainerState.FAILED)


def first_cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first real cause inside nested groups."""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            return first_cause(error)
        return error
    raise AssertionError("an empty exception group")
