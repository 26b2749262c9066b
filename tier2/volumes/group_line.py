"""The line in which changes wait for their group, and in which the contents of puts are hashed meanwhile.

    line, in the order of the calls -> round: its contents are being hashed -> ready: groups are cut off its front

Invariants:

- Changes leave in the order in which they joined: what needs no hashing does not overtake what does.
- Disk and hash work side by side: a round is hashed while a group is under way. Callers that put again when their group
  has ended would else come all at once for ever, and nothing be hashed while the disk works. So of what comes at once
  while the disk has nothing to do one half is hashed first, and becomes a group of its own.
- Nothing waits for company: a round is what has come by the turn of the loop in which it begins.
- A round is bounded, so whoever joins behind it waits little longer than for a group of that size.
- A caller that goes away takes nothing from the others of its round.
- One at a time takes from what is ready, the worker or the thread that commits; only the loop adds to it. Each does so
  by single steps of a deque, which need no lock.
"""

import asyncio
from asyncio import Future
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Executor
from functools import partial

from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.runtime.clock import WallClock
from tier2.volumes.content import ContentDigest, digest_all, digest_by_name
from tier2.volumes.description import draft_of
from tier2.volumes.mutations import Put, Undigested, Waiting
from tier2.volumes.settings import VolumeSettings

_CALLS_MAX = 2
"""Of the executor, for a round that begins while the disk has nothing to do. Beside a group it is one: the write takes
as long, and each call needs the interpreter between two contents."""
_HALVED_BYTES_MIN = 1 << 20
"""Less is written in about the time of one sync: two of them would take longer than one group."""
_ROUND_BYTES_MAX = 4 << 20


class GroupLine:
    """join(), next()... by one worker."""

    def __init__(
        self, *, executor: Executor | None, wall_clock: WallClock, settings: VolumeSettings
    ) -> None:
        self._executor = executor
        self._wall_clock = wall_clock
        self._settings = settings
        self._line: deque[Waiting] = deque()
        self._undigested_bytes = 0
        """In the line."""
        self._round: list[Waiting] = []
        self._calls = 0
        """For the round, under way."""
        self._round_is_due = False
        self._ready: deque[Waiting] = deque()
        self._group_is_under_way = False
        self._changed = asyncio.Event()
        self._is_woken = False

    def join(self, waiting: Waiting) -> None:
        """Behind all who joined before."""
        self._line.append(waiting)
        if type(waiting.mutation) is not Undigested:
            self._pass_hashed()
            self._changed.set()
            return
        self._undigested_bytes += waiting.size
        if not self._round and not self._round_is_due:
            self._round_is_due = True
            asyncio.get_running_loop().call_soon(self._begin_round)

    def wake(self) -> None:
        """`next` returns soon, with nothing if there is nothing."""
        self._is_woken = True
        self._changed.set()

    @property
    def is_empty(self) -> bool:
        return not (self._line or self._round or self._ready)

    async def next(self) -> list[Waiting]:
        """The next group, all of whose contents are hashed or have failed; the one before it has ended.

        Empty if `wake` was called, and nothing is ready.
        """
        self._group_is_under_way = False
        while True:
            self._pass_hashed()
            if self._ready:
                self._group_is_under_way = True
                return self.cut_group()
            if self._is_woken:
                self._is_woken = False
                return []
            self._changed.clear()
            await self._changed.wait()

    def _pass_hashed(self) -> None:
        """Whatever is in front of the line and needs no hashing is ready."""
        if self._round:
            return
        line = self._line
        while line and type(line[0].mutation) is not Undigested:
            self._ready.append(line.popleft())

    def cut_group(self) -> list[Waiting]:
        """What is ready at the front, as much as a group may have.

        Called in any thread, by whoever is between two groups.
        """
        settings = self._settings
        ready = self._ready
        group: list[Waiting] = []
        size = 0
        while ready and len(group) < settings.group_records_max:
            first = ready[0]
            size += first.size
            if group and size > settings.group_bytes_max:
                break
            group.append(first)
            ready.popleft()
        return group

    # --- hashing ---------------------------------------------------------------------------------

    def _begin_round(self) -> None:
        self._round_is_due = False
        self._pass_hashed()
        if self._round or not self._line:
            return
        is_idle = not self._group_is_under_way and not self._ready
        wanted = min(self._undigested_bytes, _ROUND_BYTES_MAX)
        if is_idle and wanted >= _HALVED_BYTES_MIN:
            wanted //= 2
        contents: list[Waiting] = []
        size = 0
        while self._line and size < wanted:
            waiting = self._line.popleft()
            self._round.append(waiting)
            if type(waiting.mutation) is Undigested:
                contents.append(waiting)
                size += waiting.size
        self._undigested_bytes -= size
        shares = _shares(contents, _CALLS_MAX if is_idle else 1)
        self._calls = len(shares)
        for share in shares:
            self._hash(share)

    def _hash(self, share: list[Waiting]) -> None:
        wanted = [one.mutation for one in share if isinstance(one.mutation, Undigested)]
        try:
            call = asyncio.get_running_loop().run_in_executor(
                self._executor, _digest_all, wanted, self._wall_clock.now_ms(), self._settings
            )
        except RuntimeError as error:  # the executor is shut down
            self._end_call(share, [error] * len(share))
        else:
            call.add_done_callback(partial(self._take_outcomes, share))

    def _take_outcomes(
        self, share: list[Waiting], call: "Future[list[Put | SegmentStoreError]]"
    ) -> None:
        error = asyncio.CancelledError() if call.cancelled() else call.exception()
        self._end_call(share, [error] * len(share) if error is not None else call.result())

    def _end_call(self, share: list[Waiting], outcomes: Sequence[Put | BaseException]) -> None:
        for waiting, outcome in zip(share, outcomes, strict=True):
            if isinstance(outcome, Put):
                waiting.mutation = outcome
            else:
                waiting.error = outcome
        self._calls -= 1
        if not self._calls:
            self._ready.extend(self._round)
            self._round = []
            self._begin_round()
            self._changed.set()


def _shares(contents: list[Waiting], count: int) -> list[list[Waiting]]:
    """The same in the same order, in at most `count` lists of about as many bytes."""
    wanted = sum(one.size for one in contents) / count
    shares: list[list[Waiting]] = []
    room = 0.0
    for one in contents:
        if not shares or (one.size > room and len(shares) < count):
            shares.append([])
            room = wanted
        shares[-1].append(one)
        room -= one.size
    return shares


def _digest_all(
    wanted: Sequence[Undigested], now_ms: int, settings: VolumeSettings
) -> list[Put | SegmentStoreError]:
    found = iter(
        digest_all([one.content for one in wanted if not one.unique], settings.piece_bytes)
    )
    return [
        _put_of(
            one,
            digest_by_name(one.key, one.content, settings.piece_bytes)
            if one.unique
            else next(found),
            now_ms,
            settings,
        )
        for one in wanted
    ]


def _put_of(
    one: Undigested, found: ContentDigest, now_ms: int, settings: VolumeSettings
) -> Put | SegmentStoreError:
    try:
        draft = draft_of(found, one.description, now_ms=now_ms, settings=settings)
    except SegmentStoreError as error:
        return error
    # By position: names cost a third more.
    return Put(one.key, draft, one.content, one.condition, one.bypass_governance, None, one.unique)
