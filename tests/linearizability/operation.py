"""One operation of a history: what a client asked for and when, what it was told and when.

A history is a list of operations by many clients at once on many targets: segments, and single keys of tables. A
target is checked by itself.

Rules for what records a history:

- `invoked` is taken before the request is sent, `answered` when its answer is there, by one clock.
- An operation whose answer says that nothing was done is left out. One that was sent and got no answer, or an answer
  that leaves it open, is UNKNOWN: it may have been done at any time since, or never.
- The bytes of each append, and the value of each put, are those of no other in the history.

As JSON (`as_json`) times are whole nanoseconds and bytes are text of one character each.
"""

import math
from dataclasses import dataclass
from enum import StrEnum


class Verb(StrEnum):
    """What is asked for: first of segments, then of a table's key."""

    CREATE = "create"
    APPEND = "append"
    SEAL = "seal"
    TRUNCATE = "truncate"
    INFO = "info"
    READ = "read"
    DELETE = "delete"
    PUT = "put"
    REMOVE = "remove"
    GET = "get"


class Outcome(StrEnum):
    """What the client was told: done, a refusal by its reason, or nothing."""

    OK = "ok"
    UNKNOWN = "unknown"
    ABSENT = "absent"
    EXISTS = "exists"
    SEALED = "sealed"
    BAD_OFFSET = "bad_offset"
    TRUNCATED = "truncated"
    BAD_VERSION = "bad_version"


OBSERVATIONS = frozenset({Verb.INFO, Verb.READ, Verb.GET})
"""They change nothing, so one without an answer says nothing."""
TABLE_VERBS = frozenset({Verb.PUT, Verb.REMOVE, Verb.GET})
NO_ENTRY = -1
"""As the condition of a put: only if there is no entry."""


@dataclass(frozen=True, slots=True)
class Operation:
    """Fields that the verb has no use for, or that the answer did not tell, are None."""

    client: int
    target: str
    verb: Verb
    outcome: Outcome
    invoked: float
    answered: float = math.inf
    content: bytes | None = None
    """To append, to put; and what a read or a get returned. A get of an absent key is OK with None."""
    offset: int | None = None
    """Of an append: only at this length. Of a truncation: up to here. Of a read: from here."""
    count: int | None = None
    """How many bytes a read asked for."""
    version: int | None = None
    """The condition of a put or a removal; a version, or NO_ENTRY."""
    length: int | None = None
    """As told: behind an append, at a refusal, of an info or a read."""
    start: int | None = None
    sealed: bool | None = None
    new_version: int | None = None
    """Behind a put, or as a get found it."""

    @property
    def changes(self) -> bool:
        return self.verb not in OBSERVATIONS

    def as_json(self) -> dict[str, object]:
        values: dict[str, object] = {
            "client": self.client,
            "verb": self.verb,
            "outcome": self.outcome,
            "invoked": round(self.invoked * 1e9),
            "answered": None if self.answered == math.inf else round(self.answered * 1e9),
            "content": None if self.content is None else self.content.decode("latin-1"),
        }
        for name in ("offset", "count", "version", "length", "start", "sealed", "new_version"):
            values[name] = getattr(self, name)
        return values

    def __str__(self) -> str:
        asked = [
            f"{name}={getattr(self, name)!r}"
            for name in ("content", "offset", "count", "version", "length", "start", "sealed")
            if getattr(self, name) is not None
        ]
        times = f"{self.invoked:.6f}..{self.answered:.6f}"
        return f"{times} client={self.client} {self.verb} {' '.join(asked)} -> {self.outcome}"[:400]
