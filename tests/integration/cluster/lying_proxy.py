"""A proxy in front of a node that tells lies, to see whether the checker of histories finds them.

old_length      some infos are answered as they were a while ago
lost_append     some appends are acknowledged and not passed on
twice           some appends are passed on twice
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random

import aiohttp
from aiohttp import web
from yarl import URL

from tests.integration.cluster.http_calls import http_session

LIES = ("old_length", "lost_append", "twice")
_OFTEN = 0.2


@dataclass(slots=True)
class LyingProxy:
    """Everything else goes through as it is."""

    node: str
    lie: str
    random: Random
    session: aiohttp.ClientSession
    told: int = 0
    """So many lies."""
    _infos: dict[str, list[bytes]] = field(default_factory=dict)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        verb = request.path.rpartition("/")[2]
        status, content, headers = await self._passed_on(request, body)
        if status != 200 or self.random.random() > _OFTEN:
            self._infos.setdefault(request.path, []).append(content)
            return web.Response(status=status, body=content, headers=headers)
        if self.lie == "old_length" and verb == "info":
            old = self._infos.get(request.path, [content])
            self.told += old[0] != content
            content = old[0]
        if self.lie == "twice" and verb == "append" and "offset" not in request.query:
            self.told += 1
            await self._passed_on(request, body)
        return web.Response(status=status, body=content, headers=headers)

    async def _passed_on(
        self, request: web.BaseRequest, body: bytes
    ) -> tuple[int, bytes, dict[str, str]]:
        is_append = request.path.endswith("/append") and "offset" not in request.query
        if self.lie == "lost_append" and is_append and self.random.random() < _OFTEN:
            url = URL(f"http://{self.node}{request.raw_path.rpartition('/')[0]}/info", encoded=True)
            async with self.session.get(url) as response:
                values = json.loads(await response.read())
            if "length" in values and not values["sealed"]:
                self.told += 1
                length = values["length"] + len(body)
                return 200, json.dumps({"length": length, "offset": values["length"]}).encode(), {}
        url = URL(f"http://{self.node}{request.raw_path}", encoded=True)
        async with self.session.request(request.method, url, data=body or None) as response:
            kept = ("Segment-Length", "Segment-Sealed", "Segment-Offset")
            headers = {each: response.headers[each] for each in kept if each in response.headers}
            return response.status, await response.read(), headers


@asynccontextmanager
async def proxy_of(node: str, lie: str, random: Random) -> AsyncIterator[tuple[str, LyingProxy]]:
    """Its HOST:PORT."""
    async with http_session() as session:
        proxy = LyingProxy(node, lie, random, session)
        server = web.ServerRunner(web.Server(proxy.handle))
        await server.setup()
        site = web.TCPSite(server, "127.0.0.1", 0)
        await site.start()
        host, port = server.addresses[0]
        yield f"{host}:{port}", proxy
        await asyncio.sleep(0)
        await server.cleanup()
