"""/v1/backups: points in time of the whole store, kept in Tier 2 while it serves (H6).

    GET     /v1/backups          {"backups": [{"backup", "made_ms", "containers", "complete"}]}, by name
    POST    /v1/backups/{name}   everything acknowledged before is flushed and kept as NAME
                                 {"pinned": [{"backup", "container", "epoch", "root_version", "made_ms"}]}
    DELETE  /v1/backups/{name}   204; what only it named is deleted after a while

- Each owner pins its own root, so this needs a process that runs every container: without one of them nothing is done.
- A container after the other. A pin that breaks off leaves a backup that is not `complete`; repeating it completes it.
- A name that is taken gives what is there already.
"""

from collections.abc import Callable, Coroutine, Sequence
from typing import Protocol

from aiohttp import web

from segmentstore.contracts.identifiers import ContainerId
from segmentstore.contracts.storage import PinnedRoot
from segmentstore.http.refusals import method_not_allowed, not_found
from segmentstore.http.responses import SECURITY_HEADERS, json_response


class BackupOwner(Protocol):
    """The backups of one running container: containers/container_backups.py."""

    async def pin(self, name: str) -> PinnedRoot: ...

    async def drop(self, name: str) -> bool: ...

    async def list(self) -> Sequence[PinnedRoot]: ...


BackupOwnerSource = Callable[[], Sequence[tuple[ContainerId, BackupOwner]]]
"""Every container of the store. Raises ContainerNotFoundError if one of them does not run here."""


def no_backup_owners() -> Sequence[tuple[ContainerId, BackupOwner]]:
    """For a node whose containers keep no backups."""
    raise not_found("this node keeps no backups")


class BackupVerbs:
    """Handles /v1/backups and everything under it."""

    def __init__(self, *, owners: BackupOwnerSource) -> None:
        self._owners = owners

    def route(
        self, request: web.BaseRequest, name: str
    ) -> tuple[str, Coroutine[None, None, web.StreamResponse]]:
        """The verb, as the statistics call it, and its work; no `name` for the path of all."""
        if not name:
            if request.method not in {"GET", "HEAD"}:
                raise method_not_allowed("the list of backups", ["GET"])
            return "backup_list", self._list()
        match request.method:
            case "POST":
                return "backup_pin", self._pin(name)
            case "DELETE":
                return "backup_drop", self._drop(name)
            case _:
                raise method_not_allowed("a backup", ["DELETE", "POST"])

    async def _pin(self, name: str) -> web.StreamResponse:
        rows: list[dict[str, object]] = []
        for container_id, owner in self._owners():
            pinned = await owner.pin(name)
            rows.append(
                {
                    "backup": pinned.name,
                    "container": container_id,
                    "epoch": pinned.epoch,
                    "root_version": pinned.version,
                    "made_ms": pinned.created_ms,
                }
            )
        return json_response(200, {"pinned": rows})

    async def _drop(self, name: str) -> web.StreamResponse:
        dropped = False
        for _, owner in self._owners():
            dropped |= await owner.drop(name)
        if not dropped:
            raise not_found(f"there is no backup of that name name={name[:256]!r}")
        return web.Response(status=204, headers=SECURITY_HEADERS)

    async def _list(self) -> web.StreamResponse:
        owners = self._owners()
        found: dict[str, list[PinnedRoot]] = {}
        for _, owner in owners:
            for one in await owner.list():
                found.setdefault(one.name, []).append(one)
        rows = [
            {
                "backup": name,
                "made_ms": max(one.created_ms for one in found[name]),
                "containers": len(found[name]),
                "complete": len(found[name]) == len(owners),
            }
            for name in sorted(found)
        ]
        return json_response(200, {"backups": rows})
