"""Which part of the server answers which request.

Produce is not among them: its batches are handed over in order and answered later (produce_requests.py).
"""

from dataclasses import dataclass

from segmentstore.codec.kafka_protocol import administration, cluster, fetch, groups, produce
from segmentstore.codec.kafka_protocol.structure import Structure
from segmentstore.kafka.answer_room import AnswerRoom
from segmentstore.kafka.cluster_requests import NO_ACLS, SPOKEN_VERSIONS, ClusterRequests
from segmentstore.kafka.fetch_requests import Fetching
from segmentstore.kafka.fetch_sessions import FetchSession
from segmentstore.kafka.group_requests import GroupRequests
from segmentstore.kafka.topic_requests import TopicRequests


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """Who asks, and how."""

    version: int
    client_id: str
    client_host: str
    reached_at: tuple[str, int]
    """Host and port of this server, as the client has reached it."""
    fetch_session: FetchSession
    """That of its connection."""
    answer_room: AnswerRoom
    """For the records of the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """Answers everything but Produce."""

    cluster: ClusterRequests
    fetching: Fetching
    groups: GroupRequests
    topics: TopicRequests

    async def answer(self, request: Structure, asker: Asker) -> Structure:
        """The answer. Raises TopicError where an answer has no place for it."""
        match request:
            case fetch.FetchRequest():
                return await self.fetching.fetch(
                    request,
                    asker.fetch_session,
                    asker.client_id,
                    asker.answer_room,
                    version=asker.version,
                )
            case fetch.ListOffsetsRequest():
                return await self.fetching.list_offsets(request, version=asker.version)
            case cluster.ApiVersionsRequest():
                return SPOKEN_VERSIONS
            case cluster.MetadataRequest():
                return await self.cluster.metadata(
                    request, version=asker.version, reached_at=asker.reached_at
                )
            case cluster.FindCoordinatorRequest():
                return await self.cluster.coordinator(request, reached_at=asker.reached_at)
            case produce.InitProducerIdRequest():
                return await self.cluster.init_producer_id(request)
            case groups.HeartbeatRequest():
                return self.groups.heartbeat(request)
            case groups.OffsetCommitRequest():
                return await self.groups.commit(request)
            case groups.OffsetFetchRequest():
                return await self.groups.committed(request, version=asker.version)
            case groups.JoinGroupRequest():
                return await self.groups.join(
                    request,
                    version=asker.version,
                    client_id=asker.client_id,
                    client_host=asker.client_host,
                )
            case groups.SyncGroupRequest():
                return await self.groups.sync(request, version=asker.version)
            case groups.LeaveGroupRequest():
                return await self.groups.leave(request, version=asker.version)
            case groups.DescribeGroupsRequest():
                return await self.groups.describe(request, version=asker.version)
            case groups.ListGroupsRequest():
                return self.groups.listing(request)
            case groups.DeleteGroupsRequest():
                return await self.groups.delete(request.group_ids)
            case groups.OffsetDeleteRequest():
                return await self.groups.delete_offsets(request)
            case administration.CreateTopicsRequest():
                return await self.topics.create(request)
            case administration.DeleteTopicsRequest():
                return await self.topics.delete(request, version=asker.version)
            case administration.CreatePartitionsRequest():
                return await self.topics.add_partitions(request)
            case administration.DeleteRecordsRequest():
                return await self.topics.delete_records(request)
            case administration.DescribeAclsRequest():
                return NO_ACLS
            case administration.DescribeConfigsRequest():
                return await self.topics.describe_configs(request)
            case administration.AlterConfigsRequest():
                return await self.topics.replace_configs(request)
            case administration.IncrementalAlterConfigsRequest():
                return await self.topics.alter_configs(request)
        raise AssertionError(f"an API of the table is not answered request={request!r:.100}")
