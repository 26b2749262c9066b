"""How streams, transactions, tables and groups become names of segments, and back.

| thing | name |
|---|---|
| segment id | 64 bits: creation epoch << 32, or number |
| segment | `<scope>/<stream>/<number>.#epoch.<creation epoch>` |
| transaction's segment | `<segment>#transaction.<32 hex digits of the transaction id>` |
| transient segment | `<segment>#transient.<32 hex digits of the writer id>.<32 hex digits, random>` |
| state of a reader group | stream `_RG<group>` in the group's scope |
| watermarks of a stream | stream `_MARK<stream>` in its scope |
| partitions of a key-value table, state of a group without the controller | stream `<name>_kvtable` in its scope |

Invariants:

- Building and parsing are inverse: `parse_segment(name).name == name` for every name that parses.
- Hex digits are lower case and zero padded; numbers have no sign and no leading zeros. Nothing else parses, so two
  different names never mean one segment.
- A user's name holds letters, digits, dots and hyphens, at most `USER_NAME_LENGTH_MAX` of them. The underscore is
  missing on purpose: `_RG`, `_MARK` and `_kvtable` can never collide with what a user chose.
"""

import re
from dataclasses import dataclass, replace
from typing import Final

from segmentstore.contracts.errors import InvalidRequestError

USER_NAME_LENGTH_MAX: Final = 250
INTERNAL_NAME_LENGTH_MAX: Final = 255
WRITER_NAME_BYTES_MAX: Final = 512
"""A writer chooses its name itself, of any characters."""

READER_GROUP_PREFIX: Final = "_RG"
MARK_PREFIX: Final = "_MARK"
TABLE_SUFFIX: Final = "_kvtable"

_HALF = (1 << 64) - 1
_NUMBER = (1 << 31) - 1
"""Segment numbers and epochs are 31-bit: both are signed 32-bit integers to the other clients."""

_USER_NAME = re.compile(r"[A-Za-z0-9.-]+")
_STREAM_NAME = re.compile(r"[A-Za-z0-9._-]+")
_SEGMENT = re.compile(
    r"(?P<scope>[A-Za-z0-9._-]+)/(?P<stream>[A-Za-z0-9._-]+)"
    r"/(?P<number>0|[1-9][0-9]{0,9})\.#epoch\.(?P<epoch>0|[1-9][0-9]{0,9})"
    r"(?:#transaction\.(?P<transaction>[0-9a-f]{32})"
    r"|#transient\.(?P<writer>[0-9a-f]{32})\.(?P<nonce>[0-9a-f]{32}))?"
)


def segment_id_of(*, number: int, creation_epoch: int) -> int:
    """The 64-bit id of a stream's segment. Raises InvalidRequestError if either half does not fit."""
    for what, value in (("number", number), ("epoch", creation_epoch)):
        if not 0 <= value <= _NUMBER:
            raise InvalidRequestError(f"segment {what} is out of range {what}={value}")
    return creation_epoch << 32 | number


def number_of(segment_id: int) -> int:
    """The number of a segment id; numbers are never reused within a stream."""
    return segment_id & 0xFFFFFFFF


def creation_epoch_of(segment_id: int) -> int:
    """The stream's epoch in which the segment was created."""
    return segment_id >> 32


def transaction_id_of(*, high: int, low: int) -> int:
    """The 128-bit id from the two signed halves that messages carry."""
    return (high & _HALF) << 64 | (low & _HALF)


def transaction_halves(transaction_id: int) -> tuple[int, int]:
    """The signed high and low halves of a transaction id."""
    return _signed(transaction_id >> 64), _signed(transaction_id & _HALF)


def transaction_epoch_of(transaction_id: int) -> int:
    """The stream's epoch that a transaction writes to: the upper half of the upper half."""
    return transaction_id >> 96


def reader_group_stream(group: str) -> str:
    """The stream that holds the state of a reader group."""
    return READER_GROUP_PREFIX + group


def mark_stream(stream: str) -> str:
    """The stream that holds the watermarks of a stream."""
    return MARK_PREFIX + stream


def table_stream(table: str) -> str:
    """The stream name under which the partitions of a key-value table are segments."""
    return table + TABLE_SUFFIX


def table_segment(scope: str, table: str, *, number: int = 0) -> str:
    """One partition of a key-value table; all are born in epoch 0. Number 0 is the state of a group of that name."""
    return SegmentName(scope=scope, stream=table_stream(table), number=number).name


def segment_name(scope: str, stream: str, segment_id: int) -> str:
    """The qualified name of a stream's segment."""
    return f"{scope}/{stream}/{number_of(segment_id)}.#epoch.{creation_epoch_of(segment_id)}"


def transaction_segment(parent: str, transaction_id: int) -> str:
    """The segment that holds what a transaction writes to `parent`."""
    return f"{parent}#transaction.{transaction_id:032x}"


def transient_segment(parent: str, *, writer_id: bytes, nonce: bytes) -> str:
    """A segment that collects one large event before it is merged into `parent`; both ids have 16 bytes."""
    return f"{parent}#transient.{writer_id.hex()}.{nonce.hex()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentName:
    """The parts of a qualified segment name."""

    scope: str
    stream: str
    number: int
    creation_epoch: int = 0
    transaction_id: int | None = None
    transient: tuple[bytes, bytes] | None = None
    """Writer id and nonce, 16 bytes each; never together with a transaction id."""

    @property
    def segment_id(self) -> int:
        return self.creation_epoch << 32 | self.number

    @property
    def parent(self) -> "SegmentName":
        """The stream's segment that a transaction's or transient segment will be merged into; itself otherwise."""
        return replace(self, transaction_id=None, transient=None)

    @property
    def name(self) -> str:
        """The text of it."""
        name = segment_name(self.scope, self.stream, self.segment_id)
        if self.transaction_id is not None:
            return transaction_segment(name, self.transaction_id)
        if self.transient is not None:
            return transient_segment(name, writer_id=self.transient[0], nonce=self.transient[1])
        return name


def parse_segment(name: str) -> SegmentName:
    """The parts of a qualified segment name. Raises InvalidRequestError for any other text."""
    match = _SEGMENT.fullmatch(name)
    if match is None:
        raise InvalidRequestError(f"name is not that of a stream's segment name={name!r}")
    number, epoch = int(match["number"]), int(match["epoch"])
    if number > _NUMBER or epoch > _NUMBER:
        raise InvalidRequestError(f"segment number or epoch is out of range name={name!r}")
    transaction = match["transaction"]
    writer = match["writer"]
    return SegmentName(
        scope=match["scope"],
        stream=match["stream"],
        number=number,
        creation_epoch=epoch,
        transaction_id=int(transaction, 16) if transaction is not None else None,
        transient=(bytes.fromhex(writer), bytes.fromhex(match["nonce"]))
        if writer is not None
        else None,
    )


def is_of_internal_stream(name: str) -> bool:
    """Whether it names a segment that holds a reader group's state or a stream's watermarks: no user's events."""
    match = _SEGMENT.fullmatch(name)
    return match is not None and match["stream"].startswith((READER_GROUP_PREFIX, MARK_PREFIX))


def is_user_name(name: str) -> bool:
    """Whether a user may call a scope, stream, table or group so."""
    return len(name) <= USER_NAME_LENGTH_MAX and _USER_NAME.fullmatch(name) is not None


def is_stream_name(name: str) -> bool:
    """Whether a scope or stream may be called so, one of a user or an internal one."""
    return len(name) <= INTERNAL_NAME_LENGTH_MAX and _STREAM_NAME.fullmatch(name) is not None


def check_user_name(name: str, *, what: str) -> None:
    """Raises InvalidRequestError, naming `what`, unless a user may choose the name."""
    if not is_user_name(name):
        raise InvalidRequestError(
            f"a {what} name has 1 to {USER_NAME_LENGTH_MAX} letters, digits, dots and hyphens name={name!r}"
        )


def _signed(half: int) -> int:
    return half - (1 << 64) if half > _HALF >> 1 else half
