"""Small values that the processes of a store share, and sessions that end with the process that has them.

ZooKeeper keeps them (`zookeeper.py`); tests have a store in memory. A value has a path and a version.

Guarantees:

- A change that names the version that get() gave succeeds only if nothing was written since; of several that name one
  version exactly one succeeds. commit() makes all of its changes, or none.
- After a change has returned, every get() and children() of every process sees it or a later value.
- An ephemeral value is there while the session that created it lasts, and is gone when the session has ended. A
  session ends when its process has closed it, or when the store has heard nothing of it for `session_seconds`.
- An event that was given to a read is set after the value, or the list of names, has changed, and whenever news may
  have been missed. It may be set late, and without need: read again, and give the event again.
"""

from asyncio import Event
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from segmentstore.contracts.errors import ErrorKind, SegmentStoreError

VALUE_BYTES_MAX: Final = 1_000_000
"""Of one value: a server of ZooKeeper drops the connection of a client that sends more than a megabyte."""


class ValueChangedError(SegmentStoreError):
    """A value has another version than the caller thought, it exists already, or it is gone: read it again."""

    kind = ErrorKind.CONFLICT


class CoordinationUnavailableError(SegmentStoreError):
    """The store cannot be reached, or the connection was lost: a change may have been made, or may be made yet."""


class SessionLostError(CoordinationUnavailableError):
    """The session has ended, or nothing shows that it lasts: what was created in it is gone, or soon will be."""


@dataclass(frozen=True, slots=True)
class VersionedValue:
    """What was read, and the version that a change of it has to name."""

    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class CheckVersion:
    """Part of a commit: the value has this version."""

    path: str
    version: int


@dataclass(frozen=True, slots=True)
class CreateValue:
    """Part of a commit: a value that is not there yet, below a path that is."""

    path: str
    value: bytes


@dataclass(frozen=True, slots=True)
class SetValue:
    """Part of a commit: another value in place of the one of this version."""

    path: str
    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class DeleteValue:
    """Part of a commit: the value of this version goes."""

    path: str
    version: int


Change = CheckVersion | CreateValue | SetValue | DeleteValue


class CoordinationStore(Protocol):
    """Values by path, below one root. Every call raises CoordinationUnavailableError if there is no answer."""

    async def get(self, path: str, *, changed: Event | None = None) -> VersionedValue | None:
        """None if there is no such value. `changed` is set when the value has changed, came or went."""

    async def children(self, path: str, *, changed: Event | None = None) -> list[str]:
        """Names below the path, sorted; none if it does not exist. `changed` is set when names came or went."""

    async def create(self, path: str, value: bytes, *, ephemeral: bool = False) -> int:
        """The version of the new value; parents are made. Raises ValueChangedError if there is one already.

        An ephemeral value that was created belongs to this store's session. Raises SessionLostError if that has ended.
        """

    async def compare_and_set(self, path: str, value: bytes, *, version: int) -> int:
        """The new version. Raises ValueChangedError."""

    async def delete(self, path: str, *, version: int) -> None:
        """Raises ValueChangedError as compare_and_set()."""

    async def commit(self, changes: Sequence[Change]) -> None:
        """All of them at once, in this order. A set value's version grows by one. Raises ValueChangedError: none."""

    async def close(self) -> None:
        """Ends the session, if it can be told in time; then what is ephemeral is gone at once. Idempotent."""


class CoordinationSession(CoordinationStore, Protocol):
    """A store with one session. When that has ended, every call raises SessionLostError: connect anew."""

    @property
    def session_seconds(self) -> float:
        """How long the store waits for news of this session, as agreed with it; from now on no less."""

    @property
    def ended(self) -> Event:
        """Set when the store has said that the session has ended. It may end without being told here."""

    async def heartbeat(self) -> float:
        """The loop time at which a request was sent that the store has answered: the session lasted then."""
