"""Messages written out by hand, byte by byte, from the layouts of the protocol."""

import pytest

from segmentstore.codec.kafka_protocol.administration import (
    CreatableConfig,
    CreatableTopic,
    CreateTopicsRequest,
    DescribeConfigsResponse,
    DescribedConfig,
    DescribedConfigs,
)
from segmentstore.codec.kafka_protocol.cluster import (
    ApiVersionRange,
    ApiVersionsResponse,
    MetadataBroker,
    MetadataPartition,
    MetadataRequest,
    MetadataResponse,
    MetadataTopic,
)
from segmentstore.codec.kafka_protocol.fetch import (
    MAX_TIMESTAMP,
    FetchedPartition,
    FetchedTopic,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ListedOffset,
    ListedTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from segmentstore.codec.kafka_protocol.fields import KafkaProtocolError
from segmentstore.codec.kafka_protocol.frames import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    read_request_header,
)
from segmentstore.codec.kafka_protocol.groups import (
    DescribedGroup,
    DescribedMember,
    DescribeGroupsResponse,
    HeartbeatRequest,
    JoinedMember,
    JoinGroupProtocol,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeavingMember,
    LeftMember,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitTopic,
    SyncGroupRequest,
)
from segmentstore.codec.kafka_protocol.produce import (
    ProducedPartition,
    ProducedTopic,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
)
from segmentstore.codec.kafka_protocol.structure import (
    Structure,
    decode_structure,
    encode_structure,
)

NULL = "ffffffff"

GOLDEN: list[tuple[str, Structure, int, str]] = [
    (
        "versions of a server, or error 35 to a client that is too new",
        ApiVersionsResponse(
            error_code=35, api_keys=(ApiVersionRange(api_key=18, min_version=0, max_version=2),)
        ),
        0,
        "0023 00000001 0012 0000 0002",
    ),
    (
        "one batch for one partition",
        ProduceRequest(
            acks=-1,
            timeout_ms=30_000,
            topics=(
                ProduceTopic(name="ab", partitions=(ProducePartition(index=3, records=b"BATCH"),)),
            ),
        ),
        7,
        "ffff ffff 00007530 00000001 0002 6162 00000001 00000003 00000005 4241544348",
    ),
    (
        "nothing for one partition",
        ProduceRequest(
            transactional_id="t",
            acks=1,
            timeout_ms=0,
            topics=(
                ProduceTopic(name="ab", partitions=(ProducePartition(index=0, records=None),)),
            ),
        ),
        3,
        f"0001 74 0001 00000000 00000001 0002 6162 00000001 00000000 {NULL}",
    ),
    (
        "stored at 258, the log begins at 1",
        ProduceResponse(
            topics=(
                ProducedTopic(
                    name="a",
                    partitions=(
                        ProducedPartition(
                            index=2, error_code=0, base_offset=258, log_start_offset=1
                        ),
                    ),
                ),
            )
        ),
        7,
        (
            "00000001 0001 61 00000001 00000002 0000 0000000000000102 ffffffffffffffff"
            "0000000000000001 00000000"
        ),
    ),
    (
        "the same in the oldest version",
        ProduceResponse(
            topics=(
                ProducedTopic(
                    name="a",
                    partitions=(ProducedPartition(index=2, error_code=0, base_offset=258),),
                ),
            )
        ),
        0,
        "00000001 0001 61 00000001 00000002 0000 0000000000000102",
    ),
    (
        "one partition from offset 5",
        FetchRequest(
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=0x03200000,
            isolation_level=1,
            session_epoch=0,
            topics=(
                FetchTopic(
                    topic="t",
                    partitions=(
                        FetchPartition(partition=1, fetch_offset=5, partition_max_bytes=0x100000),
                    ),
                ),
            ),
            rack_id="r",
        ),
        11,
        (
            "ffffffff 000001f4 00000001 03200000 01 00000000 00000000"
            "00000001 0001 74 00000001 00000001 ffffffff 0000000000000005 ffffffffffffffff 00100000"
            "00000000 0001 72"
        ),
    ),
    (
        "a batch, with no transactions, and no other replica to prefer",
        FetchResponse(
            topics=(
                FetchedTopic(
                    topic="t",
                    partitions=(
                        FetchedPartition(
                            partition_index=1,
                            error_code=0,
                            high_watermark=9,
                            last_stable_offset=9,
                            log_start_offset=2,
                            records=b"xyz",
                        ),
                    ),
                ),
            )
        ),
        11,
        (
            "00000000 0000 00000000 00000001 0001 74 00000001 00000001 0000 0000000000000009"
            f"0000000000000009 0000000000000002 {NULL} ffffffff 00000003 78797a"
        ),
    ),
    (
        "no record with that time",
        ListOffsetsResponse(
            topics=(
                ListedTopic(
                    name="t",
                    partitions=(
                        ListedOffset(partition_index=0, error_code=0, timestamp=-1, offset=-1),
                    ),
                ),
            )
        ),
        2,
        "00000000 00000001 0001 74 00000001 00000000 0000 ffffffffffffffff ffffffffffffffff",
    ),
    (
        "a time in one partition, with a leader's epoch",
        ListOffsetsRequest(
            isolation_level=1,
            topics=(
                ListOffsetsTopic(
                    name="t",
                    partitions=(
                        ListOffsetsPartition(
                            partition_index=2, current_leader_epoch=3, timestamp=258
                        ),
                    ),
                ),
            ),
        ),
        4,
        "ffffffff 01 00000001 0001 74 00000001 00000002 00000003 0000000000000102",
    ),
    (
        "an offset and its leader's epoch",
        ListOffsetsResponse(
            topics=(
                ListedTopic(
                    name="t",
                    partitions=(
                        ListedOffset(
                            partition_index=2,
                            error_code=0,
                            timestamp=258,
                            offset=9,
                            leader_epoch=3,
                        ),
                    ),
                ),
            )
        ),
        5,
        (
            "00000000 00000001 0001 74 00000001 00000002 0000 0000000000000102 0000000000000009"
            "00000003"
        ),
    ),
    (
        "the record with the highest time, flexible",
        ListOffsetsRequest(
            topics=(
                ListOffsetsTopic(
                    name="t",
                    partitions=(ListOffsetsPartition(partition_index=2, timestamp=MAX_TIMESTAMP),),
                ),
            ),
        ),
        7,
        "ffffffff 00 02 02 74 02 00000002 ffffffff fffffffffffffffd 00 00 00",
    ),
    (
        "the offset of that record, flexible",
        ListOffsetsResponse(
            topics=(
                ListedTopic(
                    name="t",
                    partitions=(
                        ListedOffset(partition_index=2, error_code=0, timestamp=258, offset=9),
                    ),
                ),
            )
        ),
        6,
        ("00000000 02 02 74 02 00000002 0000 0000000000000102 0000000000000009 ffffffff00 00 00"),
    ),
    ("all topics", MetadataRequest(topics=None, allow_auto_topic_creation=False), 4, f"{NULL} 00"),
    ("no topic", MetadataRequest(topics=(), allow_auto_topic_creation=True), 4, "00000000 01"),
    (
        "one server, one topic with one partition",
        MetadataResponse(
            brokers=(MetadataBroker(node_id=1, host="h", port=9092),),
            cluster_id="c",
            controller_id=1,
            topics=(
                MetadataTopic(
                    error_code=0,
                    name="t",
                    partitions=(
                        MetadataPartition(
                            error_code=0,
                            partition_index=0,
                            leader_id=1,
                            replica_nodes=(1,),
                            isr_nodes=(1,),
                        ),
                    ),
                ),
            ),
        ),
        4,
        (
            "00000000 00000001 00000001 0001 68 00002384 ffff 0001 63 00000001"
            "00000001 0000 0001 74 00 00000001 0000 00000000 00000001 00000001 00000001"
            "00000001 00000001"
        ),
    ),
    (
        "an offset without a note",
        OffsetCommitRequest(
            group_id="g",
            generation_id=4,
            member_id="m",
            topics=(
                OffsetCommitTopic(
                    name="t",
                    partitions=(
                        OffsetCommitPartition(
                            partition_index=0, committed_offset=7, committed_metadata=None
                        ),
                    ),
                ),
            ),
        ),
        3,
        (
            "0001 67 00000004 0001 6d ffffffffffffffff 00000001 0001 74 00000001 00000000"
            "0000000000000007 ffff"
        ),
    ),
    (
        "a leader and its members",
        JoinGroupResponse(
            error_code=0,
            generation_id=1,
            protocol_name="range",
            leader="m",
            member_id="m",
            members=(JoinedMember(member_id="m", metadata=b"\1\2"),),
        ),
        4,
        "00000000 0000 00000001 0005 72616e6765 0001 6d 0001 6d 00000001 0001 6d 00000002 0102",
    ),
    (
        "a static member that starts",
        JoinGroupRequest(
            group_id="g",
            session_timeout_ms=1,
            rebalance_timeout_ms=2,
            member_id="",
            group_instance_id="i",
            protocol_type="c",
            protocols=(JoinGroupProtocol(name="r", metadata=b"\1"),),
        ),
        5,
        "0001 67 00000001 00000002 0000 0001 69 0001 63 00000001 0001 72 00000001 01",
    ),
    (
        "a static member and another one, for their leader",
        JoinGroupResponse(
            error_code=0,
            generation_id=1,
            protocol_name="r",
            leader="m",
            member_id="m",
            members=(
                JoinedMember(member_id="m", group_instance_id="i", metadata=b"\1"),
                JoinedMember(member_id="n", metadata=b""),
            ),
        ),
        5,
        (
            "00000000 0000 00000001 0001 72 0001 6d 0001 6d 00000002"
            "0001 6d 0001 69 00000001 01 0001 6e ffff 00000000"
        ),
    ),
    (
        "a member that joins again and says why, flexible",
        JoinGroupRequest(
            group_id="g",
            session_timeout_ms=1,
            rebalance_timeout_ms=2,
            member_id="m",
            group_instance_id=None,
            protocol_type="c",
            protocols=(JoinGroupProtocol(name="r", metadata=b"\1"),),
            reason="why",
        ),
        9,
        "02 67 00000001 00000002 02 6d 00 02 63 02 02 72 02 01 00 04 776879 00",
    ),
    (
        "a leader that is back, flexible",
        JoinGroupResponse(
            error_code=0,
            generation_id=1,
            protocol_type="c",
            protocol_name="r",
            leader="m",
            skip_assignment=True,
            member_id="m",
            members=(JoinedMember(member_id="m", group_instance_id="i", metadata=b"\1"),),
        ),
        9,
        "00000000 0000 00000001 02 63 02 72 02 6d 01 02 6d 02 02 6d 02 69 02 01 00 00",
    ),
    (
        "a static member asks for its part",
        SyncGroupRequest(
            group_id="g", generation_id=1, member_id="m", group_instance_id="i", assignments=()
        ),
        3,
        "0001 67 00000001 0001 6d 0001 69 00000000",
    ),
    (
        "a static member is there",
        HeartbeatRequest(group_id="g", generation_id=1, member_id="m", group_instance_id="i"),
        3,
        "0001 67 00000001 0001 6d 0001 69",
    ),
    (
        "a member in version 2 goes",
        LeaveGroupRequest(group_id="g", member_id="m"),
        2,
        "0001 67 0001 6d",
    ),
    (
        "two members go, one by its instance id",
        LeaveGroupRequest(
            group_id="g",
            members=(
                LeavingMember(member_id="", group_instance_id="i"),
                LeavingMember(member_id="m", group_instance_id=None),
            ),
        ),
        3,
        "0001 67 00000002 0000 0001 69 0001 6d ffff",
    ),
    (
        "one of them was fenced",
        LeaveGroupResponse(
            error_code=0,
            members=(LeftMember(member_id="m", group_instance_id="i", error_code=82),),
        ),
        3,
        "00000000 0000 00000001 0001 6d 0001 69 0052",
    ),
    (
        "an offset of a static member",
        OffsetCommitRequest(
            group_id="g",
            generation_id=4,
            member_id="m",
            group_instance_id="i",
            topics=(
                OffsetCommitTopic(
                    name="t",
                    partitions=(
                        OffsetCommitPartition(
                            partition_index=0,
                            committed_offset=7,
                            committed_leader_epoch=2,
                            committed_metadata="n",
                        ),
                    ),
                ),
            ),
        ),
        7,
        (
            "0001 67 00000004 0001 6d 0001 69 00000001 0001 74 00000001 00000000"
            "0000000000000007 00000002 0001 6e"
        ),
    ),
    (
        "a static member, for people",
        DescribeGroupsResponse(
            groups=(
                DescribedGroup(
                    error_code=0,
                    group_id="g",
                    group_state="s",
                    protocol_type="c",
                    protocol_data="r",
                    members=(
                        DescribedMember(
                            member_id="m",
                            group_instance_id="i",
                            client_id="c",
                            client_host="h",
                            member_metadata=b"",
                            member_assignment=b"\1",
                        ),
                    ),
                ),
            )
        ),
        4,
        (
            "00000000 00000001 0000 0001 67 0001 73 0001 63 0001 72 00000001 0001 6d 0001 69"
            "0001 63 0001 68 00000000 00000001 01 80000000"
        ),
    ),
    (
        "a topic as librdkafka asks for it",
        CreateTopicsRequest(
            topics=(
                CreatableTopic(
                    name="t",
                    num_partitions=2,
                    replication_factor=-1,
                    configs=(CreatableConfig(name="k", value="v"),),
                ),
            ),
            timeout_ms=1,
            validate_only=True,
        ),
        4,
        "00000001 0001 74 00000002 ffff 00000000 00000001 0001 6b 0001 76 00000001 01",
    ),
    (
        "a default of a topic",
        DescribeConfigsResponse(
            results=(
                DescribedConfigs(
                    error_code=0,
                    error_message=None,
                    resource_type=2,
                    resource_name="t",
                    configs=(
                        DescribedConfig(name="k", value="v", read_only=False, config_source=5),
                    ),
                ),
            )
        ),
        1,
        "00000000 00000001 0000 ffff 02 0001 74 00000001 0001 6b 0001 76 00 05 00 00000000",
    ),
]


@pytest.mark.parametrize(("name", "message", "version", "written"), GOLDEN)
def test_a_message_has_these_bytes(
    name: str, message: Structure, version: int, written: str
) -> None:
    content = bytes.fromhex(written)

    assert b"".join(encode_structure(message, version)).hex() == content.hex(), name
    assert decode_structure(type(message), content, version) == message, name


def test_a_request_has_its_length_and_header_before_it() -> None:
    request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
    content = bytes.fromhex("00000010 0003 0004 00000102 0001 63 ffffffff 00")

    assert b"".join(encode_request(request, 4, correlation_id=258, client_id="c")) == content
    header = read_request_header(content[4:])
    assert (header.correlation_id, header.client_id) == (258, "c")
    assert decode_request(header, content[4:]) == request


def test_a_flexible_header_and_what_is_in_it_has_tagged_fields_which_are_skipped() -> None:
    request = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=1,
        rebalance_timeout_ms=2,
        member_id="",
        protocol_type="c",
        protocols=(JoinGroupProtocol(name="r", metadata=b""),),
    )
    head, joining = "000b 0006 00000102 0001 63", "02 67 00000001 00000002 01 00 02 63 02 02 72 01"
    plain = bytes.fromhex(f"00000020 {head} 00 {joining} 00 00")

    assert b"".join(encode_request(request, 6, correlation_id=258, client_id="c")) == plain
    # Tag 0 with two bytes, tag 200 without any.
    tagged = bytes.fromhex(f"{head} 01 00 02 aabb {joining} 01 c801 00 02 00 01 ff 01 00")
    for frame in (plain[4:], tagged):
        assert decode_request(read_request_header(frame), frame) == request

    response = JoinGroupResponse(
        error_code=0, generation_id=1, protocol_name="r", leader="", member_id="", members=()
    )
    content = b"".join(encode_response(258, response, 6))
    assert content == bytes.fromhex("00000015 00000102 00 00000000 0000 00000001 02 72 01 01 01 00")
    assert decode_response(JoinGroupResponse, content[4:], 6, correlation_id=258) == response


@pytest.mark.parametrize(
    "lengths",
    ["ffffffffff7f", "8080808080", "ffffffff1f", "ff", "00"],
    ids=["38 bits", "no end", "too many", "cut", "null"],
)
def test_a_compact_length_that_cannot_be_is_refused(lengths: str) -> None:
    with pytest.raises(KafkaProtocolError):
        decode_structure(JoinGroupRequest, bytes.fromhex(lengths), 6)


def test_a_client_may_have_no_name() -> None:
    request = MetadataRequest(topics=(), allow_auto_topic_creation=False)

    content = b"".join(encode_request(request, 4, correlation_id=1, client_id=None))

    assert content == bytes.fromhex("0000000f 0003 0004 00000001 ffff 00000000 00")
    assert read_request_header(content[4:]).client_id is None


def test_an_answer_has_its_length_and_the_number_of_its_request_before_it() -> None:
    response = ApiVersionsResponse(error_code=0, api_keys=())

    content = b"".join(encode_response(258, response, 0))

    assert content == bytes.fromhex("0000000a 00000102 0000 00000000")


def test_long_records_are_a_part_of_their_own() -> None:
    records = bytes(100_000)
    response = FetchResponse(
        topics=(
            FetchedTopic(
                topic="t",
                partitions=(
                    FetchedPartition(
                        partition_index=0, error_code=0, high_watermark=1, records=records
                    ),
                ),
            ),
        )
    )

    parts = encode_response(1, response, 11)

    assert any(each is records for each in parts)
