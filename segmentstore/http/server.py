"""A listening socket for the application.

aiohttp's low-level server: its parser and its protocol, without its router, its applications and their middleware,
which would find the one handler anew for each request.

close() stops accepting, ends long polls and event streams, lets requests under way finish within `shutdown_seconds`,
and then drops what is left. Commits that were submitted go on in the containers.
"""

from aiohttp import web

from segmentstore.http.application import HttpApplication
from segmentstore.http.settings import HttpSettings


class _Runner(web.ServerRunner):
    """Ends what waits after the last connection was accepted and before requests under way are waited for."""

    __slots__ = ("_application",)

    def __init__(
        self, server: web.Server, *, application: HttpApplication, shutdown_seconds: float
    ) -> None:
        super().__init__(server, shutdown_timeout=shutdown_seconds)
        self._application = application

    async def shutdown(self) -> None:
        self._application.stop_waiting()


class HttpServer:
    """start(), then `address`, then close()."""

    def __init__(self, *, application: HttpApplication, settings: HttpSettings) -> None:
        self._application = application
        self._settings = settings
        self._runner: _Runner | None = None

    @property
    def address(self) -> tuple[str, int]:
        """(host, port) that are listened on; only between start() and close()."""
        assert self._runner is not None, "the server is not started"
        host, port = self._runner.addresses[0][:2]
        return host, port

    async def start(self) -> None:
        """Listen. Raises OSError if the port is taken."""
        assert self._runner is None, "the server is started already"
        server = web.Server(
            self._application.handle,
            access_log=None,
            # A reader that goes away ends its wait at once; commits are shielded.
            handler_cancellation=True,
            # Encoded bodies are refused, so that no small body can become a large one.
            auto_decompress=False,
            keepalive_timeout=75.0,
        )
        runner = _Runner(
            server,
            application=self._application,
            shutdown_seconds=self._settings.shutdown_seconds,
        )
        self._runner = runner
        await runner.setup()
        await self._application.start()
        try:
            site = web.TCPSite(runner, self._settings.host, self._settings.port, backlog=1024)
            await site.start()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Idempotent."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()
            await self._application.close()
