"""What is known of a bucket, and its bytes: a JSON object, version 1.

    {"format": 1, "created_ms": 0, "versioning": "" | "Enabled" | "Suspended", "lock": false,
     "default_mode": "" | "GOVERNANCE" | "COMPLIANCE", "default_days": 0, "default_years": 0}

Invariants: a bucket with object lock is versioned; a default retention has days or years, not both.
"""

import json
import re
from dataclasses import asdict, dataclass

from segmentstore.contracts.errors import CorruptedDataError
from tier2.volumes.index_record import RetentionMode

_FORMAT = 1
_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_ADDRESS = re.compile(r"\d+\.\d+\.\d+\.\d+")
ENABLED, SUSPENDED = "Enabled", "Suspended"
_DAY_MS = 24 * 3600 * 1000
_YEAR_DAYS = 365


@dataclass(frozen=True, slots=True)
class BucketRecord:
    """A bucket."""

    created_ms: int
    versioning: str = ""
    """Empty: never enabled."""
    lock: bool = False
    default_mode: str = ""
    default_days: int = 0
    default_years: int = 0

    def default_retention(self, now_ms: int) -> tuple[RetentionMode, int] | None:
        """What a new version gets that names no retention itself: mode and Unix milliseconds."""
        if not self.default_mode:
            return None
        days = self.default_days + self.default_years * _YEAR_DAYS
        return RetentionMode(self.default_mode), now_ms + days * _DAY_MS


def is_bucket_name(name: str) -> bool:
    """By the rules of S3, as far as they are about form."""
    return bool(_NAME.fullmatch(name)) and ".." not in name and not _ADDRESS.fullmatch(name)


def encode_bucket_record(record: BucketRecord) -> bytes:
    """See the module."""
    return json.dumps({"format": _FORMAT, **asdict(record)}).encode()


def decode_bucket_record(content: bytes) -> BucketRecord:
    """Raises CorruptedDataError."""
    try:
        fields = json.loads(content)
        if fields.pop("format") != _FORMAT:
            raise ValueError("another format")
        return BucketRecord(**fields)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptedDataError(f"not the record of a bucket: {content[:200]!r}") from error
