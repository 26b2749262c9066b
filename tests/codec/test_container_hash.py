import pytest
from hypothesis import given
from hypothesis import strategies as st

from segmentstore.codec.container_hash import container_of, murmur3_128, primary_name

COUNTS = (1, 4, 8, 32, 64, 1024)
ZEROS = "0" * 32


@pytest.mark.parametrize(
    ("name", "containers"),
    [
        ("scope/stream/0.#epoch.0", (0, 3, 3, 19, 46, 370)),
        (f"scope/stream/5.#epoch.2#transaction.{ZEROS}", (0, 1, 1, 14, 14, 611)),
        ("a/b/1", (0, 3, 6, 22, 22, 605)),
        ("j1/_RGrg/0.#epoch.0", (0, 1, 1, 9, 9, 441)),
        ("s/rg_kvtable/0.#epoch.0", (0, 0, 0, 0, 0, 94)),
        ("x/y\u00e9/3.#epoch.1", (0, 0, 4, 15, 36, 36)),
    ],
)
def test_h60_names_land_where_they_land_in_pravega(name: str, containers: tuple[int, ...]) -> None:
    assert tuple(container_of(name, count) for count in COUNTS) == containers


def test_h60_the_hash_is_murmur3_with_a_sign_extended_seed() -> None:
    # The routing position of a key is built on the same hash with other seeds; its published values pin the hash
    # itself, a negative seed included.
    assert _position("hello", 1741865571) == 0.658716230571337
    assert _position("abcd", 1741865571) == 0.008927558312435524
    assert _position("", 1741865571) == 0.24117842791623523
    assert _position("hello", -2020233499) == 0.09721691117989018


def _position(key: str, seed: int) -> float:
    h1, _ = murmur3_128(key.encode("utf-16-le"), seed)
    return (h1 >> 12) / (1 << 52)


@pytest.mark.parametrize(
    ("name", "primary"),
    [
        ("plain", "plain"),
        ("s/t/0.#epoch.7", "s/t/0"),
        (f"s/t/0.#epoch.7#transaction.{ZEROS}", "s/t/0"),
        (f"s/t/0.#epoch.7#transient.{ZEROS}.{ZEROS}", "s/t/0"),
        (f"plain#transaction.{ZEROS}", "plain"),
        (f"plain#transaction.{ZEROS}#transaction.{'1' * 32}", "plain"),
        (f"plain#transaction.short#transaction.{ZEROS}", "plain#transaction.short"),
        ("plain#transaction.tooshort", "plain#transaction.tooshort"),
        ("a.#epoch.1.#epoch.2", "a.#epoch.1"),
        (f"#transaction.{ZEROS}", f"#transaction.{ZEROS}"),
        (".#epoch.0", ".#epoch.0"),
    ],
)
def test_h60_the_primary_name_has_no_transaction_transient_and_epoch(
    name: str, primary: str
) -> None:
    assert primary_name(name) == primary


@given(name=st.text(min_size=1, max_size=60), count=st.integers(1, 5000))
def test_h60_a_transaction_shares_the_container_of_its_target(name: str, count: int) -> None:
    name = name.encode("utf-8", "replace").decode()
    container = container_of(name, count)
    assert 0 <= container < count
    transaction = f"{name}#transaction.{'a' * 32}"
    assert container_of(transaction, count) == container
    assert container_of(f"{transaction}#transaction.{'b' * 32}", count) == container


@given(name=st.text(st.characters(codec="utf-8"), min_size=1, max_size=60))
def test_h60_one_more_container_takes_names_from_the_others_and_moves_none_between_them(
    name: str,
) -> None:
    before, after = container_of(name, 16), container_of(name, 17)
    assert after in (before, 16)
