"""What the owners of Tier 2 do for others: backups of the whole store, and swaps for compactors beside a container.

/v1/backups: points in time of the whole store, kept in Tier 2 while it serves.

    GET     /v1/backups          {"backups": [{"backup", "made_ms", "containers", "proved", "complete"}]}, by name
    POST    /v1/backups/{name}   everything acknowledged before is flushed and kept as NAME
                                 {"pinned": [{"backup", "container", "epoch", "root_version", "made_ms"}]}
    DELETE  /v1/backups/{name}   204; what only it named is deleted after a while

- Each owner keeps a snapshot of its own manifest, so this needs every container: while one of them does not run,
  nothing is begun. (In a cluster each node does its part: whole_store.py.)
- It is of one moment for what a transaction does in several containers: its merges, and the table of transactions, wait
  while it is made (`make_whole`). That takes as long as a flush of what came meanwhile.
- What a POST pins is `proved` at its end, once it is known that all containers held until the last pin. What is not,
  because its maker died or Tier 2 was too slow, is not `complete`: no backup is restored from it, and repeating the
  POST makes it anew. Those that earlier versions made count as proved.
- A POST that breaks off is taken back, while still held, wherever that can be done. What may be left is told as unknown
  (500). It goes on to its end although its client leaves.
- A name that is taken by a complete backup gives what is there already.
- One backup is made at a time: another one is told to come back (503).

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

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Final

from aiohttp import web

from segmentstore.codec.controller_records.record_keys import TRANSACTIONS_TABLE
from segmentstore.contracts.containers import BACKUP_HOLD_SECONDS_MAX, BackupOwner
from segmentstore.contracts.errors import (
    ContainerNotFoundError,
    SegmentStoreError,
    SwapRefusedError,
)
from segmentstore.contracts.identifiers import ContainerId, SegmentId
from segmentstore.contracts.storage import ProposedImage, SnapshotInfo, SwapOwner, SwapProposal
from segmentstore.http.requests import BodyReader, json_number
from segmentstore.http.responses import (
    SECURITY_HEADERS,
    Refusal,
    bad_request,
    busy,
    change_begun,
    conflict,
    json_response,
    method_not_allowed,
    not_found,
)
from segmentstore.http.settings import HttpSettings
from segmentstore.runtime.cancellation import finish_despite_cancellation
from segmentstore.runtime.entropy import system_random
from segmentstore.runtime.waiting import gather_all

_LOG = logging.getLogger(__name__)

_IMAGE_NUMBERS = ("start_offset", "end_offset", "position", "size", "file_crc32")
_IMAGE_FIELDS = frozenset((*_IMAGE_NUMBERS, "object_key"))
_KEYS_PER_REQUEST_MAX = 1_024


_HELD_TABLES: Final = (TRANSACTIONS_TABLE,)
"""Where commits are decided, and recorded as done."""

_MAKING_SECONDS_MAX: Final = BACKUP_HOLD_SECONDS_MAX * 3 / 4
"""From the first hold to the last pin: the rest is for taking it back, while all are still held."""

STEPS_WHEREVER_POSSIBLE: Final = frozenset({"let_go", "undo"})
"""A container that is not there does not keep the others from them."""

Parts = Sequence[Mapping[str, object]]
StepOfParts = Callable[[str, str], Awaitable[Parts]]
"""A step (see `BackupVerbs.part`), under the id of a hold, over all containers: what each part answers."""

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
        """Of every container."""

        containers = [each for each, _ in self._owners(None)]

        async def step(step: str, hold_id: str) -> Parts:
            return [await self.part(step, name, hold_id, containers)]

        rows = await make_whole(step, self._settings.retry_after_seconds)
        return json_response(200, {"pinned": rows})

    async def part(
        self, step: str, name: str, hold_id: str, containers: Sequence[ContainerId]
    ) -> Mapping[str, object]:
        """A step in the making of a backup, of these containers. Raises Refusal (400).

        flush, hold, pin, held, prove, let_go: as contracts.containers.BackupOwner says. drop: what an earlier attempt
        left. undo: what this one did. Those in STEPS_WHEREVER_POSSIBLE pass over containers that are not here.
        """
        match step:
            case "flush":
                await gather_all(owner.flush() for _, owner in self._owners(containers))
                return {"flushed": True}
            case "hold":
                return await self._hold_part(name, hold_id, containers)
            case "pin":
                return await self.pin_part(name, containers, hold_id=hold_id)
            case "held":
                owners = self._owners(containers)
                return {"held": [each for each, owner in owners if owner.is_held(hold_id)]}
            case "prove":
                owners = self._owners(containers)
                with change_begun(self._settings.retry_after_seconds):
                    await gather_all(owner.prove(name, hold_id=hold_id) for _, owner in owners)
                return {"proved": list(containers)}
            case "let_go":
                for _, owner in self._owners_here(containers):
                    owner.let_go(hold_id)
                return {"let_go": True}
            case "undo":
                here = self._owners_here(containers)
                undone = await gather_all(_undone(name, *each) for each in here)
                return {
                    "undone": [each for (each, _), done in zip(here, undone, strict=True) if done]
                }
            case "drop":
                return await self.drop_part(name, containers)
            case _:
                raise bad_request(f"a backup is made in other steps step={step[:32]!r}")

    def _owners_here(
        self, containers: Sequence[ContainerId]
    ) -> Sequence[tuple[ContainerId, BackupOwner]]:
        """Of those of them that run here."""
        found: list[tuple[ContainerId, BackupOwner]] = []
        for each in containers:
            try:
                found += self._owners([each])
            except ContainerNotFoundError as error:
                _LOG.warning("a backup goes on without a container: %s", error)
        return found

    async def drop_all(self, name: str) -> web.StreamResponse:
        """Raises Refusal (404)."""
        if not (await self.drop_part(name, None))["dropped"]:
            raise not_found(f"there is no backup of that name name={name[:256]!r}")
        return web.Response(status=204, headers=SECURITY_HEADERS)

    async def _hold_part(
        self, name: str, hold_id: str, containers: Sequence[ContainerId]
    ) -> Mapping[str, object]:
        if not hold_id:
            raise bad_request("a hold has an id: hold=ID")
        owners = self._owners(containers)
        await gather_all(owner.hold(hold_id, _HELD_TABLES) for _, owner in owners)
        lists = await gather_all(owner.list() for _, owner in owners)
        pinned = [
            (container_id, kept)
            for (container_id, _), found in zip(owners, lists, strict=True)
            for kept in found
            if kept.name == name
        ]
        return {
            "held": [container_id for container_id, _ in owners],
            "pinned": [_backup_row(*each) for each in pinned],
            "proved": [container_id for container_id, kept in pinned if kept.is_proved],
        }

    async def pin_part(
        self, name: str, containers: Sequence[ContainerId] | None, *, hold_id: str = ""
    ) -> Mapping[str, object]:
        """Of these containers (None: all), side by side: what is held waits for the slowest of them."""
        owners = self._owners(containers)
        with change_begun(self._settings.retry_after_seconds):
            made = await gather_all(owner.make(name, hold_id=hold_id) for _, owner in owners)
        rows = [_backup_row(each, one) for (each, _), one in zip(owners, made, strict=True)]
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
        found: dict[str, list[Mapping[str, object]]] = {}
        for _, owner in owners:
            for one in await owner.list():
                row = {"made_ms": one.created_ms, "containers": 1, "proved": one.is_proved}
                found.setdefault(one.name, []).append(row)
        return {
            "backups": [merged_backup(name, found[name], len(owners)) for name in sorted(found)]
        }


def merged_backup(
    name: str, rows: Sequence[Mapping[str, object]], expected: int
) -> Mapping[str, object]:
    """One row of what containers, or nodes, have of a backup; complete if that is so many containers, all proved."""
    containers = sum(int(str(row["containers"])) for row in rows)
    # A node of an earlier version has no such mark.
    is_proved = all(row.get("proved", True) for row in rows)
    return {
        "backup": name,
        "made_ms": max(int(str(row["made_ms"])) for row in rows),
        "containers": containers,
        "proved": is_proved,
        "complete": is_proved and containers == expected,
    }


async def make_whole(step: StepOfParts, retry_after_seconds: int) -> Sequence[Mapping[str, object]]:
    """A backup of all containers, of one moment for what transactions do: a row for each. Raises Refusal.

    Whatever ends it, what was held goes on: let go here, or by itself. A caller that leaves waits until that is done:
    what is pinned is either proved or taken back. If this process ends before, or Tier 2 is too slow for either, it
    stays and is not proved.
    """
    hold_id = f"{system_random().getrandbits(128):032x}"
    _all_rows(await step("flush", hold_id), "flushed")
    return await finish_despite_cancellation(_make_held(step, hold_id, retry_after_seconds))


async def _make_held(
    step: StepOfParts, hold_id: str, retry_after_seconds: int
) -> Sequence[Mapping[str, object]]:
    making = _HeldBackup(step, hold_id, retry_after_seconds)
    try:
        # A Tier 2 that stands still would keep it for ever.
        async with asyncio.timeout(_MAKING_SECONDS_MAX):
            return await making.make()
    except TimeoutError as error:
        late = busy(
            "the backup was not made: Tier 2 or the log was too slow; make it again",
            retry_after_seconds,
        )
        raise await making.take_back(late) from error
    except (Refusal, SegmentStoreError) as error:
        raise await making.take_back(error) from error
    finally:
        try:
            await step("let_go", hold_id)
        except (Refusal, SegmentStoreError) as error:
            _LOG.warning("what was held for a backup goes on by itself: %s", error)


class _HeldBackup:
    """From the first hold until all pins were proved, or taken back."""

    def __init__(self, step: StepOfParts, hold_id: str, retry_after_seconds: int) -> None:
        self._step = step
        self._hold_id = hold_id
        self._retry_after_seconds = retry_after_seconds
        self._began = asyncio.get_running_loop().time()
        self._count = 0
        self._is_pinned = False
        """Also in part."""

    async def make(self) -> Sequence[Mapping[str, object]]:
        """Raises Refusal, SegmentStoreError: then take back."""
        parts = await self._step("hold", self._hold_id)
        held, pinned = _all_rows(parts, "held"), _all_rows(parts, "pinned")
        if len(_all_rows(parts, "proved")) == len(held):
            return pinned
        if asyncio.get_running_loop().time() - self._began > BACKUP_HOLD_SECONDS_MAX / 2:
            raise busy(
                "the backup was not begun: it took too long until all containers were ready for it",
                self._retry_after_seconds,
            )
        if pinned:
            # Of another moment, or of a maker that did not come to prove them.
            with change_begun(self._retry_after_seconds):
                await self._step("drop", self._hold_id)
        self._count, self._is_pinned = len(held), True
        pinned = _all_rows(await self._step("pin", self._hold_id), "pinned")
        if len(_all_rows(await self._step("held", self._hold_id), "held")) < len(held):
            # Its owner was replaced meanwhile, or was too slow: what waited there may have gone on before the last pin.
            raise busy(
                "the backup was not made: a container did not hold to the end what has to wait for it; make it again",
                self._retry_after_seconds,
            )
        await self._step("prove", self._hold_id)
        return pinned

    async def take_back(self, cause: Refusal | SegmentStoreError) -> Refusal | SegmentStoreError:
        """What to answer. Others are still held: no other maker of that name comes in between."""
        if not self._is_pinned:
            return cause
        undone: list[Any] = []
        try:
            async with asyncio.timeout_at(self._began + BACKUP_HOLD_SECONDS_MAX):
                undone = _all_rows(await self._step("undo", self._hold_id), "undone")
        except (Refusal, SegmentStoreError, TimeoutError) as error:
            _LOG.warning("a backup that broke off was not taken back: %s", error)
        if len(undone) == self._count:
            return cause
        advice = (
            "what may be left of it counts only if `segmentstore backup list` calls it complete: make it again, or drop"
            " it (segmentstore backup drop)"
        )
        kind = cause.kind if isinstance(cause, Refusal) else cause.kind.value
        headers = {"Retry-After": str(self._retry_after_seconds)}
        return Refusal(500, f"{cause}; {advice}", kind=kind, headers=headers)


async def _undone(name: str, container_id: ContainerId, owner: BackupOwner) -> bool:
    try:
        await owner.drop(name)
    except SegmentStoreError as error:
        _LOG.warning(
            "a backup that broke off is left in a container container=%s: %s", container_id, error
        )
        return False
    return True


def _all_rows(parts: Parts, field: str) -> list[Any]:
    rows: list[Any] = []
    for part in parts:
        if field not in part:
            raise conflict(
                "a node of an earlier version cannot take part in a backup: update all nodes, drop the backup, and"
                " make it again"
            )
        found = part[field]
        rows += found if isinstance(found, list) else [found]
    return rows


def _backup_row(container_id: ContainerId, made: SnapshotInfo) -> Mapping[str, object]:
    return {
        "backup": made.name,
        "container": container_id,
        "epoch": made.epoch,
        "root_version": made.version,
        "made_ms": made.created_ms,
    }


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
