"""A group whose calls are numbered by the test, and what became of each."""

from collections.abc import Mapping, Sequence

from segmentstore.topics.groups.errors import GroupError, GroupProblem
from segmentstore.topics.groups.group import (
    Answers,
    Group,
    GroupState,
    Joined,
    JoinRequest,
    Protocol,
    Synced,
)
from segmentstore.topics.groups.settings import GroupSettings

RANGE = (Protocol("range", b"metadata"),)
OTHER = (Protocol("range", b"other metadata"),)
SESSION = 10.0
REBALANCE = 60.0

Outcome = Joined | Synced | GroupProblem | None


def a_request(
    member_id: str,
    *,
    protocols: Sequence[Protocol] = RANGE,
    protocol_type: str = "consumer",
    session: float = SESSION,
    rebalance: float = REBALANCE,
    requires_known_id: bool = False,
    instance_id: str | None = None,
    can_skip_assignment: bool = False,
) -> JoinRequest:
    return JoinRequest(
        member_id=member_id,
        client_id="client",
        client_host="host",
        session_timeout_ms=round(session * 1000),
        rebalance_timeout_ms=round(rebalance * 1000),
        protocol_type=protocol_type,
        protocols=protocols,
        requires_known_id=requires_known_id,
        instance_id=instance_id,
        can_skip_assignment=can_skip_assignment,
    )


class DrivenGroup:
    """The machine, its time, and the answers so far. A refusal is an answer like others."""

    def __init__(self, *, delay: float = 0.0, members_max: int = 1000) -> None:
        self.settings = GroupSettings(
            initial_rebalance_delay_seconds=delay, members_max=members_max
        )
        self.group = Group("group", settings=self.settings, now=0.0)
        self.now = 0.0
        self.calls = 0
        self.outcomes: dict[int, Outcome] = {}

    @property
    def state(self) -> GroupState:
        return self.group.state

    def join(self, member_id: str, *, new_id: str = "", request: JoinRequest | None = None) -> int:
        """The number of the call. Without a `new_id` the member is known, or a stranger."""
        call = self._new_call()
        request = request or a_request("" if new_id else member_id)
        try:
            answers = self.group.join(call, request, new_id=new_id, now=self.now)
        except GroupError as error:
            self.outcomes[call] = error.problem
        else:
            self._take(answers)
        return call

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: Mapping[str, bytes] | None = None,
        *,
        instance_id: str | None = None,
    ) -> int:
        call = self._new_call()
        try:
            answers = self.group.sync(
                call,
                member_id=member_id,
                generation=generation,
                assignments=assignments or {},
                now=self.now,
                instance_id=instance_id,
            )
        except GroupError as error:
            self.outcomes[call] = error.problem
        else:
            self._take(answers)
        return call

    def heartbeat(
        self, member_id: str, generation: int, *, instance_id: str | None = None
    ) -> GroupProblem | None:
        try:
            self.group.heartbeat(
                member_id=member_id, generation=generation, now=self.now, instance_id=instance_id
            )
        except GroupError as error:
            return error.problem
        return None

    def commit(
        self, member_id: str, generation: int, *, instance_id: str | None = None
    ) -> GroupProblem | None:
        try:
            self.group.check_commit(
                member_id=member_id, generation=generation, now=self.now, instance_id=instance_id
            )
        except GroupError as error:
            return error.problem
        return None

    def leave(self, member_id: str, *, instance_id: str | None = None) -> GroupProblem | None:
        try:
            self._take(self.group.leave(member_id=member_id, now=self.now, instance_id=instance_id))
        except GroupError as error:
            return error.problem
        return None

    def withdraw(self, call: int) -> None:
        self.group.withdraw(call, now=self.now)
        self.group.check()

    def pass_time(self, seconds: float) -> None:
        """Step by step, from one deadline of the group to the next."""
        end = self.now + seconds
        while self.group.next_deadline() <= end:
            before = self.group.next_deadline()
            self.now = max(self.now, before)
            self._take(self.group.expire(self.now))
            assert self.group.next_deadline() > self.now, "a deadline is over and stays"
        self.now = end

    def joined(self, call: int) -> Joined:
        outcome = self.outcomes[call]
        assert isinstance(outcome, Joined), outcome
        return outcome

    def assignment(self, call: int) -> bytes:
        outcome = self.outcomes[call]
        assert isinstance(outcome, Synced), outcome
        return outcome.assignment

    def _new_call(self) -> int:
        self.calls += 1
        self.outcomes[self.calls] = None
        return self.calls

    def _take(self, answers: Answers) -> None:
        for answer in answers:
            assert self.outcomes[answer.call] is None, f"a call is answered twice {answer}"
            self.outcomes[answer.call] = answer.outcome
        self.group.check()


def with_members(state: GroupState) -> DrivenGroup:
    """Generation 3 of the members `leader` and `follower`, in that state; or an empty group."""
    driven = DrivenGroup()
    if state is GroupState.EMPTY:
        return driven
    driven.join("leader", new_id="leader")  # generation 1
    driven.join("follower", new_id="follower")
    driven.join("leader")  # generation 2
    driven.sync("leader", 2, {"leader": b"old", "follower": b"old"})
    driven.join("leader")
    driven.join("follower")  # generation 3
    if state is GroupState.COMPLETING:
        return driven
    driven.sync("leader", 3, {"leader": b"of leader", "follower": b"of follower"})
    driven.sync("follower", 3)
    if state is GroupState.PREPARING:
        # The leader has to join again and has not done so.
        driven.join("follower", request=a_request("follower", protocols=OTHER))
    return driven
