"""The attributes of one segment in memory: committed, pending, and how much is known.

An attribute is *known*, *known to be absent*, or *unknown* (H26): a table that is not `complete` may lack values that
Tier 2 has, and nobody may conclude absence from it. Core attributes are always complete.

Invariants:
- `pending` holds exactly the values of operations that are accepted and not yet committed;
- what is dropped by `trim` was published with the very value that is dropped.
"""

from collections.abc import Iterable, Mapping

from segmentstore.contracts.identifiers import (
    AttributeKey,
    AttributeValue,
    SequenceNumber,
    is_core_attribute,
)


class AttributeTable:
    """Values by key. None stands for "known to be absent"."""

    __slots__ = ("committed", "complete", "pending", "trims")

    def __init__(self, *, complete: bool) -> None:
        self.committed: dict[AttributeKey, AttributeValue | None] = {}
        self.pending: dict[AttributeKey, tuple[AttributeValue | None, SequenceNumber]] = {}
        self.trims = 0
        """How often values left memory: what was read from Tier 2 before may be older than they were."""
        self.complete = complete
        """Every extended attribute that exists is in `committed`."""

    def is_known(self, key: AttributeKey) -> bool:
        return (
            key in self.pending or key in self.committed or self.complete or is_core_attribute(key)
        )

    def pending_value(self, key: AttributeKey) -> AttributeValue | None:
        """The value after everything accepted so far. Only for known keys."""
        found = self.pending.get(key)
        return found[0] if found is not None else self.committed.get(key)

    def committed_value(self, key: AttributeKey) -> AttributeValue | None:
        """The value after everything committed. Only for known keys."""
        return self.committed.get(key)

    def accept(
        self, changes: Iterable[tuple[AttributeKey, AttributeValue | None]], number: SequenceNumber
    ) -> None:
        """Note the values of an accepted operation."""
        for key, value in changes:
            self.pending[key] = (value, number)

    def commit(
        self, changes: Iterable[tuple[AttributeKey, AttributeValue | None]], number: SequenceNumber
    ) -> None:
        """Move the values of a committed operation over."""
        pending = self.pending
        for key, value in changes:
            if value is None and self.complete:
                self.committed.pop(key, None)
            else:
                self.committed[key] = value
            found = pending.get(key)
            if found is not None and found[1] == number:
                del pending[key]

    def learn(
        self, keys: Iterable[AttributeKey], found: Mapping[AttributeKey, AttributeValue]
    ) -> None:
        """Add what Tier 2 says of `keys`; values that came meanwhile from the log are newer and stay."""
        for key in keys:
            if key not in self.committed:
                self.committed[key] = found.get(key)

    def trim(self, published: Mapping[AttributeKey, AttributeValue | None], count_max: int) -> None:
        """Drop extended values that were just published, if the table holds more than count_max."""
        excess = len(self.committed) - count_max
        if excess <= 0:
            return
        self.trims += 1
        for key, value in published.items():
            if excess <= 0:
                break
            if key in self.pending or is_core_attribute(key):
                continue
            if key in self.committed and self.committed[key] == value:
                del self.committed[key]
                self.complete = False
                excess -= 1

    def core(self) -> dict[AttributeKey, AttributeValue]:
        """Committed core attributes."""
        return {
            key: value
            for key, value in self.committed.items()
            if value is not None and is_core_attribute(key)
        }

    def pending_core(self) -> dict[AttributeKey, AttributeValue]:
        """Core attributes after everything accepted so far."""
        values = self.core()
        for key, (value, _) in self.pending.items():
            if is_core_attribute(key):
                if value is None:
                    values.pop(key, None)
                else:
                    values[key] = value
        return values
