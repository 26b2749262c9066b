"""A member of a group as a process: tells its assignment and its records in lines of JSON, until it is killed.

python -m tests.integration.kafka.group_member BOOTSTRAP GROUP TOPIC [commits]

With the last word it commits what it has told, every half second.
"""

import json
import sys

from confluent_kafka import Consumer, TopicPartition


def say(**what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def main(bootstrap: str, group: str, topic: str, commits: str = "") -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 500,
            "enable.auto.commit": bool(commits),
            "auto.commit.interval.ms": 500,
        }
    )

    def assigned(consumer: Consumer, places: list[TopicPartition]) -> None:
        say(assigned=sorted(each.partition for each in places))

    consumer.subscribe([topic], on_assign=assigned)
    while True:
        message = consumer.poll(0.2)
        if message is None or message.error() is not None:
            continue
        say(partition=message.partition(), offset=message.offset())


if __name__ == "__main__":
    main(*sys.argv[1:])
