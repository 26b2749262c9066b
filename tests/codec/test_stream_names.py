import pytest
from hypothesis import given
from hypothesis import strategies as st

from segmentstore.codec.container_hash import container_of
from segmentstore.codec.stream_names import (
    SegmentName,
    check_user_name,
    creation_epoch_of,
    is_user_name,
    mark_stream,
    number_of,
    parse_segment,
    reader_group_stream,
    segment_id_of,
    segment_name,
    table_segment,
    transaction_epoch_of,
    transaction_halves,
    transaction_id_of,
    transaction_segment,
    transient_segment,
)
from segmentstore.contracts.errors import InvalidRequestError

INT31 = st.integers(0, (1 << 31) - 1)
USER_NAMES = st.text(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-", min_size=1, max_size=30
)


def test_a_segment_id_holds_epoch_and_number() -> None:
    assert segment_id_of(number=7, creation_epoch=3) == 0x0000_0003_0000_0007
    assert number_of(0x0000_0003_0000_0007) == 7
    assert creation_epoch_of(0x0000_0003_0000_0007) == 3


def test_a_number_that_does_not_fit_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"number=2147483648"):
        segment_id_of(number=1 << 31, creation_epoch=0)
    with pytest.raises(InvalidRequestError, match=r"epoch=-1"):
        segment_id_of(number=0, creation_epoch=-1)


def test_names_are_spelt_as_in_pravega() -> None:
    segment = segment_name("scope", "stream", 0x0000_0002_0000_0005)
    assert segment == "scope/stream/5.#epoch.2"
    assert transaction_segment(segment, 0x2AB) == f"{segment}#transaction.{'0' * 29}2ab"
    transient = transient_segment(segment, writer_id=b"\x0a" * 16, nonce=b"\xff" * 16)
    assert transient == f"{segment}#transient.{'0a' * 16}.{'ff' * 16}"
    assert reader_group_stream("g") == "_RGg"
    assert mark_stream("s") == "_MARKs"
    assert table_segment("s", "rg") == "s/rg_kvtable/0.#epoch.0"


@given(
    USER_NAMES,
    USER_NAMES,
    INT31,
    INT31,
    st.none() | st.integers(0, (1 << 128) - 1),
    st.none() | st.tuples(st.binary(min_size=16, max_size=16), st.binary(min_size=16, max_size=16)),
)
def test_what_is_built_parses_to_its_parts(
    scope: str,
    stream: str,
    number: int,
    epoch: int,
    transaction_id: int | None,
    transient: tuple[bytes, bytes] | None,
) -> None:
    built = SegmentName(
        scope=scope,
        stream=stream,
        number=number,
        creation_epoch=epoch,
        transaction_id=transaction_id,
        transient=None if transaction_id is not None else transient,
    )
    parsed = parse_segment(built.name)
    assert parsed == built
    assert parsed.segment_id == segment_id_of(number=number, creation_epoch=epoch)
    assert parsed.parent.name == segment_name(scope, stream, built.segment_id)
    assert container_of(built.name, 64) == container_of(parsed.parent.name, 64)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "scope/stream",
        "scope/stream/1",
        "scope/stream/01.#epoch.0",
        "scope/stream/1.#epoch.",
        "scope/stream/-1.#epoch.0",
        "scope/stream/2147483648.#epoch.0",
        "scope/stream/9999999999.#epoch.9999999999",
        "a/b/c/1.#epoch.0",
        "scope/stream/1.#epoch.0\n",
        f"scope/stream/1.#epoch.0#transaction.{'A' * 32}",
        f"scope/stream/1.#epoch.0#transaction.{'a' * 31}",
        f"scope/stream/1.#epoch.0#transient.{'a' * 32}",
    ],
)
def test_other_texts_are_no_segment_names(name: str) -> None:
    with pytest.raises(InvalidRequestError):
        parse_segment(name)


@given(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-(1 << 63), (1 << 63) - 1))
def test_a_transaction_id_is_two_signed_halves(high: int, low: int) -> None:
    assert transaction_halves(transaction_id_of(high=high, low=low)) == (high, low)


def test_a_transaction_id_tells_its_epoch() -> None:
    assert transaction_epoch_of(transaction_id_of(high=4 << 32 | 99, low=1)) == 4


@pytest.mark.parametrize("name", ["s", "A.b-9", "x" * 250])
def test_users_choose_letters_digits_dots_and_hyphens(name: str) -> None:
    assert is_user_name(name)
    check_user_name(name, what="stream")


@pytest.mark.parametrize(
    "name",
    ["", "_RGg", "_MARKs", "t_kvtable", "_system", "a_b", "a/b", "x" * 251, "\u00fc", "a b", "a\n"],
)
def test_other_names_are_not_for_users(name: str) -> None:
    assert not is_user_name(name)
    with pytest.raises(InvalidRequestError, match="a scope name has 1 to 250"):
        check_user_name(name, what="scope")
