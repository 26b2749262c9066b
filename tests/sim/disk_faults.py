"""Errors that a simulated disk returns: planned ones by call, random ones by rate.

Kinds of calls: open create read write size truncate sync lock exists rename link remove free list make_directories
remove_directory is_directory sync_directory.
"""

from dataclasses import dataclass, field
from random import Random


@dataclass(slots=True)
class PlannedFault:
    """Fails calls of one kind whose path contains a text: lets `skip` pass, then fails `times`."""

    kind: str
    error_number: int
    path_part: str
    process: str | None
    skip: int
    times: int

    def applies(self, kind: str, path: str, process: str) -> bool:
        if kind != self.kind or self.path_part not in path or self.process not in (None, process):
            return False
        if self.skip:
            self.skip -= 1
            return False
        return self.times > 0


@dataclass(slots=True)
class DiskFaults:
    """What goes wrong on a disk. struck: how many errors it has returned so far."""

    struck: int = 0
    _planned: list[PlannedFault] = field(default_factory=list)
    _rates: dict[str, tuple[float, int]] = field(default_factory=dict)
    _random: Random = field(default_factory=lambda: Random(0))

    def plan(
        self,
        kind: str,
        error_number: int,
        *,
        path_part: str = "",
        process: str | None = None,
        skip: int = 0,
        times: int = 1,
    ) -> None:
        """Fail coming calls with OSError(error_number)."""
        self._planned.append(PlannedFault(kind, error_number, path_part, process, skip, times))

    def set_rate(self, kind: str, probability: float, error_number: int, random: Random) -> None:
        """From now on calls of this kind fail by chance; 0 ends it."""
        self._random = random
        self._rates[kind] = (probability, error_number)

    def clear(self) -> None:
        """Nothing fails any more."""
        self._planned.clear()
        self._rates.clear()

    def strike(self, kind: str, path: str, *, process: str) -> None:
        """Raise what is due for this call."""
        for fault in self._planned:
            if fault.applies(kind, path, process):
                fault.times -= 1
                self._raise(fault.error_number, kind, path)
        probability, error_number = self._rates.get(kind, (0.0, 0))
        if probability and self._random.random() < probability:
            self._raise(error_number, kind, path)

    def _raise(self, error_number: int, kind: str, path: str) -> None:
        self.struck += 1
        raise OSError(error_number, f"simulated fault in {kind}", path)
