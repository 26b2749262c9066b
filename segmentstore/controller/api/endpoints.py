"""Where clients are sent, and with which token: both decided outside of the controller."""

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass

from segmentstore.contracts.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address that every client reads alike: an IP literal, never a host name."""

    address: str
    port: int

    def __post_init__(self) -> None:
        try:
            ipaddress.ip_address(self.address)
        except ValueError as error:
            # Clients that resolve names themselves pick different ones of several addresses.
            raise InvalidRequestError(
                f"an endpoint is an IP address, not a name address={self.address!r}"
            ) from error
        if not 0 < self.port < 65536:
            raise InvalidRequestError(f"port is out of range port={self.port}")


LocateSegment = Callable[[str], Endpoint]
"""The segment store that serves a segment, by the segment's qualified name. Raises SegmentStoreError if unknown."""

IssueToken = Callable[[str, str], str]
"""A delegation token for the stream of a scope; empty without authentication."""


def no_token(scope: str, stream: str) -> str:  # noqa: ARG001 (the shape of IssueToken)
    """Without authentication every token is empty."""
    return ""
