"""Requests to other nodes of the cluster, as bytes: one pool of connections, and what became of each request.

exchange() sends one request and gives its answer while that arrives. What an error says of the request:

| error | the request |
|---|---|
| NotSentError | was not carried out: no connection came about |
| AnswerLostError | may have been carried out: the connection broke, or said nothing for too long, or its node is gone |

What its client is told then is said in `forwarding.py`.

- A request is sent once. (aiohttp would send a PUT or DELETE again whose connection broke.)
- A node whose registration is gone is not waited for: what waits for it ends with AnswerLostError. A process that
  stands still, or a machine without power, says nothing that a connection could notice. What a node that stops in
  order has answered last may arrive behind the word that it is gone: it has the time between two looks for that.
- The caller bounds how many requests there are; each has a connection to itself.
"""

import asyncio
import logging
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from contextlib import asynccontextmanager

from aiohttp import (
    ClientConnectorError,
    ClientError,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    ConnectionTimeoutError,
    TCPConnector,
)
from yarl import URL

from segmentstore.contracts.cluster import ClusterNode, ContainerLocations
from segmentstore.contracts.containers import HostId
from segmentstore.http.responses import METHODS_THAT_CHANGE_NOTHING
from segmentstore.http.settings import HttpSettings
from segmentstore.runtime.task_set import TaskSet

logger = logging.getLogger(__name__)

_IDLE_CONNECTION_SECONDS = 15.0
"""Well below the time after which a server closes one: else a request could meet the end of its connection."""
_WATCH_SECONDS = 0.25
_NO_HEADERS_OF_ITS_OWN = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


class NotSentError(Exception):
    """The request was not carried out."""


class AnswerLostError(Exception):
    """The request may have been carried out."""

    def __init__(self, message: str, *, was_silent: bool = False) -> None:
        super().__init__(message)
        self.was_silent = was_silent
        """The connection did not break."""


class OtherNodes:
    """start(), exchange() any number at once, close()."""

    def __init__(self, *, locations: ContainerLocations, settings: HttpSettings) -> None:
        self._locations = locations
        self._settings = settings
        self._session: ClientSession | None = None
        self._tasks = TaskSet(on_failure=self._watch_failed)
        self._waits: dict[asyncio.Timeout, HostId] = {}
        """What is under way, by what ends it, and the node that it is at."""
        self._reads: dict[asyncio.Timeout, None] = {}
        """Those of them that change nothing."""
        self.is_stopping = False

    def __len__(self) -> int:
        return len(self._waits)

    def start(self) -> None:
        """Before the first request."""
        assert self._session is None, "started twice"
        settings = self._settings
        self._session = ClientSession(
            connector=TCPConnector(limit=0, keepalive_timeout=_IDLE_CONNECTION_SECONDS),
            timeout=ClientTimeout(
                total=None,
                sock_connect=settings.forward_connect_seconds,
                sock_read=settings.forward_silence_seconds,
            ),
            auto_decompress=False,
            skip_auto_headers=_NO_HEADERS_OF_ITS_OWN,
        )
        # aiohttp has no argument for it.
        self._session._retry_connection = False
        self._tasks.start(self._watch_nodes(), name="http other nodes")

    def stop_reads(self) -> None:
        """End what may wait for bytes, now: the server stops."""
        self.is_stopping = True
        now = asyncio.get_running_loop().time()
        for timeout in self._reads:
            if not timeout.expired():
                timeout.reschedule(now)

    async def close(self) -> None:
        """After the last request. Idempotent."""
        session, self._session = self._session, None
        await self._tasks.close()
        if session is not None:
            await session.close()

    @asynccontextmanager
    async def exchange(
        self,
        node: ClusterNode,
        method: str,
        target: str,
        *,
        headers: Mapping[str, str],
        body: bytes | AsyncIterable[bytes] | None = None,
        waits_for_continue: bool = False,
    ) -> AsyncIterator[ClientResponse]:
        """The head of the answer has arrived when the block begins; its body is read in the block, from `content`.

        A caller whose own body is not all sent by then closes the answer.
        `target` is a raw path with its query. Raises NotSentError (from the beginning alone), AnswerLostError.
        """
        assert self._session is not None, "not started"
        is_sent = False
        try:
            async with asyncio.timeout(None) as ends_with_node:
                self._waits[ends_with_node] = node.node_id
                if method in METHODS_THAT_CHANGE_NOTHING:
                    self._reads[ends_with_node] = None
                try:
                    # Not its own context manager, which waits for the end of a body that is still passed on.
                    answer = await self._session.request(
                        method,
                        URL(f"http://{node.http}{target}", encoded=True),
                        headers=headers,
                        data=body,
                        allow_redirects=False,
                        expect100=waits_for_continue,
                    )
                    is_sent = True
                    try:
                        yield answer
                    except BaseException:
                        answer.close()
                        raise
                    # Only a connection whose answer was read to its end serves another request.
                    if answer.content.at_eof():
                        answer.release()
                    else:
                        answer.close()
                finally:
                    del self._waits[ends_with_node]
                    self._reads.pop(ends_with_node, None)
        except (ClientConnectorError, ConnectionTimeoutError) as error:
            if is_sent:
                raise AnswerLostError(f"the connection broke node={node.node_id}") from error
            raise NotSentError(f"no connection node={node.node_id} http={node.http}") from error
        except TimeoutError as error:
            raise AnswerLostError(
                f"the node says nothing, or is gone node={node.node_id}", was_silent=True
            ) from error
        except (ClientError, OSError) as error:
            raise AnswerLostError(f"the connection broke node={node.node_id}: {error!r}") from error

    async def _watch_nodes(self) -> None:
        gone: set[HostId] = set()
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            registered = {node.node_id for node in self._locations.nodes()}
            before, gone = gone, set(self._waits.values()) - registered
            now = asyncio.get_running_loop().time()
            for timeout, node_id in self._waits.items():
                if node_id in gone and node_id in before and not timeout.expired():
                    timeout.reschedule(now)

    def _watch_failed(self, error: BaseException) -> None:
        """Without the watch requests would end by silence alone: it begins again."""
        logger.error("the watch over other nodes failed", exc_info=error)
        if self._session is not None:
            self._tasks.start(self._watch_nodes(), name="http other nodes")
