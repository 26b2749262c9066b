"""The states of a log that one owner opens once, alike for every kind of log.

Invariant: they move forward only, NEW -> OPENING -> OPEN -> CLOSED, and to CLOSED from each of them. A log that failed
stays OPEN and refuses everything, until its owner closes it.
"""

from enum import Enum


class LogState(Enum):
    """How far initialize() and close() have come."""

    NEW = "new"
    OPENING = "opening"
    OPEN = "open"
    CLOSED = "closed"


_NEXT = {
    LogState.NEW: {LogState.OPENING, LogState.CLOSED},
    LogState.OPENING: {LogState.OPEN, LogState.CLOSED},
    LogState.OPEN: {LogState.CLOSED},
    LogState.CLOSED: set[LogState](),
}


class LogStates:
    """The state of one log, and the moves that it may make."""

    def __init__(self) -> None:
        self._state = LogState.NEW

    @property
    def is_closed(self) -> bool:
        return self._state is LogState.CLOSED

    @property
    def present(self) -> LogState:
        return self._state

    def move_to(self, state: LogState) -> None:
        """Asserts that the move is allowed."""
        assert state in _NEXT[self._state], f"log cannot go from {self._state} to {state}"
        self._state = state
