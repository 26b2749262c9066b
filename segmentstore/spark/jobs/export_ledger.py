"""What an export has written: batches, each with the ranges it holds, so that every event is there once.

    OUT/date=2026-11-21/batch-000007-part-....parquet     what readers see
    OUT/_batches/000007.json                              the manifest of one batch: its commit
    OUT/_staging/000007/                                  a batch on its way; hidden from Spark's readers

    write into staging -> write the manifest -> move the files into place -> remove staging

- A batch is committed by its manifest. Killed before it, what is staged is thrown away and the batch is made again;
  killed behind it, the next run moves the rest of the files, whose names are in the manifest.
- Manifests are numbered without a gap. Each says where every segment stood behind it, so the last one alone tells
  where to go on.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from segmentstore.contracts.errors import CorruptedDataError, InvalidRequestError
from segmentstore.spark.jobs.output_directory import OutputDirectory

_BATCHES, _STAGING = "_batches", "_staging"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class ExportedRange:
    """The events of a segment that begin in [start, end)."""

    segment_id: int
    segment: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportBatch:
    """One committed batch."""

    number: int
    stream: str
    ranges: tuple[ExportedRange, ...]
    rows: int
    ends: Mapping[int, int]
    """Where each segment stands behind this batch and all before it, by segment id."""
    finished: tuple[int, ...] = ()
    """Segments that are sealed and wholly exported: they may go."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Where each file was staged, and its place."""

    def to_json(self) -> str:
        return json.dumps(
            {
                "version": _VERSION,
                "number": self.number,
                "stream": self.stream,
                "rows": self.rows,
                "ranges": [
                    {
                        "segment_id": each.segment_id,
                        "segment": each.segment,
                        "start": each.start,
                        "end": each.end,
                    }
                    for each in self.ranges
                ],
                "ends": {str(segment): end for segment, end in self.ends.items()},
                "finished": list(self.finished),
                "files": dict(self.files),
            },
            indent=1,
        )

    @classmethod
    def of_json(cls, text: str, place: str) -> "ExportBatch":
        """Raises CorruptedDataError."""
        try:
            value = json.loads(text)
            if value["version"] != _VERSION:
                raise ValueError(f"version={value['version']}")
            return cls(
                number=value["number"],
                stream=value["stream"],
                rows=value["rows"],
                ranges=tuple(ExportedRange(**each) for each in value["ranges"]),
                ends={int(segment): end for segment, end in value["ends"].items()},
                finished=tuple(value["finished"]),
                files=value["files"],
            )
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptedDataError(f"not a manifest place={place}: {error}") from error


class ExportLedger:
    """The batches of one export."""

    def __init__(self, directory: OutputDirectory, *, stream: str) -> None:
        self._directory = directory
        self._stream = stream
        self.batches: list[ExportBatch] = []

    def open(self) -> None:
        """Read what is there, and finish what a killed run began.

        Raises InvalidRequestError if another stream was exported there, CorruptedDataError.
        """
        while (text := self._directory.read_text(_manifest(len(self.batches)))) is not None:
            place = _manifest(len(self.batches))
            batch = ExportBatch.of_json(text, place)
            if batch.stream != self._stream:
                raise InvalidRequestError(
                    f"another stream was exported there stream={batch.stream} asked={self._stream}"
                    f" directory={self._directory.url}"
                )
            self.batches.append(batch)
        if self.batches:
            self._publish(self.batches[-1])
        self._directory.remove(_STAGING)

    @property
    def ends(self) -> Mapping[int, int]:
        """Where every segment stands that was exported."""
        return self.batches[-1].ends if self.batches else {}

    @property
    def finished(self) -> frozenset[int]:
        return frozenset(self.batches[-1].finished if self.batches else ())

    def staging_url(self) -> str:
        """Where the next batch is written to."""
        return f"{self._directory.url}/{_staging(len(self.batches))}"

    def commit(
        self,
        *,
        ranges: Sequence[ExportedRange],
        rows: int,
        ends: Mapping[int, int],
        finished: Sequence[int],
    ) -> ExportBatch:
        """The staged batch counts from now on."""
        number = len(self.batches)
        staged = _staging(number)
        files: dict[str, str] = {}
        for source in self._directory.files(staged):
            path = PurePosixPath(source)
            if not path.name.startswith(("_", ".")):
                inside = path.relative_to(staged)
                files[source] = str(inside.with_name(f"batch-{number:06d}-{inside.name}"))
        batch = ExportBatch(
            number=number,
            stream=self._stream,
            ranges=tuple(ranges),
            rows=rows,
            ends=dict(ends),
            finished=tuple(sorted(finished)),
            files=files,
        )
        self._directory.write_text(_manifest(number), batch.to_json())
        self.batches.append(batch)
        self._publish(batch)
        self._directory.remove(_STAGING)
        return batch

    def _publish(self, batch: ExportBatch) -> None:
        for source, target in batch.files.items():
            self._directory.rename(source, target)


def _manifest(number: int) -> str:
    return f"{_BATCHES}/{number:06d}.json"


def _staging(number: int) -> str:
    return f"{_STAGING}/{number:06d}"
