"""Delegation tokens: who may do what with a segment. Without a verifier every token is fine."""

from enum import IntEnum
from typing import Final, Protocol

from segmentstore.codec.wire_protocol import reads, refusals, tables
from segmentstore.codec.wire_protocol.administration import ListStorageChunks

READING_TYPES: Final = frozenset(
    command.type
    for command in (
        reads.ReadSegment,
        reads.GetStreamSegmentInfo,
        reads.GetSegmentAttribute,
        reads.LocateOffset,
        tables.GetTableSegmentInfo,
        tables.ReadTable,
        tables.ReadTableKeys,
        tables.ReadTableEntries,
        tables.ReadTableEntriesDelta,
        ListStorageChunks,
    )
)
"""Commands that need no more than the right to read."""


class TokenVerdict(IntEnum):
    """What a verifier found; a refusal is the error code that the client is told."""

    UNSPECIFIED = refusals.UNSPECIFIED
    REFUSED = refusals.TOKEN_CHECK_FAILED
    EXPIRED = refusals.TOKEN_EXPIRED
    ACCEPTED = 2


class TokenVerifier(Protocol):
    """Looks at a token; never waits."""

    def __call__(self, token: str, segment: str, *, write: bool) -> TokenVerdict: ...
