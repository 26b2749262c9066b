"""What a recovery or a restore says: a row for each container, and sentences about what is not there any more."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from segmentstore.contracts.errors import ErrorKind, SegmentStoreError
from segmentstore.recovery.offline_store import repair_streams
from segmentstore.recovery.rebuild import DataDirectoryRebuild, RecoveredLog
from segmentstore.recovery.rebuilt_logs import FileLogsRebuilt
from segmentstore.recovery.survey import ContainerSurvey, Tier2Contents, shown_time
from tier2.manifest.manifest import Manifest

NAMED_MAX = 20
COLUMNS = (
    "container",
    "action",
    "root_epoch",
    "epoch",
    "root_version",
    "newest",
    "segments",
    "segment_bytes",
    "lost_bytes",
    "sealed",
    "truncated",
    "set_aside",
)
"""Of the table of `recover`; JSON has more."""

ResultRow: TypeAlias = Mapping[str, str | int | bool | None]


@dataclass(slots=True)
class RecoveryResult:
    """Rows for stdout, sentences for stderr."""

    rows: list[ResultRow] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    failure: ErrorKind | None = None
    """The kind of the error that the remarks tell of; None if nothing was refused and nothing failed."""


def container_row(
    container_id: int, log: RecoveredLog | None, survey: ContainerSurvey | None, *, without_log: str
) -> ResultRow:
    """Of one container. It has no survey without a sound manifest, and no log if none was made.

    `without_log`: what is done with it then.
    """
    manifest = None if survey is None else survey.reader.manifest
    contents = Tier2Contents() if survey is None else survey.contents
    return {
        "container": container_id,
        "action": without_log if log is None or survey is None else log.action,
        "root_epoch": None if manifest is None else manifest.epoch,
        "epoch": None if log is None else log.epoch,
        "root_version": None if manifest is None else manifest.version,
        "newest": shown_time(contents.newest_ms),
        "newest_ms": contents.newest_ms,
        "segments": contents.segments,
        "segment_bytes": contents.segment_bytes,
        "lost_bytes": None if survey is None or survey.unreadable else survey.lost.byte_count,
        "sealed": contents.sealed,
        "truncated": contents.truncated,
        "has_streams": contents.has_streams,
        "set_aside": "" if log is None else log.set_aside,
    }


def summary(surveys: Sequence[ContainerSurvey]) -> str:
    """As of when everything is."""
    newest = max((each.contents.newest_ms for each in surveys), default=0)
    segments = sum(each.contents.segments for each in surveys)
    size = sum(each.contents.segment_bytes - each.lost.byte_count for each in surveys)
    return (
        f"Tier 2 holds {segments} segments with {size} bytes in {len(surveys)} containers, each as of its last"
        f" published manifest (root_version, newest); the last change that reached it is of {shown_time(newest)}. What"
        " was acknowledged later and not flushed was in Tier 1 alone."
    )


def unfinished(surveys: Sequence[ContainerSurvey]) -> list[str]:
    """What was on its way into Tier 2: neither there as a whole, nor lost without a trace."""
    objects = sum(each.lost.unpublished_count for each in surveys)
    size = sum(each.lost.unpublished_bytes for each in surveys)
    transactions = sorted({name for each in surveys for name in each.contents.transactions})
    told = named(
        "transactions were not finished: they are committed if that was decided, and aborted if not",
        transactions,
    )
    if objects:
        told.append(
            f"{objects} objects with {size} bytes were uploaded and no manifest names them yet: what is new in them"
            " went with Tier 1"
        )
    return told


def contents_unread(source: str) -> str:
    """For a caller that looked at what the manifests name, and not inside."""
    return (
        "what is inside the objects was not read: damaged bytes in them are found by"
        f" segmentstore tier2 verify --deep {source}"
    )


async def logs_beside(directory: Path, manifests: Sequence[Manifest]) -> list[str]:
    """Of a Tier 2 that is linked away from logs which go on with it; none if there are none."""
    logs = FileLogsRebuilt(directory)
    found = await DataDirectoryRebuild(directory, manifests, logs=logs).preview()
    own = [each for each in found if each.action == "kept"]
    if not own:
        return []
    return [
        (
            f"{directory} has logs of its own for {len(own)} of these containers, and what was acknowledged and not"
            " flushed is in them alone: if they can be read, start that store instead"
            f" (segmentstore standalone --data {directory}). Once the recovered store has been started, that one is"
            " refused"
        )
    ]


def disabled_logs(data: Path, logs: Sequence[RecoveredLog]) -> list[str]:
    """What a person does about logs that belong to the store, are kept, and that no store opens."""
    return [
        f"the log of container {log.container} is kept, and disabled because of a fault: the container does not start."
        " Bring back what is missing and let it be opened again with"
        f" segmentstore log enable {data} --container {log.container}; or take it as lost, and what was acknowledged"
        f" and not flushed with it: segmentstore log set-aside {data} --container {log.container}, and run this again"
        for log in logs
        if log.is_disabled
    ]


def how_to_start(data: Path, tier2_place: str) -> str:
    """The command that serves the recovered store."""
    tier2_flag = f" --tier2 {tier2_place}" if tier2_place else ""
    return f"start it with: segmentstore standalone --data {data}{tier2_flag}"


async def repair(result: RecoveryResult, data: Path, tier2_place: str) -> bool:
    """Make streams agree with their segments, and add to the result what was done; False if that did not work."""
    try:
        done = await repair_streams(data, tier2_place=tier2_place)
    except SegmentStoreError as error:
        result.remarks.append(
            f"streams are not repaired, run this again when that is settled: {error}"
        )
        result.failure = error.kind
        return False
    report = done.report
    result.remarks += [
        *named(
            "transactions were open and are aborted: their clients begin them anew", done.aborted
        ),
        *named("created empty, since they are not in Tier 2", report.created),
        *named(
            "segments may have lost their last bytes with Tier 1 and are ended, their streams go on in new ones;"
            " a position behind such an end is lost",
            report.ended,
        ),
        *named("segments were sealed and are shorter now", report.shorter),
        *named(
            "segments of byte streams may have lost their last bytes with Tier 1 and go on where they end now; a"
            " position behind that is of other bytes",
            report.byte_segments,
        ),
        *named("streams whose head moved to what is left", report.moved_heads),
        *named(
            "transactions were to be committed to an epoch that is not in Tier 2, and are aborted",
            report.ended_transactions,
        ),
        *named(
            "segments that no stream lists, nothing was done to them",
            report.strangers,
            report.stranger_count,
        ),
        *named(
            "streams go on in segments whose last bytes may be lost, run this again",
            report.failures,
        ),
    ]
    if report.failures:
        result.failure = ErrorKind.UNAVAILABLE
    return not report.failures


def named(what: str, names: Sequence[str], count: int | None = None) -> list[str]:
    """A sentence with the first names; none without names."""
    if not names:
        return []
    shown = ", ".join(names[:NAMED_MAX])
    total = len(names) if count is None else count
    more = f" and {total - NAMED_MAX} more" if total > NAMED_MAX else ""
    return [f"{total} {what}: {shown}{more}"]
