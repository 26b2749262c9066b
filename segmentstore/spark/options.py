"""The options of a read, parsed from the words that Spark hands over; and how words become values, for writes as well.

Invariants:

- Spark's keys come in any case; a key that is not known, a value that does not parse and a contradiction are refused
  with a sentence (InvalidRequestError), before anything is opened.
- What is not said has a default here, and only here.
- Values are parsed from `words`: keys are lower case, and a value that is not given is an empty text.
- Sizes mean what they mean everywhere in Spark: `64m`, `64mb` and `64MiB` are 64 * 2^20 bytes. (In settings and
  commands of the store itself `MB` is 10^6.)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, TypeVar

from segmentstore.codec.quantities import SPARK_BYTES, SPARK_SECONDS, parse_bytes, parse_seconds
from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.spark.schema import BYTES_COLUMNS, EVENT_COLUMNS, parse_columns
from segmentstore.spark.service_connection import read_authority

_MIB = 1 << 20
_PARTITION_BYTES = 128 * _MIB
_TRIGGER_DELAY_SECONDS = 900.0
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
EARLIEST: Final = "earliest"
LATEST: Final = "latest"
RECORD_TAG: Final = "segmentstore.content=record"
"""A stream with this tag holds records."""
READ_OPTIONS: Final = (
    "tier2",
    "endpoint",
    "region",
    "controller",
    "tlsAuthority",
    "tlsServerName",
    "mode",
    "scope",
    "stream",
    "segment",
    "content",
    "columns",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "maxBytesPerPartition",
    "minPartitions",
    "failOnDataLoss",
    "verifyChecksums",
    "metadata",
    "maxBytesPerTrigger",
    "maxRowsPerTrigger",
    "minBytesPerTrigger",
    "maxTriggerDelay",
    "checkpointGroup",
)
"""Every option of a read, as users write it."""
Word = TypeVar("Word", bound=StrEnum)


class ReadMode(StrEnum):
    """Whether only Tier 2 is asked, or the service as well."""

    AUTO = "auto"
    """Tier 2, and the service for what it does not hold yet, if there is a `controller`."""
    OFFLINE = "offline"
    """Tier 2 alone."""


class Content(StrEnum):
    """What the bytes of a segment are."""

    AUTO = "auto"
    """What the stream's tag says: RECORD_TAG, or raw events without it."""
    RAW = "raw"
    """Events; their bytes are the value."""
    RECORD = "record"
    """Events that hold one encoded record each: key, value, headers, timestamp."""
    BYTES = "bytes"
    """No events: blocks of bytes at offsets. Only of a single segment."""


class ChecksumCheck(StrEnum):
    """Of which blocks the sum is compared. The Python reader fetches whole blocks and compares it of all of them."""

    NEEDED = "needed"
    """Of those with contents that a column shows. Positions may be believed where the events' headers lead through the
    block as the index says: from its first event to that of the next block in so many steps."""
    ALL = "all"
    """Of all that are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """One read. Sizes in bytes, times in Unix milliseconds, delays in seconds; an empty string is "not given"."""

    tier2: str = ""
    """A place as in tier2/object_stores/places.py: s3://BUCKET/PREFIX, a data directory, a file:// URL of one."""
    endpoint: str = ""
    region: str = "us-east-1"
    controller: str = ""
    """tcp://HOST:PORT or tls://HOST:PORT."""
    tls_authority: str = ""
    """Certificates in PEM of those who vouch for the servers: the contents of the file that is named."""
    tls_server_name: str = ""
    mode: ReadMode = ReadMode.AUTO
    scope: str = ""
    stream: str = ""
    segment: str = ""
    """Qualified name of a single segment."""
    content: Content = Content.AUTO
    columns: tuple[str, ...] = tuple(EVENT_COLUMNS)
    starting_offsets: str = ""
    """earliest, latest, JSON {"<segment id>": offset} or a stream cut; without it batch reads begin at the earliest."""
    ending_offsets: str = ""
    starting_timestamp_ms: int | None = None
    ending_timestamp_ms: int | None = None
    max_bytes_per_partition: int = _PARTITION_BYTES
    min_partitions: int = 1
    fail_on_data_loss: bool = True
    verify_checksums: ChecksumCheck = ChecksumCheck.NEEDED
    metadata: str = ""
    """Name of a metadata table; empty for the data."""
    max_bytes_per_trigger: int | None = None
    max_rows_per_trigger: int | None = None
    min_bytes_per_trigger: int = 0
    max_trigger_delay_seconds: float = _TRIGGER_DELAY_SECONDS
    checkpoint_group: str = ""
    """Reader group (in the scope of the stream) that is told how far the query came."""

    @property
    def uses_service(self) -> bool:
        """Whether the service may be asked."""
        return bool(self.controller) and self.mode is ReadMode.AUTO

    @property
    def known_columns(self) -> Sequence[str]:
        """All that there are of this content."""
        return BYTES_COLUMNS if self.content is Content.BYTES else EVENT_COLUMNS

    @property
    def stream_name(self) -> str:
        """`scope/stream` for messages."""
        return f"{self.scope}/{self.stream}"


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """Options of a read by their names in any case. Raises InvalidRequestError."""
    words = {name.lower(): value.strip() for name, value in given.items()}
    known = {name.lower(): name for name in READ_OPTIONS}
    strangers = sorted(name for name in words if name not in known)
    if strangers:
        raise InvalidRequestError(
            f"unknown option {', '.join(strangers)}; a read takes {', '.join(READ_OPTIONS)}"
        )
    scope, stream = stream_value(words)
    content = word_value(words, "content", Content, Content.AUTO)
    known_columns = BYTES_COLUMNS if content is Content.BYTES else EVENT_COLUMNS
    options = SourceOptions(
        tier2=words.get("tier2", ""),
        endpoint=words.get("endpoint", ""),
        region=words.get("region") or "us-east-1",
        controller=words.get("controller", ""),
        tls_authority=read_authority(words.get("tlsauthority", "")),
        tls_server_name=words.get("tlsservername", ""),
        mode=word_value(words, "mode", ReadMode, ReadMode.AUTO),
        scope=scope,
        stream=stream,
        segment=words.get("segment", ""),
        content=content,
        columns=parse_columns(words["columns"], known_columns)
        if words.get("columns")
        else tuple(known_columns),
        starting_offsets=words.get("startingoffsets", ""),
        ending_offsets=words.get("endingoffsets", ""),
        starting_timestamp_ms=time_value(words, "startingTimestamp"),
        ending_timestamp_ms=time_value(words, "endingTimestamp"),
        max_bytes_per_partition=bytes_value(words, "maxBytesPerPartition") or _PARTITION_BYTES,
        min_partitions=count_value(words, "minPartitions") or 1,
        fail_on_data_loss=flag_value(words, "failOnDataLoss", default=True),
        verify_checksums=word_value(words, "verifyChecksums", ChecksumCheck, ChecksumCheck.NEEDED),
        metadata=words.get("metadata", ""),
        max_bytes_per_trigger=bytes_value(words, "maxBytesPerTrigger"),
        max_rows_per_trigger=count_value(words, "maxRowsPerTrigger"),
        min_bytes_per_trigger=bytes_value(words, "minBytesPerTrigger", least=0) or 0,
        max_trigger_delay_seconds=_trigger_delay(words),
        checkpoint_group=words.get("checkpointgroup", ""),
    )
    _check(options)
    return options


def _check(options: SourceOptions) -> None:
    if not options.tier2 and not options.uses_service:
        raise InvalidRequestError(
            "nowhere to read from: tier2 says where Tier 2 is, controller where the service is "
            "(which mode=offline does not ask)"
        )
    if options.segment and (options.scope or options.stream):
        raise InvalidRequestError("segment is a name of its own: it goes without scope and stream")
    if not options.metadata:
        if options.stream and not options.scope:
            raise InvalidRequestError(f"stream has no scope: say scope/{options.stream}")
        if not options.segment and not options.scope:
            raise InvalidRequestError("nothing to read: give stream, scope or segment")
    if options.content is Content.BYTES and not options.segment:
        raise InvalidRequestError("content=bytes is for a single segment: give segment")
    for what, offsets, timestamp in (
        ("starting", options.starting_offsets, options.starting_timestamp_ms),
        ("ending", options.ending_offsets, options.ending_timestamp_ms),
    ):
        if offsets and timestamp is not None:
            raise InvalidRequestError(f"{what}Offsets and {what}Timestamp exclude each other")
        if timestamp is not None and not options.tier2:
            raise InvalidRequestError(
                f"{what}Timestamp is looked up in Tier 2, and the service does not know times: give tier2 as well"
            )
        is_word = offsets.lower() in ("", EARLIEST, LATEST)
        if not is_word and options.scope and not options.stream:
            raise InvalidRequestError(
                f"{what}Offsets of a whole scope are earliest or latest given={offsets!r}"
            )


def _trigger_delay(words: Mapping[str, str]) -> float:
    seconds = seconds_value(words, "maxTriggerDelay")
    return _TRIGGER_DELAY_SECONDS if seconds is None else seconds


def time_value(words: Mapping[str, str], name: str) -> int | None:
    """Unix milliseconds from such a number or from ISO 8601; without a zone it is UTC. Of a time with a part of a
    millisecond the next one: rows have whole ones, so those that are not older are the same."""
    text = words.get(name.lower(), "")
    if not text:
        return None
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        instant = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidRequestError(
            f"{name} is Unix milliseconds or a time such as 2026-11-21T14:00:00Z given={text!r}"
        ) from error
    if instant.tzinfo is None:
        instant = instant.replace(tzinfo=UTC)
    return -((_EPOCH - instant) // timedelta(milliseconds=1))


def stream_value(words: Mapping[str, str]) -> tuple[str, str]:
    """Scope and stream, which may also stand together as `stream`; what is not given is empty."""
    scope, stream = words.get("scope", ""), words.get("stream", "")
    before, slash, after = stream.partition("/")
    if not slash:
        return scope, stream
    if scope and scope != before:
        raise InvalidRequestError(f"stream names another scope scope={scope!r} stream={stream!r}")
    return before, after


def word_value(words: Mapping[str, str], name: str, kind: type[Word], default: Word) -> Word:
    """One of some words."""
    text = words.get(name.lower(), "")
    try:
        return kind(text.lower()) if text else default
    except ValueError as error:
        raise InvalidRequestError(f"{name} is one of {', '.join(kind)} given={text!r}") from error


def flag_value(words: Mapping[str, str], name: str, *, default: bool) -> bool:
    """True or false."""
    text = words.get(name.lower(), "").lower()
    if text not in ("", "true", "false"):
        raise InvalidRequestError(f"{name} is true or false given={text!r}")
    return text == "true" if text else default


def count_value(words: Mapping[str, str], name: str, *, least: int = 1) -> int | None:
    """A whole number of at least `least`."""
    text = words.get(name.lower(), "")
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or int(text) < least:
        raise InvalidRequestError(f"{name} is a whole number of at least {least} given={text!r}")
    return int(text)


def bytes_value(words: Mapping[str, str], name: str, *, least: int = 1) -> int | None:
    """A size in bytes, of at least `least`."""
    text = words.get(name.lower(), "")
    if not text:
        return None
    try:
        size = parse_bytes(text, SPARK_BYTES)
    except ValueError:
        size = -1
    if size < least:
        raise InvalidRequestError(
            f"{name} is a size such as 1048576 or 64m, where k, m, g and t are powers of 1024 given={text!r}"
        )
    return size


def seconds_value(words: Mapping[str, str], name: str) -> float | None:
    """A stretch of time in seconds."""
    text = words.get(name.lower(), "")
    if not text:
        return None
    try:
        return parse_seconds(text.lower(), SPARK_SECONDS)
    except ValueError as error:
        raise InvalidRequestError(
            f"{name} is a time such as 30s, 15m (minutes) or 6h given={text!r}"
        ) from error
