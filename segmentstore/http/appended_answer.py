"""The answer to a plain append, the most frequent one by far: put together and written in one piece.

- It says what every other 204 of this room says; only the way there is shorter.
- A client that does not read its answers is not answered further (the writer's limit holds here too).
"""

from email.utils import formatdate

from aiohttp import ClientConnectionResetError, HttpVersion11, web

from segmentstore.http.responses import SECURITY_HEADERS
from segmentstore.runtime.clock import WallClock

_HEAD_COMMON = "".join(f"{name}: {value}\r\n" for name, value in SECURITY_HEADERS.items())


class HttpDate:
    """The Date header's value, made once a second."""

    def __init__(self, wall_clock: WallClock) -> None:
        self._wall_clock = wall_clock
        self._second = -1
        self._text = ""

    def text(self) -> str:
        second = self._wall_clock.now_ms() // 1000
        if second != self._second:
            self._second = second
            self._text = formatdate(second, usegmt=True)
        return self._text


class AppendedAnswer(web.StreamResponse):
    """204 to a plain append: written in one piece, past the stages that every other answer goes through.

    They cost more than the append. What is added to `headers` before prepare() is sent too.
    """

    def __init__(self, *, next_offset: str, date: str) -> None:
        super().__init__(status=204)
        self._next_offset = next_offset
        self._date = date
        self._stays_open = False

    @property
    def keep_alive(self) -> bool:
        """Whether the connection takes further requests; known from prepare() on."""
        return self._stays_open

    async def prepare(self, request: web.BaseRequest) -> None:
        """Send it. Raises ConnectionError when the client has gone."""
        self._stays_open = request.keep_alive
        head = "HTTP/1.1" if request.version == HttpVersion11 else "HTTP/1.0"
        head += (
            f" 204 No Content\r\n{_HEAD_COMMON}Stream-Next-Offset: {self._next_offset}\r\n"
            f"Date: {self._date}\r\n"
        )
        if self.headers:
            head += "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
        if not self._stays_open:
            head += "Connection: close\r\n"
        elif request.version != HttpVersion11:
            head += "Connection: keep-alive\r\n"
        transport = request.transport
        if transport is None or transport.is_closing():
            raise ClientConnectionResetError("the client has gone")
        transport.write(f"{head}\r\n".encode())
        # A client that sends without reading waits here, and its answers do not pile up.
        await request.writer.drain()

    async def write_eof(self, data: bytes = b"") -> None:
        """All is sent."""
