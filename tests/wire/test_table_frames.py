"""Frames with a single key say the same whether the general codec reads and writes them or not."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from segmentstore.codec.wire_protocol.command import FRAME_HEADER
from segmentstore.codec.wire_protocol.tables import (
    NO_TABLE_OFFSET,
    ReadTable,
    TableEntriesUpdated,
    TableRead,
    UpdateTableEntries,
)
from segmentstore.contracts.tables import NOT_EXISTS, TableEntry, TableKey
from segmentstore.wire.single_key_frames import (
    KEY_AT,
    SameShapeUpdates,
    encode_single_read,
    encode_single_updates,
    read_named_table,
    read_request_id,
    read_single_key,
    read_single_update,
)

HEADER_BYTES = 8
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
TEXT = st.text(max_size=12)
KEYS = st.binary(min_size=1, max_size=40)
ENTRIES = st.builds(TableEntry, KEYS, st.binary(max_size=60), INT64)
UPDATES = st.builds(UpdateTableEntries, INT64, TEXT, TEXT, st.tuples(ENTRIES))
LOOK_UPS = st.builds(ReadTable, INT64, TEXT, TEXT, st.tuples(st.builds(TableKey, KEYS, INT64)))


def payload_of(command: ReadTable | UpdateTableEntries) -> bytes:
    return command.encode()[HEADER_BYTES:]


def entry_of(payload: bytes) -> TableEntry | None:
    named = read_named_table(payload)
    return None if named is None else read_single_update(payload, named.end)


def key_of(payload: bytes) -> bytes | None:
    named = read_named_table(payload)
    assert named is not None
    end = read_single_key(payload, named.end)
    return None if end is None else payload[named.end + KEY_AT : end]


@given(LOOK_UPS)
def test_a_look_up_is_read_as_the_codec_reads_it(command: ReadTable) -> None:
    payload = payload_of(command)
    named = read_named_table(payload)
    assert named is not None
    assert (read_request_id(payload), named.segment) == (command.request_id, command.segment)
    assert key_of(payload) == command.keys[0].key


@given(LOOK_UPS, st.data())
def test_a_look_up_that_is_cut_anywhere_behind_its_name_is_left_to_the_codec(
    command: ReadTable, data: st.DataObject
) -> None:
    payload = payload_of(command)
    named = read_named_table(payload)
    assert named is not None
    assert key_of(payload[: data.draw(st.integers(named.end, len(payload) - 1))]) is None


@given(UPDATES)
def test_an_update_is_read_as_the_codec_reads_it_but_for_its_token(
    command: UpdateTableEntries,
) -> None:
    payload = payload_of(command)
    named = read_named_table(payload)
    assert named is not None
    assert named.begins(payload)
    assert (read_request_id(payload), named.segment) == (command.request_id, command.segment)
    assert read_single_update(payload, named.end) == command.entries[0]


@given(UPDATES)
def test_an_update_without_a_table_offset_has_none(command: UpdateTableEntries) -> None:
    assert entry_of(payload_of(command)[:-8]) == command.entries[0]


@given(UPDATES, INT64.filter(lambda offset: offset != NO_TABLE_OFFSET))
def test_an_update_with_a_table_offset_is_left_to_the_codec(
    command: UpdateTableEntries, offset: int
) -> None:
    assert entry_of(payload_of(replace(command, table_offset=offset))) is None


@given(UPDATES, TEXT, TEXT)
def test_another_name_or_token_is_seen(command: UpdateTableEntries, name: str, token: str) -> None:
    named = read_named_table(payload_of(command))
    assert named is not None
    other = replace(command, segment=name, delegation_token=token, entries=())
    same = (name, token) == (command.segment, command.delegation_token)
    assert named.begins(payload_of(other)) == same


@given(LOOK_UPS, st.none() | ENTRIES)
def test_a_reply_is_written_as_the_codec_writes_it(
    command: ReadTable, found: TableEntry | None
) -> None:
    payload, key = payload_of(command), command.keys[0].key
    named = read_named_table(payload)
    assert named is not None
    entry = TableEntry(key, b"", NOT_EXISTS) if found is None else replace(found, key=key)
    expected = TableRead(command.request_id, command.segment, (entry,)).encode()
    asked = payload[named.end : read_single_key(payload, named.end)]
    parts = encode_single_read(payload[:8], named.name, asked, found and entry)
    assert b"".join(parts) == expected


@given(st.lists(st.tuples(INT64, INT64), max_size=5))
def test_the_answers_to_updates_are_written_as_the_codec_writes_them(
    answers: list[tuple[int, int]],
) -> None:
    expected = b"".join(
        TableEntriesUpdated(request_id, (version,)).encode() for request_id, version in answers
    )
    ids, versions = [each for each, _ in answers], [each for _, each in answers]
    assert encode_single_updates(ids, versions) == expected


def alike_of(command: UpdateTableEntries, *, with_offset: bool) -> tuple[SameShapeUpdates, bytes]:
    """What those like it have in common, and the frame of it."""
    payload = payload_of(command)
    if not with_offset:
        payload = payload[:-8]
    named = read_named_table(payload)
    assert named is not None
    entry = read_single_update(payload, named.end)
    assert entry is not None
    return SameShapeUpdates(named, entry, payload), FRAME_HEADER.pack(
        command.type, len(payload)
    ) + payload


@given(UPDATES, st.lists(st.tuples(INT64, INT64), min_size=1, max_size=5), st.booleans(), st.data())
def test_updates_of_the_same_lengths_are_read_in_one_go_as_the_codec_reads_them(
    command: UpdateTableEntries,
    others: list[tuple[int, int]],
    with_offset: bool,
    data: st.DataObject,
) -> None:
    alike, frame = alike_of(command, with_offset=with_offset)
    (first,) = command.entries
    sent = [
        replace(
            command,
            request_id=request_id,
            entries=(
                TableEntry(
                    data.draw(st.binary(min_size=len(first.key), max_size=len(first.key))),
                    data.draw(st.binary(min_size=len(first.value), max_size=len(first.value))),
                    version,
                ),
            ),
        )
        for request_id, version in others
    ]
    frames = [alike_of(each, with_offset=with_offset)[1] for each in sent]
    assert {len(each) for each in frames} == {alike.frame_bytes} == {len(frame)}
    received = memoryview(b"before" + b"".join(frames) + frame[:-1])
    ids, entries = alike.read(received, 6, len(received), count=100)
    assert ids == [each.request_id for each in sent]
    assert entries == [each.entries[0] for each in sent]
    assert alike.entry_bytes == len(first.key) + len(first.value)
    most = data.draw(st.integers(0, len(sent)))
    assert alike.read(received, 6, len(received), count=most) == (ids[:most], entries[:most])


@settings(deadline=None)
@given(UPDATES, st.booleans(), st.data())
def test_an_update_that_differs_in_anything_but_its_values_is_not_read_with_the_others(
    command: UpdateTableEntries, with_offset: bool, data: st.DataObject
) -> None:
    alike, frame = alike_of(command, with_offset=with_offset)
    (entry,) = command.entries
    named = read_named_table(frame[HEADER_BYTES:])
    assert named is not None
    key_at = HEADER_BYTES + named.end + KEY_AT
    free = [
        range(HEADER_BYTES, HEADER_BYTES + 8),
        range(key_at, key_at + len(entry.key) + 8),
        range(key_at + len(entry.key) + 16, key_at + len(entry.key) + 16 + len(entry.value)),
    ]
    fixed = [at for at in range(len(frame)) if not any(at in each for each in free)]
    damaged = bytearray(frame)
    damaged[data.draw(st.sampled_from(fixed))] ^= data.draw(st.integers(1, 255))
    received = memoryview(frame + damaged + frame)
    assert alike.read(received, 0, len(received), count=9) == ([command.request_id], [entry])


@settings(deadline=None)
@given(UPDATES, st.data())
def test_a_frame_that_is_cut_anywhere_before_the_offset_is_left_to_the_codec(
    command: UpdateTableEntries, data: st.DataObject
) -> None:
    payload = payload_of(command)[:-8]
    cut = data.draw(st.integers(0, len(payload) - 1))
    assert entry_of(payload[:cut]) is None


def test_other_counts_of_keys_and_contradicting_lengths_are_left_to_the_codec() -> None:
    key = TableKey(b"k", 1)
    for keys in ((), (key, key), (TableKey(b"", 1),)):
        assert key_of(payload_of(ReadTable(1, "s", "", keys))) is None
    good = bytearray(payload_of(ReadTable(1, "s", "", (key,))))
    assert key_of(bytes(good)) == b"k"
    good[20] ^= 1  # the outer length of the key
    assert key_of(bytes(good)) is None
    value = bytearray(payload_of(UpdateTableEntries(1, "s", "", (TableEntry(b"k", b"v"),))))
    value[-13] ^= 1  # the length of the value
    assert entry_of(bytes(value)) is None
