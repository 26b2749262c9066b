"""What the owners of Tier 2 do for others: backups of the whole store, and swaps for compactors beside a container.

/v1/backups: points in time of the whole store, kept in Tier 2 while it serves.

    GET     /v1/backups          {"backups": [{"backup", "made_ms", "containers", "complete"}]}, by name
    POST    /v1/backups/{name}   everything acknowledged before is flushed and kept as NAME
                                 {"pinned": [{"backup", "container", "epoch", "root_version", "made_ms"}]}
    DELETE  /v1/backups/{name}   204; what only it named is deleted after a while

- Each owner keeps a snapshot of its own manifest, so this needs every container: while one of them does not run,
  nothing is begun. (In a cluster each node does its part: whole_store.py.)
- A container after the other. A POST that breaks off leaves a backup that is not `complete`; repeating it completes it.
  What some containers may have is told as unknown (500).
- A name that is taken gives what is there already.

/v1/containers/{id}/swaps: what compactors beside a container ask of its owner.

    POST  {id}/swaps/keys          {"count": n}  ->  {"keys": [...]}: keys to upload chunk objects under
    POST  {id}/swaps/release       {"keys": [...]}: they will not be used; what lies under them is garbage
    PUT   {id}/swaps/objects?key=  raw body: an object, for a compactor that cannot write to Tier 2 itself
    POST  {id}/swaps               {"segment_id": n, "old": [images], "new": [images]}

    image   {"start_offset", "end_offset", "object_key", "position", "size", "file_crc32"}: numbers, and a string

- 200 with {"swapped": true} means published; 409 that the owner refused, with the reason, and that nothing changed; 500
  that it is not known which of the two, or that it may be published later: the manifest tells.
- A key is used up by the first proposal that names it, accepted or refused.
- One proposal and one object are under way at a time; a further one gets a 503 and comes again. So the memory of a
  compactor's work here is bounded, however many there are.
"""

from collections.abc import Callable, Coroutine, Mapping, Sequence

from aiohttp import web

from segmentstore.contracts.containers import BackupOwner
from segmentstore.contracts.errors import SwapRefusedError
from segmentstore.contracts.identifiers import ContainerId, SegmentId
from segmentstore.contracts.storage import ProposedImage, SnapshotInfo, SwapOwner, SwapProposal
from segmentstore.http.requests import BodyReader, json_number
from segmentstore.http.responses import (
    SECURITY_HEADERS,
    bad_request,
    busy,
    change_begun,
    conflict,
    json_response,
    method_not_allowed,
    not_found,
)
from segmentstore.http.settings import HttpSettings

_IMAGE_NUMBERS = ("start_offset", "end_offset", "position", "size", "file_crc32")
_IMAGE_FIELDS = frozenset((*_IMAGE_NUMBERS, "object_key"))
_KEYS_PER_REQUEST_MAX = 1_024


BackupOwnerSource = Callable[
    [Sequence[ContainerId] | None], Sequence[tuple[ContainerId, BackupOwner]]
]
"""Of these containers; None: of every one of the store. Raises ContainerNotFoundError if one does not run here."""


def no_backup_owners(
    _containers: Sequence[ContainerId] | None,
) -> Sequence[tuple[ContainerId, BackupOwner]]:
    """For a node whose containers keep no backups."""
    raise not_found("this node keeps no backups")


class BackupVerbs:
    """Answers /v1/backups and everything under it for the containers of this process."""

    def __init__(self, *, owners: BackupOwnerSource, settings: HttpSettings) -> None:
        self._owners = owners
        self._settings = settings

    async def list_all(self) -> web.StreamResponse:
        """What every container of this process has."""
        return json_response(200, await self.list_part(None))

    async def pin_all(self, name: str) -> web.StreamResponse:
        """Of every container, one after the other."""
        return json_response(200, await self.pin_part(name, None))

    async def drop_all(self, name: str) -> web.StreamResponse:
        """Raises Refusal (404)."""
        if not (await self.drop_part(name, None))["dropped"]:
            raise not_found(f"there is no backup of that name name={name[:256]!r}")
        return web.Response(status=204, headers=SECURITY_HEADERS)

    async def pin_part(
        self, name: str, containers: Sequence[ContainerId] | None
    ) -> Mapping[str, object]:
        """Of these containers (None: all)."""
        rows: list[dict[str, object]] = []
        owners = self._owners(containers)
        with change_begun(self._settings.retry_after_seconds):
            for container_id, owner in owners:
                made = await owner.make(name)
                rows.append(
                    {
                        "backup": made.name,
                        "container": container_id,
                        "epoch": made.epoch,
                        "root_version": made.version,
                        "made_ms": made.created_ms,
                    }
                )
        return {"pinned": rows}

    async def drop_part(
        self, name: str, containers: Sequence[ContainerId] | None
    ) -> Mapping[str, object]:
        """Of these containers (None: all): whether one of them had it."""
        dropped = False
        owners = self._owners(containers)
        with change_begun(self._settings.retry_after_seconds):
            for _, owner in owners:
                dropped |= await owner.drop(name)
        return {"dropped": dropped}

    async def list_part(self, containers: Sequence[ContainerId] | None) -> Mapping[str, object]:
        """Of these containers (None: all)."""
        owners = self._owners(containers)
        found: dict[str, list[SnapshotInfo]] = {}
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
        return {"backups": rows}


SwapOwnerSource = Callable[[ContainerId], SwapOwner]
"""The owner of a running container. Raises ContainerNotFoundError."""


def no_swap_owner(container_id: ContainerId) -> SwapOwner:
    """For a node whose containers let no other process work beside them."""
    raise not_found(f"this node takes no swap proposals container={container_id}")


class SwapVerbs:
    """Handles everything under /v1/containers."""

    def __init__(
        self, *, owners: SwapOwnerSource, bodies: BodyReader, settings: HttpSettings
    ) -> None:
        self._owners = owners
        self._bodies = bodies
        self._settings = settings
        self._working: set[str] = set()
        self._verbs: Mapping[
            str,
            tuple[
                str,
                Callable[[web.BaseRequest, SwapOwner], Coroutine[None, None, web.StreamResponse]],
            ],
        ] = {
            "swaps": ("POST", self._propose),
            "swaps/keys": ("POST", self._reserve),
            "swaps/objects": ("PUT", self._upload),
            "swaps/release": ("POST", self._release),
        }

    def route(
        self, request: web.BaseRequest, rest: str
    ) -> tuple[str, ContainerId, Callable[[], Coroutine[None, None, web.StreamResponse]]]:
        """The verb, as the statistics call it, the container, and what answers where that is; `rest` is the raw path
        behind /v1/containers/."""
        number, _, verb = rest.partition("/")
        entry = self._verbs.get(verb)
        if entry is None or not (number.isascii() and number.isdecimal() and len(number) <= 9):
            raise not_found(f"containers/NUMBER/VERB is what exists, VERB of {sorted(self._verbs)}")
        method, handler = entry
        if request.method != method:
            raise method_not_allowed(verb, [method])
        container_id = ContainerId(int(number))

        async def answer() -> web.StreamResponse:
            return await handler(request, self._owners(container_id))

        return "container_" + verb.replace("/", "_"), container_id, answer

    async def _reserve(self, request: web.BaseRequest, owner: SwapOwner) -> web.StreamResponse:
        asked = await self._bodies.read_json_object(request, required=("count",))
        count = json_number(asked, "count")
        if not 1 <= count <= _KEYS_PER_REQUEST_MAX:
            raise bad_request(f"1 to {_KEYS_PER_REQUEST_MAX} keys are given out at once {count=}")
        return json_response(200, {"keys": owner.reserve_object_keys(count)})

    async def _release(self, request: web.BaseRequest, owner: SwapOwner) -> web.StreamResponse:
        asked = await self._bodies.read_json_object(request, required=("keys",))
        keys = asked["keys"]
        if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
            raise bad_request("keys is not a list of strings")
        owner.release_object_keys(keys)
        return json_response(200, {"released": len(keys)})

    async def _upload(self, request: web.BaseRequest, owner: SwapOwner) -> web.StreamResponse:
        key = request.query.get("key", "")
        if not key:
            raise bad_request("the key of the object is missing: swaps/objects?key=...")
        self._begin("upload")
        try:
            async with self._bodies.read(request, self._settings.swap_object_bytes_max) as body:
                if not body:
                    raise bad_request("an object holds at least one byte")
                try:
                    await owner.upload_reserved(key, body)
                except SwapRefusedError as error:
                    raise conflict(str(error)) from error
                return json_response(201, {"key": key, "bytes": len(body)})
        finally:
            self._working.discard("upload")

    async def _propose(self, request: web.BaseRequest, owner: SwapOwner) -> web.StreamResponse:
        asked = await self._bodies.read_json_object(request, required=("segment_id", "old", "new"))
        proposal = SwapProposal(
            segment_id=SegmentId(json_number(asked, "segment_id")),
            old=_images(asked, "old"),
            new=_images(asked, "new"),
        )
        self._begin("proposal")
        try:
            # Its keys are used up by now, and a manifest that was not answered may be written all the same.
            with change_begun(self._settings.retry_after_seconds):
                await owner.propose_swap(proposal)
        except SwapRefusedError as error:
            raise conflict(str(error)) from error
        finally:
            self._working.discard("proposal")
        return json_response(200, {"swapped": True})

    def _begin(self, what: str) -> None:
        if what in self._working:
            raise busy(f"another {what} is under way", self._settings.retry_after_seconds)
        self._working.add(what)


def _images(asked: Mapping[str, object], field: str) -> Sequence[ProposedImage]:
    images = asked[field]
    if not isinstance(images, list):
        raise bad_request(f"{field} is not a list of images")
    return [_image(image) for image in images]


def _image(image: object) -> ProposedImage:
    if not isinstance(image, dict) or set(image) != _IMAGE_FIELDS:
        raise bad_request(f"an image has the fields {sorted(_IMAGE_FIELDS)}")
    key = image["object_key"]
    if not isinstance(key, str):
        raise bad_request(f"object_key is not a string object_key={key!r}")
    start, end, position, size, crc32 = (json_number(image, name) for name in _IMAGE_NUMBERS)
    return ProposedImage(start, end, key, position, size, crc32)
