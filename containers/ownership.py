"""Whether a container is still its log's owner, asked before anything is told that another owner could contradict.

A container that another process has fenced does not know it until it writes. What it remembers meanwhile is old: a
segment that it does not know may exist, one that it takes for open may be sealed. So what rests on what a container
remembers (a refusal, a length, an attribute, "nothing yet") is judged first, and told only once it is confirmed:

    a lease     of the host, for its containers: one look at the clock. Not valid: refused at once, never proved: the
                host gives up all of its containers
    none        the log is asked (DurableDataLog.check_owner). A look that begins behind the judgement and finds this
                owner proves it: no other owner can have written anything before

A write needs none of it: an acknowledged operation is durable, and no fenced owner completes one. Bytes that were read
never change, so they need no proof either; where there are none, the end is confirmed.

Invariants:

- What is confirmed was judged before: by a lease that is valid afterwards, or by a look that began afterwards.
- Callers that ask while a look is under way share the next one. Each caller waits with its request, so there are not
  more of them than requests.
- A look that finds another owner ends the container as fenced; one that cannot be made now refuses what waits for it.
- Once the container has ended nothing is confirmed any more, for good.
- What is not confirmed is refused with ContainerNotFoundError: nothing was done, another host may know more.
"""

import asyncio
from asyncio import Future
from collections.abc import Awaitable, Callable
from types import TracebackType

from segmentstore.contracts.cluster import Lease
from segmentstore.contracts.errors import (
    ContainerNotFoundError,
    ErrorKind,
    SegmentStoreError,
)
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.runtime.cancellation import complete_unless_done
from segmentstore.runtime.guarded_callback import guarded

_DEFINITE = (ErrorKind.NOT_FOUND, ErrorKind.CONFLICT, ErrorKind.INVALID)


class OnlyProcess:
    """The lease of a process that has its logs for itself: in its memory, or in a directory whose lock it holds."""

    def is_valid(self) -> bool:
        return True


class Ownership:
    """Of one container. run() makes the looks at the log."""

    def __init__(
        self,
        *,
        container_id: ContainerId,
        lease: Lease | None,
        check_owner: Callable[[], Awaitable[None]],
        fail: Callable[[Exception], None],
    ) -> None:
        """`fail` ends the container with what a look found."""
        self._loop = asyncio.get_running_loop()
        self._container_id = container_id
        self._lease = lease
        self._check_owner = check_owner
        self._fail = fail
        self._ended = ""
        """Why nothing is confirmed any more; "" while the container works."""
        self._next: Future[str] | None = None
        """What the look says that begins next: "", or why it proves nothing."""
        self._under_way: Future[str] | None = None
        self._wanted = asyncio.Event()
        self.looks = 0

    def is_sure(self) -> bool:
        """Whether what was judged before needs no look at the log: one look at the clock.

        Raises ContainerNotFoundError if it cannot be confirmed at all: the lease is over, or the container has ended.
        """
        if self._ended:
            raise ContainerNotFoundError(self._container_id, self._ended)
        lease = self._lease
        if lease is None:
            return False
        if lease.is_valid():
            return True
        raise ContainerNotFoundError(
            self._container_id, "its host is not sure any more that no other has been given it"
        )

    async def confirm(self) -> None:
        """Returns when what was judged before the call may be told. Raises ContainerNotFoundError."""
        if not self.is_sure():
            unproved = await asyncio.shield(self._next_look())
            if unproved:
                raise ContainerNotFoundError(self._container_id, unproved)

    def confirming(self, *, refusals_only: bool = False) -> "_Confirming":
        """An `async with` whose body judges: its definite refusal, and unless `refusals_only` also its result, goes on
        to the caller when it is confirmed."""
        return _Confirming(self, refusals_only=refusals_only)

    def when_confirmed(
        self, tell: Callable[[], None], refuse: Callable[[ContainerNotFoundError], None]
    ) -> None:
        """Calls one of the two: `tell` when what was judged before the call may be told, at once if that is sure."""
        try:
            if self.is_sure():
                tell()
                return
        except ContainerNotFoundError as error:
            refuse(error)
            return

        def looked(look: "Future[str]") -> None:
            if look.result():
                refuse(ContainerNotFoundError(self._container_id, look.result()))
            else:
                tell()

        self._next_look().add_done_callback(guarded(looked, self._fail))

    def end(self, why: str) -> None:
        """The container ends, or has been fenced: what waits is refused."""
        self._ended = self._ended or why
        for look in (self._under_way, self._next):
            if look is not None:
                complete_unless_done(look, self._ended)

    async def run(self) -> None:
        """Make the looks that are asked for, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            self._under_way, self._next = self._next, None
            if self._under_way is not None:
                complete_unless_done(self._under_way, await self._look())

    def _next_look(self) -> "Future[str]":
        if self._next is None:
            self._next = self._loop.create_future()
            self._wanted.set()
        return self._next

    async def _look(self) -> str:
        """ "" if this is the owner, otherwise why that is not proved."""
        self.looks += 1
        try:
            await self._check_owner()
        except SegmentStoreError as error:
            if error.kind is ErrorKind.FENCED:
                self._fail(error)
            return f"whether it is still the owner is not known: {error}"
        return ""


class _Confirming:
    """See Ownership.confirming."""

    __slots__ = ("_ownership", "_refusals_only")

    def __init__(self, ownership: Ownership, *, refusals_only: bool) -> None:
        self._ownership = ownership
        self._refusals_only = refusals_only

    async def __aenter__(self) -> None:
        return

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if (not self._refusals_only) if error is None else is_definite_refusal(error):
            await self._ownership.confirm()


def is_definite_refusal(error: BaseException) -> bool:
    """Whether it says how things are, which another owner could contradict; not: ask again, or ask a person."""
    return isinstance(error, SegmentStoreError) and error.kind in _DEFINITE
