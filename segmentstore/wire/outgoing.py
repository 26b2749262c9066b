"""What one connection has to say, gathered for one turn of the loop.

- Acknowledgements stand for everything stored so far: they are written as late as possible, and yet before anything
  that is said after them.
- Replies go out in the order in which they were given.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from segmentstore.codec.wire_protocol.command import Command
from segmentstore.wire.settings import WireSettings
from segmentstore.wire.statistics import WireCounters


class AckSource(Protocol):
    """A writer that has something to acknowledge."""

    def take_acknowledgement(self) -> bytes: ...


class Outgoing:
    """send() and acknowledge(); the socket gets it once per turn."""

    def __init__(
        self,
        *,
        transport: asyncio.Transport,
        settings: WireSettings,
        counters: WireCounters,
        on_room: Callable[[], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._settings = settings
        self._counters = counters
        self._on_room = on_room
        self._parts: list[bytes] = []
        self._parts_bytes = 0
        self._unacknowledged: list[AckSource] = []
        self._scheduled = False
        self._paused = False
        transport.set_write_buffer_limits(high=settings.send_buffer_bytes_max)

    @property
    def is_full(self) -> bool:
        """The client does not take what it is sent: no more data for it now."""
        return self._paused

    @property
    def is_backlogged(self) -> bool:
        """Even small replies have piled up."""
        return (
            self._paused
            and self._transport.get_write_buffer_size() > self._settings.send_backlog_bytes_max
        )

    def acknowledge(self, source: AckSource, *, flushes: bool = False) -> None:
        """It will be asked for its acknowledgement, once; in this turn still if the caller `flushes` itself."""
        self._unacknowledged.append(source)
        if not self._scheduled and not flushes:
            self._schedule()

    def reply(self, command: Command) -> None:
        self.send(command.encode())

    def send(self, *parts: bytes) -> None:
        """Whole frames."""
        if self._unacknowledged:
            self.gather_acknowledgements()
        self._parts += parts
        self._parts_bytes += sum(map(len, parts))
        if self._parts_bytes >= self._settings.flush_bytes:
            self.flush()
        elif not self._scheduled:
            self._schedule()

    def flush(self) -> None:
        """Hand everything to the socket now."""
        if self._unacknowledged:
            self.gather_acknowledgements()
        parts = self._parts
        if not parts:
            return
        self._parts = []
        self._parts_bytes = 0
        if self._transport.is_closing():
            return
        if len(parts) == 1:
            self._transport.write(parts[0])
        else:
            self._transport.writelines(parts)

    def pause(self) -> None:
        """From the transport: its buffer is full."""
        self._paused = True

    def resume(self) -> None:
        """From the transport: its buffer has room again."""
        self._paused = False
        self._on_room()

    def _schedule(self) -> None:
        self._scheduled = True
        self._loop.call_soon(self._flush_scheduled)

    def _flush_scheduled(self) -> None:
        self._scheduled = False
        self.flush()

    def gather_acknowledgements(self) -> None:
        """Take the acknowledgements as they stand: what is stored from now on gets others."""
        sources, self._unacknowledged = self._unacknowledged, []
        self._counters.acknowledgements += len(sources)
        for source in sources:
            acknowledgement = source.take_acknowledgement()
            self._parts.append(acknowledgement)
            self._parts_bytes += len(acknowledgement)
