"""What is left in the store that nobody asked to keep."""

from contextlib import suppress

from segmentstore.codec.controller_records.record_keys import SCOPES_TABLE, TRANSACTIONS_TABLE
from segmentstore.codec.stream_names import (
    mark_stream,
    parse_segment,
    reader_group_stream,
    table_stream,
)
from segmentstore.contracts.errors import InvalidRequestError, SegmentStoreError
from segmentstore.contracts.segments import SegmentProperties
from segmentstore.controller.metadata.metadata_store import PENDING_INDEX
from segmentstore.controller.transactions.transaction_states import Phase
from tests.controller.random_runs.random_world import RandomHost
from tests.controller.random_runs.stream_model import Stage
from tests.controller.random_runs.theatre import SCOPE, Theatre

_PAGE = 100
_UNFINISHED = (PENDING_INDEX, "unfinished-groups", "unfinished-tables")


async def leftovers(theatre: Theatre) -> list[str]:
    """Sentences; empty once the controller has had its time. Raises REQUEST_ERRORS."""
    scopes = await theatre.listing.scopes()
    segments = await theatre.world.ask(_all_segments, seconds=60.0)
    return [
        *await theatre.world.ask(lambda host: _unfinished(host, scopes), seconds=60.0),
        *_strange(theatre, scopes, segments),
    ]


def _strange(theatre: Theatre, scopes: list[str], segments: list[SegmentProperties]) -> list[str]:
    models = [theatre.models[name] for name in theatre.models]
    alive = [
        model for model in models if Stage.ACTIVE.value <= model.stage.value <= Stage.SEALED.value
    ]
    known = {model.name(segment_id) for model in alive for segment_id in model.ranges}
    internal = {mark_stream(model.stream) for model in alive}
    internal |= {reader_group_stream(name) for name in theatre.groups.present()}
    internal |= {table_stream(name) for name in theatre.tables.present()}
    found: list[str] = []
    for info in segments:
        name = info.name
        if name in known or name in (SCOPES_TABLE, TRANSACTIONS_TABLE):
            continue
        if any(name.startswith(f"_system/_tables/{scope}/") for scope in scopes):
            continue
        with suppress(InvalidRequestError):
            parsed = parse_segment(name)
            ours = parsed.scope != SCOPE or parsed.stream in internal
            if parsed.scope in scopes and ours and parsed == parsed.parent:
                continue
        found.append(f"segment {name}")
    return found


async def _all_segments(host: RandomHost) -> list[SegmentProperties]:
    segments: list[SegmentProperties] = []
    while True:
        after = segments[-1].name if segments else ""
        page = await host.segments.list_segments("", after, _PAGE)
        segments += page
        if len(page) < _PAGE:
            return segments


async def _unfinished(host: RandomHost, scopes: list[str]) -> list[str]:
    components = host.controller.components
    found = [f"complaint {why}" for why in components.completer.complaints().items()]
    pending = await components.metadata.scopes.names(PENDING_INDEX, count=_PAGE)
    found += [f"scope {name} is pending" for name in pending.names]
    for scope in scopes:
        try:
            table = await components.metadata.scope_table(scope)
            for index in _UNFINISHED:
                names = (await table.names(index, count=_PAGE)).names
                found += [f"{scope}: {name} is in {index}" for name in names]
        except SegmentStoreError as error:
            found.append(f"scope {scope}: {error}")
    for states in components.transaction_states.all():
        if not states.is_settled or states.has(Phase.MERGED):
            found.append(f"transactions of {states.scope}/{states.stream}: {states}")
    components.transaction_states.check()
    components.streams.operations.check()
    return found
