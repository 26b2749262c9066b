"""Checkers: what must hold of a whole store, whatever happened to it.

- audit(): through the verbs, every segment reads back whole: every acked append once, at its place, in order; nothing
  refused, nothing foreign; lengths, seals, truncations and attributes as the model knows them; nothing gone is back.
- audit_storage(): what the root alone says about a segment is a moment of its past: its bytes are a prefix, and its
  writers' attributes are exactly the events in that prefix (H13, H15).
- check_running(): every structure's own check(), the cache within its budget.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from segmentstore.contracts.containers import SegmentContainer
from segmentstore.contracts.errors import SegmentNotFoundError
from segmentstore.contracts.identifiers import AttributeKey
from segmentstore.contracts.segments import ReadResultEntryKind
from segmentstore.contracts.storage import ReadOnlyStorage, SegmentRecord
from tests.sim.attempts import ModelBreachError
from tests.sim.client import Client, OpenSegment
from tests.sim.explain import Explainer, Explanation
from tests.sim.incarnation import Incarnation
from tests.sim.model import Model

_READ_BYTES = 1 << 20
TABLE_PREFIX = "table/"
"""Names of segments that only their keepers know about."""


async def audit(client: Client, *, quiet: bool) -> dict[str, bytes]:
    """Read everything back and compare; the readable content by name.

    With `quiet` nothing else is going on, so attributes must equal the events in the bytes.
    """
    explainer = Explainer(client.model)
    contents: dict[str, bytes] = {}
    for name in client.model.names():
        try:
            segment = await client.open(name)
        except SegmentNotFoundError:
            continue
        try:
            contents[name] = await _audit_segment(segment, explainer, quiet=quiet)
        finally:
            await segment.close()
    await _audit_listing(client, sorted(contents))
    return contents


async def _audit_segment(segment: OpenSegment, explainer: Explainer, *, quiet: bool) -> bytes:
    info = await segment.info()
    content = bytearray()
    at = info.start_offset
    while at < info.length:
        pieces = await segment.read(at, min(_READ_BYTES, info.length - at))
        data = b"".join(piece.data for piece in pieces)
        if not data:
            raise ModelBreachError(f"{segment.life}: nothing to read at {at}, info={info}")
        content += data
        at += len(data)
    await _audit_end(segment, info.length, sealed=info.sealed)
    explanation = explainer.explain(segment.life, info.start_offset, bytes(content))
    keys = [*explanation.events, *segment.life.registers, *segment.life.counters]
    values = await segment.load_attributes(keys)
    if quiet:
        check_events(segment.life, explanation, values)
    return bytes(content)


async def _audit_end(segment: OpenSegment, length: int, *, sealed: bool) -> None:
    """Behind the last byte there is the tail of an open segment or the end of a sealed one."""
    (end,) = await segment.read(length, 1)
    due = ReadResultEntryKind.END_OF_SEGMENT if sealed else ReadResultEntryKind.FUTURE
    if end.kind is not due:
        raise ModelBreachError(f"{segment.life}: {end.kind} at the end {length}, sealed={sealed}")


async def _audit_listing(client: Client, found: list[str]) -> None:
    """list_segments gives exactly what can be opened, in order, each from the container that owns it."""
    listed: list[str] = []
    for container in client.containers():
        after = ""
        while True:
            names = await client.list_names(container, after, limit=7)
            listed += [name for name in names if not name.startswith(TABLE_PREFIX)]
            if names != sorted(set(names)) or (names and names[0] <= after):
                raise ModelBreachError(f"a listing is out of order: {names} after {after!r}")
            if len(names) < 7:
                break
            after = names[-1]
    if sorted(listed) != found:
        raise ModelBreachError(f"a listing gives {sorted(listed)}, what opens is {found}")


def check_events(
    life: Incarnation, explanation: Explanation, values: Mapping[AttributeKey, Any]
) -> None:
    """A writer's attribute says how many of its events are in the bytes: neither ahead nor behind (H15)."""
    for writer, events in explanation.events.items():
        if values.get(writer, 0) != events[-1]:
            raise ModelBreachError(
                f"{life}: writer {writer.hex()} is at {values.get(writer)!r}, its bytes at {events[-1]}"
            )


async def audit_storage(
    storage: ReadOnlyStorage, model: Model, container_id: int
) -> dict[str, bytes]:
    """What Tier 2 alone can give back is a moment of the past of every segment in it; the contents by name."""
    explainer = Explainer(model)
    contents: dict[str, bytes] = {}
    for (owner, segment_id), life in list(model.incarnations.items()):
        if owner != container_id:
            continue
        record = await storage.find(life.name)
        if record is None or int(record.segment_id) != segment_id:
            continue
        content = await _stored_content(storage, record)
        _check_stored_bytes(life, record, content)
        explanation = explainer.explain(life, record.start_offset, content, partial=True)
        writers = [append.writer for append in life.appends if append.writer is not None]
        keys = list(dict.fromkeys(writers))
        values = dict(await storage.load_attributes(record.segment_id, keys))
        values |= {
            key: record.core_attributes[key] for key in keys if key in record.core_attributes
        }
        check_events(life, explanation, values)
        _check_no_writer_is_ahead(life, explanation, values)
        contents[life.name] = content
    return contents


async def _stored_content(storage: ReadOnlyStorage, record: SegmentRecord) -> bytes:
    content = bytearray()
    at = record.start_offset
    while at < record.length:
        found = await storage.read(record.segment_id, at, record.length - at)
        data = found.content[at - found.offset :]
        content += data[: record.length - at]
        at += len(data)
    return bytes(content)


def _check_stored_bytes(life: Incarnation, record: SegmentRecord, content: bytes) -> None:
    for place, byte in enumerate(content, record.start_offset):
        if place < len(life.known) and life.known[place] and life.content[place] != byte:
            raise ModelBreachError(f"{life}: Tier 2 has other bytes at {place}, record={record}")


def _check_no_writer_is_ahead(
    life: Incarnation, explanation: Explanation, values: Mapping[AttributeKey, Any]
) -> None:
    truncated = life.start_max > 0
    for writer, value in values.items():
        if writer not in explanation.events and value and not truncated:
            raise ModelBreachError(
                f"{life}: Tier 2 knows writer {writer.hex()} but none of its bytes"
            )


def check_running(containers: Iterable[SegmentContainer]) -> None:
    """Prove the invariants of every structure, and that the cache keeps to its budget."""
    for container in containers:
        check = getattr(container, "check", None)
        if check is not None:
            check()
        metrics = container.metrics()
        used, most = metrics.get("cache_used_bytes"), metrics.get("cache_max_bytes")
        if used is not None and most is not None and used > most:
            raise ModelBreachError(f"the cache holds {used} of {most} bytes")
