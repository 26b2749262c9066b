"""Hypothesis strategies: any message of any spoken version, made from the fields that the message declares."""

from dataclasses import fields
from types import UnionType
from typing import Annotated, Union, cast, get_args, get_origin, get_type_hints
from uuid import UUID

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from segmentstore.codec.kafka_protocol.api_table import APIS
from segmentstore.codec.kafka_protocol.fields import INT8, INT16, INT32, INT64, RECORDS, Form
from segmentstore.codec.kafka_protocol.structure import Structure, Versions, may_be_null

TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)
BYTES = st.binary(max_size=30)

_OF_FORM: dict[int, SearchStrategy[object]] = {
    id(INT8): st.integers(-(1 << 7), (1 << 7) - 1),
    id(INT16): st.integers(-(1 << 15), (1 << 15) - 1),
    id(INT32): st.integers(-(1 << 31), (1 << 31) - 1),
    id(INT64): st.integers(-(1 << 63), (1 << 63) - 1),
    id(RECORDS): st.one_of(st.none(), BYTES, st.just(bytes(range(256)) * 20)),
}

SPOKEN: list[tuple[type[Structure], int]] = [
    (kind, version)
    for api in APIS.values()
    for version in range(api.oldest, api.newest + 1)
    for kind in (api.request, api.response)
]
"""Every message in every version."""


def messages(kind: type[Structure], version: int) -> SearchStrategy[Structure]:
    """Any message of the class; fields that the version does not have are at their defaults."""
    hints = get_type_hints(kind, include_extras=True)
    present: dict[str, SearchStrategy[object]] = {}
    for field in fields(kind):  # type: ignore[arg-type]  # every message is a dataclass
        notes = get_args(hints[field.name]) if get_origin(hints[field.name]) is Annotated else ()
        versions = [each for each in notes if isinstance(each, Versions)]
        if not versions or versions[0].contain(version):
            present[field.name] = _values(hints[field.name], version)
    return cast(SearchStrategy[Structure], st.builds(kind, **present))


def _values(hint: object, version: int) -> SearchStrategy[object]:
    notes: list[object] = []
    if get_origin(hint) is Annotated:
        hint, *notes = get_args(hint)
        for note in notes:
            if isinstance(note, Form):
                return _OF_FORM[id(note)]
    if get_origin(hint) in (Union, UnionType):
        (choice,) = [each for each in get_args(hint) if each is not type(None)]
        if not may_be_null(notes, version):
            return _values(choice, version)
        return st.one_of(st.none(), _values(choice, version))
    if get_origin(hint) is tuple:
        return st.lists(_values(get_args(hint)[0], version), max_size=3).map(tuple)
    if hint is bool:
        return st.booleans()
    if hint is UUID:
        return st.uuids()
    if hint is str:
        return TEXTS
    if hint is bytes:
        return BYTES
    return messages(cast(type[Structure], hint), version)
