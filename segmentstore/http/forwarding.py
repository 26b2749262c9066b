"""In a cluster: a request for a container is answered here if the container is here, else by the node that has it.

RequestForwarding decides where, waits for a container that is on its way, and passes requests and answers on.

- A request is passed on once: it carries Segment-Forwarded-By then, and a node that has not got the container refuses
  it with 503 and Segment-Wrong-Node. The node that passed it on asks where the container is by now, and tries again.
- A container that leaves between the look and the work makes no refusal: nothing was done, and the request goes on to
  where it is by then. The node that passed it on does that, or this one, if the body is small.
- 503 says that nothing was done: no connection came about, or the other node said so. A change that was sent, and
  whose answer is lost, is answered with 502 (the connection broke) or 504 (the node says nothing, or is gone). A read
  is tried again.
- The answer of the other node goes through as it is: status, headers, body. What is this node's own: the headers for
  pages of other origins, which are judged here alone, and the host in Location. A body that breaks off is cut off here
  as well.
- Bodies are passed on as they come, with a bounded window each way; one that is small is kept, for another try. Limits
  on bodies are the owner's; a body that is too slow ends here as it does there.
- A node whose lease is not valid answers for no container; it still passes requests on.
- At most `forwarded_requests_max` requests wait, here or at other nodes.

Not taken: a redirect (307). Every client would have to reach every node under the name that the nodes use among one
another, follow with its body, and learn anew at every move; browsers would need permission for each origin. A hop in
the same network costs less than that, and a client that wants to spare it asks the owner.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Coroutine, Iterator
from contextlib import aclosing, contextmanager, suppress
from urllib.parse import urlsplit

from aiohttp import ClientError, ClientResponse, web
from multidict import CIMultiDict, CIMultiDictProxy

from segmentstore.contracts.cluster import ClusterNode, NodeInCluster
from segmentstore.contracts.errors import ContainerNotFoundError, SegmentStoreError
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.http import header_names
from segmentstore.http.cross_origin import CrossOrigin
from segmentstore.http.other_nodes import AnswerLostError, NotSentError, OtherNodes
from segmentstore.http.requests import BodyReader, send_continue
from segmentstore.http.responses import (
    METHODS_THAT_CHANGE_NOTHING,
    Refusal,
    bad_request,
    begun,
    busy,
)
from segmentstore.http.settings import HttpSettings
from segmentstore.runtime.backoff import Backoff

Work = Coroutine[None, None, web.StreamResponse]

_PAUSE_SECONDS_FIRST, _PAUSE_SECONDS_MAX = 0.01, 0.1
_LOOK_SECONDS = 0.1
"""A request that waits here is told of what it waits for; it looks by itself in case."""
_OF_ONE_CONNECTION = frozenset(
    (
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    )
)
_JUDGED_HERE = frozenset(("host", "origin", "expect"))
_SMALL_ANSWER_BYTES = 64 << 10
"""Up to this size an answer is taken whole before it is passed on: should it break off, the client is told."""
_WITHOUT_BODY = frozenset((204, 304))


class RequestForwarding:
    """answer() each request that is about one container."""

    def __init__(
        self,
        *,
        node: NodeInCluster,
        others: OtherNodes,
        bodies: BodyReader,
        cross_origin: CrossOrigin,
        settings: HttpSettings,
    ) -> None:
        self._node = node
        self._others = others
        self._bodies = bodies
        self._cross_origin = cross_origin
        self._settings = settings
        self._waiting = 0
        self.forwarded_count = 0
        """Answers of other nodes that were passed on."""

    def metrics(self) -> dict[str, float]:
        """For `/metrics`."""
        return {
            "forwarded_answers_total": self.forwarded_count,
            "requests_waiting_for_nodes": self._waiting,
        }

    @property
    def container_count(self) -> int:
        return self._node.locations.container_count

    def is_here(self, container_id: ContainerId) -> bool:
        """Whether this node answers for the container, and no other one can have been given it."""
        return self._node.serves(container_id) and self._node.is_lease_valid()

    async def answer(
        self, request: web.BaseRequest, container_id: ContainerId, here: Callable[[], Work]
    ) -> web.StreamResponse:
        """By `here` if the container is here, or comes here meanwhile; else by its node.

        Raises Refusal: 503 (nothing was done), 502, 504 (a change was sent, and its answer is lost).
        """
        self._bodies.keep(request)
        try:
            if self.is_here(container_id):
                try:
                    return await here()
                except ContainerNotFoundError as error:
                    self._require_another_try(request, container_id, error)
            with self.counted():
                response = await self._answer_elsewhere(request, container_id)
            return await here() if response is None else response
        finally:
            self._bodies.let_go(request)

    def _require_another_try(
        self, request: web.BaseRequest, container_id: ContainerId, error: ContainerNotFoundError
    ) -> None:
        """The container left between the look and the work, of which nothing was done: raises if that is the answer."""
        if error.container_id != container_id:
            raise error
        if header_names.SEGMENT_FORWARDED_BY in request.headers:
            raise self.wrong_node(container_id) from error
        if request.body_exists and self._bodies.kept(request) is None:
            raise error

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Around a request that waits for other nodes. Raises Refusal (503) at the limit."""
        if self._waiting >= self._settings.forwarded_requests_max:
            raise busy("too many requests wait for other nodes", self._settings.retry_after_seconds)
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1

    async def look_again(self, backoff: Backoff) -> None:
        """What was known of the locations proved wrong: return when a next try makes sense."""
        # If the store of locations does not answer, another look follows, or the request ends by its time.
        with suppress(SegmentStoreError, TimeoutError):
            async with asyncio.timeout(_PAUSE_SECONDS_MAX):
                await self._node.locations.refresh()
        await self._node.wait_for_change(backoff.next_seconds())

    async def _answer_elsewhere(
        self, request: web.BaseRequest, container_id: ContainerId
    ) -> web.StreamResponse | None:
        """None once the container is here."""
        was_forwarded = header_names.SEGMENT_FORWARDED_BY in request.headers
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.owner_wait_seconds
        backoff = new_backoff()
        body = _ForwardedBody(request, self._bodies, self._settings.forward_kept_bytes_max)
        while not self.is_here(container_id):
            owner = self._node.locations.node_to_ask(container_id)
            is_elsewhere = owner is not None and owner.node_id != self._node.node_id()
            if owner is not None and is_elsewhere:
                if was_forwarded:
                    raise self.wrong_node(container_id)
                response = await self._ask(request, owner, body)
                if response is not None:
                    return response
            if body.is_spent or loop.time() >= deadline or self._others.is_stopping:
                raise busy(
                    f"the container is on its way to a node container={container_id}",
                    self._settings.retry_after_seconds,
                )
            if is_elsewhere:
                await self.look_again(backoff)
            else:
                await self._node.wait_for_change(_LOOK_SECONDS)
        return None

    def wrong_node(self, container_id: ContainerId) -> Refusal:
        """The answer to a request that was passed on to a node that has not got the container."""
        refusal = busy(
            f"the container is not here container={container_id}",
            self._settings.retry_after_seconds,
        )
        refusal.headers[header_names.SEGMENT_WRONG_NODE] = self._node.node_id()
        return refusal

    async def _ask(
        self, request: web.BaseRequest, owner: ClusterNode, body: "_ForwardedBody"
    ) -> web.StreamResponse | None:
        """The answer of that node, passed on; None if nothing was done, or a read has no answer.

        Raises Refusal.
        """
        headers = _passed_on(request.headers, _JUDGED_HERE)
        if any("\ud800" <= each <= "\udfff" for value in headers.values() for each in value):
            raise bad_request("a header is not UTF-8")
        headers[header_names.SEGMENT_FORWARDED_BY] = self._node.node_id()
        content = await body.content()
        if isinstance(content, bytes) or content is None:
            headers.popall(header_names.CONTENT_LENGTH, None)
        url = request.rel_url
        target = url.raw_path + (f"?{url.raw_query_string}" if url.raw_query_string else "")
        response: web.StreamResponse | None = None
        passed: web.StreamResponse | None = None
        """Whose head the client has."""
        try:
            async with self._others.exchange(
                owner,
                request.method,
                target,
                headers=headers,
                body=content,
                waits_for_continue=body.waits_for_continue,
            ) as answer:
                if answer.status != 503 or header_names.SEGMENT_WRONG_NODE not in answer.headers:
                    response = await self._response_to(request, answer)
                    self.forwarded_count += 1
                    if not isinstance(response, web.Response):
                        passed = response
                        await _pass_on(request, passed, answer, self._settings.write_seconds_max)
                if body.is_under_way:
                    answer.close()
                return response
        except NotSentError:
            return None
        except AnswerLostError as error:
            if passed is not None:
                _cut_off(request, passed)
                return passed
            if body.refusal is not None:
                # The owner saw it break off as well, and did nothing.
                raise body.refusal from error
            if request.method in METHODS_THAT_CHANGE_NOTHING:
                return None
            status = 504 if error.was_silent else 502
            raise Refusal(
                status,
                f"the outcome is unknown: {error}",
                kind="unavailable",
                headers={"Retry-After": str(self._settings.retry_after_seconds)},
            ) from error

    async def _response_to(
        self, request: web.BaseRequest, answer: ClientResponse
    ) -> web.StreamResponse:
        """Whole, if that is small; else what is to be begun."""
        headers = _passed_on(answer.headers, frozenset())
        location = headers.get(header_names.LOCATION)
        if location is not None:
            path = urlsplit(location).path
            headers[header_names.LOCATION] = f"{request.scheme}://{request.host}{path}"
        length = answer.content_length
        is_small = length is not None and length <= _SMALL_ANSWER_BYTES
        if request.method == "HEAD" or answer.status in _WITHOUT_BODY or is_small:
            content = await answer.content.read()
            if request.method != "HEAD":
                headers.popall(header_names.CONTENT_LENGTH, None)
            return web.Response(
                status=answer.status, reason=answer.reason, headers=headers, body=content or None
            )
        response = web.StreamResponse(status=answer.status, reason=answer.reason, headers=headers)
        self._cross_origin.add_to(request, response)
        return response


def new_backoff() -> Backoff:
    """Pauses of a request between two looks at where its container is."""
    return Backoff(seconds_first=_PAUSE_SECONDS_FIRST, seconds_max=_PAUSE_SECONDS_MAX)


def _passed_on(headers: CIMultiDictProxy[str], without: frozenset[str]) -> CIMultiDict[str]:
    """All that is not of one connection, and not in `without`."""
    named = headers.getall(header_names.CONNECTION, [])
    of_connection = {name.strip().lower() for value in named for name in value.split(",")}
    left_out = _OF_ONE_CONNECTION | without | of_connection
    return CIMultiDict(
        (name, value) for name, value in headers.items() if name.lower() not in left_out
    )


async def _pass_on(
    request: web.BaseRequest,
    response: web.StreamResponse,
    answer: ClientResponse,
    write_seconds_max: float,
) -> None:
    async with begun(request, response):
        try:
            async for piece in answer.content.iter_any():
                async with asyncio.timeout(write_seconds_max):
                    await response.write(piece)
        except ClientError as error:
            raise ConnectionError(f"the answer of another node broke off: {error!r}") from error


def _cut_off(request: web.BaseRequest, response: web.StreamResponse) -> None:
    """A body that merely ended would pass for a whole one."""
    response.force_close()
    if request.transport is not None:
        request.transport.abort()


class _ForwardedBody:
    """The body of a request: content() for each try, until it is spent."""

    def __init__(self, request: web.BaseRequest, bodies: BodyReader, kept_bytes_max: int) -> None:
        self._request = request
        self._bodies = bodies
        self._kept_bytes_max = kept_bytes_max
        self._kept: bytes | None = None
        self.waits_for_continue = header_names.EXPECT in request.headers
        self.is_spent = False
        """Some of it is on its way and was not kept: there is no further try."""
        self.is_under_way = False
        self.refusal: Refusal | None = None
        """Why it broke off."""

    async def content(self) -> bytes | AsyncIterable[bytes] | None:
        """Raises Refusal for a body that breaks off before any of it was passed on."""
        request = self._request
        if not request.body_exists:
            return None
        if self._kept is None:
            self._kept = self._bodies.kept(request)
            self.waits_for_continue = self.waits_for_continue and self._kept is None
        if self._kept is None and self._is_kept():
            async with aclosing(self._bodies.pieces(request)) as pieces:
                self._kept = b"".join([piece async for piece in pieces])
            # For this node, if the container comes here meanwhile.
            self._bodies.keep(request, self._kept)
        return self._stream() if self._kept is None else self._kept

    def _is_kept(self) -> bool:
        length = self._request.content_length
        return not self.waits_for_continue and length is not None and length <= self._kept_bytes_max

    async def _stream(self) -> AsyncGenerator[bytes, None]:
        self.is_spent = self.is_under_way = True
        if self.waits_for_continue:
            # The owner said so.
            await send_continue(self._request)
        try:
            async with aclosing(self._bodies.pieces(self._request)) as pieces:
                async for piece in pieces:
                    yield piece
            self.is_under_way = False
        except Refusal as refusal:
            self.refusal = refusal
            raise
