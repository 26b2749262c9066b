"""`segmentstore topic ...`: topics of records, by Kafka's protocol.

A line is a record when it is written and when it is read. The verbs that name one topic take it as an argument or as
`--name`, which scripts for other tools of this kind have.
"""

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import click

from segmentstore.cli.options import kafka_option, with_topics
from segmentstore.cli.output import (
    Row,
    flush_bytes,
    output_option,
    print_record,
    print_rows,
    write_bytes,
)
from segmentstore.cli.pipes import LinesOfPieces, arriving_pieces, key_separator_option
from segmentstore.codec.kafka_protocol.error_codes import ErrorCode
from segmentstore.codec.murmur2 import partition_of
from segmentstore.codec.record_batch import Compression, Record

if TYPE_CHECKING:
    # The client is imported when a command runs.
    from segmentstore.client.topics import NewRecord, Topics

_Command = TypeVar("_Command", bound=Callable[..., Any])  # click's own bound for what it decorates

_BATCH_BYTES = 256 << 10
"""Of records that are written together: less than what a server takes as one batch, where a line is not longer."""
_RECORD_BYTES = 15
"""Of a record beside its line, at most: lines may have less than that each."""
_FOLLOW_WAIT_MS = 500
_FOLLOW_WAIT_MS_MIN = 20
"""All partitions together, and one of them at least: they are asked one behind the other."""


@click.group()
def topic() -> None:
    """Create, change, write, read and delete topics of records, by Kafka's protocol."""


def _name(command: _Command) -> _Command:
    command = click.argument("name", required=False)(command)
    return click.option("--name", "named", metavar="NAME", help="The same as the argument.")(
        command
    )


_config_option = click.option(
    "--config",
    "configs",
    multiple=True,
    metavar="WORD=VALUE",
    help="In Kafka's words, as 'retention.ms=3600000'. Repeatable.",
)


@topic.command()
@_name
@click.option("--partitions", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--compression", help="Kept as compression.type, for producers that ask.")
@_config_option
@kafka_option
@output_option
def create(
    name: str | None,
    named: str | None,
    partitions: int,
    compression: str | None,
    configs: tuple[str, ...],
    kafka: str,
    output: str,
) -> None:
    """Create a topic."""
    config = _config(configs)
    if compression is not None:
        config["compression.type"] = compression
    chosen = _chosen(name, named)
    with_topics(kafka, lambda topics: topics.create(chosen, partitions=partitions, config=config))
    print_record({"topic": chosen, "partitions": partitions, **config}, output)


@topic.command()
@_name
@click.option("--partitions", type=click.IntRange(min=1), help="More than there are.")
@_config_option
@click.option(
    "--default",
    "defaults",
    multiple=True,
    metavar="WORD",
    help="Give it its default back, as 'retention.ms'. Repeatable.",
)
@kafka_option
def alter(
    name: str | None,
    named: str | None,
    partitions: int | None,
    configs: tuple[str, ...],
    defaults: tuple[str, ...],
    kafka: str,
) -> None:
    """Change what is set of a topic, or add partitions."""
    changes: dict[str, str | None] = {**_config(configs), **dict.fromkeys(defaults)}
    if len(changes) < len(configs) + len(defaults):
        raise click.UsageError("a word is changed once")
    if not changes and partitions is None:
        raise click.UsageError("what is to be changed?")
    chosen = _chosen(name, named)
    with_topics(kafka, lambda topics: topics.alter(chosen, partitions=partitions, config=changes))


@topic.command("list")
@kafka_option
@output_option
def list_topics(kafka: str, output: str) -> None:
    """List all topics in name order."""
    found = with_topics(kafka, lambda topics: topics.partition_counts())
    print_rows([{"topic": name, "partitions": count} for name, count in found.items()], output)


@topic.command()
@_name
@click.option("--config", "shows_config", is_flag=True, help="What is set of it instead.")
@kafka_option
@output_option
def info(name: str | None, named: str | None, shows_config: bool, kafka: str, output: str) -> None:
    """Show the offsets of each partition: of the first record, and behind the last."""
    chosen = _chosen(name, named)

    async def work(topics: "Topics") -> list[Row]:
        if shows_config:
            config = await topics.config(chosen)
            return [{"config": word, "value": value} for word, value in config.items()]
        return [
            {
                "topic": chosen,
                "partition": each.partition,
                "first_offset": each.first,
                "end_offset": each.end,
            }
            for each in await topics.offsets(chosen)
        ]

    print_rows(with_topics(kafka, work), output)


@topic.command()
@_name
@click.argument("source", type=click.File("rb"), default="-")
@click.option("--partition", type=click.IntRange(min=0), help="Where all records go.")
@key_separator_option
@click.option(
    "--compression",
    type=click.Choice([each.name.lower() for each in Compression]),
    default="none",
    show_default=True,
    help="Of the batches that are sent.",
)
@kafka_option
@output_option
def produce(
    name: str | None,
    named: str | None,
    source: BinaryIO,
    partition: int | None,
    key_separator: str | None,
    compression: str,
    kafka: str,
    output: str,
) -> None:
    """Write each line of a file, or of stdin, as a record.

    Records with a key go to the partition that Kafka's clients choose for it; records without one go to partition 0,
    or to --partition. Lines that trickle in are written as they come. The command succeeds when all are stored.
    """
    chosen = _chosen(name, named)

    async def work(topics: "Topics") -> int:
        count = await topics.partition_count(chosen)
        if partition is not None and partition >= count:
            raise click.UsageError(f"{chosen!r} has {count} partitions")
        written = 0
        async with aclosing(_batches(source, key_separator)) as batches:
            async for batch in batches:
                for index, records in _by_partition(batch, partition, count).items():
                    await topics.produce(
                        chosen, index, records, compression=Compression[compression.upper()]
                    )
                written += len(batch)
        return written

    print_record({"topic": chosen, "records": with_topics(kafka, work)}, output)


@topic.command()
@_name
@click.option("--partition", type=click.IntRange(min=0), help="This one alone.")
@click.option("--from", "start", type=click.IntRange(min=0), help="The offset to begin at.")
@click.option("--limit", type=click.IntRange(min=1), help="End after so many records.")
@click.option("--follow", is_flag=True, help="Wait for more until interrupted.")
@kafka_option
@output_option
def consume(
    name: str | None,
    named: str | None,
    partition: int | None,
    start: int | None,
    limit: int | None,
    follow: bool,
    kafka: str,
    output: str,
) -> None:
    """Write the records that are there now to stdout, a line each: one partition behind the other."""
    chosen = _chosen(name, named)
    if start is not None and partition is None:
        raise click.UsageError("an offset is one of a --partition")

    async def work(topics: "Topics") -> None:
        from segmentstore.client.topics import TopicRequestError

        places = await _places(topics, chosen, partition, start)
        left = limit
        while places:
            wait_ms = max(_FOLLOW_WAIT_MS // len(places), _FOLLOW_WAIT_MS_MIN) if follow else 0
            for index, (offset, end) in list(places.items()):
                try:
                    page = await topics.fetch(chosen, index, offset=offset, wait_ms=wait_ms)
                except TopicRequestError as error:
                    if follow and error.code == ErrorCode.REQUEST_TIMED_OUT:
                        continue  # the server has waited for its storage, and may have the records next time
                    raise
                shown = [each for each in page.records if follow or each.offset < end][:left]
                for record in shown:
                    _print(chosen, index, record, output)
                flush_bytes()
                left = None if left is None else left - len(shown)
                if left == 0:
                    return
                places[index] = (page.next_offset, end)
                if not follow and (page.next_offset >= end or page.next_offset == offset):
                    del places[index]

    with_topics(kafka, work)


@topic.command()
@click.argument("names", nargs=-1)
@click.option("--name", "named", metavar="NAME", help="The same as an argument.")
@kafka_option
def delete(names: tuple[str, ...], named: str | None, kafka: str) -> None:
    """Remove topics for good, with all their records."""
    chosen = [*names, *([] if named is None else [named])]
    if not chosen:
        raise click.UsageError("which topic?")

    async def work(topics: "Topics") -> None:
        for each in chosen:
            await topics.delete(each)

    with_topics(kafka, work)


def _chosen(name: str | None, named: str | None) -> str:
    if (name is None) == (named is None):
        raise click.UsageError("name one topic")
    return name if name is not None else str(named)


def _config(configs: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in configs:
        word, equals, value = each.partition("=")
        if not equals:
            raise click.UsageError(f"a config is WORD=VALUE: {each!r}")
        found[word] = value
    return found


async def _places(
    topics: "Topics", name: str, partition: int | None, start: int | None
) -> dict[int, tuple[int, int]]:
    """Of each partition that is read, where to begin and where it ends now."""
    offsets = {each.partition: (each.first, each.end) for each in await topics.offsets(name)}
    if partition is None:
        return offsets
    if partition not in offsets:
        raise click.UsageError(f"{name!r} has {len(offsets)} partitions")
    first, end = offsets[partition]
    return {partition: (first if start is None else start, end)}


async def _batches(
    source: BinaryIO, key_separator: str | None
) -> AsyncGenerator[list["NewRecord"], None]:
    """The records whose lines arrived together. Hold it in `aclosing`."""
    from segmentstore.client.topics import NewRecord

    separator = key_separator.replace("\\t", "\t").encode() if key_separator else None

    def parsed(line: bytes) -> NewRecord:
        if separator is None:
            return NewRecord(value=line)
        key, found, value = line.partition(separator)
        if not found:
            raise click.UsageError(f"a line has no {key_separator!r} behind a key")
        return NewRecord(value=value, key=key)

    lines = LinesOfPieces()
    async with aclosing(arriving_pieces(source, _BATCH_BYTES)) as pieces:
        async for piece in pieces:
            for batch in _cut(lines.complete(piece)):
                yield [parsed(line) for line in batch]
    if rest := lines.rest():
        yield [parsed(line) for line in rest]


def _cut(lines: list[bytes]) -> Iterator[list[bytes]]:
    """Stretches of them whose records are no longer than a batch may be; a longer line is alone."""
    batch: list[bytes] = []
    size = 0
    for line in lines:
        length = len(line) + _RECORD_BYTES
        if batch and size + length > _BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(line)
        size += length
    if batch:
        yield batch


def _by_partition(
    batch: list["NewRecord"], partition: int | None, count: int
) -> dict[int, list["NewRecord"]]:
    parts: dict[int, list[NewRecord]] = {}
    for record in batch:
        if partition is not None:
            index = partition
        elif record.key is None:
            index = 0
        else:
            index = partition_of(record.key, partition_count=count)
        parts.setdefault(index, []).append(record)
    return parts


def _print(name: str, partition: int, record: Record, output: str) -> None:
    if output != "json":
        write_bytes((record.value or b"") + b"\n")
        return
    flush_bytes()
    print_record(
        {
            "topic": name,
            "partition": partition,
            "offset": record.offset,
            "timestamp_ms": record.timestamp_ms,
            **_text("key", record.key),
            **_text("value", record.value),
        },
        output,
    )


def _text(field: str, content: bytes | None) -> Row:
    if content is None:
        return {field: None}
    try:
        return {field: content.decode()}
    except UnicodeDecodeError:
        return {f"{field}_hex": content.hex()}
