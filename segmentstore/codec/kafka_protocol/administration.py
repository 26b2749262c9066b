"""Topics made, changed and deleted; records deleted; configurations read and changed."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final
from uuid import UUID

from segmentstore.codec.kafka_protocol.fields import NO_UUID, Int8, Int16, Int32, Int64
from segmentstore.codec.kafka_protocol.structure import NullSince, Structure, Versions

TOPIC_RESOURCE: Final = 2
BROKER_RESOURCE: Final = 4

TOPIC_ID_CONFIG: Final = "segmentstore.topic.id"
"""A configuration of each topic that is told only where it is asked for by its name: the topic's id, 32 hex digits."""

TOPIC_SOURCE: Final = 1
"""Of a configuration's value: it was set for the topic."""
STATIC_BROKER_SOURCE: Final = 4
"""Of a configuration's value: it is a setting of the server."""
DEFAULT_SOURCE: Final = 5
"""Of a configuration's value: no one set it."""

SET: Final = 0
DELETE: Final = 1
APPEND: Final = 2
SUBTRACT: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaAssignment(Structure):
    """Which servers are to have a partition of a new topic."""

    partition_index: Int32
    broker_ids: tuple[Int32, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatableConfig(Structure):
    """A configuration of a new topic."""

    name: str
    value: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatableTopic(Structure):
    """A new topic; -1 partitions or replicas: as many as the server likes."""

    name: str
    num_partitions: Int32
    replication_factor: Int16
    assignments: tuple[ReplicaAssignment, ...] = ()
    configs: tuple[CreatableConfig, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopicsRequest(Structure):
    """Topics to be made, or only looked at."""

    flexible_since: ClassVar[int | None] = 5

    topics: tuple[CreatableTopic, ...]
    timeout_ms: Int32
    validate_only: Annotated[bool, Versions(1)] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedConfig(Structure):
    """A configuration that a new topic has."""

    name: str
    value: str | None
    read_only: bool = False
    config_source: Int8 = -1
    is_sensitive: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedTopic(Structure):
    """What became of one topic; -1 partitions: it is not told what it has."""

    name: str
    topic_id: Annotated[UUID, Versions(7)] = NO_UUID
    error_code: Int16
    error_message: Annotated[str | None, Versions(1)] = None
    num_partitions: Annotated[Int32, Versions(5)] = -1
    replication_factor: Annotated[Int16, Versions(5)] = -1
    configs: Annotated[tuple[CreatedConfig, ...], Versions(5)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopicsResponse(Structure):
    """The answer to CreateTopics."""

    flexible_since: ClassVar[int | None] = 5

    throttle_time_ms: Annotated[Int32, Versions(2)] = 0
    topics: tuple[CreatedTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletableTopic(Structure):
    """A topic by its name, or by its id alone."""

    name: str | None = None
    topic_id: UUID = NO_UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopicsRequest(Structure):
    """Topics to be deleted, from version 6 on also by their ids."""

    flexible_since: ClassVar[int | None] = 4

    topics: Annotated[tuple[DeletableTopic, ...], Versions(6)] = ()
    topic_names: Annotated[tuple[str, ...], Versions(0, 5)] = ()
    timeout_ms: Int32


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedTopic(Structure):
    """What became of one topic. None: it was given by an id that no topic has."""

    name: Annotated[str | None, NullSince(6)]
    topic_id: Annotated[UUID, Versions(6)] = NO_UUID
    error_code: Int16
    error_message: Annotated[str | None, Versions(5)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopicsResponse(Structure):
    """The answer to DeleteTopics."""

    flexible_since: ClassVar[int | None] = 4

    throttle_time_ms: Annotated[Int32, Versions(1)] = 0
    responses: tuple[DeletedTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRecordsPartition(Structure):
    """Records below the offset are to go; -1: all."""

    partition_index: Int32
    offset: Int64


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRecordsTopic(Structure):
    """Which records of a topic are to go."""

    name: str
    partitions: tuple[DeleteRecordsPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRecordsRequest(Structure):
    """Records to be deleted."""

    flexible_since: ClassVar[int | None] = 2

    topics: tuple[DeleteRecordsTopic, ...]
    timeout_ms: Int32


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedRecordsPartition(Structure):
    """The first offset that is left."""

    partition_index: Int32
    low_watermark: Int64
    error_code: Int16


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedRecordsTopic(Structure):
    """What became of the records of a topic."""

    name: str
    partitions: tuple[DeletedRecordsPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRecordsResponse(Structure):
    """The answer to DeleteRecords."""

    flexible_since: ClassVar[int | None] = 2

    throttle_time_ms: Int32 = 0
    topics: tuple[DeletedRecordsTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeAclsRequest(Structure):
    """Asks who may do what: which rules there are that fit."""

    flexible_since: ClassVar[int | None] = 2

    resource_type: Int8
    resource_name: str | None
    pattern_type: Annotated[Int8, Versions(1)] = 3
    """3: of the literal name."""
    principal: str | None
    host: str | None
    operation: Int8
    permission_type: Int8


@dataclass(frozen=True, slots=True, kw_only=True)
class AclRule(Structure):
    """What one user may do, or may not."""

    principal: str
    host: str
    operation: Int8
    permission_type: Int8


@dataclass(frozen=True, slots=True, kw_only=True)
class AclResource(Structure):
    """The rules of one resource."""

    resource_type: Int8
    resource_name: str
    pattern_type: Annotated[Int8, Versions(1)] = 3
    acls: tuple[AclRule, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeAclsResponse(Structure):
    """The answer to DescribeAcls."""

    flexible_since: ClassVar[int | None] = 2

    throttle_time_ms: Int32 = 0
    error_code: Int16
    error_message: str | None
    resources: tuple[AclResource, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsResource(Structure):
    """What is asked about; None asks for every configuration of it."""

    resource_type: Int8
    resource_name: str
    configuration_keys: tuple[str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsRequest(Structure):
    """Asks for configurations."""

    flexible_since: ClassVar[int | None] = 4

    resources: tuple[DescribeConfigsResource, ...]
    include_synonyms: Annotated[bool, Versions(1)] = False
    include_documentation: Annotated[bool, Versions(3)] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigSynonym(Structure):
    """Where else a value could come from."""

    name: str
    value: str | None
    source: Int8


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedConfig(Structure):
    """A configuration."""

    name: str
    value: str | None
    read_only: bool
    is_default: Annotated[bool, Versions(0, 0)] = False
    config_source: Annotated[Int8, Versions(1)] = -1
    is_sensitive: bool = False
    synonyms: Annotated[tuple[ConfigSynonym, ...], Versions(1)] = ()
    config_type: Annotated[Int8, Versions(3)] = 0
    """0: not told."""
    documentation: Annotated[str | None, Versions(3)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedConfigs(Structure):
    """Configurations of one resource."""

    error_code: Int16
    error_message: str | None
    resource_type: Int8
    resource_name: str
    configs: tuple[DescribedConfig, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsResponse(Structure):
    """The answer to DescribeConfigs."""

    flexible_since: ClassVar[int | None] = 4

    throttle_time_ms: Int32 = 0
    results: tuple[DescribedConfigs, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAssignment(Structure):
    """Which servers are to have a new partition."""

    broker_ids: tuple[Int32, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowingTopic(Structure):
    """How many partitions a topic is to have, the old ones included."""

    name: str
    count: Int32
    assignments: tuple[PartitionAssignment, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitionsRequest(Structure):
    """Topics that are to have more partitions."""

    flexible_since: ClassVar[int | None] = 2

    topics: tuple[GrowingTopic, ...]
    timeout_ms: Int32
    validate_only: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GrownTopic(Structure):
    """What became of one topic."""

    name: str
    error_code: Int16
    error_message: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitionsResponse(Structure):
    """The answer to CreatePartitions."""

    flexible_since: ClassVar[int | None] = 2

    throttle_time_ms: Int32 = 0
    results: tuple[GrownTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplacingConfig(Structure):
    """The value of one configuration."""

    name: str
    value: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplacedConfigsResource(Structure):
    """All that is to be set of one resource: what is not named goes back to its default."""

    resource_type: Int8
    resource_name: str
    configs: tuple[ReplacingConfig, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfigsRequest(Structure):
    """Configurations that take the place of what is set."""

    flexible_since: ClassVar[int | None] = 2

    resources: tuple[ReplacedConfigsResource, ...]
    validate_only: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterableConfig(Structure):
    """A change of one configuration."""

    name: str
    config_operation: Int8
    value: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfigsResource(Structure):
    """Changes of one resource; all of them or none."""

    resource_type: Int8
    resource_name: str
    configs: tuple[AlterableConfig, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class IncrementalAlterConfigsRequest(Structure):
    """Changes of configurations."""

    flexible_since: ClassVar[int | None] = 1

    resources: tuple[AlterConfigsResource, ...]
    validate_only: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AlteredConfigs(Structure):
    """What became of the changes of one resource."""

    error_code: Int16
    error_message: str | None
    resource_type: Int8
    resource_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IncrementalAlterConfigsResponse(Structure):
    """The answer to IncrementalAlterConfigs."""

    flexible_since: ClassVar[int | None] = 1

    throttle_time_ms: Int32 = 0
    responses: tuple[AlteredConfigs, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfigsResponse(Structure):
    """The answer to AlterConfigs."""

    flexible_since: ClassVar[int | None] = 2

    throttle_time_ms: Int32 = 0
    responses: tuple[AlteredConfigs, ...]
