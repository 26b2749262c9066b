"""Short fields of many rows, put together by the array: fixed bytes and varints of all rows at once.

A field is a matrix of bytes, a row of it for each row, and how many of them count. `pack` writes the counted bytes of
all fields behind one another, row by row.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_VARINT_BYTES_MAX = 10


@dataclass(frozen=True, slots=True)
class Field:
    """One field of every row."""

    content: npt.NDArray[np.uint8]
    """Rows by the most bytes that the field may have."""
    lengths: npt.NDArray[np.int64]


def fixed_field(content: npt.NDArray[np.uint8]) -> Field:
    """All bytes of each row."""
    return Field(content, np.full(len(content), content.shape[1], np.int64))


def varint_field(values: npt.NDArray[np.uint64]) -> Field:
    """LEB128: 7 bits a byte, the lowest first, the high bit on all but the last."""
    highest = int(values.max(initial=0))
    width = min(_VARINT_BYTES_MAX, max(1, -(-highest.bit_length() // 7)))
    shifted = values[:, None] >> (np.arange(width, dtype=np.uint64) * np.uint64(7))
    is_last = shifted < 0x80
    lengths = np.argmax(is_last, axis=1) + 1
    content = (shifted & np.uint64(0x7F)).astype(np.uint8)
    content[~is_last] |= 0x80
    return Field(content, lengths)


def zigzag(values: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """0, -1, 1, -2, ... become 0, 1, 2, 3, ..."""
    return ((values << 1) ^ (values >> 63)).view(np.uint64)


def pack(fields: Sequence[Field]) -> pa.BinaryArray:
    """The fields of each row behind one another, a value for each row."""
    content = np.concatenate([field.content for field in fields], axis=1)
    counted = np.concatenate(
        [np.arange(field.content.shape[1]) < field.lengths[:, None] for field in fields], axis=1
    )
    lengths = np.sum([field.lengths for field in fields], axis=0)
    return packed_array(content[counted], lengths)


def packed_array(content: npt.NDArray[np.uint8], lengths: npt.NDArray[np.int64]) -> pa.BinaryArray:
    """Values of these lengths that stand behind one another."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(lengths), [None, pa.py_buffer(offsets), pa.py_buffer(content)]
    )


def lengths_of(values: pa.BinaryArray) -> npt.NDArray[np.int64]:
    """Bytes of each value."""
    offsets = np.frombuffer(values.buffers()[1], np.int32)
    return np.diff(offsets[values.offset : values.offset + len(values) + 1]).astype(np.int64)
