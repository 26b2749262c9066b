"""Where routing keys fall in the key space, for a whole column at once: codec/routing_hash.py by arrays.

A key is text; the bytes of a binary column are taken for UTF-8, and bytes that are none count as lone surrogates, so
that every key has a place. ASCII keys, grouped by their length, are hashed together; others one by one.

Invariant: a key's position is that of `event_position(text of the key)`: writers of other languages send the same key
to the same segment.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from segmentstore.codec.routing_hash import EVENT_SEED, event_position

Positions = npt.NDArray[np.float64]
Lanes = npt.NDArray[np.uint64]

_C1: Final = np.uint64(0x87C37B91114253D5)
_C2: Final = np.uint64(0x4CF5AD432745937F)
_LANE_BYTES = 8
_BLOCK_BYTES = 16
_FRACTION_BITS = 52


def key_positions(keys: pa.BinaryArray) -> Positions:
    """In [0, 1) for each key; of a null the position of an empty key."""
    offsets = np.frombuffer(keys.buffers()[1], np.int32)[keys.offset : keys.offset + len(keys) + 1]
    content = keys.buffers()[2]
    characters = np.frombuffer(content if content is not None else b"", np.uint8)
    starts, lengths = offsets[:-1].astype(np.int64), np.diff(offsets)
    positions = np.empty(len(keys), np.float64)
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(lengths == length)
        texts = characters[starts[rows][:, None] + np.arange(length)]
        ascii_rows = (texts < 0x80).all(axis=1)
        positions[rows[ascii_rows]] = _ascii_positions(texts[ascii_rows])
        for place in np.flatnonzero(~ascii_rows).tolist():
            text = texts[place].tobytes().decode("utf-8", "surrogateescape")
            positions[rows[place]] = event_position(text)
    return positions


def _ascii_positions(texts: npt.NDArray[np.uint8]) -> Positions:
    """Of texts of one length, a row each: MurmurHash3 x64 128 over two bytes for each character."""
    count, length = texts.shape[0], texts.shape[1] * 2
    blocks = length // _BLOCK_BYTES
    padded = np.zeros((count, (blocks + 1) * _BLOCK_BYTES), np.uint8)
    padded[:, 0:length:2] = texts
    lanes = padded.view("<u8").astype(np.uint64, copy=False)
    # The seed is a positive 32-bit number: sign extension leaves it as it is.
    h1 = np.full(count, EVENT_SEED, np.uint64)
    h2 = h1.copy()
    for block in range(blocks):
        h1 ^= _scrambled(lanes[:, 2 * block], _C1, 31, _C2)
        h1 = (_rotated(h1, 27) + h2) * np.uint64(5) + np.uint64(0x52DCE729)
        h2 ^= _scrambled(lanes[:, 2 * block + 1], _C2, 33, _C1)
        h2 = (_rotated(h2, 31) + h1) * np.uint64(5) + np.uint64(0x38495AB5)
    # Lanes without a byte of the tail are zero, and change nothing.
    h2 ^= _scrambled(lanes[:, 2 * blocks + 1], _C2, 33, _C1)
    h1 ^= _scrambled(lanes[:, 2 * blocks], _C1, 31, _C2)
    h1 ^= np.uint64(length)
    h2 ^= np.uint64(length)
    h1 += h2
    h2 += h1
    h1 = _finished(h1) + _finished(h2)
    return (h1 >> np.uint64(64 - _FRACTION_BITS)).astype(np.float64) / (1 << _FRACTION_BITS)


def _scrambled(lane: Lanes, first: np.uint64, bits: int, second: np.uint64) -> Lanes:
    return _rotated(lane * first, bits) * second


def _rotated(value: Lanes, bits: int) -> Lanes:
    return (value << np.uint64(bits)) | (value >> np.uint64(64 - bits))


def _finished(value: Lanes) -> Lanes:
    value = (value ^ (value >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    value = (value ^ (value >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return value ^ (value >> np.uint64(33))
