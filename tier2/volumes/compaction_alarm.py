"""When the compactor should look again: some time after a change, soon when the disk is full, otherwise never."""

import asyncio

_URGENT_SECONDS = 1.0


class CompactionAlarm:
    """Set by whoever changes something, awaited by the compactor."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self._hurry = asyncio.Event()

    def set(self, urgent: bool) -> None:
        """Something changed; `urgent`: and the disk is full."""
        self._changed.set()
        if urgent:
            self._hurry.set()

    async def wait(self, seconds: float) -> None:
        """Until something changes, and then for so long; or for a second when it is urgent."""
        await self._changed.wait()
        await self.pause(seconds)
        self._changed.clear()
        self._hurry.clear()

    async def pause(self, seconds: float) -> None:
        """Cut short when it is urgent."""
        timer = asyncio.get_running_loop().call_later(seconds, self._hurry.set)
        try:
            await asyncio.sleep(min(seconds, _URGENT_SECONDS))
            await self._hurry.wait()
        finally:
            timer.cancel()
