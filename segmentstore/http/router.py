"""One handler for every request: who answers it, what every answer has in common, and how it is counted.

A middleware stack, a route per verb and aiohttp's own refusals would cost more than an append and would answer without
this server's headers. Paths are looked at raw: a name is decoded exactly once, in requests.py.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from functools import partial

from aiohttp import web

from segmentstore.codec.container_hash import container_of
from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.http import header_names
from segmentstore.http.cross_origin import CrossOrigin
from segmentstore.http.forwarding import RequestForwarding
from segmentstore.http.health_and_metrics import (
    CONTENT_TYPE,
    MetricsExposition,
    NodeHealth,
    RequestStatistics,
    health_as_json,
)
from segmentstore.http.maintenance import Maintenance
from segmentstore.http.requests import is_reserved, name_of_path, refuse_system_name
from segmentstore.http.responses import (
    SECURITY_HEADERS,
    Refusal,
    json_response,
    method_not_allowed,
    not_found,
    refusal_of,
    refusal_of_http,
    refusal_response,
)
from segmentstore.http.segment_verbs import SegmentVerbs
from segmentstore.http.settings import HttpSettings
from segmentstore.http.stream_append import StreamAppend
from segmentstore.http.stream_create import StreamCreate
from segmentstore.http.stream_directory import StreamDirectory
from segmentstore.http.stream_read import StreamRead
from segmentstore.http.tier2_verbs import BackupVerbs, SwapVerbs
from segmentstore.http.topic_verbs import TopicVerbs
from segmentstore.http.whole_store import WholeStore
from segmentstore.runtime.clock import ClockWatch

STREAM_PREFIX = "/v1/stream/"
_SEGMENTS_PATH = "/v1/segments"
_SEGMENTS_PREFIX = _SEGMENTS_PATH + "/"
_CONTAINERS_PREFIX = "/v1/containers/"
_BACKUPS_PATH = "/v1/backups"
_TOPICS_PATH = "/v1/topics"
_CLIENT_GONE = 499
"""The status under which requests are counted whose client went away first."""

logger = logging.getLogger(__name__)

Work = Coroutine[None, None, web.StreamResponse]


class Router:
    """Answers requests."""

    def __init__(
        self,
        *,
        directory: StreamDirectory,
        create: StreamCreate,
        append: StreamAppend,
        read: StreamRead,
        verbs: SegmentVerbs,
        swaps: SwapVerbs,
        backups: BackupVerbs,
        health: Callable[[], NodeHealth],
        exposition: MetricsExposition,
        statistics: RequestStatistics,
        clock_watch: ClockWatch,
        settle_clocks: Callable[[], None],
        maintenance: Maintenance,
        cross_origin: CrossOrigin,
        forwarding: RequestForwarding | None,
        whole_store: WholeStore | None,
        topics: TopicVerbs | None,
        settings: HttpSettings,
    ) -> None:
        """`topics` is None where there are none.

        `forwarding` and `whole_store` are for a node of a cluster; without them every container is here.
        """
        self._forwarding = forwarding
        self._whole_store = whole_store
        self._topics = topics
        self._directory = directory
        self._create = create
        self._append = append
        self._read = read
        self._verbs = verbs
        self._swaps = swaps
        self._backups = backups
        self._health = health
        self._exposition = exposition
        self._statistics = statistics
        self._clock_watch = clock_watch
        self._settle_elsewhere = settle_clocks
        self._maintenance = maintenance
        self._cross_origin = cross_origin
        self._settings = settings
        self._stream_verbs: Mapping[str, tuple[str, Callable[[web.BaseRequest, str], Work]]] = {
            "POST": ("stream_append", append.handle),
            "GET": ("stream_read", read.handle),
            "HEAD": ("stream_head", self._head),
            "PUT": ("stream_create", create.handle),
            "DELETE": ("stream_delete", self._delete),
        }

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Never raises but CancelledError: whatever goes wrong has an answer."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        statistics = self._statistics
        statistics.in_flight += 1
        verb, status = "other", _CLIENT_GONE
        try:
            try:
                self._cross_origin.check(request)
                verb, work = self._route(request)
                response = await work
            except Refusal as refusal:
                response = refusal_response(refusal)
            except SegmentStoreError as error:
                response = refusal_response(
                    refusal_of(error, self._settings.retry_after_seconds, method=request.method)
                )
            except web.HTTPException as error:
                response = refusal_response(refusal_of_http(error))
            except ConnectionError:
                raise
            except Exception:
                logger.exception("request failed method=%s path=%r", request.method, request.path)
                response = refusal_response(Refusal(500, "internal error", kind="corrupt"))
            status = response.status
            if header_names.EXPECT in request.headers and not request.content.is_eof():
                # It may still send the body that was not wanted, and the next request would be taken for it.
                response.force_close()
            if not response.prepared and (
                request.method in {"GET", "HEAD"} or header_names.ORIGIN in request.headers
            ):
                # Cached answers may later serve another origin, so reads always carry them.
                self._cross_origin.add_to(request, response)
            return response
        finally:
            statistics.in_flight -= 1
            statistics.finished(verb, status, loop.time() - started)

    def _route(self, request: web.BaseRequest) -> tuple[str, Work]:
        path = request.rel_url.raw_path
        if path.startswith(STREAM_PREFIX):
            if request.method == "OPTIONS":
                return "options", self._options(request)
            name = name_of_path(path[len(STREAM_PREFIX) :])
            if is_reserved(name):
                raise Refusal(501, "control APIs are not implemented", kind="invalid")
            refuse_system_name(name)
            entry = self._stream_verbs.get(request.method)
            if entry is None:
                raise method_not_allowed("a stream", [*sorted(self._stream_verbs), "OPTIONS"])
            return entry[0], self._at_owner(request, name, partial(entry[1], request, name))
        if request.method == "OPTIONS":
            return "options", self._options(request)
        if path.startswith(_SEGMENTS_PREFIX):
            verb, name, handler = self._verbs.route(request, path[len(_SEGMENTS_PREFIX) :])
            return verb, self._at_owner(request, name, partial(handler, request, name))
        if path.startswith(_CONTAINERS_PREFIX):
            verb, container_id, swap = self._swaps.route(request, path[len(_CONTAINERS_PREFIX) :])
            return verb, self._at_container(request, container_id, swap)
        if path == _BACKUPS_PATH or path.startswith(_BACKUPS_PATH + "/"):
            return self._route_backup(request, path[len(_BACKUPS_PATH) + 1 :])
        if path == _TOPICS_PATH or path.startswith(_TOPICS_PATH + "/"):
            if self._topics is None:
                raise not_found("this process serves no topics")
            return self._topics.route(request, path[len(_TOPICS_PATH) + 1 :])
        return self._route_fixed(request, path)

    def _route_backup(self, request: web.BaseRequest, name: str) -> tuple[str, Work]:
        """No `name` for the path of all."""
        whole = self._whole_store
        if not name:
            if request.method not in {"GET", "HEAD"}:
                raise method_not_allowed("the list of backups", ["GET"])
            work = self._backups.list_all() if whole is None else whole.list_backups(request)
            return "backup_list", work
        match request.method:
            case "POST":
                pinned = (
                    self._backups.pin_all(name)
                    if whole is None
                    else whole.pin_backup(request, name)
                )
                return "backup_pin", pinned
            case "DELETE":
                dropped = (
                    self._backups.drop_all(name)
                    if whole is None
                    else whole.drop_backup(request, name)
                )
                return "backup_drop", dropped
            case _:
                raise method_not_allowed("a backup", ["DELETE", "POST"])

    def _route_fixed(self, request: web.BaseRequest, path: str) -> tuple[str, Work]:
        everywhere = self._whole_store or self._verbs
        fixed: Mapping[str, tuple[str, str, Callable[[web.BaseRequest], Work]]] = {
            _SEGMENTS_PATH: ("segment_list", "GET", everywhere.list_segments),
            "/health": ("health", "GET", self._answer_health),
            "/metrics": ("metrics", "GET", self._answer_metrics),
            "/v1/flush": ("flush", "POST", everywhere.flush_all),
            "/v1/clocks/settle": ("clocks_settle", "POST", self._settle_clocks),
        }
        entry = fixed.get(path)
        if entry is None:
            raise not_found(f"there is nothing at this path path={path[:256]!r}")
        verb, method, handler = entry
        if request.method != method and not (method == "GET" and request.method == "HEAD"):
            raise method_not_allowed(path, [method])
        return verb, handler(request)

    def _at_owner(self, request: web.BaseRequest, name: str, here: Callable[[], Work]) -> Work:
        """By the node that has the container of the name."""
        if self._forwarding is None:
            return here()
        container_id = container_of(name, self._forwarding.container_count)
        return self._at_container(request, container_id, here)

    def _at_container(
        self, request: web.BaseRequest, container_id: ContainerId, here: Callable[[], Work]
    ) -> Work:
        if self._forwarding is None:
            return here()
        return self._forwarding.answer(request, container_id, here)

    async def _options(self, request: web.BaseRequest) -> web.StreamResponse:
        return self._cross_origin.preflight(request)

    async def _head(self, _request: web.BaseRequest, name: str) -> web.StreamResponse:
        return await self._read.head(name)

    async def _delete(self, _request: web.BaseRequest, name: str) -> web.StreamResponse:
        await self._directory.delete(name)
        return web.Response(status=204, headers=SECURITY_HEADERS)

    async def _answer_health(self, _request: web.BaseRequest) -> web.StreamResponse:
        health = self._health()
        self._clock_watch.look()
        complaints = [
            complaint
            for complaint in (self._clock_watch.complaint(), self._maintenance.complaint)
            if complaint
        ]
        return json_response(200 if health.ready else 503, health_as_json(health, complaints))

    async def _answer_metrics(self, _request: web.BaseRequest) -> web.StreamResponse:
        headers = {**SECURITY_HEADERS, "Content-Type": CONTENT_TYPE, "Cache-Control": "no-store"}
        return web.Response(headers=headers, body=self._exposition.text())

    async def _settle_clocks(self, _request: web.BaseRequest) -> web.StreamResponse:
        self._clock_watch.settle()
        self._settle_elsewhere()
        return json_response(200, {"trusted": True})
