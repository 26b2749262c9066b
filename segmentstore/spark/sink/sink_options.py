"""The options of a write, parsed from the words that Spark hands over.

Invariants:

- Spark's keys come in any case; a key that is not known, a value that does not parse and a contradiction are refused
  with a sentence, before anything is opened.
- What is not said has a default here, and only here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from segmentstore.client.stream_config import RetentionPolicy, ScalingPolicy, StreamConfig
from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.spark.options import (
    RECORD_TAG,
    bytes_value,
    count_value,
    flag_value,
    seconds_value,
    stream_value,
    word_value,
)
from segmentstore.spark.service_connection import read_authority

WRITE_OPTIONS: Final = (
    "controller",
    "tlsAuthority",
    "tlsServerName",
    "scope",
    "stream",
    "content",
    "routingKeyColumn",
    "txnAppId",
    "txnVersion",
    "stagingLease",
    "createIfMissing",
    "segments",
    "scaling",
    "scalingRate",
    "scalingFactor",
    "retentionTime",
    "retentionBytes",
)
"""Every option of a write, as users write it."""

OPTIONS_OF_SPARK: Final = ("checkpointlocation", "path", "queryname")
_CREATION_OPTIONS = (
    "segments",
    "scaling",
    "scalingRate",
    "scalingFactor",
    "retentionTime",
    "retentionBytes",
)
_APP_ID_BYTES_MAX = 240
_LEASE_SECONDS = 6 * 3600.0
_LEASE_SECONDS_MIN = 10.0
_LEASE_SECONDS_MAX = 7 * 86_400.0


class SinkContent(StrEnum):
    """What the bytes of an event are to be."""

    AUTO = "auto"
    """What the stream's tag says; raw in a stream without it."""
    RAW = "raw"
    """The value; the key only decides where the event goes."""
    RECORD = "record"
    """One encoded record: key, value, headers, timestamp."""


class Scaling(StrEnum):
    """By what a created stream scales."""

    FIXED = "fixed"
    EVENTS = "events"
    KILOBYTES = "kilobytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """One write. Times in seconds, sizes in bytes; an empty string is "not given"."""

    controller: str
    """tcp://HOST:PORT or tls://HOST:PORT."""
    scope: str
    stream: str
    tls_authority: str = ""
    """Certificates in PEM of those who vouch for the servers: the contents of the file that is named."""
    tls_server_name: str = ""
    content: SinkContent = SinkContent.AUTO
    routing_key_column: str = "key"
    """Events with equal values in it stand in one segment in their order; null is spread evenly."""
    transaction_app_id: str = ""
    """With `transaction_version`: a batch write of a version that is not above the last one adds nothing."""
    transaction_version: int = 0
    staging_lease_seconds: float = _LEASE_SECONDS
    """What failed tasks left behind is thrown away after it; a whole batch has to be written within it."""
    create_if_missing: bool = False
    stream_config: StreamConfig = field(default_factory=StreamConfig)
    """Of a stream that is created; its tag says what its content is."""

    @property
    def stream_name(self) -> str:
        """`scope/stream`."""
        return f"{self.scope}/{self.stream}"


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Options of a write by their names in any case. Raises InvalidRequestError."""
    words = {
        name.lower(): value.strip()
        for name, value in given.items()
        if name.lower() not in OPTIONS_OF_SPARK
    }
    known = [name.lower() for name in WRITE_OPTIONS]
    strangers = sorted(name for name in words if name not in known)
    if strangers:
        raise InvalidRequestError(
            f"unknown option {', '.join(strangers)}; a write takes {', '.join(WRITE_OPTIONS)}"
        )
    scope, stream = _stream_of(words)
    if not words.get("controller"):
        raise InvalidRequestError("a write needs the service: controller=tcp://HOST:PORT")
    content = word_value(words, "content", SinkContent, SinkContent.AUTO)
    app_id, version = transaction_version(words)
    return SinkOptions(
        controller=words["controller"],
        tls_authority=read_authority(words.get("tlsauthority", "")),
        tls_server_name=words.get("tlsservername", ""),
        scope=scope,
        stream=stream,
        content=content,
        routing_key_column=words.get("routingkeycolumn") or "key",
        transaction_app_id=app_id,
        transaction_version=version,
        staging_lease_seconds=staging_lease_seconds(words),
        create_if_missing=_creation(words),
        stream_config=_stream_config(words, content),
    )


def _stream_of(words: Mapping[str, str]) -> tuple[str, str]:
    scope, stream = stream_value(words)
    if not scope or not stream:
        raise InvalidRequestError("a write goes to one stream: stream=SCOPE/STREAM")
    return scope, stream


def transaction_version(words: Mapping[str, str]) -> tuple[str, int]:
    """txnAppId and txnVersion; an empty text and 0 without them. Raises InvalidRequestError."""
    app_id = words.get("txnappid", "")
    version = count_value(words, "txnVersion", least=0)
    if bool(app_id) != (version is not None):
        raise InvalidRequestError("txnAppId and txnVersion go together")
    if len(app_id.encode()) > _APP_ID_BYTES_MAX:
        raise InvalidRequestError(
            f"txnAppId has at most {_APP_ID_BYTES_MAX} bytes given={app_id!r}"
        )
    return app_id, version or 0


def staging_lease_seconds(words: Mapping[str, str]) -> float:
    """stagingLease. Raises InvalidRequestError."""
    lease = seconds_value(words, "stagingLease")
    if lease is None:
        return _LEASE_SECONDS
    if not _LEASE_SECONDS_MIN <= lease <= _LEASE_SECONDS_MAX:
        raise InvalidRequestError(
            f"stagingLease is between {_LEASE_SECONDS_MIN:g}s and {_LEASE_SECONDS_MAX / 86400:g}d"
            f" given={words['staginglease']!r}"
        )
    return lease


def _creation(words: Mapping[str, str]) -> bool:
    creates = flag_value(words, "createIfMissing", default=False)
    idle = [name for name in _CREATION_OPTIONS if words.get(name.lower())]
    if idle and not creates:
        raise InvalidRequestError(
            f"{', '.join(idle)} says how a stream is created: it goes with createIfMissing=true"
        )
    return creates


def _stream_config(words: Mapping[str, str], content: SinkContent) -> StreamConfig:
    segments = count_value(words, "segments") or 1
    kind = word_value(words, "scaling", Scaling, Scaling.FIXED)
    rate, factor = count_value(words, "scalingRate"), count_value(words, "scalingFactor", least=2)
    if (kind is Scaling.FIXED) != (rate is None) or (kind is Scaling.FIXED and factor):
        raise InvalidRequestError(
            "scaling=events or scaling=kilobytes goes with scalingRate, per second and segment"
        )
    policy = ScalingPolicy.fixed(segments)
    match kind:
        case Scaling.EVENTS:
            policy = ScalingPolicy.by_event_rate(
                rate or 1, factor=factor or 2, segments_min=segments
            )
        case Scaling.KILOBYTES:
            policy = ScalingPolicy.by_data_rate(
                rate or 1, factor=factor or 2, segments_min=segments
            )
    seconds, size = seconds_value(words, "retentionTime"), bytes_value(words, "retentionBytes")
    if seconds is not None and size is not None:
        raise InvalidRequestError("retentionTime and retentionBytes exclude each other")
    retention = RetentionPolicy.forever()
    if seconds is not None:
        retention = RetentionPolicy.by_time(seconds)
    elif size is not None:
        retention = RetentionPolicy.by_size(size)
    tags = (RECORD_TAG,) if content is SinkContent.RECORD else ()
    return StreamConfig(scaling=policy, retention=retention, tags=tags)
