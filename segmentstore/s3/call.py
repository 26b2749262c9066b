"""One request on its way through the verbs."""

from dataclasses import dataclass

from aiohttp import web

from segmentstore.s3.authentication import Authenticated
from segmentstore.s3.request_target import RequestTarget


@dataclass(slots=True)
class Call:
    """A request whose signature is right."""

    request: web.BaseRequest
    target: RequestTarget
    authenticated: Authenticated
    request_id: str
    invited: bool = False
    """Whether a client that asked first was told to send its body."""

    @property
    def bucket(self) -> str:
        return self.target.bucket

    @property
    def query(self) -> dict[str, str]:
        return self.target.query

    @property
    def expects_invitation(self) -> bool:
        return self.request.headers.get("Expect", "").lower() == "100-continue"

    def header(self, name: str) -> str | None:
        return self.request.headers.get(name)

    def flag(self, name: str) -> bool:
        """A header that says true."""
        return self.request.headers.get(name, "").lower() == "true"

    async def invite_body(self) -> None:
        """Answer `Expect: 100-continue`, once."""
        if not self.expects_invitation or self.invited:
            return
        self.invited = True
        await self.request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        # What was written is no part of the answer that follows.
        self.request.writer.output_size = 0
