"""HTTP by hand: for requests that no decent client would send."""

import asyncio
import json


async def exchange(url: str, request: bytes, *, half_close: bool = False) -> tuple[int, bytes]:
    """Send bytes, read until the server closes or one whole answer is there: (status, everything)."""
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(request)
        if half_close:
            writer.write_eof()
        async with asyncio.timeout(60):
            head = await reader.readuntil(b"\r\n\r\n")
            length = 0
            for line in head.split(b"\r\n"):
                if line.lower().startswith(b"content-length:"):
                    length = int(line.partition(b":")[2])
            body = await reader.readexactly(length)
        return int(head.split(b" ", 2)[1]), head + body
    finally:
        writer.close()


def post(target: str, body: bytes = b"x", /, **headers: str) -> bytes:
    """A well-formed POST."""
    lines = [
        f"POST {target} HTTP/1.1",
        "Host: localhost",
        f"Content-Length: {len(body)}",
        *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items()),
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def get(target: str) -> bytes:
    return f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def error_of(answer: bytes) -> dict[str, str]:
    """The JSON body of an answer that is not a success."""
    value: dict[str, str] = json.loads(answer.partition(b"\r\n\r\n")[2])
    return value
