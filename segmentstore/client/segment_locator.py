"""Which segment store serves a segment.

Invariants:

- An answer is remembered until somebody finds it wrong (`forget`); memory is bounded by `_REMEMBERED_MAX` answers.
- A segment's transactions and transient segments live where the segment lives, so they share its answer.
"""

from typing import Final, Protocol

from segmentstore.client.wire_connection import Endpoint
from segmentstore.codec.stream_names import parse_segment

_REMEMBERED_MAX: Final = 10_000


class SegmentLocator(Protocol):
    """Where to send requests for a segment."""

    async def endpoint(self, segment: str) -> Endpoint:
        """Raises ClientError, InvalidRequestError for a name that is no stream's segment."""

    def forget(self, segment: str) -> None:
        """The last answer was wrong, or its connection failed: ask again next time."""


class EndpointSource(Protocol):
    """Whoever knows the endpoint of a stream's segment: the controller."""

    async def segment_endpoint(self, scope: str, stream: str, segment_id: int) -> Endpoint: ...


class FixedLocator:
    """One segment store for everything, whatever the names are."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    async def endpoint(self, segment: str) -> Endpoint:  # noqa: ARG002  # the door's signature
        return self._endpoint

    def forget(self, segment: str) -> None:
        """There is nowhere else to go."""


class RememberingLocator:
    """Asks the controller once for each segment."""

    def __init__(self, source: EndpointSource) -> None:
        self._source = source
        self._endpoints: dict[str, Endpoint] = {}

    async def endpoint(self, segment: str) -> Endpoint:
        found = self._endpoints.get(segment)
        if found is not None:
            return found
        parsed = parse_segment(segment)
        parent = parsed.parent.name
        found = self._endpoints.get(parent)
        if found is None:
            found = await self._source.segment_endpoint(
                parsed.scope, parsed.stream, parsed.segment_id
            )
            while len(self._endpoints) >= _REMEMBERED_MAX:
                self._endpoints.pop(next(iter(self._endpoints)))
            self._endpoints[parent] = found
        return found

    def forget(self, segment: str) -> None:
        self._endpoints.pop(parse_segment(segment).parent.name, None)
