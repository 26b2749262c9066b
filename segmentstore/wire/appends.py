"""The append half of one connection: set-ups, appends, and creating transient segments to append to.

- A set-up answers after everything submitted before it on that segment has committed or failed (H25); until then the
  connection takes no appends of that writer.
- An append of a writer that was never set up here is out of order, and ends the connection.
- At most `writers_per_connection_max` writers are remembered.
"""

import asyncio
import struct
from collections.abc import Callable
from typing import Final

from segmentstore.codec.wire_protocol.appends import (
    NO_EVENT_NUMBER,
    AppendSetup,
    ConditionalAppend,
    ConditionalBlockEnd,
    SetupAppend,
)
from segmentstore.codec.wire_protocol.protocol_error import ProtocolError
from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.contracts.identifiers import AttributeKey
from segmentstore.contracts.segments import Segment
from segmentstore.wire.append_group import AppendGroup
from segmentstore.wire.append_unit import AppendUnit, read_append
from segmentstore.wire.error_replies import is_stale, reply_to_error
from segmentstore.wire.handle_pins import HandlePins, Pin
from segmentstore.wire.outgoing import Outgoing
from segmentstore.wire.request_tasks import RequestTasks
from segmentstore.wire.segment_commands import free_attribute
from segmentstore.wire.settings import WireSettings
from segmentstore.wire.statistics import WireCounters
from segmentstore.wire.writer import AppendOwner, Writer

_EVENT_HEADER: Final = struct.Struct(">ii")


class ConnectionAppends:
    """Writers by id."""

    def __init__(
        self,
        *,
        pins: HandlePins[Segment],
        outgoing: Outgoing,
        tasks: RequestTasks,
        counters: WireCounters,
        settings: WireSettings,
        charge: Callable[[int], None],
        discharge: Callable[[int], None],
        fail: Callable[[str], None],
    ) -> None:
        self._pins = pins
        self._outgoing = outgoing
        self._tasks = tasks
        self._settings = settings
        self._writers: dict[bytes, Writer] = {}
        self._setting_up: dict[bytes, SetupAppend] = {}
        self._groups: dict[bytes, AppendGroup] = {}
        """By writer: appends that are not submitted yet. Empty between two turns of the loop."""
        self._owner = AppendOwner(
            pins=pins,
            outgoing=outgoing,
            counters=counters,
            charge=charge,
            discharge=discharge,
            fail=fail,
            reopen=lambda writer: tasks.start(self._reopen(writer)),
            writers=self._writers,
        )

    def __len__(self) -> int:
        return len(self._writers)

    # --- appends ---------------------------------------------------------------------------------

    def append(
        self, view: memoryview, *, block: tuple[int, int] | None, end: tuple[int, int]
    ) -> None:
        """An AppendBlockEnd, with the AppendBlock before it if there was one. Raises ProtocolError."""
        self.gather(read_append(view, block=block, end=end))

    def gather(self, unit: AppendUnit) -> None:
        """Let it wait for others of its writer, until submit(). Raises ProtocolError."""
        group = self._groups.get(unit.writer_id)
        if unit.writer_id not in self._writers:
            self.take(unit)  # which says why not
        elif group is None:
            self._groups[unit.writer_id] = AppendGroup(unit)
        elif not group.add(unit):
            self._groups[unit.writer_id] = AppendGroup(unit)
            self.take(group.joined())

    def submit(self) -> None:
        """At the end of what was received, and before anything that has to come behind the appends before it.

        Raises ProtocolError.
        """
        if not self._groups:
            return
        groups, self._groups = self._groups, {}
        failure: ProtocolError | None = None
        for group in groups.values():
            try:
                self.take(group.joined())
            except ProtocolError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def take(self, unit: AppendUnit) -> None:
        """Submit it by itself. Raises ProtocolError."""
        writer = self._writers.get(unit.writer_id)
        if writer is None:
            raise ProtocolError(f"append without a set-up writer={unit.writer_id.hex()}")
        writer.append(unit)

    def append_event_if(self, command: ConditionalAppend) -> None:
        """Raises ProtocolError."""
        header = _EVENT_HEADER.pack(0, len(command.event))
        self._append_if(command, header + command.event)

    def append_bytes_if(self, command: ConditionalBlockEnd) -> None:
        """Raises ProtocolError."""
        self._append_if(command, command.data)

    def _append_if(self, command: ConditionalAppend | ConditionalBlockEnd, data: bytes) -> None:
        self.take(
            AppendUnit(
                command.writer_id,
                data,
                1,
                command.event_number,
                command.request_id,
                command.expected_offset,
            )
        )

    # --- set-ups ---------------------------------------------------------------------------------

    def set_up(self, command: SetupAppend) -> None:
        """Answers later. Raises ProtocolError at the limit of writers."""
        former = self._writers.pop(command.writer_id, None)
        self._setting_up[command.writer_id] = command
        if len(self._writers) + len(self._setting_up) > self._settings.writers_per_connection_max:
            raise ProtocolError(f"too many writers count={len(self._writers)}")
        if former is not None:
            former.end()
        self._tasks.start(self._set_up(command))

    async def _set_up(self, command: SetupAppend) -> None:
        try:
            try:
                pin, last_number = await self._open_behind_all(command)
            finally:
                # A later set-up of the same writer has taken the place of this one.
                newest = self._setting_up.get(command.writer_id) is command
                if newest:
                    del self._setting_up[command.writer_id]
        except SegmentStoreError as error:
            self._outgoing.reply(
                reply_to_error(error, request_id=command.request_id, segment=command.segment)
            )
            return
        if newest:
            self._writers[command.writer_id] = Writer(
                owner=self._owner,
                writer_id=command.writer_id,
                pin=pin,
                last_number=last_number,
                now=asyncio.get_running_loop().time(),
            )
        else:
            self._pins.release(pin)
        self._outgoing.reply(
            AppendSetup(
                command.request_id,
                command.segment,
                command.writer_id,
                NO_EVENT_NUMBER if last_number is None else last_number,
            )
        )

    async def _open_behind_all(self, command: SetupAppend) -> tuple[Pin[Segment], int | None]:
        """The leased segment, and the writer's last number in it once nothing before this is under way."""
        key = free_attribute(command.writer_id)
        kept = self._pins.lease_nowait(command.segment)
        if kept is not None:
            try:
                return kept, await self._last_number(kept, key)
            except SegmentStoreError as error:
                if not is_stale(error):
                    raise
        pin = await self._pins.lease(command.segment)
        return pin, await self._last_number(pin, key)

    async def _last_number(self, pin: Pin[Segment], key: AttributeKey) -> int | None:
        """Keeps the lease unless it raises."""
        try:
            pin.handle.info()
            await asyncio.shield(pin.handle.barrier())
            number = (await pin.handle.load_attributes([key])).get(key)
        except BaseException as error:
            if is_stale(error):
                self._pins.forget(pin)
            self._pins.release(pin)
            raise
        return number if isinstance(number, int) else None

    async def _reopen(self, writer: Writer) -> None:
        try:
            pin = await self._pins.lease(writer.segment_name)
        except SegmentStoreError as error:
            writer.reopening_failed(error)
            return
        writer.reopened(pin, asyncio.get_running_loop().time())

    # --- life ------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        for writer in self._writers.values():
            writer.let_go_if_idle(now, self._settings.pin_idle_seconds)

    def close(self) -> None:
        """The connection is gone. What was submitted goes on."""
        for writer in self._writers.values():
            writer.end()
        self._writers.clear()

    def check(self) -> None:
        """O(writers)."""
        assert not self._groups, f"appends were left behind writers={len(self._groups)}"
        for writer_id, writer in self._writers.items():
            writer.check()
            assert writer_id not in self._setting_up, f"set up and setting up {writer_id.hex()}"
