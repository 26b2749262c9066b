"""Topics made, described, changed and deleted by an administrator's client; records and groups deleted."""

from collections.abc import Mapping
from concurrent.futures import Future
from typing import TypeVar

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewPartitions, NewTopic

from tests.integration.kafka.clients import (
    SECONDS_MAX,
    Sent,
    new_group,
    new_topic,
    produce_by_confluent,
    read_by_confluent,
)
from tests.integration.kafka.kafka_server import KafkaServerProcess

pytestmark = pytest.mark.integration

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def only(answers: Mapping[_Key, Future[_Value]]) -> _Value:
    (answer,) = answers.values()
    return answer.result(SECONDS_MAX)


def refusal(answers: Mapping[_Key, Future[_Value]]) -> int:
    with pytest.raises(KafkaException) as caught:
        only(answers)
    return int(caught.value.args[0].code())


@pytest.fixture
def admin(server: KafkaServerProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": server.bootstrap})


def test_topics_are_listed_made_and_deleted(server: KafkaServerProcess, admin: AdminClient) -> None:
    topic = new_topic(server.bootstrap, 3)
    described = admin.list_topics(timeout=SECONDS_MAX)
    assert len(described.topics[topic].partitions) == 3
    assert [each.port for each in described.brokers.values()] == [server.port]

    assert refusal(admin.create_topics([NewTopic(topic, 1)])) == KafkaError.TOPIC_ALREADY_EXISTS
    only(admin.delete_topics([topic]))
    assert topic not in admin.list_topics(timeout=SECONDS_MAX).topics
    assert refusal(admin.delete_topics([topic])) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_a_topic_that_is_made_again_has_none_of_the_old_records(
    server: KafkaServerProcess, admin: AdminClient
) -> None:
    topic = new_topic(server.bootstrap)
    produce_by_confluent(server.bootstrap, topic, [Sent(None, b"old")])
    only(admin.delete_topics([topic]))
    only(admin.create_topics([NewTopic(topic, 1)]))
    assert produce_by_confluent(server.bootstrap, topic, [Sent(None, b"new")]) == [0]

    assert read_by_confluent(server.bootstrap, topic, 1) == [Sent(None, b"new")]


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (NewTopic("bad name", 1), KafkaError.TOPIC_EXCEPTION),
        (NewTopic("replicas", 1, replication_factor=3), KafkaError.INVALID_REPLICATION_FACTOR),
        (NewTopic("none", 0), KafkaError.INVALID_PARTITIONS),
        (NewTopic("config", 1, config={"no.such": "1"}), KafkaError.INVALID_CONFIG),
        (NewTopic("value", 1, config={"retention.ms": "long"}), KafkaError.INVALID_CONFIG),
        (
            NewTopic("elsewhere", 1, replica_assignment=[[7]]),
            KafkaError.INVALID_REPLICA_ASSIGNMENT,
        ),
    ],
)
def test_what_cannot_be_is_refused_with_its_reason(
    admin: AdminClient, topic: NewTopic, code: int
) -> None:
    assert refusal(admin.create_topics([topic])) == code
    assert refusal(admin.create_topics([topic], validate_only=True)) == code
    assert topic.topic not in admin.list_topics(timeout=SECONDS_MAX).topics


def test_partitions_are_added_and_never_taken_away(
    server: KafkaServerProcess, admin: AdminClient
) -> None:
    topic = new_topic(server.bootstrap, 2)
    only(admin.create_partitions([NewPartitions(topic, 5)], validate_only=True))
    assert len(admin.list_topics(timeout=SECONDS_MAX).topics[topic].partitions) == 2
    only(admin.create_partitions([NewPartitions(topic, 5)]))
    assert len(admin.list_topics(timeout=SECONDS_MAX).topics[topic].partitions) == 5
    fewer = admin.create_partitions([NewPartitions(topic, 3)])
    assert refusal(fewer) == KafkaError.INVALID_PARTITIONS


def test_configurations_are_read_and_changed(
    server: KafkaServerProcess, admin: AdminClient
) -> None:
    topic = new_topic(server.bootstrap, config={"retention.ms": "1000000"})

    def value(name: str) -> str | None:
        described = only(admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]))
        found: str | None = described[name].value
        return found

    def alter(
        name: str, change: AlterConfigOpType, new: str | None
    ) -> Mapping[ConfigResource, Future[object]]:
        entry = ConfigEntry(name, new, incremental_operation=change)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        answers: Mapping[ConfigResource, Future[object]] = admin.incremental_alter_configs(
            [resource]
        )
        return answers

    assert value("retention.ms") == "1000000"
    assert value("cleanup.policy") == "delete"
    only(alter("retention.bytes", AlterConfigOpType.SET, "5000000"))
    only(alter("retention.ms", AlterConfigOpType.DELETE, None))
    assert (value("retention.bytes"), value("retention.ms")) == ("5000000", "604800000")
    assert refusal(alter("no.such", AlterConfigOpType.SET, "1")) == KafkaError.INVALID_CONFIG
    assert (
        refusal(alter("cleanup.policy", AlterConfigOpType.SET, "squash"))
        == KafkaError.INVALID_CONFIG
    )
    broker = only(admin.describe_configs([ConfigResource(ResourceType.BROKER, "1")]))
    assert broker["auto.create.topics.enable"].value == "false"


def test_records_are_deleted_inside_a_batch(server: KafkaServerProcess, admin: AdminClient) -> None:
    topic = new_topic(server.bootstrap)
    records = [Sent(None, b"%d" % at) for at in range(100)]
    produce_by_confluent(server.bootstrap, topic, records, config={"linger.ms": 500})
    deleted = only(admin.delete_records([TopicPartition(topic, 0, 57)]))
    assert deleted.low_watermark == 57

    found = read_by_confluent(
        server.bootstrap, topic, 43, start=10, config={"auto.offset.reset": "earliest"}
    )
    assert found == records[57:]


def test_groups_are_listed_described_and_deleted(
    server: KafkaServerProcess, admin: AdminClient
) -> None:
    topic, group = new_topic(server.bootstrap), new_group()
    produce_by_confluent(server.bootstrap, topic, [Sent(None, b"a")])
    consumer = Consumer(
        {
            "bootstrap.servers": server.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "client.id": "reader",
        }
    )
    consumer.subscribe([topic])
    while consumer.poll(1.0) is None:
        pass
    consumer.commit(asynchronous=False)
    listed = admin.list_consumer_groups().result(SECONDS_MAX)
    described = only(admin.describe_consumer_groups([group]))
    assert group in [each.group_id for each in listed.valid]
    assert [each.client_id for each in described.members] == ["reader"]
    assert refusal(admin.delete_consumer_groups([group])) == KafkaError.NON_EMPTY_GROUP
    consumer.close()
    only(admin.delete_consumer_groups([group]))
    assert refusal(admin.delete_consumer_groups([group])) == KafkaError.GROUP_ID_NOT_FOUND


def test_transactions_are_refused_at_once(server: KafkaServerProcess) -> None:
    producer = Producer({"bootstrap.servers": server.bootstrap, "transactional.id": "x"})
    with pytest.raises(KafkaException) as caught:
        producer.init_transactions(SECONDS_MAX)
    assert caught.value.args[0].code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
