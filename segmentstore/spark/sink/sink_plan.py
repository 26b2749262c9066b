"""What a write is to do, decided once on the driver and sent to every task: plain values only."""

from contextlib import suppress
from dataclasses import dataclass

from segmentstore.client.errors import AlreadyExistsError, NotFoundError
from segmentstore.client.store import Store, connect
from segmentstore.client.stream_config import StreamConfig
from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.spark.errors import StreamMissingError
from segmentstore.spark.loop_runner import LoopRunner
from segmentstore.spark.options import RECORD_TAG
from segmentstore.spark.sink_options import SinkContent, SinkOptions


@dataclass(frozen=True, slots=True)
class SinkPlan:
    """Where events go and as what."""

    controller: str
    stream: str
    """`scope/stream`."""
    as_records: bool
    routing_key_column: str
    lease_seconds: float


def make_plan(options: SinkOptions) -> SinkPlan:
    """Look at the stream, or create it if it is missing and the options say so.

    Raises StreamMissingError; InvalidRequestError if the content does not fit the stream; and what the client raises.
    """
    with LoopRunner() as runner:
        return runner.run(_plan(options))


async def _plan(options: SinkOptions) -> SinkPlan:
    async with connect(options.controller) as store:
        config = await _config(store, options)
    holds_records = RECORD_TAG in config.tags
    if holds_records and options.content is SinkContent.RAW:
        raise InvalidRequestError(
            f"the stream holds records and content=raw would write something else "
            f"stream={options.stream_name!r}"
        )
    return SinkPlan(
        controller=options.controller,
        stream=options.stream_name,
        as_records=holds_records or options.content is SinkContent.RECORD,
        routing_key_column=options.routing_key_column,
        lease_seconds=options.staging_lease_seconds,
    )


async def _config(store: Store, options: SinkOptions) -> StreamConfig:
    stream = store.stream(options.stream_name)
    try:
        return await stream.config()
    except NotFoundError as error:
        if not options.create_if_missing:
            raise StreamMissingError(
                f"there is no such stream; createIfMissing=true creates it "
                f"stream={options.stream_name!r}"
            ) from error
    if options.scope not in await store.scopes():
        # Another job may be faster; the stream may still be missing then.
        with suppress(AlreadyExistsError):
            await store.scope(options.scope).create()
    try:
        await stream.create(options.stream_config)
    except AlreadyExistsError:
        return await stream.config()
    return options.stream_config
