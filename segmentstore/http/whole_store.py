"""Verbs over all containers, at a node that has some of them: it asks every other node for its part.

- A part is asked for by the ids of its containers (`containers=0,3,5` in the query), of the node that has them, and a
  node answers for exactly these or not at all: so no container is missing from an answer, and none is in it twice.
- An answer is whole or none: what is missing is named, in a 503. A backup that some containers may have made or dropped
  is told as unknown: 500.
- A part whose node has not got it (any more) is asked for again, of the node that has it by then, for a while.
- The parts are not of one moment, as those of one process are not, but for what a backup holds (tier2_verbs.py).

A listing's page is merged by name. Each part says up to which name it is complete (`next`, null at its end), and the
page ends at the first of these.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Protocol
from urllib.parse import quote, urlencode

from aiohttp import web

from segmentstore.codec.container_hash import container_of
from segmentstore.contracts.cluster import ClusterNode, NodeInCluster
from segmentstore.contracts.containers import HostId
from segmentstore.contracts.errors import ContainerNotFoundError, SegmentStoreError
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.contracts.segments import SegmentProperties
from segmentstore.http import header_names
from segmentstore.http.forwarding import RequestForwarding, new_backoff
from segmentstore.http.other_nodes import AnswerLostError, NotSentError, OtherNodes
from segmentstore.http.requests import parse_containers
from segmentstore.http.responses import (
    SECURITY_HEADERS,
    Refusal,
    busy,
    change_begun,
    json_response,
    not_found,
    outcome_unknown,
)
from segmentstore.http.segment_verbs import SegmentVerbs
from segmentstore.http.settings import HttpSettings
from segmentstore.http.tier2_verbs import (
    STEPS_WHEREVER_POSSIBLE,
    BackupVerbs,
    make_whole,
    merged_backup,
)
from segmentstore.runtime.waiting import gather_all

_LOG = logging.getLogger(__name__)

Rows = Sequence[Mapping[str, object]]
PartHere = Callable[[Sequence[ContainerId]], Awaitable[Mapping[str, object]]]


class ContainerParts(Protocol):
    """Verbs over some containers of this process. Each raises ContainerNotFoundError if one of them does not run."""

    async def list_segments_of(
        self,
        containers: Collection[ContainerId],
        prefix: str = "",
        start_after: str = "",
        limit: int = 1000,
    ) -> Sequence[SegmentProperties]:
        """In name order, at most `limit`."""

    async def flush_containers(self, containers: Collection[ContainerId]) -> None:
        """Returns when everything acknowledged before in these is in Tier 2."""


class ContainersHere:
    """Which names have their containers here, and what is in these."""

    def __init__(self, node: NodeInCluster, parts: ContainerParts) -> None:
        self._node = node
        self._parts = parts

    def has(self, name: str) -> bool:
        return self._is_here(container_of(name, self._node.locations.container_count))

    async def list_page(self, start_after: str, count_max: int) -> Sequence[SegmentProperties]:
        """Segments behind a name, at most so many."""
        everything = map(ContainerId, range(self._node.locations.container_count))
        here = [container_id for container_id in everything if self._is_here(container_id)]
        return await self._parts.list_segments_of(here, "", start_after, count_max)

    def _is_here(self, container_id: ContainerId) -> bool:
        return self._node.serves(container_id) and self._node.is_lease_valid()


class WholeStore:
    """Answers for all containers, or, asked by another node, for the part that is named."""

    def __init__(
        self,
        *,
        node: NodeInCluster,
        parts: ContainerParts,
        verbs: SegmentVerbs,
        backups: BackupVerbs,
        forwarding: RequestForwarding,
        others: OtherNodes,
        settings: HttpSettings,
    ) -> None:
        self._node = node
        self._parts = parts
        self._verbs = verbs
        self._backups = backups
        self._forwarding = forwarding
        self._others = others
        self._settings = settings

    async def list_segments(self, request: web.BaseRequest) -> web.Response:
        """A page of segments of all nodes, by name."""
        prefix, after, limit = self._verbs.page_of(request)

        async def here(containers: Sequence[ContainerId]) -> Mapping[str, object]:
            page = await self._parts.list_segments_of(containers, prefix, after, limit)
            return self._verbs.shown_page(page, limit)

        query = {"prefix": prefix, "after": after, "limit": str(limit)}
        parts = await self._over_containers(request, here, "GET", "/v1/segments", query)
        rows = [row for part in parts for row in _rows(part, "segments")]
        ends = [str(part["next"]) for part in parts if part["next"] is not None]
        rows.sort(key=lambda row: str(row["name"]))
        end = min(ends, default=None)
        if end is not None:
            rows = [row for row in rows if str(row["name"]) <= end]
        if len(rows) > limit:
            rows = rows[:limit]
            end = str(rows[-1]["name"])
        return json_response(200, {"segments": rows, "next": end})

    async def flush_all(self, request: web.BaseRequest) -> web.Response:
        """Everything that all nodes hold is in Tier 2."""

        async def here(containers: Sequence[ContainerId]) -> Mapping[str, object]:
            await self._parts.flush_containers(containers)
            return {}

        await self._over_containers(request, here, "POST", "/v1/flush", {})
        return web.Response(status=204, headers=SECURITY_HEADERS)

    async def list_backups(self, request: web.BaseRequest) -> web.Response:
        """Those that some container has; complete are those that all have, proved."""
        parts = await self._over_containers(
            request, self._backups.list_part, "GET", "/v1/backups", {}
        )
        found: dict[str, list[Mapping[str, object]]] = {}
        for part in parts:
            for row in _rows(part, "backups"):
                found.setdefault(str(row["backup"]), []).append(row)
        asked = parse_containers(request)
        expected = self._forwarding.container_count if asked is None else len(asked)
        rows = [merged_backup(name, found[name], expected) for name in sorted(found)]
        return json_response(200, {"backups": rows})

    async def pin_backup(self, request: web.BaseRequest, name: str) -> web.Response:
        """Of every container, or a step of it in those that another node asks for.

        One that breaks off is taken back where that can be done; repeating it makes it anew.
        """

        async def step(step: str, hold_id: str) -> Sequence[Mapping[str, object]]:
            async def here(containers: Sequence[ContainerId]) -> Mapping[str, object]:
                return await self._backups.part(step, name, hold_id, containers)

            query = {"step": step, "hold": hold_id}
            if step in STEPS_WHEREVER_POSSIBLE:
                return await self._wherever_possible(request, here, _backup_path(name), query)
            return await self._over_containers(request, here, "POST", _backup_path(name), query)

        if parse_containers(request) is not None:
            # A node of an earlier version asks for its pins alone.
            asked = request.query
            (part,) = await step(asked.get("step", "pin"), asked.get("hold", ""))
            return json_response(200, part)
        rows = list(await make_whole(step, self._settings.retry_after_seconds))
        rows.sort(key=lambda row: int(str(row["container"])))
        return json_response(200, {"pinned": rows})

    async def drop_backup(self, request: web.BaseRequest, name: str) -> web.Response:
        """Of every container. 404 if none had it."""

        async def here(containers: Sequence[ContainerId]) -> Mapping[str, object]:
            return await self._backups.drop_part(name, containers)

        path = _backup_path(name)
        if parse_containers(request) is not None:
            # The node that asks for this part is told if nothing was done: it asks again.
            (part,) = await self._over_containers(request, here, "DELETE", path, {})
            return json_response(200, part)
        with change_begun(self._settings.retry_after_seconds):
            parts = await self._over_containers(request, here, "DELETE", path, {})
        if not any(part.get("dropped") for part in parts):
            raise not_found(f"there is no backup of that name name={name[:256]!r}")
        return web.Response(status=204, headers=SECURITY_HEADERS)

    # --- over containers -------------------------------------------------------------------------

    async def _over_containers(
        self,
        request: web.BaseRequest,
        here: PartHere,
        method: str,
        path: str,
        query: Mapping[str, str],
    ) -> Sequence[Mapping[str, object]]:
        """What each part answers. Raises Refusal."""
        asked = parse_containers(request)
        if asked is not None:
            return [await self._part_here(asked, here)]
        missing = [ContainerId(number) for number in range(self._forwarding.container_count)]
        parts: list[Mapping[str, object]] = []
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.owner_wait_seconds
        backoff = new_backoff()
        with self._forwarding.counted():
            while True:
                placed = self._placed(missing)
                answers = await gather_all(
                    self._part(node, containers, here, method, path, query)
                    for node, containers in placed
                )
                for (_, containers), answer in zip(placed, answers, strict=True):
                    if answer is not None:
                        parts.append(answer)
                        missing = [each for each in missing if each not in containers]
                if not missing:
                    return parts
                if loop.time() >= deadline:
                    raise busy(
                        f"not all containers have a node that answers missing={missing}",
                        self._settings.retry_after_seconds,
                    )
                await self._forwarding.look_again(backoff)

    async def _wherever_possible(
        self, request: web.BaseRequest, here: PartHere, path: str, query: Mapping[str, str]
    ) -> Sequence[Mapping[str, object]]:
        """What each part answers that could be asked: once, and each node for those that it has."""
        asked = parse_containers(request)
        if asked is not None:
            return [await here(asked)]
        everything = [ContainerId(number) for number in range(self._forwarding.container_count)]
        with self._forwarding.counted():
            answers = await asyncio.gather(
                *(
                    self._part(node, containers, here, "POST", path, query)
                    for node, containers in self._placed(everything)
                ),
                return_exceptions=True,
            )
        parts: list[Mapping[str, object]] = []
        for answer in answers:
            if isinstance(answer, (Refusal, SegmentStoreError)):
                _LOG.warning("a step of a backup was refused step=%s: %s", query["step"], answer)
            elif isinstance(answer, BaseException):
                raise answer
            elif answer is not None:
                parts.append(answer)
        return parts

    def _placed(
        self, containers: Sequence[ContainerId]
    ) -> Sequence[tuple[ClusterNode | None, Sequence[ContainerId]]]:
        """Of those that have a node: together by node, None for this one."""
        here = [each for each in containers if self._forwarding.is_here(each)]
        nodes: dict[HostId, ClusterNode] = {}
        elsewhere: dict[HostId, list[ContainerId]] = {}
        for container_id in containers:
            owner = self._node.locations.node_to_ask(container_id)
            if container_id in here or owner is None or owner.node_id == self._node.node_id():
                continue
            nodes[owner.node_id] = owner
            elsewhere.setdefault(owner.node_id, []).append(container_id)
        placed: list[tuple[ClusterNode | None, Sequence[ContainerId]]] = [
            (nodes[node_id], elsewhere[node_id]) for node_id in elsewhere
        ]
        return [(None, here), *placed] if here else placed

    async def _part_here(
        self, containers: Sequence[ContainerId], here: PartHere
    ) -> Mapping[str, object]:
        for container_id in containers:
            if not self._forwarding.is_here(container_id):
                raise self._forwarding.wrong_node(container_id)
        try:
            return await here(containers)
        except ContainerNotFoundError as error:
            raise self._forwarding.wrong_node(ContainerId(error.container_id)) from error

    async def _part(
        self,
        node: ClusterNode | None,
        containers: Sequence[ContainerId],
        here: PartHere,
        method: str,
        path: str,
        query: Mapping[str, str],
    ) -> Mapping[str, object] | None:
        """None if the node has not got them, or does not answer a question. Raises Refusal."""
        if node is None:
            try:
                return await here(containers)
            except ContainerNotFoundError:
                return None
        named = {**query, "containers": ",".join(map(str, containers))}
        headers: dict[str, str] = {header_names.SEGMENT_FORWARDED_BY: self._node.node_id()}
        try:
            async with self._others.exchange(
                node, method, f"{path}?{urlencode(named)}", headers=headers
            ) as answer:
                content = await answer.content.read()
                if answer.status < 300:
                    return _object(content) if content else {}
                if header_names.SEGMENT_WRONG_NODE in answer.headers:
                    return None
                raise _refusal_of_node(node, answer.status, content)
        except NotSentError:
            return None
        except AnswerLostError as error:
            if method == "GET":
                return None
            raise outcome_unknown(str(error), self._settings.retry_after_seconds) from error


def _backup_path(name: str) -> str:
    return f"/v1/backups/{quote(name, safe='/')}"


def _object(content: bytes) -> Mapping[str, object]:
    value: object = json.loads(content)
    assert isinstance(value, dict), "a node answers with an object"
    return value


def _rows(part: Mapping[str, object], field: str) -> Rows:
    rows = part[field]
    assert isinstance(rows, list), f"a node answers with rows field={field}"
    return rows


def _refusal_of_node(node: ClusterNode, status: int, content: bytes) -> Refusal:
    try:
        refusal = _object(content)
        sentence, kind = str(refusal["error"]), str(refusal["kind"])
    except (ValueError, KeyError, AssertionError):
        sentence, kind = f"it answered {status}", "unavailable"
    return Refusal(status, f"node {node.node_id}: {sentence}", kind=kind)
