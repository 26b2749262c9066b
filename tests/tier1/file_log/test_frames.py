"""The bytes of a frame: written down once in tests/golden/tier1_frames.hex, and never changed without a new version."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segmentstore.codec.vectored import LARGE_BUFFER_BYTES
from segmentstore.contracts.identifiers import BufferView
from tier1.file_log.directory import (
    LogIdentity,
    decode_identity,
    encode_identity,
    parse_journal_name,
)
from tier1.file_log.frames import (
    PAGE_BYTES,
    SINGLE_PAGE_ENTRY_BYTES_MAX,
    FrameEntry,
    FrameHeader,
    FrameKind,
    body_bytes,
    decode_body,
    decode_header,
    encode_frame,
    encode_single_page,
    frame_bytes,
    is_of_another_release,
    looks_like_header,
)

GOLDEN = Path(__file__).parents[2] / "golden" / "tier1_frames.hex"
LOG_ID = bytes(range(16))
FOLLOWED_ID = bytes(range(16, 32))


def header_of(kind: FrameKind, entries: list[FrameEntry], *, page: int = 3) -> FrameHeader:
    return FrameHeader(
        kind=kind,
        log_id=LOG_ID,
        epoch=0x0102030405060708,
        generation=9,
        number=0x1112131415161718,
        previous_epoch=0x0102030405060708,
        previous_number=0x1112131415161717,
        synced_number=0x1112131415161716,
        oldest_number=0x1112131415161701,
        truncated_up_to=0x2122232425262728,
        last_address=0x3132333435363738,
        page=page,
        entry_count=len(entries),
        body_bytes=body_bytes(len(entries), sum(entry.length for entry in entries)),
    )


def encoded(header: FrameHeader, entries: list[FrameEntry]) -> bytes:
    return b"".join(encode_frame(header, entries))


def body_of(header: FrameHeader, raw: memoryview) -> list[tuple[int, bytes]]:
    body = decode_body(header, raw)
    assert body is not None
    return [(address, bytes(payload)) for address, payload in body]


def examples() -> dict[str, bytes]:
    entries = [
        FrameEntry(0x3132333435363737, (b"first",), 5),
        FrameEntry(0x3132333435363738, (), 0),
    ]
    frames = {
        "entries": encoded(header_of(FrameKind.ENTRIES, entries), entries),
        "epoch": encoded(header_of(FrameKind.EPOCH, entries[:1], page=0), entries[:1]),
        "mark": encoded(header_of(FrameKind.MARK, []), []),
    }
    identities = {
        "identity": encode_identity(LogIdentity(LOG_ID)),
        "identity_that_follows": encode_identity(LogIdentity(LOG_ID, follows=FOLLOWED_ID)),
        "identity_with_changes": encode_identity(
            LogIdentity(LOG_ID, follows=FOLLOWED_ID, follows_changes=0x0102030405060708)
        ),
    }
    return {**frames, **identities}


@pytest.mark.parametrize(
    "name",
    ["entries", "epoch", "mark", "identity", "identity_that_follows", "identity_with_changes"],
)
def test_the_format_is_what_the_golden_file_says(name: str) -> None:
    golden = dict(line.split(" ") for line in GOLDEN.read_text().splitlines() if line[0] != "#")
    content = examples()[name]
    assert content.rstrip(b"\0").hex() == golden[name]
    assert name.startswith("identity") or len(content) == PAGE_BYTES


def test_the_golden_frames_decode() -> None:
    raw = memoryview(examples()["entries"])
    header = decode_header(raw, log_id=LOG_ID, page=3)
    assert header is not None
    assert (header.kind, header.number, header.entry_count) == (
        FrameKind.ENTRIES,
        0x1112131415161718,
        2,
    )
    assert body_of(header, raw) == [(0x3132333435363737, b"first"), (0x3132333435363738, b"")]
    assert decode_identity(examples()["identity"]) == LogIdentity(LOG_ID)
    assert decode_identity(examples()["identity_that_follows"]) == LogIdentity(
        LOG_ID, follows=FOLLOWED_ID
    )
    assert decode_identity(examples()["identity_with_changes"]) == LogIdentity(
        LOG_ID, follows=FOLLOWED_ID, follows_changes=0x0102030405060708
    )


pieces = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.integers(0, 3 * LARGE_BUFFER_BYTES).map(bytes),
        st.binary(min_size=10, max_size=40).map(lambda content: memoryview(content)[3:8]),
    ),
    max_size=6,
)


@given(st.lists(pieces, max_size=5), st.sampled_from(FrameKind))
def test_what_is_encoded_decodes_to_the_same(
    contents: list[list[BufferView]], kind: FrameKind
) -> None:
    entries = [
        FrameEntry(100 + n, tuple(content), sum(map(len, content)))
        for n, content in enumerate(contents)
    ]
    drafted = header_of(kind, entries)
    raw = encoded(drafted, entries)
    assert len(raw) == drafted.length == frame_bytes(len(entries), sum(e.length for e in entries))
    assert len(raw) % PAGE_BYTES == 0
    header = decode_header(raw, log_id=LOG_ID, page=3)
    assert header is not None
    assert body_of(header, memoryview(raw)) == [
        (entry.address, b"".join(entry.pieces)) for entry in entries
    ]


def test_large_pieces_are_not_copied_and_small_ones_are_joined() -> None:
    large = bytes(LARGE_BUFFER_BYTES)
    entry = FrameEntry(1, (*[b"x"] * 5000, large, *[b"y"] * 5000), 10_000 + len(large))
    buffers = encode_frame(header_of(FrameKind.ENTRIES, [entry]), [entry])
    assert any(buffer is large for buffer in buffers)
    assert len(buffers) == 5


def test_a_frame_of_another_release_is_told_from_a_damaged_one_of_this() -> None:
    raw = examples()["epoch"]
    assert not is_of_another_release(raw)
    for bit in range(40):
        flipped = bytearray(raw)
        flipped[bit // 8] ^= 1 << bit % 8
        assert not is_of_another_release(bytes(flipped)), f"{bit=}"
    for written in range(len(raw)):
        torn = bytes(raw[:written]) + bytes(len(raw) - written)
        assert not is_of_another_release(torn), f"{written=}"
    assert is_of_another_release(b"SJF1\x02" + bytes(PAGE_BYTES - 5))
    assert is_of_another_release(b"SJF2\x01" + bytes(PAGE_BYTES - 5))
    for no_frame in (b"", b"SJF", bytes(PAGE_BYTES), b"S" * PAGE_BYTES):
        assert not is_of_another_release(no_frame)


def test_h43_a_frame_of_another_log_or_at_another_place_is_no_frame() -> None:
    raw = examples()["mark"]
    assert decode_header(raw, log_id=LOG_ID, page=3) is not None
    assert decode_header(raw, log_id=None, page=3) is not None
    assert decode_header(raw, log_id=bytes(16), page=3) is None
    assert decode_header(raw, log_id=LOG_ID, page=4) is None
    assert decode_header(raw[:100], log_id=LOG_ID, page=3) is None


def test_h43_every_bit_of_a_frame_is_covered_by_a_checksum() -> None:
    raw = examples()["entries"]
    for bit in range(len(raw) * 8):
        damaged = bytearray(raw)
        damaged[bit // 8] ^= 1 << bit % 8
        header = decode_header(bytes(damaged), log_id=LOG_ID, page=3)
        assert header is None or decode_body(header, memoryview(damaged)) is None


def test_a_damaged_header_still_looks_like_one() -> None:
    raw = bytearray(examples()["mark"])
    raw[40] ^= 1
    assert decode_header(bytes(raw), log_id=LOG_ID, page=3) is None
    assert looks_like_header(bytes(raw), LOG_ID)
    assert not looks_like_header(bytes(PAGE_BYTES), LOG_ID)


@pytest.mark.parametrize("name", ["identity", "identity_that_follows"])
def test_a_broken_identity_is_no_identity(name: str) -> None:
    whole = examples()[name]
    for length in range(len(whole)):
        assert decode_identity(whole[:length]) is None
        broken = bytearray(whole)
        broken[length] ^= 1
        assert decode_identity(bytes(broken)) is None
    assert decode_identity(whole + b"x") is None
    assert decode_identity(bytes(len(whole))) is None


@pytest.mark.parametrize(
    "name", ["journal-1", "journal-a-1", "journal--", "epoch-0000000001", "x-1-2"]
)
def test_other_names_are_no_journals(name: str) -> None:
    assert parse_journal_name(name) is None


def test_journal_names_parse_back() -> None:
    name = parse_journal_name("journal-0000000012-000003")
    assert name is not None
    assert (name.epoch, name.serial, str(name)) == (12, 3, "journal-0000000012-000003")


@settings(max_examples=100)
@given(
    st.lists(st.binary(max_size=1400), max_size=3).filter(
        lambda pieces: sum(map(len, pieces)) <= SINGLE_PAGE_ENTRY_BYTES_MAX
    ),
    st.lists(st.integers(0, 2**64 - 2), min_size=7, max_size=7),
    st.integers(0, 2**32 - 1),
)
def test_the_short_way_to_a_lone_entry_gives_the_bytes_of_the_long_one(
    pieces: list[bytes], numbers: list[int], page: int
) -> None:
    epoch, generation, number, synced, oldest, truncated, address = numbers
    length = sum(map(len, pieces))
    header = FrameHeader(
        kind=FrameKind.ENTRIES,
        log_id=LOG_ID,
        epoch=epoch,
        generation=generation,
        number=number + 1,
        previous_epoch=epoch,
        previous_number=number,
        synced_number=synced,
        oldest_number=oldest,
        truncated_up_to=truncated,
        last_address=address,
        page=page,
        entry_count=1,
        body_bytes=body_bytes(1, length),
    )
    long = b"".join(encode_frame(header, [FrameEntry(address, pieces, length)]))
    short = encode_single_page(
        log_id=LOG_ID,
        epoch=epoch,
        generation=generation,
        number=number + 1,
        synced_number=synced,
        oldest_number=oldest,
        truncated_up_to=truncated,
        address=address,
        page=page,
        pieces=pieces,
        length=length,
    )
    assert short == long
    assert len(short) == PAGE_BYTES
