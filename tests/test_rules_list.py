"""Goal: `RULES.md` is true. Every rule stands there, and whatever it names is in the tree.

Tests that the page does not name are no failure: it says where a rule is held, not everything that touches it.
"""

import re
from pathlib import Path

TESTS = Path(__file__).parent
PAGE = TESTS / "RULES.md"
RULES = range(1, 87)

_HEADING = re.compile(r"## H(\d+): \S")
_FILE = re.compile(r"- `(\S+\.py)`")
_NAME = re.compile(r"  - (h\d+_\w+)")
_PLACE = re.compile(r"`([\w/]+(?:/|\.py))`")


def test_every_rule_has_its_place_in_order() -> None:
    headings = [_HEADING.match(line) for line in PAGE.read_text().splitlines()]
    assert [int(found[1]) for found in headings if found is not None] == list(RULES)


def test_every_test_that_the_page_names_is_there_and_bears_the_rule() -> None:
    rule = 0
    content = ""
    for line in PAGE.read_text().splitlines():
        if heading := _HEADING.match(line):
            rule = int(heading[1])
        elif file := _FILE.fullmatch(line):
            content = (TESTS / file[1]).read_text()
        elif name := _NAME.fullmatch(line):
            assert f"def test_{name[1]}(" in content, line
            assert f"h{rule}_" in name[1], line


def test_every_place_that_the_page_names_is_there() -> None:
    for place in _PLACE.findall(PAGE.read_text()):
        found = (TESTS / place).exists() or (TESTS.parent / place).exists()
        assert found, place
