"""Which blocks are compressed."""

from random import Random

import pytest

import tier2.format.block
from segmentstore.contracts.identifiers import BufferView
from tier2.format.block import encode_block
from tier2.format.chunk_format import Compression

COMPRESSED = [Compression.LZ4, Compression.ZSTD]
LINE = b'{"event":"click","user":%d,"page":"/cart"}\n'


def lines(count: int) -> list[BufferView]:
    return [LINE % number for number in range(count)]


def noise(count: int) -> list[BufferView]:
    random = Random(1)
    return [random.randbytes(50) for _ in range(count)]


@pytest.mark.parametrize("compression", COMPRESSED)
@pytest.mark.parametrize("joined", [True, False])
def test_large_blocks_of_text_are_compressed(compression: Compression, joined: bool) -> None:
    runs = lines(5000)
    length = sum(map(len, runs))
    assert length > 1 << 17
    if joined:
        runs = [b"".join(runs)]
    block = encode_block(runs, length=length, compression=compression)
    assert block.compression is compression
    assert block.stored_length < length / 3


@pytest.mark.parametrize("compression", COMPRESSED)
@pytest.mark.parametrize("joined", [True, False])
def test_large_blocks_of_noise_are_stored_without_a_copy(
    compression: Compression, joined: bool
) -> None:
    runs = noise(5000)
    if joined:
        runs = [b"".join(runs)]
    block = encode_block(runs, length=250_000, compression=compression)
    assert block.compression is Compression.NONE
    assert block.stored_length == 250_000
    assert all(piece is run for piece, run in zip(block.pieces[:-1], runs, strict=True))


@pytest.mark.parametrize("compression", COMPRESSED)
@pytest.mark.parametrize("text_place", [0, 1, 2])
def test_a_large_block_with_text_at_one_place_is_compressed(
    compression: Compression, text_place: int
) -> None:
    thirds = [b"".join(noise(2000)), b"".join(noise(2000)), b"".join(noise(2000))]
    thirds[text_place] = b"".join(lines(3000))[:100_000]
    whole = b"".join(thirds)
    block = encode_block([whole], length=len(whole), compression=compression)
    assert block.compression is compression


def repeated_noise(period: int, length: int, run_bytes: int) -> list[BufferView]:
    whole = (Random(2).randbytes(period) * (length // period + 1))[:length]
    return [whole[start : start + run_bytes] for start in range(0, length, run_bytes)]


@pytest.mark.parametrize("run_bytes", [4096, 1 << 16, 1 << 21])
def test_noise_that_repeats_within_the_window_of_lz4_is_compressed(run_bytes: int) -> None:
    runs = repeated_noise(4096, 1 << 20, run_bytes)
    block = encode_block(runs, length=1 << 20, compression=Compression.LZ4)
    assert block.compression is Compression.LZ4
    assert block.stored_length < (1 << 20) / 10


@pytest.mark.parametrize("run_bytes", [4096, 1 << 16, 1 << 21])
def test_noise_that_repeats_beyond_the_window_of_lz4_is_not_compressed_in_vain(
    run_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    compressed: list[int] = []

    def compress(content: BufferView, compression: Compression) -> bytes:
        compressed.append(len(content))
        return original(content, compression)

    original = tier2.format.block._compress
    monkeypatch.setattr(tier2.format.block, "_compress", compress)
    # All three places that are looked at are alike.
    runs = repeated_noise(1 << 16, (1 << 20) + 4096, run_bytes)
    block = encode_block(runs, length=(1 << 20) + 4096, compression=Compression.LZ4)
    assert block.compression is Compression.NONE
    assert sum(compressed) < (1 << 20) / 4


def test_zstandard_finds_what_repeats_beyond_the_window_of_lz4() -> None:
    runs = repeated_noise(1 << 17, (1 << 20) + 4096, 1 << 21)
    block = encode_block(runs, length=(1 << 20) + 4096, compression=Compression.ZSTD)
    assert block.compression is Compression.ZSTD
    assert block.stored_length < (1 << 20) / 4


@pytest.mark.parametrize("compression", COMPRESSED)
def test_tiny_blocks_are_stored_as_they_are(compression: Compression) -> None:
    assert encode_block([b"a" * 31], length=31, compression=compression).stored_length == 31
    assert encode_block([b"a" * 64], length=64, compression=compression).stored_length < 64
