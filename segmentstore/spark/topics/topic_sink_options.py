"""The options of a write to topics, parsed from the words that Spark hands over.

Invariants: as sink/sink_options.py has them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.spark.service_connection import read_authority
from segmentstore.spark.sink.sink_options import (
    OPTIONS_OF_SPARK,
    staging_lease_seconds,
    transaction_version,
)
from segmentstore.spark.topics.topic_options import check_address, topic_words

TOPIC_WRITE_OPTIONS: Final = (
    "topic",
    "kafka",
    "controller",
    "tlsAuthority",
    "tlsServerName",
    "stagingScope",
    "stagingLease",
    "txnAppId",
    "txnVersion",
)
"""Every option of a write to topics, as users write it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSinkOptions:
    """One write; an empty text is "not given". Plain values."""

    kafka: str
    """HOST:PORT of the service, where it listens for clients of Kafka."""
    controller: str
    """tcp://HOST:PORT or tls://HOST:PORT: where rows are staged."""
    topic: str = ""
    """Where all rows go; empty: their column `topic` says it."""
    tls_authority: str = ""
    tls_server_name: str = ""
    staging_scope: str = "spark-staging"
    staging_lease_seconds: float
    transaction_app_id: str = ""
    transaction_version: int = 0


def parse_topic_sink_options(given: Mapping[str, str]) -> TopicSinkOptions:
    """Options of a write by their names in any case. Raises InvalidRequestError."""
    own = {name: value for name, value in given.items() if name.lower() not in OPTIONS_OF_SPARK}
    words = topic_words(own, TOPIC_WRITE_OPTIONS, "a write")
    for name, example in (("kafka", "HOST:PORT"), ("controller", "tcp://HOST:PORT")):
        if not words.get(name):
            raise InvalidRequestError(
                "a write to topics needs the service: kafka, where records go, and controller,"
                f" where they are staged; {name}={example} is missing"
            )
    check_address(words["kafka"])
    app_id, version = transaction_version(words)
    return TopicSinkOptions(
        kafka=words["kafka"],
        controller=words["controller"],
        topic=words.get("topic", ""),
        tls_authority=read_authority(words.get("tlsauthority", "")),
        tls_server_name=words.get("tlsservername", ""),
        staging_scope=words.get("stagingscope") or "spark-staging",
        staging_lease_seconds=staging_lease_seconds(words),
        transaction_app_id=app_id,
        transaction_version=version,
    )
