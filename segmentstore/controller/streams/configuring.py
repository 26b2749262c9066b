"""Changing what the user asked of a stream: one batch, nothing to resume.

Invariant: the indexes of tags say exactly what the configurations say.
"""

from segmentstore.codec.stream_records.stream_configuration_record import (
    StreamConfigurationRecord,
)
from segmentstore.codec.stream_records.stream_state_record import StreamState
from segmentstore.controller.errors import StreamSealedError
from segmentstore.controller.metadata.batch import Batch
from segmentstore.controller.streams.creation import check_configuration
from segmentstore.controller.streams.settings import StreamSettings
from segmentstore.controller.streams.stream_keys import configuration_key, tag_index
from segmentstore.controller.streams.stream_operations import StreamOperations


class Configuring:
    """The verb update."""

    def __init__(self, *, operations: StreamOperations, settings: StreamSettings) -> None:
        self._operations = operations
        self._settings = settings

    async def update(
        self, scope: str, stream: str, configuration: StreamConfigurationRecord
    ) -> None:
        """Replace policies and tags.

        Raises StreamNotFoundError, ScopeNotFoundError, StreamSealedError, InvalidRequestError.
        """
        check_configuration(configuration, self._settings)
        async with self._operations.exclusive(scope, stream) as history:
            state = (await history.any_state()).record
            known = await history.configuration()
            if state is None or known.record is None:
                raise history.not_found()
            if state.state is StreamState.SEALED:
                raise StreamSealedError(scope, stream)
            batch = Batch()
            batch.put(configuration_key(stream), configuration, known)
            for tag in configuration.tags:
                if tag not in known.record.tags:
                    batch.list_name(tag_index(tag), stream)
            for tag in known.record.tags:
                if tag not in configuration.tags:
                    batch.unlist_name(tag_index(tag), stream)
            await history.table.commit(batch)
