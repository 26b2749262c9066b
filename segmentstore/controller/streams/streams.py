"""All verbs and questions of streams in one hand.

streams.creation.create(...)    streams.scaling.scale(...)         streams.queries.successors(...)
streams.sealing.seal(...)       streams.truncation.truncate(...)
streams.deletion.delete(...)    streams.configuring.update(...)
"""

from segmentstore.contracts.segments import SegmentApi
from segmentstore.controller.metadata.metadata_store import MetadataStore
from segmentstore.controller.streams.configuring import Configuring
from segmentstore.controller.streams.creation import Creation
from segmentstore.controller.streams.deletion import Deletion
from segmentstore.controller.streams.epoch_transition import EpochTransition
from segmentstore.controller.streams.scaling import Scaling
from segmentstore.controller.streams.sealing import Sealing
from segmentstore.controller.streams.settings import StreamSettings
from segmentstore.controller.streams.stream_operations import StreamOperations
from segmentstore.controller.streams.stream_queries import StreamQueries
from segmentstore.controller.streams.stream_segments import StreamSegments
from segmentstore.controller.streams.truncation import Truncation
from segmentstore.runtime.clock import WallClock


class Streams:
    """Builds the verbs over the doors; holds no state of its own."""

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        segments: SegmentApi,
        wall_clock: WallClock,
        settings: StreamSettings,
    ) -> None:
        self.metadata = metadata
        self.operations = StreamOperations(metadata=metadata, settings=settings)
        self.segments = StreamSegments(
            segments=segments, at_once_max=settings.segment_steps_at_once_max
        )
        self.transition = EpochTransition(segments=self.segments)
        self.creation = Creation(
            metadata=metadata,
            operations=self.operations,
            segments=self.segments,
            wall_clock=wall_clock,
            settings=settings,
        )
        self.scaling = Scaling(
            operations=self.operations,
            transition=self.transition,
            wall_clock=wall_clock,
            settings=settings,
        )
        self.truncation = Truncation(
            operations=self.operations, segments=self.segments, settings=settings
        )
        self.sealing = Sealing(operations=self.operations, segments=self.segments)
        self.deletion = Deletion(
            operations=self.operations, segments=self.segments, settings=settings
        )
        self.configuring = Configuring(operations=self.operations, settings=settings)
        self.queries = StreamQueries(operations=self.operations, segments=self.segments)
