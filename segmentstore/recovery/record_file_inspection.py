"""What is in a file of a topic's records: header, blocks or records as rows, and whatever is wrong with it.

The file is read whole and changed by nothing. Damage is told, not raised, as long as header and index can be read.
"""

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from segmentstore.codec.record_fields import Record
from segmentstore.codec.topic_files import RecordFileName
from segmentstore.contracts.errors import CorruptedDataError, InvalidRequestError
from tier2.format.record_file import (
    RecordFile,
    damages_of_record_file,
    open_record_file,
)

Row: TypeAlias = Mapping[str, str | int | None]


class RecordFileInspection:
    """One file. Raises InvalidRequestError if it cannot be read."""

    def __init__(self, path: Path) -> None:
        try:
            self._image = path.read_bytes()
        except OSError as error:
            raise InvalidRequestError(
                f"cannot read the file: {error.strerror} path={path}"
            ) from error
        self._source = str(path)
        self.damages = [*damages_of_record_file(self._image, source=self._source)]
        self._opened: RecordFile | None = None
        try:
            self._opened = open_record_file(self._image, source=self._source)
        except CorruptedDataError:
            return  # among the damages
        parts = path.absolute().parts
        names = (RecordFileName.parsed("/".join(parts[-count:])) for count in (6, 7))
        name = next((each for each in names if each is not None), None)
        header = self._opened.header
        if name is not None and (name.first_offset, name.last_offset + 1) != (
            header.start_offset,
            header.end_offset,
        ):
            self.damages.append(
                f"the file answers for other offsets than its name says source={self._source}"
                f" start_offset={header.start_offset} end_offset={header.end_offset}"
            )

    def header_rows(self) -> Sequence[Row]:
        """One row, or none if the file cannot be opened."""
        if self._opened is None:
            return []
        header, index = self._opened.header, self._opened.index
        return [
            {
                "bytes": len(self._image),
                "start_offset": header.start_offset,
                "end_offset": header.end_offset,
                "records": header.record_count,
                "blocks": len(index.entries),
                "uncompressed_bytes": sum(each.uncompressed_length for each in index.entries),
                "compression": header.compression.name.lower(),
                "created_ms": header.created_ms,
                "flags": "+".join(flag.name or "" for flag in header.flags).lower(),
            }
        ]

    def block_rows(self) -> Iterator[Row]:
        """What the index says of each block, and what is wrong with it."""
        opened = self._opened
        if opened is None:
            return
        for number, entry in enumerate(opened.index.entries):
            assert entry.events is not None, "opened without the times of a block"
            row: dict[str, str | int | None] = {
                "block": number,
                "first_offset": entry.first_offset,
                "end_offset": opened.index.block_end_offset(number),
                "position": entry.position,
                "stored_bytes": entry.stored_length,
                "uncompressed_bytes": entry.uncompressed_length,
                "compression": entry.compression.name.lower(),
                "lowest_time_ms": entry.events.lowest_time_ms,
                "highest_time_ms": entry.events.highest_time_ms,
            }
            try:
                row["records"] = len(opened.block(number))
                row["damage"] = ""
            except CorruptedDataError as error:
                row["records"], row["damage"] = None, str(error)
            yield row

    def record_rows(self) -> Iterator[Row]:
        """Every record of the blocks that are sound."""
        opened = self._opened
        if opened is None:
            return
        for number in range(len(opened.index.entries)):
            try:
                records = opened.block(number)
            except CorruptedDataError:
                continue
            yield from map(_record_row, records)


def _record_row(record: Record) -> Row:
    return {
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "key": _text(record.key),
        "value": _text(record.value),
        "headers": json.dumps(
            [[name, _text(value)] for name, value in record.headers], ensure_ascii=False
        ),
    }


def _text(content: bytes | None) -> str | None:
    """What is not UTF-8 is shown as base64."""
    if content is None:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return f"base64:{base64.b64encode(content).decode()}"
