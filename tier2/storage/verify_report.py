"""What a verification of one container's Tier 2 found, and how far it is."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from tier2.storage.object_names import ObjectIdentity

FINDINGS_MAX = 1_000

Progress: TypeAlias = Callable[[int, int], None]
"""Called with bytes read so far and the bytes that the container's objects have in all."""


@dataclass(slots=True)
class VerifyReport:
    """What was looked at and what was found."""

    root_version: int = 0
    segments: int = 0
    bytes_of_segments: int = 0
    runs: int = 0
    chunks: int = 0
    garbage: int = 0
    backups: int = 0
    """Roots that are kept for them; what they hold counts in none of the above."""
    damages: list[str] = field(default_factory=list)
    damage_count: int = 0
    orphans: list[str] = field(default_factory=list)
    orphan_count: int = 0

    @property
    def sound(self) -> bool:
        return self.damage_count == 0

    def add_damage(self, what: str) -> None:
        self.damage_count += 1
        if len(self.damages) < FINDINGS_MAX:
            self.damages.append(what)

    def add_orphan(self, key: str) -> None:
        self.orphan_count += 1
        if len(self.orphans) < FINDINGS_MAX:
            self.orphans.append(key)


@dataclass(slots=True)
class VerifyCourse:
    """What was read so far, by whichever root named it."""

    progress: Progress | None
    done_bytes: int = 0
    all_bytes: int = 0
    parts: set[ObjectIdentity] = field(default_factory=set)
    sizes: dict[ObjectIdentity, int] = field(default_factory=dict)

    def advance(self, size: int) -> None:
        self.done_bytes += size
        if self.progress is not None:
            self.progress(self.done_bytes, max(self.all_bytes, self.done_bytes))
