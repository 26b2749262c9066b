"""All consumer groups of a store: requests that wait, time-outs, and offsets that last.

The rules of a group are in group.py, which decides; here its decisions are carried out. Members are in memory alone:
after a restart each is a stranger, is told so, and joins again. Offsets are in a table (committed_offsets.py).

Invariants:

- A request is judged and answered in one stretch, without an await: what it rests on does not change meanwhile.
- A request that waits ends with its answer, with its caller, or with close().
- A member of a group without offsets keeps its id over a restart: for `former_members_seconds` strangers of such groups
  are told to join again (27) and are taken as what they say they are. Workers of Kafka Connect take others for new
  ones, and leave the work of those that seem to have gone undone for minutes. Members of groups with offsets begin anew
  (25), by which consumers know that they have lost their partitions.
- Of a group without members and without offsets nothing is kept. A group that is made of the same name begins above
  all generations of groups that were dropped, so within a process a generation of a name comes once.
- Offsets of a group are removed when it had neither a member nor a commit for the whole retention, as this process saw
  it. The retention begins again with each start of the process. An offset that stays too long costs a little memory; a
  group whose offset is removed too early reads everything again, or loses what lies in between.
- Offsets of a topic that was deleted count for nothing, and are removed while their group lives: by what the catalogue
  says in that moment, never by what is remembered of it. Those of a name that came again stay.
"""

import asyncio
import heapq
import logging
from asyncio import Future
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from random import Random
from typing import Final
from uuid import UUID

from segmentstore.contracts.errors import ContainerStoppedError, SegmentStoreError
from segmentstore.contracts.tables import TableApi
from segmentstore.runtime.cancellation import complete_unless_done, fail_unless_done
from segmentstore.runtime.clock import WallClock
from segmentstore.runtime.waiting import wait_for_event
from segmentstore.topics.errors import TopicError, TopicExistsError
from segmentstore.topics.groups.committed_offsets import (
    CommittedOffset,
    CommittedOffsets,
    TopicPartition,
    fits_in_a_key,
)
from segmentstore.topics.groups.errors import GroupError, GroupProblem
from segmentstore.topics.groups.group import (
    Answers,
    Group,
    GroupDescription,
    GroupState,
    Joined,
    JoinRequest,
    Synced,
)
from segmentstore.topics.groups.settings import GroupSettings

_LOG = logging.getLogger(__name__)

_NAME_LENGTH_MAX: Final = 128
"""Of a client's name, or of an instance id, in a member id; the rest of it is left out."""
_OFFSET_MIN: Final = -2

_OFFSETS_PER_TURN: Final = 500
"""Of one request, looked at before others run."""
_IDLE_TIMERS_MAX: Final = 64
"""So many timers that count no more may be kept beside those that do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetToCommit:
    """What a consumer says of one partition: the next record that it wants."""

    offset: int
    """-1 and -2: the ends, as in ListOffsets. kafkajs commits them when it resets a group."""
    leader_epoch: int = -1
    metadata: str | None = None


@dataclass(frozen=True, slots=True)
class GroupListing:
    """One group of a listing."""

    group_id: str
    protocol_type: str
    """Empty if it had no members since the start of this process."""
    state: GroupState


@dataclass(frozen=True, slots=True)
class GroupStatistics:
    """As of now."""

    groups: int
    waiting_requests: int
    offsets: int


class Groups:
    """start(), then run() beside the calls, close() at the end; then start() may follow again.

    Every call raises GroupError, COORDINATOR_LOAD_IN_PROGRESS before the end of start() among them.
    """

    def __init__(
        self,
        *,
        tables: TableApi,
        wall_clock: WallClock,
        random: Random,
        topic_id_of: Callable[[str], UUID | None],
        settings: GroupSettings,
        is_coordinator: Callable[[], bool] = lambda: True,
        refresh_topics: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`topic_id_of` is the id of the topic that has the name now, if there is one, as far as is known here.

        `refresh_topics` returns when it knows what was changed before the call, and raises TopicError if that cannot be
        told; None: offsets of deleted topics stay as long as their group.

        `is_coordinator` says whether the container of the offsets is in this process, and surely in no other one.
        """
        self._is_coordinator = is_coordinator
        self._wall_clock = wall_clock
        self._random = random
        self._topic_id_of = topic_id_of
        self._refresh_topics = refresh_topics
        self._settings = settings
        self._offsets = CommittedOffsets(tables=tables)
        self._groups: dict[str, Group] = {}
        self._dropped_generation = 0
        """The highest one of all groups that were dropped."""
        self._is_loaded = False
        self._former_until = 0.0
        """Until then members may be those of a former process."""
        self._losses = 0
        """How often the offsets have left this process: what was read before the last one may miss offsets."""
        self._waiting: dict[int, Future[Joined | Synced]] = {}
        self._calls = 0
        self._timers = _Timers()

    async def start(self) -> None:
        """Look up which groups have offsets. Raises what the interface of tables raises, and CorruptedDataError."""
        losses = self._losses
        await self._offsets.load()
        if losses != self._losses:
            raise ContainerStoppedError("the offsets of groups have left while they were looked up")
        for group_id in self._offsets.group_ids():
            self._group(group_id)
        self._former_until = _now() + self._settings.former_members_seconds
        self._is_loaded = True

    async def run(self) -> None:
        """Until cancelled: end what is over."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._end_sessions(), name="group sessions")
            tasks.create_task(self._remove_old_offsets(), name="group offsets")

    def lose(self) -> None:
        """With no await in between, when the container of the offsets has ended here: nothing is answered any more,
        also if it comes back, until close() and start()."""
        self._is_loaded = False
        self._losses += 1

    async def close(self) -> None:
        """Every request that waits is told to look for its group again, and members are forgotten."""
        self.lose()
        problem = GroupProblem.NOT_COORDINATOR
        if self._is_coordinator():
            problem = GroupProblem.COORDINATOR_NOT_AVAILABLE
        for future in self._waiting.values():
            fail_unless_done(future, GroupError(problem))
        for group in list(self._groups.values()):
            self._drop(group)
        self._timers.clear()

    # --- members ----------------------------------------------------------------------------------

    async def join(self, group_id: str, request: JoinRequest) -> Joined:
        """The generation that the member belongs to, when all members have joined it.

        A caller that is cancelled, because its connection is gone, leaves the member behind until its session ends.
        """
        self._require_loaded()
        if not group_id:
            raise GroupError(GroupProblem.INVALID_GROUP_ID)
        group = self._group(group_id, bounded=True)
        name = request.client_id if request.instance_id is None else request.instance_id
        new_id = f"{name[:_NAME_LENGTH_MAX]}-{UUID(int=self._random.getrandbits(128), version=4)}"
        outcome = await self._answered(
            group,
            lambda call, now: group.join(
                call, request, new_id=new_id, now=now, keeps_ids=self._keeps_ids(group_id)
            ),
        )
        assert isinstance(outcome, Joined), f"a join was answered with {outcome}"
        return outcome

    async def sync(
        self,
        group_id: str,
        *,
        member_id: str,
        generation: int,
        assignments: Mapping[str, bytes],
        instance_id: str | None = None,
        protocol_type: str | None = None,
        protocol: str | None = None,
    ) -> bytes:
        """What the leader assigned to the member, when it has. `assignments` count only if the member leads.

        `protocol_type` and `protocol`: what the member takes the group to have agreed on; None: it does not say."""
        group = self._group_of_member(group_id)
        outcome = await self._answered(
            group,
            lambda call, now: group.sync(
                call,
                member_id=member_id,
                generation=generation,
                assignments=assignments,
                now=now,
                instance_id=instance_id,
                protocol_type=protocol_type,
                protocol=protocol,
            ),
        )
        assert isinstance(outcome, Synced), f"a sync was answered with {outcome}"
        return outcome.assignment

    def heartbeat(
        self, group_id: str, *, member_id: str, generation: int, instance_id: str | None = None
    ) -> None:
        """The member is there; raises if it has to join again."""
        self._require_loaded()
        found = self._groups.get(group_id)
        if instance_id is None and self._keeps_ids(group_id):
            if found is None or not found.knows(member_id):
                raise GroupError(GroupProblem.REBALANCE_IN_PROGRESS)
            if found.has_state(GroupState.PREPARING):
                # It may still have that of a former process. It is there all the same, and is told to join again.
                generation = found.generation
        group = self._group_of_member(group_id)
        group.heartbeat(
            member_id=member_id, generation=generation, now=_now(), instance_id=instance_id
        )

    def leave(self, group_id: str, *, member_id: str, instance_id: str | None = None) -> None:
        """The member goes; a static one is also found by its instance id, with an empty member id."""
        group = self._group_of_member(group_id)
        self._tell(group.leave(member_id=member_id, now=_now(), instance_id=instance_id))
        self._look_after(group)

    # --- offsets ----------------------------------------------------------------------------------

    async def commit(
        self,
        group_id: str,
        *,
        member_id: str,
        generation: int,
        offsets: Mapping[TopicPartition, OffsetToCommit],
        instance_id: str | None = None,
    ) -> Mapping[TopicPartition, GroupProblem]:
        """Returns when they are durable; of each place that was refused by itself, why.

        Without a membership `member_id` is empty and `generation` -1: allowed while the group has no members.
        """
        self._require_loaded()
        refused: dict[TopicPartition, GroupProblem] = {}
        accepted: dict[TopicPartition, CommittedOffset] = {}
        for looked_at, (place, offset) in enumerate(offsets.items(), 1):
            if looked_at % _OFFSETS_PER_TURN == 0:
                await asyncio.sleep(0)
            checked = self._checked(group_id, place, offset, new=len(accepted))
            if isinstance(checked, GroupProblem):
                refused[place] = checked
            else:
                accepted[place] = checked

        def permit() -> None:
            self._require_loaded()
            # There was room for each; other groups may have taken it meanwhile.
            new = sum(not self._offsets.is_known(group_id, place) for place in accepted)
            if new and len(self._offsets) + new > self._settings.offsets_max:
                raise GroupError(GroupProblem.POLICY_VIOLATION)
            # Also a group that was known a moment ago may be gone by now.
            known = generation >= 0 or bool(member_id)
            group = (
                self._group_of_member(group_id) if known else self._group(group_id, bounded=True)
            )
            is_allowed = False
            try:
                group.check_commit(
                    member_id=member_id,
                    generation=generation,
                    now=_now(),
                    instance_id=instance_id,
                )
                is_allowed = True
            finally:
                self._look_after(group, keep=is_allowed and bool(accepted))

        permit()
        if not accepted:
            return refused
        try:
            await self._offsets.commit(group_id, accepted, permit=permit)
        except SegmentStoreError as error:
            raise _not_available(group_id, error) from error
        finally:
            self._look_after_name(group_id)
        return refused

    async def committed(
        self, group_id: str, places: Sequence[TopicPartition] | None = None
    ) -> Mapping[TopicPartition, CommittedOffset]:
        """What is committed of these places, or of all. A place without an offset is left out."""
        self._require_loaded()
        losses = self._losses
        try:
            found = await self._offsets.read(group_id, places)
        except SegmentStoreError as error:
            raise _not_available(group_id, error) from error
        told: dict[TopicPartition, CommittedOffset] = {}
        for looked_at, (place, offset) in enumerate(found.items(), 1):
            if looked_at % _OFFSETS_PER_TURN == 0:
                await asyncio.sleep(0)
            if self._topic_id_of(place.topic) == offset.topic_id:
                told[place] = offset
        # Behind the read: what another coordinator has committed meanwhile is not in it.
        self._require_loaded()
        if losses != self._losses:
            raise GroupError(GroupProblem.COORDINATOR_LOAD_IN_PROGRESS)
        return told

    # --- questions and deletion -------------------------------------------------------------------

    def listing(self) -> Sequence[GroupListing]:
        """All groups that have members or offsets."""
        self._require_loaded()
        return [
            GroupListing(each.group_id, each.protocol_type, each.state)
            for each in self._groups.values()
        ]

    def describe(self, group_id: str) -> GroupDescription:
        """One group; DEAD if there is none of that name."""
        self._require_loaded()
        group = self._groups.get(group_id)
        if group is not None:
            return group.describe()
        return GroupDescription(
            group_id=group_id,
            state=GroupState.DEAD,
            generation=0,
            protocol_type="",
            protocol="",
            members=[],
        )

    async def delete(self, group_id: str) -> None:
        """Remove a group without members, and its offsets. Raises GroupError: 68, 69."""
        await self._delete(group_id, None)

    async def delete_offsets(self, group_id: str, places: Sequence[TopicPartition]) -> None:
        """Forget how far a group without members is in these places. Raises GroupError: 68, 69."""
        await self._delete(group_id, places)

    async def _delete(self, group_id: str, places: Sequence[TopicPartition] | None) -> None:
        def permit() -> None:
            self._require_loaded()
            group = self._groups.get(group_id)
            if group is None:
                raise GroupError(GroupProblem.GROUP_ID_NOT_FOUND)
            if group.state is not GroupState.EMPTY:
                raise GroupError(GroupProblem.NON_EMPTY_GROUP)

        permit()
        await self._remove_offsets(group_id, permit, places)

    def statistics(self) -> GroupStatistics:
        """Counts, for metrics."""
        return GroupStatistics(len(self._groups), len(self._waiting), len(self._offsets))

    def check(self) -> None:
        """The invariants of every group, and that none is kept for nothing. O(members and offsets)."""
        self._offsets.check()
        for group_id, group in self._groups.items():
            group.check()
            assert group.has_members() or self._offsets.has_offsets(group_id), (
                f"a group is kept for nothing group={group_id!r}"
            )

    # --- steps ------------------------------------------------------------------------------------

    def _require_loaded(self) -> None:
        if not self._is_coordinator():
            raise GroupError(GroupProblem.NOT_COORDINATOR)
        if not self._is_loaded:
            raise GroupError(GroupProblem.COORDINATOR_LOAD_IN_PROGRESS)

    def _keeps_ids(self, group_id: str) -> bool:
        return _now() < self._former_until and not self._offsets.has_offsets(group_id)

    def _group(self, group_id: str, *, bounded: bool = False) -> Group:
        """The group, made if there is none: look after it behind that."""
        group = self._groups.get(group_id)
        if group is None:
            if bounded:
                self._check_new_group(group_id)
            group = Group(
                group_id,
                settings=self._settings,
                now=_now(),
                generation=self._dropped_generation,
            )
            self._groups[group_id] = group
        return group

    def _check_new_group(self, group_id: str) -> None:
        if not fits_in_a_key(group_id, ""):
            raise GroupError(GroupProblem.INVALID_GROUP_ID)
        if len(group_id.encode()) > self._settings.group_id_bytes_max:
            raise GroupError(GroupProblem.INVALID_GROUP_ID)
        if len(self._groups) >= self._settings.groups_max:
            raise GroupError(GroupProblem.POLICY_VIOLATION)

    def _group_of_member(self, group_id: str) -> Group:
        self._require_loaded()
        group = self._groups.get(group_id)
        if group is None:
            raise GroupError(GroupProblem.UNKNOWN_MEMBER_ID)
        return group

    def _look_after(self, group: Group, *, keep: bool = False) -> None:
        """Behind every step of a group: its timer, or its end if it is empty; `keep` if it will have an offset."""
        if self._groups.get(group.group_id) is not group:
            return
        if group.has_members():
            self._timers.note(group.group_id, group.next_deadline())
        elif not keep and not self._offsets.has_offsets(group.group_id):
            self._drop(group)

    def _drop(self, group: Group) -> None:
        self._dropped_generation = max(self._dropped_generation, group.generation)
        del self._groups[group.group_id]

    def _look_after_name(self, group_id: str) -> None:
        group = self._groups.get(group_id)
        if group is not None:
            self._look_after(group)

    async def _answered(
        self, group: Group, step: Callable[[int, float], Answers]
    ) -> Joined | Synced:
        """What the call of this step is answered with, now or later."""
        self._calls += 1
        call = self._calls
        future: Future[Joined | Synced] = asyncio.get_running_loop().create_future()
        self._waiting[call] = future
        try:
            try:
                self._tell(step(call, _now()))
            finally:
                self._look_after(group)
            # The step that answers looks after the group, once for all members that it answers.
            return await future
        except asyncio.CancelledError:
            group.withdraw(call, now=_now())
            self._look_after(group)
            raise
        finally:
            del self._waiting[call]

    def _tell(self, answers: Answers) -> None:
        for answer in answers:
            future = self._waiting[answer.call]
            if isinstance(answer.outcome, GroupProblem):
                fail_unless_done(future, GroupError(answer.outcome))
            else:
                complete_unless_done(future, answer.outcome)

    def _checked(
        self, group_id: str, place: TopicPartition, offset: OffsetToCommit, *, new: int
    ) -> CommittedOffset | GroupProblem:
        """The offset as it is stored, or why it cannot be."""
        topic_id = self._topic_id_of(place.topic)
        if topic_id is None or place.partition < 0:
            return GroupProblem.UNKNOWN_TOPIC_OR_PARTITION
        if offset.offset < _OFFSET_MIN or not fits_in_a_key(group_id, place.topic):
            return GroupProblem.INVALID_REQUEST
        metadata = offset.metadata or ""
        if len(metadata.encode()) > self._settings.offset_metadata_bytes_max:
            return GroupProblem.OFFSET_METADATA_TOO_LARGE
        is_full = len(self._offsets) + new >= self._settings.offsets_max
        if is_full and not self._offsets.is_known(group_id, place):
            return GroupProblem.POLICY_VIOLATION
        return CommittedOffset(
            offset=offset.offset,
            leader_epoch=offset.leader_epoch,
            metadata=offset.metadata,
            commit_time_ms=self._wall_clock.now_ms(),
            topic_id=topic_id,
        )

    async def _remove_offsets(
        self,
        group_id: str,
        permit: Callable[[], None],
        places: Sequence[TopicPartition] | None = None,
    ) -> None:
        try:
            await self._offsets.remove(group_id, permit=permit, places=places)
        except SegmentStoreError as error:
            raise _not_available(group_id, error) from error
        finally:
            self._look_after_name(group_id)

    # --- time -------------------------------------------------------------------------------------

    async def _end_sessions(self) -> None:
        while True:
            for group_id in self._timers.due(_now()):
                group = self._groups.get(group_id)
                if group is not None:
                    self._tell(group.expire(_now()))
                    self._look_after(group)
            await self._timers.wait()

    async def _remove_old_offsets(self) -> None:
        while True:
            await asyncio.sleep(self._settings.sweep_seconds)
            for group_id in [each for each in self._groups if self._is_forgotten(each)]:
                try:
                    await self._remove_offsets(group_id, partial(self._permit, group_id))
                except GroupError as error:
                    _LOG.info("offsets stay for now group=%r why=%s", group_id, error)
            try:
                await self._remove_offsets_of_deleted_topics()
            except (GroupError, TopicError) as error:
                _LOG.info("offsets of deleted topics stay for now: %s", error)

    async def _remove_offsets_of_deleted_topics(self) -> None:
        """O(offsets). Raises GroupError and TopicError: what is left then is for the next time."""
        refresh = self._refresh_topics
        if refresh is None:
            return
        looked_at = 0
        is_known: dict[str, bool] = {}
        for group_id in self._offsets.group_ids():
            unknown: list[TopicPartition] = []
            for place in self._offsets.places(group_id):
                looked_at += 1
                if looked_at % _OFFSETS_PER_TURN == 0:
                    await asyncio.sleep(0)
                if place.topic not in is_known:
                    is_known[place.topic] = self._topic_id_of(place.topic) is not None
                if not is_known[place.topic]:
                    unknown.append(place)
            for first in range(0, len(unknown), _OFFSETS_PER_TURN):
                places = unknown[first : first + _OFFSETS_PER_TURN]
                permit = partial(self._permit_removal, {each.topic: None for each in places})
                await refresh()
                # Right behind the look. The topic may be made again behind this, and an offset be committed to it.
                permit()
                await self._remove_offsets(group_id, permit, places)

    def _permit_removal(self, topics: Iterable[str]) -> None:
        self._require_loaded()
        for topic in topics:
            if self._topic_id_of(topic) is not None:
                raise TopicExistsError(topic)

    def _permit(self, group_id: str) -> None:
        if not self._is_forgotten(group_id):
            raise GroupError(GroupProblem.NON_EMPTY_GROUP)

    def _is_forgotten(self, group_id: str) -> bool:
        """Whether no member and no commit came for so long that the offsets go."""
        group = self._groups.get(group_id)
        if group is None or group.has_members():
            return False
        return group.used_at + self._settings.offset_retention_seconds <= _now()


class _Timers:
    """When each group has to be looked at next. A time that moves back is noted at once, one that moves on is not."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []
        self._times: dict[str, float] = {}
        """Of each group the one that counts: another one of it in the heap does not."""
        self._changed = asyncio.Event()

    def note(self, group_id: str, at: float) -> None:
        """Look at the group at this time at the latest. O(log groups)."""
        if at >= self._times.get(group_id, inf):
            return
        self._times[group_id] = at
        if len(self._heap) >= 2 * len(self._times) + _IDLE_TIMERS_MAX:
            self._heap = [(time, each) for each, time in self._times.items()]
            heapq.heapify(self._heap)
        else:
            heapq.heappush(self._heap, (at, group_id))
        if self._heap[0][1] == group_id:
            self._changed.set()

    def due(self, now: float) -> list[str]:
        """The groups whose time has come; each has to be noted again."""
        found: list[str] = []
        while self._heap and self._heap[0][0] <= now:
            at, group_id = heapq.heappop(self._heap)
            if self._times.get(group_id) == at:
                del self._times[group_id]
                found.append(group_id)
        return found

    def clear(self) -> None:
        self._heap.clear()
        self._times.clear()

    async def wait(self) -> None:
        """Until the next time has come, or an earlier one was noted."""
        self._changed.clear()
        await wait_for_event(self._changed, until=self._heap[0][0] if self._heap else inf)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _not_available(group_id: str, error: SegmentStoreError) -> GroupError:
    _LOG.info("group=%r offsets cannot be reached: %s", group_id, error)
    return GroupError(GroupProblem.COORDINATOR_NOT_AVAILABLE)
