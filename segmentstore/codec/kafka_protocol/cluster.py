"""ApiVersions, Metadata and FindCoordinator: what the server can do, and where what is."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final
from uuid import UUID

from segmentstore.codec.kafka_protocol.fields import (
    NO_UUID,
    OPERATIONS_NOT_TOLD,
    Int8,
    Int16,
    Int32,
)
from segmentstore.codec.kafka_protocol.structure import NullSince, Structure, Versions

GROUP_COORDINATOR: Final = 0
TRANSACTION_COORDINATOR: Final = 1

METADATA_WITHOUT_NAMES_SINCE: Final = 12
"""From this version on an answer may tell of an id without a name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersionsRequest(Structure):
    """The first request of most clients."""

    flexible_since: ClassVar[int | None] = 3

    client_software_name: Annotated[str, Versions(3)] = ""
    client_software_version: Annotated[str, Versions(3)] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersionRange(Structure):
    """Which versions of an API are spoken."""

    api_key: Int16
    min_version: Int16
    max_version: Int16


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersionsResponse(Structure):
    """The answer to ApiVersions. A request of an unknown version is answered in version 0 too, with an error and the
    row of ApiVersions itself."""

    flexible_since: ClassVar[int | None] = 3

    error_code: Int16
    api_keys: tuple[ApiVersionRange, ...]
    throttle_time_ms: Annotated[Int32, Versions(1)] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataRequestTopic(Structure):
    """A topic that is asked about, by its name; later by its id, if one is given."""

    topic_id: Annotated[UUID, Versions(10)] = NO_UUID
    name: Annotated[str | None, NullSince(10)]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataRequest(Structure):
    """Asks which topics there are; None asks for all. In version 0 an empty list does that."""

    flexible_since: ClassVar[int | None] = 9

    topics: tuple[MetadataRequestTopic, ...] | None
    allow_auto_topic_creation: Annotated[bool, Versions(4)] = True
    include_cluster_authorized_operations: Annotated[bool, Versions(8, 10)] = False
    include_topic_authorized_operations: Annotated[bool, Versions(8)] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataBroker(Structure):
    """A server."""

    node_id: Int32
    host: str
    port: Int32
    rack: Annotated[str | None, Versions(1)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataPartition(Structure):
    """Which servers have a partition."""

    error_code: Int16
    partition_index: Int32
    leader_id: Int32
    leader_epoch: Annotated[Int32, Versions(7)] = -1
    """-1: there is none."""
    replica_nodes: tuple[Int32, ...]
    isr_nodes: tuple[Int32, ...]
    offline_replicas: Annotated[tuple[Int32, ...], Versions(5)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataTopic(Structure):
    """A topic. Only one that was asked for by an id that no topic has is without a name."""

    error_code: Int16
    name: Annotated[str | None, NullSince(METADATA_WITHOUT_NAMES_SINCE)]
    topic_id: Annotated[UUID, Versions(10)] = NO_UUID
    is_internal: Annotated[bool, Versions(1)] = False
    partitions: tuple[MetadataPartition, ...]
    topic_authorized_operations: Annotated[Int32, Versions(8)] = OPERATIONS_NOT_TOLD


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataResponse(Structure):
    """The answer to Metadata."""

    flexible_since: ClassVar[int | None] = 9

    throttle_time_ms: Annotated[Int32, Versions(3)] = 0
    brokers: tuple[MetadataBroker, ...]
    cluster_id: Annotated[str | None, Versions(2)] = None
    controller_id: Annotated[Int32, Versions(1)] = -1
    topics: tuple[MetadataTopic, ...]
    cluster_authorized_operations: Annotated[Int32, Versions(8, 10)] = OPERATIONS_NOT_TOLD
    error_code: Annotated[Int16, Versions(13)] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FindCoordinatorRequest(Structure):
    """Asks who coordinates a group, or the transactions of a producer; from version 4 on, each of many."""

    flexible_since: ClassVar[int | None] = 3

    key: Annotated[str, Versions(0, 3)] = ""
    key_type: Annotated[Int8, Versions(1)] = GROUP_COORDINATOR
    coordinator_keys: Annotated[tuple[str, ...], Versions(4)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinator(Structure):
    """Who coordinates what has this key."""

    key: str
    node_id: Int32
    host: str
    port: Int32
    error_code: Int16
    error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FindCoordinatorResponse(Structure):
    """The answer to FindCoordinator."""

    flexible_since: ClassVar[int | None] = 3

    throttle_time_ms: Annotated[Int32, Versions(1)] = 0
    error_code: Annotated[Int16, Versions(0, 3)] = 0
    error_message: Annotated[str | None, Versions(1, 3)] = None
    node_id: Annotated[Int32, Versions(0, 3)] = -1
    host: Annotated[str, Versions(0, 3)] = ""
    port: Annotated[Int32, Versions(0, 3)] = -1
    coordinators: Annotated[tuple[Coordinator, ...], Versions(4)] = ()
