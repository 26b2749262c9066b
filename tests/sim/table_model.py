"""What one client knows of a table that nobody else changes.

It keeps every state that the table may be in: one as long as each batch is answered, one more for each batch of unknown
outcome. Batches that were submitted one behind the other happen in that order, so what is there is a prefix of them.

Values are unique, so a value says which batch left it; the version of a batch without an answer is learnt with it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from segmentstore.contracts.tables import NO_VERSION, NOT_EXISTS, TableEntry
from tests.sim.attempts import ModelBreachError

VERSION_UNKNOWN: Final = -2

State: TypeAlias = dict[bytes, tuple[bytes, int]] | None
"""Value and version by key; None: there is no such table."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Keys with a new value, or None to remove them, and the versions that they are expected to have."""

    changes: Sequence[tuple[bytes, bytes | None, int]]


@dataclass(frozen=True, slots=True)
class Stored:
    """The answer to a batch: a version for each new value."""

    versions: Sequence[int]


REFUSED: Final = "refused"
"""The answer to a batch that met another version, or none."""

Answer: TypeAlias = Stored | str


class TableModel:
    """Learns from answers; raises ModelBreachError for those that no correct store gives."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._states: list[State] = [None]
        self._newest = -1
        """The highest version of this life of the table that is known."""

    @property
    def is_certain(self) -> bool:
        """Nothing is open, so conditions can be chosen and answers be foreseen."""
        return len(self._states) == 1

    @property
    def state(self) -> State:
        assert self.is_certain, f"{self.name} may be any of {self._states}"
        return self._states[0]

    # --- batches ---------------------------------------------------------------------------------

    def answered(self, batches: Sequence[Batch], answers: Sequence[Answer]) -> None:
        """All of them were answered by the table's owner."""
        state = self.state
        for batch, answer in zip(batches, answers, strict=True):
            state = self._after(state, batch, answer)
        self._states = [state]

    def not_answered(self, batches: Sequence[Batch], *, skipping: bool = False) -> None:
        """Any prefix of them may be there; `skipping`: any of them, if those behind a failed one went on."""
        states = [self.state]
        for batch in batches:
            after = [
                _changed(state, batch, [VERSION_UNKNOWN] * len(batch.changes))
                if _is_met(state, batch)
                else state
                for state in states
            ]
            states = [*states, *after] if skipping else after
            self._states += [state for state in states if state not in self._states]

    def _after(self, state: State, batch: Batch, answer: Answer) -> State:
        met = _is_met(state, batch)
        if not isinstance(answer, Stored):
            if met:
                raise ModelBreachError(f"{self.name}: refused {batch}, state={state}")
            return state
        if not met:
            raise ModelBreachError(f"{self.name}: stored {batch}, state={state}")
        versions = list(answer.versions)
        if versions != sorted(set(versions)) or (versions and versions[0] <= self._newest):
            raise ModelBreachError(f"{self.name}: versions {versions} behind {self._newest}")
        if versions:
            self._newest = versions[-1]
        return _changed(state, batch, versions)

    # --- the table as a whole --------------------------------------------------------------------

    def created(self) -> None:
        if None not in self._states:
            raise ModelBreachError(f"{self.name} was created although it exists: {self._states}")
        self._states = [{}]
        self._newest = -1

    def create_not_answered(self) -> None:
        if {} not in self._states:
            self._states.append({})

    def deleted(self) -> None:
        self._states = [None]
        self._newest = -1

    def delete_not_answered(self) -> None:
        if None not in self._states:
            self._states.append(None)

    def found(self, entries: Mapping[bytes, TableEntry] | None) -> None:
        """All that is in it, read from its owner; None: there is no such table."""
        fitting = [state for state in self._states if _fits(state, entries)]
        if not fitting:
            raise ModelBreachError(
                f"{self.name} holds {entries}, possible is any of {self._states}"
            )
        if entries is None:
            self.deleted()
            return
        self._states = [{key: (each.value, each.version) for key, each in entries.items()}]
        versions = [each.version for each in entries.values()]
        self._newest = max([self._newest, *versions])
        if len(set(versions)) != len(versions):
            raise ModelBreachError(f"{self.name}: a version is there twice: {entries}")


def _is_met(state: State, batch: Batch) -> bool:
    if state is None:
        return False
    for key, _, expected in batch.changes:
        _, version = state.get(key, (b"", NOT_EXISTS))
        if expected not in (NO_VERSION, version):
            return False
    return True


def _changed(state: State, batch: Batch, versions: Sequence[int]) -> State:
    assert state is not None, f"there is no table for {batch}"
    changed = dict(state)
    left = iter(versions)
    for key, value, _ in batch.changes:
        if value is None:
            changed.pop(key, None)
        else:
            changed[key] = (value, next(left))
    return changed


def _fits(state: State, entries: Mapping[bytes, TableEntry] | None) -> bool:
    if state is None or entries is None:
        return state is None and entries is None
    return state.keys() == entries.keys() and all(
        entries[key].value == value and version in (VERSION_UNKNOWN, entries[key].version)
        for key, (value, version) in state.items()
    )
