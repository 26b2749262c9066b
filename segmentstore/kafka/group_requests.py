"""Requests about consumer groups, as `segmentstore/topics/groups` answers them. Its problems are error codes.

Invariants:

- A request may name 50,000 things: others run in between. What it names may change meanwhile.
- An offset is committed to, and told of, the topic that has the name when the request comes: consumers name no ids.
  So the catalogue is looked at behind each such request, as another process may have deleted a topic and made it
  again. Of a consumer that still means the deleted one that cannot be told, here or in Kafka.
- What passes is told by a code that all clients of that API go on behind. That offsets cannot be read is 14: with 15
  Java's consumers before 3.9 end, and librdkafka does not ask again, so that it never reads the partition.
- While the coordinator is loading, SyncGroup is answered with 27 and a heartbeat with none, as in Kafka: neither API
  knows 14. The member is a stranger by then, which it hears of (25, or 27 if it may keep its id) when it joins, or with
  a later heartbeat.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from segmentstore.codec.kafka_protocol import groups as messages
from segmentstore.codec.kafka_protocol.error_codes import ErrorCode
from segmentstore.codec.kafka_protocol.frames import GROUP_REQUEST_ITEMS_MAX
from segmentstore.kafka.settings import ITEMS_PER_TURN
from segmentstore.runtime.waiting import give_way
from segmentstore.topics.errors import TopicsUnavailableError
from segmentstore.topics.groups.committed_offsets import CommittedOffset, TopicPartition
from segmentstore.topics.groups.errors import GroupError, GroupProblem
from segmentstore.topics.groups.group import GroupState, JoinRequest, Protocol
from segmentstore.topics.groups.groups import Groups, OffsetToCommit
from segmentstore.topics.topics import Topics

_VERSION_WITH_REQUIRED_IDS = 4
"""From this version of JoinGroup on a new member is first told its id."""
_VERSION_WITH_SKIPPED_ASSIGNMENTS = 9
"""From this version of JoinGroup on a leader may be told to leave the assignment as it is."""
_VERSION_WITH_SEVERAL_LEAVING = 3
"""From this version of LeaveGroup on each member has an answer of its own."""
_VERSION_WITH_NAMED_PROTOCOLS = 5
"""From this version of SyncGroup on a member says by which protocol it has joined."""
_VERSION_WITH_SEVERAL_GROUPS = 8
"""From this version of OffsetFetch on a request asks about any number of groups."""
_VERSION_WITH_MISSING_GROUPS = 6
"""From this version of DescribeGroups on it is an error that a group is not there."""
_CODES_OF_A_GROUP = (
    GroupProblem.COORDINATOR_LOAD_IN_PROGRESS,
    GroupProblem.COORDINATOR_NOT_AVAILABLE,
    GroupProblem.NOT_COORDINATOR,
)
_TYPE_OF_GROUPS = "Classic"

_NO_GENERATION = -1

_Places: TypeAlias = dict[TopicPartition, None] | None
"""Of one group, in order; None: all of which it has an offset."""


class GroupRequests:
    """One method for each API."""

    def __init__(self, *, groups: Groups, topics: Topics) -> None:
        self._groups = groups
        self._topics = topics

    async def join(
        self, request: messages.JoinGroupRequest, *, version: int, client_id: str, client_host: str
    ) -> messages.JoinGroupResponse:
        try:
            joined = await self._groups.join(
                request.group_id,
                JoinRequest(
                    member_id=request.member_id,
                    client_id=client_id,
                    client_host=client_host,
                    session_timeout_ms=request.session_timeout_ms,
                    rebalance_timeout_ms=request.rebalance_timeout_ms,
                    protocol_type=request.protocol_type,
                    protocols=[Protocol(each.name, each.metadata) for each in request.protocols],
                    requires_known_id=version >= _VERSION_WITH_REQUIRED_IDS,
                    instance_id=request.group_instance_id,
                    can_skip_assignment=version >= _VERSION_WITH_SKIPPED_ASSIGNMENTS,
                ),
            )
        except GroupError as error:
            return messages.JoinGroupResponse(
                error_code=error.problem,
                generation_id=_NO_GENERATION,
                protocol_name="",
                leader="",
                member_id=error.member_id or request.member_id,
                members=(),
            )
        return messages.JoinGroupResponse(
            error_code=ErrorCode.NONE,
            generation_id=joined.generation,
            protocol_type=joined.protocol_type,
            protocol_name=joined.protocol,
            leader=joined.leader,
            skip_assignment=joined.skip_assignment,
            member_id=joined.member_id,
            members=tuple(
                messages.JoinedMember(
                    member_id=each.member_id,
                    group_instance_id=each.instance_id,
                    metadata=each.metadata,
                )
                for each in joined.members
            ),
        )

    async def sync(
        self, request: messages.SyncGroupRequest, *, version: int
    ) -> messages.SyncGroupResponse:
        """Told back is the protocol that the member has named, as it is that of the group."""
        if version >= _VERSION_WITH_NAMED_PROTOCOLS and None in (
            request.protocol_type,
            request.protocol_name,
        ):
            return messages.SyncGroupResponse(
                error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL, assignment=b""
            )
        try:
            assignment = await self._groups.sync(
                request.group_id,
                member_id=request.member_id,
                generation=request.generation_id,
                assignments={each.member_id: each.assignment for each in request.assignments},
                instance_id=request.group_instance_id,
                protocol_type=request.protocol_type,
                protocol=request.protocol_name,
            )
        except GroupError as error:
            problem = error.problem
            if problem is GroupProblem.COORDINATOR_LOAD_IN_PROGRESS:
                problem = GroupProblem.REBALANCE_IN_PROGRESS
            return messages.SyncGroupResponse(error_code=problem, assignment=b"")
        return messages.SyncGroupResponse(
            error_code=ErrorCode.NONE,
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignment=assignment,
        )

    def heartbeat(self, request: messages.HeartbeatRequest) -> messages.HeartbeatResponse:
        code: int = ErrorCode.NONE
        try:
            self._groups.heartbeat(
                request.group_id,
                member_id=request.member_id,
                generation=request.generation_id,
                instance_id=request.group_instance_id,
            )
        except GroupError as error:
            if error.problem is not GroupProblem.COORDINATOR_LOAD_IN_PROGRESS:
                code = error.problem
        return messages.HeartbeatResponse(error_code=code)

    async def leave(
        self, request: messages.LeaveGroupRequest, *, version: int
    ) -> messages.LeaveGroupResponse:
        if version < _VERSION_WITH_SEVERAL_LEAVING:
            return messages.LeaveGroupResponse(
                error_code=self._leave(request.group_id, request.member_id, None)
            )
        left: list[messages.LeftMember] = []
        for each in request.members:
            code = self._leave(request.group_id, each.member_id, each.group_instance_id)
            left.append(
                messages.LeftMember(
                    member_id=each.member_id,
                    group_instance_id=each.group_instance_id,
                    error_code=code,
                )
            )
            await give_way(len(left), every=ITEMS_PER_TURN)
        # What concerns the group is of the whole request: by that a client looks for it elsewhere.
        codes = {each.error_code for each in left if each.error_code in _CODES_OF_A_GROUP}
        return messages.LeaveGroupResponse(
            error_code=min(codes, default=ErrorCode.NONE), members=() if codes else tuple(left)
        )

    def _leave(self, group_id: str, member_id: str, instance_id: str | None) -> int:
        try:
            self._groups.leave(group_id, member_id=member_id, instance_id=instance_id)
        except GroupError as error:
            return error.problem
        return ErrorCode.NONE

    async def commit(self, request: messages.OffsetCommitRequest) -> messages.OffsetCommitResponse:
        """Durable when it is answered."""
        refused: dict[TopicPartition, int] = {}
        offsets: dict[TopicPartition, OffsetToCommit] = {}
        is_known = await self._know_topics()
        looked_at = 0
        for topic in request.topics:
            looked_at += 1
            await give_way(looked_at, every=ITEMS_PER_TURN)
            found = self._topics.describe(topic.name)
            for each in topic.partitions:
                looked_at += 1
                await give_way(looked_at, every=ITEMS_PER_TURN)
                place = TopicPartition(topic.name, each.partition_index)
                if not is_known:
                    refused[place] = ErrorCode.COORDINATOR_NOT_AVAILABLE
                    continue
                if found is None or not 0 <= each.partition_index < found.partitions:
                    refused[place] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    continue
                offsets[place] = OffsetToCommit(
                    offset=each.committed_offset,
                    leader_epoch=each.committed_leader_epoch,
                    metadata=each.committed_metadata,
                )
        try:
            problems: Mapping[TopicPartition, int] = await self._groups.commit(
                request.group_id,
                member_id=request.member_id,
                generation=request.generation_id,
                offsets=offsets,
                instance_id=request.group_instance_id,
            )
        except GroupError as error:
            problems = dict.fromkeys(offsets, error.problem)
        refused |= problems
        topics: list[messages.OffsetCommittedTopic] = []
        told = 0
        for topic in request.topics:
            partitions: list[messages.OffsetCommittedPartition] = []
            for each in topic.partitions:
                told += 1
                await give_way(told, every=ITEMS_PER_TURN)
                place = TopicPartition(topic.name, each.partition_index)
                partitions.append(
                    messages.OffsetCommittedPartition(
                        partition_index=each.partition_index,
                        error_code=refused.get(place, ErrorCode.NONE),
                    )
                )
            topics.append(
                messages.OffsetCommittedTopic(name=topic.name, partitions=tuple(partitions))
            )
        return messages.OffsetCommitResponse(topics=tuple(topics))

    async def committed(
        self, request: messages.OffsetFetchRequest, *, version: int
    ) -> messages.OffsetFetchResponse:
        """-1 of what was never committed. Each once, however often it is asked for: metadata may be long.

        A few bytes may ask for all that a group has. When as much is told as a request may name, the groups behind it
        are to be asked for again.
        """
        asked = request.groups
        if version < _VERSION_WITH_SEVERAL_GROUPS:
            asked = (messages.OffsetFetchGroup(group_id=request.group_id, topics=request.topics),)
        places_of = await _places_of(asked)
        is_known = await self._know_topics()
        groups: list[messages.OffsetFetchedGroup] = []
        told = 0
        for group_id, places in places_of.items():
            if told >= GROUP_REQUEST_ITEMS_MAX:
                groups.append(
                    messages.OffsetFetchedGroup(
                        group_id=group_id,
                        topics=(),
                        error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                    )
                )
                await give_way(len(groups), every=ITEMS_PER_TURN)
                continue
            groups.append(await self._committed(group_id, places, told, is_known=is_known))
            told += 1 + sum(len(topic.partitions) for topic in groups[-1].topics)
        if version >= _VERSION_WITH_SEVERAL_GROUPS:
            return messages.OffsetFetchResponse(groups=tuple(groups))
        (group,) = groups
        return messages.OffsetFetchResponse(topics=group.topics, error_code=group.error_code)

    async def _committed(
        self, group_id: str, places: _Places, told: int, *, is_known: bool
    ) -> messages.OffsetFetchedGroup:
        """Of one group. `told`: groups and partitions of this answer before it. `is_known`: whether it is known which
        topics there are."""
        await give_way(told + 1, every=ITEMS_PER_TURN)
        problem: int = ErrorCode.NONE
        found: Mapping[TopicPartition, CommittedOffset] = {}
        try:
            if not is_known:
                raise GroupError(GroupProblem.COORDINATOR_NOT_AVAILABLE)
            found = await self._groups.committed(group_id, None if places is None else list(places))
        except GroupError as error:
            problem = error.problem
        if problem == GroupProblem.COORDINATOR_NOT_AVAILABLE:
            problem = GroupProblem.COORDINATOR_LOAD_IN_PROGRESS
        topics: dict[str, list[messages.OffsetFetchedPartition]] = {}
        for at, place in enumerate(found if places is None else places, told + 2):
            await give_way(at, every=ITEMS_PER_TURN)
            offset = found.get(place)
            topics.setdefault(place.topic, []).append(
                messages.OffsetFetchedPartition(
                    partition_index=place.partition,
                    committed_offset=-1 if offset is None else offset.offset,
                    committed_leader_epoch=-1 if offset is None else offset.leader_epoch,
                    metadata="" if offset is None else offset.metadata or "",
                    error_code=problem,
                )
            )
        return messages.OffsetFetchedGroup(
            group_id=group_id,
            topics=tuple(
                messages.OffsetFetchedTopic(name=name, partitions=tuple(partitions))
                for name, partitions in topics.items()
            ),
            error_code=problem,
        )

    async def _know_topics(self) -> bool:
        """Whether it is known which topics there are by now; clients ask again."""
        try:
            await self._topics.refresh()
        except TopicsUnavailableError:
            return False
        return True

    async def describe(
        self, request: messages.DescribeGroupsRequest, *, version: int
    ) -> messages.DescribeGroupsResponse:
        """Each once, however often it is asked for: an answer is much longer than a name."""
        groups: list[messages.DescribedGroup] = []
        for group_id in dict.fromkeys(request.groups):
            groups.append(self._described(group_id, version=version))
            await give_way(len(groups), every=ITEMS_PER_TURN)
        return messages.DescribeGroupsResponse(groups=tuple(groups))

    def _described(self, group_id: str, *, version: int) -> messages.DescribedGroup:
        try:
            found = self._groups.describe(group_id)
        except GroupError as error:
            return messages.DescribedGroup(
                error_code=error.problem,
                group_id=group_id,
                group_state="",
                protocol_type="",
                protocol_data="",
                members=(),
            )
        is_missing = found.state is GroupState.DEAD and version >= _VERSION_WITH_MISSING_GROUPS
        return messages.DescribedGroup(
            error_code=ErrorCode.GROUP_ID_NOT_FOUND if is_missing else ErrorCode.NONE,
            error_message="there is no such group" if is_missing else None,
            group_id=group_id,
            group_state=found.state.value,
            protocol_type=found.protocol_type,
            protocol_data=found.protocol,
            members=tuple(
                messages.DescribedMember(
                    member_id=each.member_id,
                    group_instance_id=each.instance_id,
                    client_id=each.client_id,
                    client_host=each.client_host,
                    member_metadata=each.metadata,
                    member_assignment=each.assignment,
                )
                for each in found.members
            ),
        )

    def listing(self, request: messages.ListGroupsRequest) -> messages.ListGroupsResponse:
        """States and types are compared without regard to case, as in Kafka. All groups here are of one type."""
        states = {each.casefold() for each in request.states_filter}
        types = {each.casefold() for each in request.types_filter}
        try:
            found = self._groups.listing()
        except GroupError as error:
            # Clients ask every broker for the groups that it coordinates.
            is_elsewhere = error.problem is GroupProblem.NOT_COORDINATOR
            return messages.ListGroupsResponse(
                error_code=ErrorCode.NONE if is_elsewhere else error.problem, groups=()
            )
        return messages.ListGroupsResponse(
            error_code=ErrorCode.NONE,
            groups=tuple(
                messages.ListedGroup(
                    group_id=each.group_id,
                    protocol_type=each.protocol_type,
                    group_state=each.state.value,
                    group_type=_TYPE_OF_GROUPS,
                )
                for each in found
                if (not states or each.state.value.casefold() in states)
                and (not types or _TYPE_OF_GROUPS.casefold() in types)
            ),
        )

    async def delete(self, group_ids: Sequence[str]) -> messages.DeleteGroupsResponse:
        results: list[messages.DeletedGroup] = []
        for each in group_ids:
            results.append(
                messages.DeletedGroup(group_id=each, error_code=await self._delete(each))
            )
            await give_way(len(results), every=ITEMS_PER_TURN)
        return messages.DeleteGroupsResponse(results=tuple(results))

    async def _delete(self, group_id: str) -> GroupProblem | ErrorCode:
        try:
            await self._groups.delete(group_id)
        except GroupError as error:
            return error.problem
        return ErrorCode.NONE

    async def delete_offsets(
        self, request: messages.OffsetDeleteRequest
    ) -> messages.OffsetDeleteResponse:
        """Of a group without members; Kafka allows it with members, too, for topics to which none subscribes."""
        if not await self._know_topics():
            return messages.OffsetDeleteResponse(
                error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE, topics=()
            )
        codes: dict[TopicPartition, int] = {}
        looked_at = 0
        for topic in request.topics:
            looked_at += 1
            await give_way(looked_at, every=ITEMS_PER_TURN)
            found = self._topics.describe(topic.name)
            for each in topic.partitions:
                looked_at += 1
                await give_way(looked_at, every=ITEMS_PER_TURN)
                is_there = found is not None and 0 <= each.partition_index < found.partitions
                codes[TopicPartition(topic.name, each.partition_index)] = (
                    ErrorCode.NONE if is_there else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                )
        try:
            await self._groups.delete_offsets(
                request.group_id, [place for place, code in codes.items() if not code]
            )
        except GroupError as error:
            return messages.OffsetDeleteResponse(error_code=error.problem, topics=())
        topics: dict[str, list[messages.OffsetDeletedPartition]] = {}
        for told, (place, code) in enumerate(codes.items(), 1):
            topics.setdefault(place.topic, []).append(
                messages.OffsetDeletedPartition(partition_index=place.partition, error_code=code)
            )
            await give_way(told, every=ITEMS_PER_TURN)
        return messages.OffsetDeleteResponse(
            error_code=ErrorCode.NONE,
            topics=tuple(
                messages.OffsetDeletedTopic(name=name, partitions=tuple(partitions))
                for name, partitions in topics.items()
            ),
        )


async def _places_of(groups: Sequence[messages.OffsetFetchGroup]) -> dict[str, _Places]:
    """Each group once, with each of its places once, in order."""
    asked: dict[str, _Places] = {}
    looked_at = 0
    for group in groups:
        looked_at += 1
        await give_way(looked_at, every=ITEMS_PER_TURN)
        places = asked.setdefault(group.group_id, {})
        if group.topics is None or places is None:
            asked[group.group_id] = None
            continue
        for topic in group.topics:
            for index in topic.partition_indexes:
                places[TopicPartition(topic.name, index)] = None
                looked_at += 1
                await give_way(looked_at, every=ITEMS_PER_TURN)
    return asked
