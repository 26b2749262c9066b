"""Goal: `segment inspect` shows what is in a file of records, and says what is damaged without hiding the rest."""

import json
from pathlib import Path

import pytest

from segmentstore.cli.exit_codes import ExitCode
from segmentstore.codec.record_fields import Record
from segmentstore.codec.topic_files import RecordFileName
from tests.cli.command_line import CommandLine
from tests.tier2.format.record_images import image_of
from tier2.format.record_file import open_record_file

RECORDS = [
    [Record(10, 5, b"k", b"value", (("h", None),))],
    [Record(11, 4, None, None), Record(14, 9, b"\xff", b"last")],
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / RecordFileName("t", 3, 10, 14).key
    path.parent.mkdir(parents=True)
    path.write_bytes(image_of(RECORDS, block_bytes_target=10))
    return path


def test_a_file_is_shown_with_its_blocks_and_its_records(
    file: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    cli = CommandLine(capfdbinary)
    shown = cli("segment", "inspect", str(file), "-o", "json")
    assert shown.exit_code == ExitCode.OK
    header, *blocks = shown.rows
    assert (header["start_offset"], header["end_offset"], header["records"]) == (10, 15, 3)
    assert [(row["first_offset"], row["records"], row["damage"]) for row in blocks] == [
        (10, 1, ""),
        (11, 2, ""),
    ]
    records = cli("segment", "inspect", str(file), "--records", "-o", "json").rows
    assert [(row["offset"], row["key"], row["value"]) for row in records] == [
        (10, "k", "value"),
        (11, None, None),
        (14, "base64:/w==", "last"),
    ]
    assert json.loads(str(records[0]["headers"])) == [["h", None]]


def test_a_damaged_block_is_named_and_the_others_are_listed(
    file: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    image = bytearray(file.read_bytes())
    image[open_record_file(bytes(image)).index.entries[0].position] ^= 1
    file.write_bytes(image)
    cli = CommandLine(capfdbinary)
    shown = cli("segment", "inspect", str(file), "-o", "json")
    assert shown.exit_code == ExitCode.CORRUPT
    assert ["checksum" in str(row["damage"]) for row in shown.rows[1:]] == [True, False]
    assert len(cli("segment", "inspect", str(file), "--records", "-o", "json").rows) == 2


def test_a_file_under_a_wrong_name_and_what_is_no_file_of_records_are_told(
    file: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    cli = CommandLine(capfdbinary)
    renamed = file.rename(file.with_name("00000010-00000015.seg"))
    assert cli("segment", "inspect", str(renamed)).exit_code == ExitCode.CORRUPT
    renamed.write_bytes(b"SH" + bytes(300))
    assert cli("segment", "inspect", str(renamed)).exit_code == ExitCode.CORRUPT
    assert cli("segment", "inspect", str(file)).exit_code == ExitCode.USAGE
