"""Consumer groups: their offsets, their members, and what is told about them. The classic protocol."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from segmentstore.codec.kafka_protocol.fields import OPERATIONS_NOT_TOLD, Int16, Int32, Int64
from segmentstore.codec.kafka_protocol.structure import Structure, Versions


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitPartition(Structure):
    """How far a group is in one partition."""

    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Annotated[Int32, Versions(6)] = -1
    committed_metadata: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitTopic(Structure):
    """How far a group is in one topic."""

    name: str
    partitions: tuple[OffsetCommitPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitRequest(Structure):
    """Generation -1 and an empty member: a consumer that is in no group."""

    flexible_since: ClassVar[int | None] = 8

    group_id: str
    generation_id: Annotated[Int32, Versions(1)] = -1
    member_id: Annotated[str, Versions(1)] = ""
    group_instance_id: Annotated[str | None, Versions(7)] = None
    retention_time_ms: Annotated[Int64, Versions(2, 4)] = -1
    topics: tuple[OffsetCommitTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommittedPartition(Structure):
    """Whether the offset of one partition is stored."""

    partition_index: Int32
    error_code: Int16


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommittedTopic(Structure):
    """Whether the offsets of one topic are stored."""

    name: str
    partitions: tuple[OffsetCommittedPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitResponse(Structure):
    """The answer to OffsetCommit."""

    flexible_since: ClassVar[int | None] = 8

    throttle_time_ms: Annotated[Int32, Versions(3)] = 0
    topics: tuple[OffsetCommittedTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchTopic(Structure):
    """Which partitions of a topic are asked about."""

    name: str
    partition_indexes: tuple[Int32, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchGroup(Structure):
    """What is asked about one group; None asks for all that it has."""

    group_id: str
    member_id: Annotated[str | None, Versions(9)] = None
    member_epoch: Annotated[Int32, Versions(9)] = -1
    """Of a member by the protocol for groups that is not spoken here."""
    topics: tuple[OffsetFetchTopic, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchRequest(Structure):
    """Asks how far a group is, from version 8 on several; None asks for all that it has."""

    flexible_since: ClassVar[int | None] = 6

    group_id: Annotated[str, Versions(0, 7)] = ""
    topics: Annotated[tuple[OffsetFetchTopic, ...] | None, Versions(0, 7)] = ()
    groups: Annotated[tuple[OffsetFetchGroup, ...], Versions(8)] = ()
    require_stable: Annotated[bool, Versions(7)] = False
    """Not while a transaction commits offsets, of which there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchedPartition(Structure):
    """-1 without an error if nothing was committed."""

    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Annotated[Int32, Versions(5)] = -1
    """-1: the consumer gave none."""
    metadata: str | None
    error_code: Int16


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchedTopic(Structure):
    """How far a group is in one topic."""

    name: str
    partitions: tuple[OffsetFetchedPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchedGroup(Structure):
    """How far one group is."""

    group_id: str
    topics: tuple[OffsetFetchedTopic, ...]
    error_code: Int16 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponse(Structure):
    """The answer to OffsetFetch. From version 8 on the error of a group is beside it."""

    flexible_since: ClassVar[int | None] = 6

    throttle_time_ms: Annotated[Int32, Versions(3)] = 0
    topics: Annotated[tuple[OffsetFetchedTopic, ...], Versions(0, 7)] = ()
    error_code: Annotated[Int16, Versions(2, 7)] = 0
    groups: Annotated[tuple[OffsetFetchedGroup, ...], Versions(8)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroupProtocol(Structure):
    """A way to assign partitions, and what the member says to the one that does it."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroupRequest(Structure):
    """Answered when the group has found itself."""

    flexible_since: ClassVar[int | None] = 6

    group_id: str
    session_timeout_ms: Int32
    rebalance_timeout_ms: Annotated[Int32, Versions(1)] = -1
    """-1: the same as that of the session."""
    member_id: str
    group_instance_id: Annotated[str | None, Versions(5)] = None
    """Of a static member."""
    protocol_type: str
    protocols: tuple[JoinGroupProtocol, ...]
    reason: Annotated[str | None, Versions(8)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedMember(Structure):
    """A member, as its leader sees it."""

    member_id: str
    group_instance_id: Annotated[str | None, Versions(5)] = None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroupResponse(Structure):
    """The answer to JoinGroup. Members are listed for the leader alone."""

    flexible_since: ClassVar[int | None] = 6

    throttle_time_ms: Annotated[Int32, Versions(2)] = 0
    error_code: Int16
    generation_id: Int32
    protocol_type: Annotated[str | None, Versions(7)] = None
    protocol_name: str
    leader: str
    skip_assignment: Annotated[bool, Versions(9)] = False
    """For a static leader that comes back: it leads, and the present assignment stays."""
    member_id: str
    members: tuple[JoinedMember, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncGroupAssignment(Structure):
    """What the leader gives one member to read."""

    member_id: str
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncGroupRequest(Structure):
    """Answered when the leader has assigned; only the leader sends assignments."""

    flexible_since: ClassVar[int | None] = 4

    group_id: str
    generation_id: Int32
    member_id: str
    group_instance_id: Annotated[str | None, Versions(3)] = None
    protocol_type: Annotated[str | None, Versions(5)] = None
    protocol_name: Annotated[str | None, Versions(5)] = None
    """What the member has joined by: it has to be what the group has."""
    assignments: tuple[SyncGroupAssignment, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncGroupResponse(Structure):
    """The answer to SyncGroup."""

    flexible_since: ClassVar[int | None] = 4

    throttle_time_ms: Annotated[Int32, Versions(1)] = 0
    error_code: Int16
    protocol_type: Annotated[str | None, Versions(5)] = None
    protocol_name: Annotated[str | None, Versions(5)] = None
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRequest(Structure):
    """A member is there."""

    flexible_since: ClassVar[int | None] = 4

    group_id: str
    generation_id: Int32
    member_id: str
    group_instance_id: Annotated[str | None, Versions(3)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatResponse(Structure):
    """The answer to Heartbeat."""

    flexible_since: ClassVar[int | None] = 4

    throttle_time_ms: Annotated[Int32, Versions(1)] = 0
    error_code: Int16


@dataclass(frozen=True, slots=True, kw_only=True)
class LeavingMember(Structure):
    """A member that goes; an empty member id leaves it to the instance id which one."""

    member_id: str
    group_instance_id: str | None
    reason: Annotated[str | None, Versions(5)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveGroupRequest(Structure):
    """A member goes, from version 3 on several."""

    flexible_since: ClassVar[int | None] = 4

    group_id: str
    member_id: Annotated[str, Versions(0, 2)] = ""
    members: Annotated[tuple[LeavingMember, ...], Versions(3)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftMember(Structure):
    """What became of one of the members."""

    member_id: str
    group_instance_id: str | None
    error_code: Int16


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveGroupResponse(Structure):
    """The answer to LeaveGroup. From version 3 on the error of a member is beside it."""

    flexible_since: ClassVar[int | None] = 4

    throttle_time_ms: Annotated[Int32, Versions(1)] = 0
    error_code: Int16
    members: Annotated[tuple[LeftMember, ...], Versions(3)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeGroupsRequest(Structure):
    """Asks about groups by name."""

    flexible_since: ClassVar[int | None] = 5

    groups: tuple[str, ...]
    include_authorized_operations: Annotated[bool, Versions(3)] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedMember(Structure):
    """A member of a group."""

    member_id: str
    group_instance_id: Annotated[str | None, Versions(4)] = None
    client_id: str
    client_host: str
    member_metadata: bytes
    member_assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedGroup(Structure):
    """A group; the state Dead if there is none of that name, from version 6 on with an error."""

    error_code: Int16
    error_message: Annotated[str | None, Versions(6)] = None
    group_id: str
    group_state: str
    protocol_type: str
    protocol_data: str
    members: tuple[DescribedMember, ...]
    authorized_operations: Annotated[Int32, Versions(3)] = OPERATIONS_NOT_TOLD


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeGroupsResponse(Structure):
    """The answer to DescribeGroups."""

    flexible_since: ClassVar[int | None] = 5

    throttle_time_ms: Annotated[Int32, Versions(1)] = 0
    groups: tuple[DescribedGroup, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListGroupsRequest(Structure):
    """Asks which groups there are, in some states and of some types or, if none is named, in any and of any."""

    flexible_since: ClassVar[int | None] = 3

    states_filter: Annotated[tuple[str, ...], Versions(4)] = ()
    types_filter: Annotated[tuple[str, ...], Versions(5)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedGroup(Structure):
    """A group."""

    group_id: str
    protocol_type: str
    group_state: Annotated[str, Versions(4)] = ""
    group_type: Annotated[str, Versions(5)] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListGroupsResponse(Structure):
    """The answer to ListGroups."""

    flexible_since: ClassVar[int | None] = 3

    throttle_time_ms: Annotated[Int32, Versions(1)] = 0
    error_code: Int16
    groups: tuple[ListedGroup, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroupsRequest(Structure):
    """Groups that are to be forgotten, with their offsets."""

    flexible_since: ClassVar[int | None] = 2

    group_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedGroup(Structure):
    """What became of one group."""

    group_id: str
    error_code: Int16


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroupsResponse(Structure):
    """The answer to DeleteGroups."""

    flexible_since: ClassVar[int | None] = 2

    throttle_time_ms: Int32 = 0
    results: tuple[DeletedGroup, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeletePartition(Structure):
    """A partition of which the group forgets how far it was."""

    partition_index: Int32


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeleteTopic(Structure):
    """Those of one topic."""

    name: str
    partitions: tuple[OffsetDeletePartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeleteRequest(Structure):
    """Offsets that a group is to forget."""

    group_id: str
    topics: tuple[OffsetDeleteTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeletedPartition(Structure):
    """Whether the offset of one partition is forgotten."""

    partition_index: Int32
    error_code: Int16


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeletedTopic(Structure):
    """What became of the offsets in one topic."""

    name: str
    partitions: tuple[OffsetDeletedPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeleteResponse(Structure):
    """The answer to OffsetDelete. With an error of the group nothing was done, and no topic is told."""

    error_code: Int16
    throttle_time_ms: Int32 = 0
    topics: tuple[OffsetDeletedTopic, ...]
