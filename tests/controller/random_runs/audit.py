"""At the end: everything that was promised is there, and nothing else."""

import asyncio

from tests.controller.random_runs.ledger import Fate, KnownEvent, KnownTransaction
from tests.controller.random_runs.random_world import REQUEST_ERRORS
from tests.controller.random_runs.reading import may_be_gone
from tests.controller.random_runs.staged_versions import KnownVersion
from tests.controller.random_runs.stream_model import Stage, StreamModel
from tests.controller.random_runs.theatre import Theatre
from tests.sim.attempts import ModelBreachError

_TRIES = 100


async def audit(theatre: Theatre) -> None:
    """Read every stream to its end, then compare with what clients were told."""
    theatre.world.patient = True
    for model in theatre.readable():
        await _read_all(theatre, model)
        for event in model.events:
            _check_event(model, event)
        _check_order(model)
        for transaction in model.transactions:
            _check_transaction(model, transaction)
        for version in model.versions:
            _check_version(model, version)
        _check_runs(model)


async def _read_all(theatre: Theatre, model: StreamModel) -> None:
    reading = theatre.reading
    for _ in range(_TRIES):
        try:
            await reading.learn_current(model)
            await reading.learn_epochs(model)
            for segment_id in list(model.ranges):
                await reading.read_segment(model, segment_id)
            await reading.walk(model)
        except REQUEST_ERRORS as error:
            theatre.world.loop.trace("audit again", type(error).__name__, error)
            await asyncio.sleep(1.0)
        else:
            return
    raise ModelBreachError(f"{model} cannot be read")


def _check_event(model: StreamModel, event: KnownEvent) -> None:
    if event.acked_in is not None and event.found is None and not may_be_gone(model, event):
        raise ModelBreachError(f"{model} has lost {event}")


def _check_order(model: StreamModel) -> None:
    """Of each key, over all segments."""
    places: dict[str, list[tuple[int, int, int, KnownEvent]]] = {}
    for segment_id in model.ranges:
        for offset, event in model.segment(segment_id).events.items():
            places.setdefault(event.key, []).append(
                (segment_id >> 32, offset, event.sequence, event)
            )
    for found in places.values():
        found.sort(key=lambda each: each[:3])
        numbers = [sequence for _, _, sequence, _ in found]
        if numbers != sorted(set(numbers)):
            raise ModelBreachError(f"{model} has events out of order {[str(e) for *_, e in found]}")


def _check_transaction(model: StreamModel, transaction: KnownTransaction) -> None:
    acked = [event for event in transaction.events if event.acked_in is not None]
    found = [event for event in transaction.events if event.found is not None]
    missing = [e for e in acked if e.found is None and not may_be_gone(model, e)]
    if transaction.fate is Fate.COMMITTED and missing:
        raise ModelBreachError(f"{model} has lost {missing[0]} of {transaction}")
    if transaction.fate is not Fate.COMMITTED and found and missing:
        raise ModelBreachError(f"{model} has {found[0]} of {transaction}, not {missing[0]}")
    assert model.stage is not Stage.DELETED, f"audited after its end {model}"


def _check_version(model: StreamModel, version: KnownVersion) -> None:
    """Whole or not at all, and there if somebody was told so."""
    for attempt in version.attempts:
        acked = [event for event in attempt.events if event.acked_in is not None]
        missing = [e for e in acked if e.found is None and not may_be_gone(model, e)]
        if attempt.is_found and missing:
            raise ModelBreachError(f"{model} has a part of {version}, not {missing[0]}")
    asked = [attempt for attempt in version.attempts if attempt.asked]
    if version.is_committed and not any(
        attempt.is_found
        or not any(e.acked_in is not None and not may_be_gone(model, e) for e in attempt.events)
        for attempt in asked
    ):
        raise ModelBreachError(f"{model} has nothing of {version}")


def _check_runs(model: StreamModel) -> None:
    """What is committed at once stands in each segment in one stretch, stages in their order."""
    places = {
        stage: (attempt, order)
        for version in model.versions
        for attempt in version.attempts
        for order, stage in enumerate(attempt.stages)
    }
    for segment_id in model.ranges:
        ended: set[object] = set()
        last: tuple[object, int] | None = None
        for offset, event in sorted(model.segment(segment_id).events.items()):
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
                    f"{model} {segment_id} has {event} at {offset} out of its row"
                )
            last = place
