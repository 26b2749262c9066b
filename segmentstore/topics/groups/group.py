"""One consumer group as a state machine: pure, told the time, without tasks, futures or bytes on disk.

A group agrees on generations. In each one member, the leader, divides the partitions; what it decides, and by which
protocol, are opaque bytes to us. A request that has to wait is known by a number, its *call*; every method returns the
calls that are to be answered now, and with what. A request that is refused raises GroupError; the numbers below are
those of GroupProblem in errors.py, which are Kafka's.

| state | JoinGroup | SyncGroup | Heartbeat | leaves, session over | commit of a member |
|---|---|---|---|---|---|
| EMPTY | a member; to PREPARING | refused (25) | refused (25) | - | none (25) |
| PREPARING | waits | refused (27) | refused (27) | removed | allowed |
| COMPLETING | to PREPARING | the leader's: to STABLE; others wait | fine | to PREPARING | refused (27) |
| STABLE | same protocols, not the leader: answered; else to PREPARING | answered | fine | to PREPARING | allowed |

PREPARING ends when all members have joined, or when the longest of their rebalance timeouts is over: a member that has
not joined by then is removed. COMPLETING ends with the leader's assignments; a member that does not ask for its own
within the same time is removed, as a leader that never decides would hold up the others.

A *static member* names an instance id, which its client keeps over its restarts (`group.instance.id`, KIP-345). When it
starts again it joins without a member id, gets a new one, and takes the place of its former self:

| state | a static member comes back |
|---|---|
| PREPARING | waits in the place of the former one |
| COMPLETING | to PREPARING: the leader is about to assign to the former member id |
| STABLE | answered with the present generation, whose assignment it has; to PREPARING only if the protocol changes |

It has its session to do so: the end of PREPARING leaves it a member, whose part waits for it.

Invariants:

- The generation only grows. A request of another generation changes nothing (22), nor does one of a stranger (25).
- A group with members has one leader from COMPLETING on, and it is one of them.
- A member waits for at most one answer: a call that is asked again elsewhere takes the place of the one before, which
  is refused (27).
- All assignments of a generation come from one call of its leader. They are gone before another generation begins.
- A member that waits for an answer is not removed for its silence; its time begins with the answer.
- Of an instance id there is one member at most. A request with it and another member id is refused (82): that is of a
  client that has been replaced, and it changes nothing.
- Of a generation one member is told that it leads and shall assign. A leader that comes back in STABLE is told to leave
  the assignment as it is, or, if it does not know of that, that it does not lead: the others have what its former self
  has assigned, and would not hear of another division.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from math import inf
from typing import Final, TypeAlias

from segmentstore.topics.groups.errors import GroupError, GroupProblem
from segmentstore.topics.groups.settings import GroupSettings

NO_GENERATION: Final = -1
"""In a commit without a membership, together with an empty member id."""


class GroupState(Enum):
    """Kafka's names, which its tools print."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"
    """Only in descriptions, of groups that do not exist."""


_MOVES: Final = {
    GroupState.EMPTY: (GroupState.PREPARING,),
    GroupState.PREPARING: (GroupState.COMPLETING, GroupState.EMPTY),
    GroupState.COMPLETING: (GroupState.STABLE, GroupState.PREPARING, GroupState.EMPTY),
    GroupState.STABLE: (GroupState.PREPARING, GroupState.EMPTY),
}


@dataclass(frozen=True, slots=True)
class Protocol:
    """A way to assign partitions that a member knows, and what the leader has to know of the member for it."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """What a member says when it joins."""

    member_id: str
    """Empty: a new one."""
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    """0 or less: the session timeout, as old clients mean it."""
    protocol_type: str
    protocols: Sequence[Protocol]
    """The one that the member likes best comes first."""
    requires_known_id: bool
    """A new member is first given an id and has to come back with it (JoinGroup 4 and later). Not a static one."""
    instance_id: str | None = None
    """Of a static member: what it is called over its restarts."""
    can_skip_assignment: bool = False
    """It knows what it means to lead and to leave the assignment as it is (JoinGroup 9 and later)."""


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """Of one member, for the leader."""

    member_id: str
    metadata: bytes
    instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """A generation, as one member is told of it."""

    generation: int
    protocol_type: str
    protocol: str
    leader: str
    member_id: str
    members: Sequence[JoinedMember]
    """All of them for the leader, none for the others."""
    skip_assignment: bool = False
    """For a leader that comes back: what its former self has assigned stays."""


@dataclass(frozen=True, slots=True)
class Synced:
    """A member's part of what the leader decided; empty if it decided nothing for it."""

    assignment: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """A call that waited, or has just come, and what it is told."""

    call: int
    outcome: Joined | Synced | GroupProblem


Answers: TypeAlias = list[Answer]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberDescription:
    """A member, for people and tools."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    """Empty unless the group is STABLE."""
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A group, for people and tools."""

    group_id: str
    state: GroupState
    generation: int
    protocol_type: str
    protocol: str
    """Empty unless the group is STABLE."""
    members: Sequence[MemberDescription]


@dataclass(slots=True, kw_only=True)
class _Member:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_seconds: float
    rebalance_seconds: float
    protocols: tuple[Protocol, ...]
    session_end: float
    joining: int | None = None
    """The call that waits for the next generation."""
    syncing: int | None = None
    """The call that waits for the assignment of the present one."""

    def is_static(self) -> bool:
        return self.instance_id is not None

    def is_waiting(self) -> bool:
        return self.joining is not None or self.syncing is not None

    def names(self) -> list[str]:
        return [protocol.name for protocol in self.protocols]

    def metadata(self, name: str) -> bytes:
        return next(each.metadata for each in self.protocols if each.name == name)


@dataclass(slots=True)
class _Rebalance:
    """When the present PREPARING or COMPLETING began, and how long its end is held off at least."""

    began: float = 0.0
    not_before: float = 0.0


@dataclass(slots=True)
class _Generation:
    """What the members of the present generation share."""

    number: int = 0
    leader: str = ""
    protocol: str = ""
    assignments: dict[str, bytes] = field(default_factory=dict)


class Group:
    """One group. `now` is a time of the loop in seconds, everywhere, and never goes back."""

    def __init__(
        self, group_id: str, *, settings: GroupSettings, now: float, generation: int = 0
    ) -> None:
        """`generation`: the first one is the next."""
        self.group_id = group_id
        self._settings = settings
        self._state = GroupState.EMPTY
        self._members: dict[str, _Member] = {}
        """In the order in which they came."""
        self._static_members: dict[str, str] = {}
        """The member id of each instance id."""
        self._new_ids: dict[str, float] = {}
        """Ids that were given to members who have not come back yet, and until when they may."""
        self._generation = _Generation(generation)
        self._rebalance = _Rebalance()
        self._protocol_type = ""
        self._used_at = now

    @property
    def state(self) -> GroupState:
        return self._state

    @property
    def generation(self) -> int:
        """0 before the first one."""
        return self._generation.number

    @property
    def protocol_type(self) -> str:
        """Of the members, also of those that have left; empty if there were none."""
        return self._protocol_type

    @property
    def used_at(self) -> float:
        """When it last had a member, or a commit."""
        return self._used_at

    def has_members(self) -> bool:
        """Whether there are members, or ids that may still become members."""
        return bool(self._members or self._new_ids)

    def knows(self, member_id: str) -> bool:
        """Whether it is a member."""
        return member_id in self._members

    def has_state(self, state: GroupState) -> bool:
        return self._state is state

    # --- requests ---------------------------------------------------------------------------------

    def join(
        self,
        call: int,
        request: JoinRequest,
        *,
        new_id: str,
        now: float,
        keeps_ids: bool = False,
    ) -> Answers:
        """The member waits for the next generation, or is told the present one. `new_id` is the id of a new member, and
        of a static one that comes back. `keeps_ids`: a stranger with an id is one of a former
        process, and a new member with that id.

        Raises GroupError: 23, 25, 26, 44, 79, 81, 82. O(members).
        """
        self._check_request(request)
        is_static = request.instance_id is not None
        is_known = request.member_id in self._members or request.member_id in self._new_ids
        is_former = bool(keeps_ids and request.member_id and not is_static and not is_known)
        is_new = is_former or request.member_id in self._new_ids
        if request.member_id and (is_static or not is_new):
            member = self._member(request.member_id, request.instance_id)
            return self._rejoin(member, call, request, now=now)
        if is_static and request.instance_id in self._static_members:
            return self._replace(call, request, new_id=new_id, now=now)
        self._check_protocols(request, besides=None)
        if len(self._members) >= self._settings.members_max:
            raise GroupError(GroupProblem.GROUP_MAX_SIZE_REACHED)
        if not request.member_id and request.requires_known_id and not is_static:
            self._note_new_id(new_id, until=now + request.session_timeout_ms / 1000)
            raise GroupError(GroupProblem.MEMBER_ID_REQUIRED, member_id=new_id)
        self._new_ids.pop(request.member_id, None)
        settings = self._settings
        return self._add(
            request.member_id or new_id,
            call,
            request,
            delay_seconds=(
                settings.former_rebalance_delay_seconds
                if is_former
                else settings.initial_rebalance_delay_seconds
            ),
            now=now,
        )

    def sync(
        self,
        call: int,
        *,
        member_id: str,
        generation: int,
        assignments: Mapping[str, bytes],
        now: float,
        instance_id: str | None = None,
        protocol_type: str | None = None,
        protocol: str | None = None,
    ) -> Answers:
        """The member asks for its assignment; the leader brings all of them. What it says of the protocol, if it does,
        has to be that of the generation. Raises GroupError: 22, 23, 25, 27, 44, 82.
        """
        member = self._known(member_id, generation, instance_id)
        if protocol_type not in (None, self._protocol_type):
            raise GroupError(GroupProblem.INCONSISTENT_GROUP_PROTOCOL)
        if protocol not in (None, self._generation.protocol):
            raise GroupError(GroupProblem.INCONSISTENT_GROUP_PROTOCOL)
        if self._state is GroupState.PREPARING:
            raise GroupError(GroupProblem.REBALANCE_IN_PROGRESS)
        self._heard(member, now)
        if self._state is GroupState.STABLE:
            return [Answer(call, Synced(self._generation.assignments.get(member_id, b"")))]
        if member_id == self._generation.leader:
            size = sum(len(each) for each in assignments.values())
            if size > self._settings.assignment_bytes_max:
                raise GroupError(GroupProblem.POLICY_VIOLATION)
        answers = _refused(member.syncing)
        member.syncing = call
        if member_id == self._generation.leader:
            answers += self._assign(assignments, now=now)
        return answers

    def heartbeat(
        self, *, member_id: str, generation: int, now: float, instance_id: str | None = None
    ) -> None:
        """The member is there. Raises GroupError: 22, 25, 27 (it has to join again), 82."""
        member = self._known(member_id, generation, instance_id)
        self._heard(member, now)
        if self._state is GroupState.PREPARING:
            raise GroupError(GroupProblem.REBALANCE_IN_PROGRESS)

    def leave(self, *, member_id: str, now: float, instance_id: str | None = None) -> Answers:
        """The member goes. A static one is also removed by its instance id, with an empty member id, by an operator who
        does not wait for the end of its session. Raises GroupError: 25, 82.
        """
        if not member_id and instance_id is not None:
            member_id = self._static_members.get(instance_id, "")
        if instance_id is None and self._new_ids.pop(member_id, None) is not None:
            return []
        member = self._member(member_id, instance_id)
        return self._remove([member.member_id], now=now)

    def check_commit(
        self, *, member_id: str, generation: int, now: float, instance_id: str | None = None
    ) -> None:
        """Whether offsets may be committed now. Raises GroupError: 22, 25, 27, 82.

        A consumer without a membership may while there are no members: it would move offsets under their feet.
        """
        is_outside = generation == NO_GENERATION and not member_id
        if is_outside and self._state is GroupState.EMPTY:
            self._used_at = now
            return
        member = self._known(member_id, generation, instance_id)
        if self._state is GroupState.COMPLETING:
            raise GroupError(GroupProblem.REBALANCE_IN_PROGRESS)
        self._heard(member, now)

    def withdraw(self, call: int, *, now: float) -> None:
        """The call's connection is gone: the member stays, and has its session timeout to come back."""
        for member in self._members.values():
            if call in (member.joining, member.syncing):
                member.joining = member.syncing = None
                self._heard(member, now)

    # --- time -------------------------------------------------------------------------------------

    def expire(self, now: float) -> Answers:
        """What is over by now ends. `groups.py` calls it at next_deadline(), or later."""
        for each in [each for each, until in self._new_ids.items() if until <= now]:
            del self._new_ids[each]
        silent = [
            each.member_id
            for each in self._members.values()
            if not each.is_waiting() and each.session_end <= now
        ]
        answers = self._remove(silent, now=now)
        if self._state is GroupState.PREPARING and self._rebalance_end() <= now:
            answers += self._end_preparing(now)
        if self._state is GroupState.PREPARING:
            answers += self._complete_if_joined(now)
        if self._state is GroupState.COMPLETING and self._rebalance_end() <= now:
            late = [each.member_id for each in self._members.values() if each.syncing is None]
            answers += self._remove(late, now=now)
        return answers

    def next_deadline(self) -> float:
        """When something may be over, infinity if never. A heartbeat moves it on, so it may be too early by then.

        O(members).
        """
        ends = [*self._new_ids.values()]
        ends += [each.session_end for each in self._members.values() if not each.is_waiting()]
        if self._state is GroupState.PREPARING:
            all_joined = all(each.joining is not None for each in self._members.values())
            ends.append(self._rebalance.not_before if all_joined else self._rebalance_end())
        elif self._state is GroupState.COMPLETING:
            ends.append(self._rebalance_end())
        return min(ends, default=inf)

    # --- questions --------------------------------------------------------------------------------

    def describe(self) -> GroupDescription:
        """As of now. O(members)."""
        stable = self._state is GroupState.STABLE
        protocol = self._generation.protocol if stable else ""
        return GroupDescription(
            group_id=self.group_id,
            state=self._state,
            generation=self._generation.number,
            protocol_type=self._protocol_type,
            protocol=protocol,
            members=[
                MemberDescription(
                    member_id=each.member_id,
                    instance_id=each.instance_id,
                    client_id=each.client_id,
                    client_host=each.client_host,
                    metadata=each.metadata(protocol) if stable else b"",
                    assignment=self._generation.assignments.get(each.member_id, b""),
                )
                for each in self._members.values()
            ],
        )

    def check(self) -> None:
        """The invariants above. O(members)."""
        state, members = self._state, self._members
        assert (state is GroupState.EMPTY) == (not members), f"members in {state} {list(members)}"
        if state in (GroupState.COMPLETING, GroupState.STABLE):
            assert self._generation.leader in members, f"no leader in {state}"
            assert self._generation.number > 0, "members without a generation"
        if state is not GroupState.STABLE:
            assert not self._generation.assignments, f"assignments in {state}"
        assert not self._new_ids.keys() & members.keys(), "a member whose id is new"
        static = {
            each.instance_id: name for name, each in members.items() if each.instance_id is not None
        }
        assert self._static_members == static, f"static members {self._static_members} {static}"
        for each in members.values():
            assert each.joining is None or state is GroupState.PREPARING, f"a join in {state}"
            assert each.syncing is None or state is GroupState.COMPLETING, f"a sync in {state}"

    # --- steps ------------------------------------------------------------------------------------

    def _check_request(self, request: JoinRequest) -> None:
        low, high = self._settings.session_timeout_ms_min, self._settings.session_timeout_ms_max
        if not low <= request.session_timeout_ms <= high:
            raise GroupError(GroupProblem.INVALID_SESSION_TIMEOUT)
        if not request.protocol_type or not request.protocols:
            raise GroupError(GroupProblem.INCONSISTENT_GROUP_PROTOCOL)
        if len(request.protocols) > self._settings.protocols_max:
            raise GroupError(GroupProblem.POLICY_VIOLATION)
        size = sum(len(each.name) + len(each.metadata) for each in request.protocols)
        size += len(request.client_id) + len(request.instance_id or "") + len(request.member_id)
        if size > self._settings.member_bytes_max:
            raise GroupError(GroupProblem.POLICY_VIOLATION)

    def _check_protocols(self, request: JoinRequest, *, besides: str | None) -> None:
        """The members but `besides` and this request must have a protocol in common."""
        others = [each for each in self._members.values() if each.member_id != besides]
        common = _in_common(
            [[each.name for each in request.protocols], *map(_Member.names, others)]
        )
        if others and (request.protocol_type != self._protocol_type or not common):
            raise GroupError(GroupProblem.INCONSISTENT_GROUP_PROTOCOL)

    def _note_new_id(self, member_id: str, *, until: float) -> None:
        while len(self._new_ids) >= self._settings.members_max:
            # The oldest is the one that least probably comes back; if it does, it is told to begin anew.
            del self._new_ids[next(iter(self._new_ids))]
        self._new_ids[member_id] = until

    def _add(
        self,
        member_id: str,
        call: int,
        request: JoinRequest,
        *,
        delay_seconds: float,
        now: float,
    ) -> Answers:
        first = not self._members
        answers = [] if self._state is GroupState.PREPARING else self._prepare(now)
        self._members[member_id] = _new_member(member_id, request, now=now)
        self._members[member_id].joining = call
        if request.instance_id is not None:
            self._static_members[request.instance_id] = member_id
        self._protocol_type = request.protocol_type
        self._used_at = now
        if first or self._rebalance.not_before > now:
            until = max(self._rebalance.not_before, now + delay_seconds)
            self._rebalance.not_before = min(until, self._rebalance_end())
        return answers + self._complete_if_joined(now)

    def _rejoin(self, member: _Member, call: int, request: JoinRequest, *, now: float) -> Answers:
        self._check_protocols(request, besides=member.member_id)
        self._heard(member, now)
        unchanged = member.protocols == tuple(request.protocols)
        is_leader = member.member_id == self._generation.leader
        if self._state is GroupState.STABLE and unchanged and not is_leader:
            return [Answer(call, self._joined(member))]
        answers = _refused(member.joining)
        if self._state is not GroupState.PREPARING:
            answers += self._prepare(now)
        member.protocols = tuple(request.protocols)
        member.session_seconds = request.session_timeout_ms / 1000
        member.rebalance_seconds = _rebalance_seconds(request)
        member.joining = call
        # It may be the only one, and come back with another type.
        self._protocol_type = request.protocol_type
        return answers + self._complete_if_joined(now)

    def _replace(self, call: int, request: JoinRequest, *, new_id: str, now: float) -> Answers:
        """A static member has started again: its former self is fenced, and what that had is its own."""
        assert request.instance_id is not None, "a member without an instance id replaces no other"
        former = self._members[self._static_members[request.instance_id]]
        self._check_protocols(request, besides=former.member_id)
        answers: Answers = [
            Answer(each, GroupProblem.FENCED_INSTANCE_ID)
            for each in (former.joining, former.syncing)
            if each is not None
        ]
        member = _new_member(new_id, request, now=now)
        # In the place of the former one: the first of the members leads if the leader goes.
        self._members = {
            each.member_id: each
            for each in (member if one is former else one for one in self._members.values())
        }
        self._static_members[request.instance_id] = new_id
        generation = self._generation
        leader_before = generation.leader
        if generation.leader == former.member_id:
            generation.leader = new_id
        if former.member_id in generation.assignments:
            generation.assignments[new_id] = generation.assignments.pop(former.member_id)
        self._protocol_type = request.protocol_type
        self._used_at = now
        if self._state is GroupState.STABLE and self._next_protocol() == generation.protocol:
            joined = self._joined(member)
            if generation.leader == new_id and request.can_skip_assignment:
                joined = replace(joined, skip_assignment=True)
            elif generation.leader == new_id:
                # Told the leader as it was, it takes itself for a follower.
                joined = replace(joined, leader=leader_before, members=[])
            return [*answers, Answer(call, joined)]
        if self._state is not GroupState.PREPARING:
            answers += self._prepare(now)
        member.joining = call
        return answers + self._complete_if_joined(now)

    def _prepare(self, now: float) -> Answers:
        """A rebalance begins. Members that wait for their assignment hear of it first: they have to join again."""
        answers: Answers = []
        for member in self._members.values():
            answers += _refused(member.syncing)
            if member.syncing is not None:
                member.syncing = None
                self._heard(member, now)
        self._generation.assignments = {}
        self._rebalance = _Rebalance(now, now)
        self._move_to(GroupState.PREPARING)
        return answers

    def _complete_if_joined(self, now: float) -> Answers:
        if now < self._rebalance.not_before:
            return []
        if any(each.joining is None for each in self._members.values()):
            return []
        return self._complete(now)

    def _end_preparing(self, now: float) -> Answers:
        """Its time is over. Of the members that have not joined, static ones stay: they may be starting."""
        late = [each for each in self._members.values() if each.joining is None]
        answers = self._remove([each.member_id for each in late if not each.is_static()], now=now)
        if self._state is not GroupState.PREPARING:
            return answers
        if any(each.joining is not None for each in self._members.values()):
            return answers + self._complete(now)
        # Until one of them joins, or their sessions end.
        self._rebalance = _Rebalance(now, now)
        return answers

    def _complete(self, now: float) -> Answers:
        """The next generation begins: all members have joined, but for static ones that may be starting."""
        leader = self._members.get(self._generation.leader)
        if leader is None or leader.joining is None:
            leader = next(each for each in self._members.values() if each.joining is not None)
            self._generation.leader = leader.member_id
        self._generation.protocol = self._next_protocol()
        self._generation.number += 1
        self._rebalance = _Rebalance(now, now)
        self._move_to(GroupState.COMPLETING)
        answers: Answers = []
        for member in self._members.values():
            if member.joining is None:
                assert member.is_static(), f"a member did not join {member.member_id}"
                continue
            answers.append(Answer(member.joining, self._joined(member)))
            member.joining = None
            self._heard(member, now)
        return answers

    def _next_protocol(self) -> str:
        """The first of the leader's that all know."""
        leader = self._members[self._generation.leader]
        return _in_common([leader.names(), *map(_Member.names, self._members.values())])[0]

    def _assign(self, assignments: Mapping[str, bytes], *, now: float) -> Answers:
        """What the leader decided; members that it does not name have nothing to read."""
        kept = {each: assignments[each] for each in self._members if each in assignments}
        self._generation.assignments = kept
        self._move_to(GroupState.STABLE)
        answers: Answers = []
        for member in self._members.values():
            if member.syncing is not None:
                answers.append(Answer(member.syncing, Synced(kept.get(member.member_id, b""))))
                member.syncing = None
                self._heard(member, now)
        return answers

    def _remove(self, member_ids: Sequence[str], *, now: float) -> Answers:
        """Members go; what is left of the group agrees anew."""
        if not member_ids:
            return []
        answers: Answers = []
        for each in member_ids:
            member = self._members.pop(each)
            if member.instance_id is not None:
                del self._static_members[member.instance_id]
            for call in (member.joining, member.syncing):
                if call is not None:
                    answers.append(Answer(call, GroupProblem.UNKNOWN_MEMBER_ID))
        self._used_at = now
        if not self._members:
            self._generation.assignments = {}
            self._move_to(GroupState.EMPTY)
        elif self._state is GroupState.PREPARING:
            answers += self._complete_if_joined(now)
        else:
            answers += self._prepare(now)
        return answers

    def _joined(self, member: _Member) -> Joined:
        generation = self._generation
        is_leader = member.member_id == generation.leader
        return Joined(
            generation=generation.number,
            protocol_type=self._protocol_type,
            protocol=generation.protocol,
            leader=generation.leader,
            member_id=member.member_id,
            members=[
                JoinedMember(each.member_id, each.metadata(generation.protocol), each.instance_id)
                for each in self._members.values()
            ]
            if is_leader
            else [],
        )

    def _member(self, member_id: str, instance_id: str | None) -> _Member:
        if instance_id is not None:
            current = self._static_members.get(instance_id)
            if current is None:
                raise GroupError(GroupProblem.UNKNOWN_MEMBER_ID)
            if current != member_id:
                raise GroupError(GroupProblem.FENCED_INSTANCE_ID)
        member = self._members.get(member_id)
        if member is None:
            raise GroupError(GroupProblem.UNKNOWN_MEMBER_ID)
        return member

    def _known(self, member_id: str, generation: int, instance_id: str | None) -> _Member:
        member = self._member(member_id, instance_id)
        if generation != self._generation.number:
            raise GroupError(GroupProblem.ILLEGAL_GENERATION)
        return member

    def _heard(self, member: _Member, now: float) -> None:
        member.session_end = now + member.session_seconds
        self._used_at = now

    def _rebalance_end(self) -> float:
        longest = max((each.rebalance_seconds for each in self._members.values()), default=0.0)
        return self._rebalance.began + longest

    def _move_to(self, state: GroupState) -> None:
        assert state in _MOVES[self._state], f"a group moves from {self._state} to {state}"
        self._state = state


def _refused(call: int | None) -> Answers:
    """A call that is overtaken by a newer one, or by a rebalance: the member has to join again."""
    return [] if call is None else [Answer(call, GroupProblem.REBALANCE_IN_PROGRESS)]


def _new_member(member_id: str, request: JoinRequest, *, now: float) -> _Member:
    session = request.session_timeout_ms / 1000
    return _Member(
        member_id=member_id,
        instance_id=request.instance_id,
        client_id=request.client_id,
        client_host=request.client_host,
        session_seconds=session,
        rebalance_seconds=_rebalance_seconds(request),
        protocols=tuple(request.protocols),
        session_end=now + session,
    )


def _rebalance_seconds(request: JoinRequest) -> float:
    if request.rebalance_timeout_ms > 0:
        return request.rebalance_timeout_ms / 1000
    return request.session_timeout_ms / 1000


def _in_common(preferences: Iterable[Sequence[str]]) -> list[str]:
    """The names that are in all lists, in the order of the first. O(names in all lists)."""
    first, *others = preferences
    common = set(first).intersection(*others)
    return [name for name in first if name in common]
