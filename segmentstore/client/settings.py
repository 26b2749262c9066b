"""Values that a user of the client may tune, and how the client knows that a server is the one it means (`Tls`).

Every bound and every deadline of this package has its name in `ClientSettings`.
"""

import ssl
from dataclasses import dataclass
from random import Random

import grpc

from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.runtime.backoff import Backoff


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """Sizes in bytes, times in seconds. The defaults suit one process on a local network."""

    connect_seconds: float = 3.0
    silence_seconds: float = 3.0
    """A server that owes an answer, and says nothing for so long though it was asked whether it is there, is left."""
    request_seconds: float = 30.0
    """From asking to the answer, all retries included; DeadlineExceededError afterwards."""
    long_poll_seconds: float = 90.0
    """A read at the tail that is not answered for so long breaks its connection; servers answer empty before that."""
    retry_seconds_first: float = 0.02
    retry_seconds_max: float = 2.0
    """Pauses between attempts double from the first to the largest, each shortened by a random part."""

    event_bytes_max: int = 8 << 20
    """Larger events travel through a segment of their own and are merged in."""
    block_bytes_max: int = 1 << 20
    """Events of a segment that are written together; one larger event still is one block."""
    blocks_in_flight_max: int = 16
    """Blocks of one segment that wait for acknowledgements; at the bound events gather for larger blocks."""
    unacknowledged_bytes_max: int = 32 << 20
    unacknowledged_events_max: int = 50_000
    """What a writer holds until it is acknowledged; `write` waits at either bound."""
    acknowledge_seconds: float = 30.0
    """Without any progress for so long a writer reconnects."""
    append_seconds: float = 120.0
    """Without a connection for so long a writer gives up: the outcome of what it holds is unknown."""

    read_bytes: int = 1 << 20
    """Asked for at once from a segment."""
    pieces_ahead_max: int = 4
    """Answers of up to `read_bytes` that a reader holds before its user has asked for them."""

    commit_seconds: float = 1.0
    """How often a group's reader stores its positions and shows that it runs."""
    reader_timeout_seconds: float = 15.0
    """A reader whose beat does not change for so long loses its segments."""
    state_attempts_max: int = 50
    """Conditional updates of a group's state that may be lost to others in a row."""

    transaction_lease_seconds: float = 30.0
    transaction_poll_seconds: float = 0.05
    """How often the end of a commit is asked for."""

    page_size: int = 500
    """Table entries fetched at once by an iteration."""

    def backoff(self, random: Random) -> Backoff:
        """Pauses of one sequence of attempts."""
        return Backoff(
            seconds_first=self.retry_seconds_first,
            seconds_max=self.retry_seconds_max,
            random=random,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """For addresses that begin with `tls://`; the controller and the segment stores are held to the same."""

    authority: bytes | None = None
    """Certificates in PEM of the authorities that the servers' certificates come from; the system's if left out."""
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
