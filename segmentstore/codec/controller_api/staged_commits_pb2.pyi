# mypy: disable-error-code="type-arg, no-untyped-def"
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BeginStageRequest(_message.Message):
    __slots__ = ("scope", "stream", "lease_ms")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    scope: str
    stream: str
    lease_ms: int
    def __init__(self, scope: _Optional[str] = ..., stream: _Optional[str] = ..., lease_ms: _Optional[int] = ...) -> None: ...

class StageRange(_message.Message):
    __slots__ = ("segment_id", "low", "high")
    SEGMENT_ID_FIELD_NUMBER: _ClassVar[int]
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    segment_id: int
    low: float
    high: float
    def __init__(self, segment_id: _Optional[int] = ..., low: _Optional[float] = ..., high: _Optional[float] = ...) -> None: ...

class BeginStageResponse(_message.Message):
    __slots__ = ("transaction_id", "ranges")
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    transaction_id: bytes
    ranges: _containers.RepeatedCompositeFieldContainer[StageRange]
    def __init__(self, transaction_id: _Optional[bytes] = ..., ranges: _Optional[_Iterable[_Union[StageRange, _Mapping]]] = ...) -> None: ...

class CommitStagesRequest(_message.Message):
    __slots__ = ("scope", "stream", "application_id", "version", "transaction_ids", "forgettable")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    APPLICATION_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_IDS_FIELD_NUMBER: _ClassVar[int]
    FORGETTABLE_FIELD_NUMBER: _ClassVar[int]
    scope: str
    stream: str
    application_id: str
    version: int
    transaction_ids: _containers.RepeatedScalarFieldContainer[bytes]
    forgettable: bool
    def __init__(self, scope: _Optional[str] = ..., stream: _Optional[str] = ..., application_id: _Optional[str] = ..., version: _Optional[int] = ..., transaction_ids: _Optional[_Iterable[bytes]] = ..., forgettable: _Optional[bool] = ...) -> None: ...

class CommitStagesResponse(_message.Message):
    __slots__ = ("duplicate", "completed", "transaction_ids")
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_IDS_FIELD_NUMBER: _ClassVar[int]
    duplicate: bool
    completed: bool
    transaction_ids: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, duplicate: _Optional[bool] = ..., completed: _Optional[bool] = ..., transaction_ids: _Optional[_Iterable[bytes]] = ...) -> None: ...

class LastVersionRequest(_message.Message):
    __slots__ = ("scope", "stream", "application_id")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    APPLICATION_ID_FIELD_NUMBER: _ClassVar[int]
    scope: str
    stream: str
    application_id: str
    def __init__(self, scope: _Optional[str] = ..., stream: _Optional[str] = ..., application_id: _Optional[str] = ...) -> None: ...

class LastVersionResponse(_message.Message):
    __slots__ = ("known", "version")
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    known: bool
    version: int
    def __init__(self, known: _Optional[bool] = ..., version: _Optional[int] = ...) -> None: ...
