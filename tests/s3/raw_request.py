"""Requests that no client library would send: signed by botocore, then sent over a socket as they are."""

import http.client
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import urlsplit

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from segmentstore.s3.authentication import Authenticated, Scope, signing_key
from tests.s3.conftest import KEYS


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def code(self) -> str:
        return self.body.partition(b"<Code>")[2].partition(b"</Code>")[0].decode()


def signed_headers(
    method: str,
    url: str,
    payload: str = "UNSIGNED-PAYLOAD",
    headers: Mapping[str, str] | None = None,
    *,
    secret: str = KEYS.secret_key,
    access_key: str = KEYS.access_key,
) -> dict[str, str]:
    """The headers of a request whose payload is described as `payload`."""
    request = AWSRequest(
        method=method, url=url, headers={"X-Amz-Content-SHA256": payload, **(headers or {})}
    )
    signer = _Signer(Credentials(access_key, secret), "s3", "us-east-1")
    signer.payload_text = payload
    signer.add_auth(request)
    return {name: str(value) for name, value in request.headers.items()}


class _Signer(S3SigV4Auth):  # type: ignore[misc]  # untyped
    payload_text = ""

    def payload(self, request: AWSRequest) -> str:
        return self.payload_text

    def _should_sha256_sign_payload(self, request: AWSRequest) -> bool:
        return True


def seed_of(headers: Mapping[str, str], payload: str) -> Authenticated:
    """What the signatures of a streamed body's chunks begin with."""
    timestamp = headers["X-Amz-Date"]
    scope = Scope(timestamp[:8], "us-east-1", "s3")
    signature = headers["Authorization"].partition("Signature=")[2]
    key = signing_key(KEYS.secret_key, scope)
    return Authenticated(KEYS.access_key, payload, key, scope, timestamp, signature)


def send(
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: bytes = b"",
    *,
    length: int | None = None,
    cut_off: bool = False,
) -> Answer:
    """One request on a connection of its own; `length` may lie."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    skip_host = "Host" in headers
    target = parts.path + (f"?{parts.query}" if parts.query else "")
    try:
        connection.putrequest(method, target, skip_accept_encoding=True, skip_host=skip_host)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.putheader("Content-Length", str(len(body) if length is None else length))
        connection.endheaders(body or None)
        if cut_off:
            # Whoever goes away in the middle gets no answer; what counts is that nothing is stored.
            return Answer(0, {}, b"")
        response = connection.getresponse()
        return Answer(response.status, dict(response.getheaders()), response.read())
    finally:
        connection.close()


def send_bytes(url: str, request: bytes, *, half_close: bool = True) -> bytes:
    """What a server says to bytes that need not be a request, until it closes."""
    parts = urlsplit(url)
    with socket.create_connection(
        (parts.hostname or "", parts.port or 0), timeout=60
    ) as connection:
        connection.sendall(request)
        if half_close:
            connection.shutdown(socket.SHUT_WR)
        received = b""
        while piece := connection.recv(65536):
            received += piece
    return received


def timestamp_of(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
