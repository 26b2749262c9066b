"""A position in a whole stream: an offset for each of the segments that together cover the key space.

The text form is the stream, a colon, then `segment id=offset` pairs by ascending id, joined by commas:
`scope/stream:0=1024,4294967297=0`. It is stable, so that a cut can be kept in a file or a configuration.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from segmentstore.contracts.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class StreamCut:
    """Offsets in bytes by segment id. A cut without segments is the end of a sealed stream."""

    stream: str
    """`scope/stream`."""
    offsets: Mapping[int, int]

    def __str__(self) -> str:
        pairs = ",".join(f"{segment}={self.offsets[segment]}" for segment in sorted(self.offsets))
        return f"{self.stream}:{pairs}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The cut that `str()` wrote. Raises InvalidRequestError."""
        stream, colon, pairs = text.partition(":")
        try:
            if not colon:
                raise ValueError
            offsets: dict[int, int] = {}
            for pair in filter(None, pairs.split(",")):
                segment, _, offset = pair.partition("=")
                offsets[int(segment)] = int(offset)
        except ValueError as error:
            raise InvalidRequestError(
                f"a stream cut looks like scope/stream:segment=offset,... given={text!r}"
            ) from error
        return cls(stream, offsets)
