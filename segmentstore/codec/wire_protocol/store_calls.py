"""Calls of our own: how a controller works on the segments and tables of nodes in other processes.

Pravega's commands do not do for that: their answers lose what a controller decides by (the error's class and its
facts, the version of each entry, lengths behind merges, properties of listed segments), and they lack `forget_merged`
and listings. Here each verb of `SegmentApi` and `TableApi` is one command, and an error comes back as itself.

    controller                              node
    OpenStoreCalls(token, leader epoch)  ->
                                         <- AnswerDone, or AnswerRefused
    Call...(request id, arguments)       ->
                                         <- Answer...(request id, result), or AnswerRefused(request id, error)

- Type numbers go down from -1000; Pravega's lowest is -127. Never renumber.
- A call that is refused was not done, unless the error says that its outcome is unknown (`is_outcome_unknown`).

| structure | bytes |
|---|---|
| optional X | int8 0, or int8 1 and X |
| attribute value | int8 0 (none), or 1 and int64, or 2 and a blob |
| attribute update | blob key, int8 type, attribute value, attribute value (the comparison) |
| attributes | int32 count, then a blob key and an attribute value each |
| properties | text name; int64 segment id, container id, start offset, length, storage length; int8 sealed, sealed in |
| | storage, active; int64 last modified; attributes |
| table state | text name; int64 key length, start offset, length, entry count |
| fact | int8 0 (none), or 1 and int64, or 2 and a blob, or 3 and a text |
| error | text class, text message, int32 count, then a fact each, in the order of `FACTS` |
| outcome | int8 0 and int64 version, or int8 1 and an error |
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, TypeAlias, TypeVar, get_args

from segmentstore.codec.wire_protocol.command import Command
from segmentstore.codec.wire_protocol.fields import (
    INT64,
    TEXT,
    Blob,
    Field,
    FieldCursor,
    Flag,
    Int32,
    Int64,
    Int64s,
    ProtocolError,
    Text,
    Texts,
    list_of,
    write_blob,
)
from segmentstore.codec.wire_protocol.tables import ENTRY, Entries, Keys
from segmentstore.contracts import errors
from segmentstore.contracts.errors import ErrorKind, InvalidRequestError, SegmentStoreError
from segmentstore.contracts.identifiers import AttributeKey, AttributeValue, SegmentId
from segmentstore.contracts.segments import (
    AttributeUpdate,
    AttributeUpdateType,
    SegmentProperties,
)
from segmentstore.contracts.tables import TableEntry, TableInfo

_MESSAGE_CHARACTERS_MAX: Final = 4000
_Value = TypeVar("_Value")
_Fact: TypeAlias = int | bytes | str | None

_NONE: Final = b"\x00"
_NUMBER: Final = b"\x01"
_BYTES: Final = b"\x02"
_TEXT: Final = b"\x03"


# --- fields --------------------------------------------------------------------------------------


def _optional(field: Field[_Value]) -> "Field[_Value | None]":
    def write(value: _Value | None) -> bytes:
        return b"\x00" if value is None else b"\x01" + field.write(value)

    def read(cursor: FieldCursor) -> _Value | None:
        return field.read(cursor) if _flag(cursor) else None

    return Field(write, read)


def _flag(cursor: FieldCursor) -> bool:
    flag = cursor.int8()
    if flag not in (0, 1):
        raise ProtocolError(f"neither there nor missing flag={flag}")
    return flag == 1


def _write_fact(value: _Fact) -> bytes:
    match value:
        case None:
            return _NONE
        case int():
            return _NUMBER + INT64.write(value)
        case bytes():
            return _BYTES + write_blob(value)
        case str():
            return _TEXT + TEXT.write(value)


def _read_fact(cursor: FieldCursor) -> _Fact:
    match cursor.take(1):
        case b"\x00":
            return None
        case b"\x01":
            return cursor.int64()
        case b"\x02":
            return cursor.blob()
        case b"\x03":
            return cursor.text()
        case other:
            raise ProtocolError(f"unknown kind of value kind={other[0]}")


def _read_attribute_value(cursor: FieldCursor) -> AttributeValue | None:
    value = _read_fact(cursor)
    if isinstance(value, str):
        raise ProtocolError("an attribute's value is no text")
    return value


def _write_update(update: AttributeUpdate) -> bytes:
    return b"".join(
        (
            write_blob(update.key),
            bytes((update.type,)),
            _write_fact(update.value),
            _write_fact(update.comparison),
        )
    )


def _read_update(cursor: FieldCursor) -> AttributeUpdate:
    key, kind = AttributeKey(cursor.blob()), cursor.int8()
    value, comparison = _read_attribute_value(cursor), _read_attribute_value(cursor)
    try:
        return AttributeUpdate(key, value, AttributeUpdateType(kind), comparison)
    except ValueError as error:
        raise ProtocolError(f"unknown type of update type={kind}") from error


def _write_attribute(attribute: tuple[AttributeKey, AttributeValue]) -> bytes:
    key, value = attribute
    return write_blob(key) + _write_fact(value)


def _read_attribute(cursor: FieldCursor) -> tuple[AttributeKey, AttributeValue]:
    key, value = AttributeKey(cursor.blob()), _read_attribute_value(cursor)
    if value is None:
        raise ProtocolError("an attribute has no value")
    return key, value


_ATTRIBUTES: Final = list_of(Field(_write_attribute, _read_attribute), item_bytes_min=9)


def _write_properties(properties: SegmentProperties) -> bytes:
    return b"".join(
        (
            TEXT.write(properties.name),
            INT64.write(properties.segment_id),
            INT64.write(properties.container_id),
            INT64.write(properties.start_offset),
            INT64.write(properties.length),
            INT64.write(properties.storage_length),
            bytes((properties.sealed, properties.sealed_in_storage, properties.active)),
            INT64.write(properties.last_modified_ms),
            _ATTRIBUTES.write(list(properties.core_attributes.items())),
        )
    )


def _read_properties(cursor: FieldCursor) -> SegmentProperties:
    name = cursor.text()
    segment_id, container_id, start, length, storage = (cursor.int64() for _ in range(5))
    sealed, sealed_in_storage, active = (_flag(cursor) for _ in range(3))
    return SegmentProperties(
        name=name,
        segment_id=SegmentId(segment_id),
        container_id=container_id,
        start_offset=start,
        length=length,
        storage_length=storage,
        sealed=sealed,
        sealed_in_storage=sealed_in_storage,
        active=active,
        last_modified_ms=cursor.int64(),
        core_attributes=dict(_ATTRIBUTES.read(cursor)),
    )


def _write_table_state(info: TableInfo) -> bytes:
    numbers = (info.key_length, info.start_offset, info.length, info.entry_count)
    return TEXT.write(info.name) + b"".join(map(INT64.write, numbers))


def _read_table_state(cursor: FieldCursor) -> TableInfo:
    return TableInfo(cursor.text(), cursor.int64(), cursor.int64(), cursor.int64(), cursor.int64())


# --- errors --------------------------------------------------------------------------------------

_ERRORS: Final[Mapping[str, type[SegmentStoreError]]] = {
    name: value
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, SegmentStoreError)
}
"""By name: those of the contracts. Others travel as the class of these that they are made from."""

_INT: Final = (int,)
_BLOB_FACT: Final = (bytes,)
_STR: Final = (str,)
FACTS: Final[Mapping[type[SegmentStoreError], Mapping[str, tuple[type, ...]]]] = {
    errors.AppendTooLargeError: {"length": _INT, "length_max": _INT},
    errors.SegmentNotFoundError: {"name": _STR},
    errors.ContainerNotFoundError: {"container_id": _INT},
    errors.SegmentExistsError: {"name": _STR},
    errors.SegmentSealedError: {"name": _STR, "length": _INT},
    errors.SegmentNotSealedError: {"name": _STR},
    errors.SegmentTruncatedError: {"name": _STR, "start_offset": _INT},
    errors.BadOffsetError: {"name": _STR, "expected": _INT, "given": _INT},
    errors.BadAttributeUpdateError: {
        "name": _STR,
        "key": _BLOB_FACT,
        "current": (int, bytes, type(None)),
    },
    errors.TableNotEmptyError: {"name": _STR},
    errors.TableKeyNotFoundError: {"name": _STR, "key": _BLOB_FACT},
    errors.TableVersionError: {
        "name": _STR,
        "key": _BLOB_FACT,
        "expected": _INT,
        "current": _INT,
    },
    errors.LeaderReplacedError: {"given": _INT, "newest": _INT},
    errors.StorageUnavailableError: {"state": _STR},
}
"""What an error says beside its message, by its attributes in order; errors of other classes say nothing more."""


def _carried_class(error: SegmentStoreError) -> type[SegmentStoreError]:
    """The class under which it travels: another one must not say something else about what to do."""
    for kind in type(error).__mro__:
        if _ERRORS.get(kind.__name__) is kind and kind.kind is error.kind:
            return kind
    # Of a class that one room has for itself, with a kind of its own.
    return InvalidRequestError if error.kind is ErrorKind.INVALID else SegmentStoreError


@dataclass(frozen=True, slots=True)
class CarriedError:
    """An error as it travels."""

    name: str
    """Of its class."""
    message: str
    facts: Sequence[_Fact]

    @classmethod
    def of(cls, error: SegmentStoreError) -> "CarriedError":
        """What is sent of an error."""
        kind = _carried_class(error)
        # Half a surrogate pair is in the messages of errors about it, and in no text.
        message = str(error)[:_MESSAGE_CHARACTERS_MAX].encode("utf-8", "backslashreplace").decode()
        return cls(
            kind.__name__, message, tuple(getattr(error, name) for name in FACTS.get(kind, ()))
        )

    def error(self) -> SegmentStoreError:
        """The error again, of the same class and with the same facts."""
        kind = _ERRORS[self.name]
        # Its message is complete: the constructor would make another one.
        error = kind.__new__(kind, self.message)
        Exception.__init__(error, self.message)
        for name, fact in zip(FACTS.get(kind, ()), self.facts, strict=True):
            setattr(error, name, fact)
        return error


def _write_error(error: CarriedError) -> bytes:
    return TEXT.write(error.name) + TEXT.write(error.message) + _FACT_LIST.write(error.facts)


def _read_error(cursor: FieldCursor) -> CarriedError:
    name, message, facts = cursor.text(), cursor.text(), _FACT_LIST.read(cursor)
    kind = _ERRORS.get(name)
    if kind is None:
        raise ProtocolError(f"unknown class of error name={name[:80]!r}")
    forms = FACTS.get(kind, {})
    if len(facts) != len(forms):
        raise ProtocolError(f"an error has other facts name={name} count={len(facts)}")
    for (attribute, form), fact in zip(forms.items(), facts, strict=True):
        if not isinstance(fact, form):
            raise ProtocolError(f"an error's fact is of another type {name}.{attribute}={fact!r}")
    return CarriedError(name, message, facts)


def _write_outcome(outcome: int | CarriedError) -> bytes:
    if isinstance(outcome, int):
        return b"\x00" + INT64.write(outcome)
    return b"\x01" + _write_error(outcome)


def _read_outcome(cursor: FieldCursor) -> int | CarriedError:
    return _read_error(cursor) if _flag(cursor) else cursor.int64()


_FACT_LIST: Final = list_of(Field(_write_fact, _read_fact), item_bytes_min=1)
_BLOB: Final[Field[bytes]] = Field(write_blob, FieldCursor.blob)
_BLOBS: Final = list_of(_BLOB, item_bytes_min=4)

OptionalInt64: TypeAlias = Annotated[int | None, _optional(INT64)]
OptionalBlob: TypeAlias = Annotated[bytes | None, _optional(_BLOB)]
Blobs: TypeAlias = Annotated[Sequence[bytes], _BLOBS]
OptionalBlobs: TypeAlias = Annotated[Sequence[bytes] | None, _optional(_BLOBS)]
AttributeUpdates: TypeAlias = Annotated[
    Sequence[AttributeUpdate], list_of(Field(_write_update, _read_update), item_bytes_min=7)
]
Attributes: TypeAlias = Annotated[Sequence[tuple[AttributeKey, AttributeValue]], _ATTRIBUTES]
PropertiesList: TypeAlias = Annotated[
    Sequence[SegmentProperties],
    list_of(Field(_write_properties, _read_properties), item_bytes_min=57),
]
TableState: TypeAlias = Annotated[TableInfo, Field(_write_table_state, _read_table_state)]
OptionalEntries: TypeAlias = Annotated[
    Sequence[TableEntry | None], list_of(_optional(ENTRY), item_bytes_min=1)
]
StoreError: TypeAlias = Annotated[CarriedError, Field(_write_error, _read_error)]
Outcomes: TypeAlias = Annotated[
    Sequence[int | CarriedError], list_of(Field(_write_outcome, _read_outcome), item_bytes_min=9)
]


# --- the beginning of a connection, and answers --------------------------------------------------


NO_LEADER: Final = -1
"""In the place of a leader's epoch."""


@dataclass(frozen=True, slots=True)
class OpenStoreCalls(Command):
    """The first of these commands on a connection. Answer: AnswerDone.

    Calls of leaders of lower epochs are refused from then on, by this node. NO_LEADER as the epoch: the caller is no
    leader's, whose calls it neither refuses nor waits for; each of its changes is conditional by itself.
    """

    type: ClassVar[int] = -1000
    request_id: Int64
    token: Text
    leader_epoch: Int64


@dataclass(frozen=True, slots=True)
class AnswerRefused(Command):
    """The error of a call."""

    type: ClassVar[int] = -1001
    request_id: Int64
    error: StoreError


@dataclass(frozen=True, slots=True)
class AnswerDone(Command):
    """It is done, and there is nothing more to say."""

    type: ClassVar[int] = -1002
    request_id: Int64


@dataclass(frozen=True, slots=True)
class AnswerNumbers(Command):
    """Lengths."""

    type: ClassVar[int] = -1003
    request_id: Int64
    numbers: Int64s


@dataclass(frozen=True, slots=True)
class AnswerSegments(Command):
    """Properties of segments; `cut` if more were asked for and there, and did not fit into the frame."""

    type: ClassVar[int] = -1004
    request_id: Int64
    cut: Flag
    segments: PropertiesList


@dataclass(frozen=True, slots=True)
class AnswerAttributes(Command):
    """Those that exist."""

    type: ClassVar[int] = -1005
    request_id: Int64
    attributes: Attributes


@dataclass(frozen=True, slots=True)
class AnswerContent(Command):
    """Bytes of a segment; none at its end, which is final if the segment is sealed."""

    type: ClassVar[int] = -1006
    request_id: Int64
    sealed: Flag
    content: Blob


@dataclass(frozen=True, slots=True)
class AnswerTable(Command):
    """State of a table."""

    type: ClassVar[int] = -1010
    request_id: Int64
    state: TableState


@dataclass(frozen=True, slots=True)
class AnswerChanged(Command):
    """What became of each entry of an update, none for a removal; and the table's state some time behind it."""

    type: ClassVar[int] = -1011
    request_id: Int64
    outcomes: Outcomes
    state: TableState


@dataclass(frozen=True, slots=True)
class AnswerEntries(Command):
    """In the order of the keys that were asked for."""

    type: ClassVar[int] = -1012
    request_id: Int64
    entries: OptionalEntries


@dataclass(frozen=True, slots=True)
class AnswerKeyPage(Command):
    """A page of an iteration over keys."""

    type: ClassVar[int] = -1013
    request_id: Int64
    token: Blob
    keys: Keys


@dataclass(frozen=True, slots=True)
class AnswerEntryPage(Command):
    """A page of an iteration over entries."""

    type: ClassVar[int] = -1014
    request_id: Int64
    token: Blob
    entries: Entries


@dataclass(frozen=True, slots=True)
class AnswerDelta(Command):
    """What changed in a table."""

    type: ClassVar[int] = -1015
    request_id: Int64
    should_clear: Flag
    reached_end: Flag
    last_position: Int64
    entries: Entries


# --- segments ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CallCreate(Command):
    """Answer: AnswerSegments, of the one."""

    type: ClassVar[int] = -1020
    request_id: Int64
    segment: Text
    attributes: AttributeUpdates


@dataclass(frozen=True, slots=True)
class CallInfo(Command):
    """Answer: AnswerSegments, of the one."""

    type: ClassVar[int] = -1021
    request_id: Int64
    segment: Text


@dataclass(frozen=True, slots=True)
class CallSeal(Command):
    """Answer: AnswerNumbers, the final length."""

    type: ClassVar[int] = -1022
    request_id: Int64
    segment: Text


@dataclass(frozen=True, slots=True)
class CallTruncate(Command):
    """Answer: AnswerDone."""

    type: ClassVar[int] = -1023
    request_id: Int64
    segment: Text
    offset: Int64


@dataclass(frozen=True, slots=True)
class CallMerge(Command):
    """Answer: AnswerNumbers, the target's length."""

    type: ClassVar[int] = -1024
    request_id: Int64
    segment: Text
    source: Text
    seal_source: Flag
    attributes: AttributeUpdates


@dataclass(frozen=True, slots=True)
class CallMergeAll(Command):
    """Answer: AnswerNumbers, the target's length behind each source."""

    type: ClassVar[int] = -1025
    request_id: Int64
    segment: Text
    sources: Texts
    seal_sources: Flag


@dataclass(frozen=True, slots=True)
class CallForgetMerged(Command):
    """Answer: AnswerDone."""

    type: ClassVar[int] = -1026
    request_id: Int64
    segment: Text
    sources: Texts


@dataclass(frozen=True, slots=True)
class CallDelete(Command):
    """Answer: AnswerDone."""

    type: ClassVar[int] = -1027
    request_id: Int64
    segment: Text


@dataclass(frozen=True, slots=True)
class CallList(Command):
    """Segments of one container. Answer: AnswerSegments."""

    type: ClassVar[int] = -1028
    request_id: Int64
    container_id: Int32
    prefix: Text
    start_after: Text
    limit: Int32


@dataclass(frozen=True, slots=True)
class CallFlush(Command):
    """Of one container. Answer: AnswerDone."""

    type: ClassVar[int] = -1029
    request_id: Int64
    container_id: Int32


@dataclass(frozen=True, slots=True)
class CallAttributes(Command):
    """Answer: AnswerAttributes. Without keys it is of all attributes."""

    type: ClassVar[int] = -1030
    request_id: Int64
    segment: Text
    keys: OptionalBlobs


@dataclass(frozen=True, slots=True)
class CallUpdateAttributes(Command):
    """Answer: AnswerDone."""

    type: ClassVar[int] = -1031
    request_id: Int64
    segment: Text
    attributes: AttributeUpdates


@dataclass(frozen=True, slots=True)
class CallAppend(Command):
    """Answer: AnswerNumbers, the length behind it. Appends of a segment are made in the order in which they come."""

    type: ClassVar[int] = -1032
    request_id: Int64
    segment: Text
    offset: OptionalInt64
    events: OptionalInt64
    seal: Flag
    attributes: AttributeUpdates
    data: Blob


@dataclass(frozen=True, slots=True)
class CallRead(Command):
    """What is there from `offset` on, up to `length_max` bytes. Answer: AnswerContent."""

    type: ClassVar[int] = -1033
    request_id: Int64
    segment: Text
    offset: Int64
    length_max: Int32


@dataclass(frozen=True, slots=True)
class CallBarrier(Command):
    """Answer: AnswerNumbers, the length, when all appends before it are stored or refused."""

    type: ClassVar[int] = -1034
    request_id: Int64
    segment: Text


# --- tables --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CallCreateTable(Command):
    """Answer: AnswerDone."""

    type: ClassVar[int] = -1040
    request_id: Int64
    segment: Text
    key_length: Int32


@dataclass(frozen=True, slots=True)
class CallDeleteTable(Command):
    """Answer: AnswerDone."""

    type: ClassVar[int] = -1041
    request_id: Int64
    segment: Text
    must_be_empty: Flag


@dataclass(frozen=True, slots=True)
class CallOpenTable(Command):
    """Answer: AnswerTable."""

    type: ClassVar[int] = -1042
    request_id: Int64
    segment: Text


@dataclass(frozen=True, slots=True)
class CallUpdateTable(Command):
    """Answer: AnswerChanged. Changes of a table are made in the order in which they come.

    With `each` the entries are judged one by one.
    """

    type: ClassVar[int] = -1043
    request_id: Int64
    segment: Text
    offset: OptionalInt64
    each: Flag
    entries: Entries


@dataclass(frozen=True, slots=True)
class CallRemoveKeys(Command):
    """Answer: AnswerChanged."""

    type: ClassVar[int] = -1044
    request_id: Int64
    segment: Text
    offset: OptionalInt64
    keys: Keys


@dataclass(frozen=True, slots=True)
class CallGet(Command):
    """Answer: AnswerEntries."""

    type: ClassVar[int] = -1045
    request_id: Int64
    segment: Text
    keys: Blobs


@dataclass(frozen=True, slots=True)
class CallReadPage(Command):
    """Answer: AnswerEntryPage with `values`, else AnswerKeyPage; with fewer than `count` if more fit in no frame."""

    type: ClassVar[int] = -1046
    request_id: Int64
    segment: Text
    values: Flag
    count: Int32
    token: Blob
    first: OptionalBlob
    last: OptionalBlob


@dataclass(frozen=True, slots=True)
class CallReadDelta(Command):
    """Answer: AnswerDelta."""

    type: ClassVar[int] = -1047
    request_id: Int64
    segment: Text
    position: Int64
    count: Int32


SegmentCall: TypeAlias = (
    CallCreate
    | CallInfo
    | CallSeal
    | CallTruncate
    | CallMerge
    | CallMergeAll
    | CallForgetMerged
    | CallDelete
    | CallList
    | CallFlush
    | CallAttributes
    | CallUpdateAttributes
    | CallAppend
    | CallRead
    | CallBarrier
)
TableCall: TypeAlias = (
    CallCreateTable
    | CallDeleteTable
    | CallOpenTable
    | CallUpdateTable
    | CallRemoveKeys
    | CallGet
    | CallReadPage
    | CallReadDelta
)
StoreCall: TypeAlias = SegmentCall | TableCall
STORE_CALL_TYPES: Final[frozenset[int]] = frozenset(
    (OpenStoreCalls.type, *(call.type for call in get_args(StoreCall)))
)
"""What a controller sends."""
