import pytest

from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.http.requests import is_reserved, name_of_path


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        ("plain", "plain"),
        ("a/b/c", "a/b/c"),
        ("a%2Fb", "a/b"),
        ("a%252Fb", "a%2Fb"),
        ("%E2%82%AC", "€"),
        ("with%20space+plus", "with space+plus"),
        ("a#transaction.0", "a#transaction.0"),
        ("..a/b..", "..a/b.."),
    ],
)
def test_a_name_is_decoded_exactly_once(raw: str, name: str) -> None:
    assert name_of_path(raw) == name


@pytest.mark.parametrize(
    "raw",
    [
        "",
        "/a",
        "a/",
        "a//b",
        "a/../b",
        "..",
        "a/.",
        "%2E%2E/a",
        "a%2F%2Fb",
        "a%00b",
        "a%0Ab",
        "a%7F",
        "%ff",
        "%zz",
        "a%2",
        "%",
    ],
)
def test_a_name_that_could_be_read_as_something_else_is_refused(raw: str) -> None:
    with pytest.raises(InvalidRequestError):
        name_of_path(raw)


def test_the_limit_counts_bytes_of_utf8_and_not_characters() -> None:
    assert name_of_path("%E2%82%AC" * 170 + "aa") == "€" * 170 + "aa"
    with pytest.raises(InvalidRequestError, match="bytes=513 bytes_max=512"):
        name_of_path("%E2%82%AC" * 171)


def test_only_the_first_part_reserves_a_name() -> None:
    assert is_reserved("__ds")
    assert is_reserved("__ds/subscriptions")
    assert not is_reserved("__dsx")
    assert not is_reserved("a/__ds")
