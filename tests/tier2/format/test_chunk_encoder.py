"""What an encoded chunk looks like, and that every byte of it comes back."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tier2.format.chunk_reading import identity_of, image_of, read_index, read_range
from tier2.format.chunk_decoder import verify_chunk
from tier2.format.chunk_encoder import encode_chunk
from tier2.format.chunk_format import (
    BLOCK_BYTES_MAX,
    ChunkFlag,
    Compression,
    EventInformation,
    parse_header,
)

COMPRESSIONS = list(Compression)
CREATED_MS = 1_795_000_000_000


def text(length: int, seed: int = 1) -> bytes:
    words = [b"segment ", b"offset ", b"block ", b"index ", b"append ", b"42 "]
    random = Random(seed)
    return b"".join(random.choice(words) for _ in range(length // 5 + 1))[:length]


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_the_bytes_of_all_runs_come_back(compression: Compression) -> None:
    runs = [text(700, 1), Random(2).randbytes(900), b"", text(5000, 3), b"x"]
    chunk = encode_chunk(
        start_offset=10_000,
        runs=runs,
        compression=compression,
        created_ms=CREATED_MS,
        block_bytes_target=1000,
    )
    image = image_of(chunk)
    assert len(image) == chunk.size
    whole = b"".join(runs)
    assert chunk.end_offset == 10_000 + len(whole)
    assert chunk.uncompressed_length == len(whole)
    assert read_range(image, identity_of(chunk), 10_000, chunk.end_offset) == whole
    assert verify_chunk(image, identity=identity_of(chunk)).damages == ()


def test_the_header_says_what_the_chunk_holds() -> None:
    chunk = encode_chunk(
        start_offset=7, runs=[b"abc"], compression=Compression.ZSTD, created_ms=CREATED_MS
    )
    header = parse_header(image_of(chunk))
    assert header.flags == ChunkFlag.NO_EVENTS
    assert header.compression is Compression.ZSTD
    assert header.created_ms == CREATED_MS
    assert (header.start_offset, header.end_offset, header.record_count) == (7, 10, 3)


def test_a_chunk_of_one_byte_costs_152_bytes_more() -> None:
    chunk = encode_chunk(start_offset=0, runs=[b"x"], created_ms=CREATED_MS)
    assert chunk.size == 1 + 152
    assert read_range(image_of(chunk), identity_of(chunk), 0, 1) == b"x"


def test_a_chunk_without_a_byte_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one byte"):
        encode_chunk(start_offset=5, runs=[b"", b""], created_ms=CREATED_MS)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_block_that_does_not_shrink_is_stored_as_it_is(compression: Compression) -> None:
    noise = Random(4).randbytes(5000)
    chunk = encode_chunk(
        start_offset=0,
        runs=[noise, text(5000)],
        compression=compression,
        created_ms=CREATED_MS,
        block_bytes_target=5000,
    )
    assert [entry.compression for entry in chunk.index.entries] == [Compression.NONE, compression]
    assert chunk.index.entries[0].stored_length == 5000
    assert any(buffer is noise for buffer in chunk.buffers), "stored runs are not copied"


def test_h76_blocks_end_on_append_boundaries() -> None:
    random = Random(5)
    runs = [random.randbytes(random.randrange(1, 3000)) for _ in range(200)]
    chunk = encode_chunk(start_offset=0, runs=runs, created_ms=CREATED_MS, block_bytes_target=2000)
    boundaries = set()
    end = 0
    for run in runs:
        end += len(run)
        boundaries.add(end)
    index = chunk.index
    assert len(index.entries) > 50
    for block in range(len(index.entries)):
        assert index.block_end_offset(block) in boundaries
    lengths = [entry.uncompressed_length for entry in index.entries]
    assert max(lengths) < 4000
    assert sum(lengths) / len(lengths) > 1500


def test_h76_one_append_larger_than_a_block_is_one_larger_block() -> None:
    large = text(9000)
    chunk = encode_chunk(
        start_offset=0,
        runs=[b"small", large, b"tail"],
        created_ms=CREATED_MS,
        block_bytes_target=1000,
    )
    assert [entry.uncompressed_length for entry in chunk.index.entries] == [5, 9000, 4]


@pytest.mark.slow
def test_h76_an_append_beyond_the_largest_block_is_cut_and_says_what_is_unknown() -> None:
    large = bytes(BLOCK_BYTES_MAX + 5)
    about = EventInformation(
        first_event_position=(3 << 20) + 1,
        first_event_number=8,
        lowest_time_ms=100,
        highest_time_ms=200,
    )
    chunk = encode_chunk(
        start_offset=0, runs=[b"abc", large], events=[None, about], created_ms=CREATED_MS
    )
    entries = chunk.index.entries
    assert [entry.uncompressed_length for entry in entries] == [3, *[1 << 20] * 16, 5]
    assert [entry.events is None for entry in entries] == [True, *[False] * 4, *[True] * 13]
    assert entries[1].events == EventInformation(None, 0, 100, 200)
    assert entries[4].events == EventInformation(1, 8, 100, 200)
    assert verify_chunk(image_of(chunk)).damages == ()


def test_h76_each_entry_says_where_its_first_event_starts_and_bounds_its_times() -> None:
    runs = [b"a" * 600, b"b" * 600, b"c" * 600, b"d" * 600]
    events = [
        EventInformation(None, 0, 50, 60),
        EventInformation(100, 12, 10, 55),
        EventInformation(0, 14, 70, 90),
        EventInformation(200, 15, 80, 85),
    ]
    chunk = encode_chunk(
        start_offset=0,
        runs=runs,
        events=events,
        created_ms=CREATED_MS,
        block_bytes_target=1200,
    )
    image = image_of(chunk)
    assert ChunkFlag.NO_EVENTS not in parse_header(image).flags
    index = read_index(image, identity_of(chunk))
    assert [entry.events for entry in index.entries] == [
        EventInformation(700, 12, 10, 60),
        EventInformation(0, 14, 70, 90),
    ]


def test_h76_a_block_with_one_undescribed_run_has_no_event_information() -> None:
    chunk = encode_chunk(
        start_offset=0,
        runs=[b"a" * 600, b"b" * 600],
        events=[EventInformation(0, 1, 5, 5), None],
        created_ms=CREATED_MS,
        block_bytes_target=1200,
    )
    assert read_index(image_of(chunk), identity_of(chunk)).entries[0].events is None


def test_h2_the_same_input_gives_the_same_bytes() -> None:
    runs = [text(3000), Random(6).randbytes(3000)]
    first, second = (
        image_of(
            encode_chunk(start_offset=3, runs=runs, compression=compression, created_ms=CREATED_MS)
        )
        for compression in (Compression.ZSTD, Compression.ZSTD)
    )
    assert first == second


def test_an_index_longer_than_the_first_fetch_is_fetched_again() -> None:
    runs = [b"%07d" % number for number in range(1000)]
    chunk = encode_chunk(start_offset=0, runs=runs, created_ms=CREATED_MS, block_bytes_target=7)
    assert len(chunk.index.entries) == 1000
    assert read_range(image_of(chunk), identity_of(chunk), 3500, 3507) == b"0000500"


runs_of_bytes = st.lists(
    st.one_of(
        st.binary(max_size=80),
        st.builds(lambda piece, times: piece * times, st.binary(max_size=5), st.integers(0, 400)),
    ),
    min_size=1,
    max_size=12,
).filter(lambda runs: any(runs))


@settings(max_examples=150, deadline=None)
@given(
    runs=runs_of_bytes,
    start_offset=st.integers(0, 2**62),
    target=st.integers(1, 2000),
    compression=st.sampled_from(COMPRESSIONS),
    data=st.data(),
)
def test_every_range_of_every_chunk_reads_back(
    runs: list[bytes],
    start_offset: int,
    target: int,
    compression: Compression,
    data: st.DataObject,
) -> None:
    chunk = encode_chunk(
        start_offset=start_offset,
        runs=[memoryview(run) for run in runs],
        compression=compression,
        created_ms=CREATED_MS,
        block_bytes_target=target,
    )
    image = image_of(chunk)
    whole = b"".join(runs)
    assert verify_chunk(image, identity=identity_of(chunk)).damages == ()
    start = data.draw(st.integers(0, len(whole) - 1))
    end = data.draw(st.integers(start + 1, len(whole)))
    found = read_range(image, identity_of(chunk), start_offset + start, start_offset + end)
    assert found == whole[start:end]


event_information = st.builds(
    lambda position, number, low, high: EventInformation(
        position, number if position is not None else 0, min(low, high), max(low, high)
    ),
    st.one_of(st.none(), st.integers(0, 49)),
    st.integers(0, 2**63),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-(2**63), 2**63 - 1),
)


@settings(max_examples=200, deadline=None)
@given(
    events=st.lists(st.one_of(st.none(), event_information), min_size=1, max_size=20),
    target=st.integers(1, 400),
)
def test_h76_event_information_survives_the_index(
    events: list[EventInformation | None], target: int
) -> None:
    chunk = encode_chunk(
        start_offset=0,
        runs=[bytes(50)] * len(events),
        events=events,
        created_ms=CREATED_MS,
        block_bytes_target=target,
    )
    image = image_of(chunk)
    assert verify_chunk(image).damages == ()
    parsed = read_index(image, identity_of(chunk))
    assert list(parsed.entries) == list(chunk.index.entries)
    for block, entry in enumerate(parsed.entries):
        described = events[entry.first_offset // 50 : parsed.block_end_offset(block) // 50]
        known = [description for description in described if description is not None]
        if entry.events is None:
            assert len(known) < len(described)
        elif not all(one.highest_time_ms for one in known):
            assert (entry.events.lowest_time_ms, entry.events.highest_time_ms) == (0, 0)
        else:
            assert entry.events.lowest_time_ms == min(one.lowest_time_ms for one in known)
            assert entry.events.highest_time_ms == max(one.highest_time_ms for one in known)
