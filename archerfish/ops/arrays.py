"""Types of numpy arrays that describe steps on the host."""

import numpy as np

Ints = np.ndarray[tuple[int], np.dtype[np.int64]]
Floats = np.ndarray[tuple[int], np.dtype[np.float32]]
IntTable = np.ndarray[tuple[int, int], np.dtype[np.int32]]
ByteTable = np.ndarray[tuple[int, int], np.dtype[np.uint8]]
LongTable = np.ndarray[tuple[int, int], np.dtype[np.int64]]
