"""What every TableApi keeps (segmentstore/contracts/tables.py). Subclass TableSuite and hand in a fixture `tables`.

The tests speak the door alone, so that the memory tables of other rooms' tests can stand in for the real ones.
"""

import pytest

from segmentstore.contracts.errors import (
    AppendTooLargeError,
    BadOffsetError,
    InvalidRequestError,
    SegmentExistsError,
    SegmentNotFoundError,
    TableKeyNotFoundError,
    TableNotEmptyError,
    TableVersionError,
)
from segmentstore.contracts.tables import (
    ENTRY_BYTES_MAX,
    KEY_BYTES_MAX,
    NO_VERSION,
    NOT_EXISTS,
    Table,
    TableApi,
    TableEntry,
    TableKey,
)

RECORD_HEADER_BYTES = 17


def entry(key: bytes, value: bytes, version: int = NO_VERSION) -> TableEntry:
    return TableEntry(key, value, version)


async def value_of(table: Table, key: bytes) -> bytes | None:
    (found,) = await table.get([key])
    return None if found is None else found.value


async def all_entries(
    table: Table, *, count: int = 3, first: bytes | None = None, last: bytes | None = None
) -> list[TableEntry]:
    entries: list[TableEntry] = []
    token = b""
    while True:
        page = await table.read_entries(count=count, token=token, first=first, last=last)
        entries += page.entries
        if not page.token:
            return entries
        assert page.entries, "an empty page ends an iteration for some clients"
        token = page.token


async def all_changes(table: Table, position: int, *, count: int = 3) -> dict[bytes, bytes]:
    """What a client that follows the changes believes at the end."""
    believed: dict[bytes, bytes] = {}
    while True:
        delta = await table.read_delta(position=position, count=count)
        believed.update((each.key, each.value) for each in delta.entries)
        position = delta.last_position
        if delta.reached_end:
            return believed
        assert delta.entries, "an empty page ends the following for some clients"


class TableSuite:
    """The promises of the door."""

    # --- life of a table -------------------------------------------------------------------------

    async def test_a_new_table_is_empty(self, tables: TableApi) -> None:
        await tables.create_table("t")
        async with tables.open_table("t") as table:
            assert (table.name, table.key_length) == ("t", 0)
            info = table.info()
            assert (info.length, info.start_offset, info.entry_count) == (0, 0, 0)
            assert await table.get([b"k"]) == [None]
            assert (await table.read_keys(count=5)).keys == []

    async def test_a_name_is_given_once(self, tables: TableApi) -> None:
        await tables.create_table("t")
        with pytest.raises(SegmentExistsError):
            await tables.create_table("t", key_length=4)

    async def test_a_table_that_does_not_exist_cannot_be_opened(self, tables: TableApi) -> None:
        with pytest.raises(SegmentNotFoundError):
            async with tables.open_table("nobody"):
                pass

    async def test_a_table_with_entries_is_deleted_only_if_that_is_wanted(
        self, tables: TableApi
    ) -> None:
        await tables.create_table("t")
        async with tables.open_table("t") as table:
            await table.update([entry(b"k", b"v")])
        with pytest.raises(TableNotEmptyError):
            await tables.delete_table("t", must_be_empty=True)
        await tables.delete_table("t", must_be_empty=False)
        with pytest.raises(SegmentNotFoundError):
            async with tables.open_table("t"):
                pass

    async def test_an_emptied_table_is_deleted(self, tables: TableApi) -> None:
        await tables.create_table("t")
        async with tables.open_table("t") as table:
            await table.update([entry(b"k", b"v")])
            await table.remove([TableKey(b"k")])
        await tables.delete_table("t", must_be_empty=True)

    async def test_a_recreated_table_has_nothing_of_the_former_one(self, tables: TableApi) -> None:
        await tables.create_table("t")
        async with tables.open_table("t") as table:
            await table.update([entry(b"k", b"old")])
        await tables.delete_table("t", must_be_empty=False)
        await tables.create_table("t")
        async with tables.open_table("t") as table:
            assert await table.get([b"k"]) == [None]
            assert table.info().entry_count == 0

    # --- updates ---------------------------------------------------------------------------------

    async def test_versions_are_the_offsets_of_the_records(self, tables: TableApi) -> None:
        await tables.create_table("t")
        async with tables.open_table("t") as table:
            versions = await table.update([entry(b"a", b"12345"), entry(b"bc", b"")])
            assert versions == [0, RECORD_HEADER_BYTES + 6]
            length = 2 * RECORD_HEADER_BYTES + 8
            assert table.info().length == length
            assert await table.update([entry(b"a", b"6")]) == [length]

    async def test_entries_come_back_in_the_order_asked_for(self, tables: TableApi) -> None:
        await tables.create_table("t")
        async with tables.open_table("t") as table:
            first, second = await table.update([entry(b"a", b"1"), entry(b"b", b"2")])
            expected = [entry(b"b", b"2", second), None, entry(b"a", b"1", first)]
            assert await table.get([b"b", b"x", b"a"]) == expected
            found = table.get_nowait([b"b", b"x", b"a"])
            assert found is None or list(found) == expected

    async def test_an_acknowledged_update_is_readable(self, tables: TableApi) -> None:
        await tables.create_table("t")
        async with tables.open_table("t") as table:
            for number in range(20):
                await table.update([entry(b"k", b"%d" % number)])
                assert await value_of(table, b"k") == b"%d" % number
            assert table.info().entry_count == 1

    async def test_empty_values_are_values(self, tables: TableApi) -> None:
        await tables.create_table("t")
        async with tables.open_table("t") as table:
            await table.update([entry(b"k", b"")])
            assert await value_of(table, b"k") == b""

    async def test_conditional_updates_need_the_present_version(self, tables: TableApi) -> None:
        await tables.create_table("t")
        async with tables.open_table("t") as table:
            (version,) = await table.update([entry(b"k", b"1", NOT_EXISTS)])
            with pytest.raises(TableVersionError) as refusal:
                await table.update([entry(b"k", b"2", NOT_EXISTS)])
            assert refusal.value.current == version
            (newer,) = await table.update([entry(b"k", b"2", version)])
            with pytest.raises(TableVersionError):
                await table.update([entry(b"k", b"3", version)])
            assert newer > version
            assert await value_of(table, b"k") == b"2"

    async def test_a_version_of_a_missing_key_is_refused_as_missing(self, tables: TableApi) -> None:
        await tables.create_table("t")
        async with tables.open_table("t") as table:
            with pytest.raises(TableKeyNotFoundError):
                await table.update([entry(b"k", b"v", 17)])
            with pytest.raises(TableKeyNotFoundError):
                await table.remove([TableKey(b"k", 17)])

    async def test_h64_a_batch_happens_as_a_whole_or_not_at_all(self, tables: TableApi) -> None:
        await tables.create_table("t")
        async with tables.open_table("t") as table:
            await table.update([entry(b"b", b"1")])
            length = table.info().length
            with pytest.raises(TableVersionError):
                await table.update([entry(b"a", b"1"), entry(b"b", b"2", NOT_EXISTS)])
            assert await table.get([b"a"]) == [None]
            assert table.info().length == length

    async def test_h64_a_batch_is_judged_against_what_was_before_it(self, tables: TableApi) -> None:
        await tables.create_table("t")
        async with tables.open_table("t") as table:
            versions = await table.update(
                [entry(b"k", b"1", NOT_EXISTS), entry(b"x", b""), entry(b"k", b"2", NOT_EXISTS)]
            )
            assert sorted(versions) == list(versions)
            assert await table.get([b"k"]) == [entry(b"k", b"2", versions[2])]
            assert table.info().entry_count == 2

    async def test_h64_a_batch_sees_what_was_submitted_before_it(self, tables: TableApi) -> None:
        await tables.create_table("t")
        async with tables.open_table("t") as table:
            first = table.update([entry(b"k", b"1", NOT_EXISTS)])
            second = table.update([entry(b"k", b"2", NOT_EXISTS)])
            third = table.update([entry(b"k", b"3", 0)])
            assert await first == [0]
            with pytest.raises(TableVersionError):
                await second
            await third
            assert await value_of(table, b"k") == b"3"

    async def test_an_offset_makes_a_batch_conditional(self, tables: TableApi) -> None:
        await tables.create_table("t")
        async with tables.open_table("t") as table:
            await table.update([entry(b"k", b"1")], offset=0)
            with pytest.raises(BadOffsetError):
                await table.update([entry(b"k", b"2")], offset=0)
            with pytest.raises(BadOffsetError):
                await table.remove([TableKey(b"k")], offset=1)
            await table.remove([TableKey(b"k")], offset=table.info().length)
            assert await table.get([b"k"]) == [None]

    async def test_updates_submitted_together_are_judged_one_after_the_other(
        self, tables: TableApi
    ) -> None:
        await tables.create_table("t")
        async with tables.open_table("t") as table:
            (old,) = await table.update([entry(b"k", b"old")])
            size = RECORD_HEADER_BYTES
            outcomes = await table.update_each(
                [
                    entry(b"k", b"1", old),
                    entry(b"k", b"2", old),
                    entry(b"new", b"", NOT_EXISTS),
                    entry(b"gone", b"", 7),
                    entry(b"new", b"again", NOT_EXISTS),
                    entry(b"k", b"333", old + size + 4),
                    entry(b"new", b"!"),
                ]
            )
            begin = old + size + 4
            assert [each for each in outcomes if isinstance(each, int)] == [
                begin,
                begin + size + 2,
                begin + 2 * size + 5,
                begin + 3 * size + 9,
            ]
            refused = [type(each) for each in outcomes if not isinstance(each, int)]
            assert refused == [TableVersionError, TableKeyNotFoundError, TableVersionError]
            assert table.info().entry_count == 2
            assert table.info().length == begin + 4 * size + 13
            assert await value_of(table, b"k") == b"333"
            assert await value_of(table, b"new") == b"!"
            assert [each.value for each in await all_entries(table)] == [b"333", b"!"]

    async def test_what_is_refused_among_others_leaves_nothing_behind(
        self, tables: TableApi
    ) -> None:
        await tables.create_table("t")
        async with tables.open_table("t") as table:
            await table.update([entry(b"k", b"v")])
            length = table.info().length
            outcomes = await table.update_each([entry(b"k", b"1", 5), entry(b"x", b"2", 6)])
            assert [type(each) for each in outcomes] == [TableVersionError, TableKeyNotFoundError]
            assert table.info().length == length
            assert await table.update([entry(b"k", b"next")]) == [length]

    async def test_updates_submitted_together_see_what_was_submitted_before_them(
        self, tables: TableApi
    ) -> None:
        await tables.create_table("t")
        async with tables.open_table("t") as table:
            first = table.update([entry(b"k", b"1", NOT_EXISTS)])
            second = table.update_each([entry(b"k", b"2", NOT_EXISTS), entry(b"k", b"3", 0)])
            third = table.remove([TableKey(b"k", RECORD_HEADER_BYTES + 2)])
            assert await first == [0]
            outcomes = await second
            assert isinstance(outcomes[0], TableVersionError)
            assert outcomes[1] == RECORD_HEADER_BYTES + 2
            await third
            assert await table.get([b"k"]) == [None]

    async def test_an_entry_that_is_too_long_refuses_all_that_come_with_it(
        self, tables: TableApi
    ) -> None:
        await tables.create_table("t", key_length=2)
        async with tables.open_table("t") as table:
            with pytest.raises(InvalidRequestError):
                await table.update_each([entry(b"ab", b"1"), entry(b"abc", b"2")])
            assert table.info().length == 0

    async def test_a_batch_of_thousands_of_entries(self, tables: TableApi) -> None:
        await tables.create_table("t")
        async with tables.open_table("t") as table:
            entries = [entry(b"%06d" % number, bytes(20)) for number in range(5000)]
            assert len(await table.update(entries)) == 5000
            assert table.info().entry_count == 5000
            assert await value_of(table, b"004999") == bytes(20)

    async def test_the_longest_key_and_the_largest_entry(self, tables: TableApi) -> None:
        await tables.create_table("t")
        async with tables.open_table("t") as table:
            key = b"k" * KEY_BYTES_MAX
            value = b"v" * (ENTRY_BYTES_MAX - len(key))
            await table.update([entry(key, value)])
            assert await value_of(table, key) == value
            assert [each.key for each in (await table.read_keys(count=5)).keys] == [key]

    async def test_what_is_too_long_is_refused(self, tables: TableApi) -> None:
        await tables.create_table("t")
        await tables.create_table("fixed", key_length=4)
        async with tables.open_table("t") as table:
            for wrong in (
                entry(b"", b"v"),
                entry(b"k" * (KEY_BYTES_MAX + 1), b""),
                entry(b"k", bytes(ENTRY_BYTES_MAX)),
            ):
                with pytest.raises((InvalidRequestError, AppendTooLargeError)):
                    await table.update([wrong])
            with pytest.raises(InvalidRequestError):
                await table.remove([TableKey(b"")])
        async with tables.open_table("fixed") as table:
            with pytest.raises(InvalidRequestError):
                await table.update([entry(b"12345", b"v")])

    # --- removals --------------------------------------------------------------------------------

    async def test_a_removed_key_is_gone(self, tables: TableApi) -> None:
        await tables.create_table("t")
        async with tables.open_table("t") as table:
            await table.update([entry(b"a", b"1"), entry(b"b", b"2")])
            await table.remove([TableKey(b"a")])
            assert await table.get([b"a"]) == [None]
            assert table.info().entry_count == 1
            await table.update([entry(b"a", b"3", NOT_EXISTS)])
            assert await value_of(table, b"a") == b"3"

    async def test_removing_a_missing_key_is_no_error_unless_a_version_is_expected(
        self, tables: TableApi
    ) -> None:
        await tables.create_table("t")
        async with tables.open_table("t") as table:
            await table.remove([TableKey(b"k")])
            await table.remove([TableKey(b"k", NOT_EXISTS)])
            assert table.info().entry_count == 0

    async def test_conditional_removals(self, tables: TableApi) -> None:
        await tables.create_table("t")
        async with tables.open_table("t") as table:
            (version,) = await table.update([entry(b"k", b"1")])
            with pytest.raises(TableVersionError):
                await table.remove([TableKey(b"k", version + 1)])
            await table.remove([TableKey(b"k", version)])
            assert await table.get([b"k"]) == [None]

    # --- iterations ------------------------------------------------------------------------------

    async def test_an_iteration_finds_every_entry_once(self, tables: TableApi) -> None:
        await tables.create_table("t")
        async with tables.open_table("t") as table:
            await table.update([entry(b"%d" % number, b"v%d" % number) for number in range(50)])
            await table.remove([TableKey(b"%d" % number) for number in range(0, 50, 7)])
            found = await all_entries(table, count=4)
            expected = {b"%d" % number for number in range(50) if number % 7}
            assert len(found) == len(expected)
            assert {each.key: each.value for each in found} == {key: b"v" + key for key in expected}
            assert await table.get([found[3].key]) == [found[3]]

    async def test_an_iteration_survives_changes_between_its_pages(self, tables: TableApi) -> None:
        await tables.create_table("t")
        async with tables.open_table("t") as table:
            await table.update([entry(b"%02d" % number, b"v") for number in range(0, 40, 2)])
            page = await table.read_keys(count=5)
            found = [each.key for each in page.keys]
            await table.update([entry(b"%02d" % number, b"w") for number in range(1, 40, 4)])
            await table.remove([TableKey(found[-1])])
            while page.token:
                page = await table.read_keys(count=5, token=page.token)
                found += [each.key for each in page.keys]
            assert len(found) == len(set(found))
            assert {b"%02d" % number for number in range(0, 40, 2)} <= set(found)

    async def test_the_fixed_layout_iterates_over_a_range_in_byte_order(
        self, tables: TableApi
    ) -> None:
        await tables.create_table("t", key_length=2)
        async with tables.open_table("t") as table:
            keys = [bytes((high, low)) for high in (0, 127, 128, 255) for low in (0, 1, 254, 255)]
            await table.update([entry(key, key) for key in reversed(keys)])
            found = [each.key for each in await all_entries(table, count=3)]
            assert found == keys
            first, last = bytes((0, 1)), bytes((128, 254))
            ranged = [each.key for each in await all_entries(table, first=first, last=last)]
            assert ranged == [key for key in keys if first <= key <= last]
            assert await all_entries(table, first=b"\xff\xff", last=b"\xff\xff") != []
            assert await all_entries(table, first=b"\x01\x00", last=b"\x02\x00") == []

    async def test_ranges_and_counts_that_make_no_sense_are_refused(self, tables: TableApi) -> None:
        await tables.create_table("t")
        async with tables.open_table("t") as table:
            with pytest.raises(InvalidRequestError):
                await table.read_keys(count=0)
            with pytest.raises(InvalidRequestError):
                await table.read_keys(count=1, first=b"a")

    # --- changes ---------------------------------------------------------------------------------

    async def test_changes_from_the_beginning_are_the_table(self, tables: TableApi) -> None:
        await tables.create_table("t")
        async with tables.open_table("t") as table:
            expected: dict[bytes, bytes] = {}
            for number in range(30):
                key = b"%d" % (number % 11)
                await table.update([entry(key, b"v%d" % number)])
                expected[key] = b"v%d" % number
                if number % 5 == 0:
                    await table.remove([TableKey(key)])
                    del expected[key]
            assert await all_changes(table, 0, count=1000) == expected
            # In pages, a key may have come before its removal was reached.
            assert expected.items() <= (await all_changes(table, 0)).items()

    async def test_changes_from_a_position_are_those_behind_it(self, tables: TableApi) -> None:
        await tables.create_table("t")
        async with tables.open_table("t") as table:
            await table.update([entry(b"a", b"1"), entry(b"b", b"1")])
            delta = await table.read_delta(position=0, count=10)
            assert {each.key for each in delta.entries} == {b"a", b"b"}
            assert (delta.reached_end, delta.should_clear) == (True, False)
            assert delta.last_position == table.info().length
            await table.update([entry(b"b", b"2")])
            delta = await table.read_delta(position=delta.last_position, count=10)
            assert [(each.key, each.value) for each in delta.entries] == [(b"b", b"2")]
            delta = await table.read_delta(position=delta.last_position, count=10)
            assert (list(delta.entries), delta.reached_end) == ([], True)

    async def test_changes_from_behind_the_end_are_those_of_a_table_that_begins_anew(
        self, tables: TableApi
    ) -> None:
        """A client may know a former table of the name, that was longer."""
        await tables.create_table("t")
        async with tables.open_table("t") as table:
            await table.update([entry(b"a", b"1"), entry(b"b", b"1")])
            position = (await table.read_delta(position=0, count=10)).last_position
        await tables.delete_table("t", must_be_empty=False)
        await tables.create_table("t")
        async with tables.open_table("t") as table:
            await table.update([entry(b"c", b"2")])
            delta = await table.read_delta(position=position, count=10)
            assert [(each.key, each.value) for each in delta.entries] == [(b"c", b"2")]
            assert (delta.reached_end, delta.should_clear) == (True, True)
            assert delta.last_position == table.info().length

    async def test_the_fixed_layout_has_no_changes(self, tables: TableApi) -> None:
        await tables.create_table("t", key_length=2)
        async with tables.open_table("t") as table:
            with pytest.raises(InvalidRequestError):
                await table.read_delta(position=0, count=1)
