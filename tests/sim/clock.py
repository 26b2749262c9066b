"""The wall clock of a simulated machine: it follows virtual time, badly if told so (H77)."""

from tests.sim.loop import SimLoop

_START_MS = 1_800_000_000_000


class SimulatedWallClock:
    """Unix time in milliseconds: start + offset + virtual time running at 1 + drift."""

    def __init__(self, loop: SimLoop, *, offset_ms: int = 0, drift: float = 0.0) -> None:
        self._loop = loop
        self._drift = drift
        self._since = loop.time()
        self._base_ms: float = _START_MS + offset_ms

    def now_ms(self) -> int:
        return int(self._base_ms + (self._loop.time() - self._since) * 1000 * (1 + self._drift))

    def step(self, milliseconds: int) -> None:
        """Jump, forward or back."""
        self._rebase()
        self._base_ms += milliseconds

    def set_drift(self, drift: float) -> None:
        """Run faster (positive) or slower from now on; 0.01 gains ten milliseconds a second."""
        self._rebase()
        self._drift = drift

    def _rebase(self) -> None:
        now = self._loop.time()
        self._base_ms += (now - self._since) * 1000 * (1 + self._drift)
        self._since = now
