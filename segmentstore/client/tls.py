"""How the client knows that a server is the one it means."""

import ssl
from dataclasses import dataclass

import grpc

from segmentstore.contracts.errors import InvalidRequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """For addresses that begin with `tls://`; the controller and the segment stores are held to the same."""

    authority: bytes | None = None
    """Certificates in PEM of whoever vouches for the servers; the system's if left out."""
    server_name: str | None = None
    """The name in the servers' certificates, if it is not the host's."""
    context: ssl.SSLContext | None = None
    """For segment stores, instead of one made of `authority`."""

    def ssl_context(self) -> ssl.SSLContext:
        """For connections to segment stores. Raises InvalidRequestError for what is no certificate."""
        if self.context is not None:
            return self.context
        if self.authority is None:
            return ssl.create_default_context()
        try:
            return ssl.create_default_context(cadata=self.authority.decode("ascii"))
        except (ssl.SSLError, UnicodeDecodeError) as error:
            raise InvalidRequestError(f"authority is no certificate in PEM: {error}") from error

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """For the connection to the controller."""
        return grpc.ssl_channel_credentials(root_certificates=self.authority)

    def channel_options(self) -> list[tuple[str, str]]:
        """For the same."""
        if self.server_name is None:
            return []
        return [("grpc.ssl_target_name_override", self.server_name)]
