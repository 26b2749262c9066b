"""The bytes of a log's record: written down once in tests/golden/bookkeeper_log_record_v1.hex, and never changed."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from segmentstore.contracts.errors import LogCorruptedError
from segmentstore.contracts.identifiers import LogAddress
from tier1.bookkeeper.ledgers import LedgerId, Quorum
from tier1.bookkeeper.log_record import (
    OPEN,
    LedgerInLog,
    LogRecord,
    address_of,
    decode_record,
    encode_record,
    entry_of,
)

GOLDEN = Path(__file__).parents[2] / "golden" / "bookkeeper_log_record_v1.hex"
NEW = LogRecord(bytes(range(16)))
USED = LogRecord(
    bytes(range(16)),
    follows=bytes(range(16, 32)),
    follows_changes=0x0102030405060708,
    epoch=9,
    nonce=b"87654321",
    change=0x1112131415161718,
    truncated_up_to=LogAddress(0x0000000300000004),
    last_sequence=6,
    ledgers=(
        LedgerInLog(
            LedgerId(0x2122232425262728),
            sequence=5,
            epoch=8,
            quorum=Quorum(3, 3, 2),
            last_entry=76,
            length=12345,
        ),
        LedgerInLog(LedgerId(0x3132), sequence=6, epoch=9, quorum=Quorum(4, 3, 2)),
    ),
    garbage=(LedgerId(7), LedgerId(0x4142434445464748)),
    owner="host-1 pid 42",
    disabled="the first fault: ü",
)


@pytest.mark.parametrize(("name", "record"), [("new", NEW), ("used", USED)])
def test_the_format_is_what_the_golden_file_says(name: str, record: LogRecord) -> None:
    golden = dict(line.split(" ") for line in GOLDEN.read_text().splitlines() if line[0] != "#")
    assert encode_record(record).hex() == golden[name]
    assert decode_record(bytes.fromhex(golden[name]), path="/log") == record


def test_every_flipped_bit_is_found() -> None:
    value = bytearray(encode_record(USED))
    for place in range(len(value)):
        for bit in range(8):
            value[place] ^= 1 << bit
            with pytest.raises(LogCorruptedError):
                decode_record(bytes(value), path="/log")
            value[place] ^= 1 << bit


@pytest.mark.parametrize("length", [0, 3, 50, len(encode_record(USED)) - 1])
def test_a_value_that_was_cut_off_is_found(length: int) -> None:
    with pytest.raises(LogCorruptedError, match="path='/log'"):
        decode_record(encode_record(USED)[:length], path="/log")


@given(some.binary(max_size=300))
def test_foreign_bytes_are_refused_in_words(value: bytes) -> None:
    with pytest.raises(LogCorruptedError):
        decode_record(value, path="/log")


def test_a_record_with_two_open_ledgers_is_never_written() -> None:
    first, second = USED.ledgers
    with pytest.raises(AssertionError, match="are open"):
        encode_record(replace(USED, ledgers=(replace(first, last_entry=OPEN), second)))


def test_a_ledger_is_entered_once() -> None:
    assert USED.with_ledger(USED.ledgers[1]) == USED


@given(some.integers(1, (1 << 31) - 2), some.integers(0, (1 << 32) - 1))
def test_addresses_grow_over_entries_and_ledgers(sequence: int, entry: int) -> None:
    address = address_of(sequence, entry)
    assert entry_of(address) == (sequence, entry)
    assert address < address_of(sequence + 1, 0) < 1 << 63
