"""At the end: everything that was promised is there, and nothing else."""

import asyncio

from tests.controller.random_life.ledger import Fate, KnownEvent, KnownTransaction
from tests.controller.random_life.life_world import REQUEST_ERRORS
from tests.controller.random_life.reading import may_be_gone
from tests.controller.random_life.staged_versions import KnownVersion
from tests.controller.random_life.stream_life import Stage, StreamLife
from tests.controller.random_life.theatre import Theatre
from tests.sim.attempts import ModelBreachError

_TRIES = 100


async def audit(theatre: Theatre) -> None:
    """Read every stream to its end, then compare with what clients were told."""
    theatre.world.patient = True
    for life in theatre.readable():
        await _read_all(theatre, life)
        for event in life.events:
            _check_event(life, event)
        _check_order(life)
        for transaction in life.transactions:
            _check_transaction(life, transaction)
        for version in life.versions:
            _check_version(life, version)
        _check_runs(life)


async def _read_all(theatre: Theatre, life: StreamLife) -> None:
    reading = theatre.reading
    for _ in range(_TRIES):
        try:
            await reading.learn_current(life)
            await reading.learn_epochs(life)
            for segment_id in list(life.ranges):
                await reading.read_segment(life, segment_id)
            await reading.walk(life)
        except REQUEST_ERRORS as error:
            theatre.world.loop.trace("audit again", type(error).__name__, error)
            await asyncio.sleep(1.0)
        else:
            return
    raise ModelBreachError(f"{life} cannot be read")


def _check_event(life: StreamLife, event: KnownEvent) -> None:
    if event.acked_in is not None and event.found is None and not may_be_gone(life, event):
        raise ModelBreachError(f"{life} has lost {event}")


def _check_order(life: StreamLife) -> None:
    """Of each key, over all segments."""
    places: dict[str, list[tuple[int, int, int, KnownEvent]]] = {}
    for segment_id in life.ranges:
        for offset, event in life.segment(segment_id).events.items():
            places.setdefault(event.key, []).append(
                (segment_id >> 32, offset, event.sequence, event)
            )
    for found in places.values():
        found.sort(key=lambda each: each[:3])
        numbers = [sequence for _, _, sequence, _ in found]
        if numbers != sorted(set(numbers)):
            raise ModelBreachError(f"{life} has events out of order {[str(e) for *_, e in found]}")


def _check_transaction(life: StreamLife, transaction: KnownTransaction) -> None:
    acked = [event for event in transaction.events if event.acked_in is not None]
    found = [event for event in transaction.events if event.found is not None]
    missing = [e for e in acked if e.found is None and not may_be_gone(life, e)]
    if transaction.fate is Fate.COMMITTED and missing:
        raise ModelBreachError(f"{life} has lost {missing[0]} of {transaction}")
    if transaction.fate is not Fate.COMMITTED and found and missing:
        raise ModelBreachError(f"{life} has {found[0]} of {transaction}, not {missing[0]}")
    assert life.stage is not Stage.DELETED, f"audited after its end {life}"


def _check_version(life: StreamLife, version: KnownVersion) -> None:
    """Whole or not at all, and there if somebody was told so."""
    for attempt in version.attempts:
        acked = [event for event in attempt.events if event.acked_in is not None]
        missing = [e for e in acked if e.found is None and not may_be_gone(life, e)]
        if attempt.is_found and missing:
            raise ModelBreachError(f"{life} has a part of {version}, not {missing[0]}")
    asked = [attempt for attempt in version.attempts if attempt.asked]
    if version.is_committed and not any(
        attempt.is_found
        or not any(e.acked_in is not None and not may_be_gone(life, e) for e in attempt.events)
        for attempt in asked
    ):
        raise ModelBreachError(f"{life} has nothing of {version}")


def _check_runs(life: StreamLife) -> None:
    """What is committed at once stands in each segment in one stretch, stages in their order."""
    places = {
        stage: (attempt, order)
        for version in life.versions
        for attempt in version.attempts
        for order, stage in enumerate(attempt.stages)
    }
    for segment_id in life.ranges:
        ended: set[object] = set()
        last: tuple[object, int] | None = None
        for offset, event in sorted(life.segment(segment_id).events.items()):
            transaction = event.transaction
            if transaction is None:
                place = None
            else:
                attempt, order = places.get(transaction, (transaction, 0))
                # Stages of different epochs become one transaction each.
                place = ((attempt, transaction.transaction_id >> 96), order)
            if last is not None and (place is None or place[0] != last[0]):
                ended.add(last[0])
            if place is not None and (
                place[0] in ended
                or (last is not None and last[0] == place[0] and last[1] > place[1])
            ):
                raise ModelBreachError(
                    f"{life} {segment_id} has {event} at {offset} out of its row"
                )
            last = place
