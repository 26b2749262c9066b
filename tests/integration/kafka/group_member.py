"""A member of a group as a process: tells its assignment and its records in lines of JSON, until it is killed.

python -m tests.integration.kafka.group_member BOOTSTRAP GROUP TOPIC [commits] [static=ID]

With `commits` it commits what it has told, every half second. With an instance id it is a static member of a long
session; it ends when another client has that id.
"""

import json
import sys

from confluent_kafka import Consumer, KafkaError, TopicPartition


def say(**what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def main(bootstrap: str, group: str, topic: str, *words: str) -> None:
    settings: dict[str, str | int | bool] = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "session.timeout.ms": 6000,
        "heartbeat.interval.ms": 500,
        "enable.auto.commit": "commits" in words,
        "auto.commit.interval.ms": 500,
    }
    for word in words:
        if word.startswith("static="):
            settings["group.instance.id"] = word.removeprefix("static=")
            # No promise: the test is over by then.
            settings["session.timeout.ms"] = 250_000
    consumer = Consumer(settings)

    def assigned(consumer: Consumer, places: list[TopicPartition]) -> None:
        say(assigned=sorted(each.partition for each in places))

    def revoked(consumer: Consumer, places: list[TopicPartition]) -> None:
        say(revoked=sorted(each.partition for each in places))

    consumer.subscribe([topic], on_assign=assigned, on_revoke=revoked)
    while True:
        message = consumer.poll(0.2)
        if message is None:
            continue
        error = message.error()
        if error is not None and error.code() == KafkaError._FATAL:
            say(failed=error.str())
            return
        if error is not None:
            continue
        say(partition=message.partition(), offset=message.offset())


if __name__ == "__main__":
    main(*sys.argv[1:])
