"""Which command a frame's type stands for."""

from collections.abc import Mapping
from types import MappingProxyType, ModuleType
from typing import Final

from segmentstore.codec.wire_protocol import (
    administration,
    appends,
    reads,
    refusals,
    segments,
    session,
    tables,
)
from segmentstore.codec.wire_protocol.command import Command
from segmentstore.codec.wire_protocol.protocol_error import ProtocolError
from segmentstore.contracts.identifiers import BufferView

_MODULES: Final[tuple[ModuleType, ...]] = (
    session,
    appends,
    reads,
    segments,
    tables,
    administration,
    refusals,
)


def _commands() -> dict[int, type[Command]]:
    found: dict[int, type[Command]] = {}
    for module in _MODULES:
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, Command) and value is not Command:
                assert value.type not in found, f"two commands of one type {value.__name__}"
                found[value.type] = value
    return found


COMMANDS: Final[Mapping[int, type[Command]]] = MappingProxyType(_commands())
"""Every command by its type number."""


def decode_command(command_type: int, payload: BufferView) -> Command:
    """The command of a frame. Raises ProtocolError for an unknown type or a payload that does not fit it."""
    command = COMMANDS.get(command_type)
    if command is None:
        raise ProtocolError(f"unknown command type={command_type} length={len(payload)}")
    return command.decode(payload)
