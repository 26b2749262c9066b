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
- One at a time takes from what is ready: whoever has the turn. One at a time adds to it: while there is a round, who
  ends the last of its calls, which is a thread that need not wait for the loop to look; else the loop. Each does so by
  single steps of a deque, which need no lock.
"""

import asyncio
from asyncio import AbstractEventLoop, Future
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial

from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.runtime.clock import WallClock
from tier2.volumes.content import ContentDigest, digest_all, digest_by_name
from tier2.volumes.description import draft_of
from tier2.volumes.index_record import IndexRecord
from tier2.volumes.mutations import ALWAYS, NewObject, Put, SmallPut, Undigested
from tier2.volumes.new_objects import Prepared, new_object
from tier2.volumes.settings import VolumeSettings
from tier2.volumes.waiting import Waiting

_CALLS_MAX = 2
"""Of the executor, for a round that begins while the disk has nothing to do. Beside a group it is one: the write takes
as long, and each call needs the interpreter between two contents."""
_HALVED_BYTES_MIN = 1 << 20
"""Less is written in about the time of one sync: two of them would take longer than one group."""
_ROUND_BYTES_MAX = 4 << 20


class GroupLine:
    """join(); then changed() tells one worker to look, and cut_group() whoever has the turn."""

    def __init__(
        self,
        *,
        executor: Executor | None,
        wall_clock: WallClock,
        settings: VolumeSettings,
        prepare: Callable[[Sequence[Put], int], Prepared],
        is_idle: Callable[[], bool],
        hashed: Callable[[AbstractEventLoop], None],
    ) -> None:
        """`prepare` and `hashed` are called in the executor.

        prepare: of puts, at a time, beside a group under way: what may be done before theirs. May raise StorageError.
        is_idle: nobody makes a group now. hashed: a round has ended, and is ready.
        """
        self._executor = executor
        self._wall_clock = wall_clock
        self._settings = settings
        self._prepare = prepare
        self._is_idle = is_idle
        self._hashed = hashed
        self._line: deque[Waiting] = deque()
        self._undigested_bytes = 0
        """In the line."""
        self._round: list[Waiting] = []
        self._not_last: deque[None] = deque()
        """One for each of its calls but one: whoever ends a call and finds none has ended the last one."""
        self._round_is_due = False
        self._ready: deque[Waiting] = deque()
        self._changed = asyncio.Event()

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
        """`changed` returns soon."""
        self._changed.set()

    @property
    def has_ready(self) -> bool:
        """A group could be cut. For any thread."""
        return bool(self._ready)

    async def changed(self) -> None:
        """Something may have become ready, or `wake` was called, since this returned the last time. For one worker."""
        await self._changed.wait()
        self._changed.clear()

    def hash_small(self, group: Sequence[Waiting]) -> None:
        """Of what was cut: the puts that joined without being hashed. In any thread."""
        small: list[Waiting] = []
        wanted: list[SmallPut] = []
        for one in group:
            if type(one.mutation) is SmallPut:
                small.append(one)
                wanted.append(one.mutation)
        if small:
            _note(small, _digest_small(wanted, self._wall_clock.now_ms(), self._settings))

    def _pass_hashed(self) -> None:
        """Whatever is in front of the line and needs no hashing is ready."""
        if self._round:
            return
        line = self._line
        while line and type(line[0].mutation) is not Undigested:
            self._ready.append(line.popleft())

    def cut_group(self) -> list[Waiting]:
        """What is ready at the front, as much as a group may have.

        Called in any thread, by whoever has the turn.
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
        is_idle = self._is_idle() and not self._ready
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
        self._not_last = deque([None] * (len(shares) - 1))
        for share in shares:
            self._hash(share)

    def _hash(self, share: list[Waiting]) -> None:
        loop = asyncio.get_running_loop()
        try:
            call = loop.run_in_executor(self._executor, self._hash_in_thread, share, loop)
        except RuntimeError as error:  # the executor is shut down
            self._give_up(share, error)
        else:
            call.add_done_callback(partial(self._see_end, share))

    def _hash_in_thread(self, share: list[Waiting], loop: AbstractEventLoop) -> None:
        wanted = [one.mutation for one in share if isinstance(one.mutation, Undigested)]
        now_ms = self._wall_clock.now_ms()
        outcomes = _digest_all(wanted, now_ms, self._settings)
        puts = [one for one in outcomes if isinstance(one, Put)]
        # What fails here fails again in the group, and is reported there.
        with suppress(OSError, SegmentStoreError):
            ahead = self._prepare(puts, now_ms)
            for waiting in share:
                waiting.ahead = ahead
        if self._note_outcomes(share, outcomes):
            # The next round begins while this thread makes the group.
            loop.call_soon_threadsafe(self._end_round)
            self._hashed(loop)

    def _note_outcomes(self, share: list[Waiting], outcomes: Sequence[Put | BaseException]) -> bool:
        """Once for each call, in any thread; whether that was the last one, and all are ready."""
        _note(share, outcomes)
        try:
            self._not_last.pop()
        except IndexError:
            self._ready.extend(self._round)
            return True
        return False

    def _see_end(self, share: list[Waiting], call: "Future[None]") -> None:
        error = asyncio.CancelledError() if call.cancelled() else call.exception()
        if error is None:
            return
        if type(share[0].mutation) is not Undigested or share[0].error is not None:
            raise error  # It hashed them, and failed in what is no business of this line: the loop reports it.
        self._give_up(share, error)

    def _give_up(self, share: list[Waiting], error: BaseException) -> None:
        if self._note_outcomes(share, [error] * len(share)):
            self._end_round()

    def _end_round(self) -> None:
        self._round = []
        self._begin_round()
        self._changed.set()


def _note(share: Sequence[Waiting], outcomes: Sequence[Put | BaseException]) -> None:
    for waiting, outcome in zip(share, outcomes, strict=True):
        if isinstance(outcome, Put):
            waiting.mutation = outcome
        else:
            waiting.error = outcome


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
    hashed = [one.content for one in wanted if not one.unique]
    found = iter(digest_all(hashed, settings.piece_bytes))
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


def _digest_small(wanted: Sequence[SmallPut], now_ms: int, settings: VolumeSettings) -> list[Put]:
    """As `_digest_all`, of what has only what `draft_of` need not look at."""
    piece_bytes, inline_bytes_max = settings.piece_bytes, settings.inline_bytes_max
    contents = [(one.content,) for one in wanted]
    puts: list[Put] = []
    for one, found in zip(wanted, digest_all(contents, piece_bytes), strict=True):
        key, content, content_type, etag, size = one
        content_hash = found.content_hash
        # By position: names cost a third more.
        draft = IndexRecord(
            size,
            0,
            content_hash,
            etag or content_hash[:16].hex(),
            now_ms,
            piece_bytes,
            found.pieces,
            content_type,
            {},
            "",
            None,
            0,
            False,
            False,
            False,
            size <= inline_bytes_max,
        )
        new: NewObject = (
            key,
            content_type,
            draft.etag,
            content_hash,
            found.pieces[0],
            size,
            now_ms,
            content if draft.inline else None,
            (content,),
        )
        puts.append(Put(key, draft, (content,), ALWAYS, False, None, False, new))
    return puts


def _put_of(
    one: Undigested, found: ContentDigest, now_ms: int, settings: VolumeSettings
) -> Put | SegmentStoreError:
    try:
        draft = draft_of(found, one.description, now_ms=now_ms, settings=settings)
    except SegmentStoreError as error:
        return error
    # By position: names cost a third more.
    put = Put(one.key, draft, one.content, one.condition, one.bypass_governance, None, one.unique)
    put.new = new_object(put)
    return put
