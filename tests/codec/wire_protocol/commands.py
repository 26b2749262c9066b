"""Hypothesis strategies: any command with any values, made from the fields that the command declares."""

from collections.abc import Mapping
from dataclasses import fields
from typing import cast, get_type_hints

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from segmentstore.codec.wire_protocol import administration, segments, store_calls, tables
from segmentstore.codec.wire_protocol import fields as forms
from segmentstore.codec.wire_protocol.command import Command
from segmentstore.codec.wire_protocol.frames import COMMANDS
from segmentstore.contracts import errors
from segmentstore.contracts.segments import (
    AttributeUpdate,
    AttributeUpdateType,
    SegmentProperties,
)
from segmentstore.contracts.tables import NO_VERSION, TableEntry, TableInfo, TableKey

INT32S = st.integers(-(1 << 31), (1 << 31) - 1)
INT64S = st.integers(-(1 << 63), (1 << 63) - 1)
BYTES = st.binary(max_size=40)
UUIDS = st.binary(min_size=16, max_size=16)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)


def _key(key: bytes, version: int) -> TableKey:
    return TableKey(key, version if key else NO_VERSION)


def _entry(key: bytes, value: bytes, version: int) -> TableEntry:
    return TableEntry(key, value, version if key else NO_VERSION)


def _tuples(items: SearchStrategy[object]) -> SearchStrategy[object]:
    return st.lists(items, max_size=4).map(tuple)


ATTRIBUTE_VALUES: SearchStrategy[object] = st.one_of(INT64S, BYTES)
ERRORS: SearchStrategy[object] = st.one_of(
    st.builds(errors.SegmentNotFoundError, TEXTS),
    st.builds(errors.ContainerStoppedError, TEXTS),
    st.builds(errors.TableVersionError, TEXTS, key=BYTES, expected=INT64S, current=INT64S),
    st.builds(
        errors.BadAttributeUpdateError,
        TEXTS,
        key=BYTES,
        current=st.one_of(st.none(), INT64S, BYTES),
    ),
).map(store_calls.CarriedError.of)
PROPERTIES: SearchStrategy[object] = st.builds(
    SegmentProperties,
    name=TEXTS,
    segment_id=INT64S,
    container_id=INT64S,
    start_offset=INT64S,
    length=INT64S,
    storage_length=INT64S,
    sealed=st.booleans(),
    sealed_in_storage=st.booleans(),
    last_modified_ms=INT64S,
    core_attributes=st.dictionaries(BYTES, ATTRIBUTE_VALUES, max_size=3),
    active=st.booleans(),
    container_down=st.just(""),
)
UPDATES: SearchStrategy[object] = st.builds(
    AttributeUpdate,
    BYTES,
    st.one_of(st.none(), ATTRIBUTE_VALUES),
    st.sampled_from(AttributeUpdateType),
    st.one_of(st.none(), ATTRIBUTE_VALUES),
)


STRATEGIES: Mapping[object, SearchStrategy[object]] = {
    forms.Int8: st.integers(-128, 127),
    forms.Int32: INT32S,
    forms.Int64: INT64S,
    forms.Flag: st.booleans(),
    forms.Text: TEXTS,
    forms.Uuid: UUIDS,
    forms.Blob: BYTES,
    forms.Rest: BYTES,
    forms.Framed: BYTES,
    forms.Texts: _tuples(TEXTS),
    forms.Int64s: _tuples(INT64S),
    segments.AttributeChanges: _tuples(
        st.builds(segments.AttributeChange, UUIDS, st.integers(0, 4), INT64S, INT64S)
    ),
    segments.Sources: _tuples(TEXTS),
    segments.MergedSources: _tuples(st.builds(segments.MergedSource, TEXTS, INT64S)),
    administration.StorageChunks: _tuples(
        st.builds(administration.StorageChunk, INT64S, INT64S, INT64S, TEXTS, st.booleans())
    ),
    store_calls.OptionalInt64: st.one_of(st.none(), INT64S),
    store_calls.OptionalBlob: st.one_of(st.none(), BYTES),
    store_calls.Blobs: _tuples(BYTES),
    store_calls.OptionalBlobs: st.one_of(st.none(), _tuples(BYTES)),
    store_calls.AttributeUpdates: _tuples(UPDATES),
    store_calls.Attributes: _tuples(st.tuples(BYTES, ATTRIBUTE_VALUES)),
    store_calls.PropertiesList: _tuples(PROPERTIES),
    store_calls.TableState: st.builds(TableInfo, TEXTS, INT64S, INT64S, INT64S, INT64S),
    store_calls.StoreError: ERRORS,
    store_calls.Outcomes: _tuples(st.one_of(INT64S, ERRORS)),
    store_calls.OptionalEntries: _tuples(
        st.one_of(st.none(), st.builds(_entry, BYTES, BYTES, INT64S))
    ),
    tables.Keys: _tuples(st.builds(_key, BYTES, INT64S)),
    tables.ClientKeys: _tuples(st.builds(_key, BYTES, INT64S)),
    tables.Entries: _tuples(st.builds(_entry, BYTES, BYTES, INT64S)),
    tables.ClientEntries: _tuples(st.builds(_entry, BYTES, BYTES, INT64S)),
    tables.Iterator: st.builds(tables.IteratorArguments, BYTES, BYTES, BYTES, BYTES),
}


def commands_of(command: type[Command]) -> SearchStrategy[Command]:
    hints = get_type_hints(command, include_extras=True)
    return cast(
        "SearchStrategy[Command]",
        st.builds(command, *(STRATEGIES[hints[field.name]] for field in fields(command))),
    )


any_command: SearchStrategy[Command] = st.sampled_from(
    sorted(COMMANDS.values(), key=lambda command: command.type)
).flatmap(commands_of)
