"""Keys, values and names of a topic's files: pinned bytes, and round trips over every name that a topic may have."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segmentstore.codec.topic_files import (
    COLD_END,
    FIRST_FILE,
    LAST_FILE,
    RecordFileName,
    RegisteredFile,
    count_of,
    decode_file,
    encode_file,
    file_key,
    file_number_of,
    files_prefix,
    topic_prefix,
)
from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.contracts.identifiers import is_core_attribute
from tier2.object_stores.object_key import check_key, check_prefix

U63 = st.integers(0, (1 << 63) - 1)
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
TOPICS = st.one_of(
    st.from_regex(r"[a-zA-Z0-9._-]{1,249}", fullmatch=True),
    st.text("ab.", min_size=185, max_size=249),
    st.sampled_from(["." * 249, "." * 190, "." * 191, ".a", "..a", "a.", "a" * 190, "a" * 249]),
).filter(lambda name: name not in (".", ".."))


@st.composite
def files(draw: st.DrawFn) -> RegisteredFile:
    first = draw(st.integers(0, (1 << 63) - 2))
    highest = draw(I64)
    return RegisteredFile(
        first_offset=first,
        end_offset=draw(st.integers(first + 1, (1 << 63) - 1)),
        size=draw(U63),
        record_count=draw(U63),
        lowest_ms=draw(I64),
        highest_ms=highest,
        highest_ms_until_end=draw(st.integers(highest, (1 << 63) - 1)),
        name_number=draw(st.integers(0, (1 << 64) - 1)),
    )


@st.composite
def names(draw: st.DrawFn) -> RecordFileName:
    first = draw(U63)
    return RecordFileName(
        draw(TOPICS),
        draw(st.integers(0, 100_000)),
        first,
        draw(st.integers(first, (1 << 63) - 1)),
        draw(st.integers(0, (1 << 64) - 1)),
        draw(st.booleans()),
    )


def test_the_bytes_stay_as_they_are() -> None:
    file = RegisteredFile(1000, 2000, 65536, 990, -1, 5, 6, 0xAB)
    assert encode_file(file).hex() == (
        "00000000000003e8" "00000000000007d0" "0000000000010000" "00000000000003de"
        "ffffffffffffffff" "0000000000000005" "0000000000000006" "00000000000000ab"
    )  # fmt: skip
    assert file_key(7) == b"topic file \x00\x00\x00\x00\x00\x00\x00\x07"
    assert [key[8:] for key in (COLD_END, FIRST_FILE, LAST_FILE)] == [
        b"\x00topic\x00\x04",
        b"\x00topic\x00\x05",
        b"\x00topic\x00\x06",
    ]
    assert all(map(is_core_attribute, (COLD_END, FIRST_FILE, LAST_FILE)))


def test_names_are_as_the_format_page_has_them() -> None:
    file = RegisteredFile(1000, 2000, 1, 1, 0, 0, 0)
    prefix = "topics/user-events/partitions/0/segments/"
    assert file.name("user-events", 0).key == f"{prefix}00001000-00001999.seg"
    kept = RegisteredFile(1000, 2000, 70, 0, 9, 9, 9)
    assert kept.name("user-events", 0).key == f"{prefix}00001000-00001999.batch"
    again = RecordFileName("user-events", 0, 1000, 1999, 0xAB)
    assert again.key == f"{prefix}00001000-00001999.00000000000000ab.seg"
    assert topic_prefix(".hidden") == "topics/=2Ehidden/"
    assert topic_prefix("n" * 190) == f"topics/{'n' * 190}/"
    assert topic_prefix("n" * 190 + ".x") == f"topics/{'n' * 190}=/=2Ex/"


@given(file=files())
def test_a_registered_file_comes_back(file: RegisteredFile) -> None:
    assert decode_file(encode_file(file)) == file


@given(name=names())
def test_a_name_comes_back_and_every_object_store_takes_it(name: RecordFileName) -> None:
    check_key(name.key)
    check_prefix(files_prefix(name.topic, name.partition))
    assert name.key.startswith(files_prefix(name.topic, name.partition))
    assert RecordFileName.parsed(name.key) == name


@given(one=TOPICS, other=TOPICS)
def test_two_topics_have_no_object_in_common(one: str, other: str) -> None:
    if one != other:
        assert not topic_prefix(one).startswith(topic_prefix(other))


@pytest.mark.parametrize(
    "key",
    [
        "topics/t/partitions/0/segments/00000005-00000004.seg",
        "topics/t/partitions/00/segments/00000004-00000005.seg",
        "topics/t/partitions/0/segments/000000004-000000005.seg",
        "topics/t/partitions/0/segments/00000004-00000005.0000000000000000.seg",
        "topics/t/partitions/0/segments/00000004-00000005.00000000000000AB.seg",
        "topics/t/partitions/0/segments/00000004-00000005.ab.seg",
        "topics/t/partitions/0/segments/00000004-00000005.seg.gz",
        "topics/.t/partitions/0/segments/00000004-00000005.seg",
        "topics/t=/x/partitions/0/segments/00000004-00000005.seg",
        "topics/=2Et=2Ex/y/partitions/0/segments/00000004-00000005.seg",
    ],
)
def test_what_is_no_name_does_not_parse(key: str) -> None:
    assert RecordFileName.parsed(key) is None


@pytest.mark.parametrize(
    "value",
    [
        7,
        b"",
        encode_file(RegisteredFile(0, 1, 1, 1, 0, 0, 0))[:-1],
        encode_file(RegisteredFile(0, 1, 1, 1, 0, 0, 0)) + b"\x00",
        encode_file(RegisteredFile(5, 5, 1, 1, 0, 0, 0)),
        encode_file(RegisteredFile(0, 1, 1, 1, 0, 2, 1)),
    ],
)
def test_what_is_no_registered_file_is_refused(value: int | bytes) -> None:
    with pytest.raises(CorruptedDataError, match="registered file"):
        decode_file(value)


@given(st.integers(0, (1 << 64) - 1))
def test_a_key_says_which_file_it_registers(number: int) -> None:
    assert file_number_of(file_key(number)) == number


def test_a_count_that_is_none_is_damage_and_an_absent_one_is_0() -> None:
    assert count_of({COLD_END: 7}, COLD_END, name="p") == 7
    assert count_of({}, COLD_END, name="p") == 0
    for value in (-1, b"7"):
        with pytest.raises(CorruptedDataError, match="name='p'"):
            count_of({COLD_END: value}, COLD_END, name="p")
