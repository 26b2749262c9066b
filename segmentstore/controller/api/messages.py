"""Between messages and the controller's own values; where clients are sent, and with which token.

Endpoints and tokens are both decided outside of the controller: here stand their types only.
"""

import ipaddress
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar

from segmentstore.codec.controller_api import controller_pb2 as api
from segmentstore.codec.controller_records.stream_records import (
    RetentionPolicy,
    RetentionType,
    ScalingPolicy,
    ScalingType,
    StreamConfigurationRecord,
    StreamSegment,
)
from segmentstore.contracts.errors import InvalidRequestError

Choice = TypeVar("Choice", bound=IntEnum)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address that every client reads alike: an IP literal, never a host name."""

    address: str
    port: int

    def __post_init__(self) -> None:
        try:
            ipaddress.ip_address(self.address)
        except ValueError as error:
            # Clients that resolve names themselves pick different ones of several addresses.
            raise InvalidRequestError(
                f"an endpoint is an IP address, not a name address={self.address!r}"
            ) from error
        if not 0 < self.port < 65536:
            raise InvalidRequestError(f"port is out of range port={self.port}")


ListControllers = Callable[[], Sequence[Endpoint]]
"""Where clients reach the controllers; asked with each call, as a port may be known only behind the start."""

LocateSegment = Callable[[str], Endpoint]
"""The segment store that serves a segment, by the segment's qualified name. Raises SegmentStoreError if unknown."""

IssueToken = Callable[[str, str], str]
"""A delegation token for the stream of a scope; empty without authentication."""


def no_token(scope: str, stream: str) -> str:  # noqa: ARG001 (the shape of IssueToken)
    """Without authentication every token is empty."""
    return ""


def configuration_of(message: api.StreamConfig) -> StreamConfigurationRecord:
    """What a client asks of a stream. Raises InvalidRequestError for policies that do not exist."""
    scaling = message.scalingPolicy
    if scaling.targetRate < 0 or scaling.scaleFactor < 0 or scaling.minNumSegments < 0:
        raise InvalidRequestError("a scaling policy has no negative numbers")
    return StreamConfigurationRecord(
        scaling=ScalingPolicy(
            type=_choice(ScalingType, scaling.scaleType),
            target_rate=scaling.targetRate,
            scale_factor=scaling.scaleFactor,
            segment_count_min=scaling.minNumSegments if message.HasField("scalingPolicy") else 1,
        ),
        retention=RetentionPolicy(
            type=_choice(RetentionType, message.retentionPolicy.retentionType),
            limit=message.retentionPolicy.retentionParam,
            maximum=message.retentionPolicy.retentionMax,
        ),
        tags=tuple(sorted(set(message.tags.tag))),
        timestamp_aggregation_timeout_ms=message.timestampAggregationTimeout,
        rollover_bytes=message.rolloverSizeBytes,
    )


def configuration_message(
    scope: str, stream: str, configuration: StreamConfigurationRecord
) -> api.StreamConfig:
    """The same, for a client."""
    scaling, retention = configuration.scaling, configuration.retention
    return api.StreamConfig(
        streamInfo=api.StreamInfo(scope=scope, stream=stream),
        scalingPolicy=api.ScalingPolicy(
            scaleType=api.ScalingPolicy.ScalingPolicyType.Name(scaling.type),
            targetRate=scaling.target_rate,
            scaleFactor=scaling.scale_factor,
            minNumSegments=scaling.segment_count_min,
        ),
        retentionPolicy=api.RetentionPolicy(
            retentionType=api.RetentionPolicy.RetentionPolicyType.Name(retention.type),
            retentionParam=retention.limit,
            retentionMax=retention.maximum,
        ),
        tags=api.Tags(tag=configuration.tags),
        timestampAggregationTimeout=configuration.timestamp_aggregation_timeout_ms,
        rolloverSizeBytes=configuration.rollover_bytes,
    )


def segment_id_message(scope: str, stream: str, segment_id: int) -> api.SegmentId:
    """The id of a segment with its stream."""
    return api.SegmentId(
        streamInfo=api.StreamInfo(scope=scope, stream=stream), segmentId=segment_id
    )


def range_message(scope: str, stream: str, segment: StreamSegment) -> api.SegmentRange:
    """A segment and its part of the key space."""
    return api.SegmentRange(
        segmentId=segment_id_message(scope, stream, segment.segment_id),
        minKey=segment.low,
        maxKey=segment.high,
    )


def ranges_message(
    stream: api.StreamInfo, segments: Sequence[StreamSegment], *, token: str
) -> api.SegmentRanges:
    """Several of them, with the token that lets the client reach them."""
    return api.SegmentRanges(
        segmentRanges=[range_message(stream.scope, stream.stream, each) for each in segments],
        delegationToken=token,
    )


def _choice(choices: type[Choice], number: int) -> Choice:
    try:
        return choices(number)
    except ValueError as error:
        raise InvalidRequestError(
            f"policy type is unknown what={choices.__name__} number={number}"
        ) from error
