"""Tokens by which segment stores know what this client may do; the controller gives them out, one for each stream.

Invariants:

- A token is asked for when a segment of its stream is first looked for, and again after the segment was forgotten,
  which is what everybody does whose request was refused for a token that is too old.
- At most `_REMEMBERED_MAX` of them are remembered.
"""

from dataclasses import replace
from typing import Final, Protocol

from segmentstore.client.segment_locator import SegmentLocator
from segmentstore.client.wire_connection import Endpoint
from segmentstore.codec.stream_names import parse_segment
from segmentstore.codec.wire_protocol.command import Command
from segmentstore.contracts.errors import InvalidRequestError

_REMEMBERED_MAX: Final = 10_000
_NAMES: Final = ("segment", "target", "parent_segment")
"""Fields that say which segment a command is about."""


class TokenSource(Protocol):
    """Whoever gives out tokens: the controller."""

    async def delegation_token(self, scope: str, stream: str) -> str: ...


class DelegationTokens:
    """A locator that fetches the token along with the address, and signs commands with it."""

    def __init__(self, source: TokenSource, locator: SegmentLocator) -> None:
        self._source = source
        self._locator = locator
        self._tokens: dict[tuple[str, str], str] = {}

    async def endpoint(self, segment: str) -> Endpoint:
        """As SegmentLocator says."""
        stream = _stream_of(segment)
        if stream is not None and stream not in self._tokens:
            token = await self._source.delegation_token(*stream)
            while len(self._tokens) >= _REMEMBERED_MAX:
                self._tokens.pop(next(iter(self._tokens)))
            self._tokens[stream] = token
        return await self._locator.endpoint(segment)

    def forget(self, segment: str) -> None:
        """As SegmentLocator says."""
        stream = _stream_of(segment)
        if stream is not None:
            self._tokens.pop(stream, None)
        self._locator.forget(segment)

    def sign(self, command: Command) -> Command:
        """The same with its stream's token, if it is of a kind that carries one."""
        if getattr(command, "delegation_token", None) != "":
            return command
        for name in _NAMES:
            segment = getattr(command, name, None)
            if isinstance(segment, str):
                stream = _stream_of(segment)
                token = "" if stream is None else self._tokens.get(stream, "")
                # Every dataclass with the field takes it; no type says so for commands as a whole.
                return replace(command, delegation_token=token)  # type: ignore[call-arg]
        return command


def _stream_of(segment: str) -> tuple[str, str] | None:
    try:
        parsed = parse_segment(segment)
    except InvalidRequestError:
        return None
    return parsed.scope, parsed.stream
