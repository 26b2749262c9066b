"""`/health` and `/metrics` of a process that serves nothing else over HTTP, in the forms of `health_and_metrics.py`.

    /health     200 if the process is ready, 503 otherwise; JSON: ready, complaints, and facts of the process
    /metrics    the Prometheus text format

The body of a request is not read, and other paths are not found.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from aiohttp import web

from segmentstore.http.health_and_metrics import CONTENT_TYPE, MetricsExposition, RequestStatistics
from segmentstore.http.responses import json_response
from segmentstore.runtime.http_connections import BoundedConnections, ConnectionBounds

_BOUNDS = ConnectionBounds(connections_max=1_000, window_bytes=256 << 10, window_seconds_max=60.0)


@dataclass(frozen=True, slots=True)
class ProcessHealth:
    """A snapshot of a process."""

    ready: bool
    complaints: list[str]
    facts: Mapping[str, str | int | bool | None] = field(default_factory=dict)
    """Whatever else a person wants to know."""


class StatusServer:
    """start(), then `address`, then close()."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        health: Callable[[], ProcessHealth],
        metrics: Callable[[], Mapping[str, float]],
    ) -> None:
        self._host = host
        self._port = port
        self._health = health
        self._exposition = MetricsExposition(
            containers=dict, requests=RequestStatistics(), gauges=dict, node=metrics
        )
        self._runner: web.ServerRunner | None = None

    @property
    def address(self) -> tuple[str, int]:
        """(host, port) that are listened on; only between start() and close()."""
        assert self._runner is not None, "the server is not started"
        host, port = self._runner.addresses[0][:2]
        return host, port

    async def start(self) -> None:
        """Listen. Raises OSError if the port is taken."""
        self._runner = web.ServerRunner(
            BoundedConnections(
                self._answer, bounds=_BOUNDS, access_log=None, keepalive_timeout=75.0
            )
        )
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._host, self._port).start()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Idempotent."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method != "GET":
            return json_response(405, {"error": "only GET is answered here"})
        match request.path:
            case "/health":
                health = self._health()
                body = {"ready": health.ready, **health.facts, "complaints": health.complaints}
                return json_response(200 if health.ready else 503, body)
            case "/metrics":
                text = self._exposition.text()
                return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE})
            case _:
                return json_response(404, {"error": "here are /health and /metrics alone"})
