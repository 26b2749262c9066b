"""A listening socket for the endpoint: aiohttp's low-level server, without its router and middleware.

close() stops accepting, lets requests under way finish within `shutdown_seconds`, and drops what is left then. Changes
that the engine has taken are made all the same.
"""

from aiohttp import web

from segmentstore.s3.dispatch import Dispatch
from segmentstore.s3.settings import EndpointSettings


class S3Server:
    """start(), then `address`, then close()."""

    def __init__(self, *, dispatch: Dispatch, settings: EndpointSettings) -> None:
        self._dispatch = dispatch
        self._settings = settings
        self._runner: web.ServerRunner | None = None

    @property
    def address(self) -> tuple[str, int]:
        """(host, port) that are listened on; only between start() and close()."""
        assert self._runner is not None, "the server is not started"
        host, port = self._runner.addresses[0][:2]
        return host, port

    async def start(self) -> None:
        """Listen. Raises OSError if the port is taken."""
        assert self._runner is None, "the server is started already"
        settings = self._settings
        server = web.Server(
            self._dispatch.handle,
            access_log=None,
            handler_cancellation=True,
            # Bodies are kept as they come: Content-Encoding is a property of the object.
            auto_decompress=False,
            keepalive_timeout=75.0,
            read_bufsize=settings.read_bytes,
            max_line_size=settings.header_bytes_max,
            max_field_size=settings.header_bytes_max,
        )
        runner = web.ServerRunner(server, shutdown_timeout=settings.shutdown_seconds)
        self._runner = runner
        await runner.setup()
        try:
            site = web.TCPSite(runner, settings.host, settings.port, backlog=1024)
            await site.start()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Idempotent."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()
