"""The checker says of a history whether one order explains it; it finds each kind of lie, and is quick on long ones."""

import math
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from tests.linearizability.checker import by_target, violation, violations
from tests.linearizability.operation import NO_ENTRY, Operation, Outcome, Verb
from tests.linearizability.random_history import LIES, random_history

OK, UNKNOWN, ABSENT, EXISTS, SEALED, BAD_OFFSET = (
    Outcome.OK,
    Outcome.UNKNOWN,
    Outcome.ABSENT,
    Outcome.EXISTS,
    Outcome.SEALED,
    Outcome.BAD_OFFSET,
)


def told(
    verb: Verb, outcome: Outcome = OK, at: tuple[float, float] | None = None, **fields: Any
) -> Operation:
    """`at`: when it began and ended; without it, behind the one before it (`sequence`)."""
    invoked, answered = at or (math.nan, math.nan)
    return Operation(1, "a", verb, outcome, invoked, answered, **fields)


def whole(content: bytes, at: tuple[float, float] | None = None, **fields: Any) -> Operation:
    """A read of all that there is."""
    return told(Verb.READ, OK, at, content=content, offset=0, count=100, **fields)


def sequence(*operations: Operation) -> list[Operation]:
    """One after the other, where they do not say when; unknown ones are never answered."""
    placed: list[Operation] = []
    for number, each in enumerate(operations):
        if math.isnan(each.invoked):
            answered = math.inf if each.outcome is UNKNOWN else number + 0.5
            each = replace(each, invoked=float(number), answered=answered)
        placed.append(each)
    return placed


CREATED = told(Verb.CREATE)
ONE = told(Verb.APPEND, content=b"one", length=3)
TWO = told(Verb.APPEND, content=b"two", length=6)
LOST = told(Verb.APPEND, UNKNOWN, content=b"two")

RIGHT: dict[str, list[Operation]] = {
    "an append is read": sequence(CREATED, ONE, whole(b"one", length=3)),
    "an append without an answer was done": sequence(CREATED, ONE, LOST, whole(b"onetwo")),
    "an append without an answer was not done": sequence(CREATED, ONE, LOST, whole(b"one")),
    "an append without an answer is done after a read": sequence(
        CREATED,
        ONE,
        LOST,
        whole(b"one"),
        told(Verb.INFO, length=6, start=0, sealed=False),
    ),
    "a read beside an append sees it or not": sequence(
        CREATED,
        told(Verb.APPEND, content=b"one", length=3, at=(1.0, 3.0)),
        whole(b"", at=(1.5, 2.0)),
        whole(b"one", at=(2.1, 2.5)),
    ),
    "appends beside one another stand in any order": sequence(
        CREATED,
        told(Verb.APPEND, content=b"one", length=6, at=(1.0, 3.0)),
        told(Verb.APPEND, content=b"two", length=3, at=(1.0, 3.0)),
        whole(b"twoone", at=(4.0, 5.0)),
    ),
    "refusals that are true": sequence(
        told(Verb.APPEND, ABSENT, content=b"x"),
        CREATED,
        told(Verb.CREATE, EXISTS),
        ONE,
        told(Verb.APPEND, BAD_OFFSET, content=b"x", offset=2, length=3),
        told(Verb.TRUNCATE, BAD_OFFSET, offset=4),
        told(Verb.TRUNCATE, offset=2),
        told(Verb.READ, Outcome.TRUNCATED, offset=1, count=1, start=2),
        told(Verb.SEAL, length=3),
        told(Verb.APPEND, SEALED, content=b"x"),
        told(Verb.DELETE),
        told(Verb.INFO, ABSENT),
        told(Verb.CREATE),
        told(Verb.INFO, length=0, start=0, sealed=False),
    ),
    "a refusal without a length tells of an append without an answer": sequence(
        CREATED, ONE, LOST, told(Verb.APPEND, BAD_OFFSET, content=b"x", offset=3)
    ),
    "an entry": sequence(
        told(Verb.PUT, content=b"1", version=NO_ENTRY, new_version=7),
        told(Verb.PUT, Outcome.BAD_VERSION, content=b"2", version=NO_ENTRY),
        told(Verb.GET, content=b"1", new_version=7),
        told(Verb.PUT, UNKNOWN, content=b"3", version=7),
        told(Verb.GET, content=b"3", new_version=9),
        told(Verb.REMOVE, version=9),
        told(Verb.GET),
    ),
}

WRONG: dict[str, list[Operation]] = {
    "an acknowledged append is gone": sequence(CREATED, ONE, whole(b"", length=0)),
    "an append is there twice": sequence(CREATED, ONE, whole(b"oneone", length=6)),
    "appends changed places": sequence(CREATED, ONE, TWO, whole(b"twoone", length=6)),
    "bytes that nobody appended": sequence(CREATED, ONE, whole(b"onf")),
    "an old length": sequence(CREATED, ONE, TWO, told(Verb.INFO, length=3, start=0, sealed=False)),
    "an append behind the seal": sequence(CREATED, ONE, told(Verb.SEAL, length=3), TWO),
    "a refused append was done": sequence(
        CREATED,
        ONE,
        told(Verb.APPEND, BAD_OFFSET, content=b"two", offset=2, length=3),
        whole(b"onetwo", length=6),
    ),
    "absent while it is there": sequence(CREATED, ONE, told(Verb.INFO, ABSENT)),
    "sealed while it is open": sequence(CREATED, told(Verb.APPEND, SEALED, content=b"x"), ONE),
    "two appends at one offset": sequence(
        CREATED,
        told(Verb.APPEND, content=b"one", offset=0, length=3, at=(1.0, 3.0)),
        told(Verb.APPEND, content=b"two", offset=0, length=3, at=(1.0, 3.0)),
    ),
    "a newer read before an older one": sequence(
        CREATED,
        told(Verb.APPEND, content=b"one", length=3, at=(1.0, 9.0)),
        whole(b"one", at=(2.0, 3.0)),
        whole(b"", at=(4.0, 5.0)),
    ),
    "an append without an answer was done and undone": sequence(
        CREATED,
        ONE,
        LOST,
        whole(b"onetwo"),
        whole(b"one", length=3),
    ),
    "two winners of one condition": sequence(
        told(Verb.PUT, content=b"0", new_version=7),
        told(Verb.PUT, content=b"1", version=7, new_version=8, at=(1.0, 3.0)),
        told(Verb.PUT, content=b"2", version=7, new_version=9, at=(1.0, 3.0)),
    ),
    "an old value": sequence(
        told(Verb.PUT, content=b"0", new_version=7),
        told(Verb.PUT, content=b"1", new_version=8),
        told(Verb.GET, content=b"0", new_version=7),
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_an_explained_history_has_no_violation(name: str) -> None:
    assert violation(RIGHT[name]) is None


@pytest.mark.parametrize("name", WRONG)
def test_a_history_that_no_order_explains_is_a_violation(name: str) -> None:
    assert violation(WRONG[name]) is not None


def test_a_violation_names_the_target_and_what_cannot_follow() -> None:
    good = RIGHT["an append is read"]
    (found,) = violations(WRONG["an old length"])
    assert violations(good) == []
    assert (found.target, found.explained, found.count) == ("a", 3, 4)
    assert "length=3" in str(found)
    assert [each.verb for each in found.stuck] == [Verb.INFO]


def test_targets_are_checked_one_by_one() -> None:
    entry = [replace(each, target="an entry") for each in RIGHT["an entry"]]
    operations = [*RIGHT["an append is read"], *entry]
    assert list(by_target(operations)) == ["a", "an entry"]
    assert violations(operations) == []


@pytest.mark.parametrize("seed", range(150))
def test_a_store_that_is_right_has_no_violation(seed: int) -> None:
    found = violation(random_history(seed))
    assert found is None, found


@pytest.mark.parametrize("lie", LIES)
def test_each_kind_of_lie_is_found(lie: str) -> None:
    """Not in every history: a lie may be what another order would have told."""
    found = [violation(random_history(seed, lie=lie, operation_count=80)) for seed in range(40)]
    assert sum(each is not None for each in found) >= LEAST_FOUND[lie], lie


LEAST_FOUND = {
    "lost_append": 20,
    "repeated_append": 20,
    "moved_append": 20,
    "old_answer": 20,
    "old_refusal": 10,
    "append_behind_seal": 5,
}


def long_history(count: int, *, lost: int) -> Sequence[Operation]:
    """Of four appenders, a reader, and appends without an answer, of which each second one was done."""
    random = Random(count)
    found = [Operation(0, "a", Verb.CREATE, OK, 0.0, 0.1)]
    content = bytearray()
    for number in range(count):
        at = 1.0 + number
        piece = b"%d," % number
        window = (at - 3 * random.random(), at + 3 * random.random())
        if number % (count // lost) == 0:
            done = number // (count // lost) % 2 == 0
            found.append(Operation(1, "a", Verb.APPEND, UNKNOWN, at - 0.5, content=piece))
            content += piece if done else b""
        elif number % 5 == 0:
            offset = max(len(content) - 40, 0)
            read = bytes(content[offset:])
            found.append(Operation(2, "a", Verb.READ, OK, *window, read, offset=offset, count=40))
        else:
            content += piece
            found.append(Operation(1, "a", Verb.APPEND, OK, *window, piece, length=len(content)))
    end = float(count + 10)
    count = len(content) + 1
    found.append(
        Operation(3, "a", Verb.READ, OK, end, end + 1, bytes(content), offset=0, count=count)
    )
    return found


def test_a_long_history_with_many_lost_answers_is_checked_in_seconds() -> None:
    history = long_history(5_000, lost=250)
    assert violation(history) is None
    stale = Operation(9, "a", Verb.INFO, OK, 6e3, 6e3 + 1, length=17, start=0, sealed=False)
    assert violation([*history, stale]) is not None
