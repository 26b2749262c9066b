"""The verbs of segments over HTTP at the nodes of a cluster, each call recorded in a history.

What an answer means: 503, and a connection that was refused, say that nothing was done. 500, 502, 504, 410 and a
connection that broke leave the outcome open. Other refusals name a reason, which the history holds to be true.
"""

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from urllib.parse import quote

import aiohttp
from yarl import URL

from tests.integration.cluster.history import History, NothingDoneError, OutcomeLostError
from tests.linearizability.operation import Operation, Outcome, Verb

_REASONS = {
    "segment does not exist": Outcome.ABSENT,
    "segment exists already": Outcome.EXISTS,
    "segment is sealed": Outcome.SEALED,
    "offset does not match": Outcome.BAD_OFFSET,
    "segment is truncated": Outcome.TRUNCATED,
}
_AVOID_SECONDS = 20.0
_FACT = re.compile(r"\b(length|expected|start_offset)=(\d+)")
_LOST = frozenset({410, 500, 502, 504})


def http_session() -> aiohttp.ClientSession:
    """For clients that record what they are told: a request is sent once."""
    session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
    # aiohttp sends a PUT or DELETE a second time when its connection broke, and tells of the second one alone: that it
    # was refused would be taken for "nothing was done", though the first may have arrived. It has no argument for it.
    session._retry_connection = False
    return session


class HttpCalls:
    """One client. A call goes to a node drawn by lot; calls may run beside one another.

    A node that gave no answer in time is asked again after a while, or if there is no other one.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        nodes: Callable[[], Sequence[str]],
        *,
        history: History,
        client: int,
        random: Random,
        seconds_max: float = 30.0,
    ) -> None:
        """`nodes`: HOST:PORT of those that a call may go to. A call without an answer for so long is given up."""
        self._session = session
        self._nodes = nodes
        self._history = history
        self._client = client
        self._random = random
        self._seconds_max = seconds_max
        self._silent_since: dict[str, float] = {}

    async def create(self, name: str) -> Operation | None:
        asked = self._asked(name, Verb.CREATE)
        return await self._call(asked, "PUT", "create", lambda told, _: told)

    async def append(
        self, name: str, content: bytes, *, offset: int | None = None
    ) -> Operation | None:
        asked = replace(self._asked(name, Verb.APPEND), content=content, offset=offset)
        query = {} if offset is None else {"offset": str(offset)}
        return await self._call(asked, "POST", "append", _length, query=query, body=content)

    async def seal(self, name: str) -> Operation | None:
        return await self._call(self._asked(name, Verb.SEAL), "POST", "seal", _length)

    async def truncate(self, name: str, offset: int) -> Operation | None:
        asked = replace(self._asked(name, Verb.TRUNCATE), offset=offset)
        body = json.dumps({"offset": offset}).encode()
        return await self._call(asked, "POST", "truncate", lambda told, _: told, body=body)

    async def info(self, name: str) -> Operation | None:
        return await self._call(self._asked(name, Verb.INFO), "GET", "info", _info)

    async def read(self, name: str, offset: int, count: int) -> Operation | None:
        asked = replace(self._asked(name, Verb.READ), offset=offset, count=count)
        query = {"offset": str(offset), "length": str(count)}
        return await self._call(asked, "GET", "read", _read, query=query)

    async def delete(self, name: str) -> Operation | None:
        return await self._call(self._asked(name, Verb.DELETE), "DELETE", "", lambda told, _: told)

    def _asked(self, name: str, verb: Verb) -> Operation:
        return Operation(self._client, name, verb, Outcome.OK, 0.0)

    async def _call(
        self,
        asked: Operation,
        method: str,
        verb: str,
        tell: Callable[[Operation, "Reply"], Operation],
        *,
        query: dict[str, str] | None = None,
        body: bytes | None = None,
    ) -> Operation | None:
        async def request() -> Operation:
            reply = await self._reply(method, asked.target, verb, query or {}, body)
            if reply.status < 300:
                return tell(asked, reply)
            if reply.status == 503:
                raise NothingDoneError(reply.sentence)
            if reply.status in _LOST:
                raise OutcomeLostError(reply.sentence)
            return _refused(asked, reply)

        try:
            return await self._history.record(asked, request)
        except OutcomeLostError:
            return None

    async def _reply(
        self, method: str, name: str, verb: str, query: dict[str, str], body: bytes | None
    ) -> "Reply":
        node = self._random.choice(self._answering_nodes())
        url = url_of(node, name, verb).with_query(query)
        try:
            async with (
                asyncio.timeout(self._seconds_max),
                self._session.request(method, url, data=body) as response,
            ):
                return Reply(response.status, await response.read(), dict(response.headers))
        except aiohttp.ClientConnectorError as error:
            raise NothingDoneError(str(error)) from error
        except TimeoutError as error:
            self._silent_since[node] = asyncio.get_running_loop().time()
            raise OutcomeLostError(repr(error)) from error
        except aiohttp.ClientError as error:
            raise OutcomeLostError(repr(error)) from error

    def _answering_nodes(self) -> Sequence[str]:
        nodes, now = self._nodes(), asyncio.get_running_loop().time()
        answering = [
            each
            for each in nodes
            if now - self._silent_since.get(each, float("-inf")) > _AVOID_SECONDS
        ]
        return answering or nodes


def url_of(node: str, name: str, verb: str = "") -> URL:
    """At HOST:PORT."""
    path = f"/v1/segments/{quote(name, safe='/')}" + (f"/{verb}" if verb else "")
    return URL(f"http://{node}{path}", encoded=True)


class Reply:
    """Of a node."""

    def __init__(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.status = status
        self.content = content
        self.headers = headers

    @property
    def values(self) -> dict[str, object]:
        found = json.loads(self.content)
        assert isinstance(found, dict), found
        return found

    @property
    def sentence(self) -> str:
        return self.content.decode(errors="replace")

    def number(self, name: str) -> int:
        value = self.values[name]
        assert isinstance(value, int), self.sentence
        return value


def _length(told: Operation, reply: Reply) -> Operation:
    return replace(told, length=reply.number("length"))


def _info(told: Operation, reply: Reply) -> Operation:
    return replace(
        told,
        length=reply.number("length"),
        start=reply.number("start_offset"),
        sealed=bool(reply.values["sealed"]),
    )


def _read(told: Operation, reply: Reply) -> Operation:
    return replace(
        told,
        content=reply.content,
        length=int(reply.headers["Segment-Length"]),
        sealed=reply.headers["Segment-Sealed"] == "true",
    )


def _refused(asked: Operation, reply: Reply) -> Operation:
    sentence = str(reply.values["error"])
    for words, outcome in _REASONS.items():
        if sentence.startswith(words):
            facts = {name: int(value) for name, value in _FACT.findall(sentence)}
            return replace(
                asked,
                outcome=outcome,
                length=facts.get("length", facts.get("expected")),
                start=facts.get("start_offset"),
            )
    raise AssertionError(f"a refusal without a known reason: {reply.status} {sentence} {asked}")
