"""`segmentstore recover`: a store from what is left of it."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from segmentstore.cli.exit_codes import ExitCode
from segmentstore.cli.output import output_option, print_rows
from segmentstore.contracts.errors import CorruptedDataError, InvalidRequestError

if TYPE_CHECKING:
    from segmentstore.cli.recovery_report import RecoveryResult
    from segmentstore.cli.tier2_contents import ContainerSurvey
    from segmentstore.cli.tier2_losses import Losses
    from segmentstore.cli.tier2_recovery import RecoveredLog
    from tier2.storage.reader import ContainerReader

_IN_PLACE = ""


@dataclass(frozen=True, slots=True)
class Recovery:
    """What a person asks for."""

    place: str
    """Empty: in the data directory itself."""
    data: Path
    copy: bool
    dry: bool
    repair: bool
    with_damage: bool
    begin_anew: Sequence[int]
    quiet: bool

    @property
    def source(self) -> str:
        return self.place or str(self.data)

    @property
    def start_place(self) -> str:
        """What the store is started with as its Tier 2; empty if that is in the data directory."""
        return self.place if self.place.startswith("s3://") and not self.copy else ""


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
@click.option(
    "--with-damage",
    is_flag=True,
    help="Go on although Tier 2 itself has lost something: see the report of a dry run first.",
)
@click.option(
    "--begin-anew",
    metavar="ID",
    type=click.IntRange(min=0),
    multiple=True,
    help="A container without a sound root begins empty; what is left of it is deleted later. Repeatable.",
)
@click.option("--no-repair", is_flag=True, help="Leave streams as they are; see above.")
@click.option("--quiet", is_flag=True, help="No progress bar.")
@output_option
def recover(
    *,
    place: str,
    data_directory: Path,
    copy: bool,
    dry_run: bool,
    with_damage: bool,
    begin_anew: tuple[int, ...],
    no_repair: bool,
    quiet: bool,
    output: str,
) -> int:
    """Make a store usable again whose Tier 1 (or everything but Tier 2) was lost.

    Everything in Tier 2 is there afterwards; what was acknowledged in the last seconds and not yet flushed is lost with
    Tier 1. A Tier 2 in another directory is used where it is, through a link from DATA, unless it is copied; a bucket
    stays where it is. In the end streams are made to agree with their segments: what is missing is created empty and
    reported, nothing is deleted; transactions that are open are aborted. Running it again does what is left to do.

    If Tier 2 has lost something itself (objects that layouts name, roots), that is told, the exit code is 7, and
    nothing is done without --with-damage. With it the rest is recovered: reading what is lost is an error, and a
    container without a sound root is refused by the store, with everything that is left of it untouched, until its
    root is brought back or it is told to --begin-anew.
    """
    from segmentstore.cli.recovery_report import COLUMNS

    result = asyncio.run(
        _recover(
            Recovery(
                place=place,
                data=data_directory,
                copy=copy,
                dry=dry_run,
                repair=not no_repair,
                with_damage=with_damage,
                begin_anew=tuple(sorted(set(begin_anew))),
                quiet=quiet,
            )
        )
    )
    print_rows(result.rows, output, COLUMNS)
    for remark in result.remarks:
        click.echo(remark, err=True)
    return result.exit_code


async def _recover(wanted: Recovery) -> "RecoveryResult":
    from segmentstore.cli.pinned_roots import backups_of
    from segmentstore.cli.recovery_report import (
        RecoveryResult,
        contents_unread,
        named,
        summary,
        unfinished,
    )
    from segmentstore.cli.tier2_bringing import require_unused
    from segmentstore.cli.tier2_contents import progress_bar, survey
    from segmentstore.cli.tier2_losses import losses_of, require_a_sound_root
    from segmentstore.cli.tier2_reading import open_tier2
    from segmentstore.cli.tier2_recovery import Tier2Recovery

    if wanted.copy and not wanted.place:
        raise InvalidRequestError(
            "there is nothing to copy: name the place with --from-tier2 PLACE"
        )
    require_unused(wanted.data)
    result = RecoveryResult()
    async with open_tier2(wanted.source, go_on=True) as tier2:
        await require_a_sound_root(tier2, wanted.source)
        Tier2Recovery(wanted.data, [each.root for each in tier2.containers]).check_target()
        _check_bringing(wanted)
        surveys = await survey(tier2.containers, bar=partial(progress_bar, quiet=wanted.quiet))
        losses = await losses_of(tier2, surveys)
        _check_begin_anew(wanted, losses)
        result.remarks = [summary(surveys), *unfinished(surveys)]
        result.remarks += losses.sentences(wanted.source)
        result.remarks += _logs_left_behind(wanted, surveys)
        readable = [each.reader for each in surveys if not each.unreadable]
        refused = not wanted.with_damage and losses.beyond(wanted.begin_anew)
        if wanted.copy and not readable:
            raise CorruptedDataError(
                "\n".join(
                    [
                        "no container has runs that read, so nothing can be copied",
                        *losses.sentences(wanted.source),
                    ]
                )
            )
        left_behind = await backups_of(readable) if wanted.copy else []
        result.remarks += named(
            "backups stay where they are and are not in the copy; each becomes a store of its own with"
            f" segmentstore backup restore NAME --from {wanted.source} --data NEWDIR",
            left_behind,
        )
        if wanted.copy and not refused and not wanted.dry:
            refused = not await _copy(result, readable, left_behind, wanted)
        elif not refused:
            result.remarks.append(contents_unread(wanted.source))
    logs = await _logs(wanted, surveys, losses, only_look=refused or wanted.dry)
    _add_rows(result, wanted, logs, surveys, losses)
    if refused:
        result.remarks.append(
            "error: Tier 2 has lost what is named above, and nothing was done: to recover the rest, say --with-damage"
        )
        result.exit_code = ExitCode.CORRUPT
        return result
    without = [] if wanted.copy else losses.containers_beyond(wanted.begin_anew)
    result.remarks += _what_becomes_of(wanted, losses, without)
    if not wanted.dry:
        await _settle(result, wanted, surveys, without)
    return result


async def _logs(
    wanted: Recovery,
    surveys: "Sequence[ContainerSurvey]",
    losses: "Losses",
    *,
    only_look: bool,
) -> "Sequence[RecoveredLog]":
    """Give the data directory its Tier 2, identity and logs, or say what would be done."""
    from segmentstore.cli.tier2_anew import let_begin_anew
    from segmentstore.cli.tier2_bringing import link_tier2
    from segmentstore.cli.tier2_recovery import Tier2Recovery

    # A copy of a container whose runs do not read cannot be made: there it is as one without a root.
    brought = [each.reader for each in surveys if not (wanted.copy and each.unreadable)]
    roots = [each.root for each in brought]
    epochs = {int(each.reader.container_id): each.lost.highest_epoch for each in surveys}
    if only_look:
        anew = {
            each.container_id: each.remains.highest_epoch
            for each in losses.containers
            if each.container_id in wanted.begin_anew and not wanted.copy
        }
        return Tier2Recovery(wanted.data, roots, highest_epochs=epochs).preview(anew)
    if wanted.place and not wanted.copy and not wanted.place.startswith("s3://"):
        link_tier2(wanted.place, wanted.data)
    if wanted.begin_anew and not wanted.copy:
        place = wanted.start_place or str(wanted.data)
        roots += await let_begin_anew(place, wanted.begin_anew, of_store=roots[0])
    return await Tier2Recovery(wanted.data, roots, highest_epochs=epochs).run()


async def _settle(
    result: "RecoveryResult",
    wanted: Recovery,
    surveys: "Sequence[ContainerSurvey]",
    without: Sequence[int],
) -> None:
    """Behind the logs: what takes a store whose containers run."""
    from segmentstore.cli.backup_restore import finish_restore
    from segmentstore.cli.recovery_report import how_to_start, repair
    from segmentstore.cli.unfinished_restore import unfinished_restore

    restore = unfinished_restore(wanted.data)
    has_streams = any(each.contents.has_streams for each in surveys)
    if without and (has_streams or restore is not None):
        result.remarks.append(
            "streams are not made to agree with their segments: that takes all containers; run this again then"
        )
    else:
        repaired = True
        if wanted.repair and has_streams:
            repaired = await repair(result, wanted.data, wanted.start_place)
        if restore is not None and repaired:
            # A restore that was cut off after its copy is through as well now.
            await finish_restore(wanted.data, restore)
    result.remarks.append(how_to_start(wanted.data, wanted.start_place))


async def _copy(
    result: "RecoveryResult",
    readers: "Sequence[ContainerReader]",
    left_behind: Sequence[str],
    wanted: Recovery,
) -> bool:
    """False if it is damaged and nobody wants it so; the result names the damage.

    `left_behind`: backups, whose own objects are not copied. The copy forgets them as a restore does.
    """
    from segmentstore.cli.tier2_bringing import copy_tier2
    from segmentstore.cli.tier2_contents import progress_bar
    from segmentstore.cli.unfinished_restore import UnfinishedRestore, mark_restore, unmark_restore

    if left_behind:
        versions = {int(each.container_id): each.root.version for each in readers}
        mark_restore(wanted.data, UnfinishedRestore("", versions))
    copied = await copy_tier2(
        [(each.root, each.components) for each in readers],
        wanted.data,
        with_damage=wanted.with_damage,
        bar=partial(progress_bar, quiet=wanted.quiet, unit="B", scaled=True),
    )
    result.remarks += copied.damage
    if left_behind and not copied.is_there:
        unmark_restore(wanted.data)
    return copied.is_there


def _check_bringing(wanted: Recovery) -> None:
    """Before anything is read for long, and in a dry run too: whatever would be refused in the end."""
    from segmentstore.cli.tier2_bringing import require_linkable, require_no_tier2

    if wanted.copy:
        require_no_tier2(wanted.data)
    elif wanted.place and not wanted.place.startswith("s3://"):
        require_linkable(wanted.place, wanted.data)


def _logs_left_behind(wanted: Recovery, surveys: "Sequence[ContainerSurvey]") -> list[str]:
    from segmentstore.cli.recovery_report import logs_beside
    from tier2.places import object_directory

    if not wanted.place or wanted.copy or wanted.place.startswith("s3://"):
        return []
    beside = Path(object_directory(wanted.place)).resolve().parent
    if beside == wanted.data.resolve():
        return []
    return logs_beside(beside, [each.reader.root for each in surveys])


def _check_begin_anew(wanted: Recovery, losses: "Losses") -> None:
    sound = sorted(set(wanted.begin_anew) - {each.container_id for each in losses.containers})
    if sound:
        raise InvalidRequestError(
            f"only a container without a sound root begins anew, leave out those that have one: {sound}"
        )


def _add_rows(
    result: "RecoveryResult",
    wanted: Recovery,
    logs: "Sequence[RecoveredLog]",
    surveys: "Sequence[ContainerSurvey]",
    losses: "Losses",
) -> None:
    from segmentstore.cli.recovery_report import container_row, lost_row

    by_id = {log.container: log for log in logs}
    # Containers that begin anew have a log as well, unless this is a copy or a preview.
    result.rows += [container_row(by_id.get(each.reader.container_id), each) for each in surveys]
    for each in losses.containers:
        anew = wanted.copy or each.container_id in wanted.begin_anew
        log = by_id.get(each.container_id)
        result.rows.append(lost_row(each, log, "begins anew" if anew else "refused"))
    result.rows.sort(key=lambda row: int(row["container"] or 0))


def _what_becomes_of(wanted: Recovery, losses: "Losses", without: Sequence[int]) -> list[str]:
    told: list[str] = []
    left_out = [each.container_id for each in losses.containers]
    left_out += [each.reader.container_id for each in losses.surveys if each.unreadable]
    if wanted.copy and left_out:
        told.append(f"containers that begin empty in the copy: {sorted(left_out)}")
    if not wanted.copy and wanted.begin_anew:
        told.append(
            f"containers that begin anew: {list(wanted.begin_anew)}; what is left of them in Tier 2 is deleted by the"
            " running store after its grace: copy it before the start if somebody may still want it"
        )
    if without:
        told.append(
            f"the store refuses these containers and touches nothing of them: {without}; bring their roots back and run"
            " this again, or let them begin empty with "
            + " ".join(f"--begin-anew {number}" for number in without)
        )
    return told
