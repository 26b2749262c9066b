"""A message, or a part of one: a dataclass whose annotated fields, in order, are its bytes.

- The fields are the format: nothing else describes it, and reading and writing walk the same list.
- A field that only some versions have says so by `Versions(since, until)`. In other versions it takes no bytes and has
  its default when read. One that may be null in some versions only says so by `NullSince(since)`.
- Behind the last field of a message nothing may follow, but in requests of flexible versions (`frames.py`).
- From `flexible_since` on a message and all that is in it has the compact fields of `compact_fields.py`, and tagged
  fields behind its own.

The layout of a class in a version is worked out once.
"""

from collections.abc import Callable, Iterable
from dataclasses import MISSING, dataclass, fields
from types import UnionType
from typing import (
    Annotated,
    ClassVar,
    Final,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)
from uuid import UUID

from segmentstore.codec.kafka_protocol.compact_fields import (
    COMPACT_BYTES,
    COMPACT_NULLABLE_STRING,
    COMPACT_RECORDS,
    COMPACT_STRING,
    compact_array_of,
    skip_tagged_fields,
    write_no_tagged_fields,
)
from segmentstore.codec.kafka_protocol.fields import (
    BOOL,
    BYTES,
    NULLABLE_BYTES,
    NULLABLE_STRING,
    RECORDS,
    STRING,
    UUID_FORM,
    Buffer,
    Form,
    KafkaProtocolError,
    MessageReader,
    MessageWriter,
    array_of,
)


@dataclass(frozen=True, slots=True)
class Versions:
    """In which versions of its message a field is there."""

    since: int
    until: int | None = None
    """The last of them; None if there is no last one."""

    def contain(self, version: int) -> bool:
        return self.since <= version and (self.until is None or version <= self.until)


@dataclass(frozen=True, slots=True)
class NullSince:
    """From which version of its message on a field may be null."""

    since: int


class Structure:
    """The base class of messages and of what they contain."""

    __slots__ = ()

    flexible_since: ClassVar[int | None] = None
    """Of a message: the first version that is flexible, if one is spoken."""


StructureType = TypeVar("StructureType", bound=Structure)

_LAYOUTS: Final[dict[tuple[type[Structure], int, bool], Form]] = {}


def is_flexible(kind: type[Structure], version: int) -> bool:
    """Whether a message has tagged fields in that version, and its header too."""
    return kind.flexible_since is not None and version >= kind.flexible_since


def encode_structure(value: Structure, version: int) -> list[Buffer]:
    """The bytes of a message, in parts. Raises KafkaProtocolError for a value that its field cannot hold."""
    writer = MessageWriter()
    write_structure(writer, value, version)
    return writer.parts


def write_structure(writer: MessageWriter, value: Structure, version: int) -> None:
    """As encode_structure(), behind what the writer has."""
    kind = type(value)
    _layout(kind, version, flexible=is_flexible(kind, version)).write(writer, value)


def decode_structure(
    kind: type[StructureType],
    content: Buffer,
    version: int,
    *,
    offset: int = 0,
    items_max: int | None = None,
    may_go_on: bool = False,
) -> StructureType:
    """The message that fills the content from `offset` to its end. Raises KafkaProtocolError.

    `items_max`: of all its lists together. `may_go_on`: bytes behind the end are no error.
    """
    reader = MessageReader(content, offset, items_max=items_max)
    value = _layout(kind, version, flexible=is_flexible(kind, version)).read(reader)
    if reader.remaining and not may_go_on:
        raise KafkaProtocolError(
            f"bytes behind the end of a message message={kind.__name__} version={version}"
            f" bytes={reader.remaining}"
        )
    assert isinstance(value, kind), f"a layout reads another class kind={kind} value={value!r:.100}"
    return value


def _layout(kind: type[Structure], version: int, *, flexible: bool) -> Form:
    layout = _LAYOUTS.get((kind, version, flexible))
    if layout is None:
        layout = _work_out(kind, version, flexible=flexible)
        _LAYOUTS[kind, version, flexible] = layout
    return layout


def _work_out(kind: type[Structure], version: int, *, flexible: bool) -> Form:
    present: list[tuple[str, Form]] = []
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):  # type: ignore[arg-type]  # every subclass is a dataclass
        hint = hints[field.name]
        versions = _versions_of(hint)
        if versions is None or versions.contain(version):
            present.append((field.name, _form(hint, version, flexible=flexible)))
        else:
            assert field.default is not MISSING, f"no default {kind.__name__}.{field.name}"
    # The values are of the annotated types by construction; no signature can say so for every class.
    make = cast(Callable[..., Structure], kind)
    readers = [(name, form.read) for name, form in present]
    writers = [(name, form.write) for name, form in present]

    def read(reader: MessageReader) -> Structure:
        return make(**{name: read_field(reader) for name, read_field in readers})

    def write(writer: MessageWriter, value: object) -> None:
        for name, write_field in writers:
            write_field(writer, getattr(value, name))

    bytes_min = sum(form.bytes_min for _, form in present)
    if not flexible:
        return Form(read, write, bytes_min)

    def read_flexible(reader: MessageReader) -> Structure:
        value = read(reader)
        skip_tagged_fields(reader)
        return value

    def write_flexible(writer: MessageWriter, value: object) -> None:
        write(writer, value)
        write_no_tagged_fields(writer)

    return Form(read_flexible, write_flexible, bytes_min + 1)


def _versions_of(hint: object) -> Versions | None:
    if get_origin(hint) is not Annotated:
        return None
    return next((each for each in get_args(hint)[1:] if isinstance(each, Versions)), None)


def may_be_null(notes: Iterable[object], version: int) -> bool:
    """Whether a field with these notes at its type may be null, if its type has None at all."""
    return all(each.since <= version for each in notes if isinstance(each, NullSince))


def _form(hint: object, version: int, *, flexible: bool) -> Form:
    notes: list[object] = []
    if get_origin(hint) is Annotated:
        hint, *notes = get_args(hint)
        forms = [each for each in notes if isinstance(each, Form)]
        if forms:
            return COMPACT_RECORDS if flexible and forms[0] is RECORDS else forms[0]
    nullable = False
    if get_origin(hint) in (Union, UnionType):
        choices = [each for each in get_args(hint) if each is not type(None)]
        assert len(choices) == 1, f"a field has one type or None hint={hint}"
        hint, nullable = choices[0], may_be_null(notes, version)
    if get_origin(hint) is tuple:
        item, _ = get_args(hint)
        item_form = _form(item, version, flexible=flexible)
        if flexible:
            return compact_array_of(item_form, nullable=nullable)
        return array_of(item_form, nullable=nullable)
    if hint is str:
        if flexible:
            return COMPACT_NULLABLE_STRING if nullable else COMPACT_STRING
        return NULLABLE_STRING if nullable else STRING
    if hint is bytes:
        if flexible:
            assert not nullable, "no bytes that can be null have a compact form here"
            return COMPACT_BYTES
        return NULLABLE_BYTES if nullable else BYTES
    assert not nullable, f"no field of this type can be null hint={hint}"
    if hint is bool:
        return BOOL
    if hint is UUID:
        return UUID_FORM
    assert isinstance(hint, type), f"no field has this type hint={hint}"
    assert issubclass(hint, Structure), f"no field has this type hint={hint}"
    return _layout(hint, version, flexible=flexible)
