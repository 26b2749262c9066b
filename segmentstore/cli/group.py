"""`segmentstore group ...`: consumer groups of topics, by Kafka's protocol."""

from typing import TYPE_CHECKING

import click

from segmentstore.cli.options import kafka_option, with_topics
from segmentstore.cli.output import Row, output_option, print_rows
from segmentstore.contracts.errors import ErrorKind, SegmentStoreError

if TYPE_CHECKING:
    # The client is imported when a command runs.
    from segmentstore.client.topics import Topics


@click.group()
def group() -> None:
    """List, inspect and delete consumer groups of topics."""


@group.command("list")
@kafka_option
@output_option
def list_groups(kafka: str, output: str) -> None:
    """List all groups in name order."""
    names = with_topics(kafka, lambda topics: topics.groups())
    print_rows([{"group": name} for name in names], output)


@group.command()
@click.argument("name")
@kafka_option
@output_option
def info(name: str, kafka: str, output: str) -> None:
    """Show the members: a line for each, or one for a group without members."""

    async def work(topics: "Topics") -> list[Row]:
        found = await topics.group(name)
        shared: Row = {"group": name, "state": found.state, "protocol": found.protocol}
        members: list[Row] = [
            {"member": each.member_id, "client": each.client_id, "host": each.client_host}
            for each in found.members
        ]
        nothing: Row = {"member": None, "client": None, "host": None}
        return [{**shared, **each} for each in members or [nothing]]

    print_rows(with_topics(kafka, work), output)


@group.command()
@click.argument("name")
@kafka_option
@output_option
def offsets(name: str, kafka: str, output: str) -> None:
    """Show how far the group is in each partition, and how many records are behind that.

    An offset of -1 or -2 is an end of the partition, to which the group was set. A partition that is not there has no
    end: the topic was deleted a moment ago, or a recovery brought back offsets that are newer than the list of topics.
    """

    async def work(topics: "Topics") -> list[Row]:
        committed = await topics.group_offsets(name)
        ends: dict[tuple[str, int], int] = {}
        for topic in dict.fromkeys(offset.topic for offset in committed):
            try:
                found = await topics.offsets(topic)
            except SegmentStoreError as error:
                if error.kind is not ErrorKind.NOT_FOUND:
                    raise
                continue
            ends |= {(topic, each.partition): each.end for each in found}
        rows: list[Row] = []
        for each in committed:
            end = ends.get((each.topic, each.partition))
            rows.append(
                {
                    "topic": each.topic,
                    "partition": each.partition,
                    "offset": each.offset,
                    "end_offset": end,
                    "lag": None if end is None or each.offset < 0 else max(0, end - each.offset),
                }
            )
        return rows

    print_rows(with_topics(kafka, work), output)


@group.command()
@click.argument("names", nargs=-1, required=True)
@kafka_option
def delete(names: tuple[str, ...], kafka: str) -> None:
    """Forget groups without members, and how far they were."""

    async def work(topics: "Topics") -> None:
        for name in names:
            await topics.delete_group(name)

    with_topics(kafka, work)
