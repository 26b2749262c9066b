"""`recover`: makes a data directory usable from what Tier 2 holds, in this order.

    check the target -> survey Tier 2 and name its losses -> refuse, or go on -> copy or link Tier 2
    -> identity and logs -> streams agree with their segments -> finish a restore that was cut off

What is there afterwards is what the manifest of each container names: segments, attributes and tables as they were
flushed last. What was acknowledged behind that was in the logs, and is lost with them (`rebuild.py`).

- Everything that would be refused in the end is refused before anything is read for long, in a dry run as well.
- Unless the caller accepts the losses of Tier 2 (`with_damage`, `begin_anew`), nothing is written; a copy in which
  damage is found is removed again.
- Running it again does what is left to do.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from segmentstore.contracts.errors import CorruptedDataError, ErrorKind, InvalidRequestError
from segmentstore.recovery.rebuild import (
    DataDirectoryRebuild,
    RecoveredLog,
    create_empty_manifests,
)
from segmentstore.recovery.rebuilt_logs import RebuiltLogs, open_rebuilt_logs
from segmentstore.recovery.report import (
    RecoveryResult,
    container_row,
    contents_unread,
    disabled_logs,
    how_to_start,
    logs_beside,
    named,
    repair,
    summary,
    unfinished,
)
from segmentstore.recovery.restore import (
    finish_restore,
    require_own_copy,
    require_whole_copy,
)
from segmentstore.recovery.survey import (
    ContainerSurvey,
    Losses,
    find_losses,
    progress_bar,
    require_sound_manifest,
    survey,
)
from segmentstore.recovery.tier2_access import backup_names, open_tier2
from segmentstore.recovery.tier2_copy import (
    copy_tier2,
    held_directory,
    link_tier2,
    require_linkable,
    require_no_tier2,
    require_unused,
    stores_around,
)
from segmentstore.recovery.unfinished_work import (
    UnfinishedRestore,
    mark_restore,
    unfinished_restore,
    unmark_lost_logs,
    unmark_restore,
)
from tier2.store_reader import ContainerReader

_BEGINS_ANEW = "begins anew"


@dataclass(frozen=True, slots=True)
class RecoveryOptions:
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
    tier1: str = ""
    """As the setting tier1.kind; empty: where the data directory says that the logs are, else in it."""

    @property
    def source(self) -> str:
        return self.place or str(self.data)

    @property
    def start_place(self) -> str:
        """What the store is started with as its Tier 2; empty if that is in the data directory."""
        return self.place if self.place.startswith("s3://") and not self.copy else ""


async def recover_store(options: RecoveryOptions) -> RecoveryResult:
    """Makes the data directory usable from what Tier 2 holds; the result says what was done and what is lost."""
    if options.copy and not options.place:
        raise InvalidRequestError(
            "there is nothing to copy: name the place with --from-tier2 PLACE"
        )
    require_unused(options.data)
    async with open_rebuilt_logs(
        options.data, tier1=options.tier1, environment=os.environ
    ) as rebuilt:
        return await _recover(options, rebuilt)


async def _recover(options: RecoveryOptions, rebuilt: RebuiltLogs) -> RecoveryResult:
    result = RecoveryResult()
    async with open_tier2(options.source, go_on=True) as tier2:
        await require_sound_manifest(tier2, options.source)
        await DataDirectoryRebuild(
            options.data, [each.manifest for each in tier2.containers], logs=rebuilt
        ).check_target()
        _check_target(options)
        restore = unfinished_restore(options.data)
        if restore is not None and not options.copy:
            require_own_copy(options.data, options.place, restore)
            require_whole_copy(options.data, restore, [each.manifest for each in tier2.containers])
        surveys = await survey(tier2.containers, bar=partial(progress_bar, quiet=options.quiet))
        losses = await find_losses(tier2, surveys)
        _check_begin_anew(options, losses)
        result.remarks = [summary(surveys), *unfinished(surveys)]
        result.remarks += losses.sentences(options.source)
        result.remarks += await _logs_left_behind(options, surveys)
        readable = [each.reader for each in surveys if not each.unreadable]
        refused = not options.with_damage and losses.beyond(options.begin_anew)
        if options.copy and not readable:
            raise CorruptedDataError(
                "\n".join(
                    [
                        "no container has SSTs that read, so nothing can be copied",
                        *losses.sentences(options.source),
                    ]
                )
            )
        left_behind = await backup_names(readable) if options.copy else []
        result.remarks += named(
            "backups stay where they are and are not in the copy; each becomes a store of its own with"
            f" segmentstore backup restore NAME --from {options.source} --data NEWDIR",
            left_behind,
        )
        if options.copy and not refused and not options.dry:
            refused = not await _copy(result, readable, left_behind, options)
        elif not refused:
            result.remarks.append(contents_unread(options.source))
    logs = await _rebuild_logs(options, surveys, losses, rebuilt, only_look=refused or options.dry)
    _add_rows(result, options, logs, surveys, losses)
    result.remarks += disabled_logs(options.data, logs)
    if refused:
        result.remarks.append(
            "error: Tier 2 has lost what is named above, and nothing was done: to recover the rest, say --with-damage"
        )
        result.failure = ErrorKind.CORRUPT
        return result
    without = [] if options.copy else losses.containers_beyond(options.begin_anew)
    result.remarks += _consequences(options, losses, without)
    if not options.dry:
        await _repair_and_finish(result, options, surveys, without)
    return result


def _check_target(options: RecoveryOptions) -> None:
    """Before anything is read for long, and in a dry run too: whatever would be refused in the end."""
    if options.copy:
        require_no_tier2(options.data)
    elif options.place and not options.place.startswith("s3://"):
        require_linkable(options.place, options.data)


def _check_begin_anew(options: RecoveryOptions, losses: Losses) -> None:
    unknown = [each for each in options.begin_anew if not 0 <= each < losses.container_count]
    if unknown:
        raise InvalidRequestError(
            f"the store has containers 0 to {losses.container_count - 1}, and none of these: {unknown}"
        )
    sound = sorted(set(options.begin_anew) - {each.container_id for each in losses.containers})
    if sound:
        raise InvalidRequestError(
            f"only a container without a sound manifest begins anew, leave out those that have one: {sound}"
        )


async def _logs_left_behind(
    options: RecoveryOptions, surveys: Sequence[ContainerSurvey]
) -> list[str]:
    """Of the data directories whose Tier 2 is linked from another one."""
    if not options.place or options.copy or options.place.startswith("s3://"):
        return []
    manifests = [each.reader.manifest for each in surveys]
    told: list[str] = []
    for beside in stores_around(options.place):
        if beside != options.data.resolve():
            told += await logs_beside(beside, manifests)
    return told


async def _copy(
    result: RecoveryResult,
    readers: Sequence[ContainerReader],
    left_behind: Sequence[str],
    options: RecoveryOptions,
) -> bool:
    """False if it is damaged and the user did not ask for it with damage; the result names the damage.

    `left_behind`: backups, whose own objects are not copied. The copy forgets them as a restore does.
    """
    versions = {int(each.container_id): each.manifest.version for each in readers}
    async with held_directory(options.data):
        # Once more: another one may have been at work until now.
        require_no_tier2(options.data)
        if left_behind:
            mark_restore(options.data, UnfinishedRestore("", versions))
        copied = await copy_tier2(
            [(each.manifest, each.components) for each in readers],
            options.data,
            with_damage=options.with_damage,
            bar=partial(progress_bar, quiet=options.quiet, unit="B", scaled=True),
        )
        if left_behind and not copied.is_there:
            unmark_restore(options.data)
    result.remarks += copied.damage
    return copied.is_there


async def _rebuild_logs(
    options: RecoveryOptions,
    surveys: Sequence[ContainerSurvey],
    losses: Losses,
    rebuilt: RebuiltLogs,
    *,
    only_look: bool,
) -> Sequence[RecoveredLog]:
    """Give the data directory its Tier 2, identity and logs, or say what would be done."""
    # A copy of a container whose SSTs do not read cannot be made: there it is as one without a manifest.
    brought = [each.reader for each in surveys if not (options.copy and each.unreadable)]
    manifests = [each.manifest for each in brought]
    epochs = {int(each.reader.container_id): each.lost.highest_epoch for each in surveys}
    if only_look:
        anew = {
            each.container_id: each.remains.highest_epoch
            for each in losses.containers
            if each.container_id in options.begin_anew and not options.copy
        }
        rebuild = DataDirectoryRebuild(options.data, manifests, logs=rebuilt, highest_epochs=epochs)
        return await rebuild.preview(anew)
    if options.place and not options.copy and not options.place.startswith("s3://"):
        link_tier2(options.place, options.data)
    if options.begin_anew and not options.copy:
        place = options.start_place or str(options.data)
        manifests += await create_empty_manifests(place, options.begin_anew, of_store=manifests[0])
    rebuild = DataDirectoryRebuild(options.data, manifests, logs=rebuilt, highest_epochs=epochs)
    return await rebuild.run()


def _add_rows(
    result: RecoveryResult,
    options: RecoveryOptions,
    logs: Sequence[RecoveredLog],
    surveys: Sequence[ContainerSurvey],
    losses: Losses,
) -> None:
    by_id = {log.container: log for log in logs}
    # Containers that begin anew have a log as well, unless this is a copy or a preview.
    for each in surveys:
        number = int(each.reader.container_id)
        result.rows.append(container_row(number, by_id.get(number), each, without_log=_BEGINS_ANEW))
    for lost in losses.containers:
        number = lost.container_id
        anew = options.copy or number in options.begin_anew
        action = _BEGINS_ANEW if anew else "refused"
        result.rows.append(container_row(number, by_id.get(number), None, without_log=action))
    result.rows.sort(key=lambda row: int(row["container"] or 0))


def _consequences(options: RecoveryOptions, losses: Losses, without: Sequence[int]) -> list[str]:
    told: list[str] = []
    left_out = [each.container_id for each in losses.containers]
    left_out += [each.reader.container_id for each in losses.surveys if each.unreadable]
    if options.copy and left_out:
        told.append(f"containers that begin empty in the copy: {sorted(left_out)}")
    if not options.copy and options.begin_anew:
        told.append(
            f"containers that begin anew: {list(options.begin_anew)}; what is left of them in Tier 2 is deleted by the"
            " running store after its grace: copy it before the start if it may still be wanted"
        )
    if without:
        told.append(
            f"the store refuses these containers and touches nothing of them: {without}; bring their manifests back and"
            " run this again, or let them begin empty with "
            + " ".join(f"--begin-anew {number}" for number in without)
        )
    return told


async def _repair_and_finish(
    result: RecoveryResult,
    options: RecoveryOptions,
    surveys: Sequence[ContainerSurvey],
    without: Sequence[int],
) -> None:
    """Behind the logs: what takes a store whose containers run."""
    restore = unfinished_restore(options.data)
    has_streams = any(each.contents.has_streams for each in surveys)
    if without and (has_streams or restore is not None):
        result.remarks.append(
            "streams are not made to agree with their segments: that takes all containers; run this again then"
        )
    else:
        repaired = True
        if not has_streams:
            unmark_lost_logs(options.data)
        elif options.repair:
            repaired = await repair(result, options.data, options.start_place)
        if restore is not None and repaired:
            # A restore that was cut off after its copy is through as well now.
            await finish_restore(options.data, restore)
    result.remarks.append(how_to_start(options.data, options.start_place))
