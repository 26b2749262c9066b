"""`segmentstore stream ...`: the verbs of a stream. A stream is named SCOPE/STREAM."""

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any, BinaryIO, TypeVar

import click

from segmentstore.cli.options import BYTES, SECONDS, controller_option, with_store
from segmentstore.cli.output import Row, flush_bytes, output_option, print_record, print_rows
from segmentstore.cli.pipes import key_separator_option, print_event, write_lines
from segmentstore.client.store import Store
from segmentstore.client.stream import Stream
from segmentstore.client.stream_config import (
    RetentionPolicy,
    ScaleType,
    ScalingPolicy,
    StreamConfig,
)
from segmentstore.client.stream_segments import StreamCut

_Command = TypeVar("_Command", bound=Callable[..., Any])  # click's own bound for what it decorates


@click.group()
def stream() -> None:
    """Create, write, read and administer streams (SCOPE/STREAM)."""


def _config_options(command: _Command) -> _Command:
    """The options that make up a stream's configuration, but how many segments it has."""
    options = (
        click.option(
            "--events-per-second",
            type=click.IntRange(min=1),
            help="Scale so that a segment takes about so many.",
        ),
        click.option(
            "--kilobytes-per-second",
            type=click.IntRange(min=1),
            help="Scale so that a segment takes about so many, of 1,024 bytes.",
        ),
        click.option(
            "--scale-factor",
            type=click.IntRange(min=2),
            default=2,
            show_default=True,
            help="Into how many a segment is split that takes more.",
        ),
        click.option("--retain", type=SECONDS, help="Keep events for so long, as '7d' or '3600s'."),
        click.option("--retain-size", type=BYTES, help="Keep so much, as '10GiB'."),
        click.option("--tag", "tags", multiple=True, help="A word to find it by. Repeatable."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@stream.command()
@click.argument("name")
@click.option(
    "--segments",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="To begin with; never fewer where it scales by a rate.",
)
@_config_options
@controller_option
@output_option
def create(name: str, controller: str, output: str, **options: Any) -> None:  # of _config_options
    """Create a stream."""
    config = _config(**options)
    print_record(
        with_store(controller, _changed(name, lambda stream: stream.create(config))), output
    )


@stream.command()
@click.argument("name")
@click.option(
    "--segments", type=click.IntRange(min=1), help="Scale to so many.  [default: as they are]"
)
@_config_options
@controller_option
@output_option
def update(
    name: str,
    segments: int | None,
    controller: str,
    output: str,
    **options: Any,  # of _config_options
) -> None:
    """Replace the configuration of a stream: what is not given goes back to its default.

    The stream is scaled to --segments, or where it scales by a rate to that many at least.
    """
    config = _config(segments=segments or 1, **options)

    async def change(stream: Stream) -> None:
        kept = config
        if segments is None and config.scaling.type is ScaleType.FIXED:
            # A sealed stream has none, and refuses the update.
            there = len(await stream.segments()) or 1
            kept = replace(config, scaling=ScalingPolicy.fixed(there))
        await stream.update(kept)

    print_record(with_store(controller, _changed(name, change)), output)


@stream.command("list")
@click.argument("scope")
@click.option("--tag", help="Only those that carry it.")
@controller_option
@output_option
def list_streams(scope: str, tag: str | None, controller: str, output: str) -> None:
    """List the streams of a scope in name order."""
    names = with_store(controller, lambda store: store.scope(scope).streams(tag=tag))
    print_rows([{"stream": f"{scope}/{name}"} for name in names], output)


@stream.command()
@click.argument("name")
@controller_option
@output_option
def info(name: str, controller: str, output: str) -> None:
    """Show configuration, head, tail and state."""
    print_record(with_store(controller, lambda store: _record(store, name)), output)


@stream.command()
@click.argument("name")
@click.argument("source", type=click.File("rb"), default="-")
@key_separator_option
@controller_option
@output_option
def write(
    name: str, source: BinaryIO, key_separator: str | None, controller: str, output: str
) -> None:
    """Write each line of a file, or of stdin, as an event.

    Lines that trickle in are written as they come. The command succeeds when all of them are stored.
    """

    async def work(store: Store) -> int:
        async with store.stream(name).writer() as writer:
            return await write_lines(writer, source, key_separator, writer.flush)

    print_record({"stream": name, "events": with_store(controller, work)}, output)


@stream.command()
@click.argument("name")
@click.option("--from", "start", metavar="CUT", help="Where to begin; the head if left out.")
@click.option("--limit", type=click.IntRange(min=1), help="At most so many events.")
@controller_option
@output_option
def read(name: str, start: str | None, limit: int | None, controller: str, output: str) -> None:
    """Write the events that are there now to stdout, a line each."""

    begin = _cut(start)

    async def work(store: Store) -> None:
        tail = await store.stream(name).tail()
        # A sealed stream has no tail to stop at: reading it ends by itself.
        await _print_events(store, name, begin, tail if tail.offsets else None, limit, output)

    with_store(controller, work)


@stream.command()
@click.argument("name")
@click.option("--from", "start", metavar="CUT", help="Where to begin; the present end if left out.")
@click.option("--from-head", is_flag=True, help="Begin at the first event there is.")
@click.option("--limit", type=click.IntRange(min=1), help="End after so many events.")
@controller_option
@output_option
def tail(
    name: str, start: str | None, from_head: bool, limit: int | None, controller: str, output: str
) -> None:
    """Follow a stream to stdout until it is sealed or the command is interrupted."""
    if start is not None and from_head:
        raise click.UsageError("begin at a cut (--from) or --from-head, not at both")

    async def work(store: Store) -> None:
        begin = _cut(start)
        if begin is None and not from_head:
            begin = await store.stream(name).tail()
        await _print_events(store, name, begin, None, limit, output)

    with_store(controller, work)


@stream.command()
@click.argument("name")
@click.option("--segments", type=click.IntRange(min=1), required=True, help="Of equal width.")
@controller_option
@output_option
def scale(name: str, segments: int, controller: str, output: str) -> None:
    """Replace the active segments by others. Keys keep their order."""
    print_record(
        with_store(controller, _changed(name, lambda stream: stream.scale_to(segments))), output
    )


@stream.command()
@click.argument("name")
@click.argument("cut")
@controller_option
@output_option
def truncate(name: str, cut: str, controller: str, output: str) -> None:
    """Drop the events before CUT, as `info` shows cuts; `tail` is the present end."""

    async def work(store: Store) -> Row:
        found = _cut(cut) if cut != "tail" else await store.stream(name).tail()
        if found is not None:
            await store.stream(name).truncate(found)
        return await _record(store, name)

    print_record(with_store(controller, work), output)


@stream.command()
@click.argument("name")
@controller_option
@output_option
def seal(name: str, controller: str, output: str) -> None:
    """Allow no more events. Sealing twice is fine."""
    print_record(with_store(controller, _changed(name, lambda stream: stream.seal())), output)


@stream.command()
@click.argument("names", nargs=-1, required=True)
@click.option("--seal", "is_sealing", is_flag=True, help="Seal them first.")
@controller_option
def delete(names: tuple[str, ...], is_sealing: bool, controller: str) -> None:
    """Remove sealed streams for good."""

    async def work(store: Store) -> None:
        for name in names:
            if is_sealing:
                await store.stream(name).seal()
            await store.stream(name).delete()

    with_store(controller, work)


def _config(
    *,
    segments: int,
    events_per_second: int | None,
    kilobytes_per_second: int | None,
    scale_factor: int,
    retain: float | None,
    retain_size: int | None,
    tags: tuple[str, ...],
) -> StreamConfig:
    if events_per_second is not None and kilobytes_per_second is not None:
        raise click.UsageError("scale by events or by kilobytes, not by both")
    if retain is not None and retain_size is not None:
        raise click.UsageError("retain by time or by size, not by both")
    scaling = ScalingPolicy.fixed(segments)
    if events_per_second is not None:
        scaling = ScalingPolicy.by_event_rate(
            events_per_second, factor=scale_factor, segments_min=segments
        )
    if kilobytes_per_second is not None:
        scaling = ScalingPolicy.by_data_rate(
            kilobytes_per_second, factor=scale_factor, segments_min=segments
        )
    retention = RetentionPolicy.forever()
    if retain is not None:
        retention = RetentionPolicy.by_time(retain)
    if retain_size is not None:
        retention = RetentionPolicy.by_size(retain_size)
    return StreamConfig(scaling, retention, tags)


def _cut(text: str | None) -> StreamCut | None:
    return None if text is None else StreamCut.parse(text)


def _changed(
    name: str, change: Callable[[Stream], Awaitable[None]]
) -> Callable[[Store], Coroutine[None, None, Row]]:
    """Change a stream, then describe it, with one client."""

    async def work(store: Store) -> Row:
        await change(store.stream(name))
        return await _record(store, name)

    return work


async def _record(store: Store, name: str) -> Row:
    found = await store.stream(name).info()
    scaling, retention = found.config.scaling, found.config.retention
    return {
        "stream": found.name,
        "sealed": found.is_sealed,
        "segments": len(found.tail.offsets),
        "head": str(found.head),
        "tail": str(found.tail),
        "scaling": scaling.type.name.lower(),
        "target_rate": scaling.target_rate,
        "scale_factor": scaling.scale_factor,
        "segments_min": scaling.segments_min,
        "retention": retention.type.name.lower(),
        "retention_limit": retention.limit,
        "tags": ",".join(found.config.tags),
    }


async def _print_events(
    store: Store,
    name: str,
    start: StreamCut | None,
    stop_at: StreamCut | None,
    limit: int | None,
    output: str,
) -> None:
    count = 0
    async with store.stream(name).read(start, stop_at=stop_at) as events:
        async for event in events:
            print_event(event, output)
            count += 1
            if stop_at is None:
                flush_bytes()
            if count == limit:
                break
    flush_bytes()
