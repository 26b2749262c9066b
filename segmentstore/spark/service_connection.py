"""How a process of Spark's reaches the service: the one place where its connections are made.

Invariant: what a connection needs travels to executors as plain text. The file with the certificates is read where the
options are parsed, so no other machine needs it.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from segmentstore.contracts.errors import InvalidRequestError

if TYPE_CHECKING:
    # Only queries that ask the service need its client library.
    from segmentstore.client.settings import ClientSettings, Tls
    from segmentstore.client.store import Store


class ServiceAddress(Protocol):
    """Options of a read or a write, or what a task has of them. An empty text is "not given"."""

    @property
    def controller(self) -> str:
        """tcp://HOST:PORT or tls://HOST:PORT."""

    @property
    def tls_authority(self) -> str:
        """Certificates in PEM of those who vouch for the servers; the system's if empty."""

    @property
    def tls_server_name(self) -> str:
        """The name in the servers' certificates, if it is not the host's."""


def connect_service(where: ServiceAddress, settings: "ClientSettings | None" = None) -> "Store":
    """Hold it in `async with`. Raises InvalidRequestError for an address, and for certificates without a use."""
    from segmentstore.client.store import connect

    return connect(where.controller, settings=settings, tls=tls_of(where))


def tls_of(where: ServiceAddress) -> "Tls | None":
    """None if nothing is said."""
    from segmentstore.client.settings import Tls

    if not where.tls_authority and not where.tls_server_name:
        return None
    authority = where.tls_authority.encode() if where.tls_authority else None
    return Tls(authority=authority, server_name=where.tls_server_name or None)


def read_authority(path: str) -> str:
    """The certificates in the file; none without a path. Raises InvalidRequestError."""
    if not path:
        return ""
    try:
        return Path(path).read_text("ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(
            f"tlsAuthority is a file with certificates in PEM: {error}"
        ) from error
