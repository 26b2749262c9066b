"""`segmentstore recover`: a store from what is left of it."""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import click

from segmentstore.cli.output import Row, output_option, print_rows
from segmentstore.contracts.errors import InvalidRequestError, SegmentStoreError

_IN_PLACE = ""
_NAMED_MAX = 20


@dataclass(slots=True)
class RecoveryResult:
    """Rows for stdout, sentences for stderr."""

    rows: list[Row] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


@click.command()
@click.option(
    "--from-tier2",
    "place",
    is_flag=False,
    flag_value=_IN_PLACE,
    required=True,
    metavar="[PLACE]",
    help="Where Tier 2 is: s3://BUCKET/PREFIX, a data directory or its `tier2`; left out: in DATA itself.",
)
@click.option(
    "--data",
    "data_directory",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Data directory to make usable; made if it is not there.",
)
@click.option("--copy", is_flag=True, help="Copy Tier 2 into DATA instead of using it where it is.")
@click.option("--dry-run", is_flag=True, help="Say what is there and what would be done.")
@click.option("--no-repair", is_flag=True, help="Leave streams as they are; see below.")
@click.option("--quiet", is_flag=True, help="No progress bar.")
@output_option
def recover(
    *,
    place: str,
    data_directory: Path,
    copy: bool,
    dry_run: bool,
    no_repair: bool,
    quiet: bool,
    output: str,
) -> None:
    """Make a store usable again whose Tier 1 (or everything but Tier 2) was lost.

    Everything in Tier 2 is there afterwards; what was acknowledged in the last seconds and not yet flushed is lost with
    Tier 1. A Tier 2 in another directory is used where it is, through a link from DATA, unless it is copied; a bucket
    stays where it is. In the end streams are made to agree with their segments: what is missing is created empty and
    reported, nothing is deleted. Running it again changes nothing.
    """
    result = asyncio.run(
        _recover(place, data_directory, copy=copy, dry=dry_run, repair=not no_repair, quiet=quiet)
    )
    print_rows(result.rows, output)
    for remark in result.remarks:
        click.echo(remark, err=True)


async def _recover(
    place: str, data: Path, *, copy: bool, dry: bool, repair: bool, quiet: bool
) -> RecoveryResult:
    from tqdm import tqdm

    from segmentstore.cli.tier2_bringing import copy_tier2, link_tier2, require_unused
    from segmentstore.cli.tier2_contents import contents_of
    from segmentstore.cli.tier2_reading import open_tier2
    from segmentstore.cli.tier2_recovery import Tier2Recovery

    if copy and not place:
        raise InvalidRequestError(
            "there is nothing to copy: name the place with --from-tier2 PLACE"
        )
    if not dry:
        require_unused(data)
    result = RecoveryResult()
    missing: list[str] = []
    is_bucket = place.startswith("s3://")
    async with open_tier2(place or str(data)) as tier2:
        with tqdm(unit=" segments", desc="reading", file=sys.stderr, disable=quiet) as bar:
            contents = [await contents_of(each, progress=bar.update) for each in tier2.containers]
        recovery = Tier2Recovery(data, [each.root for each in tier2.containers])
        recovery.check_target()
        if copy and not dry:
            with tqdm(
                unit="B", unit_scale=True, desc="copying", file=sys.stderr, disable=quiet
            ) as bar:
                reports = await copy_tier2(
                    [(each.root, each.components) for each in tier2.containers],
                    data,
                    progress=bar.update,
                )
            missing = [key for report in reports for key in report.missing]
        count = tier2.containers[0].root.container_count
        absent = sorted(set(range(count)) - {each.container_id for each in tier2.containers})
    if place and not copy and not is_bucket and not dry:
        link_tier2(place, data)
    logs = recovery.preview() if dry else await recovery.run()
    for log, held in zip(logs, contents, strict=True):
        counted = asdict(held)
        counted["newest"] = _time(held.newest_ms)
        result.rows.append({**asdict(log), **counted})
    result.remarks += _remarks(result.rows, missing, absent)
    start_place = place if is_bucket and not copy else ""
    if not dry:
        needed = repair and any(each.has_streams for each in contents)
        result.remarks += await repair_remarks(data, start_place, repair=needed)
    return result


async def repair_remarks(data: Path, tier2_place: str, *, repair: bool = True) -> list[str]:
    """Make streams agree with their segments and say what was done, and how to start the store."""
    tier2_flag = f" --tier2 {tier2_place}" if tier2_place else ""
    start = f"start it with: segmentstore standalone --data {data}{tier2_flag}"
    return [*(await _repair(data, tier2_place) if repair else []), start]


async def _repair(data: Path, tier2_place: str) -> list[str]:
    from segmentstore.cli.stream_repair import repair_streams

    try:
        report = await repair_streams(data, tier2_place=tier2_place)
    except SegmentStoreError as error:
        return [f"streams are not repaired, run this again when that is settled: {error}"]
    return [
        *_named("created empty, their bytes had not reached Tier 2", report.created),
        *_named("streams whose head moved to what is left", report.moved_heads),
        *_named(
            "segments that no stream lists, nothing was done to them",
            report.strangers,
            report.stranger_count,
        ),
    ]


def _remarks(rows: Sequence[Row], missing: Sequence[str], absent: Sequence[int]) -> list[str]:
    newest = max((str(row["newest"]) for row in rows), default="-")
    segments = sum(int(row["segments"] or 0) for row in rows)
    size = sum(int(row["segment_bytes"] or 0) for row in rows)
    return [
        (
            f"Tier 2 holds {segments} segments with {size} bytes in {len(rows)} containers; the last change that"
            f" reached it is of {newest}. What was acknowledged later and not flushed was in Tier 1 alone."
        ),
        *_named("objects that the roots name and nobody has; what they held is lost", missing),
        *_named("containers without a root, which begin anew", [str(number) for number in absent]),
    ]


def _named(what: str, names: Sequence[str], count: int | None = None) -> list[str]:
    if not names:
        return []
    shown = ", ".join(names[:_NAMED_MAX])
    total = len(names) if count is None else count
    more = f" and {total - _NAMED_MAX} more" if total > _NAMED_MAX else ""
    return [f"{total} {what}: {shown}{more}"]


def _time(unix_ms: int) -> str:
    if not unix_ms:
        return "-"
    return datetime.fromtimestamp(unix_ms / 1000, UTC).isoformat(timespec="milliseconds")
