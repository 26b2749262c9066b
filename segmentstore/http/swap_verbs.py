"""/v1/containers/{id}/swaps: the door of a container's owner for compactors beside it (H9).

    POST  {id}/swaps/keys          {"count": n}  ->  {"keys": [...]}: keys to upload chunk objects under
    POST  {id}/swaps/release       {"keys": [...]}: they will not be used; what lies under them is garbage
    PUT   {id}/swaps/objects?key=  raw body: an object, for whoever cannot write to Tier 2 itself
    POST  {id}/swaps               {"segment_id": n, "old": [images], "new": [images]}

    image   {"start_offset", "end_offset", "object_key", "position", "size", "file_crc32"}: numbers, and a string

- 200 with {"swapped": true} means published; 409 that the owner refused, with the reason, and that nothing changed.
- A key is used up by the first proposal that names it, accepted or refused.
- One proposal and one object are under way at a time; whoever comes meanwhile gets a 503 and comes again. So the memory
  of a compactor's work here is bounded, however many there are.
"""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Protocol

from aiohttp import web

from segmentstore.contracts.identifiers import BufferView, ContainerId, SegmentId
from segmentstore.http.attribute_text import parse_json
from segmentstore.http.bodies import BodyReader
from segmentstore.http.refusals import bad_request, busy, conflict, method_not_allowed, not_found
from segmentstore.http.responses import json_response
from segmentstore.http.settings import HttpSettings
from tier2.storage.swap_proposals import ProposedImage, SwapProposal, SwapRefusedError

_NUMBERS = ("start_offset", "end_offset", "position", "size", "file_crc32")
_FIELDS = frozenset((*_NUMBERS, "object_key"))
_NUMBER_END = 1 << 63
_KEYS_PER_REQUEST_MAX = 1_024


class SwapOwner(Protocol):
    """What the owner of a container's Tier 2 does for compactors: tier2/storage/tiered_storage.py."""

    def reserve_object_keys(self, count: int) -> list[str]: ...

    def release_object_keys(self, keys: Sequence[str]) -> None: ...

    async def upload_reserved(self, key: str, content: BufferView) -> None: ...

    async def propose_swap(self, proposal: SwapProposal) -> None: ...


SwapOwnerSource = Callable[[ContainerId], SwapOwner]
"""The owner of a running container. Raises ContainerNotFoundError."""


def no_swap_owner(container_id: ContainerId) -> SwapOwner:
    """For a node whose containers let nobody beside them work."""
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
    ) -> tuple[str, Coroutine[None, None, web.StreamResponse]]:
        """The verb, as the statistics call it, and its work; `rest` is the raw path behind /v1/containers/."""
        number, _, verb = rest.partition("/")
        entry = self._verbs.get(verb)
        if entry is None or not (number.isascii() and number.isdecimal() and len(number) <= 9):
            raise not_found(f"containers/NUMBER/VERB is what exists, VERB of {sorted(self._verbs)}")
        method, handler = entry
        if request.method != method:
            raise method_not_allowed(verb, [method])
        owner = self._owners(ContainerId(int(number)))
        return "container_" + verb.replace("/", "_"), handler(request, owner)

    async def _reserve(self, request: web.BaseRequest, owner: SwapOwner) -> web.StreamResponse:
        asked = await self._json_object(request, {"count"})
        count = _number(asked, "count")
        if not 1 <= count <= _KEYS_PER_REQUEST_MAX:
            raise bad_request(f"1 to {_KEYS_PER_REQUEST_MAX} keys are given out at once {count=}")
        return json_response(200, {"keys": owner.reserve_object_keys(count)})

    async def _release(self, request: web.BaseRequest, owner: SwapOwner) -> web.StreamResponse:
        asked = await self._json_object(request, {"keys"})
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
        asked = await self._json_object(request, {"segment_id", "old", "new"})
        proposal = SwapProposal(
            segment_id=SegmentId(_number(asked, "segment_id")),
            old=_images(asked, "old"),
            new=_images(asked, "new"),
        )
        self._begin("proposal")
        try:
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

    async def _json_object(
        self, request: web.BaseRequest, fields: set[str]
    ) -> Mapping[str, object]:
        async with self._bodies.read(request, self._settings.control_body_bytes_max) as body:
            value = parse_json(body) if body else {}
        if not isinstance(value, dict) or set(value) != fields:
            raise bad_request(f"the body is not a JSON object of the fields {sorted(fields)}")
        return value


def _images(asked: Mapping[str, object], field: str) -> Sequence[ProposedImage]:
    images = asked[field]
    if not isinstance(images, list):
        raise bad_request(f"{field} is not a list of images")
    return [_image(image) for image in images]


def _image(image: object) -> ProposedImage:
    if not isinstance(image, dict) or set(image) != _FIELDS:
        raise bad_request(f"an image has the fields {sorted(_FIELDS)}")
    key = image["object_key"]
    if not isinstance(key, str):
        raise bad_request(f"object_key is not a string object_key={key!r}")
    start, end, position, size, crc32 = (_number(image, name) for name in _NUMBERS)
    return ProposedImage(start, end, key, position, size, crc32)


def _number(asked: Mapping[str, object], field: str) -> int:
    value = asked[field]
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _NUMBER_END:
        raise bad_request(f"{field} is not a number {field}={value!r}")
    return value
