"""All streams with their configurations, page by page, for what looks at streams in the background.

A scope that is being deleted is passed over, however long that takes: the others are looked at all the same.
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass

from segmentstore.codec.stream_records.stream_configuration_record import (
    StreamConfigurationRecord,
)
from segmentstore.controller.errors import RetryLaterError, ScopeNotFoundError
from segmentstore.controller.metadata.metadata_store import SCOPES_INDEX, MetadataStore
from segmentstore.controller.streams.stream_keys import STREAMS_INDEX, configuration_key

_NAMES_PER_READ = 100


@dataclass(frozen=True, slots=True)
class WalkedStream:
    """A stream as it was a moment ago."""

    scope: str
    stream: str
    configuration: StreamConfigurationRecord


async def all_scopes(store: MetadataStore) -> AsyncGenerator[str, None]:
    """Every scope, in order. Hold it in `aclosing`."""
    after, more = "", True
    while more:
        page = await store.scopes.names(SCOPES_INDEX, after=after, count=_NAMES_PER_READ)
        for scope in page.names:
            yield scope
            after = scope
        more = page.more


async def all_streams(store: MetadataStore) -> AsyncGenerator[WalkedStream, None]:
    """Every stream, internal ones too, in order. Hold it in `aclosing`."""
    after_scope, more_scopes = "", True
    while more_scopes:
        scopes = await store.scopes.names(SCOPES_INDEX, after=after_scope, count=_NAMES_PER_READ)
        for scope in scopes.names:
            after, more = "", True
            while more:
                try:
                    table = await store.scope_table(scope)
                except (ScopeNotFoundError, RetryLaterError):
                    break
                page = await table.names(STREAMS_INDEX, after=after, count=_NAMES_PER_READ)
                found = await table.read_many([configuration_key(name) for name in page.names])
                for name, configuration in zip(page.names, found, strict=True):
                    if configuration.record is not None:
                        yield WalkedStream(scope, name, configuration.record)
                    after = name
                more = page.more
            after_scope = scope
        more_scopes = scopes.more
