"""Arrow columns of byte strings that lie scattered in one buffer, without a Python object for each.

Invariant: the stretches are in order and do not overlap. Between two of them lies what is left out (headers, lengths),
so the buffer as it is makes a column of twice as many strings, every other one of which is taken: one copy, in C++.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from segmentstore.contracts.identifiers import BufferView

Places = npt.NDArray[np.int64]


def binary_column(content: BufferView, starts: Places, ends: Places) -> pa.Array:
    """The strings [start, end) of the buffer, which has less than 2 GiB. O(rows + bytes)."""
    count = len(starts)
    if not count:
        return pa.array([], pa.binary())
    bounds = np.zeros(2 * count + 1, dtype=np.int32)
    bounds[1::2] = starts
    bounds[2::2] = ends
    stretches = pa.Array.from_buffers(
        pa.binary(), 2 * count, [None, pa.py_buffer(bounds), pa.py_buffer(content)]
    )
    is_taken = np.zeros(2 * count, dtype=np.bool_)
    is_taken[1::2] = True
    return stretches.filter(pa.array(is_taken))
