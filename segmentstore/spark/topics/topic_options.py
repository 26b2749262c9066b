"""The options of a read of topics, parsed from the words that Spark hands over.

Invariants: as options.py has them. The words are those of Spark's Kafka source where it has one for the same thing, so
`subscribe` is `topic`, and `kafka.bootstrap.servers` is `kafka`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from segmentstore.client.kafka_servers import parse_addresses
from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.spark.options import (
    ReadMode,
    bytes_value,
    count_value,
    flag_value,
    time_value,
    word_value,
)
from segmentstore.spark.schema import parse_columns
from segmentstore.spark.tier2_access import Tier2Location
from segmentstore.spark.topics.topic_columns import TOPIC_COLUMNS
from segmentstore.spark.topics.topic_offsets import OffsetWords, parse_offset_words

TOPIC_READ_OPTIONS: Final = (
    "topic",
    "tier2",
    "endpoint",
    "region",
    "kafka",
    "mode",
    "columns",
    "includeHeaders",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "failOnDataLoss",
    "maxBytesPerPartition",
    "minPartitions",
    "maxOffsetsPerTrigger",
)
"""Every option of a read of topics, as users write it."""
_OTHER_NAMES: Final = {"subscribe": "topic", "kafka.bootstrap.servers": "kafka"}
_PARTITION_BYTES: Final = 128 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicReadOptions:
    """One read. Sizes in bytes, times in Unix milliseconds; an empty string is "not given"."""

    topics: tuple[str, ...]
    tier2: str = ""
    """A place as in tier2/object_stores/places.py."""
    endpoint: str = ""
    region: str = "us-east-1"
    kafka: str = ""
    """HOST:PORT of the service, where it listens for clients of Kafka."""
    mode: ReadMode = ReadMode.AUTO
    columns: tuple[str, ...] = tuple(TOPIC_COLUMNS[:-1])
    starting: OffsetWords | None = None
    """None: a batch begins at the earliest records, a stream at the latest."""
    ending: OffsetWords | None = None
    starting_timestamp_ms: int | None = None
    ending_timestamp_ms: int | None = None
    fail_on_data_loss: bool = True
    max_bytes_per_partition: int = _PARTITION_BYTES
    min_partitions: int = 1
    max_offsets_per_trigger: int | None = None

    @property
    def service(self) -> str:
        """HOST:PORT of the service if it may be asked, else empty."""
        return self.kafka if self.mode is ReadMode.AUTO else ""

    @property
    def place(self) -> Tier2Location | None:
        """Where Tier 2 is; None if the options do not say."""
        if not self.tier2:
            return None
        return Tier2Location(place=self.tier2, endpoint=self.endpoint, region=self.region)


def names_topics(given: Mapping[str, str]) -> bool:
    """Whether the options of a read are about topics."""
    return any(_OTHER_NAMES.get(name.lower(), name.lower()) == "topic" for name in given)


def writes_topics(given: Mapping[str, str]) -> bool:
    """Whether the options of a write are about topics: their names may be in a column."""
    names = {_OTHER_NAMES.get(name.lower(), name.lower()) for name in given}
    return not names.isdisjoint(("topic", "kafka"))


def topic_words(given: Mapping[str, str], known: tuple[str, ...], what: str) -> dict[str, str]:
    """The words by their names in lower case, each under its one name. Raises InvalidRequestError for strangers."""
    words: dict[str, str] = {}
    for name, value in given.items():
        key = _OTHER_NAMES.get(name.lower(), name.lower())
        if words.get(key, value.strip()) != value.strip():
            raise InvalidRequestError(f"{key} is given twice given={words[key]!r} and {value!r}")
        words[key] = value.strip()
    names = {each.lower() for each in known}
    strangers = sorted(name for name in words if name not in names)
    if strangers:
        raise InvalidRequestError(
            f"unknown option {', '.join(strangers)}; {what} of topics takes {', '.join(known)}"
        )
    return words


def parse_topic_options(given: Mapping[str, str]) -> TopicReadOptions:
    """Options of a read by their names in any case. Raises InvalidRequestError."""
    words = topic_words(given, TOPIC_READ_OPTIONS, "a read")
    topics = tuple(
        dict.fromkeys(part.strip() for part in words["topic"].split(",") if part.strip())
    )
    columns = TOPIC_COLUMNS[:-1]
    if flag_value(words, "includeHeaders", default=False):
        columns = TOPIC_COLUMNS
    options = TopicReadOptions(
        topics=topics,
        tier2=words.get("tier2", ""),
        endpoint=words.get("endpoint", ""),
        region=words.get("region") or "us-east-1",
        kafka=words.get("kafka", ""),
        mode=word_value(words, "mode", ReadMode, ReadMode.AUTO),
        columns=parse_columns(words["columns"], TOPIC_COLUMNS)
        if words.get("columns")
        else tuple(columns),
        starting=parse_offset_words(words, "startingOffsets", topics),
        ending=parse_offset_words(words, "endingOffsets", topics),
        starting_timestamp_ms=time_value(words, "startingTimestamp"),
        ending_timestamp_ms=time_value(words, "endingTimestamp"),
        fail_on_data_loss=flag_value(words, "failOnDataLoss", default=True),
        max_bytes_per_partition=bytes_value(words, "maxBytesPerPartition") or _PARTITION_BYTES,
        min_partitions=count_value(words, "minPartitions") or 1,
        max_offsets_per_trigger=count_value(words, "maxOffsetsPerTrigger"),
    )
    _check(options)
    return options


def _check(options: TopicReadOptions) -> None:
    if not options.topics:
        raise InvalidRequestError("topic names no topic")
    if not options.tier2 and not options.service:
        raise InvalidRequestError(
            "nowhere to read from: tier2 says where Tier 2 is, kafka=HOST:PORT where the service is "
            "(which mode=offline does not ask)"
        )
    if options.kafka:
        check_address(options.kafka)
    for what, offsets, timestamp in (
        ("starting", options.starting, options.starting_timestamp_ms),
        ("ending", options.ending, options.ending_timestamp_ms),
    ):
        if offsets is not None and timestamp is not None:
            raise InvalidRequestError(f"{what}Offsets and {what}Timestamp exclude each other")
    if options.ending is not None and options.ending.asks_for_earliest:
        raise InvalidRequestError("endingOffsets cannot be the earliest: nothing would be read")


def check_address(address: str) -> None:
    """Raises InvalidRequestError."""
    try:
        parse_addresses(address)
    except InvalidRequestError as error:
        raise InvalidRequestError(
            f"kafka is HOST:PORT, of several brokers of one service with commas between given={address!r}"
        ) from error
