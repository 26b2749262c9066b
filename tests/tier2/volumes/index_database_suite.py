"""What every index database must do (D1 to D3): subclass IndexDatabaseSuite and give it the fixture `index`."""

from collections.abc import Callable, Iterator
from random import Random

import pytest

from tier2.volumes.index_database import IndexDatabase, NewRow, value_of, with_checksum

FRONT = b"f" * 400
LONG = [FRONT, FRONT + b"a", FRONT + b"b" * 90, FRONT + b"b" * 91, FRONT + b"c" * 3000]
"""Keys that agree in their first 400 bytes, in order."""


def new_rows(*rows: tuple[bytes, bytes]) -> list[NewRow]:
    return [(key, with_checksum(key, value)) for key, value in rows]


class IndexDatabaseSuite:
    """Tests of the door."""

    @pytest.fixture
    def index(self) -> IndexDatabase:
        raise NotImplementedError

    def test_what_was_applied_is_found_and_what_was_removed_is_not(
        self, index: IndexDatabase
    ) -> None:
        index.apply([(b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"c", b""), (b"b", None)])
        assert index.get_many([b"a", b"b", b"c", b"d"]) == [b"3", None, b"", None]
        assert index.get(b"a") == b"3"
        index.apply([(b"a", None), (b"never", None)])
        assert index.get(b"a") is None

    def test_d1_a_batch_that_fails_half_way_changes_nothing(self, index: IndexDatabase) -> None:
        def changes() -> Iterator[tuple[bytes, bytes | None]]:
            yield b"a", b"1"
            raise RuntimeError("the power of thought failed")

        with pytest.raises(RuntimeError):
            index.apply(changes())
        assert index.get(b"a") is None

    def test_a_scan_has_bounds_and_a_limit(self, index: IndexDatabase) -> None:
        index.apply([(b"k%02d" % number, b"%d" % number) for number in range(20)])
        keys = [b"k%02d" % number for number in range(20)]
        assert [key for key, _ in index.scan(b"k05", b"k10", 100)] == keys[5:10]
        assert [key for key, _ in index.scan(b"k05", b"k10", 2)] == keys[5:7]
        assert [key for key, _ in index.scan(b"", b"\xff", 100)] == keys
        assert list(index.scan(b"k05", b"k05", 100)) == []
        assert list(index.scan(b"k10", b"k05", 100)) == []
        assert list(index.scan(b"k05", b"k10", 0)) == []

    def test_keys_beyond_400_bytes_keep_their_order(self, index: IndexDatabase) -> None:
        index.apply([(key, b"%d" % place) for place, key in enumerate(LONG)])
        index.apply([(b"e", b"before"), (b"g", b"behind")])
        assert [key for key, _ in index.scan(b"", b"\xff", 100)] == [b"e", *LONG, b"g"]
        for place, key in enumerate(LONG):
            assert index.get(key) == b"%d" % place
            assert [one for one, _ in index.scan(key, b"\xff", 1)] == [key]
            assert [one for one, _ in index.scan(key + b"\0", b"\xff", 1)] == [
                [*LONG, b"g"][place + 1]
            ]
            assert [one for one, _ in index.scan(b"f", key, 100)] == LONG[:place]
        index.apply([(LONG[2], None)])
        assert index.get(LONG[2]) is None
        assert [key for key, _ in index.scan(b"f", b"g", 100)] == [*LONG[:2], *LONG[3:]]

    @pytest.mark.parametrize("seed", range(3))
    def test_any_history_reads_like_a_sorted_dictionary(
        self, index: IndexDatabase, seed: int
    ) -> None:
        random = Random(seed)
        model: dict[bytes, bytes] = {}
        keys = [random.choice((b"a", b"b", FRONT)) + random.randbytes(n % 60) for n in range(80)]
        for _ in range(60):
            batch: list[tuple[bytes, bytes | None]] = [
                (random.choice(keys), random.choice((None, random.randbytes(5))))
                for _ in range(random.randrange(6))
            ]
            index.apply(batch)
            for key, value in batch:
                model.pop(key, None)
                if value is not None:
                    model[key] = value
            first, before = sorted(random.choice(keys)[:401] for _ in range(2))
            expected = sorted((k, v) for k, v in model.items() if first <= k < before)
            limit = random.randrange(1, 30)
            assert list(index.scan(first, before, limit)) == expected[:limit]
            for key in random.sample(keys, 5):
                assert index.get_certain(key) == index.get(key) == model.get(key)

    def test_rows_are_added_where_there_are_none_and_the_others_are_given_back(
        self, index: IndexDatabase
    ) -> None:
        assert list(index.add(new_rows((b"b", b"1"), (b"d", b"2"), (LONG[3], b"3")))) == []
        again = [(b"a", b"4"), (b"b", b"5"), (LONG[2], b"6"), (LONG[3], b"7"), (b"z", b"8")]
        present = [(row[0], bytes(value_of(row))) for row in index.add(new_rows(*again))]
        assert present == [(b"b", b"5"), (LONG[3], b"7")]
        assert list(index.add([])) == []
        assert [value for _, value in index.scan(b"", b"\xff", 100)] == [
            *(b"4", b"1", b"2", b"6", b"3", b"8")
        ]

    def test_d4_what_was_loaded_is_there_when_it_was_synced(
        self, index: IndexDatabase, reopened: Callable[[IndexDatabase], IndexDatabase]
    ) -> None:
        index.apply([(b"a", b"1")])
        index.load()
        index.add(new_rows((b"b", b"2")))
        index.apply([(b"a", None), (b"c", b"3")])
        index.loaded()
        assert index.get_many([b"a", b"b", b"c"]) == [None, b"2", b"3"]
        index.sync()
        again = reopened(index)
        assert again.get_many([b"a", b"b", b"c"]) == [None, b"2", b"3"]
        again.close()

    def test_d2_what_was_synced_is_there_when_it_is_opened_again(
        self, index: IndexDatabase, reopened: Callable[[IndexDatabase], IndexDatabase]
    ) -> None:
        index.apply([(b"a", b"1"), (LONG[3], b"2")])
        index.sync()
        again = reopened(index)
        assert again.get_many([b"a", LONG[3]]) == [b"1", b"2"]
        again.close()
