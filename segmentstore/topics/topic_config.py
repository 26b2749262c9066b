"""What can be set of a topic: Kafka's words, their bounds and defaults.

A word that is not in CONFIGS is refused, and so is a value outside of the bounds of its word: what is accepted is kept,
told as it was given, and has the effect that the table says.

| word | effect here |
|---|---|
| cleanup.policy | `delete`: records go by age and size; `compact`: in files, when a newer one has their key; or both |
| delete.retention.ms | how long a record stays that says that a key has no value any more |
| min.cleanable.dirty.ratio | which part of the files' bytes has to be new for a pass of compaction |
| max.compaction.lag.ms | how old new records are behind which a pass waits for no more of them |
| min.compaction.lag.ms | how old records are, at least, that a pass looks at: younger ones all stay |
| retention.ms, retention.bytes | what may be deleted from the front of each partition; -1: nothing |
| max.message.bytes | the largest batch that is taken |
| message.timestamp.type | whose clock the times of new batches are of |
| message.timestamp.before.max.ms, .after.max.ms | how far from now a producer's times may be |
| compression.type | of the files that batches become: `zstd`, `uncompressed`, else lz4; batches stay as they came |
| file.delete.delay.ms | how long an object stays, at least, when its file is one no more |
| compression.zstd.level | of these files |
| all others | none: an append is durable wherever the log keeps it before it is acknowledged; files are the store's |
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from segmentstore.codec.record_batch import TimestampType
from segmentstore.topics.errors import InvalidConfigError
from segmentstore.topics.record_files.record_files import FileCompression, FileForm

_LONG_MAX: Final = (1 << 63) - 1
_INT_MAX: Final = (1 << 31) - 1
_FILE_COMPRESSIONS: Final = {
    "zstd": FileCompression.ZSTD,
    "uncompressed": FileCompression.NONE,
}
MESSAGE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of `max.message.bytes`: a batch is one append."""


@dataclass(frozen=True, slots=True)
class _Number:
    default: int
    low: int
    high: int

    def refusal_of(self, value: str) -> str:
        try:
            number = int(value)
        except ValueError:
            return "it is a whole number"
        return "" if self.low <= number <= self.high else f"it is {self.low} to {self.high}"

    @property
    def word(self) -> str:
        return str(self.default)


@dataclass(frozen=True, slots=True)
class _Part:
    word: str

    def refusal_of(self, value: str) -> str:
        try:
            part = float(value)
        except ValueError:
            return "it is a number"
        return "" if 0 <= part <= 1 else "it is 0 to 1"


@dataclass(frozen=True, slots=True)
class _Choice:
    word: str
    words: tuple[str, ...]

    def refusal_of(self, value: str) -> str:
        return "" if value in self.words else f"it is one of {', '.join(self.words)}"


_YES_OR_NO: Final = _Choice("false", ("false", "true"))

CONFIGS: Final[Mapping[str, _Number | _Part | _Choice]] = {
    "cleanup.policy": _Choice("delete", ("delete", "compact", "compact,delete", "delete,compact")),
    "compression.gzip.level": _Number(-1, -1, 9),
    "compression.lz4.level": _Number(9, 1, 17),
    "compression.type": _Choice(
        "producer", ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")
    ),
    "compression.zstd.level": _Number(3, 1, 22),
    "delete.retention.ms": _Number(86_400_000, 0, _LONG_MAX),
    "file.delete.delay.ms": _Number(60_000, 0, _LONG_MAX),
    "flush.messages": _Number(_LONG_MAX, 1, _LONG_MAX),
    "flush.ms": _Number(_LONG_MAX, 0, _LONG_MAX),
    "index.interval.bytes": _Number(4_096, 0, _INT_MAX),
    "local.retention.bytes": _Number(-2, -2, _LONG_MAX),
    "local.retention.ms": _Number(-2, -2, _LONG_MAX),
    "max.compaction.lag.ms": _Number(_LONG_MAX, 1, _LONG_MAX),
    "max.message.bytes": _Number(1_048_588, 0, MESSAGE_BYTES_MAX),
    "message.timestamp.after.max.ms": _Number(3_600_000, 0, _LONG_MAX),
    "message.timestamp.before.max.ms": _Number(_LONG_MAX, 0, _LONG_MAX),
    "message.timestamp.type": _Choice("CreateTime", ("CreateTime", "LogAppendTime")),
    "min.cleanable.dirty.ratio": _Part("0.5"),
    "min.compaction.lag.ms": _Number(0, 0, _LONG_MAX),
    "min.insync.replicas": _Number(1, 1, _INT_MAX),
    "preallocate": _YES_OR_NO,
    "remote.log.copy.disable": _YES_OR_NO,
    "remote.log.delete.on.disable": _YES_OR_NO,
    "remote.storage.enable": _YES_OR_NO,
    "retention.bytes": _Number(-1, -1, _LONG_MAX),
    "retention.ms": _Number(604_800_000, -1, _LONG_MAX),
    "segment.bytes": _Number(1_073_741_824, 14, _INT_MAX),
    "segment.index.bytes": _Number(10_485_760, 4, _INT_MAX),
    "segment.jitter.ms": _Number(0, 0, _LONG_MAX),
    "segment.ms": _Number(604_800_000, 1, _LONG_MAX),
    "unclean.leader.election.enable": _YES_OR_NO,
}
"""Every word with its default and its bounds."""


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """What a topic was given, and what follows from it."""

    given: Mapping[str, str]
    retention_ms: int
    """-1: for ever."""
    retention_bytes: int
    """Of one partition; -1: without bound."""
    message_bytes_max: int
    timestamp_type: TimestampType
    timestamp_before_ms_max: int
    timestamp_after_ms_max: int
    file_delete_delay_ms: int
    deletes: bool
    """By age and size,"""
    compacts: bool
    """and what a newer record of the same key supersedes."""
    tombstone_ms: int
    dirty_part: float
    """Of the files' bytes: so many that no pass has seen make one due."""
    compaction_lag_ms_min: int
    compaction_lag_ms_max: int
    file_compression: FileCompression
    zstd_level: int

    def file_form(self, *, log_append_time: bool, created_ms: int) -> FileForm:
        """How its files are made."""
        return FileForm(self.file_compression, self.zstd_level, log_append_time, created_ms)

    def effective(self) -> dict[str, str]:
        """Every word with its value, given or default."""
        return {word: self.given.get(word, entry.word) for word, entry in CONFIGS.items()}


def known_words(given: Mapping[str, str]) -> dict[str, str]:
    """Those that are known here, with values that are."""
    return {
        word: value
        for word, value in given.items()
        if word in CONFIGS and not CONFIGS[word].refusal_of(value)
    }


def make_config(given: Mapping[str, str], *, bytes_max: int) -> TopicConfig:
    """Raises InvalidConfigError."""
    for word, value in given.items():
        entry = CONFIGS.get(word)
        if entry is None:
            raise InvalidConfigError(f"a topic has no such setting name={word!r}")
        refusal = entry.refusal_of(value)
        if refusal:
            raise InvalidConfigError(f"{refusal} name={word!r} value={value!r}")
    length = sum(len(word) + len(value) for word, value in given.items())
    if length > bytes_max:
        raise InvalidConfigError(f"settings are too long length={length} length_max={bytes_max}")

    def number(word: str) -> int:
        return int(given.get(word, CONFIGS[word].word))

    lag_ms_min, lag_ms_max = number("min.compaction.lag.ms"), number("max.compaction.lag.ms")
    if lag_ms_min > lag_ms_max:
        raise InvalidConfigError(
            f"min.compaction.lag.ms is not above max.compaction.lag.ms min={lag_ms_min} max={lag_ms_max}"
        )
    policy = given.get("cleanup.policy", "delete").split(",")
    log_append_time = given.get("message.timestamp.type") == "LogAppendTime"
    return TopicConfig(
        given=dict(sorted(given.items())),
        retention_ms=number("retention.ms"),
        retention_bytes=number("retention.bytes"),
        message_bytes_max=number("max.message.bytes"),
        timestamp_type=(
            TimestampType.LOG_APPEND_TIME if log_append_time else TimestampType.CREATE_TIME
        ),
        timestamp_before_ms_max=number("message.timestamp.before.max.ms"),
        timestamp_after_ms_max=number("message.timestamp.after.max.ms"),
        file_delete_delay_ms=number("file.delete.delay.ms"),
        deletes="delete" in policy,
        compacts="compact" in policy,
        tombstone_ms=number("delete.retention.ms"),
        dirty_part=float(
            given.get("min.cleanable.dirty.ratio", CONFIGS["min.cleanable.dirty.ratio"].word)
        ),
        compaction_lag_ms_min=lag_ms_min,
        compaction_lag_ms_max=lag_ms_max,
        file_compression=_FILE_COMPRESSIONS.get(
            given.get("compression.type", ""), FileCompression.LZ4
        ),
        zstd_level=number("compression.zstd.level"),
    )
