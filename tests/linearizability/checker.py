"""Whether there is one order of all operations of a history that explains every answer.

The order has to keep what is certain: an operation that was answered before another was sent is before it. An operation
of unknown outcome may be anywhere behind its beginning, or nowhere. This is the search of Wing and Gong with the memory
of Lowe, for each target by itself:

- Among the operations that may be next, a refusal or an observation that is right is taken at once: no order is lost
  by that, because it may stand at this place in every order of the rest. (Not so a removal of what is not there:
  later it may remove something.)
- Of those that change something each is tried, answered ones first. Acknowledged appends know their places, and the
  model tells which others cannot be next, so hardly any try is in vain: the search costs about as many steps as the
  history has operations.
- A set of operations that led to a state once is not tried again.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from tests.linearizability.models import EntryModel, Model, SegmentModel
from tests.linearizability.operation import TABLE_VERBS, Operation, Outcome

_STEPS_MAX = 20_000_000
State = TypeVar("State")


class UndecidedError(Exception):
    """The search was given up. No answer of a store leads to this with the workloads here; a new workload may."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A target without such an order."""

    target: str
    explained: int
    """How many operations the longest order explains."""
    count: int
    state: object
    """Behind that order."""
    stuck: Sequence[Operation]
    """The answered operations that may be next there; none of them can."""

    def __str__(self) -> str:
        lines = [
            f"no order explains all answers target={self.target!r} explained={self.explained} of={self.count}",
            f"  behind them: {str(self.state)[:300]}",
            *(f"  not then: {each}" for each in self.stuck[:8]),
        ]
        return "\n".join(lines)


def by_target(operations: Iterable[Operation]) -> Mapping[str, list[Operation]]:
    """Targets in the order in which they are met."""
    found: dict[str, list[Operation]] = {}
    for each in operations:
        found.setdefault(each.target, []).append(each)
    return found


def violations(operations: Iterable[Operation]) -> list[Violation]:
    """Of every target that has one."""
    found = [violation(each) for each in by_target(operations).values()]
    return [each for each in found if each is not None]


def violation(operations: Sequence[Operation]) -> Violation | None:
    """Of the operations on one target. Raises UndecidedError."""
    telling = [each for each in operations if each.changes or each.outcome is not Outcome.UNKNOWN]
    if not telling:
        return None
    if telling[0].verb in TABLE_VERBS:
        return _Search(telling, EntryModel()).run()
    return _Search(telling, SegmentModel(telling)).run()


class _Search(Generic[State]):
    """Operations that are not in the order yet are in two linked lists, answered and unknown ones, by beginning."""

    def __init__(self, operations: Sequence[Operation], model: Model[State]) -> None:
        self._operations = sorted(operations, key=lambda each: each.invoked)
        self._model = model
        count = len(self._operations)
        # The ends of the lists stand before the first ones and behind the last ones.
        self._answered, self._unknown = count, count + 1
        self._next = list(range(count + 2))
        self._before = list(range(count + 2))
        for place, operation in enumerate(self._operations):
            end = self._unknown if operation.outcome is Outcome.UNKNOWN else self._answered
            last = self._before[end]
            self._next[last], self._before[end] = place, place
            self._next[place], self._before[place] = end, last
        self._steps = 0

    def run(self) -> Violation | None:
        seen: set[tuple[int, State]] = set()
        order: list[int] = []
        taken = 0
        state = self._model.first
        tries: list[tuple[int, int, State, Iterator[tuple[int, State]]]] = []
        """Of each place with a choice: length of the order, what was in it, the state, and what is left to try."""
        deepest = -1
        found = Violation("", 0, 0, state, ())
        while True:
            for place in self._observed(state):
                self._take(place)
                order.append(place)
                taken |= 1 << place
            if self._next[self._answered] == self._answered:
                return None
            if len(order) > deepest:
                deepest = len(order)
                found = self._violation(deepest, state)
            if (taken, state) in seen:
                choices: Iterator[tuple[int, State]] = iter(())
            else:
                seen.add((taken, state))
                choices = self._choices(state)
            tries.append((len(order), taken, state, choices))
            while True:
                if not tries:
                    return found
                depth, taken, state, choices = tries[-1]
                while len(order) > depth:
                    self._give_back(order.pop())
                chosen = next(choices, None)
                if chosen is not None:
                    break
                tries.pop()
            place, state = chosen
            self._take(place)
            order.append(place)
            taken |= 1 << place

    def _candidates(self, end: int) -> Iterator[int]:
        """Those of a list that began before any that is left was answered."""
        first_answer = float("inf")
        if end == self._unknown:
            first_answer = min(
                self._operations[place].answered for place in self._candidates(self._answered)
            )
        place = self._next[end]
        while place != end:
            operation = self._operations[place]
            if operation.invoked > first_answer:
                return
            first_answer = min(first_answer, operation.answered)
            self._steps += 1
            yield place
            place = self._next[place]
        if self._steps > _STEPS_MAX:
            raise UndecidedError(f"target={self._operations[0].target!r} steps={self._steps}")

    def _observed(self, state: State) -> Iterator[int]:
        """Refusals and observations that are right now; more of them may come when these are taken."""
        while True:
            true = [
                place
                for place in self._candidates(self._answered)
                if _never_changes(self._operations[place])
                and self._model.step(state, self._operations[place]) == state
            ]
            if not true:
                return
            yield from true

    def _choices(self, state: State) -> Iterator[tuple[int, State]]:
        """What may be next, with the state behind it; unknown ones when all others were tried."""
        for end in (self._answered, self._unknown):
            found: list[tuple[int, State]] = []
            for place in self._candidates(end):
                following = self._model.step(state, self._operations[place])
                if following is not None:
                    found.append((place, following))
            found.sort(key=lambda each: self._operations[each[0]].answered)
            yield from found

    def _take(self, place: int) -> None:
        before, following = self._before[place], self._next[place]
        self._next[before], self._before[following] = following, before

    def _give_back(self, place: int) -> None:
        before, following = self._before[place], self._next[place]
        self._next[before] = self._before[following] = place

    def _violation(self, explained: int, state: State) -> Violation:
        stuck = [self._operations[place] for place in self._candidates(self._answered)]
        return Violation(
            self._operations[0].target,
            explained,
            len(self._operations),
            state,
            stuck,
        )


def _never_changes(operation: Operation) -> bool:
    refused = operation.outcome not in (Outcome.OK, Outcome.UNKNOWN)
    return refused or not operation.changes
