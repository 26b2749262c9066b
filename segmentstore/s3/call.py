"""One request on its way through the verbs."""

from dataclasses import dataclass

from aiohttp import web

from segmentstore.s3.authentication import Authenticated
from segmentstore.s3.request_target import RequestTarget


@dataclass(slots=True)
class Invitation:
    """Of a body whose client asks before it sends it (`Expect: 100-continue`)."""

    request: web.BaseRequest
    given: bool = False

    @property
    def is_due(self) -> bool:
        """Whether the client still waits for it."""
        return self.request.headers.get("Expect", "").lower() == "100-continue" and not self.given

    async def give(self) -> None:
        """Once, if the client asked."""
        if not self.is_due:
            return
        self.given = True
        await self.request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        # What was written is no part of the answer that follows.
        self.request.writer.output_size = 0


@dataclass(slots=True)
class Call:
    """A request whose signature is right."""

    request: web.BaseRequest
    target: RequestTarget
    authenticated: Authenticated
    request_id: str
    invitation: Invitation

    @property
    def bucket(self) -> str:
        return self.target.bucket

    @property
    def query(self) -> dict[str, str]:
        return self.target.query

    def header(self, name: str) -> str | None:
        return self.request.headers.get(name)

    def flag(self, name: str) -> bool:
        """A header that says true."""
        return self.request.headers.get(name, "").lower() == "true"
