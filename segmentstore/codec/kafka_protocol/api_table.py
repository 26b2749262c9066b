"""Every API that is spoken: its number, its two messages, its versions.

Kafka's clients look at the ranges to decide what else to do, so that they begin low: librdkafka before 2.11 asks
whether one exact old version lies inside (Produce 0 for compression by gzip, snappy and lz4; Produce 3 and Fetch 4 for
batches of version 2; InitProducerId 0 for idempotence; version 0 of the APIs of groups). Others never look: Sarama 1.43
sends the versions of the Kafka that its user names, 2.1 if none is named. The layouts of all versions
of a range are declared, so that nothing is advertised that is not there. Static members need JoinGroup 5, SyncGroup 3,
Heartbeat 3, LeaveGroup 3 and OffsetCommit 7, all of them: with some of it Java's consumers begin, and then lose their
membership without a word. Produce 0 to 2 carry records in formats older than batches of version 2, which are refused
batch by batch. Each range ends where Kafka 4.2 ends, as there are clients (platformatic's) that know nothing but the
last versions. But for these: InitProducerId 6 is about transactions in two phases, ListOffsets 8 to 11 about records in
tiers that readers do not see here, OffsetCommit and OffsetFetch 10 about topics by their ids (kafka/DESIGN.md).
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from segmentstore.codec.kafka_protocol import administration, cluster, fetch, groups, produce
from segmentstore.codec.kafka_protocol.structure import Structure


class ApiKey(IntEnum):
    """Kafka's numbers."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    DESCRIBE_ACLS = 29
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    INCREMENTAL_ALTER_CONFIGS = 44
    OFFSET_DELETE = 47


@dataclass(frozen=True, slots=True)
class Api:
    """One row."""

    key: ApiKey
    request: type[Structure]
    response: type[Structure]
    oldest: int
    newest: int
    newest_asked: int | None = None
    """What the clients of this package ask in at most, where it is not the newest: by names, or for one thing."""

    @property
    def asked_in(self) -> int:
        """The version in which the clients of this package ask a server that speaks all."""
        return self.newest if self.newest_asked is None else self.newest_asked

    def speaks(self, version: int) -> bool:
        return self.oldest <= version <= self.newest


_ROWS: Final = (
    Api(ApiKey.PRODUCE, produce.ProduceRequest, produce.ProduceResponse, 0, 13, 12),
    Api(ApiKey.FETCH, fetch.FetchRequest, fetch.FetchResponse, 4, 18, 12),
    Api(ApiKey.LIST_OFFSETS, fetch.ListOffsetsRequest, fetch.ListOffsetsResponse, 1, 7),
    Api(ApiKey.METADATA, cluster.MetadataRequest, cluster.MetadataResponse, 0, 13),
    Api(ApiKey.OFFSET_COMMIT, groups.OffsetCommitRequest, groups.OffsetCommitResponse, 2, 9),
    Api(ApiKey.OFFSET_FETCH, groups.OffsetFetchRequest, groups.OffsetFetchResponse, 1, 9),
    Api(
        ApiKey.FIND_COORDINATOR,
        cluster.FindCoordinatorRequest,
        cluster.FindCoordinatorResponse,
        0,
        6,
        3,
    ),
    Api(ApiKey.JOIN_GROUP, groups.JoinGroupRequest, groups.JoinGroupResponse, 0, 9),
    Api(ApiKey.HEARTBEAT, groups.HeartbeatRequest, groups.HeartbeatResponse, 0, 4),
    Api(ApiKey.LEAVE_GROUP, groups.LeaveGroupRequest, groups.LeaveGroupResponse, 0, 5),
    Api(ApiKey.SYNC_GROUP, groups.SyncGroupRequest, groups.SyncGroupResponse, 0, 5),
    Api(ApiKey.DESCRIBE_GROUPS, groups.DescribeGroupsRequest, groups.DescribeGroupsResponse, 0, 6),
    Api(ApiKey.LIST_GROUPS, groups.ListGroupsRequest, groups.ListGroupsResponse, 0, 5),
    Api(ApiKey.API_VERSIONS, cluster.ApiVersionsRequest, cluster.ApiVersionsResponse, 0, 4),
    Api(
        ApiKey.CREATE_TOPICS,
        administration.CreateTopicsRequest,
        administration.CreateTopicsResponse,
        2,
        7,
    ),
    Api(
        ApiKey.DELETE_TOPICS,
        administration.DeleteTopicsRequest,
        administration.DeleteTopicsResponse,
        1,
        6,
    ),
    Api(
        ApiKey.DELETE_RECORDS,
        administration.DeleteRecordsRequest,
        administration.DeleteRecordsResponse,
        0,
        2,
    ),
    Api(
        ApiKey.INIT_PRODUCER_ID,
        produce.InitProducerIdRequest,
        produce.InitProducerIdResponse,
        0,
        5,
    ),
    Api(
        ApiKey.DESCRIBE_ACLS,
        administration.DescribeAclsRequest,
        administration.DescribeAclsResponse,
        0,
        3,
    ),
    Api(
        ApiKey.DESCRIBE_CONFIGS,
        administration.DescribeConfigsRequest,
        administration.DescribeConfigsResponse,
        0,
        4,
    ),
    Api(
        ApiKey.ALTER_CONFIGS,
        administration.AlterConfigsRequest,
        administration.AlterConfigsResponse,
        0,
        2,
    ),
    Api(
        ApiKey.CREATE_PARTITIONS,
        administration.CreatePartitionsRequest,
        administration.CreatePartitionsResponse,
        0,
        3,
    ),
    Api(ApiKey.DELETE_GROUPS, groups.DeleteGroupsRequest, groups.DeleteGroupsResponse, 0, 2),
    Api(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        administration.IncrementalAlterConfigsRequest,
        administration.IncrementalAlterConfigsResponse,
        0,
        1,
    ),
    Api(ApiKey.OFFSET_DELETE, groups.OffsetDeleteRequest, groups.OffsetDeleteResponse, 0, 0),
)

APIS: Final[dict[int, Api]] = {int(row.key): row for row in _ROWS}
API_OF_REQUEST: Final[dict[type[Structure], Api]] = {row.request: row for row in _ROWS}
