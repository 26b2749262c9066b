"""What a mutation is refused for: its own condition, retention, legal hold.

Invariant: nothing here changes anything; what is not refused may be done.
"""

from segmentstore.contracts.errors import (
    InvalidRequestError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectLockedError,
)
from tier2.volumes.index_record import IndexRecord, RetentionMode
from tier2.volumes.index_rows import ObjectRow
from tier2.volumes.mutations import Condition


def require_condition(condition: Condition, key: bytes, current: ObjectRow | None) -> None:
    """`current`: the row of the current version. Raises ObjectExistsError, ObjectChangedError."""
    present = current is not None and not current.record.delete_marker
    if condition.absent and present:
        raise ObjectExistsError(f"object exists already key={key!r}")
    if condition.etag is None and condition.sequence is None and not condition.present:
        return
    if current is None or not present:
        raise ObjectChangedError(f"object does not exist key={key!r}")
    record = current.record
    if condition.etag not in (None, record.etag) or condition.sequence not in (
        None,
        record.sequence,
    ):
        raise ObjectChangedError(
            f"object has another version key={key!r} etag={record.etag} sequence={record.sequence}"
        )


def require_unlocked(
    key: bytes, record: IndexRecord, now_ms: int, *, bypass_governance: bool
) -> None:
    """Raises ObjectLockedError."""
    if record.is_locked(now_ms, bypass_governance=bypass_governance):
        raise ObjectLockedError(
            f"object is under retention or legal hold key={key!r} version={record.version_id!r}"
        )


def require_retention_may_change(
    key: bytes,
    record: IndexRecord,
    mode: RetentionMode | None,
    until_ms: int,
    now_ms: int,
    *,
    bypass_governance: bool,
) -> None:
    """`mode`, `until_ms`: the new ones, a mode of None to end it. Raises InvalidRequestError, ObjectLockedError."""
    if mode is not None and until_ms <= now_ms:
        raise InvalidRequestError(f"retention must end in the future until_ms={until_ms}")
    if record.retention_mode is None or now_ms >= record.retain_until_ms:
        return
    weaker = until_ms < record.retain_until_ms or mode is not record.retention_mode
    if record.retention_mode is RetentionMode.COMPLIANCE and weaker:
        raise ObjectLockedError(f"compliance retention can only be extended key={key!r}")
    if weaker and not bypass_governance:
        raise ObjectLockedError(
            f"governance retention is shortened only by whoever may bypass it key={key!r}"
        )
