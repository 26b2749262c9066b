"""The attributes of one segment in memory: committed, pending, and how much is known.

An attribute is *known*, *known to be absent*, or *unknown*: a table that is not `complete` may lack values that
Tier 2 has, so no caller may conclude that what it lacks is absent. Core attributes are always complete.

Extended values carry the sequence number of the operation that set them, 0 if they were read from Tier 2. What is
published can therefore be told from what is not without a look at the value, and only the former ever leaves memory.
They are held in two generations: `young` was used since the last turn, `old` was not, and `sweep` takes from `old`.

Invariants (check()):
- `pending` holds exactly the values of operations that are accepted and not yet committed;
- an extended value that was dropped was published, and nothing accepted since has changed it;
- an extended value that is held is of the newest committed operation that set it, or read from Tier 2 behind it;
- no key is in both generations, and `held_bytes` is the memory of both;
- `core_bytes` is the memory of `core_values`, which change only in here: they leave memory with their segment.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Protocol, TypeAlias

from segmentstore.contracts.identifiers import (
    NO_SEQUENCE_NUMBER,
    AttributeKey,
    AttributeValue,
    SequenceNumber,
    is_core_attribute,
)

NumberedValue: TypeAlias = tuple[AttributeValue | None, SequenceNumber]
"""A value, None for "known to be absent", and the operation that it comes from."""

ENTRY_BYTES = 260
"""Memory of one extended value besides its key and a byte string's bytes: two objects' heads, the pair, its number, and
the place in a dictionary that is two thirds empty at worst."""


class AttributeOwner(Protocol):
    """The segment that a table belongs to."""

    published_sequence_number: SequenceNumber


class AttributeLedger:
    """The attributes of a whole container: their memory, and the tables that hold extended ones."""

    __slots__ = ("core_bytes", "held_bytes", "holders", "publications")

    def __init__(self) -> None:
        self.holders: OrderedDict[AttributeTable, AttributeOwner] = OrderedDict()
        """Every table that holds extended values, that which was swept last at the end."""
        self.publications = 0
        """How many publications of segments there were: values that could not leave memory may since."""
        self.held_bytes = 0
        """Of extended attributes: `sweep` gives it back."""
        self.core_bytes = 0
        """Of core attributes: the eviction of their segments gives it back."""


class AttributeTable:
    """Values by key. None stands for "known to be absent"."""

    __slots__ = (
        "_has_extended",
        "_ledger",
        "_old",
        "_old_keys",
        "_owner",
        "_young",
        "complete",
        "core_bytes",
        "core_values",
        "drops",
        "held_bytes",
        "pending",
    )

    def __init__(self, *, complete: bool) -> None:
        self.core_values: dict[AttributeKey, AttributeValue] = {}
        """Committed core attributes."""
        self.core_bytes = 0
        self.pending: dict[AttributeKey, NumberedValue] = {}
        self._young: dict[AttributeKey, NumberedValue] = {}
        self._old: dict[AttributeKey, NumberedValue] = {}
        self._old_keys: Iterator[AttributeKey] = iter(())
        """Of `_old`, and perhaps some that were used since: those at which `sweep` has not looked yet."""
        self.drops = 0
        """How often values left memory: what was read from Tier 2 before may be older than they were."""
        self.complete = complete
        """Every extended attribute that exists is in memory."""
        self.held_bytes = 0
        """Memory of committed extended values."""
        self._has_extended = False
        self._ledger: AttributeLedger | None = None
        self._owner: AttributeOwner | None = None

    # --- what is known ---------------------------------------------------------------------------

    def is_known(self, key: AttributeKey) -> bool:
        return (
            key in self._young
            or key in self.pending
            or self.complete
            or key in self._old
            or is_core_attribute(key)
        )

    def pending_value(self, key: AttributeKey) -> AttributeValue | None:
        """The value after everything accepted so far. Only for known keys."""
        found = self.pending.get(key)
        return found[0] if found is not None else self.committed_value(key)

    def committed_value(self, key: AttributeKey) -> AttributeValue | None:
        """The value after everything committed. Only for known keys."""
        found = self._young.get(key)
        if found is None:
            found = self._old.pop(key, None)
            if found is None:
                return self.core_values.get(key)
            self._young[key] = found
        return found[0]

    def core(self) -> dict[AttributeKey, AttributeValue]:
        """Committed core attributes, as the caller's own."""
        return dict(self.core_values)

    def pending_core(self) -> dict[AttributeKey, AttributeValue]:
        """Core attributes after everything accepted so far."""
        values = dict(self.core_values)
        for key, (value, _) in self.pending.items():
            if is_core_attribute(key):
                if value is None:
                    values.pop(key, None)
                else:
                    values[key] = value
        return values

    def extended(self) -> Iterator[tuple[AttributeKey, NumberedValue]]:
        """Committed extended values in memory, those known to be absent included; must not change meanwhile."""
        return chain(self._old.items(), self._young.items())

    def copy_extended(self) -> tuple[dict[AttributeKey, NumberedValue], ...]:
        """Copies of what extended() gives, for a look at it elsewhere."""
        return self._old.copy(), self._young.copy()

    @property
    def extended_count(self) -> int:
        """Committed extended values in memory, those known to be absent included."""
        return len(self._old) + len(self._young)

    @property
    def has_extended(self) -> bool:
        """An extended attribute was set, or looked for, while the segment was in memory."""
        return self._has_extended

    # --- changes ---------------------------------------------------------------------------------

    def accept(
        self, changes: Iterable[tuple[AttributeKey, AttributeValue | None]], number: SequenceNumber
    ) -> None:
        """Note the values of an accepted operation."""
        for key, value in changes:
            self.pending[key] = (value, number)
            if not self._has_extended and not is_core_attribute(key):
                self._has_extended = True

    def commit(
        self, changes: Iterable[tuple[AttributeKey, AttributeValue | None]], number: SequenceNumber
    ) -> None:
        """Move the values of a committed operation over."""
        pending = self.pending
        for key, value in changes:
            found = pending.get(key)
            if found is not None and found[1] == number:
                del pending[key]
            if not is_core_attribute(key):
                self._hold(key, (value, number))
            elif value.__class__ is int and self.core_values.get(key).__class__ is int:
                self.core_values[key] = value  # a counter, which nearly every append changes
            else:
                self._set_core(key, value)

    def commit_published(
        self, changes: Iterable[tuple[AttributeKey, AttributeValue | None]]
    ) -> None:
        """Values of a replayed operation that Tier 2 has: extended ones stay there until they are asked for.

        A value that is held is of an earlier operation, and is forgotten: judged against it, a retry that must be
        refused would be accepted.
        """
        for key, value in changes:
            if not is_core_attribute(key):
                self._has_extended = True
                self.complete = False
                self._forget(key)
            else:
                self._set_core(key, value)

    def load_core(self, values: Mapping[AttributeKey, AttributeValue]) -> None:
        """Core attributes as they are stored: those of a segment that becomes active."""
        for key, value in values.items():
            self._set_core(key, value)

    def _set_core(self, key: AttributeKey, value: AttributeValue | None) -> None:
        before = self.core_values.get(key)
        if value is None:
            self.core_values.pop(key, None)
        else:
            self.core_values[key] = value
        difference = _core_memory_bytes(value) - _core_memory_bytes(before)
        self.core_bytes += difference
        if self._ledger is not None:
            self._ledger.core_bytes += difference

    def learn(
        self, keys: Iterable[AttributeKey], found: Mapping[AttributeKey, AttributeValue]
    ) -> None:
        """Add what Tier 2 says of `keys`; values that came meanwhile from the log are newer and stay."""
        for key in keys:
            if key not in self._young and key not in self._old and not is_core_attribute(key):
                self._hold(key, (found.get(key), NO_SEQUENCE_NUMBER))

    def _hold(self, key: AttributeKey, found: NumberedValue) -> None:
        young = self._young
        before = young.get(key)
        if before is None and self._old:
            before = self._old.pop(key, None)
        young[key] = found
        if before is None:
            self._has_extended = True
            self._grow(_memory_bytes(key, found))
        elif before[0].__class__ is bytes or found[0].__class__ is bytes:
            self._grow(_memory_bytes(key, found) - _memory_bytes(key, before))

    def _forget(self, key: AttributeKey) -> None:
        found = self._young.pop(key, None) or self._old.pop(key, None)
        if found is not None:
            self._grow(-_memory_bytes(key, found))
            self.drops += 1

    def sweep(self, published: SequenceNumber, count: int) -> int:
        """Drop, of the `count` values that were not used for longest, those that Tier 2 has; how many were looked at.

        `published`: operations at or below it are in Tier 2. O(count), and O(values) once per generation.
        """
        if not self._old:
            self._old, self._young = self._young, {}
            # Kept from call to call: a dictionary that loses its first keys is slow to begin.
            self._old_keys = iter(list(self._old))
        looked_at = 0
        for key in islice(self._old_keys, count):
            looked_at += 1
            found = self._old.pop(key, None)
            if found is None:
                continue  # used since
            if found[1] > published or key in self.pending:
                self._young[key] = found
                continue
            self._grow(-_memory_bytes(key, found))
            self.drops += 1
            if found[0] is not None:
                self.complete = False
        return looked_at

    # --- memory ----------------------------------------------------------------------------------

    def join(self, ledger: AttributeLedger, owner: AttributeOwner) -> None:
        """Count in the container's ledger from now on."""
        assert self._ledger is None, "the attributes are in a ledger already"
        self._ledger, self._owner = ledger, owner
        if self.held_bytes:
            ledger.holders[self] = owner
        ledger.held_bytes += self.held_bytes
        ledger.core_bytes += self.core_bytes

    def leave(self) -> None:
        """The segment leaves memory."""
        if self._ledger is not None:
            self._ledger.held_bytes -= self.held_bytes
            self._ledger.core_bytes -= self.core_bytes
            self._ledger.holders.pop(self, None)
            self._ledger = self._owner = None

    def _grow(self, byte_difference: int) -> None:
        held_nothing = not self.held_bytes
        self.held_bytes += byte_difference
        if self._ledger is None or self._owner is None:
            return
        self._ledger.held_bytes += byte_difference
        if held_nothing:
            self._ledger.holders[self] = self._owner
        elif not self.held_bytes:
            del self._ledger.holders[self]

    def check(self) -> None:
        """Prove the invariants; O(values)."""
        both = self._young.keys() & self._old.keys()
        assert not both, f"{len(both)} values are in both generations"
        noted = self._ledger is None or (self in self._ledger.holders) == (self.held_bytes > 0)
        assert noted, f"held_bytes={self.held_bytes} and the ledger says otherwise"
        total = sum(_memory_bytes(key, found) for key, found in self.extended())
        assert total == self.held_bytes, f"held_bytes={self.held_bytes} but values have {total}"
        core = sum(map(_core_memory_bytes, self.core_values.values()))
        assert core == self.core_bytes, f"core_bytes={self.core_bytes} but values have {core}"
        misplaced = [key for key, _ in self.extended() if is_core_attribute(key)]
        assert not misplaced, f"core attributes among the extended {misplaced}"


def _memory_bytes(key: AttributeKey, found: NumberedValue) -> int:
    value = found[0]
    return ENTRY_BYTES + len(key) + (len(value) if isinstance(value, bytes) else 0)


def _core_memory_bytes(value: AttributeValue | None) -> int:
    """A byte string is here twice: its segment's encoded record has it as well."""
    if value is None:
        return 0
    return ENTRY_BYTES + (2 * len(value) if isinstance(value, bytes) else 0)
