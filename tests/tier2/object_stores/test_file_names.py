"""Keys as file names: readable, reversible, and safe on a disk that ignores case."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contracts.object_store_suite import KEYS
from tier2.object_stores.filesystem import (
    component_of_part,
    parent_of_path,
    part_of_component,
    path_of_key,
)

PARTS = st.from_regex(r"\A[A-Za-z0-9_=-][A-Za-z0-9._=-]{0,199}\Z")


def test_a_part_without_capitals_is_its_own_name() -> None:
    assert (
        path_of_key("/store/objects", "c-7/chunks/00_1=x.y") == "/store/objects/c-7/chunks/00_1=x.y"
    )


def test_capitals_are_written_as_a_number() -> None:
    assert component_of_part("AbC") == "abc~5"
    assert part_of_component("abc~5") == "AbC"


@settings(max_examples=150, deadline=None)
@given(part=PARTS)
def test_h11_every_name_reads_back_is_lower_case_and_short_enough(part: str) -> None:
    component = component_of_part(part)
    assert part_of_component(component) == part
    assert component == component.lower()
    assert len(component.encode()) <= 255


@settings(max_examples=150, deadline=None)
@given(
    left=st.text("aAbB.-", min_size=1, max_size=6), right=st.text("aAbB.-", min_size=1, max_size=6)
)
def test_h11_two_parts_never_share_a_name_on_a_disk_that_ignores_case(
    left: str, right: str
) -> None:
    same = component_of_part(left).casefold() == component_of_part(right).casefold()
    assert same == (left == right)


def test_the_longest_keys_have_names_short_enough() -> None:
    for key in KEYS:
        assert max(len(name) for name in path_of_key("/s", key).split("/")) <= 255


def test_names_that_no_key_has_are_not_read_as_keys() -> None:
    for name in ("Abc", "abc~0", "abc~", "abc~g", "abc~05", "abc~8", "1~1", "abc~5~5", "a" * 201):
        assert part_of_component(name) is None, name


def test_the_parent_of_a_path_is_its_directory() -> None:
    assert parent_of_path("/a/b") == "/a"
    assert parent_of_path("/a") == "/"
