"""`segmentstore txn ...`: transactions of a stream, one command a step, so that scripts can hold one open."""

from typing import BinaryIO

import click

from segmentstore.cli.options import SECONDS, controller_option, with_store
from segmentstore.cli.output import output_option, print_record, print_rows
from segmentstore.cli.pipes import key_separator_option, write_lines
from segmentstore.client.store import Store


@click.group()
def txn() -> None:
    """Begin, write, commit, abort and list transactions of a stream."""


@txn.command()
@click.argument("stream")
@click.option(
    "--lease",
    "lease_seconds",
    type=SECONDS,
    default="60s",
    show_default=True,
    help="The transaction is aborted after so long unless it is written to, committed or aborted.",
)
@controller_option
@output_option
def begin(stream: str, lease_seconds: float, controller: str, output: str) -> None:
    """Begin a transaction and print its id."""
    found = with_store(
        controller,
        lambda store: store.stream(stream).begin_transaction(lease_seconds=lease_seconds),
    )
    print_record({"stream": stream, "transaction": found}, output)


@txn.command()
@click.argument("stream")
@click.argument("transaction")
@click.argument("source", type=click.File("rb"), default="-")
@click.option(
    "--lease",
    "lease_seconds",
    type=SECONDS,
    default="10min",
    show_default=True,
    help="Its lease from now on; by default the longest that controllers grant.",
)
@key_separator_option
@controller_option
@output_option
def write(
    stream: str,
    transaction: str,
    source: BinaryIO,
    lease_seconds: float,
    key_separator: str | None,
    controller: str,
    output: str,
) -> None:
    """Write each line of a file, or of stdin, as an event of the transaction."""

    async def work(store: Store) -> int:
        found = store.stream(stream)
        async with await found.resume_transaction(
            transaction, lease_seconds=lease_seconds
        ) as resumed:
            try:
                count = await write_lines(resumed, source, key_separator, resumed.flush)
                await resumed.flush()
            finally:
                await resumed.detach()
            return count

    count = with_store(controller, work)
    print_record({"stream": stream, "transaction": transaction, "events": count}, output)


@txn.command()
@click.argument("stream")
@click.argument("transaction")
@controller_option
@output_option
def commit(stream: str, transaction: str, controller: str, output: str) -> None:
    """Make the transaction's events readable, all at once."""

    async def work(store: Store) -> str:
        await store.stream(stream).commit_transaction(transaction)
        return (await store.stream(stream).transaction_state(transaction)).value

    state = with_store(controller, work)
    print_record({"stream": stream, "transaction": transaction, "state": state}, output)


@txn.command()
@click.argument("stream")
@click.argument("transaction")
@controller_option
@output_option
def abort(stream: str, transaction: str, controller: str, output: str) -> None:
    """Throw the transaction's events away."""

    async def work(store: Store) -> str:
        await store.stream(stream).abort_transaction(transaction)
        return (await store.stream(stream).transaction_state(transaction)).value

    state = with_store(controller, work)
    print_record({"stream": stream, "transaction": transaction, "state": state}, output)


@txn.command("list")
@click.argument("stream")
@controller_option
@output_option
def list_transactions(stream: str, controller: str, output: str) -> None:
    """List the transactions that ended, as far as the controller remembers them."""
    found = with_store(controller, lambda store: store.stream(stream).completed_transactions())
    rows = [{"transaction": each, "state": state.value} for each, state in found.items()]
    print_rows(rows, output)
