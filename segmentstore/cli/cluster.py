"""`segmentstore cluster ...`: what a cluster is like, and wishes of where its containers shall be.

What ZooKeeper has is shown also while nodes do not answer. Wishes are written there; the leading controller hears of
them by itself and moves containers one after the other: the commands do not wait for it, `containers` shows how far
it is.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import click

from segmentstore.cli.config import cluster_options, resolve
from segmentstore.cli.exit_codes import ExitCode
from segmentstore.cli.http_client import HttpClient, ServerError
from segmentstore.cli.output import Row, output_option, print_record, print_rows
from segmentstore.cluster.cluster_state import (
    ClusterState,
    change_wishes,
    read_cluster_state,
    with_drained,
    without_drained,
)
from segmentstore.cluster.records import AssignedContainer, Wishes
from segmentstore.contracts.cluster import ClusterNode
from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.host.cluster_access import ClusterAccess, open_cluster_access

_HEALTH_SECONDS_MAX = 5.0
_Result = TypeVar("_Result")


@click.group()
def cluster() -> None:
    """Look at a cluster, and say where its containers shall be.

    The cluster is named with --cluster, or as tier1.kind in the environment or a file. NODE is the name of a node, its
    id, or one of its addresses.
    """


@dataclass(frozen=True, slots=True)
class _NodeHealth:
    """What a node says of itself."""

    problems: list[str]
    notes: list[str]


@cluster.command()
@cluster_options
@output_option
def info(
    output: str, config_file: Path | None, assignments: tuple[str, ...], **short_flags: str | None
) -> None:
    """The store, who leads, and how many nodes, containers and bookies there are."""

    async def work(access: ClusterAccess) -> Row:
        state = await read_cluster_state(access.store)
        leader, assignment = state.leader, state.assignment
        count = access.identity.container_count
        return {
            "store": access.identity.store_id.hex(),
            "leader": None if leader is None else leader.controller_id,
            "leader_address": None if leader is None else leader.grpc,
            "leader_epoch": None if assignment is None else assignment.leader_epoch,
            "assignment_version": None if assignment is None else assignment.version,
            "nodes": len(state.nodes),
            "containers": count,
            "containers_running": sum(state.runs(ContainerId(each)) for each in range(count)),
            "bookies": await access.bookies(),
            "drained": ",".join(state.wishes.drained),
        }

    print_record(_with_cluster(config_file, assignments, short_flags, work), output)


@cluster.command()
@cluster_options
@output_option
def nodes(
    output: str, config_file: Path | None, assignments: tuple[str, ...], **short_flags: str | None
) -> None:
    """The nodes that are registered, and how many containers each has."""

    async def work(access: ClusterAccess) -> list[Row]:
        state = await read_cluster_state(access.store)
        rows: list[Row] = []
        for node in sorted(state.nodes.values(), key=lambda node: node.node_id):
            report = state.reports.get(node.node_id)
            rows.append(
                {
                    "node": node.node_id,
                    "http": node.http,
                    "wire": node.wire,
                    "kafka": node.kafka or None,
                    "containers": len(state.containers_of(node.node_id)),
                    "running": 0 if report is None else len(report.running),
                    "capacity": node.capacity or None,
                    "drained": state.is_drained(node.node_id),
                    "tier2": None if report is None else report.tier2.value or None,
                    "version": node.version,
                }
            )
        return rows

    print_rows(_with_cluster(config_file, assignments, short_flags, work), output)


@cluster.command()
@cluster_options
@output_option
def containers(
    output: str, config_file: Path | None, assignments: tuple[str, ...], **short_flags: str | None
) -> None:
    """Where each container is, since which version of the assignment, and why if it does not run."""

    async def work(access: ClusterAccess) -> list[Row]:
        state = await read_cluster_state(access.store)
        found = {} if state.assignment is None else state.assignment.containers
        rows: list[Row] = []
        for number in range(access.identity.container_count):
            container_id = ContainerId(number)
            given = found.get(container_id, AssignedContainer())
            rows.append(
                {
                    "container": number,
                    "node": given.node,
                    "since": given.since,
                    "leaving": given.leaving,
                    "runs": state.runs(container_id),
                    "pinned": state.wishes.pinned.get(container_id),
                    "failure": None if given.failure is None else given.failure.cause,
                }
            )
        return rows

    print_rows(_with_cluster(config_file, assignments, short_flags, work), output)


@cluster.command()
@click.argument("container", type=click.IntRange(min=0))
@click.argument("node")
@cluster_options
def move(
    container: int,
    node: str,
    config_file: Path | None,
    assignments: tuple[str, ...],
    **short_flags: str | None,
) -> None:
    """Keep a container at a node as long as that node is there. NODE `any`: wherever it is best."""

    async def work(access: ClusterAccess) -> None:
        container_id = _container_of(access, container)
        target = "" if node == "any" else await _lasting_name(access, node)

        def change(wishes: Wishes) -> Wishes:
            pinned = {c: name for c, name in wishes.pinned.items() if c != container_id}
            return replace(wishes, pinned={**pinned, container_id: target} if target else pinned)

        await change_wishes(access.store, change)

    _with_cluster(config_file, assignments, short_flags, work)


@cluster.command()
@click.argument("node")
@cluster_options
def drain(
    node: str,
    config_file: Path | None,
    assignments: tuple[str, ...],
    **short_flags: str | None,
) -> None:
    """Move all containers away from a node, and give it no others, until it is undrained."""

    async def work(access: ClusterAccess) -> None:
        name = await _lasting_name(access, node)
        await change_wishes(access.store, lambda wishes: with_drained(wishes, name))

    _with_cluster(config_file, assignments, short_flags, work)


@cluster.command()
@click.argument("node")
@cluster_options
def undrain(
    node: str,
    config_file: Path | None,
    assignments: tuple[str, ...],
    **short_flags: str | None,
) -> None:
    """Let a node have containers again. The node need not be there."""

    async def work(access: ClusterAccess) -> None:
        state = await read_cluster_state(access.store)
        names = {node}
        if node not in state.wishes.drained:
            found = state.node_named(node)
            names = {found.node_id, _name_of(found)}
        await change_wishes(access.store, lambda wishes: without_drained(wishes, names))

    _with_cluster(config_file, assignments, short_flags, work)


@cluster.command()
@cluster_options
def rebalance(
    config_file: Path | None, assignments: tuple[str, ...], **short_flags: str | None
) -> None:
    """Have the containers spread evenly over the nodes, once."""

    async def work(access: ClusterAccess) -> None:
        await change_wishes(
            access.store, lambda wishes: replace(wishes, rebalance=wishes.rebalance + 1)
        )

    _with_cluster(config_file, assignments, short_flags, work)


@cluster.command()
@click.argument("container", type=click.IntRange(min=0))
@cluster_options
def retry(
    container: int,
    config_file: Path | None,
    assignments: tuple[str, ...],
    **short_flags: str | None,
) -> None:
    """Let a container that stays down try again, when the cause of its failures is removed."""

    async def work(access: ClusterAccess) -> None:
        container_id = _container_of(access, container)

        def change(wishes: Wishes) -> Wishes:
            retries = dict(wishes.retries)
            retries[container_id] = retries.get(container_id, 0) + 1
            return replace(wishes, retries=retries)

        await change_wishes(access.store, change)

    _with_cluster(config_file, assignments, short_flags, work)


@cluster.command()
@cluster_options
def check(config_file: Path | None, assignments: tuple[str, ...], **short_flags: str | None) -> int:
    """Whether every container is served: silent and 0 if so, else one line a problem and 5.

    Looked at: a controller leads, each container runs at one living node, nodes answer, reach Tier 2 and are of one
    version, there are bookies enough. What nodes complain of beside that is shown as a note, and so is a drained node.
    """

    async def work(access: ClusterAccess) -> _NodeHealth:
        state = await read_cluster_state(access.store)
        problems = state.problems(access.identity.container_count)
        notes = state.notes()
        bookies, needed = await access.bookies(), access.bookies_needed
        if bookies < needed:
            problems.append(f"{bookies} bookies take writes, and a ledger needs {needed}")
        for health in await _health_of_all(state):
            problems += health.problems
            notes += health.notes
        return _NodeHealth(problems, notes)

    found = _with_cluster(config_file, assignments, short_flags, work)
    for problem in found.problems:
        click.echo(f"error: {problem}", err=True)
    for note in found.notes:
        click.echo(f"note: {note}", err=True)
    return ExitCode.UNAVAILABLE if found.problems else ExitCode.OK


async def _health_of_all(state: ClusterState) -> list[_NodeHealth]:
    async with asyncio.TaskGroup() as group:
        asking = [group.create_task(_health_of(node)) for node in state.nodes.values()]
    return [each.result() for each in asking]


async def _health_of(node: ClusterNode) -> _NodeHealth:
    try:
        async with (
            asyncio.timeout(_HEALTH_SECONDS_MAX),
            HttpClient(f"http://{node.http}") as client,
        ):
            health = await client.health()
    except (ServerError, TimeoutError) as error:
        return _NodeHealth([f"node {node.node_id} does not answer: {str(error) or 'too late'}"], [])
    return told_by(node.node_id, health)


def told_by(node_id: str, health: Mapping[str, object]) -> _NodeHealth:
    """What is to be told of a `/health`. While a cluster is upgraded nodes of other versions answer as well."""
    problems, notes = [], []
    state = health.get("storage_state")
    if isinstance(state, str) and state != "ok":
        cause = health.get("storage_cause") or state
        problems.append(f"node {node_id} does not reach Tier 2: {cause}")
    throttle = health.get("throttle")
    if isinstance(throttle, str) and throttle:
        problems.append(f"node {node_id} slows writers down: {throttle}")
    complaints = health.get("complaints")
    if isinstance(complaints, list):
        notes += [f"node {node_id}: {each}" for each in complaints]
    unknown = [name for name in ("storage_state", "throttle", "complaints") if name not in health]
    if unknown:
        notes.append(
            f"node {node_id} does not say, so it is not known here: {', '.join(unknown)}"
            " (is it of another version of the program?)"
        )
    return _NodeHealth(problems, notes)


def _container_of(access: ClusterAccess, number: int) -> ContainerId:
    """Raises InvalidRequestError if the store has none of the number."""
    count = access.identity.container_count
    if number >= count:
        raise InvalidRequestError(f"there is no such container container={number} count={count}")
    return ContainerId(number)


async def _lasting_name(access: ClusterAccess, node: str) -> str:
    """What a wish names a node by: it holds for the node's next process as well. Raises InvalidRequestError."""
    state = await read_cluster_state(access.store)
    return _name_of(state.node_named(node))


def _name_of(node: ClusterNode) -> str:
    return node.node_id.rpartition("-")[0]


def _with_cluster(
    config_file: Path | None,
    assignments: tuple[str, ...],
    short_flags: Mapping[str, str | None],
    work: Callable[[ClusterAccess], Awaitable[_Result]],
) -> _Result:
    """Run the work with a connection to ZooKeeper. Raises what the work raises."""
    resolved = resolve(config_file, assignments, **short_flags)

    async def run() -> _Result:
        async with open_cluster_access(resolved) as access:
            return await work(access)

    return asyncio.run(run())
