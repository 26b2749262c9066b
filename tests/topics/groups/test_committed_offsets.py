"""The bytes of committed offsets, and what is read of the table after restarts, failures and callers that leave."""

import asyncio
from asyncio import Future
from collections.abc import Sequence
from contextlib import suppress
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segmentstore.contracts.errors import ContainerStoppedError, CorruptedDataError
from segmentstore.contracts.tables import KEY_BYTES_MAX, TableEntry
from segmentstore.topics.groups.committed_offsets import (
    OFFSETS_TABLE,
    CommittedOffset,
    CommittedOffsets,
    TopicPartition,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
    fits_in_a_key,
)
from tests.reference.memory_tables import MemoryTable, MemoryTables

ID = UUID("00112233-4455-6677-8899-aabbccddeeff")
PLACE = TopicPartition("topic", 1)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=30)


def an_offset(offset: int, metadata: str | None = None) -> CommittedOffset:
    return CommittedOffset(
        offset=offset, leader_epoch=-1, metadata=metadata, commit_time_ms=5, topic_id=ID
    )


def always() -> None:
    return


def test_the_bytes_are_these() -> None:
    """Golden: what is stored has to be read by every later version."""
    key = encode_key("g", TopicPartition("t", 258))
    assert key.hex() == "01" + "0001" + "67" + "0001" + "74" + "00000102"
    value = encode_value(CommittedOffset(7, -1, "é", 1_700_000_000_000, ID))
    assert value.hex() == (
        "01" + "0000000000000007" + "ffffffff" + "0000018bcfe56800" + ID.hex + "01" + "c3a9"
    )
    assert encode_value(an_offset(0)).hex().endswith(ID.hex + "00")


@given(TEXTS, TEXTS, st.integers(0, (1 << 31) - 1))
def test_keys_come_back(group: str, topic: str, partition: int) -> None:
    place = TopicPartition(topic, partition)
    assert decode_key(encode_key(group, place)) == (group, place)


@given(
    st.integers(0, (1 << 63) - 1),
    st.integers(-1, (1 << 31) - 1),
    st.none() | TEXTS,
    st.integers(0, (1 << 62)),
)
def test_values_come_back(offset: int, epoch: int, metadata: str | None, time_ms: int) -> None:
    value = CommittedOffset(offset, epoch, metadata, time_ms, ID)
    assert decode_value(encode_value(value)) == value


@given(st.binary(max_size=60))
def test_other_bytes_are_refused_or_are_what_they_say(content: bytes) -> None:
    with suppress(CorruptedDataError):
        assert encode_key(*decode_key(content)) == content
    with suppress(CorruptedDataError):
        assert encode_value(decode_value(content)) == content


def test_names_fit_exactly_into_a_key() -> None:
    longest = KEY_BYTES_MAX - 9
    assert fits_in_a_key("g" * (longest - 1), "t")
    assert len(encode_key("g" * (longest - 1), TopicPartition("t", 0))) == KEY_BYTES_MAX
    assert not fits_in_a_key("g" * longest, "t")
    assert not fits_in_a_key("\ud800", "t")


async def test_what_was_committed_is_there_after_a_restart() -> None:
    tables = MemoryTables()
    offsets = CommittedOffsets(tables=tables)
    await offsets.load()
    await offsets.commit("g", {PLACE: an_offset(1)}, permit=always)
    await offsets.commit("g", {PLACE: an_offset(2, "")}, permit=always)
    await offsets.commit("h", {TopicPartition("other", 0): an_offset(3)}, permit=always)
    again = CommittedOffsets(tables=tables.restarted(), entries_per_read=1)
    for each in (offsets, again):
        await each.load()
        assert sorted(each.group_ids()) == ["g", "h"]
        assert await each.read("g") == {PLACE: an_offset(2, "")}
        assert await each.read("g", [PLACE, TopicPartition("topic", 0)]) == {
            PLACE: an_offset(2, "")
        }
        assert await each.read("h", [PLACE]) == {}
        assert await each.read("unknown") == {}
        assert len(each) == 2
        each.check()


async def test_what_is_not_permitted_changes_nothing() -> None:
    offsets = CommittedOffsets(tables=MemoryTables())
    await offsets.load()

    def never() -> None:
        raise PermissionError

    with pytest.raises(PermissionError):
        await offsets.commit("g", {PLACE: an_offset(1)}, permit=never)
    assert not offsets.has_offsets("g")
    await offsets.commit("g", {PLACE: an_offset(1)}, permit=always)
    with pytest.raises(PermissionError):
        await offsets.remove("g", permit=never)
    assert await offsets.read("g") == {PLACE: an_offset(1)}


async def test_removed_offsets_are_gone_after_a_restart_too() -> None:
    tables = MemoryTables()
    offsets = CommittedOffsets(tables=tables)
    await offsets.load()
    await offsets.commit("g", {PLACE: an_offset(1)}, permit=always)
    await offsets.remove("g", permit=always)
    await offsets.remove("g", permit=always)
    assert (await offsets.read("g"), list(offsets.group_ids()), len(offsets)) == ({}, [], 0)
    again = CommittedOffsets(tables=tables.restarted())
    await again.load()
    assert list(again.group_ids()) == []


async def test_a_commit_whose_caller_left_takes_place() -> None:
    offsets = CommittedOffsets(tables=MemoryTables())
    await offsets.load()
    commit = asyncio.ensure_future(offsets.commit("g", {PLACE: an_offset(1)}, permit=always))
    while not offsets.has_offsets("g"):
        await asyncio.sleep(0)
    commit.cancel()
    await asyncio.gather(commit, return_exceptions=True)
    async with asyncio.timeout(60):
        while await offsets.read("g") != {PLACE: an_offset(1)}:
            await asyncio.sleep(0)


async def test_more_than_a_batch_of_offsets_is_committed_read_and_removed() -> None:
    offsets = CommittedOffsets(tables=MemoryTables())
    await offsets.load()
    many = {TopicPartition("t", number): an_offset(number) for number in range(2_500)}
    await offsets.commit("g", many, permit=always)
    assert await offsets.read("g") == many
    await offsets.remove("g", permit=always)
    assert await offsets.read("g") == {}


async def test_an_update_that_fails_leaves_names_that_read_as_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    offsets = CommittedOffsets(tables=MemoryTables())
    await offsets.load()

    def fail(self: MemoryTable, entries: Sequence[TableEntry]) -> "Future[Sequence[int]]":
        future: Future[Sequence[int]] = asyncio.get_running_loop().create_future()
        future.set_exception(ContainerStoppedError("stopped"))
        return future

    with monkeypatch.context() as patch:
        patch.setattr(MemoryTable, "update", fail)
        with pytest.raises(ContainerStoppedError):
            await offsets.commit("g", {PLACE: an_offset(1)}, permit=always)
    assert await offsets.read("g") == {}
    await offsets.remove("g", permit=always)
    assert not offsets.has_offsets("g")


async def test_a_removal_that_fails_keeps_the_names(monkeypatch: pytest.MonkeyPatch) -> None:
    offsets = CommittedOffsets(tables=MemoryTables())
    await offsets.load()
    await offsets.commit("g", {PLACE: an_offset(1)}, permit=always)

    def fail(self: MemoryTable, keys: object) -> "Future[None]":
        future: Future[None] = asyncio.get_running_loop().create_future()
        future.set_exception(ContainerStoppedError("stopped"))
        return future

    with monkeypatch.context() as patch:
        patch.setattr(MemoryTable, "remove", fail)
        with pytest.raises(ContainerStoppedError):
            await offsets.remove("g", permit=always)
    assert await offsets.read("g") == {PLACE: an_offset(1)}
    offsets.check()


async def test_bytes_that_are_no_offset_are_told() -> None:
    tables = MemoryTables()
    offsets = CommittedOffsets(tables=tables)
    await offsets.load()
    async with tables.open_table(OFFSETS_TABLE) as table:
        await table.update([TableEntry(b"\x01nonsense", b"")])
    with pytest.raises(CorruptedDataError):
        await offsets.load()
